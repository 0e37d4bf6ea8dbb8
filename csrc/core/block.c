/* block.c - live, pending, free: counts, the table and observers change together here and in
 * block.h, and nowhere else. Called by alloc.c and epoch.c with the arena's lock held. */
#include "block.h"

#include <stdlib.h>

#include "arena.h"

void ta_block_cool(ta_arena *arena)
{
    ta_block *b = arena->warm;
    arena->warm = NULL;
    ta_table_remove(&arena->table, b);
    ta_arena_give(arena, b, arena->warm_tick);
}

void ta_block_done(ta_arena *arena, ta_block *b, uint64_t tick)
{
    ta_emit(arena, TA_EVENT_FREE_DONE, b, arena->stream->handle);
    ta_table_remove(&arena->table, b);
    ta_arena_give(arena, b, tick);
}

void ta_block_wait(ta_arena *arena, ta_block *b)
{
    b->state = TA_PENDING;
    b->pending_next = NULL;
    b->pending_prev = arena->pending_last;
    *(arena->pending_last ? &arena->pending_last->pending_next : &arena->pending_first) =
        b;
    arena->pending_last = b;
}

void ta_uses_free(ta_block *b)
{
    for (ta_use *u = b->uses, *next; u; u = next) {
        next = u->next;
        free(u);
    }
    b->uses = NULL;
}

void ta_block_settle(ta_arena *arena, ta_block *b)
{
    ta_uses_free(b);
    ta_count_settled(arena, b->size);
    ta_block_done(arena, b,
                  arena->last_freed); /* others on its pages may have gone after it */
}
