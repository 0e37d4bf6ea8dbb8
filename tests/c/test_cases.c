/* test_cases.c - what users of GPU memory ran into, each as a small test with the right
 * value in it: packing and reuse (S1 to S10). test_cases_safe.c has the others. The numbers
 * of projects' issues stand beside each. Single-threaded; sizes are those of the reports, on
 * a machine whose addresses are numbers only. */
#include "world.h"

static ta_sim_config machine(uint64_t memory)
{
    return (ta_sim_config){.devices = 1, .memory = memory, .seed = 1, .no_backing = true};
}

/* Allocates, and queues work that writes it, in the time that takes at 2 TB/s. */
static void take(world *w, held *h, uint64_t size, int stream)
{
    CHECK_EQ(world_alloc(w, h, size, 0, w->stream[0][stream]), TA_OK);
    world_use(w, h, h->stream, true, 3 + (double)size / 2e6);
}

static void give(world *w, held *h)
{
    CHECK_EQ(ta_free(w->allocator, h->at), TA_OK);
    h->at = NULL;
}

/* pytorch#35901 */
TEST(S1)
{
    world w;
    ta_sim_config config = machine((uint64_t)(21.6 * (double)GiB));
    const uint64_t big = (uint64_t)(10.84 * (double)GiB);
    static const uint64_t sizes[4] = {16 * MiB, 18 * MiB, 12 * MiB, 18 * MiB};
    held large, kept[64] = {0};
    world_open(&w, &config, 1);
    take(&w, &large, big, 0);
    give(&w, &large);
    for (int i = 0; i < 64 * 40 && !ta_test_failed; i++) {
        held *h = &kept[i % 64];
        if (h->at) give(&w, h);
        take(&w, h, sizes[i % 4], 0);
    }
    take(&w, &large, big, 0);
    CHECK_EQ(world_stats(&w, 0).oom_count, 0);
    world_close(&w);
}

/* flashlight#180 */
TEST(S2)
{
    world w;
    ta_sim_config config = machine(12 * GiB);
    held ten, five, six;
    world_open(&w, &config, 1);
    take(&w, &ten, 10 * GiB, 0);
    give(&w, &ten);
    take(&w, &five, 5 * GiB, 0);
    take(&w, &six, 6 * GiB, 0);
    CHECK_EQ(world_stats(&w, 0).allocated[TA_POOL_ALL].current, 11 * GiB);
    world_close(&w);
}

/* --- S3 and S9: training with varying lengths ---------------------------------------- */
/* pytorch#31252, timm#80. Without an allocator only adds up what is live. */
typedef struct training {
    world *w;
    uint64_t live, peak;
    int refused;
} training;

static void train_take(training *t, held *h, uint64_t size)
{
    t->live += world_round(size, TA_GRANULE);
    if (t->live > t->peak) t->peak = t->live;
    h->size = size;
    if (!t->w) return;
    if (world_alloc(t->w, h, size, 0, NULL) != TA_OK)
        t->refused++;
    else
        world_use(t->w, h, NULL, true, 200);
}
static void train_give(training *t, held *h)
{
    t->live -= world_round(h->size, TA_GRANULE);
    if (t->w) ta_free(t->w->allocator, h->at);
}

static void train(training *t)
{
    static held parameters[60], state[120];
    uint64_t random = 31252;
    for (int i = 0; i < 60; i++) train_take(t, &parameters[i], 50 * MiB);
    for (int step = 0; step < 300 && !t->refused; step++) {
        held layer[48], logits;
        const uint64_t length = world_between(&random, 64, 512);
        for (int i = 0; i < 24; i++) {
            train_take(t, &layer[2 * i], 32 * length * 1024 * 4);
            train_take(t, &layer[2 * i + 1], 32 * 16 * length * length * 2);
        }
        if (step % 20 == 19) {
            train_take(t, &logits, (uint64_t)64 * 512 * 50257 * 2);
            train_give(t, &logits);
        }
        for (int i = 47; i >= 0; i--) train_give(t, &layer[i]);
        if (step == 3)
            for (int i = 0; i < 120; i++) train_take(t, &state[i], 50 * MiB);
    }
}

