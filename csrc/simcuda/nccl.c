/* nccl.c - NCCL's functions: communicators and groups.
 *
 * Where the ranks are processes of one machine they tell each other small contents
 * (nccl_peers.c). Alone, with TORCHARENA_SIM_ALONE set or no machine to share, a
 * communicator of any size exists at once, and every other rank is taken to send what this
 * one does. Of a job with some ranks here, ta_simcuda_next_group says who stands for the
 * others. The collectives are in nccl_collect.c. Thread-safe as NCCL is: a communicator is
 * used by one thread at a time. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "nccl.h"

typedef struct unique_id {
    char bytes[128];
} unique_id;

static const char *const library[] = {"libnccl.so.2", NULL};

/* What NCCL's arguments do not say of the communicator that this thread makes next: how
 * many ranks a split has, and where not all are here who stands for each and the name. */
static _Thread_local struct {
    int ranks;
    int *like;
    char name[TA_NCCL_NAME];
} next;

/* `like`: NULL, or a rank for each of `ranks`. `name`: NULL, or what only the processes of
 * this communicator say. 0 ranks: nothing is known. */
TA_EXPORT void ta_simcuda_next_group(int ranks, const int *like, const char *name)
{
    free(next.like);
    next.like = NULL;
    next.ranks = ranks;
    snprintf(next.name, sizeof next.name, "%s", name ? name : "");
    if (ranks <= 0 || !like) return;
    next.like = malloc((size_t)ranks * sizeof *like);
    if (next.like) memcpy(next.like, like, (size_t)ranks * sizeof *like);
}

static int make(ta_nccl_comm **out, int ranks, int rank, const char *name)
{
    if (!out || ranks < 1 || rank < 0 || rank >= ranks) return TA_NCCL_INVALID;
    *out = ta_nccl_comm_new(ranks, rank, name, next.ranks == ranks ? next.like : NULL);
    return *out ? TA_NCCL_OK : TA_NCCL_FAILED;
}

static int make_by_id(ta_nccl_comm **out, int ranks, int rank, const unique_id *id)
{
    char name[2 * TA_NCCL_ID + 1] = "";
    static const unsigned char none[TA_NCCL_ID];
    if (next.ranks == ranks && *next.name)
        memcpy(name, next.name, strlen(next.name) + 1);
    else if (memcmp(id->bytes, none, TA_NCCL_ID) != 0)
        for (int i = 0; i < TA_NCCL_ID; i++)
            snprintf(name + (size_t)2 * (size_t)i, 3, "%02x",
                     (unsigned)(unsigned char)id->bytes[i]);
    int result = make(out, ranks, rank, name);
    if (*next.name) ta_simcuda_next_group(0, NULL, NULL);
    return result;
}

