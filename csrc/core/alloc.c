/* alloc.c - ta_alloc, ta_free and what is asked about a block.
 *
 * Called by PyTorch's hooks from any thread. The fast way takes the lock of one arena and
 * finds a hole that has all its pages. Else the slow way takes the device's `pages`, holds a
 * place, has its missing pages brought, and only then lets the user see it: so a failure
 * undoes itself by giving the place back, and nobody waits for us on the fast way. */
#include <stdlib.h>

#include "arena.h"
#include "bins.h"
#include "block.h"
#include "pages/chunk.h"
#include "count.h"
#include "device.h"
#include "epoch.h"
#include "events.h"
#include "guard/guard.h"
#include "oom.h"
#include "pages/pages.h"
#include "pages/plain.h"
#include "spill/plan.h"
#include "pool.h"
#include "spill/region.h"
#include "table.h"
#include "spill/tier.h"

static inline void *begin(ta_arena *arena, ta_block *b, size_t size)
{
    ta_block_begin(arena, b, size);
    return (void *)(uintptr_t)b->addr;
}

static inline bool stocked(ta_arena *arena)
{
    return ta_arena_stock(arena) && ta_table_reserve(&arena->table);
}

/* The hole that best fits, and where in it, if all its pages are there; else NULL. */
static inline ta_hole *mapped_hole(ta_arena *arena, uint64_t bytes, uint64_t *addr)
{
    if (arena->asleep || !stocked(arena)) return NULL;
    ta_hole *hole = ta_bins_fit(&arena->bins, bytes);
    if (!hole) return NULL;
    *addr = hole->addr;
    if (!hole->unmapped) return hole;
    const ta_place place = ta_arena_best(arena, bytes);
    *addr = place.addr;
    return place.need ? NULL : place.hole;
}

/* The same as alloc_mapped where a peak of the device may rise. */
__attribute__((noinline)) static bool alloc_higher(ta_arena *arena, uint64_t bytes,
                                                   size_t size, void **ptr)
{
    uint64_t addr = 0;
    ta_count_lock(arena);
    ta_hole *hole = mapped_hole(arena, bytes, &addr);
    if (hole) {
        ta_count_admit(arena, bytes, size);
        *ptr = begin(arena, ta_arena_take(arena, hole, addr, bytes), size);
    }
    ta_count_unlock(arena);
    return hole != NULL;
}

/* A block in memory that is mapped already; false: there is no room in it. */
__attribute__((always_inline)) static inline bool fast(ta_arena *arena, uint64_t bytes,
                                                       size_t size, void **ptr)
{
    bool found = true;
    ta_quick_take(&arena->lock, TA_RANK_ARENA);
    const bool room = ta_count_room(arena, bytes, size);
    if (arena->warm && arena->warm->size == bytes && room) {
        *ptr = (void *)(uintptr_t)arena->warm->addr;
        ta_block_again(arena, size);
    } else {
        uint64_t addr = 0;
        if (arena->warm) ta_block_cool(arena);
        ta_hole *hole = mapped_hole(arena, bytes, &addr);
        found = hole != NULL;
        if (found && room)
            *ptr = begin(arena, ta_arena_take(arena, hole, addr, bytes), size);
    }
    ta_quick_drop(&arena->lock, TA_RANK_ARENA);
    return found && !room ? alloc_higher(arena, bytes, size, ptr) : found;
}

static bool alloc_mapped(ta_arena *arena, uint64_t bytes, size_t size, void **ptr)
{
    return fast(arena, bytes, size, ptr);
}

/* The place with the pages at its edges whole, where they are missing: nobody else may get
 * a part of them before they are there. */
static ta_block *hold(ta_arena *arena, ta_place place, uint64_t bytes)
{
    const ta_chunk *c = place.hole->first->chunk;
    uint64_t start = place.addr, end = start + bytes;
    uint32_t first = ta_slot_below(c, start), last = ta_slot_below(c, end - 1);
    if (!ta_chunk_has(c, first)) start = c->addr + ((uint64_t)first << c->shift);
    if (!ta_chunk_has(c, last)) end = c->addr + ((uint64_t)(last + 1) << c->shift);
    return ta_arena_take(arena, place.hole, start, end - start);
}

