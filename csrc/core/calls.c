/* calls.c - the driver's calls as the core makes them: counted, for one device.
 * Called by pages.c, epoch.c, arena.c. */
#include "calls.h"

#define DRIVER(device) ((device)->allocator->driver)
#define COUNT(device, field)                                                             \
    do {                                                                                 \
        ta_spin_take(&(device)->counting);                                               \
        (device)->stats.field++;                                                         \
        ta_spin_drop(&(device)->counting);                                               \
    } while (0)

ta_status ta_call_reserve(ta_device *d, uint64_t size, uint64_t *addr)
{
    COUNT(d, calls_reserve);
    return DRIVER(d)->reserve(DRIVER(d)->self, size, TA_LOOKUP_BYTES, addr);
}

ta_status ta_call_unreserve(ta_device *d, uint64_t addr, uint64_t size)
{
    COUNT(d, calls_reserve);
    return DRIVER(d)->unreserve(DRIVER(d)->self, addr, size);
}

ta_status ta_call_create(ta_device *d, ta_tier tier, uint64_t size, ta_handle *page)
{
    COUNT(d, calls_create);
    return DRIVER(d)->create(DRIVER(d)->self, d->ordinal, tier, size, page);
}

ta_status ta_call_release(ta_device *d, ta_handle page, uint64_t size)
{
    COUNT(d, calls_release);
    return DRIVER(d)->release(DRIVER(d)->self, page, size);
}

ta_status ta_call_map(ta_device *d, uint64_t addr, uint64_t size, ta_handle page)
{
    COUNT(d, calls_map);
    return DRIVER(d)->map(DRIVER(d)->self, addr, size, page);
}

ta_status ta_call_unmap(ta_device *d, uint64_t addr, uint64_t size)
{
    COUNT(d, calls_unmap);
    return DRIVER(d)->unmap(DRIVER(d)->self, addr, size);
}

ta_status ta_call_access(ta_device *d, uint64_t addr, uint64_t size)
{
    COUNT(d, calls_access);
    return DRIVER(d)->set_access(DRIVER(d)->self, addr, size, d->access, d->access_count);
}

ta_status ta_call_access_self(ta_device *d, uint64_t addr, uint64_t size)
{
    COUNT(d, calls_access);
    return DRIVER(d)->set_access(DRIVER(d)->self, addr, size, &d->ordinal, 1);
}

ta_status ta_call_record(ta_device *d, ta_stream stream, ta_event *event)
{
    const ta_driver *driver = DRIVER(d);
    bool capturing = false;
    COUNT(d, calls_event);
    ta_status status = driver->is_capturing(driver->self, d->ordinal, stream, &capturing);
    if (status) return status;
    if (capturing) return TA_NOT_READY;
    if (!*event && (status = driver->event_create(driver->self, d->ordinal, event)))
        return status;
    return driver->event_record(driver->self, *event, d->ordinal, stream);
}

ta_status ta_call_query(ta_device *d, ta_event event)
{
    COUNT(d, calls_event);
    return DRIVER(d)->event_query(DRIVER(d)->self, event);
}
