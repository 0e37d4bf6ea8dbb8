/* test_waits.c - waits and looks that must not miss memory that is there.
 *
 * The driver's table is that of the simulated machine with some calls looked at, failed or
 * used to do what another thread might do just then. All streams last unless a test says
 * otherwise, as those of torch do. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <unistd.h>

#include "../../csrc/core/epoch.h"
#include "world.h"

static struct {
    const ta_driver *sim;
    int device_waits;
    int not_ready;  /* so many queries say that nothing is passed */
    int until_take; /* at this query another thread takes what it can */
    ta_stream taker;
    held taken;
    world *w;
    bool fail_access, fail_unmap, fail_wait;
    ta_stream dead; /* destroyed: naming it is undefined */
    int named_dead;
    ta_stream reused, stands_for; /* a handle that stands for another stream by now */
    ta_stream captured; /* a capture begins there between the question and the record */
    const held *freed_during; /* a wait for the device, and its mark looked at there */
} hook;

static ta_status hooked_query(void *self, ta_event event)
{
    if (hook.until_take && --hook.until_take == 0)
        world_alloc(hook.w, &hook.taken, 16 * MiB, 0, hook.taker);
    if (hook.not_ready && hook.not_ready--) return TA_NOT_READY;
    return hook.sim->event_query(self, event);
}
static ta_status hooked_wait(void *self, ta_event event, double most_us)
{
    return hook.fail_wait ? TA_DRIVER : hook.sim->event_wait(self, event, most_us);
}
static ta_status hooked_access(void *self, uint64_t addr, uint64_t size,
                               const int *devices, int count)
{
    return hook.fail_access ? TA_DRIVER
                            : hook.sim->set_access(self, addr, size, devices, count);
}
static ta_status hooked_unmap(void *self, uint64_t addr, uint64_t size)
{
    return hook.fail_unmap ? TA_DRIVER : hook.sim->unmap(self, addr, size);
}
static ta_status hooked_record(void *self, ta_event event, int device, ta_stream stream)
{
    hook.named_dead += hook.dead && stream == hook.dead;
    if (hook.reused && stream == hook.reused) stream = hook.stands_for;
    return hook.sim->event_record(self, event, device, stream);
}
/* By another thread: this one's mode is the relaxed one just now. */
static void *begin_capture(void *stream)
{
    ta_test_failed |= ta_sim_capture_begin(hook.w->sim, 0, stream) != TA_OK;
    return NULL;
}
static ta_status hooked_capturing(void *self, int device, ta_stream stream, bool *yes)
{
    hook.named_dead += hook.dead && stream == hook.dead;
    ta_status status = hook.sim->is_capturing(self, device, stream, yes);
    if (hook.captured && stream == hook.captured && !*yes) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, begin_capture, hook.captured) ||
            pthread_join(thread, NULL))
            ta_test_failed = 1;
        hook.captured = NULL;
    }
    return status;
}

static ta_stream_life strangers_life;
static ta_status hooked_device_wait(void *self, int device)
{
    ta_status status = hook.sim->device_wait(self, device);
    hook.device_waits++;
    const held *h = hook.freed_during;
    hook.freed_during = NULL;
    if (h) {
        ta_device *d = &hook.w->allocator->device[device];
        strangers_life = TA_STREAM_EXISTS;
        ta_test_failed |= ta_free(hook.w->allocator, h->at) != TA_OK;
        ta_lock_take(&d->pages);
        for (ta_stream_state *s = d->streams; s; s = s->next) ta_stream_poll(d, s);
        ta_lock_drop(&d->pages);
    }
    return status;
}

static ta_stream stranger; /* a stream that others own */
static ta_stream_life lasting(void *context, int device, ta_stream stream)
{
    (void)context;
    (void)device;
    return stream == stranger ? strangers_life : TA_STREAM_LASTS;
}

static bool everything(void *context, ta_stream stream)
{
    (void)context;
    (void)stream;
    return true;
}

