/* inside.h - what the files here share: the structures, and who guards them.
 *
 *     usage.c             events: blocks are born and die; begin and end of counting
 *     phases.c            phases are entered and left; steps
 *     categories.c        what blocks are told to be, later; guesses of gradients
 *     look.c              reading: counts, phases, modules, blocks, the timeline
 *     check.c             the invariants
 *     blocks.c            the table of live blocks     timeline.c  bytes over time
 *     text.c              what a refusal's text says, by the public functions alone
 *
 * A device's `lock` is innermost: it is taken in allocations, under an allocator's lock, and
 * nothing of the allocator is called under it. `names` is taken before it or alone. Under a
 * device's lock, at rest:
 *
 *     live = sum of sizes in the table;  phases[p].live = the same, of phase p
 *     moment.when.bytes = sum of sizes in the table with born <= moment.at
 *                         + those in its gone
 *     live <= moments[PEAK].when.bytes;  latest = the highest moment.at
 *     guesses = entries of the table that are guessed */
#ifndef TA_USAGE_INSIDE_H
#define TA_USAGE_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>

#include "alive.h"
#include "clock.h"
#include "count.h"
#include "lock.h"
#include "usage.h"
#include "blocks.h"
#include "timeline.h"

/* What every allocation touches first. */
typedef struct ta_phase_counts {
    uint64_t allocs, bytes, live, peak;
    uint64_t kept, page_moves, waits, spilled;
    double wait_us;
    uint64_t late, late_at[2]; /* freed late: in all, and at the last two marks */
} ta_phase_counts;

/* Steps between marks, each at a multiple. */
#define TA_USAGE_MARK 8u

/* Freed since a moment. */
typedef struct ta_gone_block {
    uint64_t size;
    uint32_t step;
    uint16_t phase, module, stack;
    uint8_t category;
} ta_gone_block;

/* The peak is not copied when it is reached, which happens at every allocation of a first
 * step. It is kept as a moment, the count of events on the device: what lived then is what
 * lives now and was born no later, and what was freed since. So a category that is told
 * later counts at the peak too. Refusals are such moments as well. */
typedef struct ta_moment {
    ta_usage_when when;
    uint64_t at;
    ta_gone_block *gone;
    size_t gone_count, gone_room;
} ta_moment;

/* What each event touches comes first. */
typedef struct ta_device_usage {
    ta_spin lock;
    atomic_bool used; /* something was allocated here: there are `phases` */
    uint32_t unread;  /* events since the clock was read */
    uint64_t tick;    /* the coarse clock, when it was */
    double read_us;   /* and the fine one */
    uint64_t live, events, latest;
    ta_phase_counts *phases;  /* TA_USAGE_PHASES of them, where used */
    ta_usage_module *modules; /* TA_USAGE_MODULES of them, where one was told */
    size_t guesses;           /* entries of the table that are guessed */
    ta_usage_table table;
    ta_timeline timeline;
    ta_moment moments[TA_USAGE_MOMENTS];
    uint64_t lost;
    uint64_t told_at;                    /* events when all categories were told */
    uint64_t guessed_at;                 /* or those of backward guessed */
    uint64_t page_moves, waits, spilled; /* of the device, counted to phases already */
    double wait_us;
} ta_device_usage;

typedef struct ta_phase_name {
    char name[TA_USAGE_NAME];
    uint32_t around;
    uint64_t entries;
    double us;
} ta_phase_name;

#define TA_USAGE_IN_NONE UINT32_MAX

/* A thread that has entered a phase; `names` guards it, but for `in`. */
typedef struct ta_usage_thread {
    ta_usage *usage;
    struct ta_usage_thread *next;
    _Atomic uint32_t in; /* its innermost phase; none: the leader's */
    uint32_t depth;      /* phases that it entered and has not left */
    bool leads;          /* then `in` is none, and `leading` is its innermost */
} ta_usage_thread;

struct ta_usage {
    ta_allocator *allocator; /* NULL: nothing is counted yet */
    ta_alive *alive;
    uint64_t generation; /* tells usages apart that had the same address */
    double begin_us;
    _Atomic uint32_t leading; /* the phase of threads that are in none of their own */
    _Atomic uint32_t step;
    _Atomic int devices; /* those from here on are not used: a step's calls skip them */
    _Atomic uint64_t unused;
    bool activations[TA_USAGE_PHASES]; /* of each phase, see ta_usage_phase */
    pthread_key_t ends;                /* runs ta_usage_thread_ends */
    pthread_mutex_t names;             /* guards the next five */
    uint32_t between;                  /* the leader's phase where it is in none */
    uint32_t leader_depth;             /* phases that the leading thread is in */
    uint32_t phase_count;
    ta_phase_name *phase;
    ta_usage_thread *threads;
    ta_device_usage device[TA_MAX_DEVICES];
};

static inline bool ta_usage_child(const ta_usage *u) { return !ta_alive_is(u->alive); }

/* The thread's innermost phase, or the leader's. */
uint32_t ta_usage_phase_now(const ta_usage *usage);
/* A thread that ends inside phases leads no longer. */
void ta_usage_thread_ends(void *thread);
/* What the device's numbers say, now, at `us`, has been counted; the timeline learns the phase, and what
 * is reserved. */
void ta_usage_seen(const ta_usage *usage, ta_device_usage *device,
                   const ta_page_counts *counts, double us);
/* The moment is now. */
void ta_usage_moment_begins(const ta_usage *usage, ta_device_usage *device, ta_moment *m,
                            double us, uint32_t phase, uint64_t requested);

static inline int ta_usage_devices(const ta_usage *u)
{
    return atomic_load_explicit(&u->devices, memory_order_acquire);
}

/* The device where something was allocated, its lock taken; NULL elsewhere. */
static inline ta_device_usage *ta_usage_used(ta_usage *u, int device)
{
    ta_device_usage *d = &u->device[device];
    if (!atomic_load_explicit(&d->used, memory_order_acquire)) return NULL;
    ta_spin_take(&d->lock);
    return d;
}

/* What a block counts as in the timeline. A phase's number is published after its name. */
static inline ta_category ta_usage_counts_as(const ta_usage *u, uint32_t category,
                                             uint32_t phase)
{
    if (category != TA_CATEGORY_UNKNOWN) return (ta_category)category;
    return u->activations[phase] ? TA_CATEGORY_ACTIVATION : TA_CATEGORY_OTHER;
}

/* Until `us`, which is now, the device's state was the timeline's. */
static inline void ta_usage_pass(const ta_usage *u, ta_device_usage *d, double us)
{
    d->tick = ta_tick();
    d->unread = 0;
    d->read_us = us;
    ta_timeline_pass(&d->timeline, us - u->begin_us);
    d->timeline.now.phase = atomic_load_explicit(&u->leading, memory_order_relaxed);
    d->timeline.now.step = atomic_load_explicit(&u->step, memory_order_relaxed);
}

#endif
