/* test_plain.c - devices without VMM: refused, or served with plain driver allocations. */
#include <pthread.h>
#include <unistd.h>

#include "world.h"

static void open_plain(world *w, uint64_t memory, bool fallback)
{
    ta_sim_config config = {.devices = 1, .memory = memory, .seed = 3, .no_vmm = true};
    ta_config policy = {.fallback = fallback};
    world_open_with(w, &config, 3, &policy);
}

TEST(without_fallback_it_is_refused)
{
    world w;
    held h;
    open_plain(&w, GiB, false);
    CHECK_EQ(world_alloc(&w, &h, MiB, 0, NULL), TA_UNSUPPORTED);
    CHECK(!ta_device_used(w.allocator, 0));
    world_close(&w);
}

/* The driver's free waits for the device: others go on meanwhile, and who needs what is being
 * freed gets it. */
static struct {
    const ta_driver *sim;
    world *w;
    pthread_t needy;
    held small, large;
    ta_status status; /* of the one in need */
    int frees;
    bool refuse;
} hook;
static void *takes_little(void *nothing)
{
    world *w = hook.w;
    ta_test_failed |= world_alloc(w, &hook.small, 40 * MiB, 0, w->stream[0][2]) != TA_OK;
    world_check(w);
    return nothing;
}
static void *takes_much(void *nothing)
{
    hook.status = world_alloc(hook.w, &hook.large, 64 * MiB, 0, hook.w->stream[0][2]);
    return nothing;
}
static ta_status hooked_free(void *self, int device, uint64_t addr)
{
    pthread_t thread;
    if (hook.refuse) return TA_DRIVER;
    if (hook.frees++ == 0) {
        ta_test_failed |= pthread_create(&thread, NULL, takes_little, NULL) ||
                          pthread_join(thread, NULL) ||
                          pthread_create(&hook.needy, NULL, takes_much, NULL);
        usleep(50000); /* it finds nothing idle, and waits */
    }
    return hook.sim->plain_free(self, device, addr);
}

