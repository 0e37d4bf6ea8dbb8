/* stats.c - the numbers of a device. Public functions only; thread-safe. */
#define _POSIX_C_SOURCE 200809L
#include <string.h>

#include "count.h"
#include "device.h"
#include "pages/gather.h"
#include "oom.h"
#include "pages/pages.h"

ta_status ta_get_stats(ta_allocator *a, int device, ta_stats *stats)
{
    memset(stats, 0, sizeof *stats);
    if (ta_forked(a)) return TA_FORKED;
    ta_device *d = ta_device_if_used(a, device);
    if (!d) return TA_INVALID;
    ta_limit_source source;
    uint64_t idle = 0, partly = 0, arenas = 0, streams = 0, holes[3] = {0};
    uint64_t pooled = 0;
    ta_lock_take(&d->pages);
    for (ta_arena *arena = d->arenas; arena; arena = arena->next, arenas++) {
        ta_arena_lock(arena);
        idle += ((uint64_t)arena->idle + arena->stray) * arena->page_bytes;
        pooled += arena->pool != NULL;
        holes[arena->small ? TA_POOL_SMALL : TA_POOL_LARGE] += arena->bins.count;
        ta_arena_unlock(arena);
    }
    for (const ta_stream_state *s = d->streams; s; s = s->next) streams++;
    idle += ta_ready_held(d);
    partly = ta_partly_used(d);
    ta_count_stats(d, stats);
    stats->host_budget = atomic_load(&a->host_budget);
    stats->host_held = atomic_load(&a->host_held);
    stats->limit = ta_limit_of(d, &source);
    stats->limit_source = (int)source;
    stats->page_bytes = d->page_bytes;
    ta_lock_drop(&d->pages);
    stats->idle = idle;
    stats->partly_used = partly;
    stats->arenas = arenas;
    stats->streams = streams;
    stats->pool_arenas = pooled;
    for (int kind = TA_POOL_SMALL; kind <= TA_POOL_LARGE; kind++) {
        stats->holes[kind] = holes[kind];
        stats->holes[TA_POOL_ALL] += holes[kind];
    }
    return TA_OK;
}

ta_status ta_get_page_counts(ta_allocator *a, int device, ta_page_counts *counts)
{
    memset(counts, 0, sizeof *counts);
    if (ta_forked(a)) return TA_FORKED;
    ta_device *d = ta_device_if_used(a, device);
    if (!d) return TA_INVALID;
    ta_spin_take(&d->counting);
    *counts = (ta_page_counts){.page_moves = d->stats.page_moves,
                               .spill_bytes = d->stats.spill_bytes,
                               .waits = d->stats.waits,
                               .reserved = d->stats.reserved.current,
                               .wait_us = d->stats.wait_us};
    ta_spin_drop(&d->counting);
    return TA_OK;
}

/* Every gauge that is counted for the device. */
static void each_gauge(ta_stats *s, void (*change)(ta_gauge *))
{
    enum { SINGLE = 7 };
    ta_gauge *single[SINGLE] = {&s->reserved, &s->pages,   &s->pending, &s->addresses,
                                &s->host,     &s->spilled, &s->dropped};
    for (int kind = 0; kind < 3; kind++) change(&s->mapped[kind]);
    for (size_t i = 0; i < SINGLE; i++) change(single[i]);
}

static void lower_peak(ta_gauge *g) { g->peak = g->current; }

/* current = increased - decreased stays true */
static void forget_past(ta_gauge *g)
{
    g->increased = g->current;
    g->decreased = 0;
}

static ta_status change_gauges(ta_allocator *a, int device, bool accumulated)
{
    if (ta_forked(a)) return TA_FORKED;
    ta_device *d = ta_device_if_used(a, device);
    if (!d) return TA_INVALID;
    ta_count_reset(d, accumulated);
    ta_spin_take(&d->counting);
    if (accumulated) {
        each_gauge(&d->stats, forget_past);
        d->stats.oom_count = d->stats.retry_count = 0;
    } else {
        each_gauge(&d->stats, lower_peak);
        d->stats.largest_idle_partly_used = 0;
    }
    ta_spin_drop(&d->counting);
    return TA_OK;
}

ta_status ta_reset_peaks(ta_allocator *a, int device)
{
    return change_gauges(a, device, false);
}

ta_status ta_reset_accumulated(ta_allocator *a, int device)
{
    return change_gauges(a, device, true);
}

ta_status ta_device_memory(ta_allocator *a, int device, uint64_t *free_bytes,
                           uint64_t *total)
{
    uintptr_t saved[2];
    *free_bytes = *total = 0;
    if (ta_forked(a)) return TA_FORKED;
    ta_device_use(a); /* it makes a context, too */
    ta_status status = a->driver->enter(a->driver->self, device, saved);
    if (status) return status;
    status = a->driver->mem_info(a->driver->self, device, free_bytes, total);
    a->driver->leave(a->driver->self, device, saved);
    return status;
}

bool ta_device_used(ta_allocator *a, int device)
{
    return !ta_forked(a) && ta_device_if_used(a, device);
}
