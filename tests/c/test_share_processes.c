/* test_share_processes.c - processes with an allocator each under one cap, on a simulated
 * device that they share: none is over it, the greedy fail alone, the dead hold nothing. */
#include <pthread.h>
#include <stdatomic.h>

#include "../../csrc/core/clock.h"
#include "../../csrc/core/ledger/ledger.h"
#include "../../csrc/driver/nulldriver.h"
#include "share_world.h"

#define NONE TA_NO_LIMIT

/* What parent and children see of each other. */
typedef struct board {
    atomic_int ready, go, granted, failed, over;
} board;
static board *b;

static void begin(void) { b = shared_begin(sizeof *b); }
static void end(void) { shared_end(b, sizeof *b); }
static void wait_for(atomic_int *count, int value)
{
    while (atomic_load(count) < value) usleep(500);
}

/* Of a driver that works in every process, forked or not, and gives what is asked for. */
static ta_allocator *new_allocator(ta_null **null, uint64_t cap)
{
    const ta_null_config config = {1, 64 * GiB, 4 * MiB};
    ta_share_config share = share_of("", "", CAP(cap, NONE));
    ta_allocator *a = NULL;
    bool shared;
    if (ta_null_create(&config, null) ||
        ta_allocator_create(ta_null_driver(*null), NULL, &a) ||
        ta_share_open(a, 0, &share, &shared, why))
        _exit(90);
    return a;
}
static uint64_t held_of(ta_allocator *a)
{
    ta_share_state state;
    return ta_share_get(a, 0, &state) ? UINT64_MAX : state.held;
}

TEST(exactly_as_many_as_fit)
{
    enum { CROWD = 64, FIT = 32 };
    pid_t child[CROWD];
    begin();
    for (int i = 0; i < CROWD; i++) {
        child[i] = fork_child();
        if (child[i]) continue;
        ta_null *null;
        void *at;
        ta_allocator *a = new_allocator(&null, FIT * 64 * MiB);
        atomic_fetch_add(&b->ready, 1);
        while (!atomic_load(&b->go)) usleep(200);
        ta_status status = ta_alloc(a, 64 * MiB, 0, NULL, &at, NULL);
        if (status == TA_OK) atomic_fetch_add(&b->granted, 1);
        if (status && status != TA_OUT_OF_MEMORY) atomic_fetch_add(&b->failed, 1);
        if (held_of(a) != (status ? 0 : 64 * MiB)) atomic_fetch_add(&b->failed, 1);
        atomic_fetch_add(&b->ready, 1);
        while (atomic_load(&b->go) < 2) usleep(1000); /* holds it meanwhile */
        _exit(0);
    }
    wait_for(&b->ready, CROWD);
    atomic_store(&b->go, 1);
    wait_for(&b->ready, 2 * CROWD);
    uint64_t sum = living();
    int granted = atomic_load(&b->granted), failed = atomic_load(&b->failed);
    atomic_store(&b->go, 2);
    for (int i = 0; i < CROWD; i++) CHECK_EQ(exit_code(child[i]), 0);
    CHECK_EQ(failed, 0);
    CHECK_EQ(granted, FIT);
    CHECK_EQ(sum, FIT * 64 * MiB);
    end();
}

/* G14: each has a cap of its own as well; one wants ever more. */
TEST(only_the_greedy_one_fails)
{
    enum { COUNT = 4, GREEDY = 2 };
    pid_t child[COUNT];
    begin();
    for (int i = 0; i < COUNT; i++) {
        child[i] = fork_child();
        if (child[i]) continue;
        world w;
        held h[16];
        ta_oom oom;
        ta_share_config share = share_of("", "", CAP(256 * MiB, NONE));
        share_open(&w, 400 * MiB, shared_machine(), &share);
        if (ta_set_limit(w.allocator, 0, TA_LIMIT_ENVIRONMENT, 64 * MiB)) _exit(1);
        int refused = 0;
        for (int round = 0; round < 30; round++) {
            int count = i == GREEDY ? 16 : 7; /* of 8 MiB, in 64 MiB */
            for (int k = 0; k < count; k++)
                if (share_alloc(&w, &h[k], 8 * MiB, &oom)) {
                    refused++;
                    if (oom.refusal.scope != TA_SCOPE_PROCESS) _exit(2);
                }
            if (ta_sim_used(w.sim, 0, true) > 256 * MiB) _exit(3);
            for (int k = 0; k < count; k++)
                if (h[k].at) share_free(&w, &h[k]);
        }
        share_settled(&w);
        world_close(&w);
        _exit(ta_test_failed ? 4 : refused == (i == GREEDY ? 30 * 8 : 0) ? 0 : 5);
    }
    for (int i = 0; i < COUNT; i++) CHECK_EQ(exit_code(child[i]), 0);
    CHECK_EQ(living(), 0);
    end();
}

