/* test_cases_safe.c - what users of GPU memory ran into, second half: never crash, never lie
 * (S11 to S18, S28). Pages are real here where a test looks at bytes. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "world.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SLOWLY 1
#else
#define SLOWLY 0
#endif

static ta_sim_config machine(int devices, uint64_t memory, bool backed)
{
    return (ta_sim_config){
        .devices = devices, .memory = memory, .seed = 1, .no_backing = !backed};
}

static bool empty(world *w, int device)
{
    ta_stats s = world_stats(w, device);
    return s.allocations[TA_POOL_ALL].current == 0 &&
           s.allocated[TA_POOL_ALL].current == 0 &&
           s.requested[TA_POOL_ALL].current == 0 && s.active[TA_POOL_ALL].current == 0;
}

/* --- S11: pytorch#159892 -------------------------------------------------------------- */
typedef struct errand {
    ta_allocator *allocator;
    void *at;
    ta_status status;
} errand;
static void *free_there(void *context)
{
    errand *e = context;
    e->status = ta_free(e->allocator, e->at);
    return NULL;
}
TEST(S11)
{
    world w;
    ta_sim_config config = machine(1, GiB, true);
    world_open(&w, &config, 1);
    void *at = &w;
    CHECK_EQ(ta_alloc(w.allocator, 0, 0, NULL, &at, NULL), TA_OK);
    CHECK(at == NULL);
    CHECK_EQ(ta_free(w.allocator, NULL), TA_OK);
    CHECK(empty(&w, 0));
    CHECK_EQ(world_stats(&w, 0).allocations[TA_POOL_ALL].increased, 0);
    CHECK_EQ(ta_alloc(w.allocator, 3 * MiB, 0, NULL, &at, NULL), TA_OK);
    errand e = {w.allocator, at, TA_DRIVER};
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, free_there, &e), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(e.status, TA_OK);
    CHECK(empty(&w, 0));
    /* Twice, or where no block starts: refused, nothing changed. */
    CHECK_EQ(ta_free(w.allocator, at), TA_INVALID);
    CHECK_EQ(ta_free(w.allocator, &w), TA_INVALID);
    CHECK(empty(&w, 0));
    world_close(&w);
}

/* --- S12: pytorch#188008 -------------------------------------------------------------- */
static void fail_at(ta_sim_call call, uint64_t k, ta_status how, bool *reached)
{
    world w;
    ta_sim_config config = machine(1, GiB, true);
    const uint64_t size = 40 * MiB;
    held h;
    world_open(&w, &config, 1);
    /* Looks at the device first, so that only what brings pages is counted. */
    CHECK_EQ(world_alloc(&w, &h, 512, 0, NULL), TA_OK);
    CHECK_EQ(ta_free(w.allocator, h.at), TA_OK);
    const ta_stats before = world_stats(&w, 0);
    const uint64_t used = ta_sim_used(w.sim, 0, false);
    const uint64_t calls = ta_sim_calls(w.sim, call);
    ta_sim_fail(w.sim, call, k, 0, how);
    const ta_status status = world_alloc(&w, &h, size, 0, NULL);
    ta_sim_fail(w.sim, call, 0, 0, TA_OK);
    *reached = ta_sim_calls(w.sim, call) - calls >= k;
    if (status != TA_OK) {
        CHECK(*reached);
        CHECK(h.at == NULL);
        const ta_stats after = world_stats(&w, 0);
        CHECK_EQ(after.allocated[TA_POOL_ALL].current, 0);
        /* Pages made before the failure may be kept ready: held and counted, not lost. */
        CHECK_EQ(ta_sim_used(w.sim, 0, false) - used,
                 after.reserved.current - before.reserved.current);
        world_check(&w);
        CHECK(!ta_test_failed);
    }
    held one;
    CHECK_EQ(world_alloc(&w, &one, MiB, 0, NULL), TA_OK);
    one.serial = k;
    world_write(&one);
    CHECK(world_kept(&one));
    CHECK_EQ(ta_free(w.allocator, one.at), TA_OK);
    if (status == TA_OK) CHECK_EQ(ta_free(w.allocator, h.at), TA_OK);
    /* The same request again. */
    CHECK_EQ(world_alloc(&w, &h, size, 0, NULL), TA_OK);
    h.serial = 77;
    world_write(&h);
    CHECK(world_kept(&h));
    CHECK_EQ(ta_free(w.allocator, h.at), TA_OK);
    CHECK(empty(&w, 0));
    world_close(&w);
}
TEST(S12)
{
    static const ta_sim_call calls[3] = {TA_SIM_CALL_create, TA_SIM_CALL_map,
                                         TA_SIM_CALL_set_access};
    static const ta_status how[2] = {TA_OUT_OF_MEMORY, TA_DRIVER};
    for (int c = 0; c < 3; c++) {
        for (int s = 0; s < 2; s++) {
            uint64_t k = 0;
            for (bool reached = true; reached && !ta_test_failed;)
                fail_at(calls[c], ++k, how[s], &reached);
            if (ta_test_failed)
                TA_TEST_FAIL("  at %s %llu, status %d", ta_sim_call_name(calls[c]),
                             (unsigned long long)k, (int)how[s]);
            CHECK(k > 1); /* at least one call of the kind was made, and failed */
        }
    }
}

