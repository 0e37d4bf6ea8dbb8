/* ledger_people.h - what the tests of the ledger share: a directory for each, processes that
 * end with the test, and the sum of what the living have. */
#ifndef TA_LEDGER_PEOPLE_H
#define TA_LEDGER_PEOPLE_H

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../csrc/core/ledger/file.h"
#include "testing.h"

#define GIB ((uint64_t)1 << 30)
#define GPU "GPU-5e1f7a52-7ab4-4d1b-a5a5-000000000001"

static char directory[64];
static _Thread_local char why[TA_SHARE_WHY]; /* of the last failure */
static _Thread_local ta_refusal refusal;
static const ta_ledger_who nobody = {"", "", false};

/* A directory of its own for each test. */
static inline void open_directory(void)
{
    strcpy(directory, "/tmp/ta_ledger_XXXXXX");
    if (!mkdtemp(directory)) abort();
    ta_ledger_step = NULL;
    *why = 0;
    alarm(300); /* a hang ends as a signal */
}
static inline void path_of(char *path, size_t size)
{
    snprintf(path, size, "%s/%s.ledger", directory, GPU);
}
static inline void close_directory(void)
{
    char path[256];
    path_of(path, sizeof path);
    unlink(path);
    if (rmdir(directory) != 0) printf("%s is not empty\n", directory);
}

static inline ta_ledger *join(const ta_ledger_who *who)
{
    ta_ledger *l = NULL;
    ta_ledger_join(directory, GPU, who, &l, why);
    return l;
}
/* As one that has no idle memory left. */
static inline ta_status reserve_under(ta_ledger *l, uint64_t bytes, uint64_t cap,
                                      uint64_t tenant_cap)
{
    const ta_ledger_want want = {bytes, bytes, 1, true};
    const ta_ledger_terms terms = {{cap, tenant_cap, false}, TA_NO_LIMIT, 0};
    uint64_t got;
    ta_status status = ta_ledger_reserve(l, &want, &terms, &got, &refusal);
    snprintf(why, sizeof why, "%s", refusal.why);
    return !status && got != bytes ? TA_DRIVER : status;
}
static inline ta_status reserve(ta_ledger *l, uint64_t bytes, uint64_t cap)
{
    return reserve_under(l, bytes, cap, TA_NO_LIMIT);
}
/* A child that ends with the test program. */
static inline pid_t fork_child(void)
{
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(99);
    }
    return child;
}

static inline int exit_code(pid_t child)
{
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* What the living have; asked for inside the growth lock it is exact. */
static inline uint64_t living(void)
{
    static ta_share_row row[TA_LEDGER_SLOTS];
    char reason[TA_SHARE_WHY];
    uint64_t sum = 0;
    size_t count = 0;
    if (ta_share_read(directory, GPU, row, TA_LEDGER_SLOTS, &count, reason))
        return UINT64_MAX;
    for (size_t i = 0; i < count; i++)
        if (row[i].alive) sum += row[i].bytes;
    return sum;
}

#endif
