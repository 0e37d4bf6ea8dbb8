/* test_spill.c - the safety net and steps' marks: new blocks go to the host where the device has
 * no room, and come back; bytes stay equal, books balance, the oracle sees no broken order. */
#include "spill_world.h"

TEST(what_does_not_fit_goes_to_the_host_and_comes_back)
{
    world w;
    held h[16];
    ta_step_info info;
    open_capped(&w, 1 * GiB, 64 * MiB, 256 * MiB);
    for (int i = 0; i < 16; i++) bring(&w, &h[i], 8 * MiB);
    if (ta_test_failed) return;
    ta_stats s = world_stats(&w, 0);
    CHECK_EQ(s.reserved.current, 64 * MiB);
    CHECK_EQ(s.spilled.current, 64 * MiB);
    CHECK_EQ(s.spill_allocs, 8);
    CHECK_EQ(s.oom_count, 0);
    good(&w);
    kept(h, 16);
    /* No room: nothing moves. */
    CHECK_EQ(ta_step(w.allocator, -1, &info), TA_OK);
    CHECK_EQ(info.brought_back, 0);
    CHECK_EQ(info.still_on_host, 64 * MiB);
    for (int i = 0; i < 4; i++) drop(&w, &h[i]);
    CHECK_EQ(ta_step(w.allocator, -1, &info), TA_OK);
    CHECK_EQ(info.brought_back, 32 * MiB);
    CHECK_EQ(info.still_on_host, 32 * MiB);
    good(&w);
    kept(h, 16);
    CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_API, TA_NO_LIMIT), TA_OK);
    CHECK_EQ(ta_step(w.allocator, 0, &info), TA_OK);
    CHECK_EQ(info.brought_back, 32 * MiB);
    CHECK_EQ(info.still_on_host, 0);
    s = world_stats(&w, 0);
    CHECK_EQ(s.spilled.current, 0);
    CHECK_EQ(s.host.current, 64 * MiB); /* kept for the next time */
    CHECK_EQ(s.to_device, 64 * MiB);
    good(&w);
    kept(h, 16);
    uint64_t released;
    CHECK_EQ(ta_host_trim(w.allocator, &released), TA_OK);
    CHECK_EQ(released, 64 * MiB);
    CHECK_EQ(ta_sim_pinned(w.sim), 0);
    for (int i = 0; i < 16; i++) drop(&w, &h[i]);
    world_close(&w);
}

TEST(off_it_refuses_and_a_full_budget_refuses)
{
    world w;
    held h[16], more;
    ta_oom oom;
    void *at;
    open_capped(&w, 1 * GiB, 64 * MiB, 0);
    for (int i = 0; i < 8; i++) bring(&w, &h[i], 8 * MiB);
    CHECK_EQ(world_alloc(&w, &more, 8 * MiB, 0, NULL), TA_OUT_OF_MEMORY);
    const ta_spill_config spill = {.host_bytes = 12 * MiB, .net = true};
    CHECK_EQ(ta_set_spill(w.allocator, &spill), TA_OK);
    bring(&w, &h[8], 8 * MiB);
    CHECK_EQ(ta_alloc(w.allocator, 8 * MiB, 0, NULL, &at, &oom), TA_OUT_OF_MEMORY);
    CHECK_EQ(oom.spilled, 8 * MiB);
    CHECK_EQ(oom.host_budget, 12 * MiB);
    CHECK_EQ(oom.host_held, 8 * MiB);
    char text[2048];
    ta_oom_text(&oom, text, sizeof text);
    CHECK(strstr(text, "in host memory"));
    bring(&w, &h[9], 4 * MiB);
    good(&w);
    kept(h, 10);
    /* The machine has no more than the budget would allow. */
    const ta_spill_config large = {.host_bytes = 1 * GiB, .net = true};
    CHECK_EQ(ta_set_spill(w.allocator, &large), TA_OK);
    ta_sim_set_host_memory(w.sim, 4 * MiB);
    CHECK_EQ(ta_alloc(w.allocator, 8 * MiB, 0, NULL, &at, &oom), TA_OUT_OF_MEMORY);
    good(&w);
    for (int i = 0; i < 10; i++) drop(&w, &h[i]);
    world_close(&w);
}

