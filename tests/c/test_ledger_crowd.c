/* test_ledger_crowd.c - many processes at once under one cap, killed at random. */
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <time.h>

#include "../../csrc/core/ledger/byte_lock.h"
#include "../../csrc/core/clock.h"
#include "ledger_people.h"

typedef struct crowd {
    atomic_int ready, go, granted, over, failed, stalled;
    atomic_long grown, longest_us;
    atomic_flag told;
    char text[TA_SHARE_WHY]; /* the first failure's */
    uint64_t cap;
} crowd;
static crowd *ours;

static crowd *new_crowd(uint64_t cap)
{
    ours = mmap(NULL, sizeof *ours, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                -1, 0);
    if (ours == MAP_FAILED) abort();
    ours->cap = cap;
    return ours;
}

TEST(exactly_as_many_as_fit)
{
    open_directory();
    crowd *c = new_crowd(32 * GIB);
    pid_t child[64];
    for (int i = 0; i < 64; i++) {
        child[i] = fork_child();
        if (child[i] == 0) {
            ta_ledger *l = join(&nobody);
            atomic_fetch_add(&c->ready, 1);
            while (!atomic_load(&c->go)) usleep(200);
            ta_status status = l ? reserve(l, GIB, c->cap) : TA_INVALID;
            if (status == TA_OK) atomic_fetch_add(&c->granted, 1);
            if (status && status != TA_OUT_OF_MEMORY) atomic_fetch_add(&c->failed, 1);
            atomic_fetch_add(&c->ready, 1);
            while (atomic_load(&c->go) < 2) usleep(1000); /* holds it meanwhile */
            _exit(0);
        }
    }
    while (atomic_load(&c->ready) < 64) usleep(1000);
    atomic_store(&c->go, 1);
    while (atomic_load(&c->ready) < 128) usleep(1000);
    int granted = atomic_load(&c->granted), failed = atomic_load(&c->failed);
    uint64_t sum = living();
    atomic_store(&c->go, 2);
    for (int i = 0; i < 64; i++) CHECK_EQ(exit_code(child[i]), 0);
    CHECK_EQ(failed, 0);
    CHECK_EQ(granted, 32);
    CHECK_EQ(sum, 32 * GIB);
    munmap(c, sizeof *c);
    close_directory();
}

/* What the living have, asked for inside the growth lock, where it is exact. The file is
 * opened apart: locks belong to the open file, so our own is seen as well. */
static int onlooker;
static uint64_t sum_inside(void)
{
    static ta_ledger_word words[TA_LEDGER_SLOTS];
    uint64_t sum = 0;
    if (!ta_ledger_pread(onlooker, words, sizeof words, offsetof(ta_ledger_file, words)))
        return UINT64_MAX;
    for (int i = 0; i < TA_LEDGER_SLOTS; i++)
        if (words[i].bytes && ta_ledger_locked(onlooker, TA_LEDGER_SLOT(i)))
            sum += words[i].bytes;
    return sum;
}
static void look_at_the_sum(const char *name)
{
    if (strcmp(name, "before unlock") == 0 && sum_inside() > ours->cap)
        atomic_fetch_add(&ours->over, 1);
}

static void tell(ta_status status)
{
    if (!atomic_flag_test_and_set(&ours->told))
        snprintf(ours->text, sizeof ours->text, "status %d, %.200s", (int)status, why);
    atomic_fetch_add(status == TA_NOT_READY ? &ours->stalled : &ours->failed, 1);
}

/* Now and then one rests, so that a minute of them is not a minute of every processor's. */
static void rest(uint64_t random)
{
    if (random >> 40 & 3) return;
    const struct timespec a_while = {.tv_nsec = 1000000 + (long)(random >> 20 & 0xfffff)};
    nanosleep(&a_while, NULL);
}

static void live_in_a_crowd(unsigned seed)
{
    uint64_t held = 0, state = seed * 2654435761u + 1;
    char path[256];
    ta_ledger *l = NULL;
    ta_status status;
    while ((status = ta_ledger_join(directory, GPU, &nobody, &l, why))) tell(status);
    path_of(path, sizeof path);
    onlooker = open(path, O_RDONLY | O_CLOEXEC);
    ta_ledger_step = look_at_the_sum;
    for (;;) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        rest(state);
        uint64_t bytes = (state >> 33) % (ours->cap / 6);
        if (state >> 62 && bytes <= held) {
            ta_ledger_release(l, bytes);
            held -= bytes;
            continue;
        }
        const double since = ta_now_us();
        status = reserve(l, bytes, ours->cap);
        const long us = (long)(ta_now_us() - since);
        if (us > atomic_load(&ours->longest_us)) atomic_store(&ours->longest_us, us);
        if (status == TA_OK) {
            held += bytes;
            atomic_fetch_add(&ours->grown, 1);
        } else if (status != TA_OUT_OF_MEMORY)
            tell(status);
    }
}

static pid_t start_in_a_crowd(unsigned seed)
{
    pid_t child = fork_child();
    if (child == 0) live_in_a_crowd(seed);
    return child;
}

/* In CI a minute, in the way of building that is fastest. */
static int seconds(void)
{
    if (getenv("TA_TEST_LONG")) return 600;
#ifdef TA_CHECKING
    return getenv("CI") ? 60 : 8;
#else
    return 4;
#endif
}

/* S27: they grow and shrink, one at a time is killed at a random moment, another comes. */
TEST(a_crowd_of_random_kills)
{
    enum { CROWD = 24 };
    open_directory();
    alarm(900);
    crowd *c = new_crowd(64 * GIB);
    pid_t child[CROWD];
    unsigned seed = 1, kills = 0;
    int code = 1000 + SIGKILL;
    for (int i = 0; i < CROWD; i++) child[i] = start_in_a_crowd(seed++);
    const double end = ta_now_us() + seconds() * 1e6;
    while (ta_now_us() < end && !atomic_load(&c->over) && !atomic_load(&c->failed)) {
        int victim = (int)(seed % CROWD);
        usleep(2000 + seed * 7919 % 5000);
        kill(child[victim], SIGKILL);
        if ((code = exit_code(child[victim])) != 1000 + SIGKILL) break;
        child[victim] = start_in_a_crowd(seed++);
        kills++;
    }
    for (int i = 0; i < CROWD; i++) kill(child[i], SIGKILL);
    for (int i = 0; i < CROWD; i++) exit_code(child[i]);
    printf("%u kills, %ld grew, the longest wait %ld ms, %d gave up waiting%s%s\n", kills,
           atomic_load(&c->grown), atomic_load(&c->longest_us) / 1000,
           atomic_load(&c->stalled), *c->text ? ": " : "", c->text);
    CHECK_EQ(code, 1000 + SIGKILL); /* one that ended otherwise */
    CHECK_EQ(atomic_load(&c->over), 0);
    CHECK_EQ(atomic_load(&c->failed), 0);
    /* One may be kept from the processor for two seconds with the lock in its hand, where a
     * machine does ten things at once; not many. */
    CHECK(atomic_load(&c->stalled) <= CROWD);
    CHECK(kills > 5);
    CHECK(atomic_load(&c->grown) > 100);
    ta_ledger *l = join(&nobody);
    if (!l) TA_TEST_FAIL("after all were killed: %s", why);
    if (reserve(l, 64 * GIB, 64 * GIB)) /* all of it, at once */
        TA_TEST_FAIL("after all were killed %llu bytes are held by %d: %s",
                     (unsigned long long)refusal.others, refusal.processes, why);
    ta_ledger_leave(l);
    munmap(c, sizeof *c);
    close_directory();
}

TEST_MAIN()
