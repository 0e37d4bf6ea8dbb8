/* nccl.c - collectives, as one rank sees them.
 *
 * No peer is needed: a communicator of any size exists at once, and every collective is
 * queued work on its stream. Small buffers are filled as if every rank had sent what this
 * one did, so that counts and flags stay plausible; large ones are left alone. Thread-safe. */
#include <stdlib.h>
#include <string.h>

#include "simcuda.h"

#define KEEP ((size_t)1 << 20) /* bytes up to which contents are made */

enum { NCCL_OK = 0, NCCL_FAILED = 1, NCCL_INVALID = 4 };

typedef struct communicator {
    int ranks, rank, device;
} communicator;
typedef struct unique_id {
    char bytes[128];
} unique_id;

static const char *const library[] = {"libnccl.so.2", NULL};

static int make(communicator **out, int ranks, int rank) {
    if (!out || ranks < 1 || rank < 0 || rank >= ranks) return NCCL_INVALID;
    *out = malloc(sizeof **out);
    if (!*out) return NCCL_FAILED;
    **out = (communicator){ranks, rank, ta_sc_device()};
    return NCCL_OK;
}

TA_EXPORT int ncclGetVersion(int *version) {
    int (*ask)(int *);
    *(void **)&ask = ta_sc_real(library, "ncclGetVersion");
    *version = 22809;
    return ask ? ask(version) : NCCL_OK;
}
TA_EXPORT const char *ncclGetErrorString(int result) {
    return result == NCCL_OK ? "no error" : "simulated NCCL failed";
}
TA_EXPORT const char *ncclGetLastError(const communicator *c) {
    (void)c;
    return "";
}
TA_EXPORT int ncclGetUniqueId(unique_id *id) {
    memset(id, 0x5a, sizeof *id);
    return NCCL_OK;
}
TA_EXPORT int ncclCommGetUniqueId(const communicator *c, unique_id *id) {
    (void)c;
    return ncclGetUniqueId(id);
}
TA_EXPORT int ncclCommInitRank(communicator **c, int ranks, unique_id id, int rank) {
    (void)id;
    return make(c, ranks, rank);
}
TA_EXPORT int ncclCommInitRankConfig(communicator **c, int ranks, unique_id id, int rank,
                                     void *config) {
    (void)id, (void)config;
    return make(c, ranks, rank);
}
TA_EXPORT int ncclCommInitRankScalable(communicator **c, int ranks, int rank, int ids,
                                       unique_id *id, void *config) {
    (void)ids, (void)id, (void)config;
    return make(c, ranks, rank);
}
TA_EXPORT int ncclCommInitAll(communicator **list, int count, const int *devices) {
    for (int i = 0; i < count; i++) {
        int result = make(&list[i], count, i);
        if (result != NCCL_OK) return result;
        list[i]->device = devices ? devices[i] : i;
    }
    return NCCL_OK;
}
TA_EXPORT int ncclCommSplit(const communicator *c, int color, int key, communicator **out,
                            void *config) {
    (void)key, (void)config;
    *out = NULL;
    return color < 0 ? NCCL_OK : make(out, c->ranks, c->rank);
}
TA_EXPORT int ncclCommShrink(const communicator *c, int *excluded, int count,
                             communicator **out, void *config, int flags) {
    (void)excluded, (void)config, (void)flags;
    int ranks = c->ranks - count;
    return make(out, ranks, c->rank < ranks ? c->rank : ranks - 1);
}
TA_EXPORT int ncclCommDestroy(communicator *c) {
    free(c);
    return NCCL_OK;
}
TA_EXPORT int ncclCommAbort(communicator *c) { return ncclCommDestroy(c); }
TA_EXPORT int ncclCommFinalize(communicator *c) {
    (void)c;
    return NCCL_OK;
}
TA_EXPORT int ncclCommGetAsyncError(const communicator *c, int *error) {
    (void)c;
    *error = NCCL_OK;
    return NCCL_OK;
}
TA_EXPORT int ncclCommCount(const communicator *c, int *count) {
    *count = c->ranks;
    return NCCL_OK;
}
TA_EXPORT int ncclCommUserRank(const communicator *c, int *rank) {
    *rank = c->rank;
    return NCCL_OK;
}
TA_EXPORT int ncclCommCuDevice(const communicator *c, int *device) {
    *device = c->device;
    return NCCL_OK;
}
TA_EXPORT int ncclCommRegister(const communicator *c, void *buffer, size_t size, void **out) {
    (void)c, (void)size;
    *out = buffer;
    return NCCL_OK;
}
TA_EXPORT int ncclCommDeregister(const communicator *c, void *handle) {
    (void)c, (void)handle;
    return NCCL_OK;
}
TA_EXPORT int ncclCommWindowRegister(const communicator *c, void *buffer, size_t size,
                                     void **out, int flags) {
    (void)flags;
    return ncclCommRegister(c, buffer, size, out);
}
TA_EXPORT int ncclCommWindowDeregister(const communicator *c, void *window) {
    return ncclCommDeregister(c, window);
}
TA_EXPORT int ncclGroupStart(void) { return NCCL_OK; }
TA_EXPORT int ncclGroupEnd(void) { return NCCL_OK; }
TA_EXPORT int ncclGroupSimulateEnd(void *info) {
    (void)info;
    return NCCL_OK;
}
TA_EXPORT int ncclRedOpCreatePreMulSum(int *op) {
    *op = 5; /* the first beyond the fixed ones */
    return NCCL_OK;
}
TA_EXPORT int ncclRedOpDestroy(int op) {
    (void)op;
    return NCCL_OK;
}
TA_EXPORT int ncclMemAlloc(void **ptr, size_t size) {
    return ta_sc_malloc(ta_sc_device(), size, ptr) == TA_CU_OK ? NCCL_OK : NCCL_FAILED;
}
TA_EXPORT int ncclMemFree(void *ptr) {
    return ta_sc_free(ptr) == TA_CU_OK ? NCCL_OK : NCCL_FAILED;
}

