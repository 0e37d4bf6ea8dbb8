/* test_edges.c - what a review of the core found, beside its waits: forks while a
 * device is opened, a look at a stream's life that throws, streams of threads, stray frees, pools
 * without memory, a lock that is held for long.
 *
 * The driver's table is that of the simulated machine with some calls looked at. */
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "types.h"
#include "world.h"

#define PER_THREAD ((ta_stream)2)

static struct {
    const ta_driver *sim;
    ta_allocator *allocator;
    int fork_in_enter; /* at this call */
    int child;         /* what the child found */
    int busy;          /* waits during which somebody else leaves memory behind */
    int waits;
    world *w;
} hook;

/* 0: the allocator tells a child of the process from the process. */
static int child_is_told(ta_allocator *a)
{
    pid_t child = fork();
    if (child == 0) {
        alarm(10); /* a hang ends as a signal */
        ta_status status = ta_set_stream_life(a, NULL, NULL); /* takes `setup` */
        _exit(status != TA_FORKED ? 100 + (int)status : ta_is_forked(a) ? 0 : 99);
    }
    int code = -1;
    if (child < 0 || waitpid(child, &code, 0) != child) return -1;
    return code;
}

static ta_status hooked_enter(void *self, int device, uintptr_t saved[2])
{
    if (hook.fork_in_enter && --hook.fork_in_enter == 0)
        hook.child = child_is_told(hook.allocator);
    return hook.sim->enter(self, device, saved);
}
static ta_status hooked_wait(void *self, ta_event event, double most_us)
{
    held h;
    hook.waits++;
    if (hook.busy && hook.busy--) {
        world *w = hook.w;
        ta_stream stream = w->stream[0][hook.waits % 2 + 1];
        if (world_alloc(w, &h, 16 * MiB, 0, stream) == TA_OK) {
            world_use(w, &h, stream, true, 5000 * (1 + hook.waits));
            ta_free(w->allocator, h.at);
        }
    }
    return hook.sim->event_wait(self, event, most_us);
}

static ta_driver hooked;
static void open_hooked(world *w, const ta_sim_config *config, int streams)
{
    memset(&hook, 0, sizeof hook);
    hook.child = -1;
    world_open(w, config, streams);
    ta_allocator_destroy(w->allocator);
    hook.w = w;
    hook.sim = w->driver;
    hooked = *w->driver;
    hooked.enter = hooked_enter;
    hooked.event_wait = hooked_wait;
    const ta_config policy = {.fallback = config->no_vmm};
    CHECK_EQ(ta_allocator_create(&hooked, &policy, &w->allocator), TA_OK);
    CHECK_EQ(ta_add_observer(w->allocator, ta_oracle_observe, w->sim), TA_OK);
    CHECK_EQ(ta_set_stream_life(w->allocator, world_lasting, NULL), TA_OK);
    hook.allocator = w->allocator;
    alarm(60);
}

static const ta_sim_config one = {.devices = 1, .memory = 256 * MiB, .seed = 5};

/* --- forks ------------------------------------------------------------------------------ */
/* At every moment of a device's opening a child is known as one, and hangs on nothing. */
TEST(fork_while_a_device_is_opened)
{
    world w;
    held a;
    open_hooked(&w, &one, 2);
    hook.fork_in_enter = 1;
    CHECK_EQ(world_alloc(&w, &a, 512, 0, NULL), TA_OK);
    CHECK_EQ(hook.child, 0);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    world_close(&w);
}

/* Asking how much memory there is makes a context, too. */
TEST(fork_after_a_look_at_the_memory)
{
    world w;
    uint64_t free_bytes, total;
    open_hooked(&w, &one, 2);
    CHECK_EQ(ta_device_memory(w.allocator, 0, &free_bytes, &total), TA_OK);
    CHECK_EQ(child_is_told(w.allocator), 0);
    CHECK(!ta_device_used(w.allocator, 0));
    CHECK(!ta_is_forked(w.allocator));
    world_close(&w);
}

/* --- an owner of streams that throws ---------------------------------------------------- */
static jmp_buf out;
static int throws;
static ta_stream_life throwing(void *context, int device, ta_stream stream)
{
    (void)context;
    (void)device;
    (void)stream;
    if (throws && throws--)
        longjmp(out, 1); /* as a C++ exception leaves: no frame of ours runs on */
    return TA_STREAM_LASTS;
}

