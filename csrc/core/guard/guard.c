/* guard.c - blocks apart: each in a mapping of its own, watched on both sides.
 *
 *     base      addr                    block                      addr + size
 *     | nothing | ... slack ... | 4 KiB | what was asked for | < 512 | nothing |
 *
 * Called by plain.c, which keeps the ranges as chunks, with one block each, so counts, caps,
 * pools and epochs are those of plain memory; and by alloc.c. What is mapped goes as soon as
 * the mapping does: its handle is given up at once. Range by range, thread-safe. */
#include "guard.h"

#include "calls.h"
#include "pages/chunk.h"
#include "device.h"

static uint64_t margin(const ta_device *d) { return d->page_bytes; }

/* The driver's failures to give addresses back are of no further use to anyone. */
static void give_addresses(ta_device *d, const ta_parted *p)
{
    ta_call_unreserve(d, p->base, p->bytes);
}

static ta_status fill(ta_device *d, uint64_t addr, uint64_t bytes)
{
    const ta_driver *driver = d->allocator->driver;
    return bytes ? driver->fill(driver->self, d->ordinal, addr, TA_GUARD_BYTE, bytes)
                 : TA_OK;
}

/* Bytes before the block that are watched, of `slack`. */
static uint64_t before(uint64_t slack)
{
    return slack < TA_GUARD_BEFORE ? slack : TA_GUARD_BEFORE;
}

ta_status ta_guard_map(ta_device *d, uint64_t size, uint64_t bytes, uint64_t *addr)
{
    const ta_driver *driver = d->allocator->driver;
    const uint64_t range = size + 2 * margin(d), watched = before(size - bytes);
    uint64_t base;
    ta_handle handle;
    ta_status status = driver->reserve(driver->self, range, margin(d), &base);
    if (status) return status;
    const uint64_t start = base + margin(d), end = start + size;
    status = ta_call_create(d, TA_TIER_DEVICE, size, &handle);
    if (status) {
        ta_call_unreserve(d, base, range);
        return status;
    }
    status = ta_call_map(d, start, size, handle);
    const bool mapped = !status;
    if (!status) status = ta_call_access(d, start, size);
    if (!status) status = fill(d, end - bytes - watched, watched);
    /* What was asked for may end anywhere in the last granule. */
    if (!status) status = fill(d, end - TA_GRANULE, TA_GRANULE);
    if (!status) status = ta_call_release(d, handle, size); /* the mapping keeps it */
    if (status) {
        if (mapped && ta_call_unmap(d, start, size)) return status;
        ta_call_release(d, handle, size);
        ta_call_unreserve(d, base, range);
        return status;
    }
    *addr = start;
    return TA_OK;
}

void ta_guard_discard(ta_device *d, uint64_t addr, uint64_t size)
{
    if (ta_call_unmap(d, addr, size)) return;
    ta_call_unreserve(d, addr - margin(d), size + 2 * margin(d));
}

/* Looks at [from, to), which should hold TA_GUARD_BYTE. */
static void look(ta_device *d, uint64_t from, uint64_t to, ta_guard_finding *f)
{
    unsigned char bytes[TA_GUARD_BEFORE];
    const ta_driver *driver = d->allocator->driver;
    if (from == to || driver->read(driver->self, d->ordinal, bytes, from, to - from))
        return;
    for (uint64_t i = 0; i < to - from; i++) {
        if (bytes[i] == TA_GUARD_BYTE) continue;
        /* Who writes past one end begins right there; before the other, ends there. */
        if (!f->bytes++ || from + i < f->addr) {
            f->at = (int64_t)(from + i - f->addr);
            f->found = bytes[i];
        }
    }
}

static void look_around(ta_device *d, const ta_chunk *c)
{
    ta_guarded *g = c->guarded;
    if (!g->serial || g->told) return;
    ta_guard_finding f = {.kind = TA_GUARD_WRITTEN,
                          .device = d->ordinal,
                          .stream = g->stream,
                          .addr = g->addr,
                          .size = g->size,
                          .serial = g->serial,
                          .module = g->module,
                          .stack = g->stack};
    look(d, g->addr - before(g->addr - c->addr), g->addr, &f);
    ta_guard_finding past = f;
    past.bytes = 0;
    look(d, g->addr + g->size, c->addr + c->size, &past);
    if (past.bytes) { /* by far the more frequent */
        past.bytes += f.bytes;
        f = past;
    }
    g->told = f.bytes != 0;
    if (f.bytes) ta_guard_tell(d->allocator, &f);
}

ta_status ta_guard_unmap(ta_device *d, const ta_chunk *c)
{
    look_around(d, c);
    const ta_status status = ta_call_unmap(d, c->addr, c->size);
    if (status) return status;
    const ta_parted parted = {.base = c->addr - margin(d),
                              .bytes = c->size + 2 * margin(d),
                              .device = d->ordinal,
                              .block = *c->guarded};
    ta_parted oldest;
    if (ta_guard_part(d->allocator, &parted, &oldest))
        give_addresses(&d->allocator->device[oldest.device], &oldest);
    return TA_OK;
}

void ta_guard_close(ta_device *d, bool reachable)
{
    ta_parted p;
    while (ta_guard_unpart(d->allocator, d->ordinal, &p))
        if (reachable) give_addresses(d, &p);
}

ta_place ta_guard_place(const ta_arena *arena, uint64_t bytes)
{
    ta_chunk *c = arena->chunks; /* added under `pages`, and not looked at since */
    return (ta_place){c->first->hole, c->addr + c->size - bytes, 0};
}

void ta_guard_begin(const ta_arena *arena, const ta_block *b)
{
    ta_guard_note(b->chunk->guarded, b, arena->stream->handle);
}

/* Whoever gives it back holds all of it, and unmaps it with no lock: it looks by itself. */
static bool leaves(const ta_chunk *c)
{
    return c->first->state == TA_HELD && c->first->size == c->size;
}

/* The locks keep the ranges where they are. They are held while bytes are read: on a stream of
 * our own, where nothing else is queued. */
static void look_at_device(ta_device *d)
{
    uintptr_t saved[2];
    if (ta_enter(d, saved)) return;
    ta_lock_take(&d->pages);
    for (ta_arena *a = d->arenas; a; a = a->next) {
        ta_arena_lock(a);
        for (const ta_chunk *c = a->chunks; c; c = c->next)
            if (!leaves(c)) look_around(d, c);
        ta_arena_unlock(a);
    }
    ta_lock_drop(&d->pages);
    ta_leave(d, saved);
}

ta_status ta_guard_look(ta_allocator *a)
{
    if (ta_forked(a)) return TA_FORKED;
    if (!a->guard) return TA_INVALID;
    for (int i = 0; i < TA_MAX_DEVICES; i++) {
        ta_device *d = ta_device_if_used(a, i);
        if (d && d->guard) look_at_device(d);
    }
    return TA_OK;
}