/* Runs it at a cap of `ratio` times the live peak. */
static void train_capped(world *w, double ratio)
{
    training dry = {0};
    train(&dry);
    ta_sim_config config = machine(64 * GiB);
    world_open(w, &config, 1);
    const uint64_t cap = (uint64_t)((double)dry.peak * ratio);
    CHECK_EQ(ta_set_limit(w->allocator, -1, TA_LIMIT_API, cap), TA_OK);
    training t = {.w = w};
    train(&t);
    CHECK_EQ(t.refused, 0);
    ta_stats stats = world_stats(w, 0);
    CHECK_EQ(stats.oom_count, 0);
    CHECK_EQ(stats.allocated[TA_POOL_ALL].peak, dry.peak);
    CHECK(stats.reserved.peak <= cap);
}

TEST(S3)
{
    world w;
    train_capped(&w, 1.03);
    if (!ta_test_failed) world_close(&w);
}

/* composer#1998: what a tight cap costs is bounded, and seen in the numbers, not printed. */
static void costs(double ratio, double moves_a_step, double waits_a_step)
{
    world w;
    train_capped(&w, ratio);
    if (ta_test_failed) return;
    ta_stats stats = world_stats(&w, 0);
    printf("  S9: cap %.2f: %llu page moves, %llu waits in 300 steps\n", ratio,
           (unsigned long long)stats.page_moves, (unsigned long long)stats.waits);
    CHECK((double)stats.page_moves <= 300 * moves_a_step);
    CHECK((double)stats.waits <= 300 * waits_a_step);
    world_close(&w);
}
TEST(S9)
{
    costs(1.02, 10, 1);
    costs(1.05, 5, 0.5);
    costs(1.10, 2, 0.2);
}

/* fastsafetensors#104 */
TEST(S4)
{
    world w;
    ta_sim_config config = machine(24 * GiB);
    uint64_t random = 104, largest = 0, weights = 0;
    world_open(&w, &config, 1);
    for (int i = 0; i < 100 && !ta_test_failed; i++) {
        held chunk, weight;
        const uint64_t size = world_between(&random, 40 * MiB, 256 * MiB);
        take(&w, &chunk, size, 0);
        take(&w, &weight, size / 3, 0);
        give(&w, &chunk);
        weights += world_round(size / 3, TA_GRANULE);
        if (size > largest) largest = size;
    }
    const double reserved = (double)world_stats(&w, 0).reserved.peak;
    if (reserved > 1.02 * (double)(weights + largest))
        TA_TEST_FAIL("reserved %.4f of weights and largest",
                     reserved / (double)(weights + largest));
    world_close(&w);
}

/* pytorch#189504 */
TEST(S5)
{
    world w;
    ta_sim_config config = machine(1 * GiB);
    held kept, x, again;
    world_open(&w, &config, 3);
    take(&w, &kept, 768 * MiB, 1);
    take(&w, &x, 256 * MiB, 1);
    world_order(&w, 0, w.stream[0][1], w.stream[0][2]);
    world_use(&w, &x, w.stream[0][2], false, 1e6);
    CHECK_EQ(ta_record_stream(w.allocator, x.at, w.stream[0][2]), TA_OK);
    give(&w, &x);
    take(&w, &again, 256 * MiB, 1);
    CHECK(ta_sim_now_us(w.sim) >= 1e6);
    CHECK_EQ(world_stats(&w, 0).oom_count, 0);
    CHECK(world_stats(&w, 0).waits >= 1);
    world_close(&w);
}

/* pytorch#124260: a producer that runs ahead of a slow consumer. */
static void run_ahead(bool capped)
{
    world w;
    ta_sim_config config = machine(16 * GiB);
    const uint64_t block = 64 * MiB;
    world_open(&w, &config, 3);
    if (capped) CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_API, 5 * block), TA_OK);
    for (int i = 0; i < 50 && !ta_test_failed; i++) {
        held h;
        CHECK_EQ(world_alloc(&w, &h, block, 0, w.stream[0][1]), TA_OK);
        world_use(&w, &h, w.stream[0][1], true, 100);
        world_order(&w, 0, w.stream[0][1], w.stream[0][2]);
        world_use(&w, &h, w.stream[0][2], false, 4000);
        CHECK_EQ(ta_record_stream(w.allocator, h.at, w.stream[0][2]), TA_OK);
        give(&w, &h);
        ta_sim_advance_us(w.sim, 1000);
        ta_stats stats = world_stats(&w, 0);
        /* In use: what the slow stream has not passed. One use done every 4 rounds. */
        const uint64_t in_use = (uint64_t)(i + 1 - i / 4) * block;
        if (stats.reserved.current > in_use + 5 * block)
            TA_TEST_FAIL("round %d: reserved %llu MiB, in use %llu", i,
                         (unsigned long long)(stats.reserved.current / MiB),
                         (unsigned long long)(in_use / MiB));
    }
    ta_stats stats = world_stats(&w, 0);
    CHECK_EQ(stats.oom_count, 0);
    if (capped) CHECK(stats.reserved.peak <= 5 * block && stats.waits >= 1);
    world_close(&w);
}
TEST(S6)
{
    run_ahead(true);
    run_ahead(false);
}

