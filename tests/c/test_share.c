/* test_share.c - allocators under one cap: growth is charged before the driver gives, and
 * given back after it took. One process here; test_share_processes.c has several. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "../../csrc/core/clock.h"
#include "../../csrc/core/ledger/ledger.h"
#include "share_world.h"

#define NONE TA_NO_LIMIT

static void open_two(world *a, world *b, ta_share_caps caps)
{
    ta_share_config first = share_of("first", "red", caps),
                    second = share_of("second", "blue", caps);
    open_directory();
    share_open(a, GiB, NULL, &first);
    share_open(b, GiB, NULL, &second);
}
static void close_two(world *a, world *b)
{
    if (ta_test_failed) return;
    share_settled(a);
    share_settled(b);
    world_close(a);
    world_close(b);
    CHECK_EQ(living(), 0);
    close_directory();
}

TEST(the_sum_stays_under_the_cap)
{
    world a, b;
    held x, y, z;
    ta_oom oom;
    char text[1024];
    open_two(&a, &b, CAP(64 * MiB, NONE));
    CHECK_EQ(living(), 0); /* nobody has a place there before it grows */
    CHECK_EQ(share_alloc(&a, &x, 40 * MiB, &oom), TA_OK);
    CHECK_EQ(living(), 40 * MiB);
    CHECK_EQ(share_alloc(&b, &y, 25 * MiB, &oom), TA_OUT_OF_MEMORY);
    CHECK_EQ(oom.refusal.scope, TA_SCOPE_DEVICE);
    CHECK_EQ(oom.refusal.cap, 64 * MiB);
    CHECK_EQ(oom.refusal.others, 40 * MiB);
    CHECK_EQ(oom.refusal.processes, 1);
    CHECK_EQ(oom.short_by, 4 * MiB); /* of seven new pages there is room for six */
    ta_oom_text(&oom, text, sizeof text);
    CHECK(strstr(text, "64.00 MiB allowed (the cap that the processes on this GPU share, "
                       "of which 1 other holds 40.00 MiB and this one 0 bytes; CUDA "
                       "contexts come on top); "));
    CHECK(strstr(text, "a higher shared cap would do"));
    CHECK_EQ(share_alloc(&b, &y, 24 * MiB, &oom), TA_OK);
    CHECK_EQ(living(), 64 * MiB);
    CHECK_EQ(share_alloc(&a, &z, 4 * MiB, &oom), TA_OUT_OF_MEMORY);
    CHECK_EQ(share_free(&b, &y), TA_OK);
    CHECK_EQ(ta_trim(b.allocator, 0, NULL), TA_OK);
    CHECK_EQ(share_alloc(&a, &z, 24 * MiB, &oom), TA_OK);
    CHECK_EQ(share_free(&a, &z), TA_OK);
    CHECK_EQ(share_free(&a, &x), TA_OK);
    close_two(&a, &b);
}

TEST(a_tenants_cap)
{
    world a, b, c;
    held x, y, z;
    ta_oom oom;
    char text[1024];
    ta_share_config red = share_of("", "red", CAP(64 * MiB, 32 * MiB)),
                    blue = share_of("", "blue", CAP(64 * MiB, 32 * MiB));
    open_directory();
    share_open(&a, GiB, NULL, &red);
    share_open(&b, GiB, NULL, &red);
    share_open(&c, GiB, NULL, &blue);
    CHECK_EQ(share_alloc(&a, &x, 20 * MiB, &oom), TA_OK);
    CHECK_EQ(share_alloc(&b, &y, 16 * MiB, &oom), TA_OUT_OF_MEMORY);
    CHECK_EQ(oom.refusal.scope, TA_SCOPE_TENANT);
    CHECK_EQ(oom.refusal.others, 20 * MiB);
    ta_oom_text(&oom, text, sizeof text);
    CHECK(strstr(text, "32.00 MiB allowed (the cap that the processes of tenant 'red' on "
                       "this GPU share, of which 1 other holds 20.00 MiB"));
    CHECK_EQ(share_alloc(&c, &z, 32 * MiB, &oom), TA_OK);
    CHECK_EQ(share_free(&a, &x), TA_OK);
    CHECK_EQ(share_free(&c, &z), TA_OK);
    share_settled(&a);
    world_close(&a);
    world_close(&b);
    world_close(&c);
    close_directory();
}

