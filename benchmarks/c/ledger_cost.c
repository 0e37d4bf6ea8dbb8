/* ledger_cost.c - what a cap that processes share costs.
 *
 *     gcc -O2 -std=c11 -D_GNU_SOURCE= -fexceptions -pthread -Icsrc/core \
 *         benchmarks/c/ledger_cost.c \
 *         $(find csrc/core -name "*.c") csrc/driver/nulldriver.c -lm -o ledger_cost
 *     ./ledger_cost [--json] [--directory DIR] [SLOTS...]
 *
 * For each number of live slots (8 and 256 unless told), all of which hold memory: growth by
 * a page, its release, a refusal (for which every owner is probed), and a reading of all, in
 * microseconds, medians and 99th percentiles. Then the allocator on a driver that does
 * nothing, with a ledger and without: an alloc and free of mapped memory (nanoseconds), and
 * 256 pages made for one block and given back (microseconds a page). The ledger lies in a new
 * folder under DIR (/dev/shm: memory, as /run is). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../csrc/core/clock.h"
#include "../../csrc/core/ledger/ledger.h"
#include "../../csrc/driver/nulldriver.h"

#define GPU "GPU-0"
#define PAGE TA_DEFAULT_PAGE
#define ROUNDS 5000
#define MIB ((uint64_t)1 << 20)

static char directory[256];
static char why[TA_SHARE_WHY];

static void must(bool good, const char *what)
{
    if (good) return;
    fprintf(stderr, "ledger_cost: %s %s\n", what, why);
    exit(1);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
typedef struct found {
    double p50, p99;
} found;
static found summary(double *us, size_t count)
{
    qsort(us, count, sizeof *us, compare);
    return (found){us[count / 2], us[count - count / 100 - 1]};
}

/* --- the ledger --------------------------------------------------------------------------- */
typedef struct costs {
    int slots;
    found growth, release, refusal, reading;
} costs;

static costs measure(int slots)
{
    static ta_ledger *ledger[TA_LEDGER_SLOTS];
    static double us[4][ROUNDS];
    static ta_share_row rows[TA_LEDGER_SLOTS];
    const ta_ledger_who who = {"benchmark", "", false};
    const ta_ledger_terms wide = {{TA_NO_LIMIT, TA_NO_LIMIT, false}, TA_NO_LIMIT, 0},
                          full = {{PAGE, TA_NO_LIMIT, false}, TA_NO_LIMIT, 0};
    const ta_ledger_want want = {PAGE, PAGE, PAGE, false};
    ta_refusal no;
    uint64_t got;
    size_t count;
    for (int i = 0; i < slots; i++) {
        must(!ta_ledger_join(directory, GPU, &who, &ledger[i], why), "join:");
        must(!ta_ledger_reserve(ledger[i], &want, &wide, &got, &no), "reserve");
    }
    for (int i = 0; i < ROUNDS; i++) {
        ta_ledger *l = ledger[i % slots];
        double start = ta_now_us();
        must(!ta_ledger_reserve(l, &want, &wide, &got, &no), "reserve");
        double grown = ta_now_us();
        ta_ledger_release(l, got);
        double released = ta_now_us();
        must(ta_ledger_reserve(l, &want, &full, &got, &no) == TA_OUT_OF_MEMORY, "refuse");
        double refused = ta_now_us();
        us[0][i] = grown - start;
        us[1][i] = released - grown;
        us[2][i] = refused - released;
    }
    for (int i = 0; i < ROUNDS / 10; i++) {
        double start = ta_now_us();
        must(!ta_share_read(directory, GPU, rows, TA_LEDGER_SLOTS, &count, why), "read:");
        us[3][i] = ta_now_us() - start;
    }
    for (int i = 0; i < slots; i++) {
        ta_ledger_release(ledger[i], PAGE);
        ta_ledger_leave(ledger[i]);
    }
    return (costs){slots, summary(us[0], ROUNDS), summary(us[1], ROUNDS),
                   summary(us[2], ROUNDS), summary(us[3], ROUNDS / 10)};
}

/* --- the allocator ------------------------------------------------------------------------ */
typedef struct whole {
    double pair_ns, page_us;
} whole;

