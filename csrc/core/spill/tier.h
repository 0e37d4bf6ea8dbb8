/* tier.h - slots whose bytes are on the host: how they come there and leave. The device's
 * `pages` lock is held, but where a line says otherwise. */
#ifndef TA_TIER_H
#define TA_TIER_H

#include "arena.h"
#include "host.h"

/* Its host page is mapped there, but a failure left it closed to the device. */
static inline bool ta_slot_shut(const ta_chunk *chunk, uint32_t slot)
{
    return ta_slot_is(chunk, slot) == TA_SLOT_HOST && chunk->spilled[slot].page->shut;
}
/* Room to note a slot's state in the chunk; false: no host memory. */
bool ta_tier_stock(ta_chunk *chunk);
/* Another state, and its page, of a slot of a chunk that is stocked; the gauges follow. The
 * arena's lock is held, too. */
void ta_slot_become(ta_arena *arena, ta_chunk *chunk, uint32_t slot, ta_slot_state state,
                    ta_host_page *page);
/* [low, high) lies wholly in a hole now: slots there that are not on the device serve nobody
 * any more. How many. Needs the arena's lock alone. */
uint32_t ta_tier_leave(ta_arena *arena, ta_chunk *chunk, uint32_t low, uint32_t high);
/* Where a request of `size` bytes goes that is meant for the host: slots without a page of the
 * device, those with idle host pages first. The arena's lock is held. */
ta_place ta_tier_place(const ta_arena *arena, uint64_t size);
/* Host pages under a held block: slots without a page get one, idle ones serve again. On
 * failure nothing has changed, or the block is marked broken. */
ta_status ta_tier_bring(ta_device *device, ta_arena *arena, ta_block *block,
                        const uint32_t *slots, uint32_t count);
/* Idle host pages leave the slots, for pages of the device to come; where queued work may
 * still touch one, it serves again, and the slot is taken off the list. */
ta_status ta_tier_clear(ta_device *device, ta_arena *arena, ta_chunk *chunk,
                        uint32_t *slots, uint32_t *count);
/* Idle host pages that no queued work touches are kept for others; how many. */
size_t ta_tier_sweep(ta_device *device);
/* The same for pages of blocks that were freed in their sleep, or that a failure left; with
 * `hosts` for all but those of regions at home on the host. */
void ta_tier_tidy(ta_device *device, bool hosts);
/* A page of the device lies where a block was freed before it had arrived; or, with `hosts`,
 * there are idle host pages of others than such regions. */
bool ta_tier_idles(ta_device *device, bool hosts);

#endif
