/* crew.c - a few threads for work that is long and falls into pieces.
 *
 * Called by host.c for pages that are pinned. Thread-safe; nothing outlives a call. The threads
 * take no signals, which are the program's; where one cannot be made there are fewer. */
#include "crew.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#define MOST 16u

typedef struct ta_crew {
    ta_round *round;
    void *context;
    size_t rounds;
    atomic_size_t next; /* the round that begins next; beyond `rounds`: none */
    atomic_bool over;
} ta_crew;

static void *work(void *crew)
{
    ta_crew *c = crew;
    while (!atomic_load(&c->over)) {
        const size_t number = atomic_fetch_add(&c->next, 1);
        if (number >= c->rounds) break;
        if (!c->round(c->context, number)) atomic_store(&c->over, true);
    }
    return NULL;
}

/* How many threads more there are. */
static unsigned start(ta_crew *c, pthread_t *threads, unsigned most)
{
    unsigned count = 0;
    sigset_t all, before;
    sigfillset(&all);
    if (!most || pthread_sigmask(SIG_SETMASK, &all, &before)) return 0;
    while (count < most && !pthread_create(&threads[count], NULL, work, c)) count++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return count;
}

size_t ta_crew_run(size_t rounds, unsigned threads, ta_round *round, void *context)
{
    ta_crew c = {.round = round, .context = context, .rounds = rounds};
    pthread_t more[MOST];
    if (threads > MOST) threads = MOST;
    if (threads > rounds) threads = (unsigned)rounds;
    const unsigned count = threads > 1 ? start(&c, more, threads - 1) : 0;
    work(&c);
    for (unsigned i = 0; i < count; i++) pthread_join(more[i], NULL);
    const size_t begun = atomic_load(&c.next);
    return begun < rounds ? begun : rounds;
}
