/* count.h - the device's gauges. Each call takes and drops `counting`. */
#ifndef TA_COUNT_H
#define TA_COUNT_H

#include "clock.h"
#include "types.h"

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
/* A block became live: returns its serial. */
uint64_t ta_count_alloc(ta_arena *arena, uint64_t bytes, uint64_t requested);
/* A live block was freed; `pending` if its bytes still wait. */
void ta_count_free(ta_arena *arena, const ta_block *block, bool pending);
/* A pending block became free. */
void ta_count_settled(ta_arena *arena, uint64_t bytes);
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

/* Bytes of live blocks and of pages held. Any lock of ours may be held but `counting`. */
void ta_count_totals(ta_allocator *allocator, int device, uint64_t *allocated,
                     uint64_t *reserved);

/* What tracking looks at, at each change of the phase: cheaper than ta_get_stats. */
typedef struct ta_page_counts {
    uint64_t page_moves, waits, reserved;
    uint64_t spill_bytes;
    double wait_us;
} ta_page_counts;
ta_status ta_get_page_counts(ta_allocator *allocator, int device, ta_page_counts *counts);

#endif