/* --- S13: rmm#1405 -------------------------------------------------------------------- */
TEST(S13)
{
    world w;
    ta_sim_config config = machine(2, GiB, true);
    held zero, one;
    uintptr_t saved[2];
    world_open(&w, &config, 1);
    CHECK_EQ(world_alloc(&w, &zero, 8 * MiB, 0, NULL), TA_OK);
    CHECK_EQ(world_alloc(&w, &one, 24 * MiB, 1, NULL), TA_OK);
    CHECK_EQ(world_stats(&w, 0).allocated[TA_POOL_ALL].current, 8 * MiB);
    CHECK_EQ(world_stats(&w, 1).allocated[TA_POOL_ALL].current, 24 * MiB);
    CHECK_EQ(w.driver->enter(w.driver->self, 0, saved), TA_OK);
    CHECK_EQ(ta_free(w.allocator, one.at), TA_OK);
    w.driver->leave(w.driver->self, 0, saved);
    CHECK_EQ(world_stats(&w, 0).allocated[TA_POOL_ALL].current, 8 * MiB);
    CHECK(empty(&w, 1));
    CHECK_EQ(ta_free(w.allocator, zero.at), TA_OK);
    CHECK(empty(&w, 0));
    for (int d = 0; d < 2; d++)
        CHECK_EQ(ta_sim_used(w.sim, d, false), world_stats(&w, d).reserved.current);
    world_close(&w);
}

/* --- S14: pytorch#196258, TensorRT-LLM#11641 -------------------------------------------- */
TEST(S14)
{
    world w;
    ta_sim_config config = machine(2, GiB, true);
    held busy, other;
    uint64_t released = 1;
    world_open(&w, &config, 3);
    CHECK_EQ(world_alloc(&w, &other, 32 * MiB, 1, w.stream[1][1]), TA_OK);
    CHECK_EQ(world_alloc(&w, &busy, 64 * MiB, 0, w.stream[0][1]), TA_OK);
    world_use(&w, &busy, w.stream[0][1], true, 5e5);
    world_order(&w, 0, w.stream[0][1], w.stream[0][2]);
    world_use(&w, &busy, w.stream[0][2], false, 5e5);
    CHECK_EQ(ta_record_stream(w.allocator, busy.at, w.stream[0][2]), TA_OK);
    CHECK_EQ(ta_free(w.allocator, busy.at), TA_OK);
    /* Another device's trim is none of this one's business. */
    CHECK_EQ(ta_trim(w.allocator, 1, &released), TA_OK);
    CHECK_EQ(ta_sim_used(w.sim, 0, false), 64 * MiB);
    CHECK(ta_sim_now_us(w.sim) < 1e6);
    CHECK_EQ(ta_trim(w.allocator, 0, &released), TA_OK);
    CHECK_EQ(released, 64 * MiB);
    CHECK(ta_sim_now_us(w.sim) >= 1e6);
    CHECK_EQ(ta_sim_used(w.sim, 0, false), 0);
    CHECK_EQ(world_stats(&w, 0).reserved.current, 0);
    CHECK_EQ(ta_sim_used(w.sim, 1, false), 32 * MiB);
    CHECK_EQ(ta_free(w.allocator, other.at), TA_OK);
    CHECK_EQ(ta_trim(w.allocator, -1, &released), TA_OK);
    CHECK_EQ(released, 32 * MiB);
    world_close(&w);
}

/* --- S15: onnxruntime#12289 ------------------------------------------------------------- */
TEST(S15)
{
    world w;
    ta_sim_config config = machine(1, 16 * GiB, false);
    static void *at[10000];
    world_open(&w, &config, 1);
    uint64_t random = 12289, bytes = 0;
    for (int i = 0; i < 10000; i++) {
        const uint64_t size = world_between(&random, 1, 1000000);
        CHECK_EQ(ta_alloc(w.allocator, size, 0, NULL, &at[i], NULL), TA_OK);
        CHECK_EQ((uintptr_t)at[i] % 512, 0);
        bytes += world_round(size, TA_GRANULE);
    }
    CHECK_EQ(world_stats(&w, 0).allocated[TA_POOL_ALL].current, bytes);
    for (int i = 0; i < 10000; i++) CHECK_EQ(ta_free(w.allocator, at[i]), TA_OK);
    CHECK(empty(&w, 0));
    world_close(&w);
}

