/* nccl_collect.c - NCCL's collectives, as queued work that leaves small contents.
 *
 * Between processes small contents are what NCCL would make them: integers of some MiB,
 * floats as many as the values mode keeps. A rank that is not here is taken to have sent
 * what the one that stands for it did (alone, this one): a sum is a multiple, a gathering
 * repeats, and a rank gets back from such a peer what it sent there. Larger contents are
 * left as they are. Callable from any thread, for one communicator from one at a time. */
#include <stdlib.h>
#include <string.h>

#include "nccl.h"

#define FLOATS ((size_t)1 << 17)    /* elements up to which contents are made */
#define INTEGERS ((size_t)16 << 20) /* bytes */

enum { SUM, PROD, MAX, MIN, AVG };

static bool small(size_t count, int type)
{
    return ta_nccl_is_float(type) ? count <= FLOATS
                                  : count * ta_nccl_width(type) <= INTEGERS;
}

static int queue(ta_stream stream)
{
    return ta_sc_launch(stream) == TA_CU_OK ? TA_NCCL_OK : TA_NCCL_FAILED;
}

static char *part(const void *buffer, int index, size_t size)
{
    return (char *)(uintptr_t)buffer + (size_t)index * size;
}

/* `part` becomes what `times` ranks that all sent it give together. */
static bool repeat(void *part, size_t count, int type, int op, int times)
{
    if (times == 1 || op == MAX || op == MIN) return true;
    if (op != PROD) {
        ta_nccl_scale(part, count, type, times, 1);
        return true;
    }
    char *once = malloc(count * ta_nccl_width(type));
    if (!once) return false;
    memcpy(once, part, count * ta_nccl_width(type));
    for (int i = 1; i < times; i++) ta_nccl_reduce(part, once, count, type, op);
    free(once);
    return true;
}

/* `recv` of those who get it becomes the reduction of `count` elements from `skip` of what
 * all sent, of `whole` elements each: in the ranks' order, so that all get the same bits. */
static int reduce(const void *send, void *recv, size_t skip, size_t count, size_t whole,
                  int type, int op, bool mine, bool all, ta_nccl_comm *c,
                  ta_stream stream)
{
    int result = queue(stream);
    if (result != TA_NCCL_OK || !small(whole, type) || !count) return result;
    size_t width = ta_nccl_width(type), size = count * width;
    uint64_t before = c->told ? c->told[c->rank].at : 0;
    ta_nccl_tell(c, send, whole * width);
    char *sum = malloc(size), *other = malloc(size);
    if (!sum || !other) {
        free(sum), free(other);
        return TA_NCCL_FAILED;
    }
    const char *own = (const char *)send + skip * width;
    bool first = true, enough = true;
    for (int i = 0; i < c->ranks && mine && !c->alone; i++) {
        if (!ta_nccl_is_here(c, i)) continue;
        char *into = first ? sum : other;
        if (i == c->rank)
            memcpy(into, own, size);
        else if (!ta_nccl_hear(c, i, into, skip * width, size, whole * width))
            break; /* alone from now on */
        enough &= repeat(into, count, type, op, ta_nccl_weight(c, i));
        if (!first) ta_nccl_reduce(sum, other, count, type, op);
        first = false;
    }
    for (int i = 0; i < c->ranks && !mine; i++)
        if (i != c->rank) ta_nccl_hear(c, i, NULL, 0, 0, whole * width);
    if (c->alone) {
        memcpy(sum, own, size);
        if (c->sized && op < AVG) enough &= repeat(sum, count, type, op, c->ranks);
    } else if (op >= AVG) {
        ta_nccl_scale(sum, count, type, 1, c->ranks);
    }
    if (mine) memcpy(recv, sum, size);
    if (all) ta_nccl_heard(c, before);
    free(sum), free(other);
    return enough ? result : TA_NCCL_FAILED;
}