/* What a request tries, one after the other. */
typedef enum ta_way {
    BEST,    /* the best hole */
    THRIFTY, /* the one that needs the fewest pages of its own */
    HOST,    /* the best hole, and pages of the host */
    PLANNED  /* pages of the host where there are none of the device */
} ta_way;

/* A place held and its pages brought. TA_BUSY: the arena began to move meanwhile. */
static ta_status attempt_once(ta_device *d, ta_arena *arena, uint64_t bytes, size_t size,
                              ta_way way, void **ptr, ta_lack *lack)
{
    ta_place (*const find)(const ta_arena *, uint64_t) = way == THRIFTY
                                                             ? ta_arena_thriftiest
                                                         : way == PLANNED ? ta_tier_place
                                                                          : ta_arena_best;
    ta_status status = TA_OK;
    ta_count_lock(arena);
    if (arena->asleep) {
        ta_count_unlock(arena);
        return TA_ASLEEP;
    }
    ta_place place = {0};
    if (!d->guard) place = find(arena, bytes);
    if (!place.hole) {
        ta_count_unlock(arena);
        status = d->plain ? ta_plain_add(d, arena, bytes, lack)
                          : ta_addresses_add(d, arena, bytes);
        ta_count_lock(arena);
        if (!status && d->guard)
            place = ta_guard_place(arena, bytes);
        else if (!status)
            place = find(arena, bytes); /* others may have taken from it meanwhile */
    }
    if (!status && !stocked(arena)) status = TA_NO_HOST_MEMORY;
    if (!status && !place.hole) status = TA_OUT_OF_MEMORY;
    ta_block *held = NULL;
    if (!status && !place.need) {
        ta_count_admit(arena, bytes, size);
        ta_block *b = ta_arena_take(arena, place.hole, place.addr, bytes);
        *ptr = begin(arena, b, size);
        if (d->guard) ta_guard_begin(arena, b);
    } else if (!status)
        held = hold(arena, place, bytes);
    ta_count_unlock(arena);
    if (!held) return status;

    status = way >= HOST ? ta_pages_bring_host(d, arena, held)
                         : ta_pages_bring(d, arena, held, place.need, lack);
    ta_count_lock(arena);
    if (!status && arena->asleep) status = TA_ASLEEP;
    if (!status && !stocked(arena)) status = TA_NO_HOST_MEMORY;
    if (!status) {
        ta_arena_cut(arena, held, place.addr, bytes);
        ta_count_admit(arena, bytes, size);
        *ptr = begin(arena, held, size);
    } else if (held->broken) {
        held->pending_next = arena->broken;
        arena->broken = held;
    } else
        ta_arena_give(arena, held, arena->last_freed);
    ta_count_unlock(arena);
    return status;
}

static ta_status attempt(ta_device *d, ta_arena *arena, uint64_t bytes, size_t size,
                         ta_way way, void **ptr, ta_lack *lack)
{
    ta_status status;
    do {
        while (arena->moving) pthread_cond_wait(&d->pool_idle, &d->pages.mutex);
        status = attempt_once(d, arena, bytes, size, way, ptr, lack);
    } while (status == TA_BUSY);
    return status;
}

/* The safety net: whatever fails here, the device's refusal is what is told. */
static ta_status put_on_host(ta_device *d, ta_arena *arena, uint64_t bytes, size_t size,
                             ta_way way, void **ptr)
{
    ta_lack lack = {0};
    if (way == HOST) ta_plan_spilled(d);
    ta_status status = attempt(d, arena, bytes, size, way, ptr, &lack);
    if (status) return status;
    ta_spin_take(&d->counting);
    d->stats.spill_allocs++;
    d->stats.spill_bytes += bytes;
    ta_spin_drop(&d->counting);
    ta_share_say_spilled(d);
    return TA_OK;
}

