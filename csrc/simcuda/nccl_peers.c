/* nccl_peers.c - how the ranks of one machine tell each other small contents.
 *
 * Each communicator has a file a rank in $TORCHARENA_SIM_DIR, to which that rank alone
 * appends what it tells all others, and one for each ordered pair. Every rank makes the same
 * calls in the same order, so each knows where in a file the next message stands and how
 * long it is; a reader waits until the file is that long. A peer whose process has ended, or
 * that stays silent for PATIENCE seconds (TORCHARENA_SIM_PATIENCE), is given up with a
 * message, and this rank goes on as if it were alone.
 *
 * Of a job larger than the machine some ranks are not here; `like` says which of those that
 * are stands for each. A communicator is used by one thread at a time, as NCCL's. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "nccl.h"

#define PATIENCE 120
#define PUNCH ((uint64_t)16 << 20) /* bytes heard by all before they are given back */

/* Whether processes can meet at all, and whether all ranks are taken to be here unless
 * `like` says otherwise. */
static bool can_meet(bool said)
{
    const char *folder = getenv("TORCHARENA_SIM_DIR");
    const char *alone = getenv("TORCHARENA_SIM_ALONE");
    return folder && *folder && (said || !(alone && *alone && strcmp(alone, "0") != 0));
}

bool ta_nccl_is_here(const ta_nccl_comm *c, int rank)
{
    return rank == c->rank || (!c->alone && ta_nccl_like(c, rank) == rank);
}

int ta_nccl_like(const ta_nccl_comm *c, int rank)
{
    if (c->alone) return c->rank;
    return c->like ? c->like[rank] : rank;
}

int ta_nccl_weight(const ta_nccl_comm *c, int rank)
{
    if (!c->like) return 1;
    int sum = 0;
    for (int i = 0; i < c->ranks; i++) sum += c->like[i] == rank;
    return sum;
}

ta_nccl_comm *ta_nccl_comm_new(int ranks, int rank, const char *name, const int *like)
{
    ta_nccl_comm *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    *c = (ta_nccl_comm){.ranks = ranks, .rank = rank, .sized = true};
    c->device = ta_sc_device();
    snprintf(c->name, sizeof c->name, "%s", name);
    bool peers = !like;
    for (int i = 0; like && i < ranks; i++) peers |= i != rank && like[i] == i;
    c->alone = ranks == 1 || !*name || !peers || !can_meet(like);
    if (c->alone) return c;
    size_t count = (size_t)ranks;
    c->told = malloc(3 * count * sizeof *c->told);
    c->like = like ? malloc(count * sizeof *like) : NULL;
    if (!c->told || (like && !c->like)) {
        ta_nccl_comm_free(c);
        return NULL;
    }
    if (like) memcpy(c->like, like, count * sizeof *like);
    for (int i = 0; i < 3 * ranks; i++) c->told[i] = (ta_nccl_log){-1, 0};
    return c;
}

void ta_nccl_comm_free(ta_nccl_comm *c)
{
    if (!c) return;
    for (int i = 0; c->told && i < 3 * c->ranks; i++)
        if (c->told[i].file >= 0) close(c->told[i].file);
    free(c->told);
    free(c->like);
    free(c);
}

/* The file of what `from` told `to`; to all for -1. Whoever writes it holds a lock on it,
 * which ends with the process and is not inherited. */
static bool ready(const ta_nccl_comm *c, ta_nccl_log *log, int from, int to)
{
    if (log->file >= 0) return true;
    char path[4096];
    const char *folder = getenv("TORCHARENA_SIM_DIR");
    int length = snprintf(path, sizeof path, "%s/nccl.%s.%d.%d", folder ? folder : ".",
                          c->name, from, to);
    if (length < 0 || (size_t)length >= sizeof path) return false;
    log->file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (log->file >= 0 && from == c->rank) (void)!fcntl(log->file, F_SETLK, &lock);
    return log->file >= 0;
}

/* Whether its writer's process has ended. `seen`: it was there before. */
static bool is_gone(const ta_nccl_log *log, bool *seen)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(log->file, F_GETLK, &lock) != 0) return false;
    if (lock.l_type != F_UNLCK) {
        *seen = true;
        return false;
    }
    struct stat info;
    return *seen || (fstat(log->file, &info) == 0 && info.st_size > 0);
}

static void append(ta_nccl_comm *c, ta_nccl_log *log, int to, const void *data,
                   size_t size)
{
    if (c->alone || !ready(c, log, c->rank, to)) return;
    const char *from = data;
    while (size) {
        ssize_t done = pwrite(log->file, from, size, (off_t)log->at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return;
        log->at += (uint64_t)done;
        from += done;
        size -= (size_t)done;
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double patience(void)
{
    const char *text = getenv("TORCHARENA_SIM_PATIENCE");
    double given = text ? strtod(text, NULL) : 0;
    return given > 0 ? given : PATIENCE;
}

static bool silent(ta_nccl_comm *c, int peer, bool gone)
{
    fprintf(
        stderr,
        "torcharena: rank %d of %d %s rank %d in a collective; its part is taken to be "
        "like this rank's from here on\n",
        peer, c->ranks, gone ? "has ended before" : "does not answer", c->rank);
    c->alone = true;
    return false;
}

static bool fetch(ta_nccl_comm *c, ta_nccl_log *log, int from, int to, void *data,
                  uint64_t at, size_t size)
{
    if (c->alone || !ready(c, log, from, to)) return false;
    char *into = data;
    double deadline = 0;
    bool seen = false, gone = false;
    struct timespec pause = {0, 20000};
    while (size) {
        ssize_t done = pread(log->file, into, size, (off_t)at);
        if (done > 0) {
            at += (uint64_t)done;
            into += done;
            size -= (size_t)done;
            continue;
        }
        if (done < 0 && errno != EINTR) return silent(c, from, false);
        if (deadline == 0) deadline = now() + patience();
        if (gone || now() > deadline) return silent(c, from, gone);
        gone = is_gone(log, &seen); /* it may have written just before: look once more */
        if (gone) continue;
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < 2000000) pause.tv_nsec *= 2;
    }
    return true;
}

void ta_nccl_tell(ta_nccl_comm *c, const void *data, size_t size)
{
    if (!c->alone) append(c, &c->told[c->rank], -1, data, size);
}

void ta_nccl_tell_one(ta_nccl_comm *c, int peer, const void *data, size_t size)
{
    if (ta_nccl_is_here(c, peer)) append(c, &c->told[c->ranks + peer], peer, data, size);
}

bool ta_nccl_hear(ta_nccl_comm *c, int peer, void *data, size_t skip, size_t size,
                  size_t whole)
{
    if (c->alone || !ta_nccl_is_here(c, peer)) return false;
    ta_nccl_log *log = &c->told[peer];
    uint64_t at = log->at + skip;
    log->at += whole;
    return !data || fetch(c, log, peer, -1, data, at, size);
}

bool ta_nccl_hear_one(ta_nccl_comm *c, int peer, void *data, size_t size)
{
    if (c->alone || !ta_nccl_is_here(c, peer)) return false;
    ta_nccl_log *log = &c->told[2 * c->ranks + peer];
    uint64_t at = log->at;
    log->at += size;
    return fetch(c, log, peer, c->rank, data, at, size);
}

void ta_nccl_heard(ta_nccl_comm *c, uint64_t before)
{
    if (c->alone || before < c->punched + PUNCH) return;
    (void)!fallocate(c->told[c->rank].file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                     (off_t)c->punched, (off_t)(before - c->punched));
    c->punched = before;
}