TA_EXPORT int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op,
                            ta_nccl_comm *c, ta_stream stream)
{
    if (!c) return TA_NCCL_INVALID;
    return reduce(send, recv, 0, count, count, type, op, true, true, c, stream);
}
TA_EXPORT int ncclReduce(const void *send, void *recv, size_t count, int type, int op,
                         int root, ta_nccl_comm *c, ta_stream stream)
{
    if (!c) return TA_NCCL_INVALID;
    return reduce(send, recv, 0, count, count, type, op, root == c->rank, false, c,
                  stream);
}
TA_EXPORT int ncclReduceScatter(const void *send, void *recv, size_t count, int type,
                                int op, ta_nccl_comm *c, ta_stream stream)
{
    if (!c) return TA_NCCL_INVALID;
    size_t ranks = c->sized ? (size_t)c->ranks : 1, skip = c->sized ? (size_t)c->rank : 0;
    return reduce(send, recv, skip * count, count, ranks * count, type, op, true, true, c,
                  stream);
}

TA_EXPORT int ncclBroadcast(const void *send, void *recv, size_t count, int type,
                            int root, ta_nccl_comm *c, ta_stream stream)
{
    if (!c) return TA_NCCL_INVALID;
    int result = queue(stream);
    size_t size = count * ta_nccl_width(type);
    if (result != TA_NCCL_OK || !small(count, type)) return result;
    if (root == c->rank) {
        ta_nccl_tell(c, send, size);
        if (recv != send) memcpy(recv, send, size);
    } else if (ta_nccl_like(c, root) == c->rank) {
        ta_nccl_tell(c, recv, size); /* as it is, for all who are here */
    } else {
        ta_nccl_hear(c, ta_nccl_like(c, root), recv, 0, size, size);
    }
    return result;
}
TA_EXPORT int ncclBcast(void *buffer, size_t count, int type, int root, ta_nccl_comm *c,
                        ta_stream stream)
{
    return ncclBroadcast(buffer, buffer, count, type, root, c, stream);
}

/* What everyone sent, side by side, for those who get it. */
static int gather(const void *send, void *recv, size_t count, int type, bool mine,
                  bool all, ta_nccl_comm *c, ta_stream stream)
{
    int result = queue(stream);
    size_t size = count * ta_nccl_width(type);
    if (result != TA_NCCL_OK || !small(count * (size_t)c->ranks, type)) return result;
    uint64_t before = c->told ? c->told[c->rank].at : 0;
    ta_nccl_tell(c, send, size);
    int parts = c->sized ? c->ranks : 1;
    /* Its own part first: it may be where the sender's buffer lies. */
    if (mine && part(recv, c->sized ? c->rank : 0, size) != send)
        memmove(part(recv, c->sized ? c->rank : 0, size), send, size);
    const char *own = mine ? part(recv, c->sized ? c->rank : 0, size) : send;
    for (int i = 0; i < parts; i++) {
        if (i == c->rank) continue;
        bool heard = ta_nccl_hear(c, i, mine ? part(recv, i, size) : NULL, 0, size, size);
        if (mine && !heard) memcpy(part(recv, i, size), own, size);
    }
    for (int i = 0; i < parts && mine && !c->alone && c->like; i++)
        if (c->like[i] != i && c->like[i] != c->rank)
            memcpy(part(recv, i, size), part(recv, c->like[i], size), size);
    if (all) ta_nccl_heard(c, before);
    return result;
}
TA_EXPORT int ncclAllGather(const void *send, void *recv, size_t count, int type,
                            ta_nccl_comm *c, ta_stream stream)
{
    return c ? gather(send, recv, count, type, true, true, c, stream) : TA_NCCL_INVALID;
}
TA_EXPORT int ncclGather(const void *send, void *recv, size_t count, int type, int root,
                         ta_nccl_comm *c, ta_stream stream)
{
    if (!c) return TA_NCCL_INVALID;
    return gather(send, recv, count, type, root == c->rank, false, c, stream);
}

