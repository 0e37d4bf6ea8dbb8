/* nccl.h - what the stand-ins of NCCL share: a communicator, and how its ranks exchange
 * small contents (nccl_peers.c). */
#ifndef TA_SIMCUDA_NCCL_H
#define TA_SIMCUDA_NCCL_H

#include "simcuda.h"

enum { TA_NCCL_OK = 0, TA_NCCL_FAILED = 1, TA_NCCL_INVALID = 4 }; /* NCCL's */
enum { TA_NCCL_NAME = 40, TA_NCCL_ID = 16 };

/* What one rank has told the others, or one rank another: a file that only grows. Writer
 * and readers count their way through it alike, so that no one waits to write. */
typedef struct ta_nccl_log {
    int file; /* -1: not open yet */
    uint64_t at;
} ta_nccl_log;

typedef struct ta_nccl_comm {
    int ranks, rank, device;
    bool alone; /* no peer is there, or one did not answer */
    bool sized; /* the number of ranks is known */
    int *like;  /* by rank: who stands for it; NULL: every rank is there */
    int splits; /* made of this communicator */
    char name[TA_NCCL_NAME];
    ta_nccl_log *told; /* by rank: to all; then from each and to each alone */
    uint64_t punched;  /* bytes of our own file given back */
} ta_nccl_comm;

/* `name` is the same in all its processes on this machine; `like`, which may be NULL, is
 * copied. NULL: no memory. */
ta_nccl_comm *ta_nccl_comm_new(int ranks, int rank, const char *name, const int *like);
void ta_nccl_comm_free(ta_nccl_comm *c);
/* Whether a rank is a process of this machine, and who stands for one that is not. */
bool ta_nccl_is_here(const ta_nccl_comm *c, int rank);
int ta_nccl_like(const ta_nccl_comm *c, int rank);
/* How many ranks this one stands for, itself included. */
int ta_nccl_weight(const ta_nccl_comm *c, int rank);

/* What this rank tells: all, or one. Never waits. */
void ta_nccl_tell(ta_nccl_comm *c, const void *data, size_t size);
void ta_nccl_tell_one(ta_nccl_comm *c, int peer, const void *data, size_t size);
/* What a rank told all: `size` bytes after `skip`, of `whole` bytes; `data` NULL passes over
 * them. Waits; false where the peer is not here, or does not answer: then from now on this
 * rank is alone. */
bool ta_nccl_hear(ta_nccl_comm *c, int peer, void *data, size_t skip, size_t size,
                  size_t whole);
bool ta_nccl_hear_one(ta_nccl_comm *c, int peer, void *data, size_t size);
/* All ranks have heard what this one told before. */
void ta_nccl_heard(ta_nccl_comm *c, uint64_t before);

/* into[i] = into[i] op from[i] in NCCL's types and operations, an average as a sum. */
void ta_nccl_reduce(void *into, const void *from, size_t count, int type, int op);
/* into[i] = into[i] * times / by. */
void ta_nccl_scale(void *into, size_t count, int type, int times, int by);
bool ta_nccl_is_float(int type);
size_t ta_nccl_width(int type);

#endif
