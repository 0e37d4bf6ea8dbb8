/* phases.c - phases are entered and left; see usage.h and inside.h.
 *
 * Called by the Python binding, some ten times a step of a tracked program, from any thread.
 * Each call takes `names` once, and each used device's lock once. */
#define _POSIX_C_SOURCE 200809L
#include "inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of this thread, in one usage. */
static _Thread_local struct {
    uint64_t generation;
    ta_usage_thread *thread;
} own;

uint32_t ta_usage_phase_now(const ta_usage *u)
{
    if (own.generation == u->generation) {
        const uint32_t in = atomic_load_explicit(&own.thread->in, memory_order_relaxed);
        if (in != TA_USAGE_IN_NONE) return in;
    }
    return atomic_load_explicit(&u->leading, memory_order_acquire);
}

/* --- names ----------------------------------------------------------------------------- */
static bool named(const ta_usage *u, uint32_t phase, const char *name)
{
    return strncmp(u->phase[phase].name, name, TA_USAGE_NAME - 1) == 0;
}

static bool one_of(const ta_usage *u, uint32_t phase, const char *const names[3])
{
    return named(u, phase, names[0]) || named(u, phase, names[1]) ||
           named(u, phase, names[2]);
}

/* By the innermost name that says it; `loss`: where none does, but the phase follows the
 * model's forward at once. */
static bool holds_activations(const ta_usage *u, uint32_t phase, bool loss)
{
    static const char *const made_in[] = {"forward", "backward", "evaluation"},
                             *const not_in[] = {"optimizer", "zero_grad", "load"};
    if (strncmp(u->phase[phase].name, "In[", 3) == 0) return false;
    for (; phase; phase = u->phase[phase].around) {
        if (one_of(u, phase, made_in)) return true;
        if (one_of(u, phase, not_in)) return false;
    }
    return loss;
}

/* With `names` held. A name past the last place is the phase around it. */
static uint32_t phase_of(ta_usage *u, uint32_t around, const char *name, bool loss)
{
    if (around && named(u, around, name)) return around;
    for (uint32_t i = 1; i < u->phase_count; i++)
        if (u->phase[i].around == around && named(u, i, name)) return i;
    if (u->phase_count == TA_USAGE_PHASES) return around;
    ta_phase_name *p = &u->phase[u->phase_count];
    snprintf(p->name, sizeof p->name, "%s", name);
    p->around = around;
    u->activations[u->phase_count] = holds_activations(u, u->phase_count, loss);
    return u->phase_count++;
}

/* With `names` held. */
static bool is_within(const ta_usage *u, uint32_t phase, uint32_t around)
{
    while (phase && phase != around) phase = u->phase[phase].around;
    return phase == around;
}

/* --- what happened in one -------------------------------------------------------------- */
/* Page moves and waits since the last change of the leading phase were in `phase`. The
 * timeline learns which phase it is now, and what is reserved: from here on it knows pages
 * that are mapped and unmapped, while some are kept ready. */
static void charge(const ta_usage *u, ta_device_usage *d, ta_phase_counts *p,
                   const ta_page_counts *counts, double us)
{
    p->page_moves += counts->page_moves - d->page_moves;
    p->spilled += counts->spill_bytes - d->spilled;
    p->waits += counts->waits - d->waits;
    p->wait_us += counts->wait_us - d->wait_us;
    ta_usage_seen(u, d, counts, us);
}

/* The leading thread's phase is another since `us`, which is now (`led`), or a thread has left
 * one (`kept`). */
static void is_over(ta_usage *u, uint32_t phase, bool led, bool kept, double us)
{
    for (int i = 0; (led || kept) && i < ta_usage_devices(u); i++) {
        ta_page_counts counts;
        const bool charged =
            led && u->allocator && !ta_get_page_counts(u->allocator, i, &counts);
        ta_device_usage *d = ta_usage_used(u, i);
        if (!d) continue;
        ta_phase_counts *p = &d->phases[phase];
        if (kept) p->kept = p->live;
        if (charged) charge(u, d, p, &counts, us);
        ta_spin_drop(&d->lock);
    }
}

/* --- enter and leave ------------------------------------------------------------------- */
/* This thread's state; NULL: no memory for one. */
static ta_usage_thread *join(ta_usage *u)
{
    if (own.generation == u->generation) return own.thread;
    ta_usage_thread *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->usage = u;
    atomic_store(&t->in, TA_USAGE_IN_NONE);
    pthread_mutex_lock(&u->names);
    t->next = u->threads;
    u->threads = t;
    pthread_mutex_unlock(&u->names);
    own.generation = u->generation;
    own.thread = t;
    pthread_setspecific(u->ends, t);
    return t;
}

/* With `names` held. Where nobody leads, the phase of those in none is another at once. */
static void set_between(ta_usage *u, const char *name)
{
    u->between = name ? phase_of(u, 0, name, false) : 0;
    if (!u->leader_depth) atomic_store(&u->leading, u->between);
}

