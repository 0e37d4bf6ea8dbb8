/* test_step.c - a step's mark: what comes back when there is room wherever that room lies, in
 * which order, at which rate, and what leaves. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "spill_world.h"

/* Fills the device, and puts `spilled` more blocks of 8 MiB on the host. */
static void fill(world *w, held *h, int on_device, int spilled)
{
    for (int i = 0; i < on_device + spilled; i++) bring(w, &h[i], 8 * MiB);
    CHECK_EQ(world_stats(w, 0).spilled.current, (uint64_t)spilled * 8 * MiB);
}

/* Everything on the host comes back. */
static void all_back(world *w, uint64_t bytes)
{
    ta_step_info info;
    CHECK_EQ(ta_step(w->allocator, -1, &info), TA_OK);
    CHECK_EQ(info.brought_back, bytes);
    CHECK_EQ(info.still_on_host, 0);
    CHECK_EQ(world_stats(w, 0).spilled.current, 0);
    good(w);
}

TEST(room_in_blocks_that_another_stream_used)
{
    world w;
    held h[8];
    open_capped(&w, 1 * GiB, 32 * MiB, 256 * MiB);
    fill(&w, h, 4, 4);
    if (ta_test_failed) return;
    for (int i = 0; i < 4; i++) {
        world_order(&w, 0, h[i].stream, w.stream[0][1]);
        CHECK_EQ(ta_record_stream(w.allocator, h[i].at, w.stream[0][1]), TA_OK);
        world_use(&w, &h[i], w.stream[0][1], false, 1e4);
        drop(&w, &h[i]);
    }
    all_back(&w, 32 * MiB);
    kept(h, 8);
    for (int i = 0; i < 8; i++) drop(&w, &h[i]);
    world_close(&w);
}

TEST(room_in_the_arena_of_another_stream)
{
    world w;
    held h[8];
    open_capped(&w, 1 * GiB, 32 * MiB, 256 * MiB);
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(world_alloc(&w, &h[i], 8 * MiB, 0, w.stream[0][1]), TA_OK);
        world_use(&w, &h[i], w.stream[0][1], true, 1e4);
    }
    for (int i = 4; i < 8; i++) bring(&w, &h[i], 8 * MiB);
    if (ta_test_failed) return;
    for (int i = 0; i < 4; i++) drop(&w, &h[i]);
    all_back(&w, 32 * MiB);
    kept(h + 4, 4);
    for (int i = 4; i < 8; i++) drop(&w, &h[i]);
    world_close(&w);
}

TEST(room_in_a_region_with_larger_pages)
{
    world w;
    held h[4], in;
    ta_region_id id;
    open_capped(&w, 1 * GiB, 32 * MiB, 256 * MiB);
    CHECK_EQ(ta_region_open(w.allocator, "large", NULL, &id), TA_OK);
    CHECK_EQ(ta_region_enter(w.allocator, id, NULL), TA_OK);
    bring(&w, &in, 30 * MiB);
    CHECK_EQ(ta_region_enter(w.allocator, 0, NULL), TA_OK);
    fill(&w, h, 0, 4);
    drop(&w, &in);
    all_back(&w, 32 * MiB);
    kept(h, 4);
    for (int i = 0; i < 4; i++) drop(&w, &h[i]);
    world_close(&w);
}

static bool same_stream(void *context, ta_stream stream) { return context == stream; }

TEST(room_in_a_graph_pool_that_is_over)
{
    world w;
    held h[4], in;
    void *context;
    const ta_pool_id pool = {0, 3};
    open_capped(&w, 1 * GiB, 32 * MiB, 256 * MiB);
    bring(&w, &h[0], 1000);
    drop(&w, &h[0]);
    ta_stream stream = w.stream[0][1];
    CHECK_EQ(ta_pool_begin(w.allocator, 0, pool, same_stream, stream), TA_OK);
    CHECK_EQ(world_alloc(&w, &in, 32 * MiB, 0, stream), TA_OK);
    CHECK_EQ(ta_pool_end(w.allocator, 0, pool, &context), TA_OK);
    fill(&w, h, 0, 4);
    drop(&w, &in);
    CHECK_EQ(ta_pool_release(w.allocator, 0, pool), TA_OK);
    all_back(&w, 32 * MiB);
    kept(h, 4);
    for (int i = 0; i < 4; i++) drop(&w, &h[i]);
    world_close(&w);
}

