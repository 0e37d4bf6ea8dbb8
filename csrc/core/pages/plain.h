/* plain.h - devices without VMM: memory and its address come together, in whole ranges.
 * The device's `pages` lock is held. */
#ifndef TA_PLAIN_H
#define TA_PLAIN_H

#include "ledger/share.h"

/* A range for the arena that holds a block of `bytes`, all of it backed. Within the cap;
 * idle ranges go first. TA_OUT_OF_MEMORY with *lack where that is not enough. */
ta_status ta_plain_add(ta_device *device, ta_arena *arena, uint64_t bytes, ta_lack *lack);
/* Gives ranges back that hold no block until `keep` bytes are reserved; with `wait` also
 * those that streams still use, if they were left before tick `before`. */
ta_status ta_plain_give_back(ta_device *device, uint64_t keep, bool wait, uint64_t before,
                             uint64_t *released);

/* Guarded devices: blocks that were freed go once their streams have passed, which is waited
 * for a while. */
void ta_plain_sweep(ta_device *device, ta_arena *arena);

#endif
