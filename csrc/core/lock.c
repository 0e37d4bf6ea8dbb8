/* lock.c - waiting for a lock that somebody has. Called from lock.h; thread-safe. */
#define _POSIX_C_SOURCE 200809L
#include "lock.h"

#include <sched.h>
#include <time.h>

enum { LOOKS = 100, YIELDS = 50, SLEEP_NS = 20000 };

/* Before the next look. Who looks again at once soon makes room for others, and then sleeps. */
static void pass_time(int *tries)
{
    const struct timespec a_while = {0, SLEEP_NS};
    if (*tries < LOOKS) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    } else if (*tries < LOOKS + YIELDS) {
        sched_yield();
    } else {
        nanosleep(&a_while, NULL);
        return;
    }
    ++*tries;
}

/* It is held for less than a microsecond as a rule, and for a call of the driver sometimes. */
void ta_quick_wait(ta_quick *lock)
{
    for (int tries = 0;; pass_time(&tries))
        if (!atomic_load_explicit(&lock->taken, memory_order_relaxed) &&
            !atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire))
            return;
}

void ta_spin_wait(ta_spin *spin)
{
    for (int tries = 0;
         atomic_flag_test_and_set_explicit(&spin->taken, memory_order_acquire);)
        pass_time(&tries);
}
