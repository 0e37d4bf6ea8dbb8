/* gather.h - pages of the device in hand: found, made, put down. The device's `pages` lock is
 * held, and dropped meanwhile where something is waited for. */
#ifndef TA_GATHER_H
#define TA_GATHER_H

#include "ledger/share.h"

/* Pages in hand, not mapped yet. */
typedef struct ta_hand {
    ta_handle *pages;
    uint64_t bytes; /* of each */
    size_t count, want, created;
    bool retried; /* idle pages were taken since none could be made */
    bool modest;  /* what would have to be waited for counts as not there */
} ta_hand;

/* Where the pages cannot be had whatever is waited for, that is better known before everything
 * idle is torn down. Those that must be new are charged. */
ta_status ta_look_ahead(ta_device *device, size_t need, uint64_t page_bytes,
                        ta_lack *lack);
/* Fills the hand, for a block of so many bytes. On failure some are in hand. */
ta_status ta_gather(ta_device *device, ta_hand *hand, uint64_t bytes, ta_lack *lack);
/* Pages taken from idle places stay ours; those made for this request do not, nor does what
 * was charged for it, unless they are kept. */
void ta_put_down(ta_device *device, ta_hand *hand, bool keep_created);

/* Unmaps up to `max` idle pages of `size` bytes, or with 0 of some size, which is in
 * *got_size: those longest idle whose stream has passed. */
size_t ta_steal(ta_device *device, uint64_t size, ta_handle *pages, size_t max,
                uint64_t *got_size, ta_status *status);
/* Waits for the one thing that makes a page of that size (0: any) idle soonest, of what was
 * freed before a tick. TA_NOT_READY: there is nothing to wait for, or not so shortly. */
ta_status ta_wait_idle(ta_device *device, uint64_t size, uint64_t before, double most_us);
/* The same for a block freed before `tick` that a recorded stream uses. */
ta_status ta_wait_pending(ta_device *device, uint64_t tick);

/* False: no host memory, and the page is still the caller's. */
bool ta_ready_push(ta_device *device, ta_handle page, uint64_t bytes);
/* Back to the driver: a page, also with an arena's lock held; the last of the ready ones of a
 * size. */
ta_status ta_page_release(ta_device *device, ta_handle page, uint64_t bytes);
ta_status ta_ready_release(ta_device *device, ta_ready *ready);
/* Bytes of ready pages of all sizes. */
uint64_t ta_ready_held(const ta_device *device);

#endif
