/* test_checkpoint.c - a graph pool's live blocks told and set back: what was freed lives again
 * at its place, what came later is freed, what cannot be is refused and nothing changed. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "spill_world.h"

static const ta_pool_id POOL = {11, 12};

static bool everything(void *context, ta_stream stream)
{
    (void)context, (void)stream;
    return true;
}

static void open_pool(world *w)
{
    CHECK_EQ(ta_pool_begin(w->allocator, 0, POOL, everything, NULL), TA_OK);
}

static void close_pool(world *w)
{
    void *context;
    CHECK_EQ(ta_pool_end(w->allocator, 0, POOL, &context), TA_OK);
}

#define MOST 512
typedef struct state {
    ta_pool_block blocks[MOST];
    size_t count;
} state;

static void look(world *w, state *s)
{
    CHECK_EQ(ta_pool_blocks(w->allocator, 0, POOL, s->blocks, MOST, &s->count), TA_OK);
    CHECK(s->count <= MOST);
}

static ta_status put(world *w, const state *s)
{
    return ta_pool_restore(w->allocator, 0, POOL, s->blocks, s->count);
}

static bool same(const state *a, const state *b)
{
    bool equal = a->count == b->count;
    for (size_t i = 0; equal && i < a->count; i++) {
        bool found = false;
        for (size_t k = 0; !found && k < b->count; k++)
            found = a->blocks[i].addr == b->blocks[k].addr &&
                    a->blocks[i].size == b->blocks[k].size &&
                    a->blocks[i].requested == b->blocks[k].requested &&
                    a->blocks[i].stream == b->blocks[k].stream;
        equal = found;
    }
    return equal;
}

static void machine(world *w)
{
    world_open(w, &(ta_sim_config){.devices = 1, .memory = 4 * GiB, .seed = 5}, 3);
}

TEST(freed_lives_again)
{
    world w;
    machine(&w);
    held kept, gone, later;
    state before, after;
    open_pool(&w);
    CHECK_EQ(world_alloc(&w, &kept, 3 * MiB, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(world_alloc(&w, &gone, 9 * MiB + 100, 0, w.stream[0][1]), TA_OK);
    world_write(&kept);
    world_write(&gone);
    look(&w, &before);
    CHECK_EQ(before.count, 2);
    CHECK_EQ(ta_free(w.allocator, gone.at), TA_OK);
    CHECK_EQ(world_alloc(&w, &later, 5 * MiB, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(put(&w, &before), TA_OK);
    world_check(&w);
    look(&w, &after);
    CHECK(same(&before, &after));
    CHECK_EQ(world_stats(&w, 0).allocated[TA_POOL_ALL].current,
             3 * MiB + world_round(9 * MiB + 100, TA_GRANULE));
    CHECK_EQ(world_stats(&w, 0).requested[TA_POOL_ALL].current, 12 * MiB + 100);
    CHECK(world_kept(&kept));
    CHECK(world_kept(&gone)); /* nothing was written over it: it is where it was */
    CHECK_EQ(ta_free(w.allocator, later.at), later.at == gone.at ? TA_OK : TA_INVALID);
    if (later.at != gone.at) CHECK_EQ(ta_free(w.allocator, gone.at), TA_OK);
    CHECK_EQ(ta_free(w.allocator, kept.at), TA_OK);
    close_pool(&w);
    CHECK_EQ(ta_pool_release(w.allocator, 0, POOL), TA_OK);
    CHECK_EQ(world_stats(&w, 0).allocated[TA_POOL_ALL].current, 0);
    world_close(&w);
}