/* Under the shared cap as under the process's own: idle memory of ours goes first. */
TEST(our_idle_memory_goes_before_a_refusal)
{
    world a, b;
    held x, y, z;
    ta_oom oom;
    open_two(&a, &b, CAP(64 * MiB, NONE));
    CHECK_EQ(share_alloc(&a, &x, 20 * MiB, &oom), TA_OK);
    CHECK_EQ(share_alloc(&b, &y, 40 * MiB, &oom), TA_OK);
    world_use(&b, &y, NULL, true, 5000);
    CHECK_EQ(share_free(&b, &y), TA_OK);
    /* Another size on another stream: 40 idle, which are waited for, and one new page. */
    void *at;
    CHECK_EQ(ta_alloc(b.allocator, 44 * MiB, 0, b.stream[0][1], &at, &oom), TA_OK);
    CHECK_EQ(living(), 64 * MiB);
    CHECK(world_stats(&b, 0).page_moves >= 10);
    CHECK_EQ(share_alloc(&b, &z, 48 * MiB, &oom), TA_OUT_OF_MEMORY);
    CHECK_EQ(ta_free(b.allocator, at), TA_OK);
    CHECK_EQ(ta_alloc(b.allocator, 48 * MiB, 0, b.stream[0][2], &at, &oom),
             TA_OUT_OF_MEMORY); /* 44 idle and nothing new: never */
    CHECK_EQ(oom.short_by, 4 * MiB);
    CHECK_EQ(oom.refusal.scope, TA_SCOPE_DEVICE);
    CHECK_EQ(share_free(&a, &x), TA_OK);
    close_two(&a, &b);
}

/* --- what others hold unused ------------------------------------------------------------------ */
TEST(holders_are_asked_for_what_they_hold_unused)
{
    world a, b;
    held x, y, z, small;
    ta_oom oom;
    uint64_t released = 0;
    open_two(&a, &b, CAP(64 * MiB, NONE));
    CHECK_EQ(share_alloc(&a, &x, 40 * MiB, &oom), TA_OK);
    CHECK_EQ(share_alloc(&a, &y, 8 * MiB, &oom), TA_OK);
    CHECK_EQ(share_free(&a, &x), TA_OK);
    CHECK_EQ(share_alloc(&b, &z, 24 * MiB, &oom), TA_OUT_OF_MEMORY);
    CHECK_EQ(living(), 48 * MiB); /* nothing happens behind a holder's back */
    CHECK_EQ(ta_share_heed(a.allocator, 0, &released), TA_OK);
    CHECK_EQ(released, 8 * MiB); /* as much as was lacking */
    CHECK_EQ(ta_share_heed(a.allocator, 0, &released), TA_OK);
    CHECK_EQ(released, 0); /* once */
    CHECK_EQ(share_alloc(&b, &z, 24 * MiB, &oom), TA_OK);
    CHECK_EQ(share_free(&b, &z), TA_OK);
    CHECK_EQ(share_alloc(&b, &z, 52 * MiB, &oom),
             TA_OUT_OF_MEMORY); /* 28 MiB asked for */
    CHECK_EQ(share_alloc(&b, &z, 24 * MiB, &oom), TA_OK);
    /* A request that needs pages heeds as well, once it is served. */
    CHECK_EQ(share_alloc(&a, &small, 1 * MiB, &oom), TA_OK);
    CHECK_EQ(living(), 24 * MiB + 8 * MiB + 4 * MiB); /* of its 32 idle MiB it used 4 */
    CHECK_EQ(share_free(&a, &small), TA_OK);
    CHECK_EQ(share_free(&a, &y), TA_OK);
    CHECK_EQ(share_free(&b, &z), TA_OK);
    close_two(&a, &b);
}