/* S22, and a loop that spills at every step. */
TEST(a_loop_that_repeats_itself_moves_nothing)
{
    world w;
    held h[20];
    uint64_t calls = 0, spills = 0;
    open_capped(&w, 1 * GiB, 64 * MiB, 256 * MiB);
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 20; i++) bring(&w, &h[i], 6 * MiB);
        if (ta_test_failed) return;
        kept(h, 20);
        for (int i = 19; i >= 0; i--) drop(&w, &h[i]);
        CHECK_EQ(ta_step(w.allocator, -1, NULL), TA_OK);
        if (round == 2) calls = map_calls(&w);
    }
    CHECK_EQ(map_calls(&w), calls);
    spills = world_stats(&w, 0).spill_allocs;
    CHECK(spills > 0);
    good(&w);
    /* Once it fits again, it is on the device: at the first step that is another, from the
     * mark on; at the second, at once. */
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 8; i++) drop(&w, &h[i]);
        for (int i = 0; i < 8; i++) bring(&w, &h[i], 6 * MiB);
        if (!round) spills = world_stats(&w, 0).spill_allocs;
        CHECK_EQ(ta_step(w.allocator, -1, NULL), TA_OK);
    }
    CHECK_EQ(world_stats(&w, 0).spilled.current, 0);
    CHECK_EQ(world_stats(&w, 0).spill_allocs, spills);
    for (int i = 0; i < 8; i++) drop(&w, &h[i]);
    good(&w);
    world_close(&w);
}

/* Nothing to spill: not one call more than with spill off. */
TEST(nothing_to_spill_costs_no_call)
{
    uint64_t calls[2];
    for (int on = 0; on < 2; on++) {
        world w;
        held h[8];
        open_capped(&w, 1 * GiB, 64 * MiB, on ? 256 * MiB : 0);
        for (int round = 0; round < 20; round++) {
            for (int i = 0; i < 8; i++) bring(&w, &h[i], 6 * MiB);
            for (int i = 0; i < 8; i++) drop(&w, &h[i]);
            CHECK_EQ(ta_step(w.allocator, -1, NULL), TA_OK);
        }
        calls[on] = 0;
        for (int c = 0; c < TA_SIM_CALL_COUNT; c++)
            calls[on] += ta_sim_calls(w.sim, (ta_sim_call)c);
        world_close(&w);
    }
    CHECK_EQ(calls[0], calls[1]);
}

/* S21: the k-th call of bringing back fails; bytes equal, and a retry works. */
TEST(a_step_that_fails_anywhere_keeps_every_byte)
{
    static const ta_sim_call kinds[] = {
        TA_SIM_CALL_unmap,        TA_SIM_CALL_map,          TA_SIM_CALL_set_access,
        TA_SIM_CALL_copy,         TA_SIM_CALL_event_record, TA_SIM_CALL_event_wait,
        TA_SIM_CALL_device_wait,  TA_SIM_CALL_create,       TA_SIM_CALL_copy_stream,
        TA_SIM_CALL_event_create, TA_SIM_CALL_COUNT};
    world w;
    held h[10];
    ta_step_info info;
    open_capped(&w, 1 * GiB, 24 * MiB, 256 * MiB);
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
        for (uint64_t k = 1; k < 60; k++)
            for (uint64_t times = 0; times < 3; times += 2) {
                CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_API, 24 * MiB), TA_OK);
                for (int i = 0; i < 10; i++) bring(&w, &h[i], 5 * MiB);
                if (ta_test_failed) return;
                for (int i = 0; i < 2; i++) drop(&w, &h[i]);
                CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_API, 32 * MiB), TA_OK);
                ta_sim_fail(w.sim, kinds[kind], k, times, TA_DRIVER);
                ta_status status = ta_step(w.allocator, -1, &info);
                ta_sim_fail(w.sim, kinds[kind], 0, 0, TA_OK);
                if (status == TA_OK) {
                    kept(h, 10);
                    k = 60;
                }
                CHECK_EQ(ta_step(w.allocator, -1, &info), TA_OK);
                kept(h, 10);
                good(&w);
                if (ta_test_failed)
                    TA_TEST_FAIL("  call %d, k %d, times %d", (int)kinds[kind], (int)k,
                                 (int)times);
                CHECK_EQ(world_stats(&w, 0).reserved.current, 32 * MiB);
                for (int i = 0; i < 10; i++) drop(&w, &h[i]);
            }
    world_close(&w);
}