static ta_driver hooked;
static void open_hooked(world *w, int streams, uint64_t cap)
{
    ta_sim_config config = {.devices = 1, .memory = 256 * MiB, .seed = 3};
    memset(&hook, 0, sizeof hook);
    stranger = NULL;
    strangers_life = TA_STREAM_EXISTS;
    world_open(w, &config, streams);
    ta_allocator_destroy(w->allocator);
    hook.sim = w->driver;
    hook.w = w;
    hooked = *w->driver;
    hooked.event_query = hooked_query;
    hooked.event_wait = hooked_wait;
    hooked.set_access = hooked_access;
    hooked.unmap = hooked_unmap;
    hooked.event_record = hooked_record;
    hooked.is_capturing = hooked_capturing;
    hooked.device_wait = hooked_device_wait;
    CHECK_EQ(ta_allocator_create(&hooked, NULL, &w->allocator), TA_OK);
    CHECK_EQ(ta_add_observer(w->allocator, ta_oracle_observe, w->sim), TA_OK);
    CHECK_EQ(ta_set_stream_life(w->allocator, lasting, NULL), TA_OK);
    CHECK_EQ(ta_set_limit(w->allocator, -1, TA_LIMIT_API, cap), TA_OK);
    alarm(60); /* a hang ends as a signal */
}

static void get(world *w, held *h, int stream, double us)
{
    CHECK_EQ(world_alloc(w, h, 16 * MiB, 0, w->stream[0][stream]), TA_OK);
    world_use(w, h, h->stream, true, us);
}
static void put(world *w, const held *h)
{
    CHECK_EQ(ta_free(w->allocator, h->at), TA_OK);
}

