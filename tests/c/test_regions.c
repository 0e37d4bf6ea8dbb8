/* test_regions.c - regions: whose blocks are in which, and that they sleep and wake whole. */
#include <pthread.h>

#include "world.h"

enum { BLOCKS = 8, FEW = 3 };

static void open_world(world *w, int devices, uint64_t memory, uint64_t host)
{
    ta_sim_config config = {.devices = devices, .memory = memory, .seed = 9};
    world_open(w, &config, 2);
    ta_oracle_allow_moves(w->sim, true);
    const ta_spill_config spill = {.host_bytes = host};
    CHECK_EQ(ta_set_spill(w->allocator, &spill), TA_OK);
}

static void good(world *w)
{
    world_check(w);
    uint64_t pinned = 0;
    for (int d = 0; d < w->devices; d++) {
        const ta_stats s = world_stats(w, d);
        if (!ta_device_used(w->allocator, d)) continue;
        CHECK_EQ(s.reserved.current, ta_sim_used(w->sim, d, false));
        CHECK_EQ(s.reserved.current + s.spilled.current + s.dropped.current,
                 s.active[0].current + s.idle + s.partly_used);
        pinned += s.host.current;
    }
    CHECK_EQ(pinned, ta_sim_pinned(w->sim));
}

static void bring(world *w, held *h, uint64_t size, int device)
{
    CHECK_EQ(world_alloc(w, h, size, device, w->stream[device][0]), TA_OK);
    h->serial = (uint64_t)(uintptr_t)h->at / 512;
    world_write(h);
    world_use(w, h, h->stream, true, -1);
}

static void kept(const held *h, int count)
{
    for (int i = 0; i < count; i++)
        if (h[i].at && !world_kept(&h[i])) TA_TEST_FAIL("block %d is changed", i);
}

static void drop_all(world *w, held *h, int count)
{
    for (int i = 0; i < count; i++) {
        if (h[i].at) CHECK_EQ(ta_free(w->allocator, h[i].at), TA_OK);
        h[i].at = NULL;
    }
}

static ta_region_id open_region(world *w, const char *name,
                                const ta_region_config *config)
{
    ta_region_id id = 0;
    if (ta_region_open(w->allocator, name, config, &id)) return 0;
    return id;
}

/* Blocks in a region, some of another beside it. */
static void fill(world *w, ta_region_id id, held *in, int count, uint64_t size,
                 int device)
{
    ta_region_id before;
    CHECK_EQ(ta_region_enter(w->allocator, id, &before), TA_OK);
    for (int i = 0; i < count; i++) bring(w, &in[i], size + (uint64_t)i * 1000, device);
    CHECK_EQ(ta_region_enter(w->allocator, before, NULL), TA_OK);
}

TEST(names_and_configs)
{
    world w;
    ta_region_id a, b;
    ta_region_info info;
    open_world(&w, 1, 1 * GiB, 0);
    CHECK_EQ(ta_region_open(w.allocator, "weights", NULL, &a), TA_OK);
    CHECK_EQ(ta_region_open(w.allocator, "weights", NULL, &b), TA_OK);
    CHECK_EQ(a, b);
    const ta_region_config other = {.page_bytes = 8 * MiB};
    CHECK_EQ(ta_region_open(w.allocator, "weights", &other, &b), TA_INVALID);
    CHECK_EQ(ta_region_open(w.allocator, "cache", &other, &b), TA_OK);
    CHECK_EQ(b, 2);
    const ta_region_config odd = {.page_bytes = 3 * MiB}, tiny = {.page_bytes = 64 * KiB};
    CHECK_EQ(ta_region_open(w.allocator, "odd", &odd, &a), TA_INVALID);
    CHECK_EQ(ta_region_open(w.allocator, "tiny", &tiny, &a), TA_INVALID);
    CHECK_EQ(ta_region_open(w.allocator, "", NULL, &a), TA_INVALID);
    CHECK_EQ(ta_region_get(w.allocator, 2, &info), TA_OK);
    CHECK_STR(info.name, "cache");
    CHECK_EQ(info.config.page_bytes, 8 * MiB);
    CHECK_EQ(ta_region_get(w.allocator, 3, &info), TA_INVALID);
    CHECK_EQ(ta_region_enter(w.allocator, 3, NULL), TA_INVALID);
    CHECK_EQ(ta_region_sleep(w.allocator, 3, true, NULL), TA_INVALID);
    for (int i = 3; i <= TA_REGIONS; i++) {
        char name[16];
        snprintf(name, sizeof name, "r%d", i);
        CHECK_EQ(ta_region_open(w.allocator, name, NULL, &a), TA_OK);
    }
    CHECK_EQ(ta_region_open(w.allocator, "one more", NULL, &a), TA_INVALID);
    world_close(&w);
}