TA_EXPORT int ncclAlltoAll(const void *send, void *recv, size_t count, int type,
                           ta_nccl_comm *c, ta_stream stream)
{
    if (!c) return TA_NCCL_INVALID;
    int result = queue(stream);
    size_t size = count * ta_nccl_width(type), ranks = c->sized ? (size_t)c->ranks : 1;
    if (result != TA_NCCL_OK || !small(count * ranks, type)) return result;
    uint64_t before = c->told ? c->told[c->rank].at : 0;
    ta_nccl_tell(c, send, size * ranks);
    for (int i = 0; i < (int)ranks; i++) {
        size_t skip = (size_t)c->rank * size;
        if (i == c->rank ||
            !ta_nccl_hear(c, i, part(recv, i, size), skip, size, size * ranks))
            memmove(part(recv, i, size), part(send, i, size), size);
    }
    ta_nccl_heard(c, before);
    return result;
}
TA_EXPORT int ncclScatter(const void *send, void *recv, size_t count, int type, int root,
                          ta_nccl_comm *c, ta_stream stream)
{
    if (!c) return TA_NCCL_INVALID;
    int result = queue(stream);
    size_t size = count * ta_nccl_width(type);
    if (result != TA_NCCL_OK || !small(count * (size_t)c->ranks, type) || !c->sized)
        return result;
    size_t whole = size * (size_t)c->ranks;
    if (root == c->rank) {
        ta_nccl_tell(c, send, whole);
        memmove(recv, part(send, c->rank, size), size);
    } else {
        ta_nccl_hear(c, root, recv, (size_t)c->rank * size, size, whole);
    }
    return result;
}

/* --- from rank to rank ---------------------------------------------------------------- */
/* In a group nothing is heard before all is told. Alone, what comes from a peer is what was
 * sent to it in the same group. */
typedef struct message {
    ta_nccl_comm *c;
    int peer;
    void *data;
    size_t size;
    bool sent;
} message;
static _Thread_local struct {
    message *list;
    size_t count, room;
    int depth;
} group;

static void hear(const message *m)
{
    if (ta_nccl_hear_one(m->c, m->peer, m->data, m->size)) return;
    for (size_t i = 0; i < group.count; i++) {
        const message *other = &group.list[i];
        if (!other->sent || other->c != m->c || other->peer != m->peer) continue;
        memmove(m->data, other->data, other->size < m->size ? other->size : m->size);
        return;
    }
    memset(m->data, 0, m->size); /* no one knows */
}

static int keep(message m)
{
    if (group.count == group.room) {
        size_t room = group.room ? 2 * group.room : 64;
        message *list = realloc(group.list, room * sizeof *list);
        if (!list) return TA_NCCL_FAILED;
        group.list = list;
        group.room = room;
    }
    group.list[group.count++] = m;
    return TA_NCCL_OK;
}

TA_EXPORT int ncclSend(const void *send, size_t count, int type, int peer,
                       ta_nccl_comm *c, ta_stream stream)
{
    if (!c || peer < 0 || (c->sized && peer >= c->ranks)) return TA_NCCL_INVALID;
    int result = queue(stream);
    if (result != TA_NCCL_OK || !small(count, type)) return result;
    size_t size = count * ta_nccl_width(type);
    ta_nccl_tell_one(c, peer, send, size);
    if (!group.depth) return result;
    return keep((message){c, peer, (void *)(uintptr_t)send, size, true});
}
TA_EXPORT int ncclRecv(void *recv, size_t count, int type, int peer, ta_nccl_comm *c,
                       ta_stream stream)
{
    if (!c || peer < 0 || (c->sized && peer >= c->ranks)) return TA_NCCL_INVALID;
    int result = queue(stream);
    if (result != TA_NCCL_OK || !small(count, type)) return result;
    message m = {c, peer, recv, count * ta_nccl_width(type), false};
    if (group.depth) return keep(m);
    hear(&m);
    return result;
}

TA_EXPORT int ncclGroupStart(void)
{
    group.depth++;
    return TA_NCCL_OK;
}
TA_EXPORT int ncclGroupEnd(void)
{
    if (group.depth == 0) return TA_NCCL_INVALID;
    if (--group.depth) return TA_NCCL_OK;
    for (size_t i = 0; i < group.count; i++)
        if (!group.list[i].sent) hear(&group.list[i]);
    free(group.list);
    group.list = NULL;
    group.count = group.room = 0;
    return TA_NCCL_OK;
}