/* --- a crowd that is killed ------------------------------------------------------------------- */
#define CROWD_CAP (96 * MiB)
/* A killed one's place in the ledger may be free before its memory is: where that can be,
 * over means for longer than a while. */
static bool is_over(ta_sim *sim)
{
    const int looks = atomic_load(&b->go) ? 200 : 1;
    for (int i = 0; i < looks; i++) {
        if (ta_sim_used(sim, 0, true) <= CROWD_CAP) return false;
        if (looks > 1) usleep(1000);
    }
    return true;
}

static void live_in_a_crowd(unsigned seed)
{
    enum { SLOTS = 12 };
    world w;
    held h[SLOTS] = {{0}};
    ta_oom oom;
    uint64_t random = seed;
    ta_share_config share = share_of("", "", CAP(CROWD_CAP, NONE));
    share_open(&w, 2 * CROWD_CAP, shared_machine(), &share);
    if (ta_test_failed) _exit(1);
    for (;;) {
        held *one = &h[world_random(&random) % SLOTS];
        if (one->at)
            share_free(&w, one);
        else if (!share_alloc(&w, one, world_between(&random, 1, 20 * MiB), &oom))
            atomic_fetch_add(&b->granted, 1);
        else if (oom.status != TA_OUT_OF_MEMORY)
            atomic_fetch_add(&b->failed, 1);
        if (world_random(&random) % 16 == 0) ta_trim(w.allocator, 0, NULL);
        if (is_over(w.sim)) atomic_fetch_add(&b->over, 1);
    }
}
static pid_t start_in_a_crowd(unsigned seed)
{
    pid_t child = fork_child();
    if (child == 0) live_in_a_crowd(seed);
    return child;
}

/* S26, S27: the device itself is looked at throughout. */
TEST(a_crowd_of_allocators_stays_under_the_cap)
{
    enum { CROWD = 6 };
    pid_t child[CROWD];
    unsigned seed = 1;
    begin();
    for (int i = 0; i < CROWD; i++) child[i] = start_in_a_crowd(seed++);
    const double phase = getenv("TA_TEST_LONG") ? 30e6 : 1.5e6;
    usleep((useconds_t)phase); /* nobody dies, and it is never over */
    atomic_store(&b->go, 1);
    const double until = ta_now_us() + phase;
    int code = 1000 + SIGKILL;
    while (ta_now_us() < until && code == 1000 + SIGKILL) {
        int victim = (int)(seed % CROWD);
        usleep(20000 + seed * 7919 % 20000);
        kill(child[victim], SIGKILL);
        code = exit_code(child[victim]);
        child[victim] = start_in_a_crowd(seed++);
    }
    for (int i = 0; i < CROWD; i++) kill(child[i], SIGKILL);
    for (int i = 0; i < CROWD; i++) exit_code(child[i]);
    CHECK_EQ(code, 1000 + SIGKILL);
    CHECK_EQ(atomic_load(&b->over), 0);
    CHECK_EQ(atomic_load(&b->failed), 0);
    CHECK(atomic_load(&b->granted) > 100);
    world w;
    held all;
    ta_share_config share = share_of("", "", CAP(CROWD_CAP, NONE));
    share_open(&w, 2 * CROWD_CAP, shared_machine(), &share);
    CHECK_EQ(share_alloc(&w, &all, CROWD_CAP, NULL), TA_OK); /* all of it, at once */
    CHECK_EQ(share_free(&w, &all), TA_OK);
    world_close(&w);
    end();
}

/* --- a holder is killed ----------------------------------------------------------------------- */
#define BIG (3 * GiB)
/* One holds the books, another the memory, as a driver that is slow to tear down. */
static pid_t hold_memory(void)
{
    pid_t child = fork_child();
    if (child) return child;
    ta_sim_config config = {
        .devices = 1, .memory = BIG + GiB, .no_backing = true, .dir = shared_machine()};
    ta_sim *sim = NULL;
    ta_handle handle;
    if (ta_sim_create(&config, &sim)) _exit(1);
    const ta_driver *d = ta_sim_driver(sim);
    if (d->create(sim, 0, TA_TIER_DEVICE, BIG, &handle)) _exit(2);
    atomic_fetch_add(&b->ready, 1);
    for (;;) pause();
}
static pid_t hold_books(void)
{
    pid_t child = fork_child();
    if (child) return child;
    ta_ledger *l = join(&nobody);
    if (!l || reserve(l, BIG, BIG)) _exit(1);
    atomic_fetch_add(&b->ready, 1);
    for (;;) pause();
}
static void *kill_later(void *context)
{
    usleep(150000);
    kill(*(pid_t *)context, SIGKILL);
    return NULL;
}