TEST(blocks_lie_in_pages_of_their_region)
{
    world w;
    held in[3], out[3];
    ta_region_info info;
    ta_region_id id, found;
    bool asleep;
    open_world(&w, 1, 1 * GiB, 0);
    id = open_region(&w, "weights", NULL);
    bring(&w, &out[0], 1000, 0);
    fill(&w, id, in, 3, 100, 0);
    bring(&w, &out[1], 5 * MiB, 0);
    bring(&w, &out[2], 1000, 0);
    if (ta_test_failed) return;
    ta_stats s = world_stats(&w, 0);
    CHECK_EQ(s.reserved.current, 32 * MiB + 4 * MiB + 8 * MiB);
    CHECK_EQ(s.pages.current, 4);
    CHECK_EQ(ta_region_get(w.allocator, id, &info), TA_OK);
    CHECK_EQ(info.blocks, 3);
    CHECK_EQ(info.device, 32 * MiB);
    CHECK_EQ(ta_region_of(w.allocator, in[1].at, &found, &asleep), TA_OK);
    CHECK_EQ(found, id);
    CHECK_EQ(ta_region_of(w.allocator, out[1].at, &found, &asleep), TA_OK);
    CHECK_EQ(found, 0);
    good(&w);
    drop_all(&w, in, 3);
    drop_all(&w, out, 3);
    /* Idle pages of one size make room for another. */
    CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_API, 44 * MiB), TA_OK);
    bring(&w, &out[0], 44 * MiB, 0);
    good(&w);
    drop_all(&w, out, 1);
    fill(&w, id, in, 1, 30 * MiB, 0);
    good(&w);
    drop_all(&w, in, 1);
    good(&w);
    world_close(&w);
}

typedef struct helper {
    world *w;
    ta_region_id own, found;
} helper;

static void *allocate(void *context)
{
    helper *t = context;
    held h;
    bool asleep;
    if (t->own) ta_region_enter(t->w->allocator, t->own, NULL);
    bring(t->w, &h, 3 * MiB, 0);
    ta_region_of(t->w->allocator, h.at, &t->found, &asleep);
    ta_free(t->w->allocator, h.at);
    if (t->own) ta_region_enter(t->w->allocator, 0, NULL);
    return NULL;
}

static ta_region_id in_thread(world *w, ta_region_id own)
{
    helper t = {w, own, 99};
    pthread_t thread;
    if (pthread_create(&thread, NULL, allocate, &t)) return 98;
    pthread_join(thread, NULL);
    return t.found;
}

TEST(threads_without_one_are_in_the_leaders)
{
    world w;
    ta_region_id a, b, before;
    open_world(&w, 1, 1 * GiB, 0);
    a = open_region(&w, "a", NULL);
    b = open_region(&w, "b", NULL);
    CHECK_EQ(in_thread(&w, 0), 0);
    CHECK_EQ(ta_region_enter(w.allocator, a, &before), TA_OK);
    CHECK_EQ(before, 0);
    CHECK_EQ(in_thread(&w, 0), a);
    CHECK_EQ(in_thread(&w, b), b);
    CHECK_EQ(ta_region_enter(w.allocator, b, &before), TA_OK);
    CHECK_EQ(before, a);
    CHECK_EQ(in_thread(&w, 0), b);
    CHECK_EQ(ta_region_enter(w.allocator, a, NULL), TA_OK);
    CHECK_EQ(in_thread(&w, 0), a);
    CHECK_EQ(ta_region_enter(w.allocator, 0, NULL), TA_OK);
    CHECK_EQ(in_thread(&w, 0), 0);
    CHECK_EQ(in_thread(&w, b), b);
    CHECK_EQ(in_thread(&w, 0), 0);
    good(&w);
    world_close(&w);
}

