/* Recordings: the lines to the letter, a start in mid-run, threads, and disks that fail.
 * What is recorded must be a trace that the replay reads. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/records/record.h"
#include "driver/nulldriver.h"
#include "driver/replay.h"
#include "testing.h"

#define OTHER ((ta_stream)0x1000)

typedef struct fixture {
    ta_null *null;
    ta_allocator *a;
    char path[64];
    char error[TA_RECORD_ERROR];
    ta_recorder *r;
} fixture;

static fixture set_up(int devices)
{
    fixture f = {.path = "/tmp/ta_record_XXXXXX"};
    ta_null_config config = {.devices = devices, .memory = (uint64_t)8 << 30};
    if (ta_null_create(&config, &f.null) != TA_OK) abort();
    if (ta_allocator_create(ta_null_driver(f.null), NULL, &f.a) != TA_OK) abort();
    int fd = mkstemp(f.path);
    if (fd < 0) abort();
    close(fd);
    return f;
}

static void tear_down(fixture *f)
{
    ta_allocator_destroy(f->a);
    ta_null_destroy(f->null);
    unlink(f->path);
}

static void *take(const fixture *f, size_t size, int device, ta_stream stream)
{
    void *p = NULL;
    ta_alloc(f->a, size, device, stream, &p, NULL);
    return p;
}

/* The file's text; the caller frees it. */
static char *text_of(const char *path, size_t *length)
{
    FILE *file = fopen(path, "r");
    if (file == NULL) abort();
    fseek(file, 0, SEEK_END);
    *length = (size_t)ftell(file);
    rewind(file);
    char *text = calloc(*length + 1, 1);
    if (text == NULL || fread(text, 1, *length, file) != *length) abort();
    fclose(file);
    return text;
}

/* The events of the trace in the file; 0 where it is malformed. */
static size_t events_of(const char *path)
{
    size_t length;
    char *text = text_of(path, &length);
    ta_trace *trace;
    ta_trace_error error;
    size_t count = 0;
    if (ta_trace_parse(text, length, &trace, &error) == TA_OK) {
        count = trace->count;
        ta_trace_free(trace);
    } else {
        printf("line %llu: %s\n", (unsigned long long)error.line, error.reason);
    }
    free(text);
    return count;
}

TEST(lines_to_the_letter)
{
    fixture f = set_up(2);
    ta_record_options options = {.page_bytes = 2 << 20};
    CHECK_EQ(ta_record_start(f.a, f.path, &options, &f.r, f.error), TA_OK);
    void *p = take(&f, 1000, 0, OTHER);
    void *q = take(&f, 5 << 20, 0, NULL);
    CHECK_EQ(ta_mark(f.a, "forward"), TA_OK);
    void *s = take(&f, 7, 1, NULL);
    CHECK_EQ(ta_record_stream(f.a, q, OTHER), TA_OK);
    CHECK_EQ(ta_free(f.a, p), TA_OK);
    CHECK_EQ(ta_free(f.a, q), TA_OK);
    CHECK_EQ(ta_mark(f.a, "two\nlines"), TA_OK);
    CHECK_EQ(ta_free(f.a, s), TA_OK);
    CHECK_EQ(ta_mark(f.a, "step"), TA_OK);
    CHECK(take(&f, (size_t)1 << 40, 0, NULL) == NULL);
    ta_record_result result;
    CHECK_EQ(ta_record_stop(f.r, &result), TA_OK);
    size_t length;
    char *text = text_of(f.path, &length);
    CHECK_STR(text, "# torcharena trace 1 page 2097152\n"
                    "a 1 1000 0\n"
                    "a 2 5242880 1\n"
                    "m forward\n"
                    "a 3 7 2 1\n"
                    "r 2 0\n"
                    "f 1\n"
                    "f 2\n"
                    "m two lines\n"
                    "f 3\n"
                    "m step\n"
                    "# out of memory: 1099511627776 bytes on device 0\n");
    CHECK_EQ(result.lines, 10);
    CHECK_EQ(result.bytes, length);
    CHECK_EQ(result.lost, 0);
    CHECK_STR(result.error, "");
    free(text);
    CHECK_EQ(events_of(f.path), 10);
    tear_down(&f);
}