/* The longest idle memory is a capturing stream's: the next is waited for. */
TEST(idle_of_a_capturing_stream_hides_no_other)
{
    world w;
    held a, b, c, x;
    ta_sim_graph *graph = NULL;
    open_hooked(&w, 4, 36 * MiB);
    get(&w, &a, 1, 50);
    get(&w, &b, 2, 9000);
    CHECK_EQ(world_alloc(&w, &x, 512, 0, w.stream[0][3]), TA_OK);
    CHECK_EQ(ta_record_stream(w.allocator, x.at, w.stream[0][0]), TA_OK);
    put(&w, &a);
    put(&w, &x); /* a tick goes by */
    put(&w, &b);
    CHECK_EQ(ta_sim_capture_begin(w.sim, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(world_alloc(&w, &c, 16 * MiB, 0, w.stream[0][3]), TA_OK);
    CHECK(world_stats(&w, 0).waits >= 1);
    put(&w, &c);
    CHECK_EQ(ta_trim(w.allocator, 0, NULL), TA_OK);
    CHECK_EQ(world_stats(&w, 0).reserved.current, 16 * MiB); /* the capturing one's */
    CHECK_EQ(ta_sim_capture_end(w.sim, 0, w.stream[0][1], &graph), TA_OK);
    ta_sim_graph_destroy(w.sim, graph);
    CHECK_EQ(ta_trim(w.allocator, 0, NULL), TA_OK);
    CHECK_EQ(world_stats(&w, 0).reserved.current, 0);
    world_close(&w);
}

/* The same for blocks that wait for a recorded stream. */
TEST(pending_for_a_capturing_stream_hides_no_other)
{
    world w;
    held a, b, c;
    ta_sim_graph *graph = NULL;
    open_hooked(&w, 5, 32 * MiB);
    get(&w, &a, 1, 50);
    get(&w, &b, 1, 50);
    CHECK_EQ(ta_record_stream(w.allocator, a.at, w.stream[0][2]), TA_OK);
    world_order(&w, 0, w.stream[0][1], w.stream[0][3]);
    world_use(&w, &b, w.stream[0][3], false, 9000);
    CHECK_EQ(ta_record_stream(w.allocator, b.at, w.stream[0][3]), TA_OK);
    CHECK_EQ(ta_sim_capture_begin(w.sim, 0, w.stream[0][2]), TA_OK);
    put(&w, &a);
    put(&w, &b);
    CHECK_EQ(world_alloc(&w, &c, 16 * MiB, 0, w.stream[0][4]), TA_OK);
    CHECK_EQ(ta_sim_capture_end(w.sim, 0, w.stream[0][2], &graph), TA_OK);
    ta_sim_graph_destroy(w.sim, graph);
    put(&w, &c);
    world_close(&w);
}

/* What passes between two looks is not lost between them. */
TEST(passed_between_two_looks)
{
    world w;
    held a;
    uint64_t released = 0;
    open_hooked(&w, 2, TA_NO_LIMIT);
    get(&w, &a, 1, 50);
    put(&w, &a);
    ta_sim_advance_us(w.sim, 1000);
    hook.not_ready = 1;
    CHECK_EQ(ta_trim(w.allocator, 0, &released), TA_OK);
    CHECK_EQ(released, 16 * MiB);
    world_close(&w);
}

/* Another thread takes the longest idle memory after it was found and before it is taken:
 * there is more. */
TEST(taken_between_look_and_steal)
{
    world w;
    held a, b, mark;
    uint64_t released = 0;
    open_hooked(&w, 3, TA_NO_LIMIT);
    CHECK_EQ(world_alloc(&w, &mark, 512, 0, w.stream[0][0]), TA_OK);
    get(&w, &a, 1, 50);
    get(&w, &b, 2, 50);
    ta_sim_advance_us(w.sim, 1000);
    put(&w, &b); /* the newest arena, which is looked at first; then a tick goes by */
    CHECK_EQ(ta_record_stream(w.allocator, mark.at, w.stream[0][1]), TA_OK);
    put(&w, &mark);
    put(&w, &a);
    hook.taker = w.stream[0][2];
    hook.until_take = 3; /* pending's, the newest arena's, the other's */
    CHECK_EQ(ta_trim(w.allocator, 0, &released), TA_OK);
    CHECK_EQ(hook.until_take, 0);
    CHECK(hook.taken.at != NULL);
    CHECK(released >= 16 * MiB);
    put(&w, &hook.taken);
    world_close(&w);
}

/* A stream of others that is destroyed: it is never named again, and nothing that waits for
 * the device gives up because of it. */
TEST(destroyed_stream_and_a_pool)
{
    world w;
    held a, b, c;
    void *context = NULL;
    const ta_pool_id id = {1, 2};
    open_hooked(&w, 4, 32 * MiB);
    stranger = w.stream[0][3];
    get(&w, &a, 3, 5000);
    put(&w, &a);
    CHECK_EQ(ta_sim_stream_destroy(w.sim, stranger), TA_OK);
    hook.dead = stranger;
    CHECK_EQ(ta_pool_begin(w.allocator, 0, id, everything, NULL), TA_OK);
    get(&w, &b, 1, 50);
    CHECK_EQ(ta_pool_end(w.allocator, 0, id, &context), TA_OK);
    put(&w, &b);
    CHECK_EQ(ta_pool_release(w.allocator, 0, id), TA_OK);
    CHECK_EQ(world_alloc(&w, &c, 32 * MiB, 0, w.stream[0][2]), TA_OK);
    put(&w, &c);
    CHECK_EQ(ta_trim(w.allocator, 0, NULL), TA_OK);
    CHECK_EQ(world_stats(&w, 0).reserved.current, 0);
    CHECK_EQ(hook.named_dead, 0);
    world_close(&w);
}

/* Freed while its stream was captured, so nothing could be recorded; then the stream goes. */
TEST(destroyed_stream_that_could_not_be_recorded)
{
    world w;
    held a, b;
    ta_sim_graph *graph = NULL;
    open_hooked(&w, 4, 16 * MiB);
    stranger = w.stream[0][3];
    get(&w, &a, 3, 5000);
    CHECK_EQ(ta_sim_capture_begin(w.sim, 0, stranger), TA_OK);
    put(&w, &a);
    CHECK_EQ(ta_sim_capture_end(w.sim, 0, stranger, &graph), TA_OK);
    ta_sim_graph_destroy(w.sim, graph);
    CHECK_EQ(ta_sim_stream_destroy(w.sim, stranger), TA_OK);
    CHECK_EQ(world_alloc(&w, &b, 16 * MiB, 0, w.stream[0][1]), TA_OK);
    put(&w, &b);
    world_close(&w);
}

/* Freed after its stream was destroyed: only the device can be waited for. */
TEST(freed_after_its_stream_was_destroyed)
{
    world w;
    held a, b, c;
    open_hooked(&w, 4, 32 * MiB);
    stranger = w.stream[0][3];
    get(&w, &a, 3, 5000);
    CHECK_EQ(world_alloc(&w, &b, 512, 0, stranger), TA_OK);
    CHECK_EQ(ta_sim_stream_destroy(w.sim, stranger), TA_OK);
    hook.dead = stranger;
    strangers_life = TA_STREAM_STRANGE;
    put(&w, &a);
    put(&w, &b);
    CHECK_EQ(world_alloc(&w, &c, 32 * MiB, 0, w.stream[0][2]), TA_OK);
    world_use(&w, &c, c.stream, true, 50);
    world_check(&w);
    CHECK(world_stats(&w, 0).waits >= 1);
    put(&w, &c);
    CHECK_EQ(ta_trim(w.allocator, 0, NULL), TA_OK);
    CHECK_EQ(world_stats(&w, 0).reserved.current, 0);
    CHECK_EQ(hook.named_dead, 0);
    world_close(&w);
}

/* Another stream gets what the rest left, which the oracle judges, and all is over. */
static void end_by_taking(world *w, uint64_t size)
{
    held h;
    CHECK_EQ(world_alloc(w, &h, size, 0, w->stream[0][1]), TA_OK);
    world_use(w, &h, h.stream, true, 50);
    world_check(w);
    put(w, &h);
    world_close(w);
}

/* The handle of a destroyed stream, whose work still runs, comes back as another stream's:
 * that the new one has passed says nothing of what the old one was given. */
TEST(marks_of_a_handle_that_was_another_streams)
{
    world w;
    held a, b;
    open_hooked(&w, 4, 32 * MiB);
    stranger = w.stream[0][3];
    CHECK_EQ(world_alloc(&w, &b, 512, 0, stranger), TA_OK);
    get(&w, &a, 3, 9000);
    strangers_life = TA_STREAM_STRANGE;
    put(&w, &a);
    hook.reused = stranger;
    hook.stands_for = w.stream[0][2];
    strangers_life = TA_STREAM_EXISTS;
    put(&w, &b);
    end_by_taking(&w, 28 * MiB);
}

/* The same where a stream has so many marks that one of them would have to be moved. */
TEST(marks_of_a_handle_are_not_moved_to_another_stream)
{
    world w;
    held a, b;
    open_hooked(&w, 4, 32 * MiB);
    stranger = w.stream[0][3];
    CHECK_EQ(world_alloc(&w, &a, 16 * MiB, 0, stranger), TA_OK);
    for (int i = 0; i < 255; i++) {
        CHECK_EQ(world_alloc(&w, &b, 512, 0, stranger), TA_OK);
        world_use(&w, &b, stranger, true, 10000);
        put(&w, &b);
    }
    world_use(&w, &a, stranger, true, 9e5);
    put(&w, &a);
    hook.reused = stranger;
    hook.stands_for = w.stream[0][2];
    CHECK_EQ(world_alloc(&w, &b, 512, 0, stranger), TA_OK);
    put(&w, &b);
    end_by_taking(&w, 28 * MiB);
}

/* A mark that was passed while older frees had none says nothing, also not that there is
 * something to wait for: else who looks for that block's page would look for ever. */
TEST(mark_passed_during_a_wait_for_the_device)
{
    world w;
    held a, b, c, e;
    open_hooked(&w, 4, 24 * MiB);
    stranger = w.stream[0][3];
    CHECK_EQ(world_alloc(&w, &b, 512, 0, stranger), TA_OK);
    get(&w, &a, 3, 5000);
    strangers_life = TA_STREAM_STRANGE;
    put(&w, &a);
    hook.freed_during = &b;
    CHECK_EQ(world_alloc(&w, &c, 20 * MiB, 0, w.stream[0][1]), TA_OK);
    CHECK(hook.freed_during == NULL);
    CHECK_EQ(world_alloc(&w, &e, 4 * MiB, 0, w.stream[0][1]), TA_OK);
    world_use(&w, &e, e.stream, true, 50);
    put(&w, &c);
    put(&w, &e);
    world_close(&w);
}

/* Places that failures left half made are ours to give up before a refusal, whoever's. */
TEST(broken_place_of_another_arena)
{
    world w;
    held a, b;
    open_hooked(&w, 3, 16 * MiB);
    hook.fail_access = hook.fail_unmap = true;
    CHECK_EQ(world_alloc(&w, &a, 16 * MiB, 0, w.stream[0][1]), TA_DRIVER);
    hook.fail_access = hook.fail_unmap = false;
    world_check(&w);
    CHECK_EQ(world_alloc(&w, &b, 16 * MiB, 0, w.stream[0][2]), TA_OK);
    put(&w, &b);
    world_close(&w);
}

/* Such a place in a graph pool is no free under way: the pool can be set back around it. */
TEST(broken_place_of_a_pool)
{
    const ta_pool_id id = {3, 4};
    world w;
    held a, b;
    ta_pool_block lived;
    size_t count = 0;
    void *context;
    open_hooked(&w, 3, 64 * MiB);
    CHECK_EQ(ta_pool_begin(w.allocator, 0, id, everything, NULL), TA_OK);
    CHECK_EQ(world_alloc(&w, &a, 8 * MiB, 0, w.stream[0][1]), TA_OK);
    hook.fail_access = hook.fail_unmap = true;
    CHECK_EQ(world_alloc(&w, &b, 16 * MiB, 0, w.stream[0][1]), TA_DRIVER);
    hook.fail_access = hook.fail_unmap = false;
    CHECK_EQ(ta_pool_end(w.allocator, 0, id, &context), TA_OK);
    CHECK_EQ(ta_pool_blocks(w.allocator, 0, id, &lived, 1, &count), TA_OK);
    CHECK_EQ(count, 1);
    put(&w, &a);
    CHECK_EQ(ta_pool_restore(w.allocator, 0, id, &lived, 1), TA_OK);
    world_check(&w);
    CHECK_EQ(ta_pool_restore(w.allocator, 0, id, NULL, 0), TA_OK);
    CHECK_EQ(ta_pool_release(w.allocator, 0, id), TA_OK);
    CHECK_EQ(world_stats(&w, 0).allocated[TA_POOL_ALL].current, 0);
    world_close(&w);
}

/* An event that cannot be waited for, as one that a capture swallowed: the device can. */
TEST(event_that_cannot_be_waited_for)
{
    world w;
    held a, b;
    open_hooked(&w, 3, 16 * MiB);
    get(&w, &a, 1, 9000);
    put(&w, &a);
    hook.fail_wait = true;
    CHECK_EQ(world_alloc(&w, &b, 16 * MiB, 0, w.stream[0][2]), TA_OK);
    put(&w, &b);
    world_close(&w);
}

/* A capture begins just before an event is recorded, which it so swallows: the event is never
 * passed. It is given up, and what was freed before it is seen by a later one. */
static void swallowed(bool lasts)
{
    world w;
    held a, b;
    ta_sim_graph *graph = NULL;
    open_hooked(&w, 3, 32 * MiB);
    if (!lasts) stranger = w.stream[0][1];
    get(&w, &a, 1, 100);
    ta_sim_advance_us(w.sim, 1000);
    hook.captured = w.stream[0][1];
    if (lasts) {
        put(&w, &a);
        ta_stream_state *s = NULL;
        ta_device *d = &w.allocator->device[0];
        ta_lock_take(&d->pages);
        for (s = d->streams; s && s->handle != w.stream[0][1];) s = s->next;
        ta_stream_mark(d, s, atomic_load(&d->tick));
        ta_lock_drop(&d->pages);
    } else
        put(&w, &a);
    CHECK(hook.captured == NULL);
    ta_sim_capture_end(w.sim, 0, w.stream[0][1], &graph);
    if (graph) ta_sim_graph_destroy(w.sim, graph);
    CHECK_EQ(world_alloc(&w, &b, 32 * MiB, 0, w.stream[0][2]), TA_OK);
    CHECK_EQ(hook.device_waits, lasts ? 0 : 1);
    world_use(&w, &b, b.stream, true, 50);
    put(&w, &b);
    world_close(&w);
}
TEST(event_that_a_capture_swallowed) { swallowed(true); }
TEST(event_of_a_stranger_that_a_capture_swallowed) { swallowed(false); }

/* A stream of another device uses a block: it cannot be marked by an event of the block's
 * device, and waiting for that device is not waiting for it. */
TEST(recorded_for_a_stream_of_another_device)
{
    world w;
    ta_sim_config config = {.devices = 2, .memory = 64 * MiB, .seed = 3};
    held a, b, there;
    world_open(&w, &config, 2);
    CHECK_EQ(world_alloc(&w, &there, 512, 1, w.stream[1][1]), TA_OK);
    CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_API, 16 * MiB), TA_OK);
    get(&w, &a, 1, 50);
    CHECK_EQ(ta_sim_stream_wait(w.sim, 0, w.stream[0][1]), TA_OK);
    ta_sim_range range = {(uint64_t)(uintptr_t)a.at, a.size, false};
    CHECK_EQ(ta_sim_launch(w.sim, 1, w.stream[1][1], &range, 1, 9000), TA_OK);
    CHECK_EQ(ta_record_stream(w.allocator, a.at, w.stream[1][1]), TA_OK);
    put(&w, &a);
    get(&w, &b, 1, 50);
    world_check(&w);
    put(&w, &b);
    CHECK_EQ(ta_free(w.allocator, there.at), TA_OK);
    world_close(&w);
}

