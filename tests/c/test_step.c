/* test_step.c - a step's mark: what comes back when there is room wherever that room lies, in
 * which order, at which rate, and what leaves. */
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

/* --- the rate, as the costs of FACTS have it -------------------------------------------- */
#define LINK 55.4 /* GB/s */

/* Of the link's rate, with all of the device's wait and mapping: live pieces that come back. */
static double rate_back(uint64_t piece, int count, uint64_t idle)
{
    world w;
    void *at[64], *old = NULL;
    ta_step_info info;
    const uint64_t bytes = piece * (uint64_t)count;
    const ta_sim_config config = {.devices = 1,
                                  .memory = 16 * GiB,
                                  .seed = 5,
                                  .no_backing = true,
                                  .link_gbs = LINK};
    const ta_spill_config spill = {.host_bytes = 8 * GiB, .net = true};
    double rate = 0;
    world_open(&w, &config, 2);
    ta_oracle_allow_moves(w.sim, true);
    ta_set_spill(w.allocator, &spill);
    if (idle) ta_alloc(w.allocator, idle, 0, NULL, &old, NULL);
    ta_set_limit(w.allocator, 0, TA_LIMIT_API, idle ? idle : 4 * MiB);
    for (int i = 0; i < count; i++) ta_alloc(w.allocator, piece, 0, NULL, &at[i], NULL);
    if (idle)
        ta_free(w.allocator, old);
    else
        ta_set_limit(w.allocator, 0, TA_LIMIT_API, TA_NO_LIMIT);
    const double since = ta_sim_now_us(w.sim);
    if (!ta_step(w.allocator, -1, &info) && info.brought_back == bytes)
        rate = (double)bytes / (ta_sim_now_us(w.sim) - since) / 1e3 / LINK;
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

/* A region of `gib` sleeps, and wakes; *wake: its rate. The sleep's. */
static double rate_region(uint64_t gib, bool touch, double *wake)
{
    world w;
    void *at[64];
    ta_region_id id;
    const ta_sim_config config = {.devices = 1,
                                  .memory = 80 * GiB,
                                  .seed = 5,
                                  .no_backing = true,
                                  .link_gbs = LINK};
    const ta_spill_config spill = {.host_bytes = 80 * GiB};
    const ta_region_config region = {.touch_host = touch};
    const double bytes = (double)(gib * GiB);
    double out = *wake = 0;
    world_open(&w, &config, 2);
    ta_oracle_allow_moves(w.sim, true);
    ta_set_spill(w.allocator, &spill);
    ta_region_open(w.allocator, "weights", &region, &id);
    ta_region_enter(w.allocator, id, NULL);
    for (uint64_t i = 0; i < gib; i++) ta_alloc(w.allocator, GiB, 0, NULL, &at[i], NULL);
    ta_region_enter(w.allocator, 0, NULL);
    for (int round = 0; round < 2; round++) { /* the first pins */
        double since = ta_sim_now_us(w.sim);
        ta_region_sleep(w.allocator, id, true, NULL);
        out = bytes / (ta_sim_now_us(w.sim) - since) / 1e3 / LINK;
        since = ta_sim_now_us(w.sim);
        ta_region_wake(w.allocator, id, NULL);
        *wake = bytes / (ta_sim_now_us(w.sim) - since) / 1e3 / LINK;
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

TEST_MAIN()
