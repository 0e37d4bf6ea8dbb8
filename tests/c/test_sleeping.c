/* test_sleeping.c - whatever else happens while a region sleeps, or beside its going there. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spill_world.h"

enum { BLOCKS = 6 };

typedef struct bedroom {
    world w;
    ta_region_id id;
    held in[BLOCKS], out;
} bedroom;

/* A region of 4 MiB pages with six blocks of 3 MiB in it, and one of 5 MiB beside it. */
static void open_bedroom(bedroom *r, uint64_t cap, bool touch)
{
    const ta_region_config config = {.page_bytes = 4 * MiB, .touch_host = touch};
    memset(r, 0, sizeof *r);
    open_capped(&r->w, 256 * MiB, cap, 256 * MiB);
    const ta_spill_config spill = {.host_bytes = 256 * MiB};
    CHECK_EQ(ta_set_spill(r->w.allocator, &spill), TA_OK);
    CHECK_EQ(ta_region_open(r->w.allocator, "weights", &config, &r->id), TA_OK);
    bring(&r->w, &r->out, 5 * MiB);
    CHECK_EQ(ta_region_enter(r->w.allocator, r->id, NULL), TA_OK);
    for (int i = 0; i < BLOCKS; i++) bring(&r->w, &r->in[i], 3 * MiB);
    CHECK_EQ(ta_region_enter(r->w.allocator, 0, NULL), TA_OK);
}
static void go_to_sleep(bedroom *r)
{
    ta_sleep_info info;
    CHECK_EQ(ta_region_sleep(r->w.allocator, r->id, true, &info), TA_OK);
    good(&r->w);
}
static void wake(bedroom *r)
{
    ta_sleep_info info;
    CHECK_EQ(ta_region_wake(r->w.allocator, r->id, &info), TA_OK);
    kept(r->in, BLOCKS);
    kept(&r->out, 1);
    good(&r->w);
}
static void leave_bedroom(bedroom *r)
{
    if (ta_test_failed) return;
    for (int i = 0; i < BLOCKS; i++) drop(&r->w, &r->in[i]);
    drop(&r->w, &r->out);
    good(&r->w);
    world_close(&r->w);
}

/* Frees are counted at once; the memory behind goes at the next mark, wake or sleep. */
TEST(blocks_freed_in_their_sleep)
{
    bedroom r;
    ta_region_info info;
    for (int all = 0; all < 2; all++) {
        open_bedroom(&r, TA_NO_LIMIT, all);
        go_to_sleep(&r);
        const uint64_t spilled = world_stats(&r.w, 0).spilled.current;
        for (int i = 0; i < (all ? BLOCKS : 2); i++) drop(&r.w, &r.in[i]);
        good(&r.w);
        CHECK(world_stats(&r.w, 0).spilled.current < spilled);
        if (all) CHECK_EQ(world_stats(&r.w, 0).spilled.current, 0);
        CHECK_EQ(ta_region_get(r.w.allocator, r.id, &info), TA_OK);
        CHECK_EQ(info.blocks, all ? 0 : BLOCKS - 2);
        wake(&r);
        CHECK_EQ(ta_host_trim(r.w.allocator, NULL), TA_OK);
        CHECK_EQ(ta_sim_pinned(r.w.sim), 0);
        leave_bedroom(&r);
    }
}

typedef struct follower {
    bedroom *r;
    ta_status status;
    void *at;
} follower;
static void *allocate(void *context)
{
    follower *f = context;
    f->status = ta_alloc(f->r->w.allocator, 2 * MiB, 0, NULL, &f->at, NULL);
    return NULL;
}

TEST(nothing_is_allocated_in_a_sleeping_region)
{
    static const uint64_t sizes[] = {1, 512, 64 * KiB, 3 * MiB, 100 * MiB, 300 * MiB};
    bedroom r;
    ta_oom oom;
    pthread_t thread;
    open_bedroom(&r, TA_NO_LIMIT, false);
    go_to_sleep(&r);
    drop(&r.w, &r.in[0]); /* a hole with nothing under it */
    const uint64_t calls = map_calls(&r.w);
    CHECK_EQ(ta_region_enter(r.w.allocator, r.id, NULL), TA_OK);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *at = &r;
        CHECK_EQ(ta_alloc(r.w.allocator, sizes[i], 0, r.w.stream[0][i % 2], &at, &oom),
                 sizes[i] > 256 * MiB * 8 ? TA_OUT_OF_MEMORY : TA_ASLEEP);
        CHECK(!at);
        CHECK_EQ(oom.status, TA_ASLEEP);
    }
    follower f = {.r = &r}; /* follows its leader, as autograd's threads do */
    CHECK_EQ(pthread_create(&thread, NULL, allocate, &f), 0);
    pthread_join(thread, NULL);
    CHECK_EQ(f.status, TA_ASLEEP);
    CHECK(!f.at);
    CHECK_EQ(ta_region_enter(r.w.allocator, 0, NULL), TA_OK);
    CHECK_EQ(map_calls(&r.w), calls);
    good(&r.w);
    held other;
    bring(&r.w, &other, 3 * MiB); /* beside it goes on */
    drop(&r.w, &other);
    wake(&r);
    leave_bedroom(&r);
}