/* S12 for the net: a request that fails anywhere leaves nothing behind. */
TEST(a_spill_that_fails_anywhere_rolls_back)
{
    static const ta_sim_call calls[] = {TA_SIM_CALL_COUNT, TA_SIM_CALL_create,
                                        TA_SIM_CALL_map,   TA_SIM_CALL_set_access,
                                        TA_SIM_CALL_unmap, TA_SIM_CALL_reserve};
    world w;
    held h[3];
    open_capped(&w, 1 * GiB, 16 * MiB, 256 * MiB);
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++)
        for (uint64_t k = 1; k < 80; k++)
            for (uint64_t times = 0; times < 3; times += 2) {
                bool refused = false;
                for (int n = 0; n < 2; n++) bring(&w, &h[n], 7 * MiB);
                const uint64_t live = world_stats(&w, 0).allocated[0].current;
                ta_sim_fail(w.sim, calls[c], k, times, TA_DRIVER);
                ta_status status = world_alloc(&w, &h[2], 21 * MiB, 0, NULL);
                ta_sim_fail(w.sim, calls[c], 0, 0, TA_OK);
                if (status) {
                    refused = true;
                    CHECK_EQ(world_stats(&w, 0).allocated[0].current, live);
                    kept(h, 2);
                    good(&w);
                    CHECK_EQ(world_alloc(&w, &h[2], 21 * MiB, 0, NULL), TA_OK);
                }
                h[2].serial = 77;
                world_write(&h[2]);
                kept(h, 3);
                good(&w);
                if (ta_test_failed)
                    TA_TEST_FAIL("  call %d, k %d, times %d", (int)calls[c], (int)k,
                                 (int)times);
                for (int i = 0; i < 3; i++) drop(&w, &h[i]);
                CHECK_EQ(ta_sim_settle(w.sim, 0), TA_OK);
                CHECK_EQ(ta_trim(w.allocator, 0, NULL), TA_OK);
                CHECK_EQ(ta_host_trim(w.allocator, NULL), TA_OK);
                if (!refused) k = 80;
            }
    world_close(&w);
}

/* Blocks freed on the host while their stream is busy are neither unmapped nor reused. */
TEST(a_busy_stream_keeps_its_host_pages)
{
    world w;
    held h[12], late;
    open_capped(&w, 1 * GiB, 32 * MiB, 64 * MiB);
    for (int i = 0; i < 4; i++) bring(&w, &h[i], 8 * MiB);
    for (int i = 4; i < 12; i++) bring(&w, &h[i], 8 * MiB);
    for (int i = 4; i < 12; i++) world_use(&w, &h[i], h[i].stream, true, 1e6);
    for (int i = 4; i < 12; i++) drop(&w, &h[i]);
    /* Another stream needs the whole budget: it waits, or is refused. */
    ta_status status = world_alloc(&w, &late, 64 * MiB, 0, w.stream[0][1]);
    CHECK(status == TA_OK || status == TA_OUT_OF_MEMORY);
    if (!status) world_use(&w, &late, late.stream, true, -1);
    world_check(&w);
    CHECK_EQ(ta_sim_settle(w.sim, 0), TA_OK);
    if (status) CHECK_EQ(world_alloc(&w, &late, 64 * MiB, 0, w.stream[0][1]), TA_OK);
    good(&w);
    drop(&w, &late);
    for (int i = 0; i < 4; i++) drop(&w, &h[i]);
    good(&w);
    world_close(&w);
}