/* Nothing stays locked or entered, and the next call asks again. */
static void throw_once(world *w, held *a, bool recording)
{
    throws = 1;
    if (setjmp(out) != 0) return;
    if (recording)
        ta_record_stream(w->allocator, a->at, w->stream[0][2]);
    else
        world_alloc(w, a, 16 * MiB, 0, w->stream[0][1]);
    TA_TEST_FAIL("%s", "the owner was not asked");
}

static bool everything(void *context, ta_stream stream)
{
    (void)context;
    (void)stream;
    return true;
}

TEST(owner_that_throws)
{
    static world w;
    static held a, b;
    static void *context;
    const ta_pool_id id = {7, 8};
    open_hooked(&w, &one, 4);
    CHECK_EQ(ta_set_stream_life(w.allocator, throwing, NULL), TA_OK);
    throw_once(&w, &a, false);
    CHECK_EQ(world_alloc(&w, &a, 16 * MiB, 0, w.stream[0][1]), TA_OK);
    throw_once(&w, &a, true);
    CHECK_EQ(ta_record_stream(w.allocator, a.at, w.stream[0][2]), TA_OK);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    /* A pool whose request was thrown out is over as any other. */
    CHECK_EQ(ta_pool_begin(w.allocator, 0, id, everything, NULL), TA_OK);
    throws = 1;
    if (setjmp(out) == 0) world_alloc(&w, &b, 16 * MiB, 0, w.stream[0][3]);
    CHECK_EQ(throws, 0);
    CHECK_EQ(ta_pool_end(w.allocator, 0, id, &context), TA_OK);
    CHECK_EQ(ta_pool_release(w.allocator, 0, id), TA_OK);
    CHECK(w.allocator->device[0].pools == NULL);
    world_close(&w);
}

/* --- the per-thread default stream ------------------------------------------------------ */
typedef struct thread_use {
    world *w;
    held *h;
    bool take, record, use, free;
} thread_use;

static void do_all(const thread_use *u)
{
    if (u->take) CHECK_EQ(world_alloc(u->w, u->h, 16 * MiB, 0, PER_THREAD), TA_OK);
    if (u->record)
        CHECK_EQ(ta_record_stream(u->w->allocator, u->h->at, PER_THREAD), TA_OK);
    if (u->use) world_use(u->w, u->h, PER_THREAD, true, 9000);
    if (u->free) CHECK_EQ(ta_free(u->w->allocator, u->h->at), TA_OK);
}
static void *in_thread(void *use)
{
    do_all(use);
    return NULL;
}
static void thread_does(thread_use u)
{
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, in_thread, &u), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
}

/* What one thread used on its stream another one's does not get before it has passed: freed
 * by the one, by the other, or recorded by the other; with memory to spare and without. */
TEST(streams_of_threads_share_nothing)
{
    for (int way = 0; way < 6; way++) {
        world w;
        held a, b;
        open_hooked(&w, &one, 2);
        if (way % 2)
            CHECK_EQ(ta_set_limit(w.allocator, -1, TA_LIMIT_API, 16 * MiB), TA_OK);
        if (way < 2)
            thread_does((thread_use){&w, &a, true, false, true, true});
        else if (way < 4) {
            thread_does((thread_use){&w, &a, true, false, true, false});
            CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
        } else {
            CHECK_EQ(world_alloc(&w, &a, 16 * MiB, 0, PER_THREAD), TA_OK);
            thread_does((thread_use){&w, &a, false, true, true, false});
            CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
        }
        CHECK_EQ(world_alloc(&w, &b, 16 * MiB, 0, PER_THREAD), TA_OK);
        world_use(&w, &b, PER_THREAD, true, 50);
        world_check(&w);
        CHECK_EQ(ta_free(w.allocator, b.at), TA_OK);
        world_close(&w);
    }
}