/* With `pages` held. */
static ta_status alloc_slow(ta_device *d, ta_arena *arena, uint64_t bytes, size_t size,
                            void **ptr, ta_oom *oom)
{
    ta_lack lack = {.bytes = bytes};
    double since = ta_now_us();
    ta_pages_mend(d, arena);
    ta_pending_poll(d, arena);
    ta_partly_used(d);
    const bool at_home = arena->region && arena->region->config.home == TA_ON_HOST;
    ta_status status = attempt(d, arena, bytes, size, at_home ? HOST : BEST, ptr, &lack);
    /* Where the ledger cannot be used, its lock was waited for: once is enough. */
    if (status == TA_OUT_OF_MEMORY && !d->plain && !at_home &&
        lack.refusal.scope != TA_SCOPE_LEDGER) {
        for (ta_arena *a = d->arenas; a; a = a->next) ta_pages_mend(d, a);
        status = attempt(d, arena, bytes, size, THRIFTY, ptr, &lack);
    }
    if (status == TA_OUT_OF_MEMORY && !at_home && !d->plain &&
        atomic_load(&d->allocator->net) && !put_on_host(d, arena, bytes, size, HOST, ptr))
        status = TA_OK;
    if (status && oom) ta_oom_fill(d, arena->stream->handle, size, &lack, status, oom);
    if (status) ta_addresses_trim(d); /* it may have been given a range in vain */
    ta_count_slow(d, ta_now_us() - since);
    return status;
}

/* Whatever needs the device's `pages`: `arena` is NULL where it may not exist yet, `state`
 * where it does, or for want of host memory. */
static ta_status alloc_locked(ta_device *d, ta_arena *arena, ta_stream_state *state,
                              ta_pool *pool, ta_region *region, bool planned, size_t size,
                              ta_stream stream, void **ptr, ta_oom *oom)
{
    uint64_t bytes = ta_round_up(size, TA_GRANULE);
    uintptr_t saved[2];
    ta_status status = size > d->total * 8 ? TA_OUT_OF_MEMORY : ta_enter(d, saved);
    bool entered = !status;
    if (oom) *oom = (ta_oom){0};
    ta_lock_take(&d->pages);
    if (!status && region && atomic_load(&region->asleep)) status = TA_ASLEEP;
    if (!status && d->guard && ta_guard_found(d->allocator)) status = TA_GUARDED;
    if (!status && region && d->plain && region->config.home == TA_ON_HOST)
        status = TA_UNSUPPORTED;
    if (!status && !arena) {
        if (state)
            arena = ta_arena_get(d, state, !region && size <= TA_SMALL_MAX, pool, region);
        if (!arena) status = TA_NO_HOST_MEMORY;
    }
    if (!status && atomic_load_explicit(&d->over, memory_order_relaxed)) {
        uint64_t released = 0;
        status = ta_pages_give_back(d, ta_limit_of(d, NULL), true, &released);
        ta_pages_judge(d);
    }
    if (!status && planned && !put_on_host(d, arena, bytes, size, PLANNED, ptr))
        ; /* else as ever */
    else if (!status && (d->guard || !alloc_mapped(arena, bytes, size, ptr)))
        status = alloc_slow(d, arena, bytes, size, ptr, oom);
    if (!status) ta_share_answer(d);
    if (pool) pool->users--;
    ta_spin_take(&d->counting);
    d->stats.oom_count += status == TA_OUT_OF_MEMORY;
    ta_spin_drop(&d->counting);
    if (status) {
        const ta_lack all = {.bytes = bytes < size ? size : bytes};
        if (oom && !oom->status) ta_oom_fill(d, stream, size, &all, status, oom);
        if (ta_observed(d->allocator, TA_EVENT_OOM))
            ta_tell(d->allocator, &(ta_event_info){.kind = TA_EVENT_OOM,
                                                   .device = d->ordinal,
                                                   .stream = stream,
                                                   .size = size});
    }
    ta_lock_drop(&d->pages);
    if (entered) ta_leave(d, saved);
    return status;
}