TEST(a_lowered_budget_gives_back_what_is_unused)
{
    world w;
    held h[16];
    open_capped(&w, 1 * GiB, 32 * MiB, 256 * MiB);
    for (int i = 0; i < 16; i++) bring(&w, &h[i], 8 * MiB);
    CHECK_EQ(ta_sim_pinned(w.sim), 96 * MiB);
    for (int i = 8; i < 16; i++) drop(&w, &h[i]);
    CHECK_EQ(ta_sim_settle(w.sim, 0), TA_OK);
    CHECK_EQ(ta_set_spill(w.allocator, NULL), TA_OK);
    CHECK_EQ(ta_sim_pinned(w.sim), 32 * MiB);
    kept(h, 16);
    for (int i = 0; i < 4; i++) drop(&w, &h[i]);
    CHECK_EQ(ta_step(w.allocator, -1, NULL), TA_OK);
    CHECK_EQ(world_stats(&w, 0).spilled.current, 0);
    good(&w);
    for (int i = 0; i < 16; i++) drop(&w, &h[i]);
    world_close(&w);
}

/* One step: what forward saves, a passing block at the peak, backward. *first, *passing: bytes
 * that went to the host with the first of those saved, with the passing ones. */
static void learnt_step(world *w, uint64_t *first, uint64_t *passing, int odd)
{
    held saved[8], pass;
    *first = *passing = 0;
    for (int i = 0; i < 8; i++) {
        const uint64_t before = world_stats(w, 0).spill_bytes;
        bring(w, &saved[i], (i == 3 && odd ? 7 : 8) * MiB);
        if (i < 2) *first += world_stats(w, 0).spill_bytes - before;
    }
    for (int i = 0; i < 5; i++) {
        const uint64_t before = world_stats(w, 0).spill_bytes;
        bring(w, &pass, 12 * MiB);
        *passing += world_stats(w, 0).spill_bytes - before;
        drop(w, &pass);
    }
    kept(saved, 8);
    for (int i = 7; i >= 0; i--) drop(w, &saved[i]);
    CHECK_EQ(ta_step(w->allocator, -1, NULL), TA_OK);
}

TEST(a_repeated_step_sends_what_lives_longest)
{
    world w;
    held weights;
    uint64_t first, passing, calls = 0;
    open_capped(&w, 1 * GiB, 84 * MiB, 256 * MiB);
    bring(&w, &weights, 16 * MiB);
    learnt_step(&w, &first, &passing, 0); /* the net: it is what does not fit */
    CHECK_EQ(first, 0);
    CHECK(passing > 0);
    learnt_step(&w, &first, &passing, 0); /* recorded */
    for (int round = 0; round < 6; round++) {
        learnt_step(&w, &first, &passing, 0);
        CHECK(first > 0);
        CHECK_EQ(passing, 0);
        if (round == 2) calls = map_calls(&w);
    }
    CHECK_EQ(map_calls(&w), calls);
    good(&w);
    /* Another step: the net again, and then it is learned anew. */
    learnt_step(&w, &first, &passing, 1);
    CHECK(first > 0);
    good(&w);
    learnt_step(&w, &first, &passing, 1);
    learnt_step(&w, &first, &passing, 1);
    CHECK_EQ(passing, 0);
    /* With room again nothing goes there, and after a while nobody looks. */
    CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_API, TA_NO_LIMIT), TA_OK);
    for (int round = 0; round < 12; round++) {
        learnt_step(&w, &first, &passing, 0);
        CHECK_EQ(first + passing, 0);
    }
    kept(&weights, 1);
    drop(&w, &weights);
    good(&w);
    world_close(&w);
}

static bool same_stream(void *context, ta_stream stream) { return context == stream; }

