/* usage.c - who used what: blocks are born and die; see usage.h and inside.h.
 *
 * The observer is called by any thread, for every allocation and its release, under an
 * allocator's lock: what it costs, every step of a tracked program pays a thousand times. So
 * it takes one lock of a few instructions, reads the clock rarely, and touches few lines of
 * memory. Begin and end are called by the Python binding. */
#define _POSIX_C_SOURCE 200809L
#include "inside.h"

#include <stdlib.h>

#include "records/place.h"

static _Atomic uint64_t generations;

/* --- events ---------------------------------------------------------------------------- */
/* Reading the clocks is what would cost most of an event. So of events close together (within
 * a tick of the coarse clock, some milliseconds) most take the time of the one before; and of
 * small blocks only a few look at even that clock: it is large ones that a picture shows. */
#define UNREAD 64u
#define UNSEEN 8u
static void roughly_now(const ta_usage *u, ta_device_usage *d, uint64_t size)
{
    d->unread++;
    if (size < TA_SMALL_MAX && d->unread % UNSEEN) return;
    const uint64_t tick = ta_tick();
    if (tick == d->tick && d->unread < UNREAD) return;
    d->tick = tick;
    d->unread = 0;
    d->read_us = ta_now_us();
    ta_timeline_pass(&d->timeline, d->read_us - u->begin_us);
}

/* The timeline learns of a block that came or went; `now` is told. */
static void changed(const ta_usage *u, ta_device_usage *d, const ta_usage_entry *e,
                    int64_t bytes)
{
    d->timeline.now.phase = atomic_load_explicit(&u->leading, memory_order_relaxed);
    d->timeline.now.step = atomic_load_explicit(&u->step, memory_order_relaxed);
    ta_timeline_change(&d->timeline, ta_usage_counts_as(u, e->category, e->phase), bytes,
                       d->events);
}

static bool ready(ta_usage *u, ta_device_usage *d)
{
    if (d->phases) return true;
    if (!ta_timeline_begin(&d->timeline)) return false;
    d->phases = calloc(TA_USAGE_PHASES, sizeof *d->phases);
    if (!d->phases) return false;
    atomic_store_explicit(&d->used, true, memory_order_release);
    const int end = (int)(d - u->device) + 1;
    int devices = atomic_load(&u->devices);
    while (devices < end && !atomic_compare_exchange_weak(&u->devices, &devices, end)) {
    }
    return true;
}

void ta_usage_moment_begins(const ta_usage *u, ta_device_usage *d, ta_moment *m,
                            double us, uint32_t phase, uint64_t requested)
{
    m->when = (ta_usage_when){
        .bytes = d->live,
        .us = us - u->begin_us,
        .step = atomic_load_explicit(&u->step, memory_order_relaxed),
        .requested = requested,
        .phase = phase,
    };
    m->at = d->latest = d->events;
    m->gone_count = 0;
}

/* Where it is counted; one that has no room for its counts is none. */
static void count_module(ta_device_usage *d, ta_place *place, uint64_t bytes)
{
    if (place->module && !d->modules)
        d->modules = calloc(TA_USAGE_MODULES, sizeof *d->modules);
    if (!d->modules) {
        place->module = 0;
        return;
    }
    d->modules[place->module].allocs++;
    d->modules[place->module].bytes += bytes;
}

static void born(ta_usage *u, ta_device_usage *d, uint64_t addr, uint64_t requested,
                 uint32_t phase, ta_place place)
{
    if (place.module >= TA_USAGE_MODULES) place.module = 0;
    d->events++;
    count_module(d, &place, requested);
    ta_usage_entry *e = ready(u, d) ? ta_usage_table_add(&d->table, addr) : NULL;
    if (!e) {
        d->lost++;
        return;
    }
    e->size = requested;
    e->born = d->events;
    e->step = atomic_load_explicit(&u->step, memory_order_relaxed);
    e->phase = (uint16_t)phase;
    e->module = place.module;
    e->stack = place.stack;
    e->category = TA_CATEGORY_UNKNOWN;
    e->guessed = false;
    ta_phase_counts *p = &d->phases[phase];
    p->allocs++;
    p->bytes += requested;
    p->live += requested;
    d->live += requested;
    roughly_now(u, d, requested);
    ta_moment *peak = &d->moments[TA_USAGE_PEAK];
    if (d->live > peak->when.bytes)
        ta_usage_moment_begins(u, d, peak, d->read_us, phase, 0);
    if (d->live > p->peak) p->peak = d->live;
    changed(u, d, e, (int64_t)requested);
}