/* --- beginning a pool ----------------------------------------------------------------- */
/* One pool after the other, each released with its work still queued. */
static void pools_in_a_row(world *w, int count)
{
    for (int i = 1; i <= count && !ta_test_failed; i++) {
        held a;
        void *context;
        const ta_pool_id id = {(uint64_t)i, 0};
        CHECK_EQ(ta_pool_begin(w->allocator, 0, id, everything, NULL), TA_OK);
        get(w, &a, 1, 1e6);
        CHECK_EQ(ta_pool_end(w->allocator, 0, id, &context), TA_OK);
        put(w, &a);
        CHECK_EQ(ta_pool_release(w->allocator, 0, id), TA_OK);
    }
}

/* What released pools left is there for later: a begin waits for no stream that is busy. */
TEST(beginning_a_pool_waits_for_nobody)
{
    world w;
    open_hooked(&w, 3, TA_NO_LIMIT);
    pools_in_a_row(&w, 8);
    CHECK_EQ(hook.device_waits, 0);
    CHECK_EQ(world_stats(&w, 0).waits, 0);
    CHECK(ta_sim_now_us(w.sim) < 1e6);
    CHECK_EQ(world_stats(&w, 0).reserved.current, 8 * 16 * MiB);
    ta_sim_advance_us(w.sim, 1e7); /* all is done: the next begin settles it */
    pools_in_a_row(&w, 1);
    CHECK_EQ(world_stats(&w, 0).reserved.current, 8 * 16 * MiB);
    world_close(&w);
}

