/* calls.h - the driver's calls, counted. Needs no lock but `counting`'s. */
#ifndef TA_CALLS_H
#define TA_CALLS_H

#include "types.h"

ta_status ta_call_reserve(ta_device *device, uint64_t size, uint64_t *addr);
ta_status ta_call_unreserve(ta_device *device, uint64_t addr, uint64_t size);
ta_status ta_call_create(ta_device *device, ta_tier tier, uint64_t size, ta_handle *page);
ta_status ta_call_release(ta_device *device, ta_handle page, uint64_t size);
ta_status ta_call_map(ta_device *device, uint64_t addr, uint64_t size, ta_handle page);
ta_status ta_call_unmap(ta_device *device, uint64_t addr, uint64_t size);
ta_status ta_call_access(ta_device *device, uint64_t addr, uint64_t size);
/* For the device alone, whoever else may touch its pages. */
ta_status ta_call_access_self(ta_device *device, uint64_t addr, uint64_t size);
/* Records `*event`, created if NULL. TA_NOT_READY, and nothing is recorded, while the stream
 * is being captured. */
ta_status ta_call_record(ta_device *device, ta_stream stream, ta_event *event);
ta_status ta_call_query(ta_device *device, ta_event event);

#endif