/* A moment's record of a block that goes. Without memory for it the moment is now. */
static void remember(const ta_usage *u, ta_device_usage *d, ta_moment *m,
                     const ta_usage_entry *e)
{
    if (m->gone_count == m->gone_room) {
        size_t room = m->gone_room ? m->gone_room * 2 : 256;
        ta_gone_block *larger = realloc(m->gone, room * sizeof *larger);
        if (!larger) {
            d->lost++;
            ta_usage_moment_begins(u, d, m, ta_now_us(), m->when.phase,
                                   m->when.requested);
            return;
        }
        m->gone = larger;
        m->gone_room = room;
    }
    /* A gradient does not die in the backward after its own: it is added to. */
    const bool none = e->guessed && ta_usage_phase_now(u) == e->phase;
    const uint8_t category = none ? TA_CATEGORY_UNKNOWN : e->category;
    m->gone[m->gone_count++] =
        (ta_gone_block){e->size, e->step, e->phase, e->module, e->stack, category};
}

static void died(const ta_usage *u, ta_device_usage *d, uint64_t addr)
{
    ta_usage_entry gone;
    if (!ta_usage_table_take(&d->table, addr, &gone)) return; /* lost */
    d->events++;
    d->live -= gone.size;
    d->phases[gone.phase].live -= gone.size;
    if (atomic_load_explicit(&u->step, memory_order_relaxed) - gone.step >= 2)
        d->phases[gone.phase].late += gone.size;
    d->guesses -= gone.guessed;
    for (int i = 0; gone.born <= d->latest && i < TA_USAGE_MOMENTS; i++)
        if (gone.born <= d->moments[i].at) remember(u, d, &d->moments[i], &gone);
    roughly_now(u, d, gone.size);
    changed(u, d, &gone, -(int64_t)gone.size);
}

static void pages(const ta_usage *u, ta_device_usage *d, uint64_t bytes, bool more)
{
    const uint64_t held = d->timeline.now.reserved;
    const uint64_t less = held > bytes ? held - bytes : 0;
    ta_usage_pass(u, d, ta_now_us());
    ta_timeline_reserve(&d->timeline, more ? held + bytes : less);
}

static void observe(void *context, const ta_event_info *event)
{
    ta_usage *u = context;
    ta_device_usage *d = &u->device[event->device];
    switch (event->kind) {
    case TA_EVENT_ALLOC: {
        const uint32_t phase = ta_usage_phase_now(u);
        const ta_place place = ta_place_now();
        ta_spin_take(&d->lock);
        born(u, d, event->addr, event->size, phase, place);
        break;
    }
    case TA_EVENT_FREE:
        ta_spin_take(&d->lock);
        died(u, d, event->addr);
        break;
    case TA_EVENT_OOM:
        ta_spin_take(&d->lock);
        ta_usage_moment_begins(u, d, &d->moments[TA_USAGE_OOM], ta_now_us(),
                               ta_usage_phase_now(u), event->size);
        break;
    case TA_EVENT_MAP:
    case TA_EVENT_UNMAP:
        ta_spin_take(&d->lock);
        pages(u, d, event->size, event->kind == TA_EVENT_MAP);
        break;
    default:
        return;
    }
    ta_spin_drop(&d->lock);
}

/* What `observe` has a use for. */
#define HEARD                                                                            \
    (1u << TA_EVENT_ALLOC | 1u << TA_EVENT_FREE | 1u << TA_EVENT_OOM |                   \
     1u << TA_EVENT_MAP | 1u << TA_EVENT_UNMAP)

/* --- begin and end ----------------------------------------------------------------------- */
typedef struct walk {
    ta_usage *usage;
    int device;
} walk;

static void visit_segment(void *context, const ta_segment_info *segment)
{
    ((walk *)context)->device = segment->device;
}