typedef struct heeder {
    world *w;
    atomic_bool over;
} heeder;
static void *heed(void *context)
{
    heeder *h = context;
    while (!atomic_load(&h->over)) {
        ta_share_heed(h->w->allocator, 0, NULL);
        usleep(1000);
    }
    return NULL;
}
/* Who is refused waits a little where others said that they hold memory unused. */
TEST(an_answer_is_waited_for)
{
    world a, b;
    held x, y, z;
    ta_oom oom;
    pthread_t thread;
    open_two(&a, &b, CAP(64 * MiB, NONE));
    CHECK_EQ(share_alloc(&a, &x, 40 * MiB, &oom), TA_OK);
    CHECK_EQ(share_free(&a, &x), TA_OK);
    CHECK_EQ(share_alloc(&a, &y, 48 * MiB, &oom), TA_OK); /* says that 40 are unused */
    CHECK_EQ(share_free(&a, &y), TA_OK);
    heeder h = {.w = &a};
    CHECK_EQ(pthread_create(&thread, NULL, heed, &h), 0);
    ta_status status = share_alloc(&b, &z, 40 * MiB, &oom);
    atomic_store(&h.over, true);
    pthread_join(thread, NULL);
    CHECK_EQ(status, TA_OK);
    CHECK_EQ(living(), 64 * MiB);
    /* Nobody answers: refused, after a moment, and that is said. */
    CHECK_EQ(share_alloc(&a, &y, 8 * MiB, &oom), TA_OK);
    CHECK_EQ(share_free(&b, &z), TA_OK);
    CHECK_EQ(share_alloc(&b, &z, 40 * MiB, &oom), TA_OK);
    const double since = ta_now_us();
    CHECK_EQ(share_alloc(&a, &x, 40 * MiB, &oom), TA_OUT_OF_MEMORY);
    CHECK(ta_now_us() - since < 5e6);
    CHECK_EQ(share_free(&a, &y), TA_OK);
    CHECK_EQ(share_free(&b, &z), TA_OK);
    close_two(&a, &b);
}

/* Threads of two allocators that want twice what there is: whoever is refused, the books say
 * what the drivers gave, and at the end nothing is left. */
typedef struct worker {
    world *w;
    uint64_t seed;
    int stream, refused, wrong;
} worker;
static void *work(void *context)
{
    worker *k = context;
    void *at[8] = {0};
    for (int i = 0; i < 400; i++) {
        void **one = &at[world_random(&k->seed) % 8];
        const uint64_t size = world_between(&k->seed, 1, 12 * MiB);
        if (*one) {
            k->wrong += ta_free(k->w->allocator, *one) != TA_OK;
            *one = NULL;
        } else {
            ta_oom oom;
            ta_status status =
                ta_alloc(k->w->allocator, size, 0, k->w->stream[0][k->stream], one, &oom);
            k->wrong += status && (status != TA_OUT_OF_MEMORY ||
                                   oom.refusal.scope != TA_SCOPE_DEVICE);
            k->refused += status != TA_OK;
        }
        if (i % 50 == 0) ta_trim(k->w->allocator, 0, NULL);
        if (i % 20 == 0) ta_share_heed(k->w->allocator, 0, NULL);
    }
    for (int i = 0; i < 8; i++) ta_free(k->w->allocator, at[i]);
    return NULL;
}
TEST(threads_of_two_allocators)
{
    enum { THREADS = 4 };
    world w[2];
    worker k[THREADS];
    pthread_t thread[THREADS];
    open_two(&w[0], &w[1], CAP(100 * MiB, NONE));
    for (int i = 0; i < THREADS; i++) {
        k[i] = (worker){&w[i % 2], (uint64_t)i + 1, 1 + i / 2, 0, 0};
        CHECK_EQ(pthread_create(&thread[i], NULL, work, &k[i]), 0);
    }
    int refused = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        CHECK_EQ(k[i].wrong, 0);
        refused += k[i].refused;
    }
    CHECK(refused > 0);
    CHECK(living() <= 100 * MiB);
    close_two(&w[0], &w[1]);
}