static void enter(ta_usage *u, const char *name, bool anew, ta_usage_span *span)
{
    memset(span, 0, sizeof *span);
    ta_usage_thread *t = ta_usage_child(u) ? NULL : join(u);
    if (!t) return;
    span->thread = t;
    pthread_mutex_lock(&u->names);
    const uint32_t led = atomic_load(&u->leading);
    if (anew) set_between(u, NULL);
    if (!t->depth && !u->leader_depth) t->leads = true;
    span->before = ta_usage_phase_now(u);
    const bool loss = t->leads && !t->depth && named(u, u->between, "forward");
    span->phase = phase_of(u, t->depth ? span->before : 0, name, loss);
    t->depth++;
    if (t->leads) {
        u->leader_depth++;
        atomic_store(&u->leading, span->phase);
    } else
        atomic_store(&t->in, span->phase);
    const bool other = atomic_load(&u->leading) != led || t->leads;
    pthread_mutex_unlock(&u->names);
    span->begin_us = ta_now_us();
    is_over(u, led, other, false, span->begin_us);
}

void ta_usage_enter(ta_usage *u, const char *name, ta_usage_span *span)
{
    enter(u, name, false, span);
}

void ta_usage_enter_anew(ta_usage *u, const char *name, ta_usage_span *span)
{
    enter(u, name, true, span);
}

void ta_usage_thread_ends(void *thread)
{
    ta_usage_thread *t = thread;
    ta_usage *u = t->usage;
    if (ta_usage_child(u)) return;
    pthread_mutex_lock(&u->names);
    const uint32_t last = atomic_load(&u->leading);
    const bool led = t->leads;
    if (led) {
        u->leader_depth = 0;
        atomic_store(&u->leading, u->between);
    }
    ta_usage_thread **at = &u->threads;
    while (*at != t) at = &(*at)->next;
    *at = t->next;
    pthread_mutex_unlock(&u->names);
    own.generation = 0;
    free(t);
    is_over(u, last, led, false, ta_now_us());
}

/* With `names` held: the thread that entered the span, if it is in a phase still. */
static ta_usage_thread *entered_by(const ta_usage *u, const ta_usage_span *span)
{
    ta_usage_thread *t = u->threads;
    while (t && t != span->thread) t = t->next;
    return t && t->depth ? t : NULL;
}

static void leave(ta_usage *u, const ta_usage_span *span, const char *between)
{
    if (ta_usage_child(u)) return;
    const double us = ta_now_us();
    pthread_mutex_lock(&u->names);
    const uint32_t leading = atomic_load(&u->leading);
    if (between) set_between(u, between);
    ta_usage_thread *t = entered_by(u, span);
    const bool led = t && t->leads;
    if (t) {
        if (span->phase != span->before) {
            u->phase[span->phase].entries++;
            u->phase[span->phase].us += us - span->begin_us;
        }
        /* Spans of generators that take turns end in any order: one that is not around what
         * the thread is in now was ended by another. */
        const uint32_t now = led ? leading : atomic_load(&t->in);
        const uint32_t then = is_within(u, now, span->phase) ? span->before : now;
        t->depth--;
        if (led) {
            u->leader_depth--;
            atomic_store(&u->leading, t->depth ? then : u->between);
            t->leads = t->depth > 0;
        } else
            atomic_store(&t->in, t->depth ? then : TA_USAGE_IN_NONE);
    }
    const bool other = led || atomic_load(&u->leading) != leading;
    pthread_mutex_unlock(&u->names);
    if (t) is_over(u, span->phase, led, true, us);
    if (!led) is_over(u, leading, other, false, us);
}

void ta_usage_leave(ta_usage *u, const ta_usage_span *span) { leave(u, span, NULL); }

void ta_usage_leave_to(ta_usage *u, const ta_usage_span *span, const char *between)
{
    leave(u, span, between);
}

void ta_usage_between(ta_usage *u, const char *name)
{
    if (ta_usage_child(u)) return;
    pthread_mutex_lock(&u->names);
    const uint32_t before = atomic_load(&u->leading);
    set_between(u, name);
    const bool other = atomic_load(&u->leading) != before;
    pthread_mutex_unlock(&u->names);
    is_over(u, before, other, false, ta_now_us());
}

static void mark(ta_device_usage *d, uint32_t phases)
{
    for (uint32_t i = 0; i < phases; i++) {
        ta_phase_counts *p = &d->phases[i];
        p->late_at[1] = p->late_at[0];
        p->late_at[0] = p->late;
    }
}

bool ta_usage_step(ta_usage *u)
{
    bool spilled = false;
    if (ta_usage_child(u)) return false;
    const bool marks = (atomic_fetch_add(&u->step, 1) + 1) % TA_USAGE_MARK == 0;
    uint32_t phases = 0;
    if (marks) {
        pthread_mutex_lock(&u->names);
        phases = u->phase_count;
        pthread_mutex_unlock(&u->names);
    }
    for (int i = 0; i < ta_usage_devices(u) && (marks || !spilled); i++) {
        ta_device_usage *d = ta_usage_used(u, i);
        if (!d) continue;
        if (marks) mark(d, phases);
        spilled = spilled || d->spilled != 0;
        ta_spin_drop(&d->lock);
    }
    return spilled;
}
