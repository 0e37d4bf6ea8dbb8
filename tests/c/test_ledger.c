/* test_ledger.c - processes that share one cap, and die at any moment. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../csrc/core/ledger_file.h"
#include "testing.h"

#define GIB ((uint64_t)1 << 30)
#define GPU "GPU-5e1f7a52-7ab4-4d1b-a5a5-000000000001"

static char directory[64], why[TA_LEDGER_WHY];
static const ta_ledger_who nobody = {"", ""};

/* A directory of its own for each test. */
static void open_directory(void)
{
    strcpy(directory, "/tmp/ta_ledger_XXXXXX");
    if (!mkdtemp(directory)) abort();
    ta_ledger_step = NULL;
    *why = 0;
    alarm(300); /* a hang ends as a signal */
}
static void path_of(char *path, size_t size)
{
    snprintf(path, size, "%s/%s.ledger", directory, GPU);
}
static void close_directory(void)
{
    char path[256];
    path_of(path, sizeof path);
    unlink(path);
    if (rmdir(directory) != 0) printf("%s is not empty\n", directory);
}

static ta_ledger *join(const ta_ledger_who *who)
{
    ta_ledger *l = NULL;
    ta_ledger_join(directory, GPU, who, &l, why);
    return l;
}
static ta_status reserve(ta_ledger *l, uint64_t bytes, uint64_t cap)
{
    return ta_ledger_reserve(l, bytes, cap, TA_NO_LIMIT, why);
}

/* A child that ends with the test program. */
static pid_t fork_child(void)
{
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(99);
    }
    return child;
}

