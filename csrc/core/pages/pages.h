/* pages.h - where physical pages come from and go. The device's `pages` lock is held, and
 * dropped meanwhile where something is waited for. */
#ifndef TA_PAGES_H
#define TA_PAGES_H

#include "ledger/share.h"

/* Brings the `need` pages that are missing under a held block and maps them. On failure
 * nothing has changed, but that idle pages may have moved to the ready ones; where even
 * undoing failed, the block is marked broken. */
ta_status ta_pages_bring(ta_device *device, ta_arena *arena, ta_block *block,
                         uint32_t need, ta_lack *lack);
/* The same with pages of the host; those that are there already serve. */
ta_status ta_pages_bring_host(ta_device *device, ta_arena *arena, ta_block *block);
/* Places that a failed call of the driver left half made become free where that works now.
 * Takes the arena's lock. */
void ta_pages_mend(ta_device *device, ta_arena *arena);
/* Gives idle pages back until `keep` bytes are reserved; with `wait` also those that streams
 * still use. Returns the first failure of the driver. */
ta_status ta_pages_give_back(ta_device *device, uint64_t keep, bool wait,
                             uint64_t *released);
/* Looks whether more is reserved than the cap: then no request takes the fast path. */
void ta_pages_judge(ta_device *device);
/* Starts anew what the policy learned: the live peak and the moves. Takes `pages`. */
void ta_pages_forget(ta_device *device);
/* A range of addresses for the arena that holds a block of `bytes`. */
ta_status ta_addresses_add(ta_device *device, ta_arena *arena, uint64_t bytes);
/* Gives ranges back that hold nothing. */
void ta_addresses_trim(ta_device *device);
/* Everything the driver gave is given back, whatever lies there, and the host's memory goes;
 * that alone where the driver cannot be reached any more. */
void ta_pages_destroy(ta_device *device, bool reachable);
/* Bytes of pages held. */
uint64_t ta_reserved(ta_device *device);
/* Of them, those with neither a live nor a pending block's byte on them. Takes no lock but
 * `counting`. */
uint64_t ta_unused(ta_device *device);
/* The cap that holds. */
uint64_t ta_limit_of(const ta_device *device, ta_limit_source *source);
/* Idle memory of the arena may be taken away: no graph may replay on it. */
bool ta_arena_yields(const ta_device *device, const ta_arena *arena);

#endif
