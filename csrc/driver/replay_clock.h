/* replay_clock.h - a driver in which time is counted in allocations.
 *
 * Memory calls go on to the driver under it; events, captures and waits are answered here.
 * A trace has no GPU clock, so a point in a stream is passed `pass_after` allocations after
 * it was recorded, or when the host waits for it or for a later one. */
#ifndef TA_REPLAY_CLOCK_H
#define TA_REPLAY_CLOCK_H

#include "../core/driver.h"

typedef struct ta_clock ta_clock;

/* `under` must outlive the clock. `streams` are known by numbers below it. */
ta_status ta_clock_create(const ta_driver *under, uint32_t streams, uint64_t pass_after,
                          ta_clock **clock);
void ta_clock_destroy(ta_clock *clock);
const ta_driver *ta_clock_driver(ta_clock *clock);
/* The handle by which the allocator knows stream `number`; 0 is the default stream. */
ta_stream ta_clock_stream(uint32_t number);
/* One allocation later. */
void ta_clock_advance(ta_clock *clock);

typedef struct ta_clock_counts {
    uint64_t calls;     /* of any kind but enter and leave */
    uint64_t map_calls; /* those that create, release, map, unmap, set access, reserve */
    uint64_t event_waits; /* waits for an event that had not been passed */
    uint64_t device_waits;
    double event_us; /* what the events would have taken; waiting itself is not in it */
} ta_clock_counts;
ta_clock_counts ta_clock_read(const ta_clock *clock);

#endif