static int exit_code(pid_t child)
{
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* What the living have; asked for inside the growth lock it is exact. */
static uint64_t living(size_t *rows)
{
    static ta_ledger_row row[TA_LEDGER_SLOTS];
    char reason[TA_LEDGER_WHY];
    uint64_t sum = 0;
    size_t count = 0;
    if (ta_ledger_read(directory, GPU, row, TA_LEDGER_SLOTS, &count, reason))
        return UINT64_MAX;
    for (size_t i = 0; i < count; i++)
        if (row[i].alive) sum += row[i].bytes;
    if (rows) *rows = count;
    return sum;
}

/* --- one process ------------------------------------------------------------------------- */
TEST(a_cap_is_inclusive_and_shared)
{
    open_directory();
    ta_ledger *a = join(&nobody), *b = join(&nobody);
    CHECK(a && b);
    CHECK_EQ(reserve(a, 3 * GIB, 4 * GIB), TA_OK);
    CHECK_EQ(reserve(b, GIB + 1, 4 * GIB), TA_OUT_OF_MEMORY);
    CHECK(strstr(why, "GPU's shared cap"));
    CHECK_EQ(reserve(b, GIB, 4 * GIB), TA_OK);
    CHECK_EQ(reserve(a, 1, 4 * GIB), TA_OUT_OF_MEMORY);
    CHECK_EQ(reserve(a, UINT64_MAX, TA_NO_LIMIT - 1), TA_OUT_OF_MEMORY);
    ta_ledger_release(a, 2 * GIB);
    CHECK_EQ(ta_ledger_held(a), GIB);
    CHECK_EQ(reserve(b, 2 * GIB, 4 * GIB), TA_OK);
    CHECK_EQ(living(NULL), 4 * GIB);
    ta_ledger_leave(b);
    CHECK_EQ(living(NULL), GIB);
    CHECK_EQ(reserve(a, 3 * GIB, 4 * GIB), TA_OK);
    ta_ledger_leave(a);
    CHECK_EQ(living(NULL), 0);
    close_directory();
}

TEST(tenants_have_caps_of_their_own)
{
    open_directory();
    ta_ledger_who red = {"train", "red"}, blue = {"serve", "blue"};
    ta_ledger *a = join(&red), *b = join(&red), *c = join(&blue), *d = join(&nobody);
    CHECK(a && b && c && d);
    CHECK_EQ(ta_ledger_reserve(a, GIB, 9 * GIB, 2 * GIB, why), TA_OK);
    CHECK_EQ(ta_ledger_reserve(b, GIB + 1, 9 * GIB, 2 * GIB, why), TA_OUT_OF_MEMORY);
    CHECK(strstr(why, "tenant's cap"));
    CHECK_EQ(ta_ledger_reserve(b, GIB, 9 * GIB, 2 * GIB, why), TA_OK);
    CHECK_EQ(ta_ledger_reserve(c, 2 * GIB, 9 * GIB, 2 * GIB, why), TA_OK);
    CHECK_EQ(reserve(d, 5 * GIB + 1, 9 * GIB), TA_OUT_OF_MEMORY);
    CHECK_EQ(reserve(d, 5 * GIB, 9 * GIB), TA_OK);
    ta_ledger_row row[8];
    size_t count;
    CHECK_EQ(ta_ledger_read(directory, GPU, row, 8, &count, why), TA_OK);
    CHECK_EQ(count, 4);
    CHECK_STR(row[0].who.label, "train");
    CHECK_STR(row[2].who.tenant, "blue");
    CHECK_EQ(row[1].refused, 1);
    CHECK_EQ(row[3].peak, 5 * GIB);
    CHECK_EQ(row[3].pid, getpid());
    CHECK(row[3].alive);
    ta_ledger_leave(a);
    ta_ledger_leave(b);
    ta_ledger_leave(c);
    ta_ledger_leave(d);
    close_directory();
}

typedef struct grower {
    ta_ledger *ledger;
    int wrong;
} grower;
static void *grow_and_shrink(void *context)
{
    grower *g = context;
    char reason[TA_LEDGER_WHY];
    for (int i = 0; i < 2000; i++) {
        g->wrong += ta_ledger_reserve(g->ledger, 4096, GIB, TA_NO_LIMIT, reason) != TA_OK;
        ta_ledger_release(g->ledger, 4096);
    }
    return NULL;
}

TEST(threads_of_one_process)
{
    open_directory();
    ta_ledger *l = join(&nobody);
    CHECK(l != NULL);
    pthread_t thread[4];
    grower g[4];
    for (int i = 0; i < 4; i++) {
        g[i] = (grower){l, 0};
        CHECK_EQ(pthread_create(&thread[i], NULL, grow_and_shrink, &g[i]), 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < 4; i++) CHECK_EQ(g[i].wrong, 0);
    CHECK_EQ(ta_ledger_held(l), 0);
    CHECK_EQ(living(NULL), 0);
    ta_ledger_leave(l);
    close_directory();
}

TEST(every_slot_taken)
{
    static ta_ledger *l[TA_LEDGER_SLOTS];
    open_directory();
    for (int i = 0; i < TA_LEDGER_SLOTS; i++) CHECK((l[i] = join(&nobody)) != NULL);
    CHECK(join(&nobody) == NULL);
    CHECK(strstr(why, "every slot"));
    ta_ledger_leave(l[77]);
    CHECK((l[77] = join(&nobody)) != NULL);
    for (int i = 0; i < TA_LEDGER_SLOTS; i++) ta_ledger_leave(l[i]);
    close_directory();
}

/* --- deaths ------------------------------------------------------------------------------ */
static int steps_left;
static const char *died_at; /* in memory that parent and child share */
static void die_there(const char *name)
{
    if (--steps_left > 0) return;
    memcpy((void *)(uintptr_t)died_at, name, strlen(name) + 1);
    raise(SIGKILL);
}

/* Claims, reserves, is refused (so sweeps), releases and leaves. */
static void a_life(void)
{
    char reason[TA_LEDGER_WHY];
    ta_ledger *l = NULL;
    if (ta_ledger_join(directory, GPU, &nobody, &l, reason)) _exit(3);
    if (ta_ledger_reserve(l, GIB, 4 * GIB, TA_NO_LIMIT, reason)) _exit(4);
    if (ta_ledger_reserve(l, 3 * GIB, 4 * GIB, TA_NO_LIMIT, reason)) _exit(5);
    if (ta_ledger_reserve(l, 1, 4 * GIB, TA_NO_LIMIT, reason) != TA_OUT_OF_MEMORY)
        _exit(6);
    ta_ledger_release(l, 2 * GIB);
    ta_ledger_leave(l);
    _exit(0);
}

/* A process that dies holding the whole cap: the next has something to sweep. */
static int leave_a_corpse(void)
{
    pid_t child = fork_child();
    if (child == 0) {
        ta_ledger *l = join(&nobody);
        bool all = l && reserve(l, 4 * GIB, 4 * GIB) == TA_OK;
        if (all) raise(SIGKILL);
        _exit(1);
    }
    return exit_code(child);
}

TEST(killed_at_every_step)
{
    open_directory();
    char *shared =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    died_at = shared;
    int steps = 0, code = 0;
    for (int k = 1; k < 100; k++) {
        CHECK_EQ(leave_a_corpse(), 1000 + SIGKILL);
        pid_t child = fork_child();
        if (child == 0) {
            steps_left = k;
            ta_ledger_step = die_there;
            a_life();
        }
        code = exit_code(child);
        if (code == 0) break;
        if (code != 1000 + SIGKILL)
            TA_TEST_FAIL("step %d (%s): exit %d", k, shared, code);
        steps = k;
        ta_ledger *l = join(&nobody);
        if (!l) TA_TEST_FAIL("after death at %s: %s", shared, why);
        if (reserve(l, 4 * GIB, 4 * GIB))
            TA_TEST_FAIL("after death at %s: %s", shared, why);
        if (living(NULL) != 4 * GIB)
            TA_TEST_FAIL("after death at %s: sum is off", shared);
        ta_ledger_leave(l);
    }
    CHECK_EQ(code, 0); /* the last one outlived all its steps */
    CHECK(steps >= 15);
    munmap(shared, 4096);
    close_directory();
}

/* Forked before claiming, after it, while a thread reserves; the parent killed first: the
 * child holds nothing, and says so. */
TEST(a_forked_child_holds_nothing)
{
    open_directory();
    int up[2];
    CHECK_EQ(pipe(up), 0);
    pid_t parent = fork_child();
    if (parent == 0) {
        ta_ledger *l = join(&nobody);
        if (!l || reserve(l, 4 * GIB, 4 * GIB)) _exit(1);
        pid_t child = fork();
        if (child == 0) {
            char reason[TA_LEDGER_WHY];
            int told = ta_ledger_reserve(l, 1, GIB, TA_NO_LIMIT, reason) == TA_FORKED &&
                       ta_ledger_held(l) == 0;
            ta_ledger_release(l, GIB); /* does nothing */
            ta_ledger_leave(l);
            if (write(up[1], told ? "y" : "n", 1) != 1) _exit(2);
            for (;;) pause();
        }
        if (write(up[1], &child, sizeof child) != (ssize_t)sizeof child) _exit(3);
        for (;;) pause();
    }
    char told = 0;
    pid_t child = 0;
    for (int i = 0; i < 2; i++) { /* in either order */
        char first;
        CHECK_EQ(read(up[0], &first, 1), 1);
        if (first == 'y' || first == 'n') {
            told = first;
            if (!child) continue;
        } else {
            memcpy(&child, &first, 1);
            CHECK_EQ(read(up[0], (char *)&child + 1, sizeof child - 1),
                     (long long)sizeof child - 1);
        }
    }
    CHECK_EQ(told, 'y');
    ta_ledger *l = join(&nobody);
    CHECK(l != NULL);
    CHECK_EQ(reserve(l, 1, 4 * GIB), TA_OUT_OF_MEMORY); /* the parent lives */
    CHECK_EQ(kill(parent, SIGKILL), 0);
    CHECK_EQ(exit_code(parent), 1000 + SIGKILL);
    CHECK_EQ(reserve(l, 4 * GIB, 4 * GIB), TA_OK); /* its child does, and holds nothing */
    CHECK_EQ(kill(child, SIGKILL), 0);
    ta_ledger_leave(l);
    close(up[0]);
    close(up[1]);
    close_directory();
}

/* A process that is stopped with the lock in its hand: the others' wait is bounded. */
static int stop_pipe[2];
static void stop_there(const char *name)
{
    if (strcmp(name, "read") != 0) return;
    if (write(stop_pipe[1], "x", 1) != 1) _exit(9);
    raise(SIGSTOP);
}
TEST(a_stopped_process_hangs_nobody)
{
    open_directory();
    CHECK_EQ(pipe(stop_pipe), 0);
    ta_ledger *l = join(&nobody);
    CHECK(l != NULL);
    CHECK_EQ(reserve(l, GIB, 4 * GIB), TA_OK);
    pid_t child = fork_child();
    if (child == 0) {
        ta_ledger *own = join(&nobody);
        ta_ledger_step = stop_there;
        _exit(own && reserve(own, GIB, 4 * GIB) == TA_OK ? 0 : 1);
    }
    char c;
    CHECK_EQ(read(stop_pipe[0], &c, 1), 1);
    CHECK_EQ(reserve(l, GIB, 4 * GIB), TA_NOT_READY);
    CHECK(strstr(why, "stopped"));
    ta_ledger_release(l, GIB); /* needs no lock */
    CHECK_EQ(living(NULL), 0);
    CHECK_EQ(kill(child, SIGCONT), 0);
    CHECK_EQ(exit_code(child), 0);
    CHECK_EQ(reserve(l, 4 * GIB, 4 * GIB), TA_OK);
    ta_ledger_leave(l);
    close(stop_pipe[0]);
    close(stop_pipe[1]);
    close_directory();
}

/* --- files that are not to be trusted ------------------------------------------------------ */
static char ledger_path[256];

/* A sound ledger that nobody uses, to be spoilt. */
static int spoil(void)
{
    path_of(ledger_path, sizeof ledger_path);
    unlink(ledger_path);
    ta_ledger_leave(join(&nobody));
    return open(ledger_path, O_RDWR);
}
/* Refused, saying so, by who would join and by who only reads. */
static void refused_for(const char *reason)
{
    ta_ledger *l = NULL;
    ta_ledger_row row;
    size_t count = 77;
    CHECK_EQ(ta_ledger_join(directory, GPU, &nobody, &l, why), TA_INVALID);
    CHECK(l == NULL);
    if (!strstr(why, reason)) TA_TEST_FAIL("\"%s\" does not say \"%s\"", why, reason);
    CHECK_EQ(ta_ledger_read(directory, GPU, &row, 1, &count, why), TA_INVALID);
    CHECK_EQ(count, 0);
}

TEST(hostile_files)
{
    open_directory();
    char aside[300];
    ta_ledger_head head;
    int fd = spoil();
    CHECK(fd >= 0);
    snprintf(aside, sizeof aside, "%s.aside", ledger_path);

    CHECK_EQ(rename(ledger_path, aside), 0);
    CHECK_EQ(symlink(aside, ledger_path), 0);
    refused_for("is a link");
    unlink(ledger_path);
    CHECK_EQ(link(aside, ledger_path), 0);
    refused_for("hard links");
    unlink(aside);
    close(fd);

    unlink(ledger_path);
    CHECK_EQ(mkfifo(ledger_path, 0600), 0);
    refused_for("no regular file");

    fd = spoil();
    CHECK_EQ(fchmod(fd, 0604), 0);
    refused_for("open to everybody (mode 604)");
    if (geteuid() == 0) {
        CHECK_EQ(fchmod(fd, 0600), 0);
        CHECK_EQ(fchown(fd, 12345, 12345), 0);
        refused_for("belongs to uid 12345");
    }
    close(fd);

    fd = spoil();
    CHECK_EQ(ftruncate(fd, 5000), 0);
    refused_for("5000 bytes");
    CHECK_EQ(ftruncate(fd, 0), 0);
    refused_for("is no ledger");
    close(fd);

    fd = spoil();
    CHECK(ta_ledger_pread(fd, &head, sizeof head, 0));
    head.layout = 0;
    CHECK(ta_ledger_pwrite(fd, &head, sizeof head, 0));
    refused_for("has layout 0");
    head.layout = TA_LEDGER_LAYOUT;
    head.gpu[4] ^= 1;
    CHECK(ta_ledger_pwrite(fd, &head, sizeof head, 0));
    refused_for("of another GPU");
    close(fd);
    close_directory();
}

TEST(hostile_directories)
{
    open_directory();
    char link_to[80];
    ta_ledger *l = NULL;
    CHECK_EQ(chmod(directory, 0777), 0);
    CHECK_EQ(ta_ledger_join(directory, GPU, &nobody, &l, why), TA_INVALID);
    CHECK(strstr(why, "writable by everybody (mode 777)"));
    CHECK_EQ(chmod(directory, 0700), 0);
    snprintf(link_to, sizeof link_to, "%s.link", directory);
    CHECK_EQ(symlink(directory, link_to), 0);
    CHECK_EQ(ta_ledger_join(link_to, GPU, &nobody, &l, why), TA_INVALID);
    CHECK(strstr(why, "is a link"));
    unlink(link_to);
    CHECK_EQ(ta_ledger_join("/tmp/nowhere/at/all", GPU, &nobody, &l, why), TA_INVALID);
    CHECK(strstr(why, "No such file"));
    const char *const names[] = {"", "../x", ".x", "a/b"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        CHECK_EQ(ta_ledger_join(directory, names[i], &nobody, &l, why), TA_INVALID);
        CHECK(strstr(why, "no UUID"));
    }
    if (geteuid() == 0) {
        CHECK_EQ(chown(directory, 12345, 12345), 0);
        CHECK_EQ(ta_ledger_join(directory, GPU, &nobody, &l, why), TA_INVALID);
        CHECK(strstr(why, "belongs to uid 12345"));
        CHECK_EQ(chown(directory, 0, 0), 0);
    }
    CHECK(l == NULL);
    close_directory();
}

/* While it is in use: an error, never a crash, and nothing is granted. */
TEST(truncated_and_overwritten_under_us)
{
    open_directory();
    ta_ledger *l = join(&nobody);
    CHECK(l != NULL);
    path_of(ledger_path, sizeof ledger_path);
    CHECK_EQ(reserve(l, GIB, 4 * GIB), TA_OK);
    int fd = open(ledger_path, O_RDWR);
    CHECK(fd >= 0);
    ta_ledger_word lie = {0, 0};
    CHECK(ta_ledger_pwrite(fd, &lie, sizeof lie, offsetof(ta_ledger_file, words)));
    CHECK_EQ(reserve(l, GIB, 4 * GIB), TA_INVALID);
    CHECK(strstr(why, "overwritten"));
    CHECK_EQ(ta_ledger_held(l), GIB);
    CHECK_EQ(ftruncate(fd, 4096), 0);
    CHECK_EQ(reserve(l, GIB, 4 * GIB), TA_INVALID);
    CHECK(strstr(why, "truncated"));
    ta_ledger_release(l, GIB);
    ta_ledger_leave(l);
    close(fd);
    close_directory();
}

/* --- crowds ------------------------------------------------------------------------------- */
typedef struct crowd {
    atomic_int ready, go, granted, over, failed;
    atomic_long grown;
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
    uint64_t sum = living(NULL);
    atomic_store(&c->go, 2);
    for (int i = 0; i < 64; i++) CHECK_EQ(exit_code(child[i]), 0);
    CHECK_EQ(failed, 0);
    CHECK_EQ(granted, 32);
    CHECK_EQ(sum, 32 * GIB);
    munmap(c, sizeof *c);
    close_directory();
}

/* Inside the lock, where the sum is exact. */
static void look_at_the_sum(const char *name)
{
    if (strcmp(name, "before unlock") == 0 && living(NULL) > ours->cap)
        atomic_fetch_add(&ours->over, 1);
}

static void live_in_a_crowd(unsigned seed)
{
    uint64_t held = 0, state = seed * 2654435761u + 1;
    ta_ledger *l = join(&nobody);
    if (!l) {
        fprintf(stderr, "in a crowd: %s\n", why);
        _exit(1);
    }
    ta_ledger_step = look_at_the_sum;
    for (;;) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint64_t bytes = (state >> 33) % (ours->cap / 6);
        if (state >> 62 && bytes <= held) {
            ta_ledger_release(l, bytes);
            held -= bytes;
        } else {
            ta_status status = reserve(l, bytes, ours->cap);
            if (status == TA_OK) {
                held += bytes;
                atomic_fetch_add(&ours->grown, 1);
            } else if (status != TA_OUT_OF_MEMORY)
                atomic_fetch_add(&ours->failed, 1);
        }
    }
}

static pid_t start_in_a_crowd(unsigned seed)
{
    pid_t child = fork_child();
    if (child == 0) live_in_a_crowd(seed);
    return child;
}

/* S27: they grow and shrink, one at a time is killed at a random moment, another comes. */
TEST(a_crowd_of_random_kills)
{
    enum { CROWD = 24 };
    open_directory();
    crowd *c = new_crowd(64 * GIB);
    pid_t child[CROWD];
    unsigned seed = 1, kills = 0;
    int seconds = getenv("TA_TEST_LONG") ? 600 : 8;
    for (int i = 0; i < CROWD; i++) child[i] = start_in_a_crowd(seed++);
    time_t end = time(NULL) + seconds;
    while (time(NULL) < end && !atomic_load(&c->over) && !atomic_load(&c->failed)) {
        int victim = (int)(seed % CROWD);
        usleep(2000 + seed * 7919 % 5000);
        kill(child[victim], SIGKILL);
        CHECK_EQ(exit_code(child[victim]), 1000 + SIGKILL);
        child[victim] = start_in_a_crowd(seed++);
        kills++;
    }
    for (int i = 0; i < CROWD; i++) kill(child[i], SIGKILL);
    for (int i = 0; i < CROWD; i++) CHECK_EQ(exit_code(child[i]), 1000 + SIGKILL);
    CHECK_EQ(atomic_load(&c->over), 0);
    CHECK_EQ(atomic_load(&c->failed), 0);
    CHECK(kills > 20);
    CHECK(atomic_load(&c->grown) > 200);
    ta_ledger *l = join(&nobody);
    CHECK(l != NULL);
    CHECK_EQ(reserve(l, 64 * GIB, 64 * GIB), TA_OK); /* all of it, at once */
    ta_ledger_leave(l);
    munmap(c, sizeof *c);
    close_directory();
}

TEST_MAIN()
