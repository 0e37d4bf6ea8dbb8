/* snapshot.c - what is where, as Python lists.
 *
 * The allocator calls back with a lock held, where Python must not run: so segments and
 * blocks are first copied into arrays without the GIL, then turned into objects with it. */
#include <stdlib.h>
#include <string.h>

#include "convert.h"

typedef struct elsewhere { /* pages that are not on the device */
    size_t segment;
    uint64_t addr, size;
} elsewhere;

typedef struct copied {
    ta_segment_info *segments;
    size_t *first_block; /* of each segment */
    size_t segment_count, segment_room;
    ta_block_info *blocks;
    size_t block_count, block_room;
    elsewhere *away; /* in the order of their segments */
    size_t away_count, away_room;
    bool failed; /* malloc */
} copied;

static bool grow(void **array, size_t *room, size_t count, size_t size)
{
    if (count < *room) return true;
    size_t wanted = *room == 0 ? 256 : *room * 2;
    void *larger = realloc(*array, wanted * size);
    if (larger == NULL) return false;
    *array = larger;
    *room = wanted;
    return true;
}

static void on_segment(void *context, const ta_segment_info *segment)
{
    copied *c = context;
    void *segments = c->segments;
    void *first = c->first_block;
    size_t room = c->segment_room;
    size_t other = c->segment_room;
    bool good = grow(&segments, &room, c->segment_count, sizeof *c->segments);
    c->segments = segments;
    good = grow(&first, &other, c->segment_count, sizeof *c->first_block) && good;
    c->first_block = first;
    if (!good) {
        c->failed = true;
        return;
    }
    c->segment_room = room;
    c->first_block[c->segment_count] = c->block_count;
    c->segments[c->segment_count++] = *segment;
}

static void on_elsewhere(void *context, uint64_t addr, uint64_t size)
{
    copied *c = context;
    void *away = c->away;
    if (c->failed || !grow(&away, &c->away_room, c->away_count, sizeof *c->away)) {
        c->failed = true;
        return;
    }
    c->away = away;
    c->away[c->away_count++] = (elsewhere){c->segment_count - 1, addr, size};
}

static void on_block(void *context, const ta_block_info *block)
{
    copied *c = context;
    void *blocks = c->blocks;
    if (!grow(&blocks, &c->block_room, c->block_count, sizeof *c->blocks)) {
        c->failed = true;
        return;
    }
    c->blocks = blocks;
    c->blocks[c->block_count++] = *block;
}

static const char *state_name(ta_block_state state)
{
    switch (state) {
    case TA_BLOCK_LIVE:
        return "live";
    case TA_BLOCK_PENDING:
        return "pending";
    default:
        return "free";
    }
}

static PyObject *block_object(const ta_block_info *b)
{
    return Py_BuildValue("{s:K,s:K,s:K,s:s,s:K}", "address", (unsigned long long)b->addr,
                         "size", (unsigned long long)b->size, "requested",
                         (unsigned long long)b->requested, "state", state_name(b->state),
                         "serial", (unsigned long long)b->serial);
}

static PyObject *segment_object(const ta_segment_info *s, PyObject *blocks,
                                PyObject *away)
{
    return Py_BuildValue(
        "{s:i,s:K,s:O,s:(KK),s:K,s:K,s:K,s:K,s:K,s:K,s:I,s:K,s:K,s:O,s:O}", "device",
        s->device, "stream", (unsigned long long)(uintptr_t)s->stream, "small",
        s->small ? Py_True : Py_False, "pool", (unsigned long long)s->pool.a,
        (unsigned long long)s->pool.b, "address", (unsigned long long)s->addr, "size",
        (unsigned long long)s->size, "allocated", (unsigned long long)s->allocated,
        "active", (unsigned long long)s->active, "requested",
        (unsigned long long)s->requested, "page_bytes", (unsigned long long)s->page_bytes,
        "region", (unsigned int)s->region, "on_host", (unsigned long long)s->on_host,
        "away", (unsigned long long)s->away, "blocks", blocks, "elsewhere", away);
}

static PyObject *blocks_of(const copied *c, size_t segment)
{
    size_t from = c->first_block[segment];
    size_t to =
        segment + 1 < c->segment_count ? c->first_block[segment + 1] : c->block_count;
    PyObject *list = PyList_New((Py_ssize_t)(to - from));
    for (size_t i = from; list != NULL && i < to; i++) {
        PyObject *block = block_object(&c->blocks[i]);
        if (block == NULL || PyList_SetItem(list, (Py_ssize_t)(i - from), block) < 0)
            Py_CLEAR(list);
    }
    return list;
}

/* From `*next` on, those of the segment. */
static PyObject *away_of(const copied *c, size_t segment, size_t *next)
{
    PyObject *list = PyList_New(0);
    for (; list && *next < c->away_count && c->away[*next].segment == segment; ++*next) {
        PyObject *pair = Py_BuildValue("(KK)", (unsigned long long)c->away[*next].addr,
                                       (unsigned long long)c->away[*next].size);
        if (pair == NULL || PyList_Append(list, pair) < 0) Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    return list;
}

static PyObject *to_list(const copied *c)
{
    size_t next = 0;
    PyObject *list = PyList_New((Py_ssize_t)c->segment_count);
    for (size_t i = 0; list != NULL && i < c->segment_count; i++) {
        PyObject *blocks = blocks_of(c, i);
        PyObject *away = away_of(c, i, &next);
        PyObject *segment =
            blocks && away ? segment_object(&c->segments[i], blocks, away) : NULL;
        Py_XDECREF(blocks);
        Py_XDECREF(away);
        if (segment == NULL || PyList_SetItem(list, (Py_ssize_t)i, segment) < 0)
            Py_CLEAR(list);
    }
    return list;
}

PyObject *ta_py_snapshot(PyObject *self, PyObject *args)
{
    (void)self;
    int device = -1;
    if (!PyArg_ParseTuple(args, "|i:snapshot", &device)) return NULL;
    ta_allocator *allocator = ta_need_allocator();
    if (allocator == NULL) return NULL;
    copied c;
    memset(&c, 0, sizeof c);
    ta_visitor visitor = {.context = &c,
                          .segment = on_segment,
                          .block = on_block,
                          .elsewhere = on_elsewhere};
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ta_visit(allocator, device, &visitor);
    Py_END_ALLOW_THREADS
    PyObject *list = NULL;
    if (c.failed)
        PyErr_NoMemory();
    else if (status != TA_OK && status != TA_INVALID)
        ta_raise(status, NULL);
    else
        list = to_list(&c);
    free(c.segments);
    free(c.first_block);
    free(c.blocks);
    free(c.away);
    return list;
}
