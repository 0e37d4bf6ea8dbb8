/* crew.h - rounds of a loop, run by several threads at once. */
#ifndef TA_CREW_H
#define TA_CREW_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#define TA_CREW_MOST 16u /* threads of a crew, beside the caller */

/* False: no round begins any more. */
typedef bool ta_round(void *context, size_t number);

/* next <= known; rounds below `next` have begun, those below `known` may begin */
typedef struct ta_crew {
    ta_round *round;
    void *context;
    pthread_mutex_t lock; /* over what follows */
    pthread_cond_t more;
    size_t next, known;
    bool whole; /* no more rounds will be known */
    bool over;
    unsigned count;
    pthread_t threads[TA_CREW_MOST];
} ta_crew;

/* Up to so many threads, which wait for rounds; fewer where the machine has no more of them. None
 * of these calls is made while a lock is held that a round wants. */
void ta_crew_open(ta_crew *crew, unsigned threads, ta_round *round, void *context);
/* Rounds 0 to rounds - 1 may begin, in that order, each once. The caller helps until no more of
 * them wait than there are threads. */
void ta_crew_know(ta_crew *crew, size_t rounds);
/* The caller helps with what is left, and all have ended; how many had begun. */
size_t ta_crew_close(ta_crew *crew);
/* All three: by at most `threads` threads, of which the caller is one. */
size_t ta_crew_run(size_t rounds, unsigned threads, ta_round *round, void *context);

#endif