TEST(others_go_on_during_a_free)
{
    static ta_driver hooked;
    const ta_config policy = {.fallback = true};
    world w;
    held a;
    open_plain(&w, 256 * MiB, true);
    ta_allocator_destroy(w.allocator);
    memset(&hook, 0, sizeof hook);
    hook.sim = w.driver;
    hook.w = &w;
    hooked = *w.driver;
    hooked.plain_free = hooked_free;
    alarm(60); /* a hang ends as a signal */
    CHECK_EQ(ta_allocator_create(&hooked, &policy, &w.allocator), TA_OK);
    CHECK_EQ(ta_add_observer(w.allocator, ta_oracle_observe, w.sim), TA_OK);
    CHECK_EQ(ta_set_limit(w.allocator, -1, TA_LIMIT_API, 104 * MiB), TA_OK);
    CHECK_EQ(world_alloc(&w, &a, 64 * MiB, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    /* A free that fails changes nothing. */
    hook.refuse = true;
    CHECK_EQ(ta_trim(w.allocator, 0, NULL), TA_DRIVER);
    hook.refuse = false;
    CHECK_EQ(world_stats(&w, 0).reserved.current, 64 * MiB);
    world_check(&w);
    CHECK_EQ(world_alloc(&w, &a, 64 * MiB, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(world_stats(&w, 0).reserved.current, 64 * MiB);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    CHECK_EQ(ta_trim(w.allocator, 0, NULL), TA_OK);
    CHECK_EQ(pthread_join(hook.needy, NULL), 0);
    CHECK(!ta_test_failed);
    CHECK_EQ(hook.status, TA_OK);
    CHECK_EQ(world_stats(&w, 0).reserved.current, 104 * MiB);
    CHECK_EQ(ta_free(w.allocator, hook.small.at), TA_OK);
    CHECK_EQ(ta_free(w.allocator, hook.large.at), TA_OK);
    CHECK_EQ(ta_trim(w.allocator, 0, NULL), TA_OK);
    CHECK_EQ(world_stats(&w, 0).reserved.current, 0);
    world_close(&w);
}

TEST(blocks_and_counts)
{
    world w;
    held a, b, c;
    open_plain(&w, GiB, true);
    CHECK_EQ(world_alloc(&w, &a, 1000, 0, NULL), TA_OK);
    CHECK_EQ(world_alloc(&w, &b, 5 * MiB, 0, NULL), TA_OK);
    CHECK_EQ(world_alloc(&w, &c, 100 * MiB, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(world_stats(&w, 0).allocated[TA_POOL_ALL].current, 1024 + 105 * MiB);
    CHECK_EQ(world_stats(&w, 0).reserved.current, ta_sim_used(w.sim, 0, false));
    void *base;
    size_t size;
    CHECK_EQ(ta_base_address(w.allocator, b.at + 77, &base, &size), TA_OK);
    CHECK(base == b.at);
    CHECK_EQ(size, 5 * MiB);
    CHECK_EQ(ta_free(w.allocator, b.at + 512), TA_INVALID);
    CHECK_EQ(ta_free(w.allocator, b.at), TA_OK);
    CHECK_EQ(ta_free(w.allocator, b.at), TA_INVALID);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    CHECK_EQ(ta_free(w.allocator, c.at), TA_OK);
    uint64_t released;
    CHECK_EQ(ta_trim(w.allocator, -1, &released), TA_OK);
    CHECK(released >= 105 * MiB);
    CHECK_EQ(world_stats(&w, 0).reserved.current, 0);
    CHECK_EQ(ta_sim_used(w.sim, 0, false), 0);
    world_close(&w);
}

TEST(a_cap_holds_and_idle_ranges_go_first)
{
    world w;
    held a, b, c;
    open_plain(&w, GiB, true);
    CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_API, 200 * MiB), TA_OK);
    CHECK_EQ(world_alloc(&w, &a, 120 * MiB, 0, NULL), TA_OK);
    CHECK_EQ(world_alloc(&w, &b, 90 * MiB, 0, NULL), TA_OUT_OF_MEMORY);
    world_use(&w, &a, NULL, true, 5000);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    /* Another size, another stream: the idle range is waited for and given back. */
    CHECK_EQ(world_alloc(&w, &b, 190 * MiB, 0, w.stream[0][1]), TA_OK);
    CHECK(world_stats(&w, 0).reserved.peak <= 200 * MiB);
    CHECK(world_stats(&w, 0).waits > 0);
    CHECK_EQ(world_alloc(&w, &c, 20 * MiB, 0, NULL), TA_OUT_OF_MEMORY);
    CHECK_EQ(ta_free(w.allocator, b.at), TA_OK);
    CHECK_EQ(world_alloc(&w, &c, 20 * MiB, 0, NULL), TA_OK);
    CHECK_EQ(ta_free(w.allocator, c.at), TA_OK);
    world_close(&w);
}

/* Memory that another stream still uses is waited for before a refusal. */
TEST(pending_is_waited_for)
{
    world w;
    held a, b;
    open_plain(&w, 64 * MiB, true);
    CHECK_EQ(world_alloc(&w, &a, 48 * MiB, 0, w.stream[0][1]), TA_OK);
    world_use(&w, &a, w.stream[0][2], false, 9000);
    CHECK_EQ(ta_record_stream(w.allocator, a.at, w.stream[0][2]), TA_OK);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    CHECK_EQ(world_alloc(&w, &b, 48 * MiB, 0, NULL), TA_OK);
    CHECK_EQ(ta_free(w.allocator, b.at), TA_OK);
    world_close(&w);
}

/* The longest idle range is a capturing stream's: the next one is given back. */
TEST(idle_of_a_capturing_stream_hides_no_other)
{
    world w;
    held a, b, c, x;
    ta_sim_graph *graph = NULL;
    open_plain(&w, 144 * MiB, true);
    CHECK_EQ(ta_set_stream_life(w.allocator, world_lasting, NULL), TA_OK);
    CHECK_EQ(world_alloc(&w, &x, 32 * MiB, 0, NULL), TA_OK);
    CHECK_EQ(ta_record_stream(w.allocator, x.at, w.stream[0][2]), TA_OK);
    CHECK_EQ(world_alloc(&w, &a, 48 * MiB, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(world_alloc(&w, &b, 48 * MiB, 0, w.stream[0][2]), TA_OK);
    world_use(&w, &b, b.stream, true, 9000);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    CHECK_EQ(ta_sim_capture_begin(w.sim, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(ta_free(w.allocator, x.at), TA_OK); /* a tick goes by */
    CHECK_EQ(ta_free(w.allocator, b.at), TA_OK);
    CHECK_EQ(world_alloc(&w, &c, 90 * MiB, 0, w.stream[0][2]), TA_OK);
    CHECK_EQ(ta_sim_capture_end(w.sim, 0, w.stream[0][1], &graph), TA_OK);
    ta_sim_graph_destroy(w.sim, graph);
    CHECK_EQ(ta_free(w.allocator, c.at), TA_OK);
    world_close(&w);
}

/* Random blocks on three streams: contents kept, counts exact, and where the driver refuses,
 * the next call works. */
TEST(random_with_failures)
{
    enum { SLOTS = 64, STEPS = 6000 };
    static held slot[SLOTS];
    world w;
    uint64_t random = 11, live = 0, refused = 0;
    memset(slot, 0, sizeof slot);
    open_plain(&w, 512 * MiB, true);
    for (int i = 0; i < STEPS; i++) {
        held *h = &slot[world_random(&random) % SLOTS];
        if (world_random(&random) % 16 == 0)
            ta_sim_fail(w.sim, TA_SIM_CALL_COUNT, world_between(&random, 1, 8), 1,
                        TA_DRIVER);
        if (h->at) {
            CHECK(world_kept(h));
            if (world_random(&random) % 4 == 0)
                CHECK_EQ(ta_record_stream(w.allocator, h->at, w.stream[0][2]), TA_OK);
            CHECK_EQ(ta_free(w.allocator, h->at), TA_OK);
            live -= world_round(h->size, TA_GRANULE);
            h->at = NULL;
        } else {
            uint64_t size = 1 + world_random(&random) % (20 * MiB);
            ta_stream stream = w.stream[0][world_random(&random) % 3];
            if (world_alloc(&w, h, size, 0, stream) != TA_OK) {
                refused++;
                continue;
            }
            h->serial = (uint64_t)i + 1;
            world_write(h);
            world_use(&w, h, stream, true, -1);
            live += world_round(size, TA_GRANULE);
        }
        if (i % 32 == 0) {
            CHECK_EQ(world_stats(&w, 0).allocated[TA_POOL_ALL].current, live);
            world_check(&w);
            if (ta_test_failed) return;
        }
    }
    ta_sim_fail(w.sim, TA_SIM_CALL_COUNT, 0, 0, TA_OK);
    CHECK(refused > 0);
    CHECK(refused < STEPS / 4);
    for (int s = 0; s < SLOTS; s++)
        if (slot[s].at) CHECK_EQ(ta_free(w.allocator, slot[s].at), TA_OK);
    CHECK_EQ(ta_trim(w.allocator, -1, NULL), TA_OK);
    CHECK_EQ(ta_sim_used(w.sim, 0, false), 0);
    world_close(&w);
}

TEST_MAIN()