TA_EXPORT int ncclGetVersion(int *version)
{
    int (*ask)(int *);
    *(void **)&ask = ta_sc_real(library, "ncclGetVersion");
    *version = 22809;
    return ask ? ask(version) : TA_NCCL_OK;
}
TA_EXPORT const char *ncclGetErrorString(int result)
{
    return result == TA_NCCL_OK ? "no error" : "simulated NCCL failed";
}
TA_EXPORT const char *ncclGetLastError(const ta_nccl_comm *c)
{
    (void)c;
    return "";
}
TA_EXPORT int ncclGetUniqueId(unique_id *id)
{
    memset(id, 0x5a, sizeof *id);
    (void)!getrandom(id->bytes, TA_NCCL_ID, 0);
    return TA_NCCL_OK;
}
TA_EXPORT int ncclCommGetUniqueId(const ta_nccl_comm *c, unique_id *id)
{
    (void)c;
    return ncclGetUniqueId(id);
}
TA_EXPORT int ncclCommInitRank(ta_nccl_comm **c, int ranks, unique_id id, int rank)
{
    return make_by_id(c, ranks, rank, &id);
}
TA_EXPORT int ncclCommInitRankConfig(ta_nccl_comm **c, int ranks, unique_id id, int rank,
                                     void *config)
{
    (void)config;
    return make_by_id(c, ranks, rank, &id);
}
TA_EXPORT int ncclCommInitRankScalable(ta_nccl_comm **c, int ranks, int rank, int ids,
                                       unique_id *id, void *config)
{
    (void)config;
    return ids > 0 ? make_by_id(c, ranks, rank, id) : TA_NCCL_INVALID;
}
TA_EXPORT int ncclCommInitAll(ta_nccl_comm **list, int count, const int *devices)
{
    for (int i = 0; i < count; i++) {
        int result = make(&list[i], count, i, "");
        if (result != TA_NCCL_OK) return result;
        list[i]->device = devices ? devices[i] : i;
    }
    return TA_NCCL_OK;
}
/* The same on every rank of the child, another for every child. */
static void name_child(ta_nccl_comm *c, int color, char name[TA_NCCL_NAME])
{
    uint64_t hash = 0xcbf29ce484222325;
    for (const char *at = c->name; *at; at++)
        hash = (hash ^ (unsigned char)*at) * 0x100000001b3;
    hash = (hash ^ (unsigned)++c->splits) * 0x100000001b3;
    hash = (hash ^ (unsigned)color) * 0x100000001b3;
    snprintf(name, TA_NCCL_NAME, "%.8s-%016llx", c->name, (unsigned long long)hash);
}
/* Ranks of one color, in the order of their keys, then of their ranks. */
static int split(ta_nccl_comm *c, int color, int key, int *ranks, int *rank)
{
    int mine[2] = {color, key};
    *ranks = 0, *rank = 0;
    ta_nccl_tell(c, mine, sizeof mine);
    for (int i = 0; i < c->ranks; i++) {
        int theirs[2] = {color, key};
        if (i != c->rank && !ta_nccl_hear(c, i, theirs, 0, sizeof theirs, sizeof theirs))
            return TA_NCCL_FAILED;
        if (theirs[0] != color) continue;
        ++*ranks;
        *rank += theirs[1] < key || (theirs[1] == key && i < c->rank);
    }
    return TA_NCCL_OK;
}
TA_EXPORT int ncclCommSplit(ta_nccl_comm *c, int color, int key, ta_nccl_comm **out,
                            void *config)
{
    (void)config;
    *out = NULL;
    char name[TA_NCCL_NAME];
    int ranks, rank;
    if (!c) return TA_NCCL_INVALID;
    name_child(c, color, name);
    if (!c->alone && !c->like && split(c, color, key, &ranks, &rank) == TA_NCCL_OK)
        return color < 0 ? TA_NCCL_OK : make(out, ranks, rank, name);
    if (color < 0) return TA_NCCL_OK;
    bool sized = next.ranks > 0;
    ranks = sized ? next.ranks : c->ranks;
    rank = key >= 0 && key < ranks ? key : 0;
    int result = make(out, ranks, rank, sized && next.like ? name : "");
    if (result == TA_NCCL_OK) (*out)->sized = sized;
    return result;
}
TA_EXPORT int ncclCommShrink(ta_nccl_comm *c, int *excluded, int count,
                             ta_nccl_comm **out, void *config, int flags)
{
    (void)config, (void)flags;
    if (!c || count < 0 || count >= c->ranks) return TA_NCCL_INVALID;
    int rank = c->rank;
    for (int i = 0; i < count; i++) rank -= excluded[i] < c->rank;
    char name[TA_NCCL_NAME];
    name_child(c, -1, name);
    return make(out, c->ranks - count, rank, name);
}
TA_EXPORT int ncclCommDestroy(ta_nccl_comm *c)
{
    ta_nccl_comm_free(c);
    return TA_NCCL_OK;
}
TA_EXPORT int ncclCommAbort(ta_nccl_comm *c) { return ncclCommDestroy(c); }
TA_EXPORT int ncclCommFinalize(ta_nccl_comm *c)
{
    (void)c;
    return TA_NCCL_OK;
}
TA_EXPORT int ncclCommGetAsyncError(const ta_nccl_comm *c, int *error)
{
    (void)c;
    *error = TA_NCCL_OK;
    return TA_NCCL_OK;
}
TA_EXPORT int ncclCommCount(const ta_nccl_comm *c, int *count)
{
    *count = c->ranks;
    return TA_NCCL_OK;
}
TA_EXPORT int ncclCommUserRank(const ta_nccl_comm *c, int *rank)
{
    *rank = c->rank;
    return TA_NCCL_OK;
}
TA_EXPORT int ncclCommCuDevice(const ta_nccl_comm *c, int *device)
{
    *device = c->device;
    return TA_NCCL_OK;
}
TA_EXPORT int ncclCommRegister(const ta_nccl_comm *c, void *buffer, size_t size,
                               void **out)
{
    (void)c, (void)size;
    *out = buffer;
    return TA_NCCL_OK;
}
TA_EXPORT int ncclCommDeregister(const ta_nccl_comm *c, void *handle)
{
    (void)c, (void)handle;
    return TA_NCCL_OK;
}
TA_EXPORT int ncclCommWindowRegister(const ta_nccl_comm *c, void *buffer, size_t size,
                                     void **out, int flags)
{
    (void)flags;
    return ncclCommRegister(c, buffer, size, out);
}
TA_EXPORT int ncclCommWindowDeregister(const ta_nccl_comm *c, void *window)
{
    return ncclCommDeregister(c, window);
}
TA_EXPORT int ncclGroupSimulateEnd(void *info)
{
    (void)info;
    return TA_NCCL_OK;
}
TA_EXPORT int ncclRedOpCreatePreMulSum(int *op)
{
    *op = 5; /* the first beyond the fixed ones */
    return TA_NCCL_OK;
}
TA_EXPORT int ncclRedOpDestroy(int op)
{
    (void)op;
    return TA_NCCL_OK;
}
TA_EXPORT int ncclMemAlloc(void **ptr, size_t size)
{
    return ta_sc_malloc(ta_sc_device(), size, ptr) == TA_CU_OK ? TA_NCCL_OK
                                                               : TA_NCCL_FAILED;
}
TA_EXPORT int ncclMemFree(void *ptr)
{
    return ta_sc_free(ptr) == TA_CU_OK ? TA_NCCL_OK : TA_NCCL_FAILED;
}
