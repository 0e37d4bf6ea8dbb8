/* allocator.c - creating and destroying; what tells a forked child from its parent. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "alive.h"
#include "device.h"
#include "epoch.h"
#include "guard/guard.h"
#include "pages/pages.h"
#include "spill/plan.h"
#include "pool.h"

const char *ta_status_text(ta_status status)
{
    switch (status) {
    case TA_OK:
        return "ok";
    case TA_OUT_OF_MEMORY:
        return "out of memory";
    case TA_NOT_READY:
        return "the stream has not passed that point";
    case TA_INVALID:
        return "invalid argument";
    case TA_UNSUPPORTED:
        return "not supported by this driver or device";
    case TA_FORKED:
        return "called in a forked child, which cannot use its parent's CUDA";
    case TA_GONE:
        return "the CUDA driver has shut down";
    case TA_DRIVER:
        return "the CUDA driver failed";
    case TA_NO_HOST_MEMORY:
        return "no host memory";
    case TA_BUSY:
        return "in use already";
    case TA_ASLEEP:
        return "the region sleeps: wake it first";
    case TA_GUARDED:
        return "a guarded block was written out of bounds";
    }
    return "unknown status";
}

bool ta_is_forked(const ta_allocator *a) { return ta_forked(a); }

ta_status ta_allocator_create(const ta_driver *driver, const ta_config *config,
                              ta_allocator **allocator)
{
    *allocator = NULL;
    if (!driver) return TA_INVALID;
    ta_allocator *a = aligned_alloc(TA_LINE, sizeof *a);
    if (!a) return TA_NO_HOST_MEMORY;
    memset(a, 0, sizeof *a);
    a->driver = driver;
    if (config) a->config = *config;
    size_t bytes =
        TA_LOOKUP_SLOTS * sizeof *a->lookup; /* touched only where chunks are */
    void *lookup = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    a->alive = ta_alive_make();
    const bool guarded = !a->config.guard || ta_guard_create(a);
    if (lookup == MAP_FAILED || !a->alive || !guarded) {
        ta_guard_destroy(a);
        if (lookup != MAP_FAILED) munmap(lookup, bytes);
        ta_alive_end(a->alive);
        free(a);
        return TA_NO_HOST_MEMORY;
    }
    a->lookup = lookup;
    /* As though a thread were in a region, always: no request takes the fast path. */
    if (a->config.guard) atomic_init(&a->entered, 1);
    ta_lock_init(&a->setup, TA_RANK_SETUP);
    ta_lock_init(&a->plain_lock, TA_RANK_LOOKUP);
    for (int i = 0; i < TA_MAX_DEVICES; i++) {
        ta_device *d = &a->device[i];
        d->allocator = a;
        d->ordinal = i;
        ta_lock_init(&d->pages, TA_RANK_PAGES);
        ta_lock_init(&d->leveling, TA_RANK_LEVELING);
        ta_lock_init(&d->host.lock, TA_RANK_LOOKUP);
        pthread_condattr_t attributes;
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&d->pool_idle, &attributes);
        pthread_condattr_destroy(&attributes);
        atomic_flag_clear(&d->counting.taken);
        atomic_init(&d->tick, 1);
        d->page_bytes =
            config && config->page_bytes ? config->page_bytes : TA_DEFAULT_PAGE;
        for (int k = 0; k < TA_LIMIT_SOURCES; k++) d->limits[k] = TA_NO_LIMIT;
    }
    *allocator = a;
    return TA_OK;
}

static void destroy_device(ta_device *d)
{
    const ta_driver *driver = d->allocator->driver;
    uintptr_t saved[2];
    if (atomic_load(&d->used) && !ta_forked(d->allocator)) {
        bool reachable = ta_enter(d, saved) == TA_OK;
        if (reachable) driver->device_wait(driver->self, d->ordinal);
        ta_pages_destroy(d, reachable);
        if (d->guard) ta_guard_close(d, reachable);
        ta_epoch_destroy(d, reachable);
        if (reachable) ta_leave(d, saved);
    }
    ta_plan_destroy(d);
    ta_share_destroy(d); /* in a forked child too: its copy of the file is closed */
    ta_pools_destroy(d);
    ta_arena_map_destroy(d);
    pthread_cond_destroy(&d->pool_idle);
    ta_lock_destroy(&d->pages);
    ta_lock_destroy(&d->leveling);
    ta_lock_destroy(&d->host.lock);
}

void ta_allocator_destroy(ta_allocator *a)
{
    if (!a) return;
    for (int i = 0; i < TA_MAX_DEVICES; i++) destroy_device(&a->device[i]);
    ta_lock_destroy(&a->setup);
    ta_lock_destroy(&a->plain_lock);
    ta_guard_destroy(a);
    free(a->plain);
    munmap((void *)(uintptr_t)a->lookup, TA_LOOKUP_SLOTS * sizeof *a->lookup);
    ta_alive_end(a->alive);
    free(a);
}

ta_status ta_set_stream_life(ta_allocator *a, ta_stream_asked *asked, void *context)
{
    if (ta_forked(a)) return TA_FORKED;
    ta_lock_take(&a->setup);
    a->asked = asked;
    a->asked_context = context;
    ta_lock_drop(&a->setup);
    return TA_OK;
}
