/* The last events in memory: what is kept, in order, and how much memory it takes. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/records/history.h"
#include "driver/nulldriver.h"
#include "testing.h"

typedef struct fixture {
    ta_null *null;
    ta_allocator *a;
    ta_history *h;
} fixture;

static fixture set_up(uint64_t limit)
{
    fixture f = {0};
    ta_null_config config = {.devices = 1, .memory = (uint64_t)8 << 30};
    if (ta_null_create(&config, &f.null) != TA_OK) abort();
    if (ta_allocator_create(ta_null_driver(f.null), NULL, &f.a) != TA_OK) abort();
    if (ta_history_start(f.a, limit, &f.h) != TA_OK) abort();
    return f;
}

static void tear_down(fixture *f)
{
    if (f->h != NULL) ta_history_stop(f->h);
    ta_allocator_destroy(f->a);
    ta_null_destroy(f->null);
}

static void *one(const fixture *f, size_t size)
{
    void *p = NULL;
    ta_alloc(f->a, size, 0, NULL, &p, NULL);
    return p;
}

TEST(kinds_sizes_and_times)
{
    fixture f = set_up(100);
    void *p = one(&f, 1000);
    CHECK_EQ(ta_record_stream(f.a, p, (ta_stream)0x1000), TA_OK);
    CHECK_EQ(ta_free(f.a, p), TA_OK);
    CHECK_EQ(ta_mark(f.a, "step"), TA_OK);
    ta_history_entry e[100];
    size_t n = ta_history_copy(f.h, e, 100);
    uint64_t serial = e[n - 1].serial;
    CHECK(serial > 0);
    int64_t before = 0;
    unsigned allocs = 0, frees = 0, streams = 0, marks = 0;
    for (size_t i = 0; i < n; i++) {
        CHECK(e[i].time_us >= before);
        before = e[i].time_us;
        if (e[i].kind == TA_EVENT_ALLOC || e[i].kind == TA_EVENT_FREE) {
            CHECK_EQ(e[i].addr, (uint64_t)(uintptr_t)p);
            CHECK_EQ(e[i].size, 1000);
            CHECK_EQ(e[i].serial, serial);
        }
        allocs += e[i].kind == TA_EVENT_ALLOC;
        frees += e[i].kind == TA_EVENT_FREE;
        marks += e[i].kind == TA_EVENT_MARK;
        if (e[i].kind != TA_EVENT_RECORD_STREAM) continue;
        streams++;
        CHECK_EQ((uintptr_t)e[i].stream, 0x1000);
    }
    CHECK(before > (int64_t)1600000000 * 1000000);
    CHECK_EQ(allocs, 1);
    CHECK_EQ(frees, 1);
    CHECK_EQ(streams, 1);
    CHECK_EQ(marks, 0);
    tear_down(&f);
}

/* S19: a million events with a limit of 2,000. */
TEST(a_million_events_keep_the_last)
{
    fixture f = set_up(2000);
    ta_history_counts c;
    uint64_t bytes_early = 0;
    for (int i = 0; i < 500000; i++) {
        if (ta_free(f.a, one(&f, 1000 + (size_t)i % 7)) != TA_OK) break;
        if (i != 10000) continue;
        ta_history_look(f.h, &c);
        bytes_early = c.bytes;
    }
    void *last = one(&f, 12345);
    ta_history_look(f.h, &c);
    CHECK(c.seen >= 1000000);
    CHECK_EQ(c.kept, 2000);
    CHECK(c.bytes <= 2000 * sizeof(ta_history_entry) + (size_t)2 * 1024 * 64);
    CHECK(c.bytes <= bytes_early + (size_t)1024 * 64);
    static ta_history_entry e[3000];
    CHECK_EQ(ta_history_copy(f.h, e, 3000), 2000);
    /* The last event is of the last allocation, and none is missing before it: an alloc
     * follows the free of the block before. */
    CHECK_EQ(e[1999].size, 12345);
    CHECK_EQ(e[1999].kind, TA_EVENT_ALLOC);
    for (int i = 1; i < 2000; i++) {
        CHECK(e[i].serial >= e[i - 1].serial);
        CHECK_EQ(e[i].kind == TA_EVENT_ALLOC, e[i].serial > e[i - 1].serial);
        CHECK(e[i].kind != TA_EVENT_ALLOC || e[i - 1].kind != TA_EVENT_ALLOC);
    }
    /* The newest where the caller has less room. */
    ta_history_entry few[3];
    CHECK_EQ(ta_history_copy(f.h, few, 3), 3);
    CHECK_EQ(few[2].serial, e[1999].serial);
    CHECK_EQ(few[0].time_us, e[1997].time_us);
    ta_free(f.a, last);
    tear_down(&f);
}

