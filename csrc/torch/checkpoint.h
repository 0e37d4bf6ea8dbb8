/* checkpoint.h - setting a graph pool back. Private to csrc/torch, but for the first. */
#ifndef TA_CHECKPOINT_H
#define TA_CHECKPOINT_H

#include "../include/torcharena.h"

/* What this thread's next setCheckpointPoolState makes live; NULL: nothing is said any more.
 * The blocks must stay until then. */
void ta_torch_checkpoint_next(ta_pool_id id, const ta_pool_block *blocks, size_t count);
/* What takes the place of torch's virtual function; NULL where something is missing. */
const void *ta_torch_checkpoint_function(void);

#endif
