/* test_count.c - peaks of a device whose arenas count for themselves, and the block that was
 * freed last. */
#include <pthread.h>

#include "world.h"

enum { STREAMS = 6, LIVE = 40, HELD = 2 };

typedef struct model { /* all, small, large */
    uint64_t blocks[3], bytes[3], asked[3], peak_blocks[3], peak_bytes[3], peak_asked[3];
} model;

static void change(model *m, uint64_t size, bool up)
{
    const int kinds[2] = {TA_POOL_ALL, size <= MiB ? TA_POOL_SMALL : TA_POOL_LARGE};
    for (int i = 0; i < 2; i++) {
        const int k = kinds[i];
        const uint64_t bytes = world_round(size, 512);
        m->blocks[k] += up ? 1 : (uint64_t)-1;
        m->bytes[k] += up ? bytes : (uint64_t)-bytes;
        m->asked[k] += up ? size : (uint64_t)-size;
        if (m->blocks[k] > m->peak_blocks[k]) m->peak_blocks[k] = m->blocks[k];
        if (m->bytes[k] > m->peak_bytes[k]) m->peak_bytes[k] = m->bytes[k];
        if (m->asked[k] > m->peak_asked[k]) m->peak_asked[k] = m->asked[k];
    }
}

static void compare(world *w, const model *m)
{
    ta_stats s = world_stats(w, 0);
    for (int k = 0; k < 3; k++) {
        CHECK_EQ(s.allocations[k].current, m->blocks[k]);
        CHECK_EQ(s.allocations[k].peak, m->peak_blocks[k]);
        CHECK_EQ(s.allocated[k].current, m->bytes[k]);
        CHECK_EQ(s.allocated[k].peak, m->peak_bytes[k]);
        CHECK_EQ(s.requested[k].peak, m->peak_asked[k]);
        CHECK_EQ(s.active[k].peak, m->peak_bytes[k]);
        CHECK_EQ(s.active_blocks[k].current, m->blocks[k]);
        CHECK_EQ(s.requested[k].current,
                 s.requested[k].increased - s.requested[k].decreased);
    }
}

/* One thread, many arenas: to the byte, at every step. */
TEST(peaks_are_exact)
{
    world w;
    model m = {0};
    uint64_t random = 7;
    held h[LIVE] = {0};
    ta_sim_config machine = {.devices = 1, .memory = 64 * GiB};
    world_open(&w, &machine, STREAMS);
    for (int step = 0; step < 6000; step++) {
        held *one = &h[world_random(&random) % LIVE];
        if (one->at) {
            CHECK_EQ(ta_free(w.allocator, one->at), TA_OK);
            change(&m, one->size, false);
            one->at = NULL;
        } else {
            uint64_t most = world_random(&random) % 3 ? 2 * MiB : 24 * MiB;
            ta_stream stream = w.stream[0][world_random(&random) % STREAMS];
            uint64_t size = world_between(&random, 1, most);
            CHECK_EQ(world_alloc(&w, one, size, 0, stream), TA_OK);
            change(&m, size, true);
        }
        if (step % 7 == 0) compare(&w, &m);
        if (step % 997 == 0) {
            ta_reset_peaks(w.allocator, 0);
            memcpy(m.peak_blocks, m.blocks, sizeof m.blocks);
            memcpy(m.peak_bytes, m.bytes, sizeof m.bytes);
            memcpy(m.peak_asked, m.asked, sizeof m.asked);
        }
        if (step % 1409 == 0) ta_reset_accumulated(w.allocator, 0);
    }
    compare(&w, &m);
    for (int i = 0; i < LIVE; i++) CHECK_EQ(ta_free(w.allocator, h[i].at), TA_OK);
    CHECK_EQ(world_stats(&w, 0).allocated[TA_POOL_ALL].current, 0);
    world_close(&w);
}

/* Threads on streams of their own, each with so many blocks at most: no peak is above what all
 * of them can hold, though peaks rise all the time, and none is below what is there. */
static void *churn(void *argument)
{
    world *w = ((void **)argument)[0];
    ta_stream stream = *(ta_stream *)((void **)argument)[1];
    void *at[HELD] = {0};
    uint64_t random = (uintptr_t)stream;
    for (int i = 0; i < 4000; i++) {
        void **one = &at[world_random(&random) % HELD];
        if (*one) ta_free(w->allocator, *one);
        *one = NULL;
        ta_alloc(w->allocator, 512 * world_between(&random, 1, 2048), 0, stream, one,
                 NULL);
    }
    for (int i = 0; i < HELD; i++) ta_free(w->allocator, at[i]);
    return NULL;
}
TEST(peaks_of_threads)
{
    world w;
    pthread_t threads[4];
    void *arguments[4][2];
    ta_sim_config machine = {.devices = 1, .memory = 64 * GiB};
    world_open(&w, &machine, 5);
    ta_reset_peaks(w.allocator, 0);
    for (int i = 0; i < 4; i++) {
        arguments[i][0] = &w;
        arguments[i][1] = &w.stream[0][i + 1];
        CHECK_EQ(pthread_create(&threads[i], NULL, churn, arguments[i]), 0);
    }
    for (int i = 0; i < 400; i++) {
        ta_stats s = world_stats(&w, 0);
        CHECK(s.allocated[TA_POOL_ALL].current <= s.allocated[TA_POOL_ALL].peak);
        CHECK(s.active_blocks[TA_POOL_ALL].current <= s.active_blocks[TA_POOL_ALL].peak);
        CHECK(s.allocations[TA_POOL_ALL].peak <= 4 * HELD);
        CHECK_EQ(s.allocations[TA_POOL_ALL].current,
                 s.allocations[TA_POOL_ALL].increased -
                     s.allocations[TA_POOL_ALL].decreased);
        if (i % 2) ta_reset_peaks(w.allocator, 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    ta_stats s = world_stats(&w, 0);
    CHECK_EQ(s.allocations[TA_POOL_ALL].current, 0);
    CHECK(s.allocations[TA_POOL_ALL].peak <= 4 * HELD);
    CHECK_EQ(s.allocations[TA_POOL_ALL].increased, s.allocations[TA_POOL_ALL].decreased);
    world_close(&w);
}

/* The last freed comes again, and is free for all else. */
TEST(the_block_freed_last)
{
    world w;
    held a, b;
    ta_sim_config machine = {.devices = 1, .memory = 64 * GiB};
    world_open(&w, &machine, 1);
    CHECK_EQ(world_alloc(&w, &a, 3 * MiB, 0, NULL), TA_OK);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_INVALID);
    CHECK_EQ(ta_record_stream(w.allocator, a.at, (ta_stream)(uintptr_t)1), TA_INVALID);
    CHECK_EQ(world_stats(&w, 0).active[TA_POOL_ALL].current, 0);
    CHECK_EQ(world_alloc(&w, &b, 3 * MiB - 100, 0, NULL), TA_OK);
    CHECK(b.at == a.at);
    CHECK_EQ(world_stats(&w, 0).requested[TA_POOL_ALL].current, 3 * MiB - 100);
    CHECK_EQ(ta_free(w.allocator, b.at), TA_OK);
    world_check(&w);
    CHECK_EQ(world_alloc(&w, &b, 7 * MiB, 0, NULL), TA_OK); /* it joined its neighbours */
    CHECK_EQ(ta_free(w.allocator, b.at), TA_OK);
    uint64_t released = 0;
    CHECK_EQ(ta_trim(w.allocator, 0, &released), TA_OK);
    CHECK_EQ(world_stats(&w, 0).reserved.current, 0);
    world_close(&w);
}

TEST_MAIN()