/* Whatever is not a plain request for mapped memory. */
__attribute__((noinline)) static ta_status alloc_other(ta_allocator *a, size_t size,
                                                       int device, ta_stream stream,
                                                       void **ptr, ta_oom *oom)
{
    ta_device *d;
    ta_status status = TA_OK;
    *ptr = NULL;
    if (ta_forked(a)) status = TA_FORKED;
    if (!status && !size) return TA_OK;
    if (!status) status = ta_device_open(a, device, &d);
    if (status) {
        if (oom) *oom = (ta_oom){.status = status, .device = device, .requested = size};
        return status;
    }
    ta_pool *pool = NULL;
    ta_arena *arena = NULL;
    ta_stream_state *state = NULL;
    ta_region *region = ta_region_here(a);
    bool pools = atomic_load_explicit(&d->open_count, memory_order_acquire),
         small = !region && size <= TA_SMALL_MAX;
    if (pools && (*ptr = ta_pool_promised(d, size))) return TA_OK;
    if (!pools) arena = ta_arena_find(d, ta_stream_key(stream), small, region);
    if (!arena) state = ta_stream_meet(d, stream); /* asks others, so before all else */
    if (pools && !(pool = ta_pool_for(d, stream)))
        arena = ta_arena_find(d, ta_stream_key(stream), small, region);
    if (pool) region = NULL;
    const bool planned =
        atomic_load_explicit(&d->planned, memory_order_relaxed) &&
        ta_plan_says(d, ta_round_up(size, TA_GRANULE), ta_stream_key(stream)) && !pool &&
        !region;
    if (arena && size <= d->total && !planned && !d->guard &&
        !atomic_load_explicit(&d->over, memory_order_relaxed) &&
        alloc_mapped(arena, ta_round_up(size, TA_GRANULE), size, ptr))
        return TA_OK;
    return alloc_locked(d, arena, state, pool, region, planned, size, stream, ptr, oom);
}

static void unlock(ta_arena *arena) { ta_quick_drop(&arena->lock, TA_RANK_ARENA); }

/* True once the device was used, where nothing is told of but what its arenas hold: no fork, no
 * open pool, no region, no plan, no lowered cap. */
static inline bool is_plain(const ta_allocator *a, const ta_device *d)
{
    return d && atomic_load_explicit(a->alive, memory_order_relaxed) != 0 &&
           atomic_load_explicit(&d->open_count, memory_order_acquire) == 0 &&
           atomic_load_explicit(&a->entered, memory_order_relaxed) == 0 &&
           !atomic_load_explicit(&d->planned, memory_order_relaxed) &&
           !atomic_load_explicit(&d->over, memory_order_relaxed);
}

ta_status ta_alloc(ta_allocator *a, size_t size, int device, ta_stream stream, void **ptr,
                   ta_oom *oom)
{
    const ta_device *d = ta_device_if_used(a, device);
    if (__builtin_expect(is_plain(a, d) && size - 1 < d->total, 1)) {
        ta_arena *arena =
            ta_arena_find(d, ta_stream_key(stream), size <= TA_SMALL_MAX, NULL);
        if (arena && fast(arena, ta_round_up(size, TA_GRANULE), size, ptr)) return TA_OK;
    }
    return alloc_other(a, size, device, stream, ptr, oom);
}

/* The arena of an address, its lock taken as a request takes it; NULL: none of ours. */
static ta_arena *lock_arena_of(ta_allocator *a, uint64_t addr)
{
    ta_chunk *c = ta_lookup(a, addr);
    ta_arena *arena = c ? atomic_load_explicit(&c->arena, memory_order_acquire) : NULL;
    if (!arena) return NULL;
    ta_quick_take(&arena->lock, TA_RANK_ARENA);
    if (atomic_load_explicit(&c->arena, memory_order_relaxed) == arena &&
        addr - c->addr < c->size)
        return arena;
    unlock(arena);
    return NULL;
}

