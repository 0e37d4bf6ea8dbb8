/* count.h - what is live, in each arena and on the device, and the most that ever was.
 *
 * An arena counts its own blocks under its own lock, and no request looks at other arenas:
 * each may grow by so much (`room`) that no peak of the device can be passed,
 *     granted = sum over arenas of (current + room) <= peak,  of all and of each kind.
 * A block that finds no room is admitted under `leveling`: from what nobody was granted; and
 * where that is too little, with the locks of all arenas held at once, so that their rooms
 * come back and  granted = current.  Then a peak rises to what is live at that moment, the
 * new block included. So peaks are exact, however many threads allocate, and no threads on
 * arenas of their own write what the other reads. Pages and calls are counted for the device,
 * under `counting`. */
#ifndef TA_COUNT_H
#define TA_COUNT_H

#include "clock.h"
#include "types.h"

#define TA_SERIALS 1024 /* that an arena takes at a time */

static inline void ta_gauge_up(ta_gauge *g, uint64_t by)
{
    g->current += by;
    g->increased += by;
    if (g->current > g->peak) g->peak = g->current;
}
static inline void ta_gauge_down(ta_gauge *g, uint64_t by)
{
    g->current -= by;
    g->decreased += by;
}

/* --- blocks: the arena's lock is held ---------------------------------------------------- */
/* A block may become live without a look at the device's peaks. */
static inline bool ta_count_room(const ta_arena *arena, uint64_t bytes,
                                 uint64_t requested)
{
    const uint64_t *room = arena->room; /* all far below the highest bit, so are sizes */
    const uint64_t lacking = (room[TA_OF_BLOCKS] - 1) | (room[TA_OF_ACTIVE_BLOCKS] - 1) |
                             (room[TA_OF_BYTES] - bytes) | (room[TA_OF_ACTIVE] - bytes) |
                             (room[TA_OF_REQUESTED] - requested);
    return !(lacking >> 63);
}
/* One thread writes at a time. */
static inline void ta_count_live(ta_arena *arena, uint64_t more)
{
    atomic_store_explicit(
        &arena->counts.live_bytes,
        atomic_load_explicit(&arena->counts.live_bytes, memory_order_relaxed) + more,
        memory_order_relaxed);
}
uint64_t ta_count_planned(ta_arena *arena, uint64_t bytes);
/* It does; there is room. Returns its serial. */
static inline uint64_t ta_count_alloc(ta_arena *arena, uint64_t bytes, uint64_t requested)
{
    ta_device *d = arena->device;
    arena->counts.live_blocks++;
    ta_count_live(arena, bytes);
    arena->counts.live_requested += requested;
    arena->room[TA_OF_BLOCKS]--;
    arena->room[TA_OF_BYTES] -= bytes;
    arena->room[TA_OF_REQUESTED] -= requested;
    arena->room[TA_OF_ACTIVE_BLOCKS]--;
    arena->room[TA_OF_ACTIVE] -= bytes;
    if (__builtin_expect(atomic_load_explicit(&d->plan, memory_order_relaxed) != NULL, 0))
        return ta_count_planned(arena, bytes);
    if (__builtin_expect(arena->serial == arena->serials, 0)) {
        arena->serial =
            atomic_fetch_add_explicit(&d->serial, TA_SERIALS, memory_order_relaxed);
        arena->serials = arena->serial + TA_SERIALS;
    }
    return ++arena->serial * TA_MAX_DEVICES + (uint64_t)d->ordinal;
}
void ta_count_free_slow(ta_arena *arena, const ta_block *block, bool pending);
/* A live block was freed; `pending` if its bytes still wait. */
static inline void ta_count_free(ta_arena *arena, const ta_block *block, bool pending)
{
    const uint64_t bytes = block->size, requested = block->requested;
    arena->counts.live_blocks--;
    ta_count_live(arena, -bytes);
    arena->counts.live_requested -= requested;
    arena->counts.freed_blocks++;
    arena->counts.freed_bytes += bytes;
    arena->counts.freed_requested += requested;
    arena->room[TA_OF_BLOCKS]++;
    arena->room[TA_OF_BYTES] += bytes;
    arena->room[TA_OF_REQUESTED] += requested;
    if (!pending) {
        arena->room[TA_OF_ACTIVE_BLOCKS]++;
        arena->room[TA_OF_ACTIVE] += bytes;
    }
    if (__builtin_expect(
            pending || atomic_load_explicit(&arena->device->plan, memory_order_relaxed),
            0))
        ta_count_free_slow(arena, block, pending);
}
/* A pending block became free. */
void ta_count_settled(ta_arena *arena, uint64_t bytes);

/* --- peaks -------------------------------------------------------------------------------- */
/* Takes `leveling` and the arena's lock: so a block can be admitted. */
void ta_count_lock(ta_arena *arena);
void ta_count_unlock(ta_arena *arena);
/* There is room for such a block, which must be made live before the locks are dropped. */
void ta_count_admit(ta_arena *arena, uint64_t bytes, uint64_t requested);
/* The arena is no more; `leveling` is held, its lock is not. */
void ta_count_gone(ta_arena *arena);

/* What is live, and live or pending, at one moment. No lock of an arena is held, as in all
 * that follow. */
typedef struct ta_now {
    uint64_t live, active;
} ta_now;
ta_now ta_count_now(ta_device *device);
/* The most bytes that were live since ta_count_forget_live; no user resets it. */
uint64_t ta_count_live_peak(ta_device *device);
void ta_count_forget_live(ta_device *device);
/* All numbers as users see them, of one moment. */
void ta_count_stats(ta_device *device, ta_stats *stats);
/* Peaks become what is current; `accumulated`: what came and went is forgotten instead. */
void ta_count_reset(ta_device *device, bool accumulated);

/* --- pages, calls: `counting` is taken ------------------------------------------------------ */
/* Pages came from (positive) or went to the driver. */
void ta_count_pages(ta_device *device, int64_t pages, uint64_t page_bytes);
/* Pages came to (positive) or left a place in the arena. */
void ta_count_mapped(ta_arena *arena, int64_t pages);
/* Bytes of host memory were pinned (up) or given back. */
void ta_count_host(ta_device *device, uint64_t bytes, bool up);
/* A request was served by idle memory, since no page could be made. */
void ta_count_retry(ta_device *device);
/* A request for which no memory stood ready took so long, served or refused. */
void ta_count_slow(ta_device *device, double us);

/* Bytes of pages held. Any lock of ours may be held but `counting`. */
uint64_t ta_count_reserved(ta_allocator *allocator, int device);

/* What tracking looks at, at each change of the phase: cheaper than ta_get_stats. */
typedef struct ta_page_counts {
    uint64_t page_moves, waits, reserved;
    uint64_t spill_bytes;
    double wait_us;
} ta_page_counts;
ta_status ta_get_page_counts(ta_allocator *allocator, int device, ta_page_counts *counts);

#endif
