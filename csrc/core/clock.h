/* clock.h - the host's time. */
#ifndef TA_CLOCK_H
#define TA_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Of a clock that only rises, in microseconds. */
static inline double ta_now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Changes every few milliseconds; a tenth of the cost. */
static inline uint64_t ta_tick(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
