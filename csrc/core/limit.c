/* limit.c - caps, and giving memory back. Public functions only; thread-safe. */
#include "device.h"
#include "epoch.h"
#include "pages/pages.h"
#include "spill/plan.h"
#include "spill/tier.h"

/* What of it cannot be given back now, since it is live, is as soon as it is freed and
 * somebody allocates. */
static ta_status give_back(ta_device *d, uint64_t keep, uint64_t *released)
{
    uintptr_t saved[2];
    ta_status status = ta_enter(d, saved);
    if (status) return status;
    ta_lock_take(&d->pages);
    status = ta_pages_give_back(d, keep, true, released);
    ta_pages_judge(d);
    if (!keep) ta_tier_sweep(d);
    ta_addresses_trim(d);
    ta_lock_drop(&d->pages);
    ta_leave(d, saved);
    return status;
}

ta_status ta_trim(ta_allocator *a, int device, uint64_t *released)
{
    uint64_t bytes = 0;
    ta_status status = TA_OK;
    if (released) *released = 0;
    if (ta_forked(a)) return TA_FORKED;
    if (device < -1 || device >= TA_MAX_DEVICES) return TA_INVALID;
    for (int i = 0; i < TA_MAX_DEVICES; i++) {
        ta_device *d = device < 0 || device == i ? ta_device_if_used(a, i) : NULL;
        ta_status failed = d ? give_back(d, 0, &bytes) : TA_OK;
        if (failed) status = failed;
        if (d) ta_pages_forget(d);
    }
    if (released) *released = bytes;
    return status;
}

ta_status ta_set_limit(ta_allocator *a, int device, ta_limit_source source,
                       uint64_t bytes)
{
    uint64_t released = 0;
    if (ta_forked(a)) return TA_FORKED;
    if (source <= TA_LIMIT_NONE || source >= TA_LIMIT_SOURCES) return TA_INVALID;
    if (device < -1 || device >= TA_MAX_DEVICES) return TA_INVALID;
    ta_status status = TA_OK;
    for (int i = 0; i < TA_MAX_DEVICES; i++) {
        if (device >= 0 && device != i) continue;
        ta_device *d = &a->device[i];
        ta_lock_take(&d->pages);
        d->limits[source] = bytes;
        ta_plan_forget(d);
        uint64_t limit = atomic_load(&d->used) ? ta_limit_of(d, NULL) : TA_NO_LIMIT;
        ta_pages_judge(d);
        ta_lock_drop(&d->pages);
        ta_status failed = limit != TA_NO_LIMIT ? give_back(d, limit, &released) : TA_OK;
        if (failed) status = failed;
    }
    return status;
}

uint64_t ta_limit(ta_allocator *a, int device, ta_limit_source *source)
{
    ta_limit_source unused;
    if (!source) source = &unused;
    *source = TA_LIMIT_NONE;
    if (ta_forked(a) || device < 0 || device >= TA_MAX_DEVICES) return TA_NO_LIMIT;
    ta_device *d = &a->device[device];
    ta_lock_take(&d->pages);
    uint64_t limit = ta_limit_of(d, source);
    ta_lock_drop(&d->pages);
    return limit;
}