/* Pools of other ids and ordinary memory are left alone. */
TEST(others_are_left_alone)
{
    world w;
    machine(&w);
    held ordinary, inside;
    state none = {.count = 0}, now;
    CHECK_EQ(world_alloc(&w, &ordinary, 2 * MiB, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(put(&w, &none), TA_OK); /* no such pool, nothing wanted */
    open_pool(&w);
    CHECK_EQ(world_alloc(&w, &inside, 2 * MiB, 0, w.stream[0][1]), TA_OK);
    close_pool(&w);
    CHECK_EQ(put(&w, &none), TA_OK);
    look(&w, &now);
    CHECK_EQ(now.count, 0);
    CHECK_EQ(world_stats(&w, 0).allocated[TA_POOL_ALL].current, 2 * MiB);
    CHECK_EQ(ta_free(w.allocator, inside.at), TA_INVALID);
    CHECK_EQ(ta_free(w.allocator, ordinary.at), TA_OK);
    CHECK_EQ(ta_pool_release(w.allocator, 0, POOL), TA_OK);
    world_close(&w);
}

TEST(what_cannot_be_is_refused)
{
    world w;
    machine(&w);
    held a, ordinary;
    state now, wrong, after;
    CHECK_EQ(world_alloc(&w, &ordinary, 2 * MiB, 0, w.stream[0][1]), TA_OK);
    open_pool(&w);
    CHECK_EQ(world_alloc(&w, &a, 2 * MiB, 0, w.stream[0][1]), TA_OK);
    look(&w, &now);
    CHECK_EQ(now.count, 1);

    wrong = now; /* an address of nobody's, one of ordinary memory, half a granule */
    wrong.blocks[0].addr = 4096;
    CHECK_EQ(put(&w, &wrong), TA_INVALID);
    wrong.blocks[0].addr = (uint64_t)(uintptr_t)ordinary.at;
    CHECK_EQ(put(&w, &wrong), TA_INVALID);
    wrong = now;
    wrong.blocks[0].size -= TA_GRANULE / 2;
    CHECK_EQ(put(&w, &wrong), TA_INVALID);
    wrong = now; /* two that overlap */
    wrong.blocks[1] = wrong.blocks[0];
    wrong.blocks[1].addr += TA_GRANULE;
    wrong.count = 2;
    CHECK_EQ(put(&w, &wrong), TA_INVALID);
    wrong = now; /* beyond the pages that are there */
    wrong.blocks[0].addr += 64 * MiB;
    CHECK_EQ(put(&w, &wrong), TA_INVALID);
    look(&w, &after);
    CHECK(same(&now, &after));

    /* A block that a recorded stream uses cannot be freed now. */
    CHECK_EQ(ta_record_stream(w.allocator, a.at, w.stream[0][2]), TA_OK);
    world_use(&w, &a, w.stream[0][2], true, 1e6);
    wrong.count = 0;
    CHECK_EQ(put(&w, &wrong), TA_BUSY);
    CHECK_EQ(put(&w, &now), TA_OK); /* but may stay */
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    CHECK_EQ(put(&w, &now), TA_BUSY); /* pending: its bytes are not free yet */
    CHECK_EQ(ta_sim_stream_wait(w.sim, 0, w.stream[0][2]), TA_OK);
    CHECK_EQ(put(&w, &now), TA_OK);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    CHECK_EQ(ta_free(w.allocator, ordinary.at), TA_OK);
    close_pool(&w);
    CHECK_EQ(ta_pool_release(w.allocator, 0, POOL), TA_OK);
    world_close(&w);
}

TEST(a_promise_is_this_threads)
{
    world w;
    machine(&w);
    held a, b, c;
    open_pool(&w);
    CHECK_EQ(world_alloc(&w, &a, 2 * MiB, 0, w.stream[0][1]), TA_OK);
    close_pool(&w);
    ta_pool_promise(w.allocator, 0, a.at, 2 * MiB);
    CHECK_EQ(world_alloc(&w, &c, MiB, 0, w.stream[0][1]), TA_OK); /* of another size */
    CHECK(c.at != a.at);
    CHECK_EQ(ta_free(w.allocator, c.at), TA_OK);
    CHECK_EQ(world_alloc(&w, &b, 2 * MiB, 0, w.stream[0][1]), TA_OK);
    CHECK(b.at == a.at);
    ta_pool_promise(w.allocator, 0, a.at, 2 * MiB); /* taken back */
    ta_pool_promise(w.allocator, 0, NULL, 0);
    CHECK_EQ(world_alloc(&w, &c, 2 * MiB, 0, w.stream[0][1]), TA_OK);
    CHECK(c.at != a.at);
    CHECK_EQ(world_stats(&w, 0).allocations[TA_POOL_ALL].current, 2);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    CHECK_EQ(ta_free(w.allocator, c.at), TA_OK);
    CHECK_EQ(ta_pool_release(w.allocator, 0, POOL), TA_OK);
    world_close(&w);
}

/* A free on a stream that does not last takes two steps. Whenever they come, all that is wanted
 * is there afterwards but what the free itself may have taken. */
typedef struct freeing {
    world *w;
    void *at;
    atomic_int round; /* of the free that may begin */
    atomic_int done;
} freeing;

static void *frees_meanwhile(void *argument)
{
    freeing *f = argument;
    uint64_t seed = 7;
    for (int round = 1;; round++) {
        int now;
        while ((now = atomic_load(&f->round)) >= 0 && now < round) sched_yield();
        if (now < 0) return NULL;
        const uint64_t turns = world_between(&seed, 0, 100000);
        for (volatile uint64_t i = 0; i < turns; i++) {
        }
        ta_free(f->w->allocator, f->at); /* TA_INVALID too, where it lives no more */
        atomic_store(&f->done, round);
    }
}

TEST(a_free_meanwhile)
{
    enum { ROUNDS = 4000 };
    world w;
    pthread_t thread;
    held h;
    state whole, halves, now, none = {.count = 0};
    machine(&w);
    open_pool(&w);
    CHECK_EQ(world_alloc(&w, &h, 2 * MiB, 0, w.stream[0][1]), TA_OK);
    close_pool(&w);
    look(&w, &whole);
    CHECK_EQ(whole.count, 1);
    halves = whole;
    for (int i = 0; i < 2; i++) {
        halves.blocks[i] = whole.blocks[0];
        halves.blocks[i].addr += (uint64_t)i * MiB;
        halves.blocks[i].size = halves.blocks[i].requested = MiB;
    }
    halves.count = 2;
    freeing f = {.w = &w, .at = h.at};
    CHECK_EQ(pthread_create(&thread, NULL, frees_meanwhile, &f), 0);
    int wrong = 0, busy = 0;
    for (int round = 1; round <= ROUNDS; round++) {
        const ta_status before = put(&w, &whole);
        atomic_store(&f.round, round);
        const ta_status status = put(&w, &halves);
        while (atomic_load(&f.done) < round) sched_yield();
        busy += before != TA_OK || status != TA_OK;
        look(&w, &now);
        wrong +=
            now.count == 0 || now.blocks[now.count - 1].addr != halves.blocks[1].addr;
    }
    atomic_store(&f.round, -1);
    pthread_join(thread, NULL);
    CHECK_EQ(busy, 0);
    CHECK_EQ(wrong, 0);
    CHECK_EQ(put(&w, &none), TA_OK);
    CHECK_EQ(world_stats(&w, 0).allocated[TA_POOL_ALL].current, 0);
    CHECK_EQ(ta_pool_release(w.allocator, 0, POOL), TA_OK);
    world_close(&w);
}

/* Random states, set in random order: each is as it was, and the invariants hold. */
#define STATES 12
TEST(random_states)
{
    world w;
    machine(&w);
    static state states[STATES];
    state now;
    uint64_t seed = 3;
    void *live[MOST];
    size_t count = 0;
    open_pool(&w);
    for (int i = 0; i < STATES; i++) {
        for (int k = 0; k < 60; k++) {
            if (count && world_between(&seed, 0, 2) == 0) {
                const size_t which = world_between(&seed, 0, count - 1);
                CHECK_EQ(ta_free(w.allocator, live[which]), TA_OK);
                live[which] = live[--count];
                continue;
            }
            held h;
            const uint64_t most = world_between(&seed, 0, 3) ? 64 * KiB : 6 * MiB;
            CHECK_EQ(world_alloc(&w, &h, world_between(&seed, 1, most), 0,
                                 w.stream[0][world_between(&seed, 1, 2)]),
                     TA_OK);
            live[count++] = h.at;
        }
        look(&w, &states[i]);
    }
    close_pool(&w);
    for (int i = 0; i < 40; i++) {
        const state *s = &states[world_between(&seed, 0, STATES - 1)];
        CHECK_EQ(put(&w, s), TA_OK);
        world_check(&w);
        if (ta_test_failed) return;
        look(&w, &now);
        CHECK(same(s, &now));
    }
    now.count = 0;
    CHECK_EQ(put(&w, &now), TA_OK);
    CHECK_EQ(world_stats(&w, 0).allocated[TA_POOL_ALL].current, 0);
    CHECK_EQ(ta_pool_release(w.allocator, 0, POOL), TA_OK);
    world_close(&w);
}

/* What is on the host leaves with its block: another block cannot be set on it. */
TEST(what_spilled_stays_or_is_refused)
{
    world w;
    held fill[2], spilled;
    state now, other, after;
    open_capped(&w, GiB, 16 * MiB, 256 * MiB);
    bring(&w, &fill[0], 8 * MiB);
    bring(&w, &fill[1], 8 * MiB);
    open_pool(&w);
    bring(&w, &spilled, 8 * MiB);
    CHECK_EQ(world_stats(&w, 0).spilled.current, 8 * MiB);
    look(&w, &now);
    CHECK_EQ(now.count, 1);
    CHECK_EQ(put(&w, &now), TA_OK);
    good(&w);
    other = now;
    other.blocks[0].requested -= 1;
    CHECK_EQ(put(&w, &other), TA_INVALID);
    good(&w);
    other = now;
    other.blocks[0].size = other.blocks[0].requested = 4 * MiB;
    CHECK_EQ(put(&w, &other), TA_INVALID);
    good(&w);
    look(&w, &after);
    CHECK(same(&now, &after));
    kept(&spilled, 1);
    drop(&w, &spilled);
    close_pool(&w);
    CHECK_EQ(ta_pool_release(w.allocator, 0, POOL), TA_OK);
    for (int i = 0; i < 2; i++) drop(&w, &fill[i]);
    world_close(&w);
}

TEST_MAIN()
