/* block.h - the life of a block once its place is known. The arena's lock is held. */
#ifndef TA_BLOCK_H
#define TA_BLOCK_H

#include "bins.h"
#include "count.h"
#include "events.h"
#include "table.h"

/* A held block becomes the user's. The table has room, and so has the arena below the peaks. */
static inline void ta_block_begin(ta_arena *arena, ta_block *b, uint64_t requested)
{
    b->state = TA_LIVE;
    b->requested = requested;
    b->uses = NULL;
    b->changes = arena->changes;
    b->serial = ta_count_alloc(arena, b->size, requested);
    ta_table_insert(&arena->table, b);
    ta_emit(arena, TA_EVENT_ALLOC, b, arena->stream->handle);
}
/* The warm block becomes the user's again; there is room below the peaks. */
static inline void ta_block_again(ta_arena *arena, uint64_t requested)
{
    ta_block *b = arena->warm;
    arena->warm = NULL;
    b->state = TA_LIVE;
    b->requested = requested;
    b->serial = ta_count_alloc(arena, b->size, requested);
    ta_emit(arena, TA_EVENT_ALLOC, b, arena->stream->handle);
}
/* Best fit would put a request of its size here again: the arena is as it was before the block
 * was cut out; or it would leave a hole of its size, and no such hole lies lower. */
static inline bool ta_block_fits_again(const ta_arena *arena, const ta_block *b)
{
    if (arena->asleep || b->chunk->spilled_count) return false;
    if (arena->changes == b->changes) return true;
    if (!b->prev || b->prev->state == TA_FREE || !b->next || b->next->state == TA_FREE)
        return false;
    const ta_hole *h = ta_bins_fit(&arena->bins, b->size);
    return !h || h->size > b->size || h->addr > b->addr;
}
/* No longer used by anybody: part of a hole from now on. */
void ta_block_done(ta_arena *arena, ta_block *block, uint64_t tick);
/* Used by recorded streams only: the newest of the pending. */
void ta_block_wait(ta_arena *arena, ta_block *block);
/* The user's free at `tick`, which was told: with uses it becomes pending, else free. It is
 * joined to its neighbours at once, or only when the next request is not of its size: where
 * that would get it again, it stays cut out, warm. */
static inline void ta_block_end(ta_arena *arena, ta_block *b, uint64_t tick)
{
    if (arena->warm) ta_block_cool(arena);
    if (arena->last_freed < tick) arena->last_freed = tick;
    ta_count_free(arena, b, b->uses != NULL);
    if (b->uses) {
        ta_block_wait(arena, b);
    } else if (ta_block_fits_again(arena, b)) {
        ta_emit(arena, TA_EVENT_FREE_DONE, b, arena->stream->handle);
        b->state = TA_HELD;
        arena->warm = b;
        arena->warm_tick = tick;
    } else {
        ta_block_done(arena, b, tick);
    }
}
/* A pending block, taken off the arena's list by the caller, becomes free. */
void ta_block_settle(ta_arena *arena, ta_block *block);
/* ta_block_cool, in types.h: the warm block joins its neighbours. */
/* Forgets the streams recorded for a live, pending or held block. */
void ta_uses_free(ta_block *block);

#endif
