/* test_spill_random.c - random sequences of allocs, frees, uses, steps, sleeps, wakes, caps,
 * budgets and failing driver calls, with the contents of every block checked. In every other
 * run device 0 has a cap that is shared with a neighbour in the ledger, who takes, gives back and
 * asks at random, while the cap itself rises and falls.
 *
 * One thread does all of it; then several allocate, use and free while one of them marks
 * steps and puts regions to sleep: launches are kept out meanwhile, as the interface asks,
 * allocs and frees are not. What must hold: bytes are what was written, books balance with
 * the machine's, the oracle sees no broken order, and in the end nothing is left.
 * TA_TEST_SEED=n runs one seed; TA_TEST_LONG many times as many steps: without, it is a million in
 * the plain build. */
#include <pthread.h>
#include <stdatomic.h>

#include "../../csrc/core/clock.h"
#include "../../csrc/core/ledger/ledger.h"
#include "share_world.h"

#if defined(__SANITIZE_THREAD__)
#define STEPS 1500
#define CROWDED 1500
#elif defined(__SANITIZE_ADDRESS__)
#define STEPS 4000
#define CROWDED 4000
#else
#define STEPS 160000 /* of one thread */
#define CROWDED 12000
#endif
#define SHARED_CAP (56 * MiB)

enum { SLOTS = 60, THREADS = 3, REGIONS = 3, DEVICES = 2, STREAMS = 3 };

typedef struct model {
    world w;
    uint64_t seed;
    bool alone;
    atomic_int failed;
    _Atomic uint64_t serial;
    pthread_rwlock_t launching; /* read: launches; written: nobody may */
    ta_region_id region[REGIONS];
    bool asleep[REGIONS], dropped[REGIONS]; /* under `launching` */
    ta_ledger *neighbour;                   /* NULL: the cap is ours alone */
    uint64_t shared_cap, sent, back;
} model;

typedef struct slot {
    held h;
    int region;  /* -1: none */
    bool known;  /* its contents are */
    bool shared; /* another stream reads it: it is written no more */
} slot;

typedef struct worker {
    model *m;
    int number, step;
    uint64_t random;
    slot slot[SLOTS];
    bool armed;
} worker;

#define WRONG(WORKER, ...)                                                               \
    do {                                                                                 \
        if (!atomic_exchange(&(WORKER)->m->failed, 1)) {                                 \
            printf("seed %llu, thread %d, step %d: ",                                    \
                   (unsigned long long)(WORKER)->m->seed, (WORKER)->number,              \
                   (WORKER)->step);                                                      \
            printf(__VA_ARGS__);                                                         \
            printf("\n");                                                                \
        }                                                                                \
        return;                                                                          \
    } while (0)

static const ta_region_config configs[REGIONS] = {
    {.page_bytes = 4 * MiB},
    {.page_bytes = 2 * MiB, .touch_host = true},
    {.page_bytes = 2 * MiB, .home = TA_ON_HOST},
};

static uint64_t draw(worker *k, uint64_t low, uint64_t high)
{
    return world_between(&k->random, low, high);
}

static bool readable(const model *m, const slot *s)
{
    return s->region < 0 || !m->asleep[s->region];
}

/* What a block should hold: words at the start of every 64 KiB and its last byte. A copy is of
 * whole pages, so these tell of each; the memory behind is taken where it is touched. */
static bool pattern(const held *h, bool write)
{
    bool same = true;
    for (uint64_t at = 0; at + 8 < h->size; at += 64 * KiB) {
        uint64_t *p = (uint64_t *)(void *)(h->at + at);
        const uint64_t word = h->serial * 1000003u + at;
        if (write)
            *p = word;
        else
            same = same && *p == word;
    }
    const unsigned char last = (unsigned char)h->serial;
    if (write) h->at[h->size - 1] = last;
    return same && h->at[h->size - 1] == last;
}

/* The lock is held. */
static void check_slot(worker *k, const slot *s)
{
    if (!s->h.at || !s->known || !readable(k->m, s)) return;
    if (!pattern(&s->h, false))
        WRONG(k, "%p of %llu bytes changed (region %d)", (void *)s->h.at,
              (unsigned long long)s->h.size, s->region);
}

static void launch(worker *k, slot *s, ta_stream stream, bool write)
{
    model *m = k->m;
    pthread_rwlock_rdlock(&m->launching);
    if (readable(m, s)) {
        check_slot(k, s);
        if (write || !s->known) pattern(&s->h, true);
        s->known = true;
        if (stream != s->h.stream) {
            s->shared = true;
            world_order(&m->w, s->h.device, s->h.stream, stream);
            if (ta_record_stream(m->w.allocator, s->h.at, stream) != TA_OK)
                atomic_store(&m->failed, 1);
        }
        world_use(&m->w, &s->h, stream, write && !s->shared, -1);
    }
    pthread_rwlock_unlock(&m->launching);
}