static bool same_stream(void *context, ta_stream stream) { return context == stream; }

/* A capture beside a sleeping region is as any: it is not broken, and nothing wakes in it. */
TEST(a_capture_while_it_sleeps)
{
    bedroom r;
    held h;
    void *context;
    ta_sim_graph *graph;
    ta_sleep_info info;
    const ta_pool_id pool = {0, 5};
    open_bedroom(&r, TA_NO_LIMIT, false);
    go_to_sleep(&r);
    const ta_stream stream = r.w.stream[0][1];
    CHECK_EQ(ta_pool_begin(r.w.allocator, 0, pool, same_stream, stream), TA_OK);
    CHECK_EQ(ta_sim_capture_begin(r.w.sim, 0, stream), TA_OK);
    CHECK_EQ(world_alloc(&r.w, &h, 6 * MiB, 0, stream), TA_OK);
    world_use(&r.w, &h, stream, true, -1);
    CHECK_EQ(ta_region_wake(r.w.allocator, r.id, &info), TA_BUSY);
    CHECK(strstr(info.why, "captured"));
    CHECK_EQ(ta_region_sleep(r.w.allocator, r.id, true, &info), TA_OK); /* it does */
    CHECK_EQ(ta_step(r.w.allocator, -1, NULL), TA_OK);
    CHECK_EQ(ta_sim_capture_status(r.w.sim, 0, stream), 1);
    good(&r.w);
    CHECK_EQ(ta_sim_capture_end(r.w.sim, 0, stream, &graph), TA_OK);
    CHECK_EQ(ta_pool_end(r.w.allocator, 0, pool, &context), TA_OK);
    drop(&r.w, &h);
    CHECK_EQ(ta_sim_graph_launch(r.w.sim, graph, 0, stream), TA_OK);
    wake(&r);
    CHECK_EQ(ta_sim_graph_launch(r.w.sim, graph, 0, stream), TA_OK);
    go_to_sleep(&r); /* after the replay, whose memory is not touched */
    ta_sim_graph_destroy(r.w.sim, graph);
    CHECK_EQ(ta_pool_release(r.w.allocator, 0, pool), TA_OK);
    wake(&r);
    leave_bedroom(&r);
}

TEST(caches_emptied_and_budgets_lowered_while_it_sleeps)
{
    bedroom r;
    uint64_t released;
    open_bedroom(&r, TA_NO_LIMIT, false);
    go_to_sleep(&r);
    const uint64_t pinned = ta_sim_pinned(r.w.sim);
    CHECK_EQ(ta_trim(r.w.allocator, -1, &released), TA_OK);
    CHECK_EQ(ta_host_trim(r.w.allocator, &released), TA_OK);
    CHECK_EQ(released, 0);
    CHECK_EQ(ta_sim_pinned(r.w.sim), pinned); /* what holds bytes stays */
    CHECK_EQ(ta_set_spill(r.w.allocator, NULL), TA_OK);
    CHECK_EQ(ta_sim_pinned(r.w.sim), pinned);
    wake(&r);
    CHECK_EQ(ta_sim_pinned(r.w.sim), 0); /* beyond the budget, and not in use any more */
    ta_sleep_info info;
    CHECK_EQ(ta_region_sleep(r.w.allocator, r.id, true, &info), TA_OUT_OF_MEMORY);
    CHECK(strstr(info.why, "budget"));
    good(&r.w);
    kept(r.in, BLOCKS);
    leave_bedroom(&r);
}

TEST(a_cap_lowered_while_it_sleeps)
{
    bedroom r;
    ta_sleep_info info;
    ta_region_info state;
    open_bedroom(&r, TA_NO_LIMIT, false);
    go_to_sleep(&r);
    CHECK_EQ(ta_set_limit(r.w.allocator, 0, TA_LIMIT_API, 16 * MiB), TA_OK);
    CHECK_EQ(ta_region_wake(r.w.allocator, r.id, &info), TA_OUT_OF_MEMORY);
    CHECK(strstr(info.why, "room"));
    CHECK_EQ(ta_region_get(r.w.allocator, r.id, &state), TA_OK);
    CHECK(state.asleep);
    CHECK_EQ(state.device, 0);
    CHECK(world_stats(&r.w, 0).reserved.current <= 16 * MiB);
    good(&r.w);
    CHECK_EQ(ta_set_limit(r.w.allocator, 0, TA_LIMIT_API, TA_NO_LIMIT), TA_OK);
    wake(&r);
    leave_bedroom(&r);
}

