/* clock.h - the host's time. */
#ifndef TA_CLOCK_H
#define TA_CLOCK_H

#include <time.h>

/* Of a clock that only rises, in microseconds. */
static inline double ta_now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

#endif