static void alloc(worker *k, slot *s)
{
    model *m = k->m;
    const int device = (int)draw(k, 0, DEVICES - 1),
              stream = (int)draw(k, 0, STREAMS - 1);
    const uint64_t kind = draw(k, 0, 9);
    const uint64_t size = kind < 4   ? draw(k, 1, 64 * KiB)
                          : kind < 9 ? draw(k, 64 * KiB, 3 * MiB)
                                     : draw(k, 3 * MiB, 9 * MiB);
    ta_region_id before;
    s->region = draw(k, 0, 3) ? -1 : (int)draw(k, 0, REGIONS - 1);
    s->known = s->shared = false;
    if (s->region >= 0) ta_region_enter(m->w.allocator, m->region[s->region], &before);
    const ta_status status =
        world_alloc(&m->w, &s->h, size, device, m->w.stream[device][stream]);
    if (s->region >= 0) ta_region_enter(m->w.allocator, before, NULL);
    if (status) {
        if (s->h.at) WRONG(k, "refused, and an address given");
        if (status != TA_OUT_OF_MEMORY && status != TA_ASLEEP && !k->armed)
            WRONG(k, "alloc gives %d", (int)status);
        return;
    }
    /* Perhaps another thread led us into its region. */
    ta_region_id in = 0;
    bool asleep;
    if (ta_region_of(m->w.allocator, s->h.at, &in, &asleep)) WRONG(k, "region_of fails");
    if (m->alone && (in ? m->region[s->region] != in : s->region >= 0))
        WRONG(k, "in region %d", (int)in);
    s->region = -1;
    for (int r = 0; in && r < REGIONS; r++)
        if (m->region[r] == in) s->region = r;
    s->h.serial = ++m->serial;
    launch(k, s, s->h.stream, true);
}

static void release(worker *k, slot *s)
{
    model *m = k->m;
    pthread_rwlock_rdlock(&m->launching);
    check_slot(k, s);
    pthread_rwlock_unlock(&m->launching);
    const ta_status status = ta_free(m->w.allocator, s->h.at);
    if (status) WRONG(k, "free gives %d", (int)status);
    s->h.at = NULL;
}

/* As the region is, after a call that may have failed. */
static void look(worker *k, int r)
{
    ta_region_info info;
    if (ta_region_get(k->m->w.allocator, k->m->region[r], &info) != TA_OK)
        WRONG(k, "no region");
    k->m->asleep[r] = info.asleep;
}

static void forget(worker *k, int r)
{
    for (int i = 0; i < SLOTS; i++)
        if (k->slot[i].region == r) k->slot[i].known = false;
}

static void sleep_or_wake(worker *k)
{
    model *m = k->m;
    const int r = (int)draw(k, 0, REGIONS - 1);
    ta_sleep_info info;
    pthread_rwlock_wrlock(&m->launching);
    const bool keep = !m->alone || draw(k, 0, 3) != 0, was = m->asleep[r];
    const ta_status status =
        was ? ta_region_wake(m->w.allocator, m->region[r], &info)
            : ta_region_sleep(m->w.allocator, m->region[r], keep, &info);
    if (!was && !keep) forget(k, r);
    look(k, r);
    if (!status && m->asleep[r] == was) atomic_store(&m->failed, 1);
    if (status && !info.why[0] && !k->armed)
        printf("  no reason for %d\n", (int)status), atomic_store(&m->failed, 1);
    for (int i = 0; i < SLOTS; i++) check_slot(k, &k->slot[i]);
    pthread_rwlock_unlock(&m->launching);
}

static void step_mark(worker *k)
{
    model *m = k->m;
    pthread_rwlock_wrlock(&m->launching);
    ta_step_info info;
    const ta_status status = ta_step(m->w.allocator, -1, &info);
    if (status && !k->armed) {
        printf("  step gives %d\n", (int)status);
        atomic_store(&m->failed, 1);
    }
    m->sent += info.sent_out;
    m->back += info.brought_back;
    if (!k->armed)
        for (int i = 0; i < SLOTS; i++) check_slot(k, &k->slot[i]);
    pthread_rwlock_unlock(&m->launching);
}

/* Takes some of the shared cap, as one who asks others for it; gives some back; or the cap
 * itself is another. */
