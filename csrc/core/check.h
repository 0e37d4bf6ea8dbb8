/* check.h - invariants. In checking builds every mutator of an arena verifies it on entry and
 * exit (large ones now and then), and a broken one ends the program with both sides. */
#ifndef TA_CHECK_H
#define TA_CHECK_H

#include "types.h"

/* The arena's lock is held. */
bool ta_arena_check(const ta_arena *arena, char *text, size_t capacity);

#ifdef TA_CHECKING
void ta_arena_verify(const ta_arena *arena, const char *where);
#else
static inline void ta_arena_verify(const ta_arena *arena, const char *where)
{
    (void)arena;
    (void)where;
}
#endif

#endif
