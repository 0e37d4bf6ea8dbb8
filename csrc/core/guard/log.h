/* log.h - what guarded blocks showed, until somebody is told. Each call takes and drops
 * the log's lock. */
#ifndef TA_GUARD_LOG_H
#define TA_GUARD_LOG_H

#include "types.h"

/* The block of a guarded range, as it was handed out; it outlives the block. */
typedef struct ta_guarded {
    uint64_t addr, size, serial; /* serial 0: it was not handed out yet */
    ta_stream stream;
    uint16_t module, stack; /* where, of place.h */
    bool told;              /* it was found written around already */
} ta_guarded;

/* A range of addresses that had a block. */
typedef struct ta_parted {
    uint64_t base, bytes; /* as reserved */
    int device;
    ta_guarded block;
} ta_parted;
#define TA_PARTED 4096u /* so many are kept from being given again */

/* Of the allocator; false: no host memory. */
bool ta_guard_create(ta_allocator *allocator);
void ta_guard_destroy(ta_allocator *allocator);
/* The block becomes the user's: notes it, and where the thread is. */
void ta_guard_note(ta_guarded *guarded, const ta_block *block, ta_stream stream);
void ta_guard_tell(ta_allocator *allocator, const ta_guard_finding *finding);
/* Something waits for ta_guard_next. */
bool ta_guard_found(const ta_allocator *allocator);
/* Keeps a range; true: *out is one to be given back, the oldest where there are too many. */
bool ta_guard_part(ta_allocator *allocator, const ta_parted *in, ta_parted *out);
/* The next of a device's; false: it has none any more. */
bool ta_guard_unpart(ta_allocator *allocator, int device, ta_parted *out);

#endif
