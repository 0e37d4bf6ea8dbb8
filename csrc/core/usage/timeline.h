/* timeline.h - live bytes over time, in bounded memory however long the run.
 *
 * For usage.c, under the device's mutex. Sample i covers the time
 *     [i * interval, (i + 1) * interval)
 * since the start and is the state at its highest live bytes. When the last sample is
 * reached, neighbours become one, the higher of the two, and the interval doubles. */
#ifndef TA_USAGE_TIMELINE_H
#define TA_USAGE_TIMELINE_H

#include "usage.h"

/* All zero is one that has no memory yet. */
typedef struct ta_timeline {
    ta_usage_sample now; /* the state since the last change */
    double interval_us;
    uint32_t count; /* the last one is open: time is in it */
    uint64_t highest;
    ta_usage_sample *samples;       /* TA_USAGE_SAMPLES of them */
    int64_t (*told)[TA_CATEGORIES]; /* of each sample: what is to be added from it on */
    uint32_t untold; /* `told` is all zero but for the last so many samples */
} ta_timeline;

/* False: no memory, and again: nothing. The other functions do nothing without it. */
bool ta_timeline_begin(ta_timeline *t);
void ta_timeline_end(ta_timeline *t);
/* Host memory that it takes. */
uint64_t ta_timeline_bytes(const ta_timeline *t);

/* `us` is since the start and never falls. The state was what it was until now: */
void ta_timeline_pass(ta_timeline *t, double us);
/* after which `bytes` more (or less) of a category live, by the event of that number. */
static inline void ta_timeline_change(ta_timeline *t, ta_category category, int64_t bytes,
                                      uint64_t event)
{
    if (!t->samples) return;
    t->now.live += (uint64_t)bytes;
    t->now.of[category] += (uint64_t)bytes;
    t->now.event = event;
    ta_usage_sample *open = &t->samples[t->count - 1];
    if (t->now.live > open->live) {
        const uint64_t reserved = open->reserved;
        *open = t->now;
        if (reserved > open->reserved) open->reserved = reserved;
    }
    if (t->now.live > t->highest) t->highest = t->now.live;
}
/* The pages held; a sample keeps the most. */
void ta_timeline_reserve(ta_timeline *t, uint64_t bytes);

/* A live block, born at that event, was of another category all along. Many such calls,
 * then one to settle: a search in the samples each, then one walk over them. */
void ta_timeline_tell(ta_timeline *t, uint64_t born, uint64_t size, ta_category from,
                      ta_category to);
void ta_timeline_settle(ta_timeline *t);

/* As ta_check, where `live` bytes live. */
bool ta_timeline_check(const ta_timeline *t, uint64_t live, char *text, size_t capacity);

#endif