/* Every live byte is on the host, as after a load without room; then the cap is raised. */
TEST(room_by_a_cap_that_was_raised)
{
    world w;
    held h[8];
    open_capped(&w, 1 * GiB, 32 * MiB, 256 * MiB);
    fill(&w, h, 4, 4);
    CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_API, 64 * MiB), TA_OK);
    all_back(&w, 32 * MiB);
    kept(h, 8);
    for (int i = 0; i < 8; i++) drop(&w, &h[i]);
    world_close(&w);
}

TEST(a_capture_keeps_all_where_it_is)
{
    world w;
    held h[8];
    ta_sim_graph *graph;
    ta_step_info info;
    open_capped(&w, 1 * GiB, 32 * MiB, 256 * MiB);
    const ta_pool_id pool = {0, 3};
    void *context;
    fill(&w, h, 4, 4);
    for (int i = 0; i < 4; i++) drop(&w, &h[i]);
    CHECK_EQ(ta_sim_settle(w.sim, 0), TA_OK);
    ta_stream stream = w.stream[0][1];
    CHECK_EQ(ta_pool_begin(w.allocator, 0, pool, same_stream, stream), TA_OK);
    CHECK_EQ(ta_sim_capture_begin(w.sim, 0, stream), TA_OK);
    const uint64_t calls = map_calls(&w);
    CHECK_EQ(ta_step(w.allocator, -1, &info), TA_BUSY);
    CHECK_EQ(map_calls(&w), calls);
    CHECK_EQ(ta_sim_capture_status(w.sim, 0, stream), 1); /* not broken */
    CHECK_EQ(ta_sim_capture_end(w.sim, 0, stream, &graph), TA_OK);
    CHECK_EQ(ta_pool_end(w.allocator, 0, pool, &context), TA_OK);
    ta_sim_graph_destroy(w.sim, graph);
    CHECK_EQ(ta_pool_release(w.allocator, 0, pool), TA_OK);
    all_back(&w, 32 * MiB);
    kept(h, 8);
    for (int i = 4; i < 8; i++) drop(&w, &h[i]);
    world_close(&w);
}

/* Host pages that nothing needs any more do not serve on because the stream is busy. */
TEST(once_all_fits_nothing_stays_on_the_host)
{
    world w;
    held h[20];
    uint64_t calls = 0;
    open_capped(&w, 1 * GiB, 64 * MiB, 256 * MiB);
    for (int round = 0; round < 8; round++) {
        if (round == 4)
            CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_API, TA_NO_LIMIT), TA_OK);
        for (int i = 0; i < 20; i++) {
            bring(&w, &h[i], 6 * MiB);
            world_use(&w, &h[i], h[i].stream, true, 1e5); /* far behind the host */
        }
        if (ta_test_failed) return;
        kept(h, 20);
        const uint64_t spilled = world_stats(&w, 0).spilled.current;
        if (round < 4) CHECK(spilled > 0);
        if (round > 4) CHECK_EQ(spilled, 0);
        for (int i = 19; i >= 0; i--) drop(&w, &h[i]);
        const uint64_t waits = ta_sim_calls(w.sim, TA_SIM_CALL_device_wait);
        CHECK_EQ(ta_step(w.allocator, -1, NULL), TA_OK);
        /* While it spills at every step a mark waits for nothing, nor once it is over. */
        if (round < 4 || round > 5)
            CHECK_EQ(ta_sim_calls(w.sim, TA_SIM_CALL_device_wait), waits);
        if (round == 6) calls = map_calls(&w);
    }
    CHECK_EQ(map_calls(&w), calls);
    good(&w);
    world_close(&w);
}