TEST(the_next_gets_a_killed_holders_memory_once_the_driver_has_it)
{
    world w;
    held h;
    ta_oom oom;
    pthread_t thread;
    begin();
    ta_share_config share = share_of("", "", CAP(BIG, NONE));
    pid_t books = hold_books(), memory = hold_memory();
    wait_for(&b->ready, 2);
    share_open(&w, BIG + GiB, shared_machine(), &share);
    CHECK_EQ(share_alloc(&w, &h, BIG, &oom), TA_OUT_OF_MEMORY); /* both live */
    CHECK_EQ(oom.refusal.scope, TA_SCOPE_DEVICE);
    kill(books, SIGKILL);
    CHECK_EQ(exit_code(books), 1000 + SIGKILL);
    CHECK_EQ(pthread_create(&thread, NULL, kill_later, &memory), 0);
    const double since = ta_now_us();
    CHECK_EQ(share_alloc(&w, &h, BIG, &oom), TA_OK);
    CHECK(ta_now_us() - since > 50e3); /* it waited */
    pthread_join(thread, NULL);
    CHECK_EQ(exit_code(memory), 1000 + SIGKILL);
    CHECK_EQ(living(), BIG);
    CHECK_EQ(share_free(&w, &h), TA_OK);
    share_settled(&w);
    world_close(&w);
    end();
}

/* --- one is stopped --------------------------------------------------------------------------- */
static void stop_there(const char *name)
{
    if (strcmp(name, "read") != 0) return;
    atomic_store(&b->ready, 1);
    raise(SIGSTOP);
}
typedef struct request {
    ta_allocator *allocator;
    ta_status status;
    ta_oom oom;
} request;
static void *request_growth(void *context)
{
    request *r = context;
    void *at;
    r->status = ta_alloc(r->allocator, 32 * MiB, 0, NULL, &at, &r->oom);
    return NULL;
}

/* It has the ledger's lock in its hand. Who grows waits, and is told; who needs no growth
 * goes on meanwhile, for no lock of ours is held. */
TEST(a_stopped_process_holds_up_growth_alone)
{
    begin();
    ta_null *null;
    ta_allocator *a = new_allocator(&null, 64 * MiB);
    void *at;
    char text[1024];
    pthread_t thread;
    /* On another stream than those below: who waits for growth has not taken it. */
    CHECK_EQ(ta_alloc(a, 8 * MiB, 0, (ta_stream)1, &at, NULL), TA_OK);
    CHECK_EQ(ta_free(a, at), TA_OK);
    pid_t child = fork_child();
    if (child == 0) {
        ta_ledger *l = join(&nobody);
        ta_ledger_step = stop_there;
        _exit(l && reserve(l, MiB, 64 * MiB) == TA_OK ? 0 : 1);
    }
    wait_for(&b->ready, 1);
    request r = {.allocator = a};
    CHECK_EQ(pthread_create(&thread, NULL, request_growth, &r), 0);
    usleep(100000);
    const double since = ta_now_us();
    CHECK_EQ(ta_alloc(a, 100, 0, NULL, &at, NULL), TA_OK); /* an idle page moves */
    CHECK_EQ(ta_free(a, at), TA_OK);
    CHECK_EQ(ta_trim(a, 0, NULL), TA_OK);
    CHECK(ta_now_us() - since < TA_LEDGER_PATIENCE_US);
    CHECK_EQ(held_of(a), 0);
    pthread_join(thread, NULL);
    CHECK(ta_now_us() - since < 1.9 * TA_LEDGER_PATIENCE_US); /* waited for once */
    CHECK_EQ(r.status, TA_OUT_OF_MEMORY);
    CHECK_EQ(r.oom.refusal.scope, TA_SCOPE_LEDGER);
    ta_oom_text(&r.oom, text, sizeof text);
    CHECK(strstr(text, "kept by another process for 2 seconds: is one stopped?"));
    kill(child, SIGCONT);
    CHECK_EQ(exit_code(child), 0);
    CHECK_EQ(ta_alloc(a, 32 * MiB, 0, NULL, &at, NULL), TA_OK);
    ta_allocator_destroy(a);
    ta_null_destroy(null);
    end();
}