TEST(any_limit_keeps_exactly_so_many)
{
    const uint64_t limits[] = {1, 2, 3, 1023, 1024, 1025, 2048, 3000};
    for (size_t k = 0; k < sizeof limits / sizeof *limits; k++) {
        fixture f = set_up(limits[k]);
        ta_history_counts c;
        static ta_history_entry e[3001];
        for (int i = 0; i < 4000; i++) {
            ta_free(f.a, one(&f, 512));
            ta_history_look(f.h, &c);
            uint64_t wanted = c.seen < limits[k] ? c.seen : limits[k];
            CHECK_EQ(c.kept, wanted);
            if (i % 997 == 0) CHECK_EQ(ta_history_copy(f.h, e, limits[k] + 1), wanted);
        }
        CHECK(e[0].serial > 0);
        tear_down(&f);
    }
}

TEST(limit_and_clear)
{
    fixture f = set_up(UINT64_MAX);
    for (int i = 0; i < 3000; i++) ta_free(f.a, one(&f, 512));
    ta_history_counts c;
    ta_history_look(f.h, &c);
    CHECK_EQ(c.kept, c.seen);
    CHECK(c.kept >= 6000);
    CHECK_EQ(ta_history_set_limit(f.h, 10), TA_OK);
    CHECK_EQ(ta_history_set_limit(f.h, 0), TA_INVALID);
    ta_history_entry e[20];
    CHECK_EQ(ta_history_copy(f.h, e, 20), 10);
    ta_history_entry newest;
    CHECK_EQ(ta_history_copy(f.h, &newest, 1), 1);
    CHECK_EQ(e[9].serial, newest.serial);
    CHECK_EQ(e[9].kind, newest.kind);
    CHECK_EQ(ta_history_clear(f.h), TA_OK);
    CHECK_EQ(ta_history_copy(f.h, e, 20), 0);
    ta_history_look(f.h, &c);
    CHECK_EQ(c.seen + c.kept + c.bytes, 0);
    ta_free(f.a, one(&f, 512));
    CHECK(ta_history_copy(f.h, e, 20) >= 2);
    ta_history *second;
    CHECK_EQ(ta_history_start(f.a, 0, &second), TA_INVALID);
    tear_down(&f);
}

static void *churn(void *context)
{
    const fixture *f = context;
    for (int i = 0; i < 20000; i++) ta_free(f->a, one(f, 512 * (size_t)(i % 50 + 1)));
    return NULL;
}

TEST(threads)
{
    fixture f = set_up(5000);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, churn, &f);
    static ta_history_entry e[5000];
    size_t n = 0;
    for (int i = 0; i < 50; i++) n += ta_history_copy(f.h, e, 5000);
    CHECK(n <= (size_t)50 * 5000);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    n = ta_history_copy(f.h, e, 5000);
    CHECK_EQ(n, 5000);
    tear_down(&f);
}

TEST(a_forked_child_does_nothing)
{
    fixture f = set_up(100);
    ta_free(f.a, one(&f, 512));
    pid_t child = fork();
    if (child == 0) {
        ta_history_entry e[4];
        ta_history_counts c;
        ta_history_look(f.h, &c);
        bool right = ta_history_copy(f.h, e, 4) == 0 && c.seen == 0 &&
                     ta_history_clear(f.h) == TA_FORKED &&
                     ta_history_set_limit(f.h, 5) == TA_FORKED &&
                     ta_history_stop(f.h) == TA_FORKED;
        _exit(right ? 0 : 1);
    }
    int status = 1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    tear_down(&f);
}

TEST_MAIN()
