/* lock.c - waiting for a lock that somebody has. Called from lock.h; thread-safe. */
#define _POSIX_C_SOURCE 200809L
#include "lock.h"

#include <time.h>

enum { LOOKS = 100, YIELDS = 50, SLEEP_NS = 20000 };

/* It is held for less than a microsecond as a rule, and for a call of the driver sometimes. */
void ta_quick_wait(ta_quick *lock)
{
    const struct timespec a_while = {0, SLEEP_NS};
    for (int tries = 0;; tries++) {
        if (!atomic_load_explicit(&lock->taken, memory_order_relaxed) &&
            !atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire))
            return;
        if (tries < LOOKS) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        } else if (tries < LOOKS + YIELDS) {
            sched_yield();
        } else {
            tries = LOOKS + YIELDS;
            nanosleep(&a_while, NULL);
        }
    }
}
