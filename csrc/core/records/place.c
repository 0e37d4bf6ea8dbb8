/* place.c - what each thread is at; see place.h.
 *
 * Called by the Python binding to say it; by usage/usage.c and history.c, in
 * allocations, to ask. */
#include "place.h"

#include <stdatomic.h>

static _Atomic uint32_t begun;
static _Atomic uint64_t pass = 1; /* the number of ta_place_over's calls */

/* in = module[min(depth, TA_PLACE_DEPTH) - 1];  `runs` counts if its pass is this one */
static _Thread_local struct {
    uint16_t module[TA_PLACE_DEPTH];
    uint32_t depth;
    uint16_t stack;
    ta_place runs;
    uint64_t pass;
} own;

void ta_place_begin(void) { atomic_fetch_add(&begun, 1); }

void ta_place_end(void)
{
    if (atomic_load(&begun)) atomic_fetch_sub(&begun, 1);
    ta_place_over();
}

/* Forgets the module and what is inside it. */
static void leave(uint16_t module)
{
    uint32_t i = own.depth < TA_PLACE_DEPTH ? own.depth : TA_PLACE_DEPTH;
    for (; i > 0; i--)
        if (own.module[i - 1] == module) {
            own.depth = i - 1;
            return;
        }
}

void ta_place_enter(uint16_t module, bool outermost)
{
    if (outermost) {
        leave(module);
        if (!own.depth) ta_place_over();
    }
    if (own.depth < TA_PLACE_DEPTH) own.module[own.depth] = module;
    own.depth++;
}

void ta_place_leave(uint16_t module)
{
    if (own.depth > TA_PLACE_DEPTH)
        own.depth--; /* which one it is is not known */
    else
        leave(module);
}

void ta_place_at(uint16_t stack) { own.stack = stack; }

void ta_place_runs(ta_place made)
{
    own.runs = made;
    own.pass = atomic_load_explicit(&pass, memory_order_relaxed);
}

void ta_place_over(void) { atomic_fetch_add_explicit(&pass, 1, memory_order_relaxed); }

ta_place ta_place_now(void)
{
    if (!atomic_load_explicit(&begun, memory_order_relaxed)) return (ta_place){0, 0};
    const uint32_t depth = own.depth < TA_PLACE_DEPTH ? own.depth : TA_PLACE_DEPTH;
    ta_place place = {depth ? own.module[depth - 1] : 0, own.stack};
    if (own.pass == atomic_load_explicit(&pass, memory_order_relaxed)) {
        if (!place.module) place.module = own.runs.module;
        if (!place.stack) place.stack = own.runs.stack;
    }
    return place;
}
