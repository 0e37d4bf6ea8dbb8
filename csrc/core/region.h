/* region.h - the region that a thread's allocations belong to. */
#ifndef TA_REGION_H
#define TA_REGION_H

#include "types.h"

ta_region *ta_region_current(ta_allocator *allocator);
/* NULL: none. Needs no lock; one load where no thread is in a region. */
static inline ta_region *ta_region_here(ta_allocator *a)
{
    return __builtin_expect(atomic_load_explicit(&a->entered, memory_order_relaxed) != 0,
                            0)
               ? ta_region_current(a)
               : NULL;
}

#endif
