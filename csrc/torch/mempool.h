/* mempool.h - pools of torch's own allocator over regions of the arena, as Python sees them.
 *
 * The functions that torch calls are ta_mempool_alloc_1 to _64, one for each region, and
 * ta_mempool_free. Thread-safe. */
#ifndef TA_MEMPOOL_H
#define TA_MEMPOOL_H

#include "../include/torcharena.h"

/* As to cudaFree: the devices' work is waited for, and the memory goes back to the driver. */
TA_API void ta_mempool_free(void *ptr, size_t size, int device, ta_stream stream);

/* The most bytes of segments that the region's pool may hold on the device. */
void ta_mempool_limit(ta_region_id id, int device, uint64_t bytes);
uint64_t ta_mempool_held(ta_region_id id, int device);
/* Why this thread's last request was refused, of so many bytes of segment and where; "" after
 * ta_mempool_forget. */
const char *ta_mempool_refusal(int *device, size_t *size);
void ta_mempool_forget(void);
/* Gives back what was freed during a capture. */
void ta_mempool_settle(void);
/* A stream of torch's own is being captured on a device that the arena is used on. */
bool ta_mempool_capturing(void);

#endif