static void sleep_and_wake(bool touch, bool keep, int devices)
{
    world w;
    held in[2 * BLOCKS], out[4];
    ta_sleep_info info;
    ta_region_info state;
    void *at;
    const ta_region_config config = {.page_bytes = 4 * MiB, .touch_host = touch};
    open_world(&w, devices, 1 * GiB, 1 * GiB);
    ta_region_id id = open_region(&w, "weights", &config);
    for (int d = 0; d < devices; d++)
        fill(&w, id, in + d * BLOCKS, BLOCKS, 1700 * KiB, d);
    const int n = devices * BLOCKS;
    for (int i = 0; i < 4; i++) bring(&w, &out[i], 3 * MiB, 0);
    if (ta_test_failed) return;
    CHECK_EQ(ta_region_get(w.allocator, id, &state), TA_OK);
    const uint64_t held_bytes = state.device,
                   reserved = world_stats(&w, 0).reserved.current;
    for (int round = 0; round < 3; round++) {
        CHECK_EQ(ta_region_sleep(w.allocator, id, keep, &info), TA_OK);
        CHECK_EQ(keep ? info.copied : info.dropped, held_bytes);
        CHECK_EQ(info.device, held_bytes);
        CHECK_EQ(info.pinned, keep && !round ? held_bytes : 0);
        CHECK_EQ(ta_region_get(w.allocator, id, &state), TA_OK);
        CHECK(state.asleep);
        CHECK_EQ(state.device, 0);
        CHECK_EQ(keep ? state.host : state.dropped, held_bytes);
        CHECK_EQ(world_stats(&w, 0).reserved.current,
                 reserved - held_bytes / (uint64_t)devices);
        good(&w);
        kept(out, 4);
        if (touch && keep) kept(in, n);
        CHECK_EQ(ta_region_sleep(w.allocator, id, keep, &info), TA_OK); /* already */
        /* Nothing is allocated in it; a block can be freed. */
        CHECK_EQ(ta_region_enter(w.allocator, id, NULL), TA_OK);
        CHECK_EQ(ta_alloc(w.allocator, 1000, 0, NULL, &at, NULL), TA_ASLEEP);
        CHECK_EQ(ta_alloc(w.allocator, 100 * MiB, 0, NULL, &at, NULL), TA_ASLEEP);
        CHECK_EQ(ta_region_enter(w.allocator, 0, NULL), TA_OK);
        if (round == 1) {
            for (int i = 0; i < n; i += 2) {
                CHECK_EQ(ta_free(w.allocator, in[i].at), TA_OK);
                in[i].at = NULL;
            }
            good(&w);
        }
        CHECK_EQ(ta_region_wake(w.allocator, id, &info), TA_OK);
        CHECK_EQ(info.pinned, 0);
        good(&w);
        if (keep) kept(in, n);
        kept(out, 4);
        for (int i = 0; i < n; i++)
            if (in[i].at) {
                world_write(&in[i]);
                world_use(&w, &in[i], in[i].stream, true, -1);
            }
        if (round == 1)
            for (int i = 0; i < n; i += 2)
                fill(&w, id, &in[i], 1, 1700 * KiB, i / BLOCKS);
        if (round == 1) {
            CHECK_EQ(ta_region_get(w.allocator, id, &state), TA_OK);
            if (state.device != held_bytes) break; /* other places: other figures */
        }
    }
    drop_all(&w, in, n);
    drop_all(&w, out, 4);
    good(&w);
    world_close(&w);
}