/* --- other caps, live --------------------------------------------------------------------- */
TEST(a_cap_is_lowered_and_raised)
{
    world a, b;
    held x, y, z;
    ta_oom oom;
    uint64_t released;
    ta_share_caps lower = CAP(32 * MiB, NONE), higher = CAP(96 * MiB, NONE);
    open_two(&a, &b, CAP(64 * MiB, NONE));
    CHECK_EQ(share_alloc(&a, &x, 16 * MiB, &oom), TA_OK);
    CHECK_EQ(share_alloc(&a, &y, 12 * MiB, &oom), TA_OK);
    CHECK_EQ(share_alloc(&b, &z, 24 * MiB, &oom), TA_OK);
    CHECK_EQ(share_free(&a, &y), TA_OK);
    CHECK_EQ(ta_share_set_caps(a.allocator, 0, &lower, &released), TA_OK);
    CHECK_EQ(released, 12 * MiB);
    CHECK_EQ(ta_share_set_caps(b.allocator, 0, &lower, &released), TA_OK);
    CHECK_EQ(released, 0);
    CHECK_EQ(living(), 40 * MiB); /* live blocks stay */
    CHECK_EQ(share_alloc(&a, &y, 4 * MiB, &oom), TA_OUT_OF_MEMORY);
    CHECK_EQ(oom.refusal.cap, 32 * MiB);
    CHECK_EQ(ta_share_set_caps(a.allocator, 0, &higher, &released), TA_OK);
    CHECK_EQ(share_alloc(&a, &y, 56 * MiB, &oom), TA_OK);
    CHECK_EQ(ta_share_set_caps(a.allocator, 1, &higher, &released), TA_INVALID);
    CHECK_EQ(share_free(&a, &x), TA_OK);
    CHECK_EQ(share_free(&a, &y), TA_OK);
    CHECK_EQ(share_free(&b, &z), TA_OK);
    close_two(&a, &b);
}

/* The process's own cap and the shared one: whichever refuses is named. */
TEST(the_cap_that_refuses_is_named)
{
    world a, b;
    held x, y;
    ta_oom oom;
    char text[1024];
    open_two(&a, &b, CAP(64 * MiB, NONE));
    CHECK_EQ(ta_set_limit(a.allocator, 0, TA_LIMIT_ADMIN, 32 * MiB), TA_OK);
    CHECK_EQ(share_alloc(&a, &x, 36 * MiB, &oom), TA_OUT_OF_MEMORY);
    CHECK_EQ(oom.refusal.scope, TA_SCOPE_PROCESS);
    CHECK_EQ(oom.refusal.cap, 32 * MiB);
    CHECK_EQ(living(), 0);
    ta_oom_text(&oom, text, sizeof text);
    CHECK(strstr(text, "32.00 MiB allowed (the cap set by the administrator"));
    CHECK_EQ(share_alloc(&b, &y, 48 * MiB, &oom), TA_OK);
    CHECK_EQ(share_alloc(&a, &x, 20 * MiB, &oom), TA_OUT_OF_MEMORY);
    CHECK_EQ(oom.refusal.scope, TA_SCOPE_DEVICE);
    CHECK_EQ(share_alloc(&a, &x, 16 * MiB, &oom), TA_OK);
    ta_share_row row[2];
    size_t count;
    CHECK_EQ(ta_share_read(directory, GPU, row, 2, &count, why), TA_OK);
    CHECK_EQ(count, 2);
    CHECK_EQ(row[1].limit, 32 * MiB); /* a's, who came second */
    CHECK_EQ(row[1].limit_source, TA_LIMIT_ADMIN);
    CHECK_EQ(row[1].refused, 1);
    CHECK_STR(row[1].label, "first");
    CHECK_EQ(share_free(&a, &x), TA_OK);
    CHECK_EQ(share_free(&b, &y), TA_OK);
    close_two(&a, &b);
}