/* --- S16: pytorch#40403 ------------------------------------------------------------------ */
typedef struct busy_thread {
    world *w;
    atomic_bool *stop;
    atomic_int rounds;
    ta_status failed;
} busy_thread;
static void *keep_busy(void *context)
{
    busy_thread *b = context;
    uint64_t random = 40403;
    while (!*b->stop) {
        void *at;
        const uint64_t size = world_between(&random, 1, 12 * MiB);
        b->failed = ta_alloc(b->w->allocator, size, 0, b->w->stream[0][1], &at, NULL);
        if (!b->failed) b->failed = ta_free(b->w->allocator, at);
        if (b->failed) break;
        b->rounds++;
        if (b->rounds % 64 == 0) ta_trim(b->w->allocator, 0, NULL);
    }
    return NULL;
}
/* What a child sees: every call says so, frees do no harm. */
static int child(world *w, held *h)
{
    void *at = w;
    ta_stats stats;
    uint64_t released = 7;
    int wrong = 0;
    wrong += ta_free(w->allocator, h->at) != TA_FORKED;
    wrong +=
        ta_alloc(w->allocator, 4 * MiB, 0, NULL, &at, NULL) != TA_FORKED || at != NULL;
    wrong += ta_record_stream(w->allocator, h->at, w->stream[0][1]) != TA_FORKED;
    wrong += ta_trim(w->allocator, -1, &released) != TA_FORKED;
    wrong += ta_set_limit(w->allocator, 0, TA_LIMIT_API, 0) != TA_FORKED;
    wrong += ta_get_stats(w->allocator, 0, &stats) != TA_FORKED;
    wrong += ta_mark(w->allocator, "child") != TA_FORKED;
    return wrong;
}
TEST(S16)
{
    world w;
    ta_sim_config config = machine(1, GiB, true);
    atomic_bool stop = false;
    held h;
    world_open(&w, &config, 2);
    CHECK_EQ(world_alloc(&w, &h, 20 * MiB, 0, NULL), TA_OK);
    h.serial = 40403;
    world_write(&h);
    busy_thread b = {.w = &w, .stop = &stop};
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, keep_busy, &b), 0);
    int status = 0, bad = 0;
    for (int i = 0; i < 10000 && !b.rounds; i++) usleep(1000); /* it is busy by then */
    for (int i = 0; i < 20; i++) {
        const pid_t pid = fork();
        if (pid == 0) {
            alarm(20); /* a deadlock ends as a signal */
            _exit(child(&w, &h));
        }
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) bad++;
    }
    stop = true;
    CHECK_EQ(pthread_join(thread, NULL), 0);
    if (bad) TA_TEST_FAIL("%d children of 20 went wrong, the last with %d", bad, status);
    CHECK_EQ(b.failed, TA_OK);
    CHECK(b.rounds > 0);
    CHECK(world_kept(&h));
    CHECK_EQ(world_stats(&w, 0).allocated[TA_POOL_ALL].current, 20 * MiB);
    CHECK_EQ(ta_free(w.allocator, h.at), TA_OK);
    world_close(&w);
}

/* --- S17: pytorch#186213 ----------------------------------------------------------------- */
TEST(S17)
{
    world w;
    const uint64_t memory = 8 * GiB;
    ta_sim_config config = machine(1, memory, false);
    world_open(&w, &config, 64);
    uint64_t random = 186213;
    for (int i = 0; i < 1000 && !ta_test_failed; i++) {
        held h;
        const uint64_t size = world_between(&random, 100 * MiB, 3 * GiB);
        CHECK_EQ(world_alloc(&w, &h, size, 0, w.stream[0][i % 64]), TA_OK);
        world_use(&w, &h, h.stream, true, 50);
        CHECK_EQ(ta_free(w.allocator, h.at), TA_OK);
        CHECK(ta_sim_reserved_addresses(w.sim) <= 8 * memory);
    }
    ta_stats stats = world_stats(&w, 0);
    CHECK(stats.addresses.peak <= 8 * memory);
    CHECK_EQ(stats.addresses.current, ta_sim_reserved_addresses(w.sim));
    CHECK_EQ(stats.oom_count, 0);
    world_close(&w);
}

