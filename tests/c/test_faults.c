/* test_faults.c - fails every driver call of a scenario, at every k.
 *
 * The scenario goes through every way that memory is had and given back: new pages, moves at
 * a cap, waits, a graph pool, a second device with peers, trims. It runs once to count its
 * driver calls, and then once for every call and manner of failing: that call alone, or all
 * from there on until the user's call has ended. A call of ours then either succeeds or is
 * refused; if it is refused nothing has changed, the books are exact, live bytes are as they
 * were, and the same call made again succeeds. At the end no page and no address is left. */
#include <signal.h>
#include <unistd.h>

#include "ledger_people.h"
#include "world.h"

enum { SLOTS = 12 };

typedef struct scenario {
    world w;
    held slot[SLOTS];
    uint64_t live[2], blocks[2]; /* of each device, as they should be */
    ta_sim_call call;            /* the kind that fails; TA_SIM_CALL_COUNT: any */
    uint64_t first;              /* ta_sim_calls of it at which it fails; 0: never */
    int step;                    /* calls under test so far */
    int refusals;                /* of them, those that were refused */
} scenario;

static bool plain;  /* a machine without VMM */
static bool shared; /* growth is charged to a ledger, under a cap that it reaches */
static ta_stream_life streams_are = TA_STREAM_EXISTS; /* all but the default ones */
static ta_stream_life streams_live(void *context, int device, ta_stream stream)
{
    (void)context;
    (void)device;
    (void)stream;
    return streams_are;
}

static bool filter_stream(void *context, ta_stream stream) { return stream == context; }

/* The books and the bytes are what they should be. */
static void settled(scenario *s)
{
    for (int d = 0; d < 2; d++) {
        ta_stats stats = world_stats(&s->w, d);
        CHECK_EQ(stats.allocated[TA_POOL_ALL].current, s->live[d]);
        CHECK_EQ(stats.allocations[TA_POOL_ALL].current, s->blocks[d]);
        CHECK_EQ(stats.reserved.current, ta_sim_used(s->w.sim, d, false));
        CHECK_EQ(stats.pages.current * stats.page_bytes, stats.reserved.current);
        ta_share_state share;
        CHECK_EQ(ta_share_get(s->w.allocator, d, &share), TA_OK);
        if (share.open) CHECK_EQ(share.held, stats.reserved.current);
    }
    for (int i = 0; i < SLOTS; i++)
        if (s->slot[i].at && !world_kept(&s->slot[i]))
            TA_TEST_FAIL("slot %d is changed", i);
    world_check(&s->w);
}

static uint64_t calls_made(const scenario *s)
{
    if (s->call < TA_SIM_CALL_COUNT) return ta_sim_calls(s->w.sim, s->call);
    uint64_t sum = 0;
    for (int c = 0; c < TA_SIM_CALL_COUNT; c++)
        sum += ta_sim_calls(s->w.sim, (ta_sim_call)c);
    return sum;
}

/* After a call under test: if the failure began in it, it ends here. */
static void over(scenario *s, ta_status status)
{
    s->step++;
    if (status != TA_OK) s->refusals++;
    if (s->first && calls_made(s) >= s->first) {
        ta_sim_fail(s->w.sim, s->call, 0, 0, TA_OK);
        s->first = 0;
    }
}

