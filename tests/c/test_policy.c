/* test_policy.c - caps that fall, waits below a cap, what released pools hold, peaks. */
#include <unistd.h>

#include "world.h"

static struct {
    const ta_driver *sim;
    ta_stream dead;
    int named_dead;
    int waits;
    ta_allocator *lower; /* at the next event_wait another thread lowers the cap */
    uint64_t lower_to;
} hook;

static ta_status hooked_record(void *self, ta_event event, int device, ta_stream stream)
{
    hook.named_dead += hook.dead && stream == hook.dead;
    return hook.sim->event_record(self, event, device, stream);
}
static ta_status hooked_capturing(void *self, int device, ta_stream stream, bool *yes)
{
    hook.named_dead += hook.dead && stream == hook.dead;
    return hook.sim->is_capturing(self, device, stream, yes);
}
static bool everything(void *context, ta_stream stream)
{
    (void)context;
    (void)stream;
    return true;
}
static ta_status hooked_wait(void *self, ta_event event, double most_us)
{
    hook.waits++;
    if (hook.lower) {
        ta_allocator *a = hook.lower;
        hook.lower = NULL;
        ta_test_failed |= ta_set_limit(a, 0, TA_LIMIT_API, hook.lower_to) != TA_OK;
    }
    return hook.sim->event_wait(self, event, most_us);
}

static ta_stream stranger;
static ta_stream_life strangers_life;
static ta_stream_life lasting(void *context, int device, ta_stream stream)
{
    (void)context;
    (void)device;
    return stream == stranger ? strangers_life : TA_STREAM_LASTS;
}

static ta_driver hooked;
static void open_hooked(world *w, int streams, uint64_t memory, uint64_t cap, bool plain)
{
    ta_sim_config config = {
        .devices = 1, .memory = memory, .seed = 3, .no_vmm = plain, .no_backing = true};
    ta_config policy = {.fallback = plain};
    memset(&hook, 0, sizeof hook);
    stranger = NULL;
    strangers_life = TA_STREAM_EXISTS;
    world_open_with(w, &config, streams, &policy);
    ta_allocator_destroy(w->allocator);
    hook.sim = w->driver;
    hooked = *w->driver;
    hooked.event_record = hooked_record;
    hooked.event_wait = hooked_wait;
    hooked.is_capturing = hooked_capturing;
    CHECK_EQ(ta_allocator_create(&hooked, &policy, &w->allocator), TA_OK);
    CHECK_EQ(ta_add_observer(w->allocator, ta_oracle_observe, w->sim), TA_OK);
    CHECK_EQ(ta_set_stream_life(w->allocator, lasting, NULL), TA_OK);
    CHECK_EQ(ta_set_limit(w->allocator, -1, TA_LIMIT_API, cap), TA_OK);
    alarm(60);
}

/* Freed while its stream was captured, as torch captures; then the stream is destroyed: it is
 * not asked whether it still captures. */