typedef struct overlap {
    uint64_t addr, end, bytes;
} overlap;
static void add_up(void *context, uint64_t addr, uint64_t size)
{
    overlap *o = context;
    const uint64_t low = addr > o->addr ? addr : o->addr,
                   high = addr + size < o->end ? addr + size : o->end;
    if (low < high) o->bytes += high - low;
}
/* Bytes of the block that are not on the device. */
static uint64_t on_host(world *w, const held *h)
{
    overlap o = {(uintptr_t)h->at, (uintptr_t)h->at + h->size, 0};
    const ta_visitor visitor = {.context = &o, .elsewhere = add_up};
    return ta_visit(w->allocator, 0, &visitor) ? 1 : o.bytes;
}

/* The oldest blocks come first: what is made with the model before what a step leaves. */
TEST(the_oldest_comes_first)
{
    world w;
    held h[8];
    ta_step_info info;
    open_capped(&w, 1 * GiB, 32 * MiB, 256 * MiB);
    fill(&w, h, 4, 4);
    /* The place of the oldest of those on the host goes to one that is younger than all. */
    drop(&w, &h[4]);
    bring(&w, &h[4], 8 * MiB);
    if (ta_test_failed) return;
    drop(&w, &h[0]);
    drop(&w, &h[1]);
    CHECK_EQ(ta_step(w.allocator, -1, &info), TA_OK);
    CHECK_EQ(info.brought_back, 16 * MiB);
    for (int i = 4; i < 8; i++) {
        CHECK_EQ(on_host(&w, &h[i]), i == 5 || i == 6 ? 0 : 8 * MiB);
    }
    kept(h, 8);
    good(&w);
    for (int i = 0; i < 8; i++) drop(&w, &h[i]);
    world_close(&w);
}

/* --- what leaves ------------------------------------------------------------------------ */
TEST(a_lowered_cap_holds_from_the_next_mark_on)
{
    world w;
    held h[16];
    ta_step_info info;
    open_capped(&w, 1 * GiB, 128 * MiB, 256 * MiB);
    fill(&w, h, 16, 0);
    CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_API, 64 * MiB), TA_OK);
    CHECK_EQ(world_stats(&w, 0).reserved.current, 128 * MiB);
    CHECK_EQ(ta_step(w.allocator, -1, &info), TA_OK);
    CHECK_EQ(info.sent_out, 64 * MiB);
    CHECK_EQ(info.brought_back, 0);
    CHECK_EQ(info.still_on_host, 64 * MiB);
    CHECK_EQ(world_stats(&w, 0).reserved.current, 64 * MiB);
    CHECK_EQ(world_stats(&w, 0).to_host, 64 * MiB);
    good(&w);
    kept(h, 16);
    const uint64_t calls = map_calls(&w);
    CHECK_EQ(ta_step(w.allocator, -1, &info), TA_OK);
    CHECK_EQ(info.sent_out + info.brought_back, 0);
    CHECK_EQ(map_calls(&w), calls);
    for (int i = 0; i < 16; i++) world_use(&w, &h[i], h[i].stream, true, -1);
    for (int i = 0; i < 4; i++) drop(&w, &h[i]);
    CHECK_EQ(ta_step(w.allocator, -1, &info), TA_OK);
    CHECK_EQ(info.brought_back, 32 * MiB);
    kept(h, 16);
    good(&w);
    /* With no net, or a host without room, what is held stays. */
    const ta_spill_config none = {.host_bytes = 256 * MiB};
    CHECK_EQ(ta_set_spill(w.allocator, &none), TA_OK);
    CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_API, 16 * MiB), TA_OK);
    CHECK_EQ(ta_step(w.allocator, -1, &info), TA_OK);
    CHECK_EQ(info.sent_out, 0);
    const ta_spill_config little = {.host_bytes = 80 * MiB, .net = true};
    CHECK_EQ(ta_set_spill(w.allocator, &little), TA_OK);
    CHECK_EQ(ta_step(w.allocator, -1, &info), TA_OK);
    CHECK_EQ(info.sent_out, 48 * MiB); /* all that is wanted: 80 - 32 are left */
    kept(h, 16);
    good(&w);
    for (int i = 0; i < 16; i++) drop(&w, &h[i]);
    world_close(&w);
}