static whole allocator_with(bool shared)
{
    enum { PAGES = 256, PAIRS = 200000, TIMES = 50 };
    static double us[TIMES];
    const ta_null_config config = {1, (uint64_t)1 << 40, PAGE};
    const ta_share_config share = {.directory = directory,
                                   .gpu = GPU,
                                   .label = "",
                                   .tenant = "",
                                   .caps = {(uint64_t)1 << 39, TA_NO_LIMIT, false}};
    ta_null *null;
    ta_allocator *a;
    void *at;
    bool others;
    must(!ta_null_create(&config, &null), "no driver");
    must(!ta_allocator_create(ta_null_driver(null), NULL, &a), "no allocator");
    must(!shared || !ta_share_open(a, 0, &share, &others, why), "open:");
    whole w;
    for (int i = 0; i < TIMES; i++) {
        double start = ta_now_us();
        must(!ta_alloc(a, PAGES * PAGE, 0, NULL, &at, NULL), "alloc");
        ta_free(a, at);
        ta_trim(a, 0, NULL);
        us[i] = ta_now_us() - start;
    }
    w.page_us = summary(us, TIMES).p50 / PAGES;
    must(!ta_alloc(a, 8 * MIB, 0, NULL, &at, NULL), "alloc");
    ta_free(a, at);
    double start = ta_now_us();
    for (int i = 0; i < PAIRS; i++) {
        ta_alloc(a, 2 * MIB, 0, NULL, &at, NULL);
        ta_free(a, at);
    }
    w.pair_ns = (ta_now_us() - start) * 1e3 / PAIRS;
    ta_allocator_destroy(a);
    ta_null_destroy(null);
    return w;
}

int main(int argc, char **argv)
{
    const char *parent = "/dev/shm";
    bool json = false;
    int slots[16] = {8, 256}, count = 0;
    for (int i = 1; i < argc; i++) {
        int n = atoi(argv[i]);
        if (!strcmp(argv[i], "--json"))
            json = true;
        else if (!strcmp(argv[i], "--directory") && i + 1 < argc)
            parent = argv[++i];
        else if (n > 0 && n <= TA_LEDGER_SLOTS && count < 16)
            slots[count++] = n;
        else {
            fprintf(stderr, "usage: ledger_cost [--json] [--directory DIR] [SLOTS...]\n");
            return 2;
        }
    }
    if (!count) count = 2;
    char file[sizeof directory + 32];
    snprintf(directory, sizeof directory, "%s/ta_ledger_cost_XXXXXX", parent);
    must(mkdtemp(directory) != NULL, "no folder");
    if (!json)
        printf("%5s %17s %17s %17s %17s\n", "slots", "growth us", "release us",
               "refusal us", "reading us");
    for (int i = 0; i < count; i++) {
        costs c = measure(slots[i]);
        if (json)
            printf(
                "{\"slots\": %d, \"growth_us\": %.2f, \"growth_p99_us\": %.2f, "
                "\"release_us\": %.2f, \"release_p99_us\": %.2f, \"refusal_us\": %.1f, "
                "\"refusal_p99_us\": %.1f, \"reading_us\": %.1f}\n",
                c.slots, c.growth.p50, c.growth.p99, c.release.p50, c.release.p99,
                c.refusal.p50, c.refusal.p99, c.reading.p50);
        else
            printf("%5d %8.2f %8.2f %8.2f %8.2f %8.1f %8.1f %8.1f %8.1f\n", c.slots,
                   c.growth.p50, c.growth.p99, c.release.p50, c.release.p99,
                   c.refusal.p50, c.refusal.p99, c.reading.p50, c.reading.p99);
    }
    whole without = allocator_with(false), with = allocator_with(true);
    if (json)
        printf("{\"pair_ns\": %.1f, \"shared_pair_ns\": %.1f, \"page_us\": %.3f, "
               "\"shared_page_us\": %.3f}\n",
               without.pair_ns, with.pair_ns, without.page_us, with.page_us);
    else
        printf("allocator: mapped pair %.1f ns without, %.1f with; a page made and given "
               "back %.3f us without, %.3f with\n",
               without.pair_ns, with.pair_ns, without.page_us, with.page_us);
    snprintf(file, sizeof file, "%s/%s.ledger", directory, GPU);
    unlink(file);
    return rmdir(directory) != 0;
}
