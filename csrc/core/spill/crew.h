/* crew.h - rounds of a loop, run by several threads at once. */
#ifndef TA_CREW_H
#define TA_CREW_H

#include <stdbool.h>
#include <stddef.h>

/* False: no round begins any more. */
typedef bool ta_round(void *context, size_t number);
/* Rounds 0 to rounds - 1, each begun once, in that order, by at most `threads` threads of which
 * the caller is one. All have ended when it returns; how many began. Holds no lock, so that a
 * caller who holds one may call it if no round wants that. */
size_t ta_crew_run(size_t rounds, unsigned threads, ta_round *round, void *context);

#endif