TEST(what_is_alive_at_the_start_comes_first)
{
    fixture f = set_up(1);
    void *gone = take(&f, 100, 0, NULL), *p = take(&f, 3 << 20, 0, OTHER);
    ta_free(f.a, gone);
    CHECK_EQ(ta_record_start(f.a, f.path, NULL, &f.r, f.error), TA_OK);
    void *q = take(&f, 600, 0, NULL);
    ta_free(f.a, p);
    ta_free(f.a, q);
    CHECK_EQ(ta_record_stop(f.r, NULL), TA_OK);
    size_t length;
    char *text = text_of(f.path, &length);
    CHECK_STR(text, "# torcharena trace 1 page 4194304\n"
                    "a 1 3145728 0\n"
                    "a 2 600 1\n"
                    "f 1\n"
                    "f 2\n");
    free(text);
    tear_down(&f);
}

TEST(long_marks_and_many_of_them)
{
    fixture f = set_up(1);
    char text[600];
    memset(text, 'x', sizeof text);
    text[599] = 0;
    memcpy(text + 239, "\xc3\xa9", 2); /* cut within a character */
    CHECK_EQ(ta_record_start(f.a, f.path, NULL, &f.r, f.error), TA_OK);
    for (int i = 0; i < 5000; i++) ta_mark(f.a, text + (i % 3 ? 0 : i % 599));
    ta_mark(f.a, "");
    ta_record_result result;
    CHECK_EQ(ta_record_stop(f.r, &result), TA_OK);
    CHECK_EQ(result.lines, 5000);
    CHECK_EQ(events_of(f.path), 5000);
    size_t length;
    char *all = text_of(f.path, &length);
    char *second = strstr(strchr(all, '\n') + 1, "\n") + 1;
    CHECK_EQ(strchr(second, '\n') - second, 2 + 239);
    free(all);
    tear_down(&f);
}

#define ROUNDS 20000
static void *churn(void *context)
{
    fixture *f = context;
    void *kept[16] = {0};
    for (int i = 0; i < ROUNDS; i++) {
        void **slot = &kept[i % 16];
        ta_free(f->a, *slot);
        *slot = take(f, 512 * (size_t)(i % 90 + 1), 0, i % 2 ? NULL : OTHER);
    }
    for (int i = 0; i < 16; i++) ta_free(f->a, kept[i]);
    return NULL;
}

TEST(threads_lose_nothing)
{
    fixture f = set_up(1);
    pthread_t threads[4];
    CHECK_EQ(ta_record_start(f.a, f.path, NULL, &f.r, f.error), TA_OK);
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, churn, &f);
    ta_record_result result;
    for (int i = 0; i < 100; i++) ta_record_look(f.r, &result);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    CHECK_EQ(ta_record_stop(f.r, &result), TA_OK);
    CHECK_EQ(result.lines, 4 * ROUNDS * 2);
    CHECK_EQ(events_of(f.path), 4 * ROUNDS * 2);
    tear_down(&f);
}

/* Starts while blocks come and go: none may be freed unborn, or be born twice. */
TEST(starts_among_threads)
{
    fixture f = set_up(1);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, churn, &f);
    for (int i = 0; i < 5; i++) {
        CHECK_EQ(ta_record_start(f.a, f.path, NULL, &f.r, f.error), TA_OK);
        usleep(2000);
        CHECK_EQ(ta_record_stop(f.r, NULL), TA_OK);
        size_t length;
        char *text = text_of(f.path, &length);
        ta_trace *trace;
        CHECK_EQ(ta_trace_parse(text, length, &trace, NULL), TA_OK);
        ta_trace_free(trace);
        free(text);
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    tear_down(&f);
}

TEST(a_path_that_cannot_be_opened)
{
    fixture f = set_up(1);
    CHECK_EQ(ta_record_start(f.a, "/no/such/folder/x", NULL, &f.r, f.error), TA_INVALID);
    CHECK(f.r == NULL);
    CHECK_STR(f.error, "/no/such/folder/x: No such file or directory");
    /* A full disk is known at once: the header does not fit. */
    CHECK_EQ(ta_record_start(f.a, "/dev/full", NULL, &f.r, f.error), TA_INVALID);
    CHECK_STR(f.error, "the trace cannot be written: No space left on device");
    CHECK_EQ(ta_record_start(f.a, f.path, NULL, &f.r, f.error), TA_OK);
    CHECK_EQ(ta_record_stop(f.r, NULL), TA_OK);
    tear_down(&f);
}