TEST(dead_stream_that_captured_is_named)
{
    world w;
    held a, b;
    void *context;
    const ta_pool_id id = {3, 1};
    ta_sim_graph *graph = NULL;
    open_hooked(&w, 4, 256 * MiB, 16 * MiB, false);
    stranger = w.stream[0][3];
    CHECK_EQ(world_alloc(&w, &a, 16 * MiB, 0, stranger), TA_OK);
    world_use(&w, &a, stranger, true, 5000);
    CHECK_EQ(ta_pool_begin(w.allocator, 0, id, everything, NULL), TA_OK);
    CHECK_EQ(ta_sim_capture_begin(w.sim, 0, stranger), TA_OK);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    CHECK_EQ(ta_sim_capture_end(w.sim, 0, stranger, &graph), TA_OK);
    CHECK_EQ(ta_pool_end(w.allocator, 0, id, &context), TA_OK);
    CHECK_EQ(ta_pool_release(w.allocator, 0, id), TA_OK);
    ta_sim_graph_destroy(w.sim, graph);
    CHECK_EQ(ta_sim_stream_destroy(w.sim, stranger), TA_OK);
    hook.dead = stranger;
    strangers_life = TA_STREAM_STRANGE;
    CHECK_EQ(world_alloc(&w, &b, 16 * MiB, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(ta_free(w.allocator, b.at), TA_OK);
    CHECK_EQ(hook.named_dead, 0);
    world_close(&w);
}

/* A cap lowered while blocks live holds as soon as they are freed. */
TEST(lowered_cap_is_kept_once_it_can_be)
{
    world w;
    held a, b;
    open_hooked(&w, 2, 256 * MiB, TA_NO_LIMIT, false);
    CHECK_EQ(world_alloc(&w, &a, 128 * MiB, 0, NULL), TA_OK);
    CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_API, 32 * MiB), TA_OK);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    for (int i = 0; i < 100; i++) {
        CHECK_EQ(world_alloc(&w, &b, 24 * MiB, 0, w.stream[0][i % 2]), TA_OK);
        CHECK_EQ(ta_free(w.allocator, b.at), TA_OK);
    }
    CHECK(world_stats(&w, 0).reserved.current <= 32 * MiB);
    held c[4];
    int had = 0;
    for (int i = 0; i < 4; i++)
        had += world_alloc(&w, &c[i], 24 * MiB, 0, w.stream[0][1]) == TA_OK;
    CHECK_EQ(had, 1);
    for (int i = 0; i < 4; i++)
        if (c[i].at) CHECK_EQ(ta_free(w.allocator, c[i].at), TA_OK);
    world_close(&w);
}

/* Without VMM, lowered during a wait. */
TEST(plain_limit_lowered_during_a_wait)
{
    world w;
    held a, b;
    open_hooked(&w, 3, 1 * GiB, 200 * MiB, true);
    CHECK_EQ(world_alloc(&w, &a, 160 * MiB, 0, w.stream[0][1]), TA_OK);
    world_use(&w, &a, a.stream, true, 5000);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    hook.lower = w.allocator;
    hook.lower_to = 64 * MiB;
    ta_status status = world_alloc(&w, &b, 180 * MiB, 0, w.stream[0][2]);
    CHECK_EQ(hook.lower == NULL, 1);
    CHECK_EQ(status, TA_OUT_OF_MEMORY);
    CHECK(world_stats(&w, 0).reserved.current <= 64 * MiB);
    if (!status) ta_free(w.allocator, b.at);
    world_close(&w);
}

/* Below the cap another stream's slow work is waited for once, and not for long: it may wait
 * for something that this thread has yet to launch. At the cap there is no other way. */
TEST(short_waits_below_the_cap)
{
    world w;
    held a, b, c;
    open_hooked(&w, 3, 16 * GiB, TA_NO_LIMIT, false);
    CHECK_EQ(world_alloc(&w, &a, 128 * MiB, 0, w.stream[0][1]), TA_OK);
    world_use(&w, &a, a.stream, true, 60e6);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    CHECK_EQ(world_alloc(&w, &b, 128 * MiB, 0, w.stream[0][2]), TA_OK);
    CHECK_EQ(hook.waits, 1);
    CHECK(ta_sim_now_us(w.sim) < 3e6);
    CHECK_EQ(world_alloc(&w, &c, 128 * MiB, 0, w.stream[0][2]), TA_OK);
    CHECK_EQ(hook.waits, 1);
    CHECK(ta_sim_now_us(w.sim) < 3e6);
    CHECK_EQ(ta_free(w.allocator, b.at), TA_OK);
    CHECK_EQ(ta_free(w.allocator, c.at), TA_OK);
    CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_API, 128 * MiB), TA_OK);
    CHECK_EQ(world_stats(&w, 0).reserved.current, 128 * MiB);
    CHECK(ta_sim_now_us(w.sim) >= 60e6 || ta_sim_used(w.sim, 0, false) <= 128 * MiB);
    world_close(&w);
}

