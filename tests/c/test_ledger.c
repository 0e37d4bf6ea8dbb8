/* test_ledger.c - processes that share one cap, and die at any moment. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "../../csrc/core/clock.h"
#include "ledger_people.h"

static double when; /* one was asked, last */

/* --- one process ------------------------------------------------------------------------- */
TEST(a_cap_is_inclusive_and_shared)
{
    open_directory();
    ta_ledger *a = join(&nobody), *b = join(&nobody);
    CHECK(a && b);
    CHECK_EQ(reserve(a, 3 * GIB, 4 * GIB), TA_OK);
    CHECK_EQ(reserve(b, GIB + 1, 4 * GIB), TA_OUT_OF_MEMORY);
    CHECK_EQ(refusal.scope, TA_SCOPE_DEVICE);
    CHECK_EQ(refusal.others, 3 * GIB);
    CHECK_EQ(refusal.processes, 1);
    CHECK_EQ(refusal.short_by, 1);
    CHECK_EQ(reserve(b, GIB, 4 * GIB), TA_OK);
    CHECK_EQ(reserve(a, 1, 4 * GIB), TA_OUT_OF_MEMORY);
    CHECK_EQ(reserve(a, UINT64_MAX, TA_NO_LIMIT - 1), TA_OUT_OF_MEMORY);
    ta_ledger_release(a, 2 * GIB);
    CHECK_EQ(ta_ledger_held(a), GIB);
    CHECK_EQ(reserve(b, 2 * GIB, 4 * GIB), TA_OK);
    CHECK_EQ(living(), 4 * GIB);
    ta_ledger_leave(b);
    CHECK_EQ(living(), GIB);
    CHECK_EQ(reserve(a, 3 * GIB, 4 * GIB), TA_OK);
    ta_ledger_leave(a);
    CHECK_EQ(living(), 0);
    close_directory();
}

