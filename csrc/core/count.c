/* count.c - the arena's counts, under its lock, and the device's gauges, under `counting`:
 * exact at every moment, peaks included. Called by block.c and pages.c. */
#include "count.h"

#include "plan.h"

static void up(ta_gauge g[3], int kind, uint64_t by)
{
    ta_gauge_up(&g[TA_POOL_ALL], by);
    ta_gauge_up(&g[kind], by);
}

static void down(ta_gauge g[3], int kind, uint64_t by)
{
    ta_gauge_down(&g[TA_POOL_ALL], by);
    ta_gauge_down(&g[kind], by);
}

static int kind_of(const ta_arena *arena)
{
    return arena->small ? TA_POOL_SMALL : TA_POOL_LARGE;
}

uint64_t ta_count_alloc(ta_arena *arena, uint64_t bytes, uint64_t requested)
{
    ta_device *d = arena->device;
    int kind = kind_of(arena);
    arena->counts.live_blocks++;
    arena->counts.live_bytes += bytes;
    arena->counts.live_requested += requested;
    ta_spin_take(&d->counting);
    up(d->stats.allocations, kind, 1);
    up(d->stats.allocated, kind, bytes);
    up(d->stats.requested, kind, requested);
    up(d->stats.active_blocks, kind, 1);
    up(d->stats.active, kind, bytes);
    const uint64_t live = d->stats.allocated[TA_POOL_ALL].current;
    if (live > d->live_peak) d->live_peak = live;
    if (__builtin_expect(d->plan != NULL, 0)) ta_plan_alloc(d, bytes, arena->stream->key);
    uint64_t serial = ++d->serial * TA_MAX_DEVICES + (uint64_t)d->ordinal;
    ta_spin_drop(&d->counting);
    return serial;
}

void ta_count_free(ta_arena *arena, const ta_block *block, bool pending)
{
    const uint64_t bytes = block->size, requested = block->requested;
    ta_device *d = arena->device;
    int kind = kind_of(arena);
    arena->counts.live_blocks--;
    arena->counts.live_bytes -= bytes;
    arena->counts.live_requested -= requested;
    ta_spin_take(&d->counting);
    if (__builtin_expect(d->plan != NULL, 0)) ta_plan_free(d, block->serial, bytes);
    down(d->stats.allocations, kind, 1);
    down(d->stats.allocated, kind, bytes);
    down(d->stats.requested, kind, requested);
    if (pending) {
        arena->counts.pending_blocks++;
        arena->counts.pending_bytes += bytes;
        ta_gauge_up(&d->stats.pending, bytes);
    } else {
        down(d->stats.active_blocks, kind, 1);
        down(d->stats.active, kind, bytes);
    }
    ta_spin_drop(&d->counting);
}

void ta_count_settled(ta_arena *arena, uint64_t bytes)
{
    ta_device *d = arena->device;
    int kind = kind_of(arena);
    arena->counts.pending_blocks--;
    arena->counts.pending_bytes -= bytes;
    ta_spin_take(&d->counting);
    ta_gauge_down(&d->stats.pending, bytes);
    down(d->stats.active_blocks, kind, 1);
    down(d->stats.active, kind, bytes);
    ta_spin_drop(&d->counting);
}

void ta_count_pages(ta_device *d, int64_t pages, uint64_t page_bytes)
{
    uint64_t count = (uint64_t)(pages < 0 ? -pages : pages);
    ta_spin_take(&d->counting);
    if (pages >= 0) {
        ta_gauge_up(&d->stats.pages, count);
        ta_gauge_up(&d->stats.reserved, count * page_bytes);
    } else {
        ta_gauge_down(&d->stats.pages, count);
        ta_gauge_down(&d->stats.reserved, count * page_bytes);
    }
    ta_spin_drop(&d->counting);
}

void ta_count_mapped(ta_arena *arena, int64_t pages)
{
    ta_device *d = arena->device;
    ta_spin_take(&d->counting);
    if (pages >= 0)
        up(d->stats.mapped, kind_of(arena), (uint64_t)pages * arena->page_bytes);
    else
        down(d->stats.mapped, kind_of(arena), (uint64_t)-pages * arena->page_bytes);
    ta_spin_drop(&d->counting);
}

void ta_count_host(ta_device *d, uint64_t bytes, bool up)
{
    ta_spin_take(&d->counting);
    if (up)
        ta_gauge_up(&d->stats.host, bytes);
    else
        ta_gauge_down(&d->stats.host, bytes);
    ta_spin_drop(&d->counting);
}

void ta_count_retry(ta_device *d)
{
    ta_spin_take(&d->counting);
    d->stats.retry_count++;
    ta_spin_drop(&d->counting);
}

void ta_count_slow(ta_device *d, double us)
{
    ta_spin_take(&d->counting);
    d->stats.slow_allocs++;
    d->stats.slow_us += us;
    ta_spin_drop(&d->counting);
}

void ta_count_totals(ta_allocator *a, int device, uint64_t *allocated, uint64_t *reserved)
{
    *allocated = *reserved = 0;
    if (device < 0 || device >= TA_MAX_DEVICES) return;
    ta_device *d = &a->device[device];
    ta_spin_take(&d->counting);
    *allocated = d->stats.allocated[TA_POOL_ALL].current;
    *reserved = d->stats.reserved.current;
    ta_spin_drop(&d->counting);
}