TEST(sleep_keeps_every_byte) { sleep_and_wake(false, true, 1); }
TEST(sleep_with_a_touch_reaches_the_host) { sleep_and_wake(true, true, 1); }
TEST(sleep_may_drop) { sleep_and_wake(false, false, 1); }
TEST(sleep_on_two_devices) { sleep_and_wake(false, true, 2); }

/* G12's way: the device is full when it is to wake. */
TEST(waking_on_a_full_device_is_refused_and_it_sleeps_on)
{
    world w;
    held in[BLOCKS], out[1];
    ta_sleep_info info;
    ta_region_info state;
    const ta_region_config config = {.page_bytes = 8 * MiB};
    open_world(&w, 1, 64 * MiB, 1 * GiB);
    ta_region_id id = open_region(&w, "weights", &config);
    fill(&w, id, in, BLOCKS, 3 * MiB, 0);
    CHECK_EQ(ta_region_sleep(w.allocator, id, true, NULL), TA_OK);
    bring(&w, &out[0], 44 * MiB, 0);
    CHECK_EQ(ta_region_wake(w.allocator, id, &info), TA_OUT_OF_MEMORY);
    CHECK(info.why[0]);
    CHECK_EQ(ta_region_get(w.allocator, id, &state), TA_OK);
    CHECK(state.asleep);
    CHECK_EQ(state.device, 0);
    good(&w);
    kept(out, 1);
    drop_all(&w, out, 1); /* idle: its pages make room */
    CHECK_EQ(ta_region_wake(w.allocator, id, &info), TA_OK);
    kept(in, BLOCKS);
    good(&w);
    drop_all(&w, in, BLOCKS);
    world_close(&w);
}