/* S21 for what leaves: every call fails, once and several times in a row. */
TEST(a_mark_that_sends_and_fails_anywhere_keeps_every_byte)
{
    static const ta_sim_call kinds[] = {
        TA_SIM_CALL_COUNT,       TA_SIM_CALL_unmap,        TA_SIM_CALL_map,
        TA_SIM_CALL_set_access,  TA_SIM_CALL_copy,         TA_SIM_CALL_event_record,
        TA_SIM_CALL_event_wait,  TA_SIM_CALL_device_wait,  TA_SIM_CALL_create,
        TA_SIM_CALL_copy_stream, TA_SIM_CALL_event_create, TA_SIM_CALL_host_memory};
#if defined(__SANITIZE_THREAD__)
    const size_t count = 1;
#else
    const size_t count = sizeof kinds / sizeof *kinds;
#endif
    world w;
    held h[6];
    ta_step_info info;
    open_capped(&w, 1 * GiB, TA_NO_LIMIT, 256 * MiB);
    for (size_t kind = 0; kind < count; kind++)
        for (uint64_t k = 1; k < 90; k++)
            for (uint64_t times = 0; times < 3; times += 2) {
                CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_API, TA_NO_LIMIT), TA_OK);
                for (int i = 0; i < 6; i++) bring(&w, &h[i], 8 * MiB);
                if (ta_test_failed) return;
                CHECK_EQ(ta_host_trim(w.allocator, NULL), TA_OK);
                CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_API, 16 * MiB), TA_OK);
                ta_sim_fail(w.sim, kinds[kind], k, times, TA_DRIVER);
                ta_status status = ta_step(w.allocator, -1, &info);
                ta_sim_fail(w.sim, kinds[kind], 0, 0, TA_OK);
                world_check(&w);
                if (!status) kept(h, 6);
                const bool over = status == TA_OK;
                CHECK_EQ(ta_step(w.allocator, -1, &info), TA_OK);
                kept(h, 6);
                good(&w);
                CHECK_EQ(world_stats(&w, 0).reserved.current, 16 * MiB);
                if (ta_test_failed)
                    TA_TEST_FAIL("  call %d, k %d, times %d", (int)kinds[kind], (int)k,
                                 (int)times);
                for (int i = 0; i < 6; i++) drop(&w, &h[i]);
                CHECK_EQ(ta_sim_settle(w.sim, 0), TA_OK); /* their host pages may go */
                if (over && !times) k = 90;
            }
    world_close(&w);
}

/* --- the rate, by what the calls cost on an H200 ---------------------------------------- */
#define LINK 55.4 /* GB/s */

/* Threads by which the driver opens pages faster: no GPU has told yet. */
static unsigned openers;

static void open_link(world *w, uint64_t memory, uint64_t host, bool net)
{
    const ta_sim_config config = {.devices = 1,
                                  .memory = memory,
                                  .seed = 5,
                                  .no_backing = true,
                                  .link_gbs = LINK,
                                  .openers = openers};
    const ta_spill_config spill = {.host_bytes = host, .net = net};
    world_open(w, &config, 2);
    ta_oracle_allow_moves(w->sim, true);
    ta_set_spill(w->allocator, &spill);
}

/* Bytes since then, over the link's. */
static double rate_since(const world *w, double since, double bytes)
{
    return bytes / (ta_sim_now_us(w->sim) - since) / 1e3 / LINK;
}