/* A child has nothing of it, and says so; the parent goes on. */
TEST(a_fork_while_it_sleeps)
{
    bedroom r;
    int code = -1;
    open_bedroom(&r, TA_NO_LIMIT, true);
    go_to_sleep(&r);
    const pid_t child = fork();
    if (!child) {
        ta_sleep_info info;
        ta_step_info step;
        void *at;
        ta_allocator *a = r.w.allocator;
        bool all = ta_region_wake(a, r.id, &info) == TA_FORKED &&
                   ta_region_sleep(a, r.id, true, &info) == TA_FORKED &&
                   ta_step(a, -1, &step) == TA_FORKED &&
                   ta_host_trim(a, NULL) == TA_FORKED &&
                   ta_alloc(a, 1000, 0, NULL, &at, NULL) == TA_FORKED &&
                   ta_free(a, r.in[0].at) == TA_FORKED;
        _exit(all ? 0 : 1);
    }
    CHECK_EQ(waitpid(child, &code, 0), child);
    CHECK_EQ(code, 0);
    wake(&r);
    leave_bedroom(&r);
}

/* The process ends: nothing is left of a region that sleeps, nor of one that was dropped. */
TEST(an_end_while_it_sleeps)
{
    for (int keep = 0; keep < 2; keep++)
        for (int touch = 0; touch < 2; touch++) {
            bedroom r;
            open_bedroom(&r, TA_NO_LIMIT, touch);
            CHECK_EQ(ta_region_sleep(r.w.allocator, r.id, keep, NULL), TA_OK);
            world_check(&r.w);
            ta_sim *sim = r.w.sim;
            ta_oracle_end(sim);
            ta_allocator_destroy(r.w.allocator);
            uint64_t count = 0;
            CHECK(!ta_sim_first_violation(sim, &count));
            CHECK_EQ(ta_sim_used(sim, 0, false), 0);
            CHECK_EQ(ta_sim_pinned(sim), 0);
            CHECK_EQ(ta_sim_reserved_addresses(sim), 0);
            ta_sim_destroy(sim);
        }
}

/* Work of other streams is waited for; a block freed in its sleep that they were recorded for
 * is free once they have passed. */
TEST(blocks_used_on_other_streams)
{
    bedroom r;
    ta_sleep_info info;
    open_bedroom(&r, TA_NO_LIMIT, false);
    const ta_stream other = r.w.stream[0][1];
    world_order(&r.w, 0, NULL, other);
    for (int i = 0; i < BLOCKS; i++) {
        CHECK_EQ(ta_record_stream(r.w.allocator, r.in[i].at, other), TA_OK);
        world_use(&r.w, &r.in[i], other, false, 1e5);
    }
    drop(&r.w, &r.in[0]); /* pending as it goes to sleep */
    CHECK_EQ(ta_region_sleep(r.w.allocator, r.id, true, &info), TA_OK);
    good(&r.w);
    drop(&r.w, &r.in[1]); /* recorded, and freed in its sleep */
    good(&r.w);
    wake(&r);
    CHECK_EQ(ta_trim(r.w.allocator, 0, NULL), TA_OK);
    CHECK_EQ(world_stats(&r.w, 0).active[0].current,
             world_stats(&r.w, 0).allocated[0].current);
    leave_bedroom(&r);
}

/* --- two threads ------------------------------------------------------------------------ */
typedef struct insomniac {
    bedroom *r;
    atomic_int *wrong, *moved;
    bool sleeps;
} insomniac;

static void *toss(void *context)
{
    insomniac *t = context;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    const int rounds = 60;
#else
    const int rounds = 200;
#endif
    for (int i = 0; i < rounds; i++) {
        ta_sleep_info info;
        const bool sleeps = t->sleeps ^ (i % 3 == 0);
        const ta_status status =
            sleeps ? ta_region_sleep(t->r->w.allocator, t->r->id, true, &info)
                   : ta_region_wake(t->r->w.allocator, t->r->id, &info);
        if (status != TA_OK && status != TA_BUSY) atomic_fetch_add(t->wrong, 1);
        if (status == TA_BUSY && !strstr(info.why, "another thread"))
            atomic_fetch_add(t->wrong, 1);
        if (!status && info.copied) atomic_fetch_add(t->moved, 1);
    }
    return NULL;
}