/* Makes the call, and again if it was refused; then it must succeed. */
#define UNDER_TEST(S, CALL)                                                              \
    do {                                                                                 \
        if (ta_test_failed) return;                                                      \
        ta_status status_ = (CALL);                                                      \
        const bool armed_ = (S)->first != 0;                                             \
        over(S, status_);                                                                \
        if (status_ != TA_OK) {                                                          \
            if (!armed_ || (S)->first)                                                   \
                TA_TEST_FAIL("status %d unprovoked: %s", (int)status_, #CALL);           \
            settled(S);                                                                  \
            if (ta_test_failed) TA_TEST_FAIL("  after the refusal of %s", #CALL);        \
            CHECK_EQ((CALL), TA_OK);                                                     \
        }                                                                                \
    } while (0)

static void get(scenario *s, int slot, uint64_t size, int device, int stream)
{
    held *h = &s->slot[slot];
    UNDER_TEST(s, world_alloc(&s->w, h, size, device, s->w.stream[device][stream]));
    h->serial = (uint64_t)slot + 1;
    world_write(h);
    world_use(&s->w, h, h->stream, true, 300);
    s->live[device] += world_round(size, TA_GRANULE);
    s->blocks[device]++;
    settled(s);
}

/* A free is never refused for what the driver does: it has nowhere to say so. */
static void put(scenario *s, int slot)
{
    held *h = &s->slot[slot];
    void *at = h->at;
    if (ta_test_failed) return;
    CHECK(world_kept(h));
    h->at = NULL;
    const ta_status status = ta_free(s->w.allocator, at);
    over(s, status);
    CHECK_EQ(status, TA_OK);
    s->live[h->device] -= world_round(h->size, TA_GRANULE);
    s->blocks[h->device]--;
    settled(s);
}

/* The process's own, or the one of all processes. */
static ta_status cap(ta_allocator *a, uint64_t bytes)
{
    const ta_share_caps caps = {bytes, TA_NO_LIMIT, false};
    return shared ? ta_share_set_caps(a, 0, &caps, NULL)
                  : ta_set_limit(a, 0, TA_LIMIT_API, bytes);
}

static void play(scenario *s)
{
    world *w = &s->w;
    ta_allocator *a = w->allocator;
    const ta_pool_id pool = {7, 9};
    get(s, 0, 10 * MiB, 0, 1);
    get(s, 1, 1000, 0, 1);
    get(s, 2, 6 * MiB, 0, 2);
    /* Used by a second stream, freed, wanted again. */
    if (!ta_test_failed) {
        CHECK_EQ(ta_sim_stream_wait(w->sim, 0, w->stream[0][1]), TA_OK);
        world_use(w, &s->slot[0], w->stream[0][2], false, 5000);
    }
    UNDER_TEST(s, ta_record_stream(a, s->slot[0].at, w->stream[0][2]));
    put(s, 0);
    get(s, 3, 12 * MiB, 0, 2);
    /* At a cap: idle pages move, and are waited for. */
    UNDER_TEST(s, cap(a, (plain ? 100 : 36) * MiB));
    get(s, 4, 9 * MiB, 0, 1);
    put(s, 3);
    get(s, 5, 11 * MiB, 0, 1);
    put(s, 2);
    put(s, 4);
    get(s, 6, 15 * MiB, 0, 2);
    UNDER_TEST(s, cap(a, TA_NO_LIMIT));
    /* A second device: what exists on the first becomes reachable from it. */
    get(s, 7, 8 * MiB, 1, 1);
    get(s, 8, 3 * MiB, 0, 1);
    /* A graph pool. */
    UNDER_TEST(s, ta_pool_begin(a, 0, pool, filter_stream, w->stream[0][3]));
    get(s, 9, 5 * MiB, 0, 3);
    get(s, 10, 2000, 0, 3);
    void *context = NULL;
    UNDER_TEST(s, ta_pool_end(a, 0, pool, &context));
    put(s, 9);
    UNDER_TEST(s, ta_pool_release(a, 0, pool));
    put(s, 10);
    UNDER_TEST(s, ta_trim(a, -1, NULL));
    get(s, 11, 20 * MiB, 0, 0);
    for (int i = 0; i < SLOTS; i++)
        if (s->slot[i].at) put(s, i);
    UNDER_TEST(s, ta_trim(a, 0, NULL));
}

static void begin(scenario *s)
{
    memset(s, 0, sizeof *s);
    ta_sim_config config = {
        .devices = 2, .memory = (plain ? 160 : 64) * MiB, .seed = 5, .no_vmm = plain};
    ta_config policy = {.fallback = plain};
    world_open_with(&s->w, &config, 4, &policy);
    CHECK_EQ(ta_set_stream_life(s->w.allocator, streams_live, NULL), TA_OK);
    for (int d = 0; shared && d < 2; d++) {
        bool others;
        ta_share_config share = {.directory = directory,
                                 .gpu = d ? "GPU-1" : GPU,
                                 .label = "",
                                 .tenant = "",
                                 .caps = {(plain ? 160 : 64) * MiB, TA_NO_LIMIT, false}};
        CHECK_EQ(ta_share_open(s->w.allocator, d, &share, &others, why), TA_OK);
    }
}

/* A hang ends here, and says where it was. */
static char running[128];
static void hung(int number)
{
    static const char text[] = "hangs: ";
    (void)number;
    if (write(1, text, sizeof text - 1) < 0 || write(1, running, strlen(running)) < 0)
        _exit(3);
    _exit(2);
}

/* Plays it with the k-th call of a kind failing; says whether there was such a call. */
static bool fail_at(ta_sim_call call, uint64_t k, bool persistent, ta_status how,
                    int *felt)
{
    scenario s;
    const char *manner = persistent ? "from there on" : "once";
    const char *name = call < TA_SIM_CALL_COUNT ? ta_sim_call_name(call) : "any";
    snprintf(running, sizeof running, "%s at %s %llu, status %d\n", manner, name,
             (unsigned long long)k, (int)how);
    signal(SIGALRM, hung);
    alarm(30);
    begin(&s);
    s.call = call;
    const uint64_t first = s.first = calls_made(&s) + k;
    ta_sim_fail(s.w.sim, call, k, persistent ? UINT64_MAX / 2 : 0, how);
    play(&s);
    const bool reached = calls_made(&s) >= first;
    ta_sim_fail(s.w.sim, call, 0, 0, TA_OK);
    *felt += s.refusals;
    if (!ta_test_failed) world_close(&s.w);
    if (ta_test_failed) printf("  call under test %d, %s", s.step, running);
    alarm(0);
    return reached;
}

/* The scenario has one thread, so TSan, the slowest, has little to find: it takes every third
 * call. The other two ways take every one. */
#ifdef __SANITIZE_THREAD__
enum { STRIDE = 3 };
#else
enum { STRIDE = 1 };
#endif

/* Every call of one kind, singly and lastingly, for two statuses. Of any kind lastingly only:
 * singly each is failed among its own kind. */
static void walk(ta_sim_call call, int *felt)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    const int statuses = getenv("TA_TEST_LONG") ? 2 : 1;
#else
    const int statuses = 2;
#endif
    static const ta_status how[2] = {TA_DRIVER, TA_OUT_OF_MEMORY};
    for (int persistent = call == TA_SIM_CALL_COUNT; persistent < 2; persistent++)
        for (int h = 0; h < statuses; h++)
            for (uint64_t k = 1; fail_at(call, k, persistent, how[h], felt); k += STRIDE)
                if (ta_test_failed) return;
}

TEST(scenario_without_failures)
{
    scenario s;
    begin(&s);
    play(&s);
    CHECK(!ta_test_failed);
    CHECK_EQ(s.refusals, 0);
    /* It goes where it is meant to: otherwise the walks below prove little. */
    ta_stats stats = world_stats(&s.w, 0);
    CHECK(stats.page_moves > 0);
    CHECK(stats.waits > 0);
    CHECK(stats.calls_release > 0 && stats.calls_unmap > 0);
    world_close(&s.w);
}

/* The calls that bring memory are the ones whose failure a user must feel. */
#define WALK(NAME, MUST_BE_FELT)                                                         \
    TEST(every_##NAME)                                                                   \
    {                                                                                    \
        int felt = 0;                                                                    \
        walk(TA_SIM_CALL_##NAME, &felt);                                                 \
        if (MUST_BE_FELT) CHECK(felt > 0);                                               \
    }
WALK(enter, true)
WALK(mem_info, false)
WALK(has_vmm, false)
WALK(granularity, false)
WALK(can_access_peer, false)
WALK(reserve, true)
WALK(unreserve, false)
WALK(create, true)
WALK(release, false)
WALK(map, true)
WALK(unmap, false)
WALK(set_access, true)
WALK(event_create, false)
WALK(event_destroy, false)
WALK(event_record, false)
WALK(event_query, false)
WALK(event_wait, false)
WALK(is_capturing, false)
WALK(device_wait, false)

TEST(every_call_of_any_kind)
{
    int felt = 0;
    walk(TA_SIM_CALL_COUNT, &felt);
    CHECK(felt > 0);
}

/* The same for other machines and streams, each call of any kind failing alone. */
static void walk_others(ta_stream_life life, bool without_vmm)
{
    int felt = 0;
    streams_are = life;
    plain = without_vmm;
    for (uint64_t k = 1; fail_at(TA_SIM_CALL_COUNT, k, false, TA_DRIVER, &felt);
         k += STRIDE)
        if (ta_test_failed) break;
    streams_are = TA_STREAM_EXISTS;
    plain = false;
    CHECK(felt > 0);
}
TEST(every_call_with_streams_that_last) { walk_others(TA_STREAM_LASTS, false); }
TEST(every_call_with_streams_of_others) { walk_others(TA_STREAM_STRANGE, false); }
TEST(every_call_without_vmm) { walk_others(TA_STREAM_LASTS, true); }

/* Growth is charged to a ledger: whatever fails, it says what the driver gave. */
static void walk_under_a_ledger(bool without_vmm)
{
    char second[300];
    int felt = 0;
    open_directory();
    shared = true;
    plain = without_vmm;
    if (without_vmm) {
        for (uint64_t k = 1; fail_at(TA_SIM_CALL_COUNT, k, false, TA_DRIVER, &felt);
             k += STRIDE)
            if (ta_test_failed) break;
    } else {
        for (uint64_t k = 1;
             fail_at(TA_SIM_CALL_COUNT, k, false, TA_OUT_OF_MEMORY, &felt); k += STRIDE)
            if (ta_test_failed) break;
        if (!ta_test_failed) walk(TA_SIM_CALL_create, &felt);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
        if (!ta_test_failed) walk(TA_SIM_CALL_COUNT, &felt);
        if (!ta_test_failed) walk(TA_SIM_CALL_release, &felt);
#endif
    }
    shared = plain = false;
    CHECK(felt > 0);
    CHECK_EQ(living(), 0);
    snprintf(second, sizeof second, "%s/GPU-1.ledger", directory);
    unlink(second);
    close_directory();
}
TEST(every_call_under_a_ledger) { walk_under_a_ledger(false); }
TEST(every_call_under_a_ledger_without_vmm) { walk_under_a_ledger(true); }

/* The process is exiting and the driver is gone: frees are no error, allocs are refused,
 * nothing hangs or crashes. */
TEST(driver_gone)
{
    scenario s;
    begin(&s);
    get(&s, 0, 10 * MiB, 0, 1);
    get(&s, 1, 700, 0, 1);
    CHECK(!ta_test_failed);
    CHECK_EQ(ta_record_stream(s.w.allocator, s.slot[0].at, s.w.stream[0][2]), TA_OK);
    ta_sim_fail(s.w.sim, TA_SIM_CALL_COUNT, 1, UINT64_MAX / 2, TA_GONE);
    held h;
    CHECK_EQ(ta_free(s.w.allocator, s.slot[0].at), TA_OK);
    CHECK(world_alloc(&s.w, &h, 60 * MiB, 0, s.w.stream[0][1]) != TA_OK);
    CHECK(h.at == NULL);
    CHECK_EQ(ta_free(s.w.allocator, s.slot[1].at), TA_OK);
    ta_allocator_destroy(s.w.allocator);
    ta_sim_fail(s.w.sim, TA_SIM_CALL_COUNT, 0, 0, TA_OK);
    ta_sim_destroy(s.w.sim);
}

TEST_MAIN()