/* One thread's own memory comes back to it at once, in the order of its stream. */
TEST(stream_of_a_thread_reuses_its_own)
{
    world w;
    held a, b;
    open_hooked(&w, &one, 2);
    CHECK_EQ(world_alloc(&w, &a, 16 * MiB, 0, PER_THREAD), TA_OK);
    world_use(&w, &a, PER_THREAD, true, 9000);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    CHECK_EQ(world_alloc(&w, &b, 16 * MiB, 0, PER_THREAD), TA_OK);
    CHECK(a.at == b.at);
    CHECK_EQ(ta_free(w.allocator, b.at), TA_OK);
    world_close(&w);
}

/* --- stray frees ------------------------------------------------------------------------ */
static struct {
    world *w;
    unsigned char *_Atomic at; /* inside a block, where none starts */
    atomic_bool over;
} stray;

static void *free_strays(void *nothing)
{
    while (!atomic_load(&stray.over)) {
        unsigned char *at = atomic_load(&stray.at);
        if (at && ta_free(stray.w->allocator, at + 512) == TA_OK) break;
    }
    return nothing;
}

/* While its chunk comes and goes, an address that is no block is refused. */
TEST(stray_free_beside_chunks)
{
    const ta_sim_config plain = {
        .devices = 1, .memory = 256 * MiB, .seed = 5, .no_vmm = true, .no_backing = true};
    world w;
    held a;
    pthread_t thread;
    open_hooked(&w, &plain, 2);
    stray.w = &w;
    atomic_store(&stray.at, NULL);
    atomic_store(&stray.over, false);
    CHECK_EQ(pthread_create(&thread, NULL, free_strays, NULL), 0);
    for (int i = 0; i < 200 && !ta_test_failed; i++) {
        if (world_alloc(&w, &a, 64 * MiB, 0, w.stream[0][1]) != TA_OK) ta_test_failed = 1;
        atomic_store(&stray.at, a.at);
        if (ta_free(w.allocator, a.at) != TA_OK) ta_test_failed = 1;
        if (ta_trim(w.allocator, 0, NULL) != TA_OK) ta_test_failed = 1;
    }
    atomic_store(&stray.over, true);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(world_stats(&w, 0).allocated[TA_POOL_ALL].current, 0);
    world_close(&w);
}

/* --- pools ------------------------------------------------------------------------------ */
static bool nothing(void *context, ta_stream stream)
{
    (void)context;
    (void)stream;
    return false;
}

/* A pool that never had memory is gone with its last release. */
TEST(pools_without_memory)
{
    world w;
    void *context;
    open_hooked(&w, &one, 2);
    const ta_device *d = &w.allocator->device[0];
    for (uint64_t i = 1; i <= 100; i++) {
        const ta_pool_id id = {0, i};
        CHECK_EQ(ta_pool_begin(w.allocator, 0, id, nothing, NULL), TA_OK);
        CHECK_EQ(ta_pool_end(w.allocator, 0, id, &context), TA_OK);
        CHECK_EQ(ta_pool_begin(w.allocator, 0, id, nothing, NULL), TA_OK);
        CHECK_EQ(ta_pool_release(w.allocator, 0, id), TA_OK);
        CHECK(d->pools && d->pools->id.b == i);
        CHECK_EQ(ta_pool_end(w.allocator, 0, id, &context), TA_OK);
        CHECK_EQ(ta_pool_release(w.allocator, 0, id), TA_OK);
        CHECK(d->pools == NULL);
        CHECK_EQ(ta_pool_release(w.allocator, 0, id), TA_INVALID);
    }
    world_close(&w);
}

