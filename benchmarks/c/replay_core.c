/* replay_core.c - replays trace files through the core, with no Python.
 *
 *     gcc -O2 -std=c11 -D_GNU_SOURCE -pthread -Icsrc/core benchmarks/c/replay_core.c \
 *         $(find csrc/core -name "*.c") csrc/driver/{replay,nulldriver,sim,oracle}*.c -lm -o replay_core
 *     ./replay_core [OPTIONS] FILE.trace...
 *
 * Files are plain text (xz -dc NAME.trace.xz > NAME.trace) or are piped through `xz -dc`
 * where their name ends in .xz. For measuring the allocator's policy and speed: one row a
 * trace, figures a step over the second half of the steps. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../csrc/driver/replay.h"

static const char usage[] =
    "usage: replay_core [OPTIONS] FILE.trace[.xz]...\n"
    "  --limit-ratio R   cap at R times the trace's peak of requested bytes\n"
    "  --limit BYTES     cap\n"
    "  --page MIB        page size\n"
    "  --slack R         reserved over live peak up to which pages are made (1.02)\n"
    "  --pass-after N    allocations after which a stream has passed (1000)\n"
    "  --null            driver calls that do nothing (speed)\n"
    "  --repeat N        run N times, show the fastest\n"
    "  --skip            go on after out of memory\n"
    "  --check           check every invariant at every step\n"
    "  --steps           a line a step\n";

static char *read_all(const char *path, size_t *length)
{
    size_t n = strlen(path);
    bool packed = n > 3 && strcmp(path + n - 3, ".xz") == 0;
    char command[4096];
    snprintf(command, sizeof command, "xz -dc '%s'", path);
    FILE *file = packed ? popen(command, "r") : fopen(path, "r");
    if (file == NULL) return NULL;
    size_t room = 1 << 20, used = 0;
    char *text = malloc(room);
    while (text != NULL) {
        used += fread(text + used, 1, room - used, file);
        if (used < room) break;
        char *bigger = realloc(text, room *= 2);
        if (bigger == NULL) free(text);
        text = bigger;
    }
    bool bad = ferror(file) != 0;
    int closed = packed ? pclose(file) : fclose(file);
    *length = used;
    if (!bad && closed == 0) return text;
    free(text);
    return NULL;
}

static void show_step(void *context, uint64_t number, const ta_replay_step *s)
{
    (void)context;
    printf("  step %3llu: moves %6llu waits %5llu calls %6llu driver %9.0f us\n",
           (unsigned long long)number, (unsigned long long)s->page_moves,
           (unsigned long long)s->waits, (unsigned long long)s->driver_calls,
           s->driver_us);
}

static int replay_file(const char *path, const ta_replay_options *options, int repeat)
{
    size_t length;
    char *text = read_all(path, &length);
    if (text == NULL) {
        fprintf(stderr, "%s: cannot be read\n", path);
        return 1;
    }
    ta_trace *trace;
    ta_trace_error error;
    ta_status status = ta_trace_parse(text, length, &trace, &error);
    free(text);
    if (status != TA_OK) {
        fprintf(stderr, "%s:%llu: %s\n", path, (unsigned long long)error.line,
                error.reason);
        return 1;
    }
    ta_replay_result best = {0}, result;
    for (int i = 0; i < repeat && status == TA_OK; i++) {
        status = ta_replay(trace, options, &result);
        if (i == 0 || result.seconds < best.seconds) best = result;
    }
    ta_trace_free(trace);
    if (status != TA_OK) {
        fprintf(stderr, "%s: %s\n", path, result.failure);
        return 1;
    }
    const char *name = strrchr(path, '/');
    printf(
        "%-26s %7.3f %7.4f %5llu %8llu %6llu %8.1f %7llu %6llu %5llu %8.0f %8.0f %6.2f\n",
        name == NULL ? path : name + 1, (double)best.peak_requested / (1 << 30),
        best.ratio, (unsigned long long)best.ooms, (unsigned long long)best.page_moves,
        (unsigned long long)best.waits, best.driver_us / 1000,
        (unsigned long long)best.median.page_moves,
        (unsigned long long)best.highest.page_moves,
        (unsigned long long)best.median.waits, best.median.driver_us,
        best.highest.driver_us, best.events_per_second / 1e6);
    if (best.ooms > 0)
        printf("  event %llu: %s\n", (unsigned long long)best.oom_event, best.oom_text);
    return best.ooms > 0 ? 3 : 0;
}

int main(int argc, char **argv)
{
    ta_replay_options options = TA_REPLAY_DEFAULTS;
    int repeat = 1, worst = 0, i = 1;
    for (; i < argc && strncmp(argv[i], "--", 2) == 0; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(name, "--null") == 0)
            options.null_driver = true;
        else if (strcmp(name, "--skip") == 0)
            options.skip_oom = true;
        else if (strcmp(name, "--check") == 0)
            options.check = true;
        else if (strcmp(name, "--steps") == 0)
            options.on_step = show_step;
        else {
            i++;
            if (strcmp(name, "--limit-ratio") == 0)
                options.limit_ratio = atof(value);
            else if (strcmp(name, "--limit") == 0)
                options.limit = strtoull(value, NULL, 10);
            else if (strcmp(name, "--page") == 0)
                options.page_bytes = strtoull(value, NULL, 10) << 20;
            else if (strcmp(name, "--slack") == 0)
                options.slack = atof(value);
            else if (strcmp(name, "--pass-after") == 0)
                options.pass_after = strtoull(value, NULL, 10);
            else if (strcmp(name, "--repeat") == 0)
                repeat = atoi(value);
            else {
                fputs(usage, stderr);
                return 2;
            }
        }
    }
    if (i >= argc || repeat < 1) {
        fputs(usage, stderr);
        return 2;
    }
    printf("%-26s %7s %7s %5s %8s %6s %8s %7s %6s %5s %8s %8s %6s\n", "trace", "req GiB",
           "ratio", "ooms", "moves", "waits", "drv ms", "mv/step", "max", "waits",
           "us/step", "max", "Mev/s");
    for (; i < argc; i++) {
        int code = replay_file(argv[i], &options, repeat);
        if (code != 0) worst = code;
    }
    return worst;
}