/* The same for a free that may need `pages`: not before a pool was set back. */
static ta_arena *lock_arena_to_free(ta_allocator *a, uint64_t addr)
{
    ta_arena *arena;
    while ((arena = lock_arena_of(a, addr)) && arena->restoring) {
        ta_device *d = arena->device;
        unlock(arena);
        ta_lock_take(&d->pages);
        ta_lock_drop(&d->pages);
    }
    return arena;
}

/* Recording comes first: it needs `pages`, which stands above the arena's lock. Streams that
 * the block was recorded for are named, as torch's own allocator does; its own stream only
 * where it exists, since that allocator frees a block whose stream is gone. */
static void free_recorded(ta_device *d, ta_arena *arena, ta_block *b, bool exists)
{
    uintptr_t saved[2];
    bool entered = ta_enter(d, saved) == TA_OK;
    ta_lock_take(&d->pages);
    uint64_t tick = atomic_load(&d->tick);
    if (!arena->stream->lasts)
        ta_stream_mark_free(d, arena->stream, tick, exists && entered);
    for (ta_use *u = b->uses; u; u = u->next) {
        u->tick = atomic_load(&d->tick);
        ta_stream_mark_free(d, u->stream, u->tick, entered);
    }
    ta_arena_lock(arena);
    b->state = TA_LIVE;
    ta_block_end(arena, b, tick);
    ta_arena_unlock(arena);
    ta_lock_drop(&d->pages);
    if (entered) ta_leave(d, saved);
}

/* Whatever is not a plain free on a stream that lasts. */
__attribute__((noinline)) static ta_status free_other(ta_allocator *a, void *ptr)
{
    if (!ptr) return TA_OK;
    if (ta_forked(a)) return TA_FORKED;
    ta_arena *arena = lock_arena_to_free(a, (uintptr_t)ptr);
    bool exists = false;
    if (arena &&
        !arena->stream->lasts) { /* asked with no lock held, then looked up again */
        ta_device *device = arena->device;
        ta_stream stream = arena->stream->handle;
        unlock(arena);
        exists = ta_stream_exists(device, stream);
        arena = lock_arena_to_free(a, (uintptr_t)ptr);
        exists = exists && arena && arena->stream->handle == stream;
    }
    if (!arena) return TA_INVALID;
    ta_device *d = arena->device;
    ta_block *b = ta_table_find(&arena->table, (uintptr_t)ptr);
    bool ours = b && b->state == TA_LIVE,
         record = ours && (b->uses || !arena->stream->lasts);
    /* Told before anything is recorded and before the tick is read: what others queue after
     * an event of ours then comes after the FREE. */
    if (ours) ta_emit(arena, TA_EVENT_FREE, b, arena->stream->handle);
    if (record)
        b->state = TA_HELD; /* nobody else may free it meanwhile */
    else if (ours)
        ta_block_end(arena, b, atomic_load_explicit(&d->tick, memory_order_relaxed));
    unlock(arena);
    if (record) free_recorded(d, arena, b, exists);
    if (ours && d->guard) {
        uintptr_t saved[2];
        const bool entered = ta_enter(d, saved) == TA_OK;
        ta_lock_take(&d->pages);
        if (entered) ta_plain_sweep(d, arena);
        ta_lock_drop(&d->pages);
        if (entered) ta_leave(d, saved);
    }
    return ours ? TA_OK : TA_INVALID;
}