/* But where the cap leaves less than they hold, it does: inside a pool nobody can. */
TEST(beginning_a_pool_waits_where_room_is_short)
{
    world w;
    open_hooked(&w, 3, 40 * MiB);
    pools_in_a_row(&w, 8);
    CHECK(hook.device_waits >= 1 && hook.device_waits <= 8);
    CHECK_EQ(world_stats(&w, 0).oom_count, 0);
    world_close(&w);
}

/* --- a filter that throws ------------------------------------------------------------- */
static jmp_buf out;
static bool throwing(void *context, ta_stream stream)
{
    (void)context;
    (void)stream;
    longjmp(out, 1); /* as a C++ exception leaves: no frame of ours runs on */
}
TEST(filter_that_throws)
{
    static world w;
    static held a;
    static volatile int thrown;
    static void *context;
    const ta_pool_id id = {5, 6};
    thrown = 0;
    open_hooked(&w, 2, TA_NO_LIMIT);
    CHECK_EQ(ta_pool_begin(w.allocator, 0, id, throwing, &w), TA_OK);
    if (setjmp(out) == 0)
        world_alloc(&w, &a, 16 * MiB, 0, w.stream[0][1]);
    else
        thrown = 1;
    CHECK_EQ(thrown, 1);
    CHECK_EQ(ta_pool_end(w.allocator, 0, id, &context), TA_OK);
    CHECK_EQ(ta_pool_release(w.allocator, 0, id), TA_OK);
    CHECK_EQ(world_alloc(&w, &a, 16 * MiB, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    world_close(&w);
}

TEST_MAIN()
