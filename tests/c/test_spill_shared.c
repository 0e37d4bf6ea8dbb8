/* test_spill_shared.c - host memory under a cap that processes share: each is a real process with
 * an allocator, on one simulated device. What one spills the others see; who is asked for
 * memory that it uses sends it out at its next mark; bytes stay, and none is over the cap. */
#include <stdatomic.h>

#include "../../csrc/core/clock.h"
#include "share_world.h"

/* What parent and children see of each other. */
typedef struct board {
    atomic_int phase, done, over, wrong;
    _Atomic uint64_t steps, sent, spilled;
} board;
static board *b;

static void begin(void) { b = shared_begin(sizeof *b); }
static void end(void) { shared_end(b, sizeof *b); }
/* One does its part after the other. */
static void turn(int phase)
{
    while (atomic_load(&b->phase) < phase) usleep(300);
}
static void next(void) { atomic_fetch_add(&b->phase, 1); }

static void open_process(world *w, uint64_t memory, uint64_t cap, bool net)
{
    const ta_sim_config config = {.devices = 1,
                                  .memory = memory,
                                  .seed = (uint64_t)getpid(),
                                  .dir = shared_machine()};
    const ta_share_config share = share_of("", "", CAP(cap, TA_NO_LIMIT));
    const ta_spill_config spill = {.host_bytes = 256 * MiB, .net = net};
    bool shared;
    world_open(w, &config, 2);
    if (ta_test_failed) _exit(90);
    ta_oracle_allow_moves(w->sim, true);
    if (ta_share_open(w->allocator, 0, &share, &shared, why)) _exit(91);
    if (ta_set_spill(w->allocator, &spill)) _exit(92);
}

static ta_status bring(world *w, held *h)
{
    ta_status status = world_alloc(w, h, 8 * MiB, 0, NULL);
    if (status) return status;
    h->serial = (uint64_t)(uintptr_t)h->at / 512;
    world_write(h);
    world_use(w, h, NULL, true, -1);
    return TA_OK;
}
static void drop(world *w, held *h)
{
    if (h->at && ta_free(w->allocator, h->at)) _exit(93);
    h->at = NULL;
}
static bool kept(const held *h, int count)
{
    bool all = true;
    for (int i = 0; i < count; i++) all = all && (!h[i].at || world_kept(&h[i]));
    return all;
}
/* The row of the process. */
static ta_share_row row_of(pid_t pid)
{
    static ta_share_row row[TA_LEDGER_SLOTS];
    size_t count = 0;
    if (!ta_share_read(directory, GPU, row, TA_LEDGER_SLOTS, &count, why))
        for (size_t i = 0; i < count; i++)
            if (row[i].pid == pid) return row[i];
    return (ta_share_row){.slot = -1};
}

