/* test_pinning.c - host pages made by several threads: bounded, counted to the byte, all or
 * none, and no thread outlives the call. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "world.h"

/* The machine's driver, but that pages of the host are made with a meeting first. */
static struct {
    ta_driver driver;
    ta_status (*create)(void *, int, ta_tier, uint64_t, ta_handle *);
    atomic_int inside, most, meet; /* meet: how many threads each waits for, a while */
    _Atomic uint64_t made;
} crowd;

static void await_others(void)
{
    const struct timespec look = {.tv_nsec = 200000};
    for (int i = 0; i < 50000 && atomic_load(&crowd.most) < atomic_load(&crowd.meet); i++)
        nanosleep(&look, NULL);
}

static ta_status crowded_create(void *self, int device, ta_tier tier, uint64_t size,
                                ta_handle *handle)
{
    if (tier != TA_TIER_HOST) return crowd.create(self, device, tier, size, handle);
    const int now = atomic_fetch_add(&crowd.inside, 1) + 1;
    int most = atomic_load(&crowd.most);
    while (most < now && !atomic_compare_exchange_weak(&crowd.most, &most, now)) {
    }
    await_others();
    ta_status status = crowd.create(self, device, tier, size, handle);
    atomic_fetch_add(&crowd.made, status == TA_OK);
    atomic_fetch_sub(&crowd.inside, 1);
    return status;
}

static void open_crowd(world *w, int devices, uint64_t host, int meet)
{
    const ta_sim_config config = {
        .devices = devices, .memory = 4 * GiB, .seed = 3, .no_backing = true};
    const ta_spill_config spill = {.host_bytes = host};
    memset(w, 0, sizeof *w);
    w->devices = devices;
    w->streams = 1;
    CHECK_EQ(ta_sim_create(&config, &w->sim), TA_OK);
    w->driver = ta_sim_driver(w->sim);
    memset(&crowd, 0, sizeof crowd);
    crowd.driver = *w->driver;
    crowd.create = w->driver->create;
    crowd.driver.create = crowded_create;
    crowd.meet = meet;
    CHECK_EQ(ta_allocator_create(&crowd.driver, NULL, &w->allocator), TA_OK);
    CHECK_EQ(ta_add_observer(w->allocator, ta_oracle_observe, w->sim), TA_OK);
    ta_oracle_allow_moves(w->sim, true);
    CHECK_EQ(ta_set_spill(w->allocator, &spill), TA_OK);
}

/* `count` blocks of a page of 32 MiB each. */
static ta_region_id fill(world *w, const char *name, int device, void **at, int count)
{
    ta_region_id id = 0;
    if (ta_region_open(w->allocator, name, NULL, &id)) return 0;
    ta_region_enter(w->allocator, id, NULL);
    for (int i = 0; i < count; i++)
        ta_alloc(w->allocator, 32 * MiB, device, NULL, &at[i], NULL);
    ta_region_enter(w->allocator, 0, NULL);
    return id;
}

static void good(world *w, uint64_t pinned)
{
    uint64_t host = 0;
    world_check(w);
    CHECK_EQ(ta_sim_pinned(w->sim), pinned);
    for (int d = 0; d < w->devices; d++)
        if (ta_device_used(w->allocator, d)) {
            host += world_stats(w, d).host.current;
            CHECK_EQ(world_stats(w, d).host_held, pinned);
        }
    CHECK_EQ(host, pinned);
}

TEST(four_threads_pin_and_no_more)
{
    world w;
    void *at[40];
    ta_sleep_info info;
    open_crowd(&w, 1, 2 * GiB, 4);
    const ta_region_id id = fill(&w, "weights", 0, at, 40);
    CHECK_EQ(ta_region_sleep(w.allocator, id, true, &info), TA_OK);
    CHECK_EQ(info.pinned, 40 * 32 * MiB);
    CHECK_EQ(crowd.most, 4);
    CHECK_EQ(crowd.made, 40);
    good(&w, 40 * 32 * MiB);
    CHECK_EQ(ta_region_wake(w.allocator, id, NULL), TA_OK);
    CHECK_EQ(ta_region_sleep(w.allocator, id, true, &info), TA_OK);
    CHECK_EQ(crowd.made, 40); /* kept */
    world_close(&w);
}

TEST(few_pages_take_one_thread)
{
    world w;
    void *at[7];
    open_crowd(&w, 1, 2 * GiB, 1);
    const ta_region_id id = fill(&w, "weights", 0, at, 7);
    CHECK_EQ(ta_region_sleep(w.allocator, id, true, NULL), TA_OK);
    CHECK_EQ(crowd.most, 1);
    world_close(&w);
}