TEST(the_disk_fills_up)
{
    fixture f = set_up(1);
    struct rlimit before, now;
    getrlimit(RLIMIT_FSIZE, &before);
    now = (struct rlimit){.rlim_cur = 100000, .rlim_max = before.rlim_max};
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &now), 0);
    CHECK_EQ(ta_record_start(f.a, f.path, NULL, &f.r, f.error), TA_OK);
    churn(&f);
    ta_record_result result;
    ta_status status = ta_record_stop(f.r, &result);
    setrlimit(RLIMIT_FSIZE, &before);
    CHECK_EQ(status, TA_DRIVER);
    CHECK_STR(result.error, "the trace cannot be written: File too large");
    CHECK(result.bytes <= 100000);
    struct stat at;
    CHECK_EQ(stat(f.path, &at), 0);
    CHECK_EQ(at.st_size, result.bytes);
    CHECK(events_of(f.path) > 5000);
    tear_down(&f);
}

/* A reader that does not read: the queue fills, the recording ends, allocating goes on. */
TEST(the_writing_falls_behind)
{
    fixture f = set_up(1);
    unlink(f.path);
    CHECK_EQ(mkfifo(f.path, 0600), 0);
    int reader = open(f.path, O_RDONLY | O_NONBLOCK);
    CHECK(reader >= 0);
    ta_record_options options = {.queue_bytes = 200000};
    CHECK_EQ(ta_record_start(f.a, f.path, &options, &f.r, f.error), TA_OK);
    ta_record_result result;
    for (int i = 0; i < 20; i++) {
        churn(&f);
        ta_record_look(f.r, &result);
    }
    CHECK_STR(result.error, "the writing of the trace fell behind: its queue was full");
    CHECK(result.lost > 0);
    CHECK(result.queue_peak <= 200000);
    close(reader); /* the thread's write fails, and no signal ends the process */
    CHECK_EQ(ta_record_stop(f.r, &result), TA_DRIVER);
    tear_down(&f);
}

TEST(a_forked_child_leaves_the_file_alone)
{
    fixture f = set_up(1);
    CHECK_EQ(ta_record_start(f.a, f.path, NULL, &f.r, f.error), TA_OK);
    void *p = take(&f, 1000, 0, NULL);
    pid_t child = fork();
    if (child == 0) {
        void *q = NULL;
        ta_alloc(f.a, 512, 0, NULL, &q, NULL);
        ta_free(f.a, p);
        _exit(q == NULL && ta_record_stop(f.r, NULL) == TA_FORKED ? 0 : 1);
    }
    int status = 1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    CHECK_EQ(ta_free(f.a, p), TA_OK);
    CHECK_EQ(ta_record_stop(f.r, NULL), TA_OK);
    CHECK_EQ(events_of(f.path), 2);
    tear_down(&f);
}

/* A replay of a recording asks for the same bytes. */
TEST(there_and_back)
{
    fixture f = set_up(1);
    CHECK_EQ(ta_record_start(f.a, f.path, NULL, &f.r, f.error), TA_OK);
    churn(&f);
    ta_mark(f.a, "step");
    CHECK_EQ(ta_record_stop(f.r, NULL), TA_OK);
    size_t length;
    char *text = text_of(f.path, &length);
    ta_stats stats;
    CHECK_EQ(ta_get_stats(f.a, 0, &stats), TA_OK);
    ta_replay_options options = TA_REPLAY_DEFAULTS;
    options.check = true;
    ta_replay_result result;
    ta_trace_error error;
    CHECK_EQ(ta_replay_text(text, length, &options, &result, &error), TA_OK);
    CHECK_EQ(result.events, 2 * ROUNDS + 1);
    CHECK_EQ(result.peak_requested, stats.requested[TA_POOL_ALL].peak);
    CHECK_EQ(result.steps, 1);
    free(text);
    tear_down(&f);
}

TEST_MAIN()