static void neighbour(worker *k)
{
    model *m = k->m;
    const uint64_t bytes = draw(k, 1, 8) * 2 * MiB, theirs = ta_ledger_held(m->neighbour);
    const uint64_t what = draw(k, 0, 9);
    if (what == 0) {
        m->shared_cap = draw(k, 0, 2) ? SHARED_CAP : draw(k, 8, 28) * 2 * MiB;
        const ta_share_caps caps = CAP(m->shared_cap, TA_NO_LIMIT);
        const ta_status status = ta_share_set_caps(m->w.allocator, 0, &caps, NULL);
        if (status && !k->armed) WRONG(k, "set_caps gives %d", (int)status);
    } else if (what < 6)
        reserve(m->neighbour, bytes, m->shared_cap);
    else
        ta_ledger_release(m->neighbour, bytes < theirs ? bytes : theirs);
}

static void settings(worker *k, uint64_t what)
{
    model *m = k->m;
    ta_allocator *a = m->w.allocator;
    ta_status status = TA_OK;
    if (what == 0) {
        const ta_spill_config spill = {.host_bytes = draw(k, 0, 48) * MiB,
                                       .net = draw(k, 0, 4) != 0};
        status = ta_set_spill(a, &spill);
    } else if (what == 1)
        status = ta_host_trim(a, NULL);
    else if (what == 2)
        status = ta_trim(a, (int)draw(k, 0, DEVICES) - 1, NULL);
    else
        status = ta_set_limit(a, (int)draw(k, 0, DEVICES - 1), TA_LIMIT_API,
                              draw(k, 0, 3) ? draw(k, 8, 60) * MiB : TA_NO_LIMIT);
    if (status && !k->armed) WRONG(k, "setting %d gives %d", (int)what, (int)status);
}

static void books(worker *k)
{
    model *m = k->m;
    char text[512] = "";
    uint64_t pinned = 0, live[DEVICES] = {0};
    if (!ta_check(m->w.allocator, text, sizeof text)) WRONG(k, "%s", text);
    for (int i = 0; i < SLOTS; i++)
        if (k->slot[i].h.at)
            live[k->slot[i].h.device] += world_round(k->slot[i].h.size, TA_GRANULE);
    for (int d = 0; d < DEVICES; d++) {
        const ta_stats s = world_stats(&m->w, d);
        if (s.allocated[0].current != live[d])
            WRONG(k, "device %d: %llu live, %llu counted", d, (unsigned long long)live[d],
                  (unsigned long long)s.allocated[0].current);
        if (s.reserved.current != ta_sim_used(m->w.sim, d, false))
            WRONG(k, "device %d: reserved is not what it holds", d);
        if (s.reserved.current + s.spilled.current + s.dropped.current !=
            s.active[0].current + s.idle + s.partly_used)
            WRONG(k,
                  "device %d: the sum of tiers: %llu + %llu + %llu, %llu + %llu + %llu",
                  d, (unsigned long long)s.reserved.current,
                  (unsigned long long)s.spilled.current,
                  (unsigned long long)s.dropped.current,
                  (unsigned long long)s.active[0].current, (unsigned long long)s.idle,
                  (unsigned long long)s.partly_used);
        if (s.spilled.current > s.host.current) WRONG(k, "more spilled than pinned");
        pinned += s.host.current;
    }
    if (pinned != ta_sim_pinned(m->w.sim)) WRONG(k, "pinned is not what the host holds");
}

static void one_step(worker *k)
{
    model *m = k->m;
    slot *s = &k->slot[draw(k, 0, SLOTS - 1)];
    const uint64_t what = draw(k, 0, 999);
    k->armed = m->alone && draw(k, 0, 19) == 0;
    if (k->armed) {
        const uint64_t call =
            draw(k, 0, 1) ? TA_SIM_CALL_COUNT : draw(k, 0, TA_SIM_CALL_COUNT - 1);
        ta_sim_fail(m->w.sim, (ta_sim_call)call, draw(k, 1, 30), draw(k, 0, 2),
                    TA_DRIVER);
    }
    if (what < 6 && (m->alone || !k->number))
        sleep_or_wake(k);
    else if (what < 14 && (m->alone || !k->number))
        step_mark(k);
    else if (what < 22)
        settings(k, draw(k, 0, 3));
    else if (what < 30 && m->neighbour && !k->number)
        neighbour(k);
    else if (what < 60)
        ta_sim_advance_us(m->w.sim, (double)draw(k, 1, 3000));
    else if (!s->h.at)
        alloc(k, s);
    else if (k->armed || what < 500)
        release(k, s);
    else
        launch(k, s, m->w.stream[s->h.device][draw(k, 0, STREAMS - 1)], what < 700);
    if (k->armed) {
        ta_sim_fail(m->w.sim, TA_SIM_CALL_COUNT, 0, 0, TA_OK);
        k->armed = false;
        /* What a failing call left half done is mended by the next mark. */
        step_mark(k);
        for (int r = 0; r < REGIONS; r++) look(k, r);
    }
}

