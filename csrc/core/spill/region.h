/* region.h - the region that a thread's allocations belong to. */
#ifndef TA_REGION_H
#define TA_REGION_H

#include "types.h"

ta_region *ta_region_current(ta_allocator *allocator);
/* NULL: no region has it. */
ta_region *ta_region_by_id(ta_allocator *allocator, ta_region_id id);
/* Its arenas on the device, whose `pages` is held; false: there are none. `visit` may be NULL. */
typedef void ta_arena_visit(ta_device *device, ta_arena *arena, void *context);
bool ta_region_each(ta_device *device, const ta_region *region, ta_arena_visit *visit,
                    void *context);
/* NULL: none. Needs no lock; one load where no thread is in a region. */
static inline ta_region *ta_region_here(ta_allocator *a)
{
    return __builtin_expect(atomic_load_explicit(&a->entered, memory_order_relaxed) != 0,
                            0)
               ? ta_region_current(a)
               : NULL;
}

#endif
