/* guard.h - blocks apart, for finding what touches memory that is not its own. */
#ifndef TA_GUARD_H
#define TA_GUARD_H

#include "arena.h"
#include "log.h"

/* Memory for a block of `bytes`, `size` with the rest of its last page, between pages where
 * nothing is mapped; what is no block's is filled. The device's `pages` is held. */
ta_status ta_guard_map(ta_device *device, uint64_t size, uint64_t bytes, uint64_t *addr);
/* What ta_guard_map gave, before any block was there. */
void ta_guard_discard(ta_device *device, uint64_t addr, uint64_t size);
/* Its block is gone, and no queued work touches it: looks, then unmaps. On failure nothing
 * has changed. Nobody else knows the range: `pages` need not be held. */
ta_status ta_guard_unmap(ta_device *device, const ta_chunk *chunk);
/* Of a device, whose blocks are gone: its addresses are given back. */
void ta_guard_close(ta_device *device, bool reachable);

/* Where a block of `bytes` goes in the range that was added last. The arena's lock is held. */
ta_place ta_guard_place(const ta_arena *arena, uint64_t bytes);
/* Notes a block that has just become the user's. The arena's lock is held. */
void ta_guard_begin(const ta_arena *arena, const ta_block *block);

#endif