static void *work(void *context)
{
    worker *k = context;
    for (k->step = 0; !k->m->failed; k->step++) {
        if (k->step >=
            (k->m->alone ? STEPS : CROWDED) * (getenv("TA_TEST_LONG") ? 20 : 1))
            break;
        one_step(k);
        if (ta_test_failed) atomic_store(&k->m->failed, 1);
        if (k->m->alone && k->step % 32 == 0 && !k->m->failed) books(k);
    }
    return NULL;
}

static void run(uint64_t seed, int threads)
{
    const bool shared = seed % 2 == 0;
    static model m;
    static worker workers[THREADS];
    memset(&m, 0, sizeof m);
    memset(workers, 0, sizeof workers);
    m.seed = seed;
    m.alone = threads == 1;
    pthread_rwlock_init(&m.launching, NULL);
    const ta_sim_config config = {
        .devices = DEVICES, .memory = 64 * MiB, .seed = seed, .host_memory = 256 * MiB};
    const ta_config pages = {.page_bytes = 2 * MiB};
    const ta_spill_config spill = {.host_bytes = 32 * MiB, .net = true};
    static const char *const names[REGIONS] = {"slept", "touched", "host"};
    world_open_with(&m.w, &config, STREAMS, &pages);
    ta_oracle_allow_moves(m.w.sim, true);
    CHECK_EQ(ta_set_spill(m.w.allocator, &spill), TA_OK);
    if (shared) {
        bool there;
        open_directory();
        alarm(0);
        m.shared_cap = SHARED_CAP;
        const ta_share_config share = share_of("", "", CAP(SHARED_CAP, TA_NO_LIMIT));
        CHECK_EQ(ta_share_open(m.w.allocator, 0, &share, &there, why), TA_OK);
        CHECK((m.neighbour = join(&nobody)) != NULL);
    }
    for (int r = 0; r < REGIONS; r++)
        CHECK_EQ(ta_region_open(m.w.allocator, names[r], &configs[r], &m.region[r]),
                 TA_OK);
    pthread_t thread[THREADS];
    for (int t = 0; t < threads; t++) {
        workers[t].m = &m;
        workers[t].number = t;
        workers[t].random = seed * 1000 + (uint64_t)t;
        if (t) CHECK_EQ(pthread_create(&thread[t], NULL, work, &workers[t]), 0);
    }
    work(&workers[0]);
    for (int t = 1; t < threads; t++) CHECK_EQ(pthread_join(thread[t], NULL), 0);
    if (m.failed) TA_TEST_FAIL("seed %llu failed", (unsigned long long)seed);
    uint64_t spills = 0;
    for (int t = 0; t < threads; t++)
        for (int i = 0; i < SLOTS && !m.failed; i++)
            if (workers[t].slot[i].h.at) release(&workers[t], &workers[t].slot[i]);
    CHECK(!m.failed);
    for (int d = 0; d < DEVICES; d++) {
        spills += world_stats(&m.w, d).spill_allocs;
        CHECK_EQ(world_stats(&m.w, d).allocated[0].current, 0);
    }
    CHECK(spills > 0);
    ta_sim_advance_us(m.w.sim, 1e9);
    CHECK_EQ(ta_trim(m.w.allocator, -1, NULL), TA_OK);
    CHECK_EQ(ta_host_trim(m.w.allocator, NULL), TA_OK);
    for (int d = 0; d < DEVICES; d++) {
        CHECK_EQ(world_stats(&m.w, d).spilled.current, 0);
        CHECK_EQ(world_stats(&m.w, d).dropped.current, 0);
        CHECK_EQ(ta_sim_used(m.w.sim, d, false), 0);
    }
    CHECK_EQ(ta_sim_pinned(m.w.sim), 0);
    if (m.alone && !shared) CHECK(m.back > 0);
    if (shared) {
        if (m.alone) CHECK(m.sent > 0);
        CHECK_EQ(living(), ta_ledger_held(m.neighbour));
        ta_ledger_leave(m.neighbour);
    }
    world_close(&m.w);
    if (shared) close_directory();
}

static void seeds(int count, int threads)
{
    const char *one = getenv("TA_TEST_SEED");
    if (one) {
        run(strtoull(one, NULL, 10), threads);
        return;
    }
    const double until = ta_now_us() + (getenv("TA_TEST_LONG") ? 1e12 : 60e6);
    for (int i = 1; i <= count && !ta_test_failed; i++) {
        if (i > 2 && ta_now_us() > until) { /* a machine that others load */
            printf("%d of %d seeds in a minute\n", i - 1, count);
            return;
        }
        run((uint64_t)i, threads);
    }
}

TEST(one_thread) { seeds(6, 1); }
TEST(threads) { seeds(2, THREADS); }

TEST_MAIN()
