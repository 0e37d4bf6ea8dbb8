/* nulldriver.h - a driver whose calls do nothing.
 *
 * It hands out addresses and handles and adds up what a real driver would have taken
 * (as measured on an H200). It checks no contract: sim.h does. For measuring the allocator
 * alone. Events complete at once; replay_clock.h gives them a time. */
#ifndef TA_NULLDRIVER_H
#define TA_NULLDRIVER_H

#include "../core/driver.h"

typedef struct ta_null ta_null;

typedef struct ta_null_config {
    int devices;         /* number of GPUs, at least 1 */
    uint64_t memory;     /* bytes of each; more than that cannot be created */
    uint64_t page_bytes; /* what a handle is taken to be in calls that span several */
} ta_null_config;

ta_status ta_null_create(const ta_null_config *config, ta_null **null);
void ta_null_destroy(ta_null *null);
/* Lives as long as `null`. Its calls may come from several threads; the sums are exact only
 * while they come from one. */
const ta_driver *ta_null_driver(ta_null *null);
/* What the calls so far would have taken, in microseconds. */
double ta_null_driver_us(const ta_null *null);

#endif
