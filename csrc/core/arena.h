/* arena.h - the blocks of one (device, stream, kind): best fit, splitting, coalescing, idle
 * pages. No driver calls but unmapping. Every function needs the arena's lock. */
#ifndef TA_ARENA_H
#define TA_ARENA_H

#include "types.h"

bool ta_arena_restock(ta_arena *arena);
/* Makes sure that the next take, cut or give needs no host memory; false: there is none. As
 * many holes as blocks exist, and  holes <= blocks in use that are not free + chunks,  so with
 * 4 + chunks spare blocks no operation, a free above all, lacks either. */
static inline bool ta_arena_stock(ta_arena *arena)
{
    return __builtin_expect(arena->spares >= 4 + arena->chunk_count, 1) ||
           ta_arena_restock(arena);
}
bool ta_arena_stock_for(ta_arena *arena, size_t count); /* the next `count` of them */
/* Where a request of `size` bytes would go. */
typedef struct ta_place {
    ta_hole *hole; /* NULL: no hole is large enough */
    uint64_t addr;
    uint32_t need; /* pages to be brought */
} ta_place;
ta_place ta_arena_best(const ta_arena *arena, uint64_t size);
/* Of all holes the one where the fewest pages serve this request alone, whether they are
 * there or missing: where memory is short, idle pages elsewhere are as good as those here. */
ta_place ta_arena_thriftiest(const ta_arena *arena, uint64_t size);
/* Takes [addr, addr+size) out of the hole, held. Stocked before. */
ta_block *ta_arena_take(ta_arena *arena, ta_hole *hole, uint64_t addr, uint64_t size);
/* Gives what lies outside [addr, addr+size) back. Stocked before. */
void ta_arena_cut(ta_arena *arena, ta_block *block, uint64_t addr, uint64_t size);
/* A live or held block becomes part of a hole; its slots may have no pages. Stocked before. */
void ta_arena_give(ta_arena *arena, ta_block *block, uint64_t tick);
/* Adds a chunk, all of it one hole, with the pages that it has. Stocked before. */
void ta_arena_add_chunk(ta_arena *arena, ta_chunk *chunk, uint64_t tick);
/* Forgets a chunk that is one hole; its pages are the caller's. */
void ta_arena_drop_chunk(ta_arena *arena, ta_chunk *chunk);
bool ta_chunk_empty(const ta_chunk *chunk);
/* Unmaps up to `max` idle pages, longest idle first, of those that became idle before tick
 * `passed`. Returns how many; *status keeps a driver's failure. */
size_t ta_arena_steal(ta_arena *arena, size_t max, uint64_t passed, ta_handle *pages,
                      ta_status *status);
void ta_arena_destroy(ta_arena *arena); /* its host memory only */

#endif
