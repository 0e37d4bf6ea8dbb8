/* device.h - a device's first use, its arenas, and what other devices may do. */
#ifndef TA_DEVICE_H
#define TA_DEVICE_H

#include "types.h"

/* The device, looked at when first asked for. Takes `setup`. */
ta_status ta_device_open(ta_allocator *allocator, int ordinal, ta_device **device);
static inline ta_device *ta_device_if_used(ta_allocator *a, int ordinal)
{
    if (ordinal < 0 || ordinal >= TA_MAX_DEVICES) return NULL;
    ta_device *d = &a->device[ordinal];
    return atomic_load_explicit(&d->used, memory_order_acquire) ? d : NULL;
}
static inline size_t ta_arena_home(const ta_arena_map *map, uintptr_t key, bool small,
                                   uint64_t region)
{
    return (size_t)(((uint64_t)key * 2 + small + region * 0x632be5ab) *
                        0x9e3779b97f4a7c15u >>
                    32) &
           map->mask;
}
/* The ordinary arena of the stream with this key, or the region's, if it exists. No lock needed. */
static inline ta_arena *ta_arena_find(const ta_device *device, uintptr_t key, bool small,
                                      const ta_region *region)
{
    const ta_arena_map *map = atomic_load_explicit(&device->map, memory_order_acquire);
    if (!map) return NULL;
    for (size_t i = ta_arena_home(map, key, small, region ? region->id : 0);;
         i = (i + 1) & map->mask) {
        const ta_arena_slot *s = &map->slots[i];
        ta_arena *a = atomic_load_explicit(&s->arena, memory_order_acquire);
        if (!a || (s->key == key && s->small == small && s->region == region)) return a;
    }
}
/* Made if it does not exist; of `pool` or `region` where there is one. `pages` held. NULL: no host
 * memory. */
ta_arena *ta_arena_get(ta_device *device, ta_stream_state *stream, bool small,
                       ta_pool *pool, ta_region *region);
void ta_arena_map_destroy(ta_device *device);

/* Comes before whatever may make a context, and before `setup` is taken: a child forked at
 * any moment after it is known as one. `alive` is first: this process is never taken for a
 * child, and one forked between the two finds nothing locked and no context. */
static inline void ta_device_use(ta_allocator *a)
{
    atomic_store(a->alive, 1);
    atomic_store(&a->started, true);
}

/* Brackets driver calls: the device's context is current in between. */
static inline ta_status ta_enter(ta_device *d, uintptr_t saved[2])
{
    const ta_driver *driver = d->allocator->driver;
    return driver->enter(driver->self, d->ordinal, saved);
}
static inline void ta_leave(ta_device *d, const uintptr_t saved[2])
{
    const ta_driver *driver = d->allocator->driver;
    driver->leave(driver->self, d->ordinal, saved);
}

#endif