/* --- forks ------------------------------------------------------------------------------------ */
/* Before anything is claimed a child is as good as its parent: it takes a place of its own. */
TEST(forked_before_the_claim)
{
    begin();
    ta_null *null;
    ta_allocator *a = new_allocator(&null, 64 * MiB);
    void *at;
    pid_t child = fork_child();
    if (child == 0) {
        if (ta_alloc(a, 40 * MiB, 0, NULL, &at, NULL)) _exit(1);
        atomic_fetch_add(&b->ready, 1);
        while (!atomic_load(&b->go)) usleep(500);
        _exit(held_of(a) == 40 * MiB ? 0 : 2);
    }
    wait_for(&b->ready, 1);
    CHECK_EQ(living(), 40 * MiB);
    CHECK_EQ(ta_alloc(a, 32 * MiB, 0, NULL, &at, NULL), TA_OUT_OF_MEMORY);
    CHECK_EQ(ta_alloc(a, 24 * MiB, 0, NULL, &at, NULL), TA_OK);
    CHECK_EQ(living(), 64 * MiB);
    atomic_store(&b->go, 1);
    CHECK_EQ(exit_code(child), 0); /* it exits without a word */
    CHECK_EQ(living(), 24 * MiB);
    CHECK_EQ(ta_alloc(a, 40 * MiB, 0, NULL, &at, NULL), TA_OK);
    ta_allocator_destroy(a);
    ta_null_destroy(null);
    CHECK_EQ(living(), 0);
    end();
}

/* After it the child holds nothing, says so, and its end changes nothing; nor does it keep
 * its parent's share alive. */
TEST(forked_after_the_claim)
{
    begin();
    pid_t parent = fork_child();
    if (parent == 0) {
        ta_null *null;
        ta_allocator *a = new_allocator(&null, 64 * MiB);
        void *at, *other;
        if (ta_alloc(a, 40 * MiB, 0, NULL, &at, NULL)) _exit(1);
        for (int i = 0; i < 2; i++) {
            pid_t child = fork();
            if (child == 0) {
                bool right = ta_alloc(a, MiB, 0, NULL, &other, NULL) == TA_FORKED &&
                             ta_free(a, at) == TA_FORKED && held_of(a) == UINT64_MAX;
                ta_allocator_destroy(a); /* gives back nothing of its parent's */
                if (!right) atomic_fetch_add(&b->failed, 1);
                atomic_fetch_add(&b->ready, 1);
                /* The first lives longer than its parent. */
                for (int k = 0; !i && k < 20000 && !atomic_load(&b->go); k++)
                    usleep(1000);
                _exit(0);
            }
            if (i && exit_code(child)) _exit(2);
        }
        for (;;) pause();
    }
    wait_for(&b->ready, 2);
    CHECK_EQ(atomic_load(&b->failed), 0);
    CHECK_EQ(living(), 40 * MiB);
    ta_null *null;
    ta_allocator *a = new_allocator(&null, 64 * MiB);
    void *at;
    CHECK_EQ(ta_alloc(a, 32 * MiB, 0, NULL, &at, NULL), TA_OUT_OF_MEMORY);
    CHECK_EQ(kill(parent, SIGKILL), 0); /* its child lives */
    CHECK_EQ(exit_code(parent), 1000 + SIGKILL);
    CHECK_EQ(ta_alloc(a, 64 * MiB, 0, NULL, &at, NULL), TA_OK);
    atomic_store(&b->go, 1);
    ta_allocator_destroy(a);
    ta_null_destroy(null);
    end();
}

static void *grow_and_shrink(void *context)
{
    ta_allocator *a = context;
    void *at;
    for (int i = 0; !atomic_load(&b->go); i++) {
        if (ta_alloc(a, 8 * MiB, 0, NULL, &at, NULL)) {
            atomic_fetch_add(&b->failed, 1);
            continue;
        }
        ta_free(a, at);
        if (i % 2) ta_trim(a, 0, NULL);
    }
    return NULL;
}
/* While threads of the parent have the ledger's locks in their hands. */
TEST(forked_while_reserving)
{
    begin();
    ta_null *null;
    ta_allocator *a = new_allocator(&null, 64 * MiB);
    pthread_t thread[2];
    void *at;
    CHECK_EQ(ta_alloc(a, 4 * MiB, 0, NULL, &at, NULL), TA_OK);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_create(&thread[i], NULL, grow_and_shrink, a), 0);
    for (int i = 0; i < 60; i++) {
        pid_t child = fork_child();
        if (child == 0) {
            void *other;
            bool refused = ta_alloc(a, 8 * MiB, 0, NULL, &other, NULL) == TA_FORKED;
            ta_allocator *own;
            ta_null *driver;
            own = new_allocator(&driver, 64 * MiB); /* one of its own works */
            bool given = ta_alloc(own, 8 * MiB, 0, NULL, &other, NULL) == TA_OK;
            _exit(refused && given ? 0 : 1);
        }
        CHECK_EQ(exit_code(child), 0);
    }
    atomic_store(&b->go, 1);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    CHECK_EQ(atomic_load(&b->failed), 0);
    CHECK_EQ(ta_trim(a, 0, NULL), TA_OK);
    CHECK_EQ(living(), held_of(a));
    ta_allocator_destroy(a);
    ta_null_destroy(null);
    CHECK_EQ(living(), 0);
    end();
}

TEST_MAIN()