/* --- S18: HAMi-core#1003 ------------------------------------------------------------------ */
TEST(S18)
{
    world w;
    ta_sim_config config = machine(1, 8 * GiB, true);
    const uint64_t cap = GiB;
    world_open(&w, &config, 3);
    CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_API, cap), TA_OK);
    held small[200], large[4], big, all;
    for (int i = 0; i < 200; i++)
        CHECK_EQ(world_alloc(&w, &small[i], 512 * KiB, 0, w.stream[0][1]), TA_OK);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(world_alloc(&w, &large[i], 200 * MiB, 0, w.stream[0][1]), TA_OK);
    for (int i = 0; i < 200; i++) CHECK_EQ(ta_free(w.allocator, small[i].at), TA_OK);
    for (int i = 0; i < 4; i++) CHECK_EQ(ta_free(w.allocator, large[i].at), TA_OK);
    CHECK_EQ(world_alloc(&w, &big, 1000 * MiB, 0, w.stream[0][2]), TA_OK);
    CHECK_EQ(ta_free(w.allocator, big.at), TA_OK);
    /* The cap is inclusive: all of it, to the byte. */
    CHECK_EQ(world_alloc(&w, &all, cap, 0, w.stream[0][0]), TA_OK);
    ta_stats stats = world_stats(&w, 0);
    CHECK_EQ(stats.reserved.peak, cap);
    CHECK_EQ(stats.oom_count, 0);
    CHECK(stats.retry_count >= 1);
    /* And no more than that. */
    ta_oom oom;
    void *at = &w;
    CHECK_EQ(ta_alloc(w.allocator, 1, 0, NULL, &at, &oom), TA_OUT_OF_MEMORY);
    CHECK(at == NULL);
    CHECK_EQ(oom.requested, 1);
    CHECK_EQ(oom.limit, cap);
    CHECK_EQ(oom.limit_source, TA_LIMIT_API);
    CHECK_EQ(oom.reserved, cap);
    CHECK_EQ(oom.live, cap);
    CHECK_EQ(oom.idle, 0);
    CHECK_EQ(oom.largest[0], cap);
    CHECK_EQ(world_stats(&w, 0).oom_count, 1);
    CHECK_EQ(ta_free(w.allocator, all.at), TA_OK);
    world_close(&w);
}

/* --- S28: HAMi#1181 ------------------------------------------------------------------------ */
TEST(S28)
{
    world w;
    ta_sim_config config = machine(1, 2 * GiB, false);
    config.free_calls = true;
    enum { SLOTS = 256 };
    static held slot[SLOTS];
    memset(slot, 0, sizeof slot);
    const int steps = SLOWLY ? 100000 : 1000000;
    uint64_t random = 1181, live = 0, blocks = 0, refused = 0;
    world_open(&w, &config, 4);
    CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_API, GiB), TA_OK);
    for (int i = 0; i < steps; i++) {
        held *h = &slot[world_random(&random) % SLOTS];
        if (world_random(&random) % 8 == 0)
            ta_sim_fail(w.sim, TA_SIM_CALL_COUNT, world_between(&random, 1, 20),
                        world_random(&random) % 3, TA_DRIVER);
        if (h->at) {
            const ta_status status = ta_free(w.allocator, h->at);
            if (status != TA_OK) TA_TEST_FAIL("step %d: free gives %d", i, (int)status);
            live -= world_round(h->size, TA_GRANULE);
            blocks--;
            h->at = NULL;
        } else {
            const unsigned shift = (unsigned)(world_random(&random) % 25);
            const uint64_t size = 1 + world_random(&random) % ((uint64_t)1 << shift);
            ta_stream stream = w.stream[0][world_random(&random) % 4];
            if (world_alloc(&w, h, size, 0, stream) == TA_OK) {
                live += world_round(size, TA_GRANULE);
                blocks++;
            } else {
                refused++;
            }
        }
        if (i % 64) continue;
        ta_stats stats = world_stats(&w, 0);
        if (stats.allocated[TA_POOL_ALL].current != live ||
            stats.allocations[TA_POOL_ALL].current != blocks)
            TA_TEST_FAIL("step %d: usage %llu in %llu blocks, live %llu in %llu", i,
                         (unsigned long long)stats.allocated[TA_POOL_ALL].current,
                         (unsigned long long)stats.allocations[TA_POOL_ALL].current,
                         (unsigned long long)live, (unsigned long long)blocks);
        CHECK(stats.reserved.current <= GiB);
    }
    ta_sim_fail(w.sim, TA_SIM_CALL_COUNT, 0, 0, TA_OK);
    CHECK(refused > 0); /* failures were felt */
    CHECK(refused < (uint64_t)steps / 20);
    for (int s = 0; s < SLOTS; s++)
        if (slot[s].at) CHECK_EQ(ta_free(w.allocator, slot[s].at), TA_OK);
    CHECK(empty(&w, 0));
    CHECK_EQ(ta_trim(w.allocator, -1, NULL), TA_OK);
    CHECK_EQ(world_stats(&w, 0).reserved.current, 0);
    CHECK_EQ(ta_sim_used(w.sim, 0, false), 0);
    world_close(&w);
}

TEST_MAIN()
