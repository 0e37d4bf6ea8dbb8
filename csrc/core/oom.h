/* oom.h - what was true when a request failed. `pages` held. */
#ifndef TA_OOM_H
#define TA_OOM_H

#include "ledger/share.h"

void ta_oom_fill(ta_device *device, ta_stream stream, uint64_t requested,
                 const ta_lack *lack, ta_status status, ta_oom *oom);
/* Free bytes in pages that also hold blocks, of the whole device; keeps the highest. Takes
 * every arena's lock in turn. */
uint64_t ta_partly_used(ta_device *device);
/* Free bytes in pages that also hold blocks. The arena's lock is held. */
uint64_t ta_arena_partly_used(const ta_arena *arena);

#endif