TEST(observed_only)
{
    world a;
    held x;
    ta_oom oom;
    ta_share_config config = share_of("", "", (ta_share_caps){8 * MiB, NONE, true});
    open_directory();
    share_open(&a, GiB, NULL, &config);
    CHECK_EQ(share_alloc(&a, &x, 40 * MiB, &oom), TA_OK);
    ta_share_row row;
    size_t count;
    CHECK_EQ(ta_share_read(directory, GPU, &row, 1, &count, why), TA_OK);
    CHECK_EQ(row.bytes, 40 * MiB);
    CHECK_EQ(row.refused, 1);
    CHECK_EQ(share_free(&a, &x), TA_OK);
    share_settled(&a);
    world_close(&a);
    close_directory();
}

/* --- trouble ---------------------------------------------------------------------------------- */
static void truncate_it(void)
{
    char path[256];
    path_of(path, sizeof path);
    CHECK_EQ(truncate(path, 4096), 0);
}

TEST(an_unusable_ledger_refuses_growth_and_says_why)
{
    world a;
    held x, y;
    ta_oom oom;
    char text[1024];
    ta_share_config config = share_of("", "", CAP(64 * MiB, NONE));
    open_directory();
    share_open(&a, GiB, NULL, &config);
    CHECK_EQ(share_alloc(&a, &x, 20 * MiB, &oom), TA_OK);
    truncate_it();
    CHECK_EQ(share_alloc(&a, &y, 20 * MiB, &oom), TA_OUT_OF_MEMORY);
    CHECK_EQ(oom.refusal.scope, TA_SCOPE_LEDGER);
    ta_oom_text(&oom, text, sizeof text);
    CHECK(strstr(text,
                 "Growth is refused while the ledger of the GPU's shared cap cannot "
                 "be used (the ledger was truncated)"));
    CHECK_EQ(share_free(&a, &x), TA_OK);
    CHECK_EQ(share_alloc(&a, &y, 20 * MiB, &oom), TA_OK); /* no growth: its own pages */
    ta_share_state state;
    CHECK_EQ(ta_share_get(a.allocator, 0, &state), TA_OK);
    CHECK_STR(state.problem, "the ledger was truncated");
    CHECK_EQ(share_free(&a, &y), TA_OK);
    share_settled(&a);
    world_close(&a);
    close_directory();
}

TEST(where_it_only_observes_growth_goes_on)
{
    world a;
    held x, y;
    ta_oom oom;
    ta_share_config config = share_of("", "", (ta_share_caps){64 * MiB, NONE, true});
    open_directory();
    share_open(&a, GiB, NULL, &config);
    CHECK_EQ(share_alloc(&a, &x, 20 * MiB, &oom), TA_OK);
    truncate_it();
    CHECK_EQ(share_alloc(&a, &y, 20 * MiB, &oom), TA_OK);
    ta_share_state state;
    CHECK_EQ(ta_share_get(a.allocator, 0, &state), TA_OK);
    CHECK_STR(state.problem, "the ledger was truncated");
    CHECK(!state.joined);
    CHECK_EQ(share_free(&a, &x), TA_OK);
    CHECK_EQ(share_free(&a, &y), TA_OK);
    CHECK_EQ(ta_trim(a.allocator, 0, NULL), TA_OK);
    world_close(&a);
    close_directory();
}

/* Growth that went on uncounted is counted, or refused, as soon as the mode is to enforce. */
TEST(what_was_left_while_observing_is_enforced)
{
    world a;
    held x, y, z;
    ta_oom oom;
    char path[256];
    ta_share_caps caps = {64 * MiB, NONE, true};
    ta_share_config config = share_of("", "", caps);
    ta_share_state state;
    open_directory();
    share_open(&a, GiB, NULL, &config);
    CHECK_EQ(share_alloc(&a, &x, 20 * MiB, &oom), TA_OK);
    truncate_it();
    CHECK_EQ(share_alloc(&a, &y, 20 * MiB, &oom), TA_OK);
    caps.observe = false;
    CHECK_EQ(ta_share_set_caps(a.allocator, 0, &caps, NULL), TA_OK);
    CHECK_EQ(share_alloc(&a, &z, 4 * MiB, &oom), TA_OUT_OF_MEMORY);
    CHECK_EQ(oom.refusal.scope, TA_SCOPE_LEDGER);
    path_of(path, sizeof path);
    CHECK_EQ(unlink(path), 0); /* what an administrator does about it */
    CHECK_EQ(share_alloc(&a, &z, 40 * MiB, &oom), TA_OUT_OF_MEMORY);
    CHECK_EQ(oom.refusal.scope, TA_SCOPE_DEVICE);
    share_settled(&a);
    CHECK_EQ(ta_share_get(a.allocator, 0, &state), TA_OK);
    CHECK_EQ(state.held, 40 * MiB);
    CHECK_EQ(share_alloc(&a, &z, 20 * MiB, &oom), TA_OK);
    CHECK_EQ(share_free(&a, &x), TA_OK);
    CHECK_EQ(share_free(&a, &y), TA_OK);
    CHECK_EQ(share_free(&a, &z), TA_OK);
    share_settled(&a);
    world_close(&a);
    close_directory();
}

