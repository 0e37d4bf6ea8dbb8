/* device.c - the first use of a device, and the arenas of it.
 *
 * Called by alloc.c and limit.c. Opening takes `setup` and then the `pages` of one device at
 * a time; arenas are made under `pages` and found without a lock. */
#include "device.h"

#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "bins.h"
#include "calls.h"
#include "pages/chunk.h"

/* What is mapped, whatever its tier. */
static ta_status grant_chunk(ta_device *d, ta_chunk *c)
{
    ta_status status = TA_OK;
    for (uint32_t i = 0, end; i < c->slots && !status; i = end) {
        end = i + 1;
        if (!c->pages[i]) continue;
        while (end < c->slots && c->pages[end]) end++;
        status = ta_call_access(d, c->addr + ((uint64_t)i << c->shift),
                                (uint64_t)(end - i) << c->shift);
    }
    return status;
}

/* `other` may touch what d has and will have. */
static ta_status grant(ta_device *d, int other)
{
    uintptr_t saved[2];
    ta_status status = ta_enter(d, saved);
    if (status) return status;
    ta_lock_take(&d->pages);
    bool known = false;
    for (int i = 0; i < d->access_count; i++) known |= d->access[i] == other;
    if (!known && (!d->plain || d->guard)) { /* plain memory is torch's to share */
        d->access[d->access_count] = other;
        d->access_count++;
        for (ta_arena *a = d->arenas; a && !status; a = a->next) {
            ta_arena_lock(a);
            for (ta_chunk *c = a->chunks; c && !status; c = c->next)
                status = grant_chunk(d, c);
            ta_arena_unlock(a);
        }
        if (status) d->access_count--;
    }
    ta_lock_drop(&d->pages);
    ta_leave(d, saved);
    return status;
}

static ta_status meet_peers(ta_allocator *a, ta_device *d)
{
    const ta_driver *driver = a->driver;
    for (int i = 0; i < TA_MAX_DEVICES; i++) {
        ta_device *other = &a->device[i];
        if (other == d || !atomic_load(&other->used)) continue;
        bool ours = false, theirs = false;
        ta_status status = driver->can_access_peer(driver->self, i, d->ordinal, &ours);
        if (!status)
            status = driver->can_access_peer(driver->self, d->ordinal, i, &theirs);
        if (!status && ours) status = grant(d, i);
        if (!status && theirs) status = grant(other, d->ordinal);
        if (status) return status;
    }
    return TA_OK;
}

static ta_status look_at(ta_allocator *a, ta_device *d)
{
    const ta_driver *driver = a->driver;
    uint64_t free_bytes, granularity = TA_GRANULE;
    bool vmm;
    ta_status status = driver->has_vmm(driver->self, d->ordinal, &vmm);
    if (!status && !vmm && !a->config.fallback) status = TA_UNSUPPORTED;
    if (!status)
        status = driver->mem_info(driver->self, d->ordinal, &free_bytes, &d->total);
    if (!status && vmm)
        status =
            driver->granularity(driver->self, d->ordinal, TA_TIER_DEVICE, &granularity);
    if (status) return status;
    d->guard = a->config.guard;
    if (d->guard && !(vmm && driver->fill && driver->read)) return TA_UNSUPPORTED;
    d->plain = !vmm || d->guard;
    d->page_bytes = a->config.page_bytes ? a->config.page_bytes : TA_DEFAULT_PAGE;
    if (d->guard) d->page_bytes = granularity;
    if (d->page_bytes < granularity) d->page_bytes = granularity;
    if (d->page_bytes & (d->page_bytes - 1) || d->page_bytes % granularity ||
        d->page_bytes > TA_LOOKUP_BYTES)
        return TA_INVALID;
    d->address_bound = 8 * d->total;
    d->access[0] = d->ordinal;
    d->access_count = 1;
    return TA_OK;
}