TEST(tenants_have_caps_of_their_own)
{
    open_directory();
    ta_ledger_who red = {"train", "red", false}, blue = {"serve", "blue", true};
    ta_ledger *a = join(&red), *b = join(&red), *c = join(&blue), *d = join(&nobody);
    CHECK(a && b && c && d);
    CHECK_EQ(reserve_under(a, GIB, 9 * GIB, 2 * GIB), TA_OK);
    CHECK_EQ(reserve_under(b, GIB + 1, 9 * GIB, 2 * GIB), TA_OUT_OF_MEMORY);
    CHECK_EQ(refusal.scope, TA_SCOPE_TENANT);
    CHECK_STR(refusal.why, "red");
    CHECK_EQ(reserve_under(b, GIB, 9 * GIB, 2 * GIB), TA_OK);
    CHECK_EQ(reserve_under(c, 2 * GIB, 9 * GIB, 2 * GIB), TA_OK);
    CHECK_EQ(reserve(d, 5 * GIB + 1, 9 * GIB), TA_OUT_OF_MEMORY);
    CHECK_EQ(reserve(d, 5 * GIB, 9 * GIB), TA_OK);
    ta_share_row row[8];
    size_t count;
    CHECK_EQ(ta_share_read(directory, GPU, row, 8, &count, why), TA_OK);
    CHECK_EQ(count, 4);
    CHECK_STR(row[0].label, "train");
    CHECK_STR(row[2].tenant, "blue");
    CHECK(row[2].claimed && !row[0].claimed);
    CHECK_EQ(row[0].caps.device, 9 * GIB);
    CHECK_EQ(row[0].caps.tenant, 2 * GIB);
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

/* Of what is wanted as much as fits, in whole units, but no less than the least. */
TEST(a_part_is_granted)
{
    open_directory();
    ta_ledger *a = join(&nobody), *b = join(&nobody);
    const ta_ledger_terms terms = {{10 * GIB, TA_NO_LIMIT, false}, TA_NO_LIMIT, 0};
    ta_ledger_want want = {GIB, 8 * GIB, 2 * GIB, false};
    uint64_t got;
    CHECK_EQ(reserve(a, 5 * GIB, 10 * GIB), TA_OK);
    CHECK_EQ(ta_ledger_reserve(b, &want, &terms, &got, &refusal), TA_OK);
    CHECK_EQ(got, 4 * GIB);
    CHECK_EQ(ta_ledger_reserve(b, &want, &terms, &got, &refusal), TA_OK);
    CHECK_EQ(got, GIB);
    CHECK_EQ(ta_ledger_reserve(b, &want, &terms, &got, &refusal), TA_OUT_OF_MEMORY);
    CHECK_EQ(got, 0);
    CHECK_EQ(living(), 10 * GIB);
    /* Nothing is fine as long as no more is held than the caps allow. */
    want = (ta_ledger_want){0, 0, 1, true};
    CHECK_EQ(ta_ledger_reserve(b, &want, &terms, &got, &refusal), TA_OK);
    const ta_ledger_terms lowered = {{7 * GIB, TA_NO_LIMIT, false}, 6 * GIB, 4};
    CHECK_EQ(ta_ledger_reserve(b, &want, &lowered, &got, &refusal), TA_OUT_OF_MEMORY);
    CHECK_EQ(refusal.short_by, 3 * GIB);
    CHECK_EQ(ta_ledger_asked(a, &when), 3 * GIB);
    CHECK_EQ(ta_ledger_asked(a, &when), 0); /* once */
    CHECK_EQ(ta_ledger_asked(b, &when), 0); /* itself it asked not */
    ta_share_row row[2];
    size_t count;
    CHECK_EQ(ta_share_read(directory, GPU, row, 2, &count, why), TA_OK);
    CHECK_EQ(row[1].refused, 0); /* nothing was wanted */
    CHECK_EQ(row[1].limit, 6 * GIB);
    CHECK_EQ(row[1].caps.device, 7 * GIB);
    ta_ledger_leave(a);
    ta_ledger_leave(b);
    close_directory();
}

/* Observed, all is granted and counted as refused. */
TEST(observed_growth_is_never_refused)
{
    open_directory();
    ta_ledger *a = join(&nobody);
    const ta_ledger_terms terms = {{GIB, TA_NO_LIMIT, true}, TA_NO_LIMIT, 0};
    const ta_ledger_want want = {2 * GIB, 3 * GIB, GIB, false};
    uint64_t got;
    CHECK_EQ(ta_ledger_reserve(a, &want, &terms, &got, &refusal), TA_OK);
    CHECK_EQ(got, 3 * GIB);
    ta_share_row row;
    size_t count;
    CHECK_EQ(ta_share_read(directory, GPU, &row, 1, &count, why), TA_OK);
    CHECK_EQ(row.refused, 1);
    CHECK_EQ(row.peak, 3 * GIB);
    CHECK(row.caps.observe);
    ta_ledger_leave(a);
    close_directory();
}

/* Who asked has given up by then, and others have what it wanted. */
TEST(an_old_ask_is_heeded_no_more)
{
    char path[512];
    open_directory();
    ta_ledger *a = join(&nobody), *b = join(&nobody);
    CHECK_EQ(reserve(a, 3 * GIB, 4 * GIB), TA_OK);
    for (int old = 0; old < 2; old++) {
        CHECK_EQ(reserve(b, 2 * GIB, 4 * GIB), TA_OUT_OF_MEMORY);
        path_of(path, sizeof path);
        const int fd = open(path, O_RDWR);
        CHECK(fd >= 0);
        uint64_t at;
        const off_t place = offsetof(ta_ledger_file, board.asked_us);
        CHECK_EQ(pread(fd, &at, sizeof at, place), sizeof at);
        at -= old ? (uint64_t)TA_LEDGER_ASK_US : 1000000;
        CHECK_EQ(pwrite(fd, &at, sizeof at, place), sizeof at);
        close(fd);
        CHECK_EQ(ta_ledger_asked(a, &when), old ? 0 : GIB);
        CHECK_EQ((uint64_t)when, at);
    }
    ta_ledger_leave(a);
    ta_ledger_leave(b);
    close_directory();
}

/* A tenant's asks are its own's to heed. */
TEST(asks_go_to_those_who_can_help)
{
    open_directory();
    ta_ledger_who red = {"", "red", false}, blue = {"", "blue", false};
    ta_ledger *a = join(&red), *b = join(&red), *c = join(&blue);
    CHECK_EQ(reserve_under(a, 2 * GIB, 9 * GIB, 3 * GIB), TA_OK);
    CHECK_EQ(reserve_under(c, 2 * GIB, 9 * GIB, 3 * GIB), TA_OK);
    CHECK_EQ(reserve_under(b, 2 * GIB, 9 * GIB, 3 * GIB), TA_OUT_OF_MEMORY);
    CHECK_EQ(ta_ledger_asked(a, &when), GIB);
    CHECK_EQ(ta_ledger_asked(c, &when), 0);
    ta_ledger *late = join(&red); /* what was asked before it came is not its to heed */
    CHECK_EQ(ta_ledger_asked(late, &when), 0);
    CHECK_EQ(reserve_under(b, 6 * GIB, 9 * GIB, TA_NO_LIMIT), TA_OUT_OF_MEMORY);
    CHECK_EQ(ta_ledger_asked(a, &when), GIB);
    CHECK_EQ(ta_ledger_asked(c, &when), GIB);
    CHECK_EQ(ta_ledger_asked(late, &when), GIB);
    ta_ledger_leave(a);
    ta_ledger_leave(b);
    ta_ledger_leave(c);
    ta_ledger_leave(late);
    close_directory();
}

typedef struct grower {
    ta_ledger *ledger;
    int wrong;
} grower;
static void *grow_and_shrink(void *context)
{
    grower *g = context;
    for (int i = 0; i < 2000; i++) {
        g->wrong += reserve(g->ledger, 4096, GIB) != TA_OK;
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
    CHECK_EQ(living(), 0);
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
    ta_ledger *l = join(&nobody);
    if (!l) _exit(3);
    if (reserve(l, GIB, 4 * GIB)) _exit(4);
    if (reserve(l, 3 * GIB, 4 * GIB)) _exit(5);
    if (reserve(l, 1, 4 * GIB) != TA_OUT_OF_MEMORY) _exit(6);
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

/* Whoever else runs on the machine may hold one up, but not most. */
static int slow;
static void took_longest(double us) { slow += us > 10e3; }

TEST(killed_at_every_step)
{
    open_directory();
    char *shared =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    died_at = shared;
    int steps = 0, code = 0;
    slow = 0;
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
        const double died = ta_now_us();
        ta_ledger *l = join(&nobody);
        if (!l) TA_TEST_FAIL("after death at %s: %s", shared, why);
        if (reserve(l, 4 * GIB, 4 * GIB))
            TA_TEST_FAIL("after death at %s: %s", shared, why);
        took_longest(ta_now_us() - died);
        if (living() != 4 * GIB) TA_TEST_FAIL("after death at %s: sum is off", shared);
        ta_ledger_leave(l);
    }
    CHECK_EQ(code, 0); /* the last one outlived all its steps */
    CHECK(steps >= 15);
    CHECK(slow < steps / 4); /* the next process within 10 ms */
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
            int told = reserve(l, 1, GIB) == TA_FORKED && ta_ledger_held(l) == 0;
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
    CHECK_EQ(living(), 0);
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
    ta_share_row row;
    size_t count = 77;
    CHECK_EQ(ta_ledger_join(directory, GPU, &nobody, &l, why), TA_INVALID);
    CHECK(l == NULL);
    if (!strstr(why, reason)) TA_TEST_FAIL("\"%s\" does not say \"%s\"", why, reason);
    CHECK_EQ(ta_share_read(directory, GPU, &row, 1, &count, why), TA_INVALID);
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
    ta_ledger_word lie = {0};
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

/* What the ledger was opened as. */
static int descriptor_of_it(void)
{
    struct stat it, other;
    path_of(ledger_path, sizeof ledger_path);
    if (stat(ledger_path, &it)) return -1;
    for (int fd = 3; fd < 256; fd++)
        if (!fstat(fd, &other) && other.st_ino == it.st_ino && other.st_dev == it.st_dev)
            return fd;
    return -1;
}

/* Removed, or closed by a program that closes all it finds: growth is refused, for the cap
 * would not hold any more, and no other file is written to. */
TEST(removed_and_closed_under_us)
{
    open_directory();
    char aside[300];
    struct stat about;
    ta_ledger *l = join(&nobody);
    CHECK_EQ(reserve(l, GIB, 4 * GIB), TA_OK);
    const int fd = descriptor_of_it();
    CHECK(fd >= 0);
    snprintf(aside, sizeof aside, "%s.aside", ledger_path);
    CHECK_EQ(rename(ledger_path, aside), 0);
    CHECK_EQ(reserve(l, GIB, 4 * GIB), TA_INVALID); /* newcomers would make another */
    CHECK_STR(why, "the ledger was moved, or another took its place");
    ta_ledger *newcomer = join(&nobody);
    CHECK_EQ(reserve(l, GIB, 4 * GIB), TA_INVALID);
    CHECK_STR(why, "the ledger was moved, or another took its place");
    ta_ledger_leave(newcomer);
    CHECK_EQ(rename(aside, ledger_path), 0);
    CHECK_EQ(reserve(l, GIB, 4 * GIB), TA_OK); /* it is back */
    CHECK_EQ(rename(ledger_path, aside), 0);
    CHECK_EQ(unlink(aside), 0);
    CHECK_EQ(reserve(l, GIB, 4 * GIB), TA_INVALID);
    CHECK_STR(why, "the ledger was removed");
    int other = open(aside, O_RDWR | O_CREAT | O_EXCL, 0600);
    int kept = dup(fd);
    close(fd);
    const double start = ta_now_us();
    CHECK_EQ(reserve(l, GIB, 4 * GIB), TA_INVALID);
    CHECK_STR(why, "the ledger's file was closed by this program");
    CHECK(ta_now_us() - start < TA_LEDGER_PATIENCE_US); /* not waited for */
    close(kept);
    CHECK_EQ(dup2(other, fd), fd);
    CHECK_EQ(reserve(l, GIB, 4 * GIB), TA_INVALID);
    CHECK_STR(why, "the ledger's file was closed by this program");
    ta_ledger_release(l, GIB);
    CHECK_EQ(ta_ledger_asked(l, &when), 0);
    CHECK_EQ(fstat(other, &about), 0);
    CHECK_EQ(about.st_size, 0);
    ta_ledger_leave(l);
    close(other);
    unlink(aside);
    close_directory();
}

/* The driver may not have a dead process's memory back yet: the ledger knows for how long. */
TEST(the_dead_drain)
{
    open_directory();
    ta_ledger *l = join(&nobody);
    CHECK(ta_ledger_draining(l) <= 0);
    CHECK_EQ(reserve(l, GIB, 4 * GIB), TA_OK);
    ta_ledger_leave(join(&nobody)); /* who leaves nothing behind does not */
    CHECK(ta_ledger_draining(l) <= 0);
    pid_t child = fork_child();
    if (child == 0) {
        ta_ledger *own = join(&nobody);
        if (!own || reserve(own, GIB, 4 * GIB)) _exit(1);
        raise(SIGKILL);
    }
    CHECK_EQ(exit_code(child), 1000 + SIGKILL);
    CHECK(ta_ledger_draining(l) > TA_LEDGER_DRAIN_US / 2);
    CHECK_EQ(living(), GIB);
    CHECK_EQ(reserve(l, 3 * GIB, 4 * GIB), TA_OK);
    ta_ledger_leave(l);
    close_directory();
}

TEST_MAIN()