/* Numbers that users reset are not what the policy goes by. */
static void loop(bool reset, uint64_t *moves, uint64_t *waits)
{
    world w;
    uint64_t random = 5;
    open_hooked(&w, 3, 64 * GiB, TA_NO_LIMIT, false);
    held weights;
    CHECK_EQ(world_alloc(&w, &weights, 256 * MiB, 0, w.stream[0][1]), TA_OK);
    for (int step = 0; step < 100; step++) {
        held h[24];
        uint64_t length = world_between(&random, 64, 512);
        if (reset) ta_reset_peaks(w.allocator, 0);
        for (int i = 0; i < 24; i++) {
            CHECK_EQ(world_alloc(&w, &h[i],
                                 i % 2 ? 32 * length * 4096 : 512 * length * length, 0,
                                 w.stream[0][1 + (i % 7 == 0)]),
                     TA_OK);
            world_use(&w, &h[i], h[i].stream, true, 300);
        }
        for (int i = 23; i >= 0; i--) CHECK_EQ(ta_free(w.allocator, h[i].at), TA_OK);
        ta_sim_advance_us(w.sim, 3000);
    }
    *moves = world_stats(&w, 0).page_moves;
    *waits = world_stats(&w, 0).waits;
    CHECK_EQ(ta_free(w.allocator, weights.at), TA_OK);
    world_close(&w);
}
TEST(resetting_peaks_changes_no_policy)
{
    uint64_t m[2], w[2];
    loop(false, &m[0], &w[0]);
    loop(true, &m[1], &w[1]);
    CHECK_EQ(m[0], m[1]);
    CHECK_EQ(w[0], w[1]);
}

/* Pools begun, used, freed and released one after the other, with no cap: what a released one
 * held serves the next. */
TEST(released_pools_do_not_pile_up)
{
    world w;
    open_hooked(&w, 2, 16 * GiB, TA_NO_LIMIT, false);
    for (uint64_t i = 1; i <= 50; i++) {
        held a;
        void *context;
        const ta_pool_id id = {i, 0};
        CHECK_EQ(ta_pool_begin(w.allocator, 0, id, everything, NULL), TA_OK);
        CHECK_EQ(world_alloc(&w, &a, 64 * MiB, 0, w.stream[0][1]), TA_OK);
        CHECK_EQ(ta_pool_end(w.allocator, 0, id, &context), TA_OK);
        CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
        CHECK_EQ(ta_pool_release(w.allocator, 0, id), TA_OK);
        ta_sim_advance_us(w.sim, 1000);
    }
    CHECK(world_stats(&w, 0).reserved.current <= 256 * MiB);
    world_close(&w);
}

/* Seen at slow paths, whoever asks or not. */
TEST(highest_partly_used)
{
    world w;
    held a[8];
    open_hooked(&w, 2, 1 * GiB, TA_NO_LIMIT, false);
    for (int i = 0; i < 8; i++)
        CHECK_EQ(world_alloc(&w, &a[i], 2 * MiB + 512, 0, w.stream[0][1]), TA_OK);
    for (int i = 0; i < 8; i += 2) CHECK_EQ(ta_free(w.allocator, a[i].at), TA_OK);
    held big;
    CHECK_EQ(world_alloc(&w, &big, 64 * MiB, 0, w.stream[0][1]), TA_OK); /* a slow path */
    CHECK_EQ(ta_free(w.allocator, big.at), TA_OK);
    for (int i = 1; i < 8; i += 2) CHECK_EQ(ta_free(w.allocator, a[i].at), TA_OK);
    CHECK(world_stats(&w, 0).largest_idle_partly_used >= 4 * MiB);
    world_close(&w);
}

/* The least of all sources holds, rounded down to a page, and is named. */
TEST(the_least_of_all_caps_holds)
{
    world w;
    ta_limit_source source;
    open_hooked(&w, 2, 1 * GiB, 64 * MiB + 12345, false);
    CHECK_EQ(ta_limit(w.allocator, 0, &source), 64 * MiB);
    CHECK_EQ(source, TA_LIMIT_API);
    CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_ENVIRONMENT, 32 * MiB), TA_OK);
    CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_FRACTION, 48 * MiB), TA_OK);
    CHECK_EQ(ta_limit(w.allocator, 0, &source), 32 * MiB);
    CHECK_EQ(source, TA_LIMIT_ENVIRONMENT);
    CHECK_EQ(ta_limit(w.allocator, 1, NULL), 64 * MiB);
    CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_ENVIRONMENT, TA_NO_LIMIT), TA_OK);
    CHECK_EQ(ta_limit(w.allocator, 0, &source), 48 * MiB);
    CHECK_EQ(source, TA_LIMIT_FRACTION);
    CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_ADMIN, 0), TA_OK);
    CHECK_EQ(ta_limit(w.allocator, 0, &source), 0); /* zero is zero */
    CHECK_EQ(source, TA_LIMIT_ADMIN);
    CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_NONE, 0), TA_INVALID);
    CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_SOURCES, 0), TA_INVALID);
    world_close(&w);
}