/* A graph's memory may be on the host; there it stays while the graph may replay. */
TEST(a_graph_pool_spills_and_does_not_move)
{
    world w;
    held h[4], in[4];
    ta_sim_graph *graph;
    ta_step_info info;
    void *context;
    const ta_pool_id pool = {0, 3};
    open_capped(&w, 1 * GiB, 32 * MiB, 256 * MiB);
    for (int i = 0; i < 4; i++) bring(&w, &h[i], 8 * MiB);
    CHECK_EQ(ta_sim_settle(w.sim, 0), TA_OK);
    ta_stream stream = w.stream[0][1];
    CHECK_EQ(ta_pool_begin(w.allocator, 0, pool, same_stream, stream), TA_OK);
    CHECK_EQ(ta_sim_capture_begin(w.sim, 0, stream), TA_OK);
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(world_alloc(&w, &in[i], 6 * MiB, 0, stream), TA_OK);
        world_use(&w, &in[i], stream, true, -1);
    }
    CHECK_EQ(ta_step(w.allocator, -1, &info), TA_OK); /* theirs alone is on the host */
    CHECK_EQ(ta_sim_capture_end(w.sim, 0, stream, &graph), TA_OK);
    CHECK_EQ(ta_pool_end(w.allocator, 0, pool, &context), TA_OK);
    const uint64_t spilled = world_stats(&w, 0).spilled.current;
    CHECK(spilled >= 24 * MiB);
    for (int i = 0; i < 4; i++) drop(&w, &h[i]);
    for (int i = 0; i < 4; i++) drop(&w, &in[i]);
    for (int round = 0; round < 3; round++) {
        CHECK_EQ(ta_sim_graph_launch(w.sim, graph, 0, stream), TA_OK);
        bring(&w, &h[0], 8 * MiB);
        CHECK_EQ(ta_step(w.allocator, -1, &info), TA_OK);
        CHECK_EQ(info.brought_back, 0);
        CHECK_EQ(ta_host_trim(w.allocator, NULL), TA_OK);
        CHECK(ta_sim_pinned(w.sim) >= 24 * MiB); /* it may replay: nothing is unmapped */
        drop(&w, &h[0]);
    }
    good(&w);
    ta_sim_graph_destroy(w.sim, graph);
    CHECK_EQ(ta_pool_release(w.allocator, 0, pool), TA_OK);
    CHECK_EQ(ta_trim(w.allocator, 0, NULL), TA_OK);
    CHECK_EQ(ta_host_trim(w.allocator, NULL), TA_OK);
    CHECK_EQ(ta_sim_pinned(w.sim), 0);
    good(&w);
    world_close(&w);
}

/* What another device may touch, it may touch on the host as well. */
TEST(a_device_that_comes_later_reaches_spilled_blocks)
{
    world w;
    held h[8], other;
    ta_sim_config config = {.devices = 2, .memory = 1 * GiB, .seed = 5};
    const ta_spill_config spill = {.host_bytes = 256 * MiB, .net = true};
    world_open(&w, &config, 2);
    CHECK_EQ(ta_set_spill(w.allocator, &spill), TA_OK);
    CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_API, 16 * MiB), TA_OK);
    for (int i = 0; i < 8; i++) bring(&w, &h[i], 4 * MiB);
    CHECK_EQ(world_alloc(&w, &other, 4 * MiB, 1, NULL), TA_OK);
    CHECK_EQ(ta_sim_settle(w.sim, 0), TA_OK);
    for (int i = 0; i < 8; i++)
        CHECK_EQ(
            ta_sim_copy(w.sim, 1, NULL, (uintptr_t)other.at, (uintptr_t)h[i].at, 4 * MiB),
            TA_OK);
    CHECK_EQ(ta_sim_settle(w.sim, 1), TA_OK);
    for (int i = 0; i < 8; i++) drop(&w, &h[i]);
    drop(&w, &other);
    good(&w);
    world_close(&w);
}

TEST_MAIN()
