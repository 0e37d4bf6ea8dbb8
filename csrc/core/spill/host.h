/* host.h - pages of pinned host memory, made once and kept. Needs no lock of the caller's. */
#ifndef TA_HOST_H
#define TA_HOST_H

#include "types.h"

/* In use:  handle != 0, mapped at `at` and open to the device alone; copies go there. A page
 * of which a failed call left less is made good when it is taken next. */
struct ta_host_page {
    ta_handle handle; /* 0: vacant */
    uint64_t at, bytes;
    bool mapped, open;
    bool shut; /* a failure left it mapped at its slot, too, but not open there */
    ta_host_page *next; /* of the idle or the vacant ones */
};

/* `count` pages of `bytes`, all or none: kept ones first, then new ones, within the budget
 * and what the machine has, which is asked before any is made; many by several threads. Where
 * one fails, those that were made go. *pinned grows by the bytes that were made.
 * TA_OUT_OF_MEMORY: the budget; TA_NO_HOST_MEMORY: the machine; TA_UNSUPPORTED: the driver
 * cannot. */
ta_status ta_host_take(ta_device *device, uint64_t bytes, size_t count,
                       ta_host_page **pages, uint64_t *pinned);
/* Back to the kept ones: nothing in flight touches it. */
void ta_host_put(ta_device *device, ta_host_page *page);
/* The same where a copy may still be under way: kept apart until ta_host_settle, which is
 * called once the device has passed all its work. */
void ta_host_put_unsure(ta_device *device, ta_host_page *page);
void ta_host_settle(ta_device *device);
/* The driver can. */
bool ta_host_supported(const ta_allocator *allocator);
/* Kept pages go back to the machine until `keep` bytes are pinned by the process. */
ta_status ta_host_release(ta_device *device, uint64_t keep, uint64_t *released);
/* More is pinned than a budget that was lowered allows. */
bool ta_host_beyond(const ta_allocator *allocator);
/* Kept pages go until it is not, as far as there are any. */
void ta_host_shrink(ta_device *device);
void ta_host_destroy(ta_device *device, bool reachable);

#endif
