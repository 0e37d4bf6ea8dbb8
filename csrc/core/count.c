/* count.c - the arenas' counts and the device's gauges; count.h says how peaks hang together.
 * Called by alloc.c, block.c, stats.c and whatever brings pages or calls the driver. */
#include "count.h"

#include <string.h>

#include "spill/plan.h"

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

/* --- blocks -------------------------------------------------------------------------------- */
uint64_t ta_count_planned(ta_arena *arena, uint64_t bytes)
{
    ta_device *d = arena->device;
    ta_spin_take(&d->counting);
    ta_plan_alloc(d, bytes, arena->stream->key);
    const uint64_t serial = atomic_fetch_add(&d->serial, 1) + 1;
    ta_spin_drop(&d->counting);
    return serial * TA_MAX_DEVICES + (uint64_t)d->ordinal;
}

void ta_count_free_slow(ta_arena *arena, const ta_block *block, bool pending)
{
    ta_device *d = arena->device;
    if (pending) {
        arena->counts.pending_blocks++;
        arena->counts.pending_bytes += block->size;
    }
    ta_spin_take(&d->counting);
    if (pending) ta_gauge_up(&d->stats.pending, block->size);
    if (d->plan) ta_plan_free(d, block->serial, block->size);
    ta_spin_drop(&d->counting);
}

void ta_count_settled(ta_arena *arena, uint64_t bytes)
{
    arena->counts.pending_blocks--;
    arena->counts.pending_bytes -= bytes;
    arena->room[TA_OF_ACTIVE_BLOCKS]++;
    arena->room[TA_OF_ACTIVE] += bytes;
    ta_spin_take(&arena->device->counting);
    ta_gauge_down(&arena->device->stats.pending, bytes);
    ta_spin_drop(&arena->device->counting);
}

/* --- room ---------------------------------------------------------------------------------- */
static ta_gauge *gauges(ta_stats *s, int of)
{
    ta_gauge *const all[TA_GAUGES] = {[TA_OF_BLOCKS] = s->allocations,
                                      [TA_OF_BYTES] = s->allocated,
                                      [TA_OF_REQUESTED] = s->requested,
                                      [TA_OF_ACTIVE_BLOCKS] = s->active_blocks,
                                      [TA_OF_ACTIVE] = s->active};
    return all[of];
}

static uint64_t less(uint64_t from, uint64_t by) { return from > by ? from - by : 0; }

/* What may be granted to an arena of the kind before a peak rises. */
static uint64_t spare(ta_device *d, int of, int kind)
{
    const ta_gauge *g = gauges(&d->stats, of);
    uint64_t all = less(g[TA_POOL_ALL].peak, d->granted[of][TA_POOL_ALL]),
             own = less(g[kind].peak, d->granted[of][kind]);
    if (of == TA_OF_BYTES) {
        uint64_t since = less(d->live_peak, d->granted[of][TA_POOL_ALL]);
        if (since < all) all = since;
    }
    return all < own ? all : own;
}

static void give_room(ta_device *d, ta_arena *a, int of, uint64_t by)
{
    a->room[of] += by;
    d->granted[of][TA_POOL_ALL] += by;
    d->granted[of][kind_of(a)] += by;
}

/* The arena's lock is held. */
static void take_room(ta_device *d, ta_arena *a)
{
    for (int of = 0; of < TA_GAUGES; of++) {
        d->granted[of][TA_POOL_ALL] -= a->room[of];
        d->granted[of][kind_of(a)] -= a->room[of];
        a->room[of] = 0;
    }
}

/* The locks of all arenas but one, with `leveling` held: nobody else takes two. */
static void lock_all(ta_device *d, const ta_arena *but)
{
    for (ta_arena *a = d->arenas; a; a = a->next)
        if (a != but) ta_quick_take_plain(&a->lock);
}

static void unlock_all(ta_device *d, const ta_arena *but)
{
    for (ta_arena *a = d->arenas; a; a = a->next)
        if (a != but) ta_quick_drop_plain(&a->lock);
}

static void take_all_rooms(ta_device *d)
{
    for (ta_arena *a = d->arenas; a; a = a->next) take_room(d, a);
}

static bool enough(ta_device *d, const ta_arena *a, const uint64_t need[TA_GAUGES])
{
    for (int of = 0; of < TA_GAUGES; of++)
        if (less(need[of], a->room[of]) > spare(d, of, kind_of(a))) return false;
    return true;
}

static void raise_peaks(ta_device *d, int of, int kind)
{
    ta_gauge *g = gauges(&d->stats, of);
    const uint64_t all = d->granted[of][TA_POOL_ALL], own = d->granted[of][kind];
    if (g[TA_POOL_ALL].peak < all) g[TA_POOL_ALL].peak = all;
    if (g[kind].peak < own) g[kind].peak = own;
    if (of == TA_OF_BYTES && d->live_peak < all) d->live_peak = all;
}

/* What is needed and half of what is left, so that who comes next finds some, too. */
static void grant(ta_device *d, ta_arena *a, const uint64_t need[TA_GAUGES])
{
    for (int of = 0; of < TA_GAUGES; of++) {
        const uint64_t more = less(need[of], a->room[of]),
                       left = spare(d, of, kind_of(a));
        give_room(d, a, of, more + less(left, more) / 2);
        raise_peaks(d, of, kind_of(a));
    }
}

void ta_count_lock(ta_arena *arena)
{
    ta_lock_take(&arena->device->leveling);
    ta_arena_lock(arena);
}

void ta_count_unlock(ta_arena *arena)
{
    ta_arena_unlock(arena);
    ta_lock_drop(&arena->device->leveling);
}