/* --- collectives ---------------------------------------------------------------------- */
static size_t bytes(size_t count, int type) {
    /* by ncclDataType_t: int8, uint8, int32, uint32, int64, uint64, half, float, double,
       bfloat16, the two float8 */
    static const unsigned char widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return count * (type >= 0 && type < (int)sizeof widths ? widths[type] : 4);
}

/* `copies` pieces of recv become what this rank sent. */
static int collective(const void *send, void *recv, size_t size, int copies,
                      ta_stream stream) {
    int result = ta_sc_launch(stream);
    for (int i = 0; i < copies && result == TA_CU_OK; i++) {
        char *to = (char *)recv + (size_t)i * size;
        if (size * (size_t)copies <= KEEP && to != send && size)
            result = ta_sc_copy(to, send, size, stream, false);
    }
    return result == TA_CU_OK ? NCCL_OK : NCCL_FAILED;
}

TA_EXPORT int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op,
                            const communicator *c, ta_stream stream) {
    (void)op;
    return c ? collective(send, recv, bytes(count, type), 1, stream) : NCCL_INVALID;
}
TA_EXPORT int ncclReduce(const void *send, void *recv, size_t count, int type, int op,
                         int root, const communicator *c, ta_stream stream) {
    (void)op;
    if (!c) return NCCL_INVALID;
    return collective(send, recv, bytes(count, type), root == c->rank, stream);
}
TA_EXPORT int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root,
                            const communicator *c, ta_stream stream) {
    if (!c) return NCCL_INVALID;
    return collective(send, recv, bytes(count, type), root == c->rank, stream);
}
TA_EXPORT int ncclBcast(void *buffer, size_t count, int type, int root,
                        const communicator *c, ta_stream stream) {
    (void)buffer, (void)count, (void)type, (void)root;
    return c ? collective(NULL, NULL, 0, 0, stream) : NCCL_INVALID;
}
TA_EXPORT int ncclAllGather(const void *send, void *recv, size_t count, int type,
                            const communicator *c, ta_stream stream) {
    return c ? collective(send, recv, bytes(count, type), c->ranks, stream) : NCCL_INVALID;
}
TA_EXPORT int ncclReduceScatter(const void *send, void *recv, size_t count, int type, int op,
                                const communicator *c, ta_stream stream) {
    (void)op;
    if (!c) return NCCL_INVALID;
    size_t size = bytes(count, type);
    return collective((const char *)send + (size_t)c->rank * size, recv, size, 1, stream);
}
TA_EXPORT int ncclAlltoAll(const void *send, void *recv, size_t count, int type,
                           const communicator *c, ta_stream stream) {
    if (!c) return NCCL_INVALID;
    return collective(send, recv, bytes(count, type) * (size_t)c->ranks, 1, stream);
}
TA_EXPORT int ncclGather(const void *send, void *recv, size_t count, int type, int root,
                         const communicator *c, ta_stream stream) {
    if (!c) return NCCL_INVALID;
    int copies = root == c->rank ? c->ranks : 0;
    return collective(send, recv, bytes(count, type), copies, stream);
}
TA_EXPORT int ncclScatter(const void *send, void *recv, size_t count, int type, int root,
                          const communicator *c, ta_stream stream) {
    if (!c) return NCCL_INVALID;
    size_t size = bytes(count, type);
    return collective((const char *)send + (size_t)c->rank * size, recv, size,
                      root == c->rank, stream);
}
TA_EXPORT int ncclSend(const void *send, size_t count, int type, int peer,
                       const communicator *c, ta_stream stream) {
    (void)send, (void)count, (void)type, (void)peer;
    return c ? collective(NULL, NULL, 0, 0, stream) : NCCL_INVALID;
}
TA_EXPORT int ncclRecv(void *recv, size_t count, int type, int peer, const communicator *c,
                       ta_stream stream) {
    (void)recv, (void)count, (void)type, (void)peer;
    return c ? collective(NULL, NULL, 0, 0, stream) : NCCL_INVALID;
}