/* Released while it is open, and so of use still: only later a wait for the device ends it. */
TEST(pool_released_while_open)
{
    world w;
    held a;
    void *context;
    const ta_pool_id id = {3, 4};
    open_hooked(&w, &one, 2);
    CHECK_EQ(ta_pool_begin(w.allocator, 0, id, everything, NULL), TA_OK);
    CHECK_EQ(ta_pool_release(w.allocator, 0, id), TA_OK);
    CHECK_EQ(world_alloc(&w, &a, 16 * MiB, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(ta_pool_end(w.allocator, 0, id, &context), TA_OK);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    CHECK_EQ(ta_trim(w.allocator, 0, NULL), TA_OK);
    CHECK_EQ(world_stats(&w, 0).reserved.current, 0);
    CHECK(w.allocator->device[0].pools == NULL);
    world_close(&w);
}

/* As many as the header says, and then one more. */
TEST(open_pools_are_bounded)
{
    world w;
    void *context;
    open_hooked(&w, &one, 2);
    for (uint64_t i = 0; i <= TA_OPEN_POOLS; i++)
        CHECK_EQ(ta_pool_begin(w.allocator, 0, (ta_pool_id){i, 9}, nothing, NULL),
                 i < TA_OPEN_POOLS ? TA_OK : TA_INVALID);
    for (uint64_t i = 0; i < TA_OPEN_POOLS; i++)
        CHECK_EQ(ta_pool_end(w.allocator, 0, (ta_pool_id){i, 9}, &context), TA_OK);
    world_close(&w);
}

/* An id is open once: else one opener's end would take the other's filter away, and a graph
 * captured from then on would replay on memory of nobody's. One after the other is as ever. */
TEST(pool_open_twice)
{
    world w;
    void *context;
    int first, second;
    const ta_pool_id id = {5, 0};
    open_hooked(&w, &one, 2);
    for (int round = 0; round < 2; round++) {
        CHECK_EQ(ta_pool_begin(w.allocator, 0, id, everything, &first), TA_OK);
        CHECK_EQ(ta_pool_begin(w.allocator, 0, id, nothing, &second), TA_BUSY);
        CHECK_EQ(w.allocator->device[0].pools->begins, (uint64_t)round + 1);
        CHECK_EQ(ta_pool_begin(w.allocator, 0, (ta_pool_id){5, 1}, nothing, &second),
                 TA_OK);
        CHECK_EQ(ta_pool_end(w.allocator, 0, id, &context), TA_OK);
        CHECK(context == &first);
        CHECK_EQ(ta_pool_end(w.allocator, 0, id, &context), TA_INVALID);
        CHECK_EQ(ta_pool_end(w.allocator, 0, (ta_pool_id){5, 1}, &context), TA_OK);
        CHECK(context == &second);
        CHECK_EQ(ta_pool_release(w.allocator, 0, (ta_pool_id){5, 1}), TA_OK);
    }
    CHECK_EQ(ta_pool_release(w.allocator, 0, id), TA_OK);
    CHECK_EQ(ta_pool_release(w.allocator, 0, id), TA_OK);
    CHECK(w.allocator->device[0].pools == NULL);
    world_close(&w);
}

/* --- giving back without VMM ------------------------------------------------------------ */
/* What others leave behind while it waits is not waited for: else it would not end. */
TEST(plain_trim_ends)
{
    const ta_sim_config plain = {
        .devices = 1, .memory = 256 * MiB, .seed = 5, .no_vmm = true};
    world w;
    held a;
    open_hooked(&w, &plain, 3);
    CHECK_EQ(world_alloc(&w, &a, 16 * MiB, 0, w.stream[0][1]), TA_OK);
    world_use(&w, &a, a.stream, true, 5000);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    hook.busy = 1000;
    CHECK_EQ(ta_trim(w.allocator, 0, NULL), TA_OK);
    CHECK(hook.waits >= 1 && hook.waits < 10);
    hook.busy = 0;
    CHECK_EQ(ta_trim(w.allocator, 0, NULL), TA_OK);
    CHECK_EQ(world_stats(&w, 0).reserved.current, 0);
    world_close(&w);
}

/* --- a lock whose holder is kept waiting ------------------------------------------------ */
static ta_spin spin = {ATOMIC_FLAG_INIT};

static void *wait_for_spin(void *sleeps)
{
    struct rusage before, after;
    getrusage(RUSAGE_THREAD, &before);
    ta_spin_take(&spin);
    ta_spin_drop(&spin);
    getrusage(RUSAGE_THREAD, &after);
    *(long *)sleeps = after.ru_nvcsw - before.ru_nvcsw;
    return NULL;
}

/* Who waits sleeps: under a real-time policy the holder gets the processor in no other way. */
TEST(a_spin_lock_is_waited_for_asleep)
{
    pthread_t thread;
    long sleeps = 0;
    ta_spin_take(&spin);
    CHECK_EQ(pthread_create(&thread, NULL, wait_for_spin, &sleeps), 0);
    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    ta_spin_drop(&spin);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(sleeps >= 5);
}

TEST_MAIN()