/* Nothing is made where the budget or the machine has less, by a byte. */
TEST(what_has_no_room_is_not_begun)
{
    world w;
    void *at[40];
    ta_sleep_info info;
    const uint64_t bytes = 40 * 32 * MiB;
    open_crowd(&w, 1, bytes - 1, 1);
    const ta_region_id id = fill(&w, "weights", 0, at, 40);
    CHECK_EQ(ta_region_sleep(w.allocator, id, true, &info), TA_OUT_OF_MEMORY);
    CHECK(strstr(info.why, "budget"));
    CHECK_EQ(crowd.made, 0);
    good(&w, 0);
    const ta_spill_config spill = {.host_bytes = bytes};
    CHECK_EQ(ta_set_spill(w.allocator, &spill), TA_OK);
    ta_sim_set_host_memory(w.sim, bytes + bytes / 16); /* a sixteenth is the machine's */
    CHECK_EQ(ta_region_sleep(w.allocator, id, true, &info), TA_NO_HOST_MEMORY);
    CHECK(strstr(info.why, "machine"));
    CHECK_EQ(crowd.made, 0);
    good(&w, 0);
    ta_sim_set_host_memory(w.sim, 2 * bytes);
    CHECK_EQ(ta_region_sleep(w.allocator, id, true, &info), TA_OK);
    good(&w, bytes);
    world_close(&w);
}

/* S23: pinning fails after k pages, in whichever thread. */
TEST(a_failure_in_one_thread_takes_all_back)
{
    static const ta_sim_call calls[] = {TA_SIM_CALL_create, TA_SIM_CALL_map,
                                        TA_SIM_CALL_set_access, TA_SIM_CALL_enter,
                                        TA_SIM_CALL_reserve};
    enum { PAGES = 24 };
    world w;
    void *at[PAGES];
    ta_sleep_info info;
    open_crowd(&w, 1, 1 * GiB, 1);
    const ta_region_id id = fill(&w, "weights", 0, at, PAGES);
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++)
        for (uint64_t k = 1; k < 60; k++)
            for (uint64_t times = 0; times < 3; times += 2) {
                ta_sim_fail(w.sim, calls[c], k, times, c ? TA_DRIVER : TA_OUT_OF_MEMORY);
                const ta_status status = ta_region_sleep(w.allocator, id, true, &info);
                ta_sim_fail(w.sim, calls[c], 0, 0, TA_OK);
                if (status) {
                    CHECK(info.why[0]);
                    good(&w, 0);
                    CHECK_EQ(ta_region_sleep(w.allocator, id, true, &info), TA_OK);
                }
                good(&w, PAGES * 32 * MiB);
                if (ta_test_failed)
                    TA_TEST_FAIL("  call %d, k %d, times %d", (int)c, (int)k, (int)times);
                CHECK_EQ(ta_region_wake(w.allocator, id, NULL), TA_OK);
                CHECK_EQ(ta_host_trim(w.allocator, NULL), TA_OK);
                good(&w, 0);
                if (!status && !times) k = 60;
            }
    world_close(&w);
}

typedef struct sleeper {
    world *w;
    ta_region_id id;
    ta_status status;
} sleeper;

static void *go_to_sleep(void *context)
{
    sleeper *s = context;
    s->status = ta_region_sleep(s->w->allocator, s->id, true, NULL);
    return NULL;
}

/* Two at once, and the budget has room for one: exactly one sleeps. */
TEST(two_that_pin_at_once_share_the_budget)
{
    world w;
    void *at[2][20];
    pthread_t thread[2];
    const uint64_t bytes = 20 * 32 * MiB;
    open_crowd(&w, 2, bytes, 2);
    sleeper s[2] = {{&w, 0, TA_OK}, {&w, 0, TA_OK}};
    for (int d = 0; d < 2; d++) s[d].id = fill(&w, d ? "b" : "a", d, at[d], 20);
    for (int d = 0; d < 2; d++)
        CHECK_EQ(pthread_create(&thread[d], NULL, go_to_sleep, &s[d]), 0);
    for (int d = 0; d < 2; d++) pthread_join(thread[d], NULL);
    CHECK((s[0].status == TA_OK) != (s[1].status == TA_OK));
    CHECK_EQ(s[0].status + s[1].status, TA_OUT_OF_MEMORY);
    good(&w, bytes);
    world_close(&w);
}

/* A child that is forked while others pin makes nothing, and ends. */
TEST(a_forked_child_pins_nothing)
{
    world w;
    void *at[20];
    int code = -1;
    open_crowd(&w, 1, 1 * GiB, 1);
    const ta_region_id id = fill(&w, "weights", 0, at, 20);
    const pid_t child = fork();
    if (!child) {
        const bool good = ta_region_sleep(w.allocator, id, true, NULL) == TA_FORKED &&
                          ta_step(w.allocator, -1, NULL) == TA_FORKED && !crowd.made;
        _exit(good ? 0 : 1);
    }
    CHECK_EQ(waitpid(child, &code, 0), child);
    CHECK_EQ(code, 0);
    CHECK_EQ(ta_region_sleep(w.allocator, id, true, NULL), TA_OK);
    good(&w, 20 * 32 * MiB);
    world_close(&w);
}

TEST_MAIN()
