/* alive.h - a byte that says whether this process was forked since: cheaper than asking for
 * its number, which is a system call. */
#ifndef TA_ALIVE_H
#define TA_ALIVE_H

#include <stdatomic.h>
#include <stdbool.h>

typedef _Atomic unsigned char ta_alive;

/* A byte that is 0, in a child forked later too; its owner sets it to 1, and a child reads 0.
 * NULL: no memory, or no such kernel. */
ta_alive *ta_alive_make(void);
void ta_alive_end(ta_alive *alive);

static inline bool ta_alive_is(const ta_alive *alive)
{
    return atomic_load_explicit(alive, memory_order_relaxed) != 0;
}

#endif