void ta_count_admit(ta_arena *arena, uint64_t bytes, uint64_t requested)
{
    ta_device *d = arena->device;
    const uint64_t need[TA_GAUGES] = {[TA_OF_BLOCKS] = 1,
                                      [TA_OF_BYTES] = bytes,
                                      [TA_OF_REQUESTED] = requested,
                                      [TA_OF_ACTIVE_BLOCKS] = 1,
                                      [TA_OF_ACTIVE] = bytes};
    if (ta_count_room(arena, bytes, requested)) return;
    const bool all = !enough(d, arena, need);
    if (all) {
        lock_all(d, arena);
        take_all_rooms(d);
    }
    grant(d, arena, need);
    if (all) unlock_all(d, arena);
}

/* --- sums ---------------------------------------------------------------------------------- */
static void add(ta_counts *sum, const ta_counts *c)
{
    sum->live_blocks += c->live_blocks;
    sum->live_bytes += c->live_bytes;
    sum->live_requested += c->live_requested;
    sum->freed_blocks += c->freed_blocks;
    sum->freed_bytes += c->freed_bytes;
    sum->freed_requested += c->freed_requested;
    sum->pending_blocks += c->pending_blocks;
    sum->pending_bytes += c->pending_bytes;
}

/* By kind, at one moment; `leveling` is held. */
static void add_all(ta_device *d, ta_counts sums[3])
{
    memcpy(sums, d->gone, sizeof d->gone);
    lock_all(d, NULL);
    for (const ta_arena *a = d->arenas; a; a = a->next)
        add(&sums[kind_of(a)], &a->counts);
    unlock_all(d, NULL);
}

void ta_count_gone(ta_arena *arena)
{
    ta_device *d = arena->device;
    ta_arena_lock(arena);
    take_room(d, arena);
    add(&d->gone[kind_of(arena)], &arena->counts);
    arena->counts = (ta_counts){0};
    ta_arena_unlock(arena);
}

ta_now ta_count_now(ta_device *d)
{
    ta_counts sums[3];
    ta_lock_take(&d->leveling);
    add_all(d, sums);
    ta_lock_drop(&d->leveling);
    const uint64_t live = sums[TA_POOL_SMALL].live_bytes + sums[TA_POOL_LARGE].live_bytes;
    return (ta_now){live, live + sums[TA_POOL_SMALL].pending_bytes +
                              sums[TA_POOL_LARGE].pending_bytes};
}

uint64_t ta_count_live_peak(ta_device *d)
{
    ta_lock_take(&d->leveling);
    const uint64_t peak = d->live_peak;
    ta_lock_drop(&d->leveling);
    return peak;
}

void ta_count_forget_live(ta_device *d)
{
    ta_lock_take(&d->leveling);
    lock_all(d, NULL);
    take_all_rooms(d);
    d->live_peak = d->granted[TA_OF_BYTES][TA_POOL_ALL];
    unlock_all(d, NULL);
    ta_lock_drop(&d->leveling);
}

/* increased = current + decreased */
static void set(ta_gauge g[3], int kind, uint64_t current, uint64_t decreased)
{
    const int both[2] = {TA_POOL_ALL, kind};
    for (int i = 0; i < 2; i++) {
        g[both[i]].current += current;
        g[both[i]].decreased += decreased;
        g[both[i]].increased += current + decreased;
    }
}

void ta_count_stats(ta_device *d, ta_stats *s)
{
    ta_counts sums[3], forgotten[3];
    ta_lock_take(&d->leveling);
    add_all(d, sums);
    memcpy(forgotten, d->forgotten, sizeof forgotten);
    ta_spin_take(&d->counting);
    *s = d->stats; /* of these gauges the peaks alone */
    ta_spin_drop(&d->counting);
    ta_lock_drop(&d->leveling);
    for (int kind = TA_POOL_SMALL; kind <= TA_POOL_LARGE; kind++) {
        const ta_counts *c = &sums[kind], *f = &forgotten[kind];
        const uint64_t blocks = c->freed_blocks - f->freed_blocks,
                       bytes = c->freed_bytes - f->freed_bytes;
        set(s->allocations, kind, c->live_blocks, blocks);
        set(s->allocated, kind, c->live_bytes, bytes);
        set(s->requested, kind, c->live_requested,
            c->freed_requested - f->freed_requested);
        set(s->active_blocks, kind, c->live_blocks + c->pending_blocks,
            blocks + f->pending_blocks - c->pending_blocks);
        set(s->active, kind, c->live_bytes + c->pending_bytes,
            bytes + f->pending_bytes - c->pending_bytes);
    }
}

void ta_count_reset(ta_device *d, bool accumulated)
{
    ta_lock_take(&d->leveling);
    if (accumulated) {
        add_all(d, d->forgotten);
    } else {
        lock_all(d, NULL);
        take_all_rooms(d);
        for (int of = 0; of < TA_GAUGES; of++)
            for (int kind = 0; kind < 3; kind++)
                gauges(&d->stats, of)[kind].peak = d->granted[of][kind];
        unlock_all(d, NULL);
    }
    ta_lock_drop(&d->leveling);
}

/* --- pages, calls --------------------------------------------------------------------------- */
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

uint64_t ta_count_reserved(ta_allocator *a, int device)
{
    if (device < 0 || device >= TA_MAX_DEVICES) return 0;
    ta_device *d = &a->device[device];
    ta_spin_take(&d->counting);
    const uint64_t reserved = d->stats.reserved.current;
    ta_spin_drop(&d->counting);
    return reserved;
}