TEST(two_threads_send_it_to_sleep_and_wake_it)
{
    bedroom r;
    pthread_t thread[2];
    atomic_int wrong = 0, moved = 0;
    open_bedroom(&r, TA_NO_LIMIT, false);
    CHECK_EQ(ta_sim_settle(r.w.sim, 0), TA_OK);
    insomniac t[2] = {{&r, &wrong, &moved, true}, {&r, &wrong, &moved, false}};
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_create(&thread[i], NULL, toss, &t[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    CHECK_EQ(wrong, 0);
    CHECK(moved > 0);
    wake(&r);
    leave_bedroom(&r);
}

/* A mark, a trim and frees beside one that goes to sleep and wakes. */
static void *disturb(void *context)
{
    insomniac *t = context;
    for (int i = 0; i < 30; i++) {
        ta_step_info info;
        if (ta_step(t->r->w.allocator, -1, &info)) atomic_fetch_add(t->wrong, 1);
        if (ta_trim(t->r->w.allocator, -1, NULL)) atomic_fetch_add(t->wrong, 1);
        if (ta_host_trim(t->r->w.allocator, NULL)) atomic_fetch_add(t->wrong, 1);
        if (i % 5 == 0 && i / 5 < BLOCKS &&
            ta_free(t->r->w.allocator, t->r->in[i / 5].at))
            atomic_fetch_add(t->wrong, 1);
    }
    return NULL;
}

TEST(marks_and_frees_beside_one_that_sleeps)
{
    bedroom r;
    pthread_t thread[2];
    atomic_int wrong = 0, moved = 0;
    open_bedroom(&r, TA_NO_LIMIT, false);
    CHECK_EQ(ta_sim_settle(r.w.sim, 0), TA_OK);
    insomniac t[2] = {{&r, &wrong, &moved, true}, {&r, &wrong, &moved, false}};
    CHECK_EQ(pthread_create(&thread[0], NULL, toss, &t[0]), 0);
    CHECK_EQ(pthread_create(&thread[1], NULL, disturb, &t[1]), 0);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < BLOCKS; i++) r.in[i].at = NULL;
    CHECK_EQ(wrong, 0);
    CHECK_EQ(ta_region_wake(r.w.allocator, r.id, NULL), TA_OK);
    CHECK_EQ(world_stats(&r.w, 0).spilled.current, 0);
    leave_bedroom(&r);
}

/* A device that is first used while a region goes to sleep can capture afterwards. */
static struct {
    ta_driver driver;
    const ta_driver *real;
    world *w;
    held first;
    ta_status status;
} other;

static ta_status wait_and_use_another(void *self, int device)
{
    world *w = other.w;
    other.w = NULL;
    if (w) other.status = world_alloc(w, &other.first, MiB, 1, NULL);
    return other.real->device_wait(self, device);
}

static bool none(void *context, ta_stream stream)
{
    (void)context, (void)stream;
    return false;
}

TEST(a_device_first_used_meanwhile)
{
    const ta_sim_config config = {.devices = 2, .memory = GiB, .seed = 5};
    const ta_spill_config spill = {.host_bytes = 256 * MiB};
    const ta_pool_id pool = {1, 2};
    world w = {.devices = 2};
    held in;
    ta_region_id id;
    void *context;
    CHECK_EQ(ta_sim_create(&config, &w.sim), TA_OK);
    other.real = ta_sim_driver(w.sim);
    other.driver = *other.real;
    other.driver.device_wait = wait_and_use_another;
    CHECK_EQ(ta_allocator_create(&other.driver, NULL, &w.allocator), TA_OK);
    CHECK_EQ(ta_add_observer(w.allocator, ta_oracle_observe, w.sim), TA_OK);
    ta_oracle_allow_moves(w.sim, true);
    CHECK_EQ(ta_set_spill(w.allocator, &spill), TA_OK);
    CHECK_EQ(ta_region_open(w.allocator, "weights", NULL, &id), TA_OK);
    CHECK_EQ(ta_region_enter(w.allocator, id, NULL), TA_OK);
    bring(&w, &in, 3 * MiB);
    CHECK_EQ(ta_region_enter(w.allocator, 0, NULL), TA_OK);
    other.w = &w;
    CHECK_EQ(ta_region_sleep(w.allocator, id, true, NULL), TA_OK);
    CHECK(!other.w);
    CHECK_EQ(other.status, TA_OK);
    alarm(10); /* a wait for ever ends the program */
    CHECK_EQ(ta_pool_begin(w.allocator, 1, pool, none, NULL), TA_OK);
    alarm(0);
    CHECK_EQ(ta_pool_end(w.allocator, 1, pool, &context), TA_OK);
    CHECK_EQ(ta_pool_release(w.allocator, 1, pool), TA_OK);
    CHECK_EQ(ta_region_wake(w.allocator, id, NULL), TA_OK);
    kept(&in, 1);
    drop(&w, &in);
    drop(&w, &other.first);
    world_close(&w);
}

TEST_MAIN()
