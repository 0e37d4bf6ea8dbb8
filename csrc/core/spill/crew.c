/* crew.c - a few threads for work that is long and falls into pieces.
 *
 * Called by host.c for pages that are pinned, and by exchange.c for pages that are opened to the
 * device while others are still copied. A crew is one caller's; nothing outlives its close. The
 * threads take no signals, which are the program's; where one cannot be made there are fewer. */
#include "crew.h"

#include <signal.h>

/* The lock is held, but for the round itself. */
static void do_one(ta_crew *c)
{
    const size_t number = c->next++;
    pthread_mutex_unlock(&c->lock);
    const bool on = c->round(c->context, number);
    pthread_mutex_lock(&c->lock);
    c->over |= !on;
}

/* Rounds as long as there are any, and more to come. */
static void work_on(ta_crew *c)
{
    pthread_mutex_lock(&c->lock);
    while (!c->over && (c->next < c->known || !c->whole)) {
        if (c->next < c->known)
            do_one(c);
        else
            pthread_cond_wait(&c->more, &c->lock);
    }
    pthread_mutex_unlock(&c->lock);
}

static void *work(void *crew)
{
    work_on(crew);
    return NULL;
}

void ta_crew_open(ta_crew *c, unsigned threads, ta_round *round, void *context)
{
    sigset_t all, before;
    *c = (ta_crew){.round = round, .context = context};
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->more, NULL);
    sigfillset(&all);
    if (!threads || pthread_sigmask(SIG_SETMASK, &all, &before)) return;
    while (c->count < threads && c->count < TA_CREW_MOST &&
           !pthread_create(&c->threads[c->count], NULL, work, c))
        c->count++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void tell(ta_crew *c, size_t rounds, bool whole)
{
    pthread_mutex_lock(&c->lock);
    if (rounds > c->known) c->known = rounds;
    c->whole = whole;
    pthread_cond_broadcast(&c->more);
    pthread_mutex_unlock(&c->lock);
}

void ta_crew_know(ta_crew *c, size_t rounds)
{
    tell(c, rounds, false);
    pthread_mutex_lock(&c->lock);
    while (!c->over && c->next + c->count < c->known) do_one(c);
    pthread_mutex_unlock(&c->lock);
}

size_t ta_crew_close(ta_crew *c)
{
    tell(c, 0, true);
    work_on(c);
    for (unsigned i = 0; i < c->count; i++) pthread_join(c->threads[i], NULL);
    pthread_cond_destroy(&c->more);
    pthread_mutex_destroy(&c->lock);
    return c->next;
}

size_t ta_crew_run(size_t rounds, unsigned threads, ta_round *round, void *context)
{
    ta_crew c;
    if (threads > rounds) threads = (unsigned)rounds;
    ta_crew_open(&c, threads > 1 ? threads - 1 : 0, round, context);
    if (rounds) tell(&c, rounds, true);
    return ta_crew_close(&c);
}