/* onnxruntime#12920 */
TEST(S7)
{
    world w;
    ta_sim_config config = machine(16 * GiB);
    world_open(&w, &config, 9);
    CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_API, 1100 * MiB), TA_OK);
    for (int i = 0; i < 32 && !ta_test_failed; i++) {
        held h;
        CHECK_EQ(world_alloc(&w, &h, GiB, 0, w.stream[0][1 + i % 8]), TA_OK);
        world_use(&w, &h, h.stream, true, 50000);
        give(&w, &h);
    }
    ta_stats stats = world_stats(&w, 0);
    CHECK_EQ(stats.oom_count, 0);
    CHECK(stats.reserved.peak <= 1100 * MiB);
    CHECK(stats.waits >= 7);
    world_close(&w);
}

/* crossfit#18: attention over a rising, then a falling length, and the other way round. */
static void lengths(bool falling_first)
{
    world w;
    ta_sim_config config = machine(64 * GiB);
    world_open(&w, &config, 1);
    for (int i = 0; i < 64 && !ta_test_failed; i++) {
        const int rung = i < 32 ? i : 63 - i;
        const uint64_t s = (uint64_t)(falling_first ? 32 - rung : rung + 1) * 16;
        held h[3];
        take(&w, &h[0], 512 * 12 * s * s * 2, 0);
        take(&w, &h[1], 512 * s * 1536 * 4, 0);
        take(&w, &h[2], 512 * s * 384 * 4, 0);
        for (int k = 0; k < 3; k++) give(&w, &h[k]);
        ta_stats stats = world_stats(&w, 0);
        const double peak = (double)stats.allocated[TA_POOL_ALL].peak;
        if ((double)stats.reserved.peak > 1.1 * peak + (double)stats.page_bytes)
            TA_TEST_FAIL("length %llu: reserved %.3f of the live peak",
                         (unsigned long long)s, (double)stats.reserved.peak / peak);
    }
    world_close(&w);
}
TEST(S8)
{
    lengths(false);
    lengths(true);
}

/* vllm#48680: each weight is replaced by a slightly larger one. `slack` is what the policy
 * may reserve beyond what is live, over it. */
static void replace_weights(const ta_config *policy, double slack)
{
    world w;
    ta_sim_config config = machine(24 * GiB);
    const uint64_t weight = 100 * MiB, larger = 103 * MiB;
    held old[48], new[48];
    world_open_with(&w, &config, 1, policy);
    for (int i = 0; i < 48; i++) take(&w, &old[i], weight, 0);
    for (int i = 0; i < 48 && !ta_test_failed; i++) {
        take(&w, &new[i], larger, 0);
        CHECK_EQ(ta_sim_copy(w.sim, 0, NULL, (uint64_t)(uintptr_t) new[i].at,
                             (uint64_t)(uintptr_t)old[i].at, weight),
                 TA_OK);
        give(&w, &old[i]);
    }
    ta_stats stats = world_stats(&w, 0);
    const uint64_t live = stats.allocated[TA_POOL_ALL].peak;
    const double most = (double)(live + larger) + slack * (double)live;
    if ((double)stats.reserved.peak > most)
        TA_TEST_FAIL("reserved %llu MiB, live %llu MiB, slack %.2f",
                     (unsigned long long)(stats.reserved.peak / MiB),
                     (unsigned long long)(live / MiB), slack);
    world_close(&w);
}
TEST(S10)
{
    const ta_config tight = {.slack = 1.0};
    replace_weights(&tight, 0);
    replace_weights(NULL, 0.04);
}

TEST_MAIN()
