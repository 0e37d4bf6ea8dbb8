/* block.h - the life of a block once its place is known. The arena's lock is held. */
#ifndef TA_BLOCK_H
#define TA_BLOCK_H

#include "types.h"

/* A held block becomes the user's. The table has room. */
void ta_block_begin(ta_arena *arena, ta_block *block, uint64_t requested);
/* The user's free at `tick`, which was told: with uses it becomes pending, else free. */
void ta_block_end(ta_arena *arena, ta_block *block, uint64_t tick);
/* A pending block, taken off the arena's list by the caller, becomes free. */
void ta_block_settle(ta_arena *arena, ta_block *block);
/* Forgets the streams recorded for a live, pending or held block. */
void ta_uses_free(ta_block *block);

#endif