/* --- what is counted -------------------------------------------------------------------- */
/* What a live graph pool holds idle serves nobody else: a request that it would take is
 * refused at sight. Nothing idle is torn down, and it is short by what is missing. */
TEST(refused_at_sight_where_a_graph_holds_the_rest)
{
    world w;
    held a;
    void *at, *context;
    ta_oom oom;
    const ta_pool_id id = {1, 2};
    open_hooked(&w, 3, 1 * GiB, 40 * MiB, false);
    CHECK_EQ(ta_pool_begin(w.allocator, 0, id, everything, NULL), TA_OK);
    CHECK_EQ(world_alloc(&w, &a, 12 * MiB, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    CHECK_EQ(ta_pool_end(w.allocator, 0, id, &context), TA_OK);
    CHECK_EQ(world_alloc(&w, &a, 28 * MiB, 0, w.stream[0][2]), TA_OK);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    const ta_stats before = world_stats(&w, 0);
    CHECK_EQ(ta_alloc(w.allocator, 32 * MiB, 0, w.stream[0][1], &at, &oom),
             TA_OUT_OF_MEMORY);
    const ta_stats after = world_stats(&w, 0);
    CHECK_EQ(oom.short_by, 4 * MiB);
    CHECK_EQ(oom.idle_in_graphs, 12 * MiB);
    CHECK_EQ(after.calls_unmap, before.calls_unmap);
    CHECK_EQ(after.page_moves, before.page_moves);
    CHECK_EQ(after.retry_count, 0);
    CHECK_EQ(after.oom_count, before.oom_count + 1);
    CHECK_EQ(after.addresses.current, before.addresses.current);
    /* What is there to be taken is had, and counts once. */
    CHECK_EQ(world_alloc(&w, &a, 28 * MiB, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(world_stats(&w, 0).retry_count, 1);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    CHECK_EQ(world_alloc(&w, &a, 28 * MiB, 0, w.stream[0][1]), TA_OK); /* as it lies */
    CHECK_EQ(world_stats(&w, 0).retry_count, 1);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    /* Pages kept ready count as had. */
    CHECK_EQ(ta_pool_release(w.allocator, 0, id), TA_OK);
    CHECK_EQ(ta_alloc(w.allocator, 44 * MiB, 0, w.stream[0][1], &at, &oom),
             TA_OUT_OF_MEMORY);
    CHECK_EQ(oom.short_by, 4 * MiB);
    CHECK_EQ(world_alloc(&w, &a, 40 * MiB, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    world_close(&w);
}

/* Short by what is missing also where it was tried: here an idle page's stream captures. */
TEST(short_by_what_is_missing)
{
    world w;
    held a, b;
    void *at;
    ta_oom oom;
    ta_sim_graph *graph = NULL;
    open_hooked(&w, 4, 1 * GiB, 40 * MiB, false);
    CHECK_EQ(world_alloc(&w, &a, 12 * MiB, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(world_alloc(&w, &b, 28 * MiB, 0, w.stream[0][2]), TA_OK);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    CHECK_EQ(ta_free(w.allocator, b.at), TA_OK);
    CHECK_EQ(ta_sim_capture_begin(w.sim, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(ta_alloc(w.allocator, 32 * MiB, 0, w.stream[0][3], &at, &oom),
             TA_OUT_OF_MEMORY);
    CHECK_EQ(oom.short_by, 4 * MiB);
    CHECK_EQ(world_stats(&w, 0).retry_count, 0); /* not served */
    CHECK_EQ(ta_sim_capture_end(w.sim, 0, w.stream[0][1], &graph), TA_OK);
    ta_sim_graph_destroy(w.sim, graph);
    world_close(&w);
}

/* An open pool sends every request past the device's lock; few of them need a page. */
TEST(slow_is_what_found_no_memory_ready)
{
    world w;
    held a;
    void *context;
    const ta_pool_id id = {1, 2};
    open_hooked(&w, 2, 1 * GiB, TA_NO_LIMIT, false);
    CHECK_EQ(ta_pool_begin(w.allocator, 0, id, everything, NULL), TA_OK);
    CHECK_EQ(world_alloc(&w, &a, 12 * MiB, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    const ta_stats before = world_stats(&w, 0);
    CHECK_EQ(before.slow_allocs, 1);
    CHECK(before.slow_us > 0);
    for (int i = 0; i < 1000; i++) {
        CHECK_EQ(world_alloc(&w, &a, 12 * MiB, 0, w.stream[0][1]), TA_OK);
        CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    }
    const ta_stats after = world_stats(&w, 0);
    CHECK_EQ(after.slow_allocs, 1);
    CHECK(after.slow_us == before.slow_us);
    CHECK_EQ(ta_pool_end(w.allocator, 0, id, &context), TA_OK);
    CHECK_EQ(ta_pool_release(w.allocator, 0, id), TA_OK);
    world_close(&w);
}

/* Addresses that were had for a refused request go with it. */
TEST(refusals_leave_no_addresses)
{
    world w;
    void *at;
    open_hooked(&w, 2, 1 * GiB, TA_NO_LIMIT, false);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(ta_alloc(w.allocator, 3 * GiB, 0, w.stream[0][1], &at, NULL),
                 TA_OUT_OF_MEMORY);
    CHECK_EQ(world_stats(&w, 0).addresses.current, 0);
    CHECK_EQ(ta_sim_reserved_addresses(w.sim), 0);
    world_close(&w);
}

/* --- out of memory ------------------------------------------------------------------------ */
TEST(what_an_out_of_memory_says)
{
    world w;
    held a, b, c, d;
    ta_oom oom;
    char text[2048];
    void *at = NULL;
    open_hooked(&w, 2, 1 * GiB, 64 * MiB, false);
    CHECK_EQ(world_alloc(&w, &a, 30 * MiB, 0, NULL), TA_OK);
    CHECK_EQ(world_alloc(&w, &b, 14 * MiB, 0, NULL), TA_OK);
    CHECK_EQ(world_alloc(&w, &c, 3 * MiB, 0, NULL), TA_OK);
    CHECK_EQ(world_alloc(&w, &d, 8 * MiB, 0, w.stream[0][1]), TA_OK);
    world_use(&w, &d, NULL, true, 1e9);
    CHECK_EQ(ta_alloc(w.allocator, 40 * MiB, 0, NULL, &at, &oom), TA_OUT_OF_MEMORY);
    CHECK(at == NULL);
    CHECK_EQ(oom.requested, 40 * MiB);
    CHECK_EQ(oom.limit, 64 * MiB);
    CHECK_EQ(oom.limit_source, TA_LIMIT_API);
    CHECK_EQ(oom.live, 55 * MiB);
    CHECK_EQ(oom.reserved, 56 * MiB); /* 12 pages of 4 MiB under 47 MiB, and 2 */
    CHECK_EQ(oom.partly_used, oom.reserved - oom.live - oom.idle);
    /* What the pages still to be made under the cap would not give: */
    CHECK(oom.short_by >= 40 * MiB - 8 * MiB - 4 * MiB && oom.short_by <= 40 * MiB);
    CHECK_EQ(oom.largest[0], 30 * MiB);
    CHECK_EQ(oom.largest[1], 14 * MiB);
    CHECK_EQ(oom.largest[4], 0);
    int length = ta_oom_text(&oom, text, sizeof text);
    CHECK_EQ(length, strlen(text));
    const char *const parts[] = {
        "CUDA out of memory. Tried to allocate 40.00 MiB. GPU 0 has a total capacity of "
        "1.00 GiB of which ",
        "64.00 MiB allowed (the cap set by enable() or set_limit(), for this process; "
        "the "
        "CUDA context comes on top)",
        " Of the 56.00 MiB reserved, 55.00 MiB is in live blocks",
        "1.00 MiB is lost in partly used pages (each of 4.00 MiB, free in part beside "
        "live",
        "The request is short by ",
        "Largest live blocks: 30.00 MiB (stream 0), 14.00 MiB (stream 0), 8.00 MiB "
        "(stream 0x",
        "), 3.00 MiB (stream 0).",
        "The device itself has room: a higher cap would do."};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(text, parts[i])) TA_TEST_FAIL("\"%s\" is not in: %s", parts[i], text);
    /* Cut short, it is a beginning of the same, and the length is the whole's. */
    char brief[64];
    CHECK_EQ(ta_oom_text(&oom, brief, sizeof brief), length);
    CHECK_EQ(strncmp(brief, text, sizeof brief - 1), 0);
    CHECK_EQ(strlen(brief), sizeof brief - 1);
    /* Freed while another stream uses it, and the cap lifted: the device is what ends it. */
    CHECK_EQ(ta_set_limit(w.allocator, -1, TA_LIMIT_API, TA_NO_LIMIT), TA_OK);
    CHECK_EQ(ta_alloc(w.allocator, 2 * GiB, 0, NULL, &at, &oom), TA_OUT_OF_MEMORY);
    CHECK(ta_oom_text(&oom, text, sizeof text) > 0);
    CHECK(!strstr(text, "allowed"));
    CHECK(strstr(text, "Tried to allocate 2.00 GiB"));
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    CHECK_EQ(ta_free(w.allocator, b.at), TA_OK);
    CHECK_EQ(ta_free(w.allocator, c.at), TA_OK);
    CHECK_EQ(ta_free(w.allocator, d.at), TA_OK);
    world_close(&w);
}

/* Who holds what: a stream is named where there are several, a graph pool wherever one is. */
TEST(out_of_memory_names_holders)
{
    world w;
    held a, b;
    ta_oom oom;
    char text[2048];
    void *at, *context;
    const ta_pool_id id = {1, 2};
    open_hooked(&w, 2, 1 * GiB, 64 * MiB, false);
    CHECK_EQ(ta_alloc(w.allocator, 80 * MiB, 0, NULL, &at, &oom), TA_OUT_OF_MEMORY);
    ta_oom_text(&oom, text, sizeof text);
    CHECK(
        strstr(text, "on top); Nothing is reserved. The request is short by 16.00 MiB."));
    CHECK_EQ(world_alloc(&w, &a, 30 * MiB, 0, NULL), TA_OK);
    CHECK_EQ(ta_alloc(w.allocator, 40 * MiB, 0, NULL, &at, &oom), TA_OUT_OF_MEMORY);
    ta_oom_text(&oom, text, sizeof text);
    CHECK(strstr(text, "Largest live blocks: 30.00 MiB."));
    CHECK_EQ(ta_pool_begin(w.allocator, 0, id, everything, NULL), TA_OK);
    CHECK_EQ(world_alloc(&w, &b, 14 * MiB, 0, NULL), TA_OK);
    CHECK_EQ(ta_pool_end(w.allocator, 0, id, &context), TA_OK);
    CHECK_EQ(ta_alloc(w.allocator, 40 * MiB, 0, NULL, &at, &oom), TA_OUT_OF_MEMORY);
    ta_oom_text(&oom, text, sizeof text);
    CHECK(strstr(text, "Largest live blocks: 30.00 MiB, 14.00 MiB (graph pool)."));
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    CHECK_EQ(world_alloc(&w, &a, 8 * MiB, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(ta_alloc(w.allocator, 64 * MiB, 0, NULL, &at, &oom), TA_OUT_OF_MEMORY);
    ta_oom_text(&oom, text, sizeof text);
    char holders[128];
    snprintf(holders, sizeof holders,
             "Largest live blocks: 14.00 MiB (stream 0, graph pool), 8.00 MiB (stream "
             "%p).",
             w.stream[0][1]);
    if (!strstr(text, holders)) TA_TEST_FAIL("\"%s\" is not in: %s", holders, text);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    CHECK_EQ(ta_free(w.allocator, b.at), TA_OK);
    CHECK_EQ(ta_pool_release(w.allocator, 0, id), TA_OK);
    world_close(&w);
}

TEST_MAIN()
