/* visit.c - what is where: runs of mapped pages, and the blocks that tile each. */
#include "pages/chunk.h"
#include "device.h"

static ta_block_info info_of(const ta_block *b)
{
    ta_block_info info = {.addr = b->addr, .size = b->size, .state = TA_BLOCK_FREE};
    if (b->state == TA_LIVE || b->state == TA_PENDING) {
        info.requested = b->requested;
        info.serial = b->serial;
        info.state = b->state == TA_LIVE ? TA_BLOCK_LIVE : TA_BLOCK_PENDING;
    }
    return info;
}

/* The next piece from `b` on, cut to [low, high); free neighbours count as one piece. */
static const ta_block *next_piece(const ta_block *b, uint64_t low, uint64_t high,
                                  ta_block_info *piece)
{
    *piece = info_of(b);
    uint64_t end = b->addr + b->size;
    b = b->next;
    while (piece->state == TA_BLOCK_FREE && b && b->addr < high && b->state == TA_FREE) {
        end = b->addr + b->size;
        b = b->next;
    }
    if (piece->addr < low) piece->addr = low;
    piece->size = (end < high ? end : high) - piece->addr;
    return b;
}

static bool is_elsewhere(const ta_chunk *c, uint32_t slot)
{
    const ta_slot_state state = ta_slot_is(c, slot);
    return state == TA_SLOT_HOST || state == TA_SLOT_AWAY || state == TA_SLOT_VOID;
}

static void tell_elsewhere(const ta_chunk *c, uint32_t first, uint32_t last,
                           const ta_visitor *visitor)
{
    for (uint32_t i = first, end; i <= last; i = end) {
        end = i + 1;
        if (!is_elsewhere(c, i)) continue;
        while (end <= last && is_elsewhere(c, end)) end++;
        visitor->elsewhere(visitor->context, c->addr + ((uint64_t)i << c->shift),
                           (uint64_t)(end - i) << c->shift);
    }
}

/* A place that is held just now may lack pages: the run [low, high) then cuts it. */
static const ta_block *visit_run(const ta_arena *arena, const ta_chunk *c, uint64_t low,
                                 uint64_t high, const ta_block *b,
                                 const ta_visitor *visitor)
{
    const ta_pool *pool = atomic_load(&arena->pool);
    const uint32_t first = ta_slot_below(c, low), last = ta_slot_below(c, high - 1);
    ta_segment_info s = {.device = arena->device->ordinal,
                         .stream = arena->stream->handle,
                         .small = arena->small,
                         .addr = low,
                         .size = high - low,
                         .page_bytes = c->page_bytes};
    ta_block_info piece;
    if (pool) s.pool = pool->id;
    if (arena->region) s.region = arena->region->id;
    for (uint32_t i = first; c->spilled_count && i <= last; i++) {
        const ta_slot_state state = ta_slot_is(c, i);
        if (state == TA_SLOT_HOST) s.on_host += c->page_bytes;
        if (state == TA_SLOT_AWAY || state == TA_SLOT_VOID) s.away += c->page_bytes;
    }
    while (b->addr + b->size <= low) b = b->next;
    for (const ta_block *at = b; at && at->addr < high;) {
        at = next_piece(at, low, high, &piece);
        if (piece.state == TA_BLOCK_FREE) continue;
        s.active += piece.size;
        if (piece.state != TA_BLOCK_LIVE) continue;
        s.allocated += piece.size;
        s.requested += piece.requested;
    }
    if (visitor->segment) visitor->segment(visitor->context, &s);
    if (visitor->elsewhere && s.on_host + s.away) tell_elsewhere(c, first, last, visitor);
    while (b && b->addr < high) {
        const ta_block *next = next_piece(b, low, high, &piece);
        if (visitor->block) visitor->block(visitor->context, &piece);
        if (piece.addr + piece.size == high) break; /* it may go on in the next run */
        b = next;
    }
    return b;
}

static void visit_chunk(const ta_arena *arena, const ta_chunk *c,
                        const ta_visitor *visitor)
{
    const ta_block *b = c->first;
    for (uint32_t i = 0, end; i < c->slots; i = end) {
        end = i + 1;
        if (!ta_chunk_has(c, i)) continue;
        while (end < c->slots && ta_chunk_has(c, end)) end++;
        b = visit_run(arena, c, c->addr + ((uint64_t)i << c->shift),
                      c->addr + ((uint64_t)end << c->shift), b, visitor);
    }
}

ta_status ta_visit(ta_allocator *a, int device, const ta_visitor *visitor)
{
    if (ta_forked(a)) return TA_FORKED;
    if (device < -1 || device >= TA_MAX_DEVICES) return TA_INVALID;
    for (int i = 0; i < TA_MAX_DEVICES; i++) {
        ta_device *d = device < 0 || device == i ? ta_device_if_used(a, i) : NULL;
        if (!d) continue;
        ta_lock_take(&d->pages);
        for (ta_arena *arena = d->arenas; arena; arena = arena->next) {
            ta_arena_lock(arena);
            for (const ta_chunk *c = arena->chunks; c; c = c->next)
                visit_chunk(arena, c, visitor);
            ta_arena_unlock(arena);
        }
        ta_lock_drop(&d->pages);
    }
    return TA_OK;
}