TEST(opening_is_refused_in_words)
{
    world a;
    held x;
    bool shared;
    ta_share_config config = share_of("", "", CAP(64 * MiB, NONE));
    ta_sim_config machine = {.devices = 1, .memory = GiB, .no_backing = true};
    open_directory();
    world_open(&a, &machine, 2);
    CHECK_EQ(chmod(directory, 0777), 0);
    CHECK_EQ(ta_share_open(a.allocator, 0, &config, &shared, why), TA_INVALID);
    CHECK(strstr(why, "writable by everybody"));
    CHECK_EQ(chmod(directory, 0700), 0);
    CHECK_EQ(ta_share_open(a.allocator, 64, &config, &shared, why), TA_INVALID);
    CHECK_EQ(share_alloc(&a, &x, MiB, NULL), TA_OK);
    CHECK_EQ(ta_share_open(a.allocator, 0, &config, &shared, why), TA_INVALID);
    CHECK(strstr(why, "holds memory already"));
    CHECK_EQ(share_free(&a, &x), TA_OK);
    CHECK_EQ(ta_trim(a.allocator, 0, NULL), TA_OK);
    CHECK_EQ(ta_share_open(a.allocator, 0, &config, &shared, why), TA_OK);
    CHECK_EQ(ta_share_open(a.allocator, 0, &config, &shared, why), TA_OK); /* again */
    CHECK_EQ(share_alloc(&a, &x, MiB, NULL), TA_OK);
    CHECK_EQ(ta_trim(a.allocator, 0, NULL), TA_OK);
    CHECK_EQ(ta_share_open(a.allocator, 0, &config, &shared, why), TA_INVALID);
    CHECK_EQ(share_free(&a, &x), TA_OK);
    share_settled(&a);
    world_close(&a);
    close_directory();
}

/* --- the driver ------------------------------------------------------------------------------- */
TEST(what_the_driver_refuses_is_not_charged)
{
    world a, b;
    held x, y;
    ta_oom oom;
    open_two(&a, &b, CAP(512 * MiB, NONE));
    CHECK_EQ(share_alloc(&a, &x, 8 * MiB, &oom), TA_OK);
    ta_sim_fail(a.sim, TA_SIM_CALL_create, 5, UINT64_MAX / 2, TA_OUT_OF_MEMORY);
    CHECK_EQ(share_alloc(&a, &y, 64 * MiB, &oom), TA_OUT_OF_MEMORY);
    CHECK_EQ(oom.refusal.scope, TA_SCOPE_NONE);
    CHECK_EQ(living(), 8 * MiB);
    ta_sim_fail(a.sim, TA_SIM_CALL_create, 5, UINT64_MAX / 2, TA_DRIVER);
    CHECK_EQ(share_alloc(&a, &y, 64 * MiB, &oom), TA_DRIVER);
    CHECK_EQ(living(), 8 * MiB);
    share_settled(&a);
    ta_sim_fail(a.sim, TA_SIM_CALL_create, 0, 0, TA_OK);
    CHECK_EQ(share_alloc(&a, &y, 64 * MiB, &oom), TA_OK);
    CHECK_EQ(living(), 72 * MiB);
    /* Growth of many pages is one call to the ledger, and what it keeps is exact. */
    CHECK_EQ(share_free(&a, &x), TA_OK);
    CHECK_EQ(share_free(&a, &y), TA_OK);
    close_two(&a, &b);
}