ta_status ta_free(ta_allocator *a, void *ptr)
{
    const uint64_t addr = (uintptr_t)ptr, slot = addr >> TA_LOOKUP_SHIFT;
    ta_chunk *c = slot < TA_LOOKUP_SLOTS
                      ? atomic_load_explicit(&a->lookup[slot], memory_order_acquire)
                      : NULL;
    ta_arena *arena = c ? atomic_load_explicit(&c->arena, memory_order_acquire) : NULL;
    if (!arena || atomic_load_explicit(a->alive, memory_order_relaxed) == 0)
        return free_other(a, ptr);
    ta_quick_take(&arena->lock, TA_RANK_ARENA);
    ta_block *b = NULL;
    if (atomic_load_explicit(&c->arena, memory_order_relaxed) == arena &&
        arena->stream->lasts)
        b = ta_table_find(&arena->table, addr);
    const bool plain = b && b->state == TA_LIVE && !b->uses;
    if (__builtin_expect(plain, 1)) {
        /* Told before the tick is read: what others queue after an event of ours then comes
         * after the FREE. */
        ta_emit(arena, TA_EVENT_FREE, b, arena->stream->handle);
        ta_block_end(arena, b,
                     atomic_load_explicit(&arena->device->tick, memory_order_relaxed));
    }
    unlock(arena);
    return plain ? TA_OK : free_other(a, ptr);
}

/* The live block that holds `addr`. */
static ta_block *holder(ta_arena *arena, uint64_t addr)
{
    ta_block *b = ta_table_find(&arena->table, addr);
    for (ta_chunk *c = arena->chunks; !b && c; c = c->next)
        if (addr - c->addr < c->size)
            for (b = c->first; b->addr + b->size <= addr; b = b->next) {
            }
    return b && b->state == TA_LIVE ? b : NULL;
}

ta_status ta_record_stream(ta_allocator *a, void *ptr, ta_stream stream)
{
    if (ta_forked(a)) return TA_FORKED;
    ta_arena *arena = ptr ? lock_arena_of(a, (uintptr_t)ptr) : NULL;
    if (!arena) return ptr ? TA_INVALID : TA_OK;
    ta_device *d = arena->device;
    bool same = arena->stream->key == ta_stream_key(stream);
    unlock(arena);
    if (same) return TA_OK;
    ta_stream_state *state = ta_stream_meet(d, stream);
    ta_use *use = state ? calloc(1, sizeof *use) : NULL;
    if (!use) return TA_NO_HOST_MEMORY;
    use->stream = state;
    ta_status status = TA_INVALID;
    ta_lock_take(&d->pages);
    ta_arena_lock(arena);
    ta_block *b = holder(arena, (uintptr_t)ptr);
    if (b) {
        ta_use **at = &b->uses;
        while (*at && (*at)->stream != use->stream) at = &(*at)->next;
        if (!*at) {
            *at = use;
            use = NULL;
            ta_emit(arena, TA_EVENT_RECORD_STREAM, b, stream);
        }
        status = TA_OK;
    }
    ta_arena_unlock(arena);
    ta_lock_drop(&d->pages);
    free(use);
    return status;
}

ta_status ta_base_address(ta_allocator *a, const void *ptr, void **base, size_t *size)
{
    *base = NULL;
    *size = 0;
    if (ta_forked(a)) return TA_FORKED;
    ta_arena *arena = lock_arena_of(a, (uintptr_t)ptr);
    if (!arena) return TA_INVALID;
    const ta_block *b = holder(arena, (uintptr_t)ptr);
    if (b) {
        *base = (void *)(uintptr_t)b->addr;
        *size = (size_t)b->size;
    }
    unlock(arena);
    return b ? TA_OK : TA_INVALID;
}

ta_status ta_block_where(ta_allocator *a, const void *ptr, ta_block_place *place)
{
    *place = (ta_block_place){0};
    if (ta_forked(a)) return TA_FORKED;
    ta_arena *arena = lock_arena_of(a, (uintptr_t)ptr);
    if (!arena) return TA_INVALID;
    const ta_block *b = ta_table_find(&arena->table, (uintptr_t)ptr);
    const bool live = b && b->state == TA_LIVE;
    if (live)
        *place = (ta_block_place){.device = arena->device->ordinal,
                                  .region = arena->region ? arena->region->id : 0,
                                  .size = b->size};
    unlock(arena);
    return live ? TA_OK : TA_INVALID;
}