#define NEED(CONDITION)                                                                  \
    do {                                                                                 \
        if (!(CONDITION)) {                                                              \
            printf("%s:%d: %s is false\n", __FILE__, __LINE__, #CONDITION);              \
            fflush(stdout);                                                              \
            _exit(1);                                                                    \
        }                                                                                \
    } while (0)

/* Holds 48 of 64 MiB, all of it in use, and marks a step whenever it is its turn. */
static void generous(void)
{
    world w;
    held h[6];
    ta_step_info info;
    open_process(&w, 128 * MiB, 64 * MiB, true);
    for (int i = 0; i < 6; i++) NEED(!bring(&w, &h[i]));
    next();
    turn(2); /* the other was refused 8 MiB */
    NEED(!ta_step(w.allocator, -1, &info));
    NEED(info.sent_out == 8 * MiB && !info.brought_back);
    NEED(row_of(getpid()).spilled == 8 * MiB);
    NEED(row_of(getpid()).bytes == 40 * MiB);
    NEED(kept(h, 6));
    /* The room is for the other. */
    NEED(!ta_step(w.allocator, -1, &info));
    NEED(!info.sent_out && !info.brought_back);
    next();
    turn(4); /* it was refused 24 more: ours is half of the cap */
    NEED(!ta_step(w.allocator, -1, &info));
    NEED(info.sent_out == 8 * MiB);
    NEED(row_of(getpid()).bytes == 32 * MiB);
    NEED(row_of(getpid()).spilled == 16 * MiB);
    NEED(kept(h, 6));
    next();
    turn(6); /* and again: no more of it */
    NEED(!ta_step(w.allocator, -1, &info));
    NEED(!info.sent_out);
    NEED(kept(h, 6));
    for (int i = 0; i < 6; i++) drop(&w, &h[i]);
    NEED(!ta_step(w.allocator, -1, &info));
    NEED(!row_of(getpid()).spilled);
    world_close(&w);
    _exit(ta_test_failed);
}

TEST(who_is_asked_sends_out_at_its_next_mark)
{
    world w;
    held h[6];
    begin();
    const pid_t child = fork_child();
    if (!child) generous();
    open_process(&w, 128 * MiB, 64 * MiB, false);
    turn(1);
    CHECK_EQ(bring(&w, &h[0]), TA_OK);
    CHECK_EQ(bring(&w, &h[1]), TA_OK);
    CHECK_EQ(bring(&w, &h[2]), TA_OUT_OF_MEMORY);
    next();
    turn(3);
    CHECK_EQ(bring(&w, &h[2]), TA_OK);
    for (int i = 0; i < 3; i++) CHECK_EQ(bring(&w, &h[3]), TA_OUT_OF_MEMORY);
    next();
    turn(5);
    CHECK_EQ(bring(&w, &h[3]), TA_OK);
    CHECK_EQ(bring(&w, &h[4]), TA_OUT_OF_MEMORY);
    next();
    CHECK_EQ(exit_code(child), 0);
    CHECK_EQ(bring(&w, &h[4]), TA_OK);
    CHECK_EQ(bring(&w, &h[5]), TA_OK);
    CHECK(kept(h, 6));
    for (int i = 0; i < 6; i++) drop(&w, &h[i]);
    world_close(&w);
    end();
}

/* What went to the host since another holds the rest comes back once that has gone. */
static void holder(void)
{
    world w;
    held h[4];
    open_process(&w, 128 * MiB, 64 * MiB, false);
    for (int i = 0; i < 4; i++) NEED(!bring(&w, &h[i]));
    next();
    turn(2);
    _exit(0); /* as one that crashed */
}

TEST(what_spilled_beside_another_comes_back)
{
    world w;
    held h[6];
    ta_step_info info;
    begin();
    const pid_t child = fork_child();
    if (!child) holder();
    open_process(&w, 128 * MiB, 64 * MiB, true);
    turn(1);
    for (int i = 0; i < 6; i++) CHECK_EQ(bring(&w, &h[i]), TA_OK);
    CHECK_EQ(world_stats(&w, 0).spilled.current, 16 * MiB);
    CHECK_EQ(row_of(getpid()).spilled, 16 * MiB); /* told as it went */
    CHECK_EQ(ta_step(w.allocator, -1, &info), TA_OK);
    CHECK_EQ(info.brought_back, 0);
    next();
    CHECK_EQ(exit_code(child), 0);
    CHECK_EQ(ta_step(w.allocator, -1, &info), TA_OK);
    CHECK_EQ(info.brought_back, 16 * MiB);
    CHECK_EQ(row_of(getpid()).spilled, 0);
    CHECK_EQ(row_of(getpid()).bytes, 48 * MiB);
    CHECK(kept(h, 6));
    for (int i = 0; i < 6; i++) drop(&w, &h[i]);
    world_close(&w);
    end();
}

/* A loop that learned to send blocks to the host beside another forgets it once that has gone. */
TEST(a_learned_loop_forgets_once_there_is_room)
{
    enum { COUNT = 7 };
    world w;
    held h[COUNT];
    uint64_t before = 0;
    begin();
    const pid_t child = fork_child();
    if (!child) holder();
    open_process(&w, 128 * MiB, 64 * MiB, true);
    turn(1);
    for (int round = 0; round < 12; round++) {
        if (round == 6) {
            next();
            CHECK_EQ(exit_code(child), 0);
        }
        const uint64_t spills = world_stats(&w, 0).spill_bytes;
        for (int i = 0; i < COUNT; i++) CHECK_EQ(bring(&w, &h[i]), TA_OK);
        CHECK(kept(h, COUNT));
        const uint64_t now = world_stats(&w, 0).spill_bytes - spills;
        if (round < 6) CHECK(now > 0);
        if (round > 7) CHECK_EQ(now, 0);
        if (round > 8) CHECK_EQ(world_stats(&w, 0).spilled.current, 0);
        before += now;
        for (int i = COUNT; i-- > 0;) drop(&w, &h[i]);
        CHECK_EQ(ta_step(w.allocator, -1, NULL), TA_OK);
    }
    CHECK(before > 0);
    world_close(&w);
    end();
}

/* A shared cap that is lowered below what two hold: each goes down to its part of it. */
static void lowered(bool first)
{
    world w;
    held h[6];
    ta_step_info info;
    const int count = first ? 6 : 2;
    open_process(&w, 128 * MiB, 64 * MiB, true);
    for (int i = 0; i < count; i++) NEED(!bring(&w, &h[i]));
    next();
    turn(2);
    const ta_share_caps less = CAP(24 * MiB, TA_NO_LIMIT);
    NEED(!ta_share_set_caps(w.allocator, 0, &less, NULL));
    if (!first) turn(3);
    NEED(!ta_step(w.allocator, -1, &info));
    NEED(info.sent_out == (first ? 36 : 4) * MiB);
    NEED(row_of(getpid()).bytes == 12 * MiB);
    NEED(kept(h, count));
    next();
    turn(4);
    NEED(living() == 24 * MiB);
    next();
    turn(6); /* the other has seen that, too */
    for (int i = 0; i < count; i++) drop(&w, &h[i]);
    world_close(&w);
    _exit(ta_test_failed);
}

TEST(a_lowered_shared_cap_is_kept_by_all)
{
    pid_t child[2];
    begin();
    for (int i = 0; i < 2; i++) {
        child[i] = fork_child();
        if (!child[i]) lowered(!i);
    }
    for (int i = 0; i < 2; i++) CHECK_EQ(exit_code(child[i]), 0);
    CHECK_EQ(living(), 0);
    end();
}

/* A region that sleeps gives its share back, page by page, and takes it again. */
TEST(a_region_sleeps_under_a_shared_cap)
{
    world w;
    held h[4];
    ta_region_id id;
    const ta_region_config config = {.page_bytes = 4 * MiB};
    begin();
    open_process(&w, 128 * MiB, 64 * MiB, false);
    CHECK_EQ(ta_region_open(w.allocator, "weights", &config, &id), TA_OK);
    CHECK_EQ(ta_region_enter(w.allocator, id, NULL), TA_OK);
    for (int i = 0; i < 4; i++) CHECK_EQ(bring(&w, &h[i]), TA_OK);
    CHECK_EQ(ta_region_enter(w.allocator, 0, NULL), TA_OK);
    for (int keep = 1; keep >= 0; keep--) {
        CHECK_EQ(ta_region_sleep(w.allocator, id, keep, NULL), TA_OK);
        CHECK_EQ(row_of(getpid()).bytes, 0);
        CHECK_EQ(row_of(getpid()).spilled, keep ? 32 * MiB : 0);
        CHECK_EQ(ta_region_wake(w.allocator, id, NULL), TA_OK);
        CHECK_EQ(row_of(getpid()).bytes, 32 * MiB);
        CHECK_EQ(row_of(getpid()).spilled, 0);
        if (keep) CHECK(kept(h, 4));
    }
    for (int i = 0; i < 4; i++) drop(&w, &h[i]);
    world_close(&w);
    end();
}

/* --- a crowd ---------------------------------------------------------------------------- */
#define CROWD_CAP (64 * MiB)

/* A killed one's place in the ledger may be free before its memory is. */
static bool is_over(ta_sim *sim)
{
    for (int i = 0; i < 400; i++) {
        if (ta_sim_used(sim, 0, true) <= CROWD_CAP) return false;
        usleep(1000);
    }
    return true;
}

static void live_in_a_crowd(uint64_t seed)
{
    enum { SLOTS = 5 };
    world w;
    held h[SLOTS] = {{0}};
    uint64_t random = seed;
    open_process(&w, 4 * CROWD_CAP, CROWD_CAP, seed % 4 != 0);
    for (;;) {
        held *one = &h[world_random(&random) % SLOTS];
        ta_step_info info;
        if (one->at && !world_kept(one)) atomic_fetch_add(&b->wrong, 1);
        if (one->at)
            drop(&w, one);
        else {
            ta_status status = bring(&w, one);
            if (status && status != TA_OUT_OF_MEMORY) atomic_fetch_add(&b->wrong, 1);
        }
        if (world_random(&random) % 4 == 0) {
            if (ta_step(w.allocator, -1, &info)) atomic_fetch_add(&b->wrong, 1);
            atomic_fetch_add(&b->sent, info.sent_out);
            atomic_fetch_add(&b->steps, 1);
            if (!kept(h, SLOTS)) atomic_fetch_add(&b->wrong, 1);
        }
        atomic_fetch_add(&b->spilled, world_stats(&w, 0).spilled.current);
        char text[512];
        if (!ta_check(w.allocator, text, sizeof text)) {
            printf("%s\n", text);
            atomic_fetch_add(&b->wrong, 1);
        }
        if (is_over(w.sim)) atomic_fetch_add(&b->over, 1);
    }
}
static pid_t start_in_a_crowd(uint64_t seed)
{
    pid_t child = fork_child();
    if (!child) live_in_a_crowd(seed);
    return child;
}

TEST(a_crowd_that_spills_is_never_over_the_cap)
{
    enum { CROWD = 4 };
    pid_t child[CROWD];
    uint64_t seed = 1;
    begin();
    for (int i = 0; i < CROWD; i++) child[i] = start_in_a_crowd(seed++);
    const double until = ta_now_us() + (getenv("TA_TEST_LONG") ? 60e6 : 2e6);
    int code = 1000 + SIGKILL;
    while ((ta_now_us() < until || atomic_load(&b->steps) < 20) &&
           code == 1000 + SIGKILL) {
        const int victim = (int)(seed % CROWD);
        usleep((useconds_t)(100000 + seed * 7919 % 100000));
        kill(child[victim], SIGKILL);
        code = exit_code(child[victim]);
        child[victim] = start_in_a_crowd(seed++);
    }
    for (int i = 0; i < CROWD; i++) kill(child[i], SIGKILL);
    for (int i = 0; i < CROWD; i++) exit_code(child[i]);
    CHECK_EQ(code, 1000 + SIGKILL);
    CHECK_EQ(atomic_load(&b->over), 0);
    CHECK_EQ(atomic_load(&b->wrong), 0);
    CHECK(atomic_load(&b->spilled) > 0);
    world w;
    held all;
    open_process(&w, 4 * CROWD_CAP, CROWD_CAP, false);
    CHECK_EQ(world_alloc(&w, &all, CROWD_CAP, 0, NULL), TA_OK); /* all of it, at once */
    drop(&w, &all);
    world_close(&w);
    end();
}

TEST_MAIN()
