/* test_sim_processes.c - simulated GPUs that several processes share, and forks. */
#define _GNU_SOURCE
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sim_machine.h"

static int exit_code(pid_t child)
{
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST(forked_child)
{
    ta_sim *sim = machine((ta_sim_config){.context_bytes = P2});
    const ta_driver *d = ta_sim_driver(sim);
    ta_handle h;
    uint64_t at = pages(sim, 1, &h);
    *(int *)(uintptr_t)at = 42;
    pid_t child = fork();
    if (child == 0) {
        ta_handle other;
        int bad = 0;
        /* Pages stay with the parent; TSan may put memory of its own where they were. */
        bad |= touchable(at) && *(volatile int *)(uintptr_t)at == 42 ? 1 : 0;
        bad |= d->create(sim, 0, TA_TIER_DEVICE, P2, &other) == TA_FORKED ? 0 : 2;
        bad |= ta_sim_launch(sim, 0, NULL, NULL, 0, 1) == TA_FORKED ? 0 : 4;
        ta_sim_destroy(sim); /* does nothing */
        ta_sim *own = machine((ta_sim_config){0});
        bad |= own && pages(own, 1, &other) ? 0 : 8; /* a machine of its own works */
        ta_sim_destroy(own);
        _exit(bad);
    }
    CHECK_EQ(exit_code(child), 0);
    CHECK_EQ(*(int *)(uintptr_t)at, 42);
    CHECK_EQ(d->unmap(sim, at, P2), TA_OK);
    CHECK_EQ(violations(sim), 0);
    ta_sim_destroy(sim);
}

static void tell(int fd)
{
    if (write(fd, "x", 1) != 1) _exit(99);
}

static int hear(int fd)
{
    char c;
    return read(fd, &c, 1) == 1;
}

TEST(two_processes_share_a_device)
{
    char dir[] = "/tmp/ta_sim_XXXXXX";
    CHECK(mkdtemp(dir) != NULL);
    ta_sim_config config = {
        .devices = 1, .memory = 16 * P2, .context_bytes = P2, .dir = dir};
    int up[2], down[2];
    CHECK(pipe(up) == 0 && pipe(down) == 0);
    pid_t child = fork();
    if (child == 0) {
        ta_sim *sim = machine(config);
        ta_handle h[16];
        if (!sim) _exit(1);
        pages(sim, 10, h);
        tell(up[1]);
        hear(down[0]); /* until killed */
        for (;;) pause();
    }
    CHECK(hear(up[0]));
    ta_sim *sim = machine(config);
    const ta_driver *d = ta_sim_driver(sim);
    ta_handle h[8], more;
    uint64_t free_bytes, total;
    CHECK_EQ(d->mem_info(sim, 0, &free_bytes, &total), TA_OK);
    CHECK_EQ(free_bytes, 4 * P2); /* two contexts, ten pages */
    CHECK_EQ(ta_sim_used(sim, 0, false), P2);
    CHECK_EQ(ta_sim_used(sim, 0, true), 12 * P2);
    for (int i = 0; i < 4; i++) d->create(sim, 0, TA_TIER_DEVICE, P2, &h[i]);
    CHECK_EQ(d->create(sim, 0, TA_TIER_DEVICE, P2, &more), TA_OUT_OF_MEMORY);
    kill(child, SIGKILL);
    CHECK_EQ(exit_code(child), 1000 + SIGKILL);
    CHECK_EQ(ta_sim_used(sim, 0, true), 5 * P2); /* the dead hold nothing */
    CHECK_EQ(d->create(sim, 0, TA_TIER_DEVICE, 11 * P2, &more), TA_OK);
    CHECK_EQ(d->create(sim, 0, TA_TIER_DEVICE, P2, &h[5]), TA_OUT_OF_MEMORY);
    /* Another memory size is another machine. */
    config.memory *= 2;
    CHECK(machine(config) == NULL);
    ta_sim_destroy(sim);
    close(up[0]), close(up[1]), close(down[0]), close(down[1]);
}

/* A child of the owner, alive after it, keeps nothing of it. */
TEST(grandchildren_hold_no_memory)
{
    char dir[] = "/tmp/ta_sim_XXXXXX";
    CHECK(mkdtemp(dir) != NULL);
    ta_sim_config config = {.devices = 1, .memory = 16 * P2, .dir = dir};
    int up[2], down[2];
    CHECK(pipe(up) == 0 && pipe(down) == 0);
    pid_t child = fork();
    if (child == 0) {
        ta_sim *sim = machine(config);
        ta_handle h[16];
        pages(sim, 16, h);
        if (fork() == 0) { /* a data loader's worker */
            tell(up[1]);
            hear(down[0]);
            _exit(0);
        }
        for (;;) pause();
    }
    CHECK(hear(up[0]));
    ta_sim *sim = machine(config);
    ta_handle h;
    CHECK_EQ(ta_sim_driver(sim)->create(sim, 0, TA_TIER_DEVICE, P2, &h),
             TA_OUT_OF_MEMORY);
    kill(child, SIGKILL);
    CHECK_EQ(exit_code(child), 1000 + SIGKILL);
    CHECK_EQ(ta_sim_driver(sim)->create(sim, 0, TA_TIER_DEVICE, 16 * P2, &h), TA_OK);
    tell(down[1]);
    ta_sim_destroy(sim);
    close(up[0]), close(up[1]), close(down[0]), close(down[1]);
}

/* Many at once, some killed: never above the device's memory, and all of it comes back. */
TEST(a_crowd_shares_a_device)
{
    enum { CROWD = 8 };
    char dir[] = "/tmp/ta_sim_XXXXXX";
    CHECK(mkdtemp(dir) != NULL);
    ta_sim_config config = {
        .devices = 1, .memory = 20 * P2, .no_backing = true, .dir = dir};
    pid_t children[CROWD];
    for (int k = 0; k < CROWD; k++) {
        children[k] = fork();
        if (children[k]) continue;
        ta_sim *sim = machine(config);
        if (!sim) _exit(1);
        const ta_driver *d = ta_sim_driver(sim);
        ta_handle h[20];
        int held = 0, over = 0;
        unsigned x = (unsigned)k + 1;
        for (int i = 0; i < 1500; i++) {
            x = x * 1664525 + 1013904223;
            if (x >> 31 && held < 20) {
                if (d->create(sim, 0, TA_TIER_DEVICE, P2, &h[held]) == TA_OK) held++;
            } else if (held)
                d->release(sim, h[--held], P2);
            over |= ta_sim_used(sim, 0, true) > 20 * P2;
            if (k < 2 && i == 700) kill(getpid(), SIGKILL);
        }
        if (!over) ta_sim_destroy(sim);
        _exit(over ? 2 : 0);
    }
    for (int k = 0; k < CROWD; k++) CHECK_EQ(exit_code(children[k]), k < 2 ? 1009 : 0);
    ta_sim *sim = machine(config);
    ta_handle h;
    CHECK_EQ(ta_sim_used(sim, 0, true), 0);
    CHECK_EQ(ta_sim_driver(sim)->create(sim, 0, TA_TIER_DEVICE, 20 * P2, &h), TA_OK);
    ta_sim_destroy(sim);
}

TEST_MAIN()
