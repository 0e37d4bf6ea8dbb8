/* plan.h - which requests of a step go to the host, learned from the step before. */
#ifndef TA_PLAN_H
#define TA_PLAN_H

#include "types.h"

/* A request went to the host, for want of room: from the next mark on steps are recorded.
 * `pages` held. */
void ta_plan_spilled(ta_device *device);
/* A step ends and the next begins. True: host pages were wanting in it, or will be in the
 * next. `pages` held. */
bool ta_plan_step(ta_device *device);
/* There is room for so many bytes on the device, when a step ends: where that is enough for all of
 * the step that was learned, what was learned is forgotten. `pages` held. */
void ta_plan_room(ta_device *device, uint64_t room);
/* Some requests of the next step are to go to the host. */
bool ta_plan_sends(const ta_device *device);
/* What was learned does not hold any more, as under another cap. `pages` held. */
void ta_plan_forget(ta_device *device);
void ta_plan_destroy(ta_device *device);

/* With `counting` held, while device.plan is there: a block came, or went. */
void ta_plan_alloc(ta_device *device, uint64_t bytes, uintptr_t stream);
void ta_plan_free(ta_device *device, uint64_t serial, uint64_t bytes);
/* The request that comes next goes to the host. Asked while device.planned; the plan ends at
 * the first request that it does not know. Takes `counting`. */
bool ta_plan_says(ta_device *device, uint64_t bytes, uintptr_t stream);

#endif