/* Of the link's rate, with all of the device's wait and mapping: live pieces that come back. */
static double rate_back(uint64_t piece, int count, uint64_t idle)
{
    world w;
    void *at[64], *old = NULL;
    ta_step_info info;
    const uint64_t bytes = piece * (uint64_t)count;
    double rate = 0;
    open_link(&w, 16 * GiB, 8 * GiB, true);
    if (idle) ta_alloc(w.allocator, idle, 0, NULL, &old, NULL);
    ta_set_limit(w.allocator, 0, TA_LIMIT_API, idle ? idle : 4 * MiB);
    for (int i = 0; i < count; i++) ta_alloc(w.allocator, piece, 0, NULL, &at[i], NULL);
    if (idle)
        ta_free(w.allocator, old);
    else
        ta_set_limit(w.allocator, 0, TA_LIMIT_API, TA_NO_LIMIT);
    const double since = ta_sim_now_us(w.sim);
    if (!ta_step(w.allocator, -1, &info) && info.brought_back == bytes)
        rate = rate_since(&w, since, (double)bytes);
    for (int i = 0; i < count; i++) ta_free(w.allocator, at[i]);
    world_close(&w);
    return rate;
}

/* At least so many thousandths. */
#define CHECK_RATE(RATE, LEAST)                                                          \
    do {                                                                                 \
        const int got_ = (int)((RATE)*1000);                                             \
        if (getenv("TA_TEST_RATES")) printf("  %s: 0.%03d\n", #RATE, got_);              \
        if (got_ < (LEAST))                                                              \
            TA_TEST_FAIL("%s is 0.%03d, not 0.%03d", #RATE, got_, LEAST);                \
    } while (0)

TEST(what_comes_back_comes_at_the_links_rate)
{
    CHECK_RATE(rate_back(32 * MiB, 1, 0), 850);
    CHECK_RATE(rate_back(32 * MiB, 32, 0), 950);
    CHECK_RATE(rate_back(512 * MiB, 4, 0), 950);
    CHECK_RATE(rate_back(32 * MiB, 1, 64 * MiB), 850); /* pages that are taken */
    CHECK_RATE(rate_back(32 * MiB, 32, 2 * GiB), 950);
}

/* The same for what leaves: each page is opened to the device at its place on the host. */
static double rate_out(uint64_t piece, int count)
{
    world w;
    void *at[64];
    ta_step_info info;
    const uint64_t bytes = piece * (uint64_t)count;
    double rate = 0;
    open_link(&w, 16 * GiB, 8 * GiB, true);
    for (int i = 0; i < count; i++) ta_alloc(w.allocator, piece, 0, NULL, &at[i], NULL);
    for (int round = 0; round < 2; round++) { /* the first pins */
        ta_set_limit(w.allocator, 0, TA_LIMIT_API, 4 * MiB);
        const double since = ta_sim_now_us(w.sim);
        if (!ta_step(w.allocator, -1, &info) && info.sent_out == bytes - 4 * MiB)
            rate = rate_since(&w, since, (double)bytes);
        ta_set_limit(w.allocator, 0, TA_LIMIT_API, TA_NO_LIMIT);
        ta_step(w.allocator, -1, &info);
    }
    for (int i = 0; i < count; i++) ta_free(w.allocator, at[i]);
    world_close(&w);
    return rate;
}

TEST(what_leaves_is_bound_by_the_driver)
{
    CHECK_RATE(rate_out(32 * MiB, 32), 400);
    CHECK_RATE(rate_out(512 * MiB, 4), 400);
    openers = 3; /* as many as open pages beside the caller */
    CHECK_RATE(rate_out(32 * MiB, 2), 700);
    CHECK_RATE(rate_out(32 * MiB, 32), 780);
    CHECK_RATE(rate_out(512 * MiB, 4), 780);
    openers = 0;
}

/* A region of `gib` sleeps, and wakes; *wake: its rate. The sleep's. */
static double rate_region(uint64_t gib, bool touch, double *wake)
{
    world w;
    void *at[64];
    ta_region_id id;
    const ta_region_config region = {.touch_host = touch};
    const double bytes = (double)(gib * GiB);
    double out = *wake = 0;
    open_link(&w, 80 * GiB, 80 * GiB, false);
    ta_region_open(w.allocator, "weights", &region, &id);
    ta_region_enter(w.allocator, id, NULL);
    for (uint64_t i = 0; i < gib; i++) ta_alloc(w.allocator, GiB, 0, NULL, &at[i], NULL);
    ta_region_enter(w.allocator, 0, NULL);
    for (int round = 0; round < 2; round++) { /* the first pins */
        double since = ta_sim_now_us(w.sim);
        ta_region_sleep(w.allocator, id, true, NULL);
        out = rate_since(&w, since, bytes);
        since = ta_sim_now_us(w.sim);
        ta_region_wake(w.allocator, id, NULL);
        *wake = rate_since(&w, since, bytes);
    }
    for (uint64_t i = 0; i < gib; i++) ta_free(w.allocator, at[i]);
    world_close(&w);
    return out;
}

TEST(regions_sleep_and_wake_at_the_links_rate)
{
    double wake;
    CHECK_RATE(rate_region(8, false, &wake), 970);
    CHECK_RATE(wake, 970);
    CHECK_RATE(rate_region(60, false, &wake), 970);
    CHECK_RATE(wake, 970);
    CHECK_RATE(rate_region(8, true, &wake), 600); /* each page is opened to the device */
    CHECK_RATE(wake, 970);
}

/* A region is sent to sleep by another thread while a step moves its pages: afterwards. */
static struct {
    ta_driver driver;
    const ta_driver *real;
    ta_allocator *allocator;
    ta_region_id region;
    pthread_t thread;
    atomic_bool armed, slept, overlapped;
    ta_status status;
} second;

static void *send_to_sleep(void *unused)
{
    ta_sleep_info info;
    second.status = ta_region_sleep(second.allocator, second.region, true, &info);
    atomic_store(&second.slept, true);
    return unused;
}

static ta_status wait_and_see(void *self, ta_event event, double most_us)
{
    if (atomic_exchange(&second.armed, false)) {
        const struct timespec a_while = {0, 30000000};
        if (pthread_create(&second.thread, NULL, send_to_sleep, NULL)) return TA_DRIVER;
        nanosleep(&a_while, NULL);
        atomic_store(&second.overlapped, atomic_load(&second.slept));
    }
    return second.real->event_wait(self, event, most_us);
}

TEST(a_region_falls_asleep_after_the_step)
{
    const ta_sim_config config = {.devices = 1, .memory = GiB, .seed = 5};
    const ta_spill_config spill = {.host_bytes = 256 * MiB, .net = true};
    world w = {.devices = 1};
    held in;
    ta_step_info info;
    CHECK_EQ(ta_sim_create(&config, &w.sim), TA_OK);
    second.real = ta_sim_driver(w.sim);
    second.driver = *second.real;
    second.driver.event_wait = wait_and_see;
    CHECK_EQ(ta_allocator_create(&second.driver, NULL, &w.allocator), TA_OK);
    second.allocator = w.allocator;
    CHECK_EQ(ta_add_observer(w.allocator, ta_oracle_observe, w.sim), TA_OK);
    ta_oracle_allow_moves(w.sim, true);
    CHECK_EQ(ta_set_spill(w.allocator, &spill), TA_OK);
    CHECK_EQ(ta_region_open(w.allocator, "second", NULL, &second.region), TA_OK);
    CHECK_EQ(ta_region_enter(w.allocator, second.region, NULL), TA_OK);
    bring(&w, &in, 64 * MiB);
    CHECK_EQ(ta_region_enter(w.allocator, 0, NULL), TA_OK);
    CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_API, 32 * MiB), TA_OK);
    atomic_store(&second.armed, true);
    CHECK_EQ(ta_step(w.allocator, 0, &info), TA_OK);
    CHECK_EQ(info.sent_out, 32 * MiB);
    CHECK(!atomic_load(&second.armed));
    CHECK_EQ(pthread_join(second.thread, NULL), 0);
    CHECK_EQ(second.status, TA_OK);
    CHECK(!atomic_load(&second.overlapped));
    good(&w);
    CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_API, TA_NO_LIMIT), TA_OK);
    CHECK_EQ(ta_region_wake(w.allocator, second.region, NULL), TA_OK);
    CHECK_EQ(ta_step(w.allocator, 0, &info), TA_OK);
    kept(&in, 1);
    drop(&w, &in);
    good(&w);
    world_close(&w);
}

TEST_MAIN()
