/* pool.h - memory of CUDA graphs. */
#ifndef TA_POOL_H
#define TA_POOL_H

#include "types.h"

/* The open pool that takes a request for the stream, with one more user, so that it stays;
 * NULL: none. Calls filters, so no lock may be held. */
ta_pool *ta_pool_for(ta_device *device, ta_stream stream);
/* Pools whose last release the whole device has passed: their arenas become ordinary memory
 * that takes no more requests. `pages` held. */
void ta_pools_retire(ta_device *device);
/* What ta_pool_promise promised this thread for such a request, once; NULL: nothing. */
void *ta_pool_promised(const ta_device *device, size_t size);
void ta_pools_destroy(ta_device *device);
/* Some pool is over whose memory only the device must still pass to be ordinary, and none is
 * open: else the device cannot be waited for. */
bool ta_pools_over(const ta_device *device);

#endif