/* One that died holding bytes, in the books. */
static void leave_a_corpse(uint64_t bytes)
{
    pid_t child = fork_child();
    if (child == 0) {
        ta_ledger *own = join(&nobody);
        if (!own || reserve(own, bytes, NONE)) _exit(1);
        raise(SIGKILL);
    }
    CHECK_EQ(exit_code(child), 1000 + SIGKILL);
}

/* The books say free, the driver not yet. */
TEST(a_dead_ones_memory_is_waited_for)
{
    world a, b;
    held x;
    ta_oom oom;
    open_two(&a, &b, CAP(64 * MiB, NONE));
    ta_sim_fail(a.sim, TA_SIM_CALL_create, 1, 20, TA_OUT_OF_MEMORY);
    CHECK_EQ(share_alloc(&a, &x, 48 * MiB, &oom), TA_OUT_OF_MEMORY); /* nobody died */
    leave_a_corpse(64 * MiB);
    ta_sim_fail(a.sim, TA_SIM_CALL_create, 1, 20, TA_OUT_OF_MEMORY);
    CHECK_EQ(share_alloc(&a, &x, 48 * MiB, &oom), TA_OK);
    CHECK_EQ(living(), 48 * MiB);
    CHECK_EQ(share_free(&a, &x), TA_OK);
    close_two(&a, &b);
}

/* --- without VMM ------------------------------------------------------------------------------ */
TEST(plain_ranges_are_charged)
{
    world w;
    held x, y;
    ta_oom oom;
    bool shared;
    ta_sim_config machine = {.devices = 1, .memory = GiB, .seed = 3, .no_vmm = true};
    ta_config policy = {.fallback = true};
    ta_share_config config = share_of("", "", CAP(128 * MiB, NONE));
    open_directory();
    world_open_with(&w, &machine, 2, &policy);
    CHECK_EQ(ta_share_open(w.allocator, 0, &config, &shared, why), TA_OK);
    CHECK_EQ(share_alloc(&w, &x, 100 * MiB, &oom), TA_OK);
    CHECK_EQ(living(), 100 * MiB);
    CHECK_EQ(share_alloc(&w, &y, 32 * MiB, &oom), TA_OUT_OF_MEMORY);
    CHECK_EQ(oom.refusal.scope, TA_SCOPE_DEVICE);
    share_settled(&w);
    CHECK_EQ(share_alloc(&w, &y, 28 * MiB, &oom), TA_OK); /* no room for a large range */
    CHECK_EQ(living(), 128 * MiB);
    world_use(&w, &x, NULL, true, 5000);
    CHECK_EQ(share_free(&w, &x), TA_OK);
    CHECK_EQ(share_alloc(&w, &x, 90 * MiB, &oom), TA_OK); /* the idle range goes first */
    CHECK_EQ(share_free(&w, &x), TA_OK);
    ta_sim_fail(w.sim, TA_SIM_CALL_plain_alloc, 1, UINT64_MAX / 2, TA_OUT_OF_MEMORY);
    CHECK_EQ(ta_trim(w.allocator, 0, NULL), TA_OK);
    CHECK_EQ(share_alloc(&w, &x, 50 * MiB, &oom), TA_OUT_OF_MEMORY);
    CHECK_EQ(oom.refusal.scope, TA_SCOPE_NONE);
    share_settled(&w);
    leave_a_corpse(64 * MiB);
    ta_sim_fail(w.sim, TA_SIM_CALL_plain_alloc, 1, 20, TA_OUT_OF_MEMORY);
    CHECK_EQ(share_alloc(&w, &x, 50 * MiB, &oom), TA_OK);
    CHECK_EQ(share_free(&w, &x), TA_OK);
    CHECK_EQ(share_free(&w, &y), TA_OK);
    share_settled(&w);
    world_close(&w);
    CHECK_EQ(living(), 0);
    close_directory();
}

TEST_MAIN()
