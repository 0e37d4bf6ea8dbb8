/* usage.h - who used what: bytes by phase and by category, now, at the peak, at a refusal.
 *
 * A phase is a named span of the program (`forward`); phases nest, and one is told apart by
 * its name and the one around it; entered inside itself it is the same one. A category is
 * what a block holds; it may be told at any time later, and counts for the past too. An
 * observer of the allocator: where there is none of these, allocations cost nothing more.
 *
 * The thread that enters a phase while nobody is in one leads until it has left: allocations
 * of threads that are in no phase of their own, autograd's above all, count to the leader's.
 *
 * Where modules and lines are told (place.h), a block remembers where it was allocated. Their
 * numbers are the caller's. A block that is told a module counts to that one for the past too.
 *
 * Bytes are those that were asked for. Thread-safe; in a forked child nothing is done. */
#ifndef TA_USAGE_H
#define TA_USAGE_H

#include "../../include/torcharena.h"

typedef struct ta_usage ta_usage;

typedef enum ta_category {
    TA_CATEGORY_UNKNOWN = 0,
    TA_CATEGORY_PARAMETER = 1,
    TA_CATEGORY_GRADIENT = 2,
    TA_CATEGORY_OPTIMIZER_STATE = 3,
    TA_CATEGORY_ACTIVATION = 4,
    TA_CATEGORY_BUFFER = 5,
    TA_CATEGORY_OTHER = 6,
    TA_CATEGORY_WORKSPACE = 7, /* memory that libraries keep for their own use */
    TA_CATEGORIES = 8
} ta_category;

#define TA_USAGE_PHASES 1024u  /* more names than these count to the phase around them */
#define TA_USAGE_MODULES 8192u /* those with a larger number count to no module */
#define TA_USAGE_NAME 64u      /* bytes of a name that are kept, the ending zero too */

/* Phases can be entered at once; nothing is counted yet. */
ta_status ta_usage_create(ta_usage **usage);
/* Begins to count, once; blocks that live already belong to phase 0, which has no name.
 * TA_INVALID: too many observers. */
ta_status ta_usage_watch(ta_usage *usage, ta_allocator *allocator);
/* Counts nothing more, until it watches again: to the counts all blocks are freed. No other
 * call may be under way but allocations. */
ta_status ta_usage_unwatch(ta_usage *usage);
/* Before the allocator is destroyed; no other call may be under way. */
ta_status ta_usage_destroy(ta_usage *usage);

/* What `ta_usage_leave` needs. */
typedef struct ta_usage_span {
    const void *thread; /* that entered it */
    uint32_t phase, before;
    double begin_us;
} ta_usage_span;
void ta_usage_enter(ta_usage *usage, const char *name, ta_usage_span *span);
/* On whatever thread; for the one that entered it. */
void ta_usage_leave(ta_usage *usage, const ta_usage_span *span);
/* What hooks of a training step do, each in one: ta_usage_between(NULL), then enter; and
 * ta_usage_between(between) where that is not NULL, then leave. */
void ta_usage_enter_anew(ta_usage *usage, const char *name, ta_usage_span *span);
void ta_usage_leave_to(ta_usage *usage, const ta_usage_span *span, const char *between);
/* What the leader does while it is in no phase counts to the outermost phase of this name;
 * NULL: to phase 0, as at first. */
void ta_usage_between(ta_usage *usage, const char *name);
/* A step of the program ends: blocks remember in which they were allocated. Whether anything
 * has gone to the host, by the last change of the phase. */
bool ta_usage_step(ta_usage *usage);

/* Of the live blocks that start at `addrs`; returns how many there were. */
size_t ta_usage_set_category(ta_usage *usage, int device, const uint64_t *addrs,
                             size_t count, ta_category category);

/* To tell every gradient takes a walk over all parameters. So the end of most backward passes
 * is told by this: what the phase of `span` allocated since the last such call, nobody freed
 * and no category was told of is taken to be a gradient. True where that is not good enough,
 * since a peak is newer than the last telling: nothing is guessed, tell all now. */
bool ta_usage_backward_ends(ta_usage *usage, const ta_usage_span *span);
/* Whether a peak is newer than the last telling. */
bool ta_usage_due(ta_usage *usage);
/* All categories have just been told: guesses that were not told are none. */
void ta_usage_told(ta_usage *usage);

/* Likewise; `modules` are as many. */
size_t ta_usage_set_modules(ta_usage *usage, int device, const uint64_t *addrs,
                            const uint16_t *modules, size_t count);

/* Bytes that autograd graphs hold which are known never to run backward. */
void ta_usage_unused(ta_usage *usage, uint64_t bytes);
/* After a refusal: what the live blocks held then, and what would have saved most. Nothing
 * where no block was told to be a parameter. Returns the length that snprintf would. */