TEST(refusals_say_why_and_change_nothing)
{
    world w;
    held in[BLOCKS], out;
    ta_sleep_info info;
    ta_region_info state;
    const ta_region_config config = {.page_bytes = 4 * MiB};
    open_world(&w, 1, 1 * GiB, 16 * MiB);
    ta_region_id id = open_region(&w, "weights", &config);
    fill(&w, id, in, BLOCKS, 3 * MiB, 0);
    CHECK_EQ(ta_region_sleep(w.allocator, id, true, &info), TA_OUT_OF_MEMORY);
    CHECK(strstr(info.why, "budget"));
    good(&w);
    const ta_spill_config spill = {.host_bytes = 1 * GiB};
    CHECK_EQ(ta_set_spill(w.allocator, &spill), TA_OK);
    ta_sim_set_host_memory(w.sim, 24 * MiB);
    CHECK_EQ(ta_region_sleep(w.allocator, id, true, &info), TA_NO_HOST_MEMORY);
    CHECK(strstr(info.why, "machine"));
    good(&w);
    kept(in, BLOCKS);
    CHECK_EQ(ta_region_get(w.allocator, id, &state), TA_OK);
    CHECK(!state.asleep);
    ta_sim_set_host_memory(w.sim, 1 * GiB);
    /* A capture of others, on a default stream. */
    ta_sim_graph *graph;
    CHECK_EQ(world_alloc(&w, &out, 1000, 0, w.stream[0][0]), TA_OK);
    CHECK_EQ(ta_sim_settle(w.sim, 0), TA_OK);
    drop_all(&w, &out, 1);
    CHECK_EQ(ta_set_stream_life(w.allocator, world_lasting, NULL), TA_OK);
    CHECK_EQ(world_alloc(&w, &out, 1000, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(ta_sim_capture_begin(w.sim, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(ta_region_sleep(w.allocator, id, true, &info), TA_BUSY);
    CHECK(strstr(info.why, "captured"));
    CHECK_EQ(ta_sim_capture_end(w.sim, 0, w.stream[0][1], &graph), TA_OK);
    ta_sim_graph_destroy(w.sim, graph);
    drop_all(&w, &out, 1);
    CHECK_EQ(ta_region_sleep(w.allocator, id, true, &info), TA_OK);
    CHECK_EQ(ta_region_wake(w.allocator, id, &info), TA_OK);
    kept(in, BLOCKS);
    drop_all(&w, in, BLOCKS);
    good(&w);
    world_close(&w);
}

static bool any_stream(void *context, ta_stream stream) { return context == stream; }

/* A graph that uses the region's memory is replayed right after it woke. */
TEST(a_captured_graph_replays_after_waking)
{
    world w;
    held in[BLOCKS];
    ta_sleep_info info;
    ta_sim_graph *graph;
    void *context;
    const ta_pool_id pool = {0, 7};
    open_world(&w, 1, 1 * GiB, 1 * GiB);
    const ta_region_config config = {.page_bytes = 4 * MiB};
    ta_region_id id = open_region(&w, "weights", &config);
    fill(&w, id, in, BLOCKS, 2 * MiB, 0);
    CHECK_EQ(ta_sim_settle(w.sim, 0), TA_OK);
    CHECK_EQ(ta_pool_begin(w.allocator, 0, pool, any_stream, w.stream[0][1]), TA_OK);
    CHECK_EQ(ta_sim_capture_begin(w.sim, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(ta_region_sleep(w.allocator, id, true, &info), TA_BUSY);
    CHECK(strstr(info.why, "captured"));
    for (int i = 0; i < BLOCKS; i++) world_use(&w, &in[i], w.stream[0][1], false, -1);
    CHECK_EQ(ta_sim_capture_end(w.sim, 0, w.stream[0][1], &graph), TA_OK);
    CHECK_EQ(ta_pool_end(w.allocator, 0, pool, &context), TA_OK);
    for (int round = 0; round < 3; round++) {
        CHECK_EQ(ta_sim_graph_launch(w.sim, graph, 0, w.stream[0][1]), TA_OK);
        CHECK_EQ(ta_region_sleep(w.allocator, id, true, &info), TA_OK);
        CHECK_EQ(ta_region_wake(w.allocator, id, &info), TA_OK);
        kept(in, BLOCKS);
    }
    CHECK_EQ(ta_sim_graph_launch(w.sim, graph, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(ta_sim_settle(w.sim, 0), TA_OK);
    ta_sim_graph_destroy(w.sim, graph);
    CHECK_EQ(ta_pool_release(w.allocator, 0, pool), TA_OK);
    drop_all(&w, in, BLOCKS);
    good(&w);
    world_close(&w);
}

TEST(a_region_at_home_on_the_host)
{
    world w;
    held in[BLOCKS];
    ta_sleep_info info;
    ta_region_info state;
    const ta_region_config config = {.home = TA_ON_HOST, .page_bytes = 8 * MiB};
    open_world(&w, 1, 16 * MiB, 1 * GiB);
    ta_region_id id = open_region(&w, "state", &config);
    fill(&w, id, in, BLOCKS, 5 * MiB, 0);
    if (ta_test_failed) return;
    CHECK_EQ(world_stats(&w, 0).reserved.current, 0);
    CHECK_EQ(ta_step(w.allocator, -1, NULL), TA_OK);
    CHECK_EQ(world_stats(&w, 0).reserved.current, 0);
    good(&w);
    kept(in, BLOCKS);
    for (int keep = 1; keep >= 0; keep--) {
        CHECK_EQ(ta_region_sleep(w.allocator, id, keep, &info), TA_OK);
        good(&w);
        CHECK_EQ(ta_region_get(w.allocator, id, &state), TA_OK);
        CHECK_EQ(keep ? state.dropped : state.host, 0);
        CHECK_EQ(ta_region_wake(w.allocator, id, &info), TA_OK);
        good(&w);
        if (keep) kept(in, BLOCKS);
        for (int i = 0; i < BLOCKS; i++) world_write(&in[i]);
        kept(in, BLOCKS);
    }
    drop_all(&w, in, BLOCKS);
    /* A loop over it makes no call once it is warm. */
    uint64_t maps = 0;
    for (int round = 0; round < 10; round++) {
        fill(&w, id, in, BLOCKS, 5 * MiB, 0);
        drop_all(&w, in, BLOCKS);
        if (round == 1) maps = ta_sim_calls(w.sim, TA_SIM_CALL_map);
    }
    CHECK_EQ(ta_sim_calls(w.sim, TA_SIM_CALL_map), maps);
    good(&w);
    world_close(&w);
}

/* Under the thread sanitizer a machine with real memory is slow, and there is one thread. */
#if defined(__SANITIZE_THREAD__)
enum { KINDS = 1 };
#else
enum { KINDS = 6 };
#endif

/* Little, since what is copied is real memory, and there are many rounds. */
static void open_small(world *w)
{
    ta_sim_config config = {.devices = 1, .memory = 64 * MiB, .seed = 9};
    const ta_config pages = {.page_bytes = 2 * MiB};
    const ta_spill_config spill = {.host_bytes = 64 * MiB};
    world_open_with(w, &config, 2, &pages);
    ta_oracle_allow_moves(w->sim, true);
    CHECK_EQ(ta_set_spill(w->allocator, &spill), TA_OK);
}

/* S21: every call of a sleep and of a wake fails once, or twice in a row. */
static void failing(bool sleeping, bool touch)
{
    const ta_region_config config = {.page_bytes = 2 * MiB, .touch_host = touch};
    static const ta_sim_call calls[] = {TA_SIM_CALL_COUNT,      TA_SIM_CALL_map,
                                        TA_SIM_CALL_unmap,      TA_SIM_CALL_set_access,
                                        TA_SIM_CALL_event_wait, TA_SIM_CALL_copy};
    world w;
    held in[FEW], out;
    ta_region_info state;
    open_small(&w);
    ta_region_id id = open_region(&w, "weights", &config);
    fill(&w, id, in, FEW, 1500 * KiB, 0);
    bring(&w, &out, 3 * MiB, 0);
    for (size_t c = 0; c < KINDS; c++)
        for (uint64_t k = 1; k < 90; k++)
            for (uint64_t times = 0; times < 3; times += 2) {
                CHECK_EQ(ta_host_trim(w.allocator, NULL), TA_OK);
                if (!sleeping)
                    CHECK_EQ(ta_region_sleep(w.allocator, id, true, NULL), TA_OK);
                ta_sim_fail(w.sim, calls[c], k, times, TA_DRIVER);
                ta_status status = sleeping ? ta_region_sleep(w.allocator, id, true, NULL)
                                            : ta_region_wake(w.allocator, id, NULL);
                ta_sim_fail(w.sim, calls[c], 0, 0, TA_OK);
                world_check(&w);
                CHECK_EQ(ta_region_get(w.allocator, id, &state), TA_OK);
                if (status && !state.asleep) kept(in, FEW);
                if (!status) CHECK_EQ(state.asleep, sleeping);
                if (state.asleep) CHECK_EQ(ta_free(w.allocator, in[1].at), TA_OK);
                if (state.asleep) in[1].at = NULL;
                if (sleeping)
                    CHECK_EQ(ta_region_sleep(w.allocator, id, true, NULL), TA_OK);
                CHECK_EQ(ta_region_wake(w.allocator, id, NULL), TA_OK);
                kept(in, FEW);
                kept(&out, 1);
                if (!in[1].at) fill(&w, id, &in[1], 1, 1500 * KiB, 0);
                good(&w);
                if (ta_test_failed)
                    TA_TEST_FAIL("  call %d, k %d, times %d", (int)calls[c], (int)k,
                                 (int)times);
                if (!status && !times) k = 90;
            }
    drop_all(&w, in, FEW);
    drop_all(&w, &out, 1);
    good(&w);
    world_close(&w);
}

TEST(a_sleep_that_fails_anywhere) { failing(true, false); }
TEST(a_wake_that_fails_anywhere) { failing(false, false); }
TEST(a_sleep_with_touch_that_fails_anywhere) { failing(true, true); }
TEST(a_wake_with_touch_that_fails_anywhere) { failing(false, true); }

TEST_MAIN()