ta_status ta_device_open(ta_allocator *a, int ordinal, ta_device **device)
{
    *device = NULL;
    if (ordinal < 0 || ordinal >= TA_MAX_DEVICES) return TA_INVALID;
    ta_device *d = &a->device[ordinal];
    if (atomic_load_explicit(&d->used, memory_order_acquire)) {
        *device = d;
        return TA_OK;
    }
    uintptr_t saved[2];
    ta_device_use(a);
    ta_lock_take(&a->setup);
    ta_status status = TA_OK;
    if (!atomic_load(&d->used)) {
        status = ta_enter(d, saved);
        if (!status) {
            status = look_at(a, d);
            ta_leave(d, saved);
        }
        if (!status) status = meet_peers(a, d);
        if (!status) {
            if (d->plain)
                atomic_store_explicit(&a->any_plain, true, memory_order_release);
            atomic_store_explicit(&d->used, true, memory_order_release);
        }
    }
    ta_lock_drop(&a->setup);
    if (!status) *device = d;
    return status;
}

/* --- arenas ---------------------------------------------------------------------------- */
static void map_insert(ta_arena_map *map, ta_arena *arena)
{
    size_t i = ta_arena_home(map, arena->stream->key, arena->small,
                             arena->region ? arena->region->id : 0);
    while (atomic_load_explicit(&map->slots[i].arena, memory_order_relaxed))
        i = (i + 1) & map->mask;
    ta_arena_slot *s = &map->slots[i];
    s->key = arena->stream->key;
    s->region = arena->region;
    s->small = arena->small;
    atomic_store_explicit(&s->arena, arena, memory_order_release);
    map->count++;
}

/* Readers may still be in an outgrown map, so it stays until the end. */
static bool map_reserve(ta_device *d)
{
    ta_arena_map *map = atomic_load(&d->map);
    if (map && (map->count + 1) * 2 <= map->mask + 1) return true;
    size_t size = map ? (map->mask + 1) * 2 : 64;
    ta_arena_map *bigger = calloc(1, sizeof *bigger + size * sizeof bigger->slots[0]);
    if (!bigger) return false;
    bigger->mask = size - 1;
    bigger->outgrown = map;
    for (size_t i = 0; map && i <= map->mask; i++)
        if (map->slots[i].arena) map_insert(bigger, map->slots[i].arena);
    atomic_store_explicit(&d->map, bigger, memory_order_release);
    return true;
}

void ta_arena_map_destroy(ta_device *d)
{
    for (ta_arena_map *map = atomic_load(&d->map), *outgrown; map; map = outgrown) {
        outgrown = map->outgrown;
        free(map);
    }
    atomic_store(&d->map, NULL);
}

ta_arena *ta_arena_get(ta_device *d, ta_stream_state *stream, bool small, ta_pool *pool,
                       ta_region *region)
{
    ta_arena *a = pool ? NULL : ta_arena_find(d, stream->key, small, region);
    for (ta_arena *p = d->arenas; pool && p && !a; p = p->next)
        if (atomic_load(&p->pool) == pool && p->stream == stream && p->small == small)
            a = p;
    if (a) return a;
    if (!pool && !map_reserve(d)) return NULL;
    if ((a = d->spare_arenas))
        d->spare_arenas = a->next;
    else if ((a = aligned_alloc(TA_LINE, sizeof *a))) {
        memset(a, 0, sizeof *a);
        a->device = d;
        ta_bins_init(&a->bins);
    } else
        return NULL;
    ta_arena_lock(a); /* a stray address may be looking at it */
    a->stream = stream;
    a->small = small;
    a->region = region;
    a->page_bytes = region && !d->plain ? region->config.page_bytes : d->page_bytes;
    a->orphan = false;
    atomic_store(&a->pool, pool);
    ta_arena_unlock(a);
    d->sizes |= (uint32_t)1 << (ta_ready_of(d, a->page_bytes) - d->ready);
    ta_lock_take(&d->leveling);
    a->next = d->arenas;
    if (a->next) a->next->prev = a;
    d->arenas = a;
    ta_lock_drop(&d->leveling);
    if (!pool) map_insert(atomic_load(&d->map), a);
    return a;
}