/* A block that was allocated since we observe is known already. */
static void visit_block(void *context, const ta_block_info *block)
{
    const walk *w = context;
    ta_device_usage *d = &w->usage->device[w->device];
    if (block->state != TA_BLOCK_LIVE) return;
    ta_spin_take(&d->lock);
    if (!ta_usage_table_find(&d->table, block->addr))
        born(w->usage, d, block->addr, block->requested, 0,
             (ta_place){.module = 0, .stack = 0});
    ta_spin_drop(&d->lock);
}

ta_status ta_usage_create(ta_usage **usage)
{
    *usage = NULL;
    ta_usage *u = calloc(1, sizeof *u);
    ta_phase_name *names = calloc(TA_USAGE_PHASES, sizeof *names);
    ta_alive *alive = ta_alive_make();
    if (!u || !names || !alive || pthread_key_create(&u->ends, ta_usage_thread_ends)) {
        free(u);
        free(names);
        ta_alive_end(alive);
        return TA_NO_HOST_MEMORY;
    }
    atomic_store(alive, 1);
    u->alive = alive;
    u->generation = 1 + atomic_fetch_add(&generations, 1);
    u->begin_us = ta_now_us();
    u->phase = names;
    u->phase_count = 1;
    pthread_mutex_init(&u->names, NULL);
    *usage = u;
    return TA_OK;
}

void ta_usage_seen(const ta_usage *u, ta_device_usage *d, const ta_page_counts *counts,
                   double us)
{
    d->page_moves = counts->page_moves;
    d->spilled = counts->spill_bytes;
    d->waits = counts->waits;
    d->wait_us = counts->wait_us;
    ta_usage_pass(u, d, us);
    ta_timeline_reserve(&d->timeline, counts->reserved);
}

ta_status ta_usage_watch(ta_usage *u, ta_allocator *allocator)
{
    if (ta_usage_child(u)) return TA_FORKED;
    ta_status status = ta_add_observer_of(allocator, observe, u, HEARD);
    if (status) return status;
    u->allocator = allocator;
    walk w = {u, 0};
    ta_visitor visitor = {&w, visit_segment, visit_block, NULL};
    ta_visit(allocator, -1, &visitor);
    for (int i = 0; i < TA_MAX_DEVICES; i++) { /* what was before belongs to no phase */
        ta_device_usage *d = &u->device[i];
        ta_page_counts counts;
        if (ta_get_page_counts(allocator, i, &counts)) continue;
        ta_spin_take(&d->lock);
        ta_usage_seen(u, d, &counts, ta_now_us());
        ta_spin_drop(&d->lock);
    }
    return TA_OK;
}

ta_status ta_usage_unwatch(ta_usage *u)
{
    if (ta_usage_child(u)) return TA_FORKED;
    if (!u->allocator) return TA_OK;
    ta_remove_observer(u->allocator, observe, u);
    u->allocator = NULL;
    for (int i = 0; i < TA_MAX_DEVICES; i++) {
        ta_device_usage *d = &u->device[i];
        ta_spin_take(&d->lock);
        /* A removal moves blocks that follow, never to before their slot. */
        for (size_t s = 0; s < d->table.room; s++)
            while (d->table.slots[s].addr) died(u, d, d->table.slots[s].addr);
        ta_spin_drop(&d->lock);
    }
    return TA_OK;
}

ta_status ta_usage_destroy(ta_usage *u)
{
    if (ta_usage_child(u)) return TA_FORKED;
    if (u->allocator) ta_remove_observer(u->allocator, observe, u);
    for (int i = 0; i < TA_MAX_DEVICES; i++) {
        ta_device_usage *d = &u->device[i];
        free(d->table.slots);
        for (int k = 0; k < TA_USAGE_MOMENTS; k++) free(d->moments[k].gone);
        free(d->phases);
        free(d->modules);
        ta_timeline_end(&d->timeline);
    }
    pthread_key_delete(u->ends);
    pthread_mutex_destroy(&u->names);
    ta_alive_end(u->alive);
    while (u->threads) {
        ta_usage_thread *t = u->threads;
        u->threads = t->next;
        free(t);
    }
    free(u->phase);
    free(u);
    return TA_OK;
}