int ta_usage_oom_text(ta_usage *usage, int device, char *text, size_t capacity);

/* Moments whose blocks are known until the next of the kind. */
typedef enum ta_usage_moment {
    TA_USAGE_PEAK = 0,
    TA_USAGE_OOM = 1, /* the last request that was refused */
    TA_USAGE_MOMENTS = 2,
    TA_USAGE_NOW = 2
} ta_usage_moment;

typedef struct ta_usage_when {
    uint64_t bytes;           /* live then; 0: there was no such moment */
    double us;                /* since the start */
    uint64_t step, requested; /* of a refusal: bytes asked for */
    uint32_t phase;
} ta_usage_when;

typedef struct ta_usage_counts {
    uint64_t live;   /* bytes */
    uint64_t blocks; /* live */
    double now_us;   /* since the start */
    uint64_t step;
    ta_usage_when when[TA_USAGE_MOMENTS];
    uint64_t lost;         /* blocks not counted, for want of host memory */
    uint64_t bytes;        /* of host memory that all this takes */
    uint64_t unused_bytes; /* as ta_usage_unused was told */
} ta_usage_counts;
void ta_usage_look(ta_usage *usage, int device, ta_usage_counts *counts);
/* The highest from now on. */
void ta_usage_reset_peaks(ta_usage *usage, int device);

typedef struct ta_usage_phase {
    char name[TA_USAGE_NAME];
    uint32_t around;  /* the phase that it is in; 0 for the outermost */
    uint64_t entries; /* times left */
    double us;        /* time in it, of phases inside it too */
    /* On the device, phases inside not counted: */
    uint64_t allocs, bytes; /* allocated in it */
    uint64_t live;          /* of those bytes */
    uint64_t
        peak; /* the device's highest live bytes while something was allocated in it */
    uint64_t kept; /* its live bytes when it was last left */
    /* Of its blocks freed two steps after their own or later, the bytes a step: of the last
     * 4 to 7 steps, or of the last 8 to 15 where it was more. What keeps a window of steps
     * frees as much a step as it keeps. */
    double late;
    uint64_t page_moves, waits; /* while it was the leader's innermost phase */
    uint64_t spilled;           /* bytes then asked for that went to the host */
    double wait_us;
    /* Blocks of it that no category was told of are activations; else they are other. So
     * where, of its own name and those around it, the innermost of forward, backward,
     * evaluation, optimizer, zero_grad and load is one of the first three; and where there is
     * none of these, but it was first entered when `between` was forward: a loss. Not in a
     * notebook's cell, In[3], itself. */
    bool activations;
} ta_usage_phase;
/* Of all phases, phase 0 first; at most `capacity`. Returns how many there are. */
size_t ta_usage_phases(ta_usage *usage, int device, ta_usage_phase *phases,
                       size_t capacity);

typedef struct ta_usage_block {
    uint64_t addr; /* 0: freed since the moment */
    uint64_t size;
    uint64_t step;
    uint32_t phase;
    uint16_t module, stack;
    uint8_t category;
} ta_usage_block;
/* The blocks that live now, or lived at a moment; at most `capacity`, in no order. Returns how
 * many there are. */
size_t ta_usage_blocks(ta_usage *usage, int device, ta_usage_moment moment,
                       ta_usage_block *blocks, size_t capacity);

typedef struct ta_usage_module {
    uint64_t allocs, bytes; /* allocated in it, not in modules inside it */
} ta_usage_module;
/* Of the modules 0, 1, ..., at most `capacity`; 0 is what no module allocated since the first
 * one did. Returns TA_USAGE_MODULES, or 0 where no module allocated anything. */
size_t ta_usage_modules(ta_usage *usage, int device, ta_usage_module *modules,
                        size_t capacity);

#define TA_USAGE_SAMPLES 2048u

/* Of an interval of time: the moment of its highest live bytes. */
typedef struct ta_usage_sample {
    uint64_t live;
    uint64_t reserved; /* the most in the interval */
    uint64_t
        of[TA_CATEGORIES]; /* of live; none is unknown, see ta_usage_phase.activations */
    uint64_t event;        /* events on the device until then */
    uint32_t phase;        /* the leader's */
    uint32_t step;
} ta_usage_sample;
/* All intervals from the start until now, at most `capacity`; returns how many there are,
 * at most TA_USAGE_SAMPLES. Each is `interval_us` long, the last may be under way. */
size_t ta_usage_timeline(ta_usage *usage, int device, ta_usage_sample *samples,
                         size_t capacity, double *interval_us);

/* As ta_check. */
bool ta_usage_check(ta_usage *usage, char *text, size_t capacity);

#endif
