/* usage.c - who used what; see usage.h.
 *
 * Called by the Python binding; the observer by any thread under an allocator lock, where a
 * device's mutex here is innermost, but for `names`, which is taken alone.
 *
 * The peak is not copied when it is reached, which happens at every allocation of a first
 * step. It is kept as a moment, the count of events on the device: what lived then is what
 * lives now and was born no later, and what was freed since. So a category that is told
 * later counts at the peak too. Refusals are such moments as well. Under a device's mutex:
 *     live = sum of sizes in the table;  phases[p].live = the same, of phase p
 *     moment.bytes = sum of sizes in the table with born <= moment.at  +  those in its gone
 *     live <= peak.bytes;  guesses = entries of the table that are guessed
 * The timeline is of the same events: usage_timeline.c. */
#define _POSIX_C_SOURCE 200809L
#include "usage.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "count.h"
#include "place.h"
#include "usage_blocks.h"
#include "usage_timeline.h"

typedef struct phase_counts {
    uint64_t allocs, bytes, live, peak, kept, page_moves, waits, spilled;
    double wait_us;
} phase_counts;

/* Freed since a moment. */
typedef struct gone_block {
    uint64_t size;
    uint32_t step;
    uint16_t phase, module, stack;
    uint8_t category;
} gone_block;

typedef struct moment {
    ta_usage_when when;
    uint64_t at;
    gone_block *gone;
    size_t gone_count, gone_room;
} moment;

typedef struct device_usage {
    atomic_bool used; /* something was allocated here */
    pthread_mutex_t mutex;
    ta_usage_table table;
    uint64_t live, events, lost;
    uint64_t told_at;    /* events when all categories were told */
    uint64_t guessed_at; /* or those of backward guessed */
    size_t guesses;      /* entries of the table that are guessed */
    moment moments[TA_USAGE_MOMENTS];
    uint64_t page_moves, waits, spilled; /* of the device, counted to phases already */
    double wait_us;
    phase_counts *phases;     /* TA_USAGE_PHASES of them, where used */
    ta_usage_module *modules; /* TA_USAGE_MODULES of them, where one was told */
    ta_timeline timeline;
    double read_us;  /* the clock, when it was last read */
    uint64_t tick;   /* and the coarse one */
    uint32_t unread; /* events since then */
} device_usage;

typedef struct phase_name {
    char name[TA_USAGE_NAME];
    uint32_t around;
    uint64_t entries;
    double us;
    bool activations;
} phase_name;

struct ta_usage {
    ta_allocator *allocator; /* NULL: nothing is counted yet */
    pid_t owner;
    uint64_t generation; /* tells usages apart that had the same address */
    double begin_us;
    _Atomic uint32_t leading; /* the phase of threads that are in none of their own */
    _Atomic uint32_t step;
    _Atomic uint64_t unused;
    _Atomic int devices;   /* those from here on are not used: a step's calls skip them */
    pthread_key_t ends;    /* runs `thread_ends` */
    pthread_mutex_t names; /* guards the next four */
    uint32_t between;      /* the leader's phase where it is in none */
    uint32_t leader_depth; /* phases that the leading thread is in */
    uint32_t phase_count;
    phase_name *phase;
    device_usage device[TA_MAX_DEVICES];
};

/* Of this thread: the phases it entered and has not left, in one usage. */
static _Thread_local struct {
    uint64_t generation;
    uint32_t depth, phase;
    bool leads;
} own;

static _Atomic uint64_t generations;

static bool child(const ta_usage *u) { return getpid() != u->owner; }

static int devices_of(const ta_usage *u)
{
    return atomic_load_explicit(&u->devices, memory_order_acquire);
}

static uint32_t phase_now(const ta_usage *u)
{
    if (own.depth && !own.leads && own.generation == u->generation) return own.phase;
    return atomic_load_explicit(&u->leading, memory_order_acquire);
}

/* --- the timeline ---------------------------------------------------------------------- */
/* What a block counts as there. A phase's number is published after its name. */
static ta_category counts_as(const ta_usage *u, uint32_t category, uint32_t phase)
{
    if (category != TA_CATEGORY_UNKNOWN) return (ta_category)category;
    return u->phase[phase].activations ? TA_CATEGORY_ACTIVATION : TA_CATEGORY_OTHER;
}

/* Reading the clock is what costs most of an event: of events close together (within a tick
 * of the coarse clock, some milliseconds) a few take the time of the one before. */
#define UNREAD 8u
static double roughly_now(device_usage *d)
{
    const uint64_t tick = ta_tick();
    if (tick != d->tick || ++d->unread >= UNREAD) {
        d->tick = tick;
        d->unread = 0;
        d->read_us = ta_now_us();
    }
    return d->read_us;
}

/* Until now the device's state was the timeline's. */
static void pass_at(const ta_usage *u, device_usage *d, double us)
{
    ta_timeline_pass(&d->timeline, us - u->begin_us);
    d->timeline.now.phase = atomic_load_explicit(&u->leading, memory_order_relaxed);
    d->timeline.now.step = atomic_load_explicit(&u->step, memory_order_relaxed);
}

static void pass(const ta_usage *u, device_usage *d)
{
    d->tick = ta_tick();
    d->unread = 0;
    d->read_us = ta_now_us();
    pass_at(u, d, d->read_us);
}

static void changed(const ta_usage *u, device_usage *d, const ta_usage_entry *e,
                    bool more)
{
    pass_at(u, d, roughly_now(d));
    ta_timeline_change(&d->timeline, counts_as(u, e->category, e->phase),
                       more ? (int64_t)e->size : -(int64_t)e->size, d->events);
}

/* --- events ---------------------------------------------------------------------------- */
static bool ready(ta_usage *u, device_usage *d)
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

static void begin_moment(const ta_usage *u, const device_usage *d, moment *m,
                         uint32_t phase, uint64_t requested)
{
    m->when = (ta_usage_when){
        .bytes = d->live,
        .us = ta_now_us() - u->begin_us,
        .step = atomic_load_explicit(&u->step, memory_order_relaxed),
        .requested = requested,
        .phase = phase,
    };
    m->at = d->events;
    m->gone_count = 0;
}

/* Where it is counted; one that has no room for its counts is none. */
static void count_module(device_usage *d, ta_usage_entry *e)
{
    if (e->module >= TA_USAGE_MODULES) e->module = 0;
    if (e->module && !d->modules)
        d->modules = calloc(TA_USAGE_MODULES, sizeof *d->modules);
    if (!d->modules) {
        e->module = 0;
        return;
    }
    d->modules[e->module].allocs++;
    d->modules[e->module].bytes += e->size;
}

static void born(ta_usage *u, device_usage *d, uint64_t addr, uint64_t requested,
                 uint32_t phase, ta_place place)
{
    ta_usage_entry entry = {
        .addr = addr,
        .size = requested,
        .born = ++d->events,
        .step = atomic_load_explicit(&u->step, memory_order_relaxed),
        .phase = (uint16_t)phase,
        .module = place.module,
        .stack = place.stack,
    };
    count_module(d, &entry);
    if (!ready(u, d) || !ta_usage_table_add(&d->table, &entry)) {
        d->lost++;
        return;
    }
    phase_counts *p = &d->phases[phase];
    p->allocs++;
    p->bytes += entry.size;
    p->live += entry.size;
    d->live += entry.size;
    moment *peak = &d->moments[TA_USAGE_PEAK];
    if (d->live > peak->when.bytes) begin_moment(u, d, peak, phase, 0);
    if (d->live > p->peak) p->peak = d->live;
    changed(u, d, &entry, true);
}

/* A moment's record of a block that goes. Without memory for it the moment is now. */
static void remember(const ta_usage *u, device_usage *d, moment *m,
                     const ta_usage_entry *e)
{
    if (m->gone_count == m->gone_room) {
        size_t room = m->gone_room ? m->gone_room * 2 : 256;
        gone_block *larger = realloc(m->gone, room * sizeof *larger);
        if (!larger) {
            d->lost++;
            begin_moment(u, d, m, m->when.phase, m->when.requested);
            return;
        }
        m->gone = larger;
        m->gone_room = room;
    }
    /* A gradient does not die in the backward after its own: it is added to. */
    const bool none = e->guessed && phase_now(u) == e->phase;
    const uint8_t category = none ? TA_CATEGORY_UNKNOWN : e->category;
    m->gone[m->gone_count++] =
        (gone_block){e->size, e->step, e->phase, e->module, e->stack, category};
}

static void died(const ta_usage *u, device_usage *d, uint64_t addr)
{
    ta_usage_entry *e = ta_usage_table_find(&d->table, addr);
    if (!e) return; /* lost */
    const ta_usage_entry gone = *e;
    ta_usage_table_remove(&d->table, e);
    d->events++;
    d->live -= gone.size;
    d->phases[gone.phase].live -= gone.size;
    d->guesses -= gone.guessed;
    for (int i = 0; i < TA_USAGE_MOMENTS; i++)
        if (gone.born <= d->moments[i].at) remember(u, d, &d->moments[i], &gone);
    changed(u, d, &gone, false);
}

static void pages(const ta_usage *u, device_usage *d, uint64_t bytes, bool more)
{
    uint64_t held = d->timeline.now.reserved;
    pass(u, d);
    ta_timeline_reserve(&d->timeline, more           ? held + bytes
                                      : held > bytes ? held - bytes
                                                     : 0);
}

static void observe(void *context, const ta_event_info *event)
{
    ta_usage *u = context;
    const ta_event_kind kind = event->kind;
    const bool of_pages = kind == TA_EVENT_MAP || kind == TA_EVENT_UNMAP;
    if (kind != TA_EVENT_ALLOC && kind != TA_EVENT_FREE && kind != TA_EVENT_OOM &&
        !of_pages)
        return;
    device_usage *d = &u->device[event->device];
    const uint32_t phase = phase_now(u);
    const ta_place place =
        kind == TA_EVENT_ALLOC ? ta_place_now() : (ta_place){.module = 0, .stack = 0};
    pthread_mutex_lock(&d->mutex);
    if (kind == TA_EVENT_ALLOC)
        born(u, d, event->addr, event->size, phase, place);
    else if (kind == TA_EVENT_FREE)
        died(u, d, event->addr);
    else if (kind == TA_EVENT_OOM)
        begin_moment(u, d, &d->moments[TA_USAGE_OOM], phase, event->size);
    else
        pages(u, d, event->size, kind == TA_EVENT_MAP);
    pthread_mutex_unlock(&d->mutex);
}

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
    device_usage *d = &w->usage->device[w->device];
    if (block->state != TA_BLOCK_LIVE) return;
    pthread_mutex_lock(&d->mutex);
    if (!ta_usage_table_find(&d->table, block->addr))
        born(w->usage, d, block->addr, block->requested, 0,
             (ta_place){.module = 0, .stack = 0});
    pthread_mutex_unlock(&d->mutex);
}

static void thread_ends(void *usage);

ta_status ta_usage_create(ta_usage **usage)
{
    *usage = NULL;
    ta_usage *u = calloc(1, sizeof *u);
    phase_name *names = calloc(TA_USAGE_PHASES, sizeof *names);
    if (!u || !names || pthread_key_create(&u->ends, thread_ends)) {
        free(u);
        free(names);
        return TA_NO_HOST_MEMORY;
    }
    u->owner = getpid();
    u->generation = 1 + atomic_fetch_add(&generations, 1);
    u->begin_us = ta_now_us();
    u->phase = names;
    u->phase_count = 1;
    pthread_mutex_init(&u->names, NULL);
    for (int i = 0; i < TA_MAX_DEVICES; i++)
        pthread_mutex_init(&u->device[i].mutex, NULL);
    *usage = u;
    return TA_OK;
}

/* What the device's numbers say now has been counted. */
static void seen(const ta_usage *u, device_usage *d, const ta_page_counts *stats)
{
    d->page_moves = stats->page_moves;
    d->spilled = stats->spill_bytes;
    d->waits = stats->waits;
    d->wait_us = stats->wait_us;
    pass(u, d);
    ta_timeline_reserve(&d->timeline, stats->reserved);
}

ta_status ta_usage_watch(ta_usage *u, ta_allocator *allocator)
{
    if (child(u)) return TA_FORKED;
    ta_status status = ta_add_observer(allocator, observe, u);
    if (status) return status;
    u->allocator = allocator;
    walk w = {u, 0};
    ta_visitor visitor = {&w, visit_segment, visit_block, NULL};
    ta_visit(allocator, -1, &visitor);
    for (int i = 0; i < TA_MAX_DEVICES; i++) { /* what was before belongs to no phase */
        device_usage *d = &u->device[i];
        ta_page_counts stats;
        if (ta_get_page_counts(allocator, i, &stats)) continue;
        pthread_mutex_lock(&d->mutex);
        seen(u, d, &stats);
        pthread_mutex_unlock(&d->mutex);
    }
    return TA_OK;
}

ta_status ta_usage_unwatch(ta_usage *u)
{
    if (child(u)) return TA_FORKED;
    if (!u->allocator) return TA_OK;
    ta_remove_observer(u->allocator, observe, u);
    u->allocator = NULL;
    for (int i = 0; i < TA_MAX_DEVICES; i++) {
        device_usage *d = &u->device[i];
        pthread_mutex_lock(&d->mutex);
        /* A removal moves blocks that follow, never to before their slot. */
        for (size_t s = 0; s < d->table.room; s++)
            while (d->table.slots[s].addr) died(u, d, d->table.slots[s].addr);
        pthread_mutex_unlock(&d->mutex);
    }
    return TA_OK;
}

ta_status ta_usage_destroy(ta_usage *u)
{
    if (child(u)) return TA_FORKED;
    if (u->allocator) ta_remove_observer(u->allocator, observe, u);
    for (int i = 0; i < TA_MAX_DEVICES; i++) {
        pthread_mutex_destroy(&u->device[i].mutex);
        free(u->device[i].table.slots);
        for (int k = 0; k < TA_USAGE_MOMENTS; k++) free(u->device[i].moments[k].gone);
        free(u->device[i].phases);
        free(u->device[i].modules);
        ta_timeline_end(&u->device[i].timeline);
    }
    pthread_key_delete(u->ends);
    pthread_mutex_destroy(&u->names);
    free(u->phase);
    free(u);
    return TA_OK;
}

/* --- phases -------------------------------------------------------------------------------- */
static bool named(const ta_usage *u, uint32_t phase, const char *name)
{
    return strncmp(u->phase[phase].name, name, TA_USAGE_NAME - 1) == 0;
}

static bool holds_activations(const ta_usage *u, uint32_t phase)
{
    static const char *const not_in[] = {"optimizer", "zero_grad", "load"};
    uint32_t outermost = phase;
    if (strncmp(u->phase[phase].name, "In[", 3) == 0) return false;
    while (u->phase[outermost].around) outermost = u->phase[outermost].around;
    for (size_t i = 0; i < sizeof not_in / sizeof *not_in; i++)
        if (named(u, phase, not_in[i]) || named(u, outermost, not_in[i])) return false;
    return true;
}

/* With `names` held. A name past the last place is the phase around it. */
static uint32_t phase_of(ta_usage *u, uint32_t around, const char *name)
{
    if (around && named(u, around, name)) return around;
    for (uint32_t i = 1; i < u->phase_count; i++)
        if (u->phase[i].around == around && named(u, i, name)) return i;
    if (u->phase_count == TA_USAGE_PHASES) return around;
    phase_name *p = &u->phase[u->phase_count];
    snprintf(p->name, sizeof p->name, "%s", name);
    p->around = around;
    p->activations = holds_activations(u, u->phase_count);
    return u->phase_count++;
}

/* Page moves and waits since the last change of the leading phase were in `phase`. The
 * timeline learns which phase it is now, and what is reserved: from here on it knows pages
 * that are mapped and unmapped, while some are kept ready. */
static void charge(ta_usage *u, uint32_t phase)
{
    for (int i = 0; u->allocator && i < devices_of(u); i++) {
        device_usage *d = &u->device[i];
        ta_page_counts stats;
        if (!atomic_load_explicit(&d->used, memory_order_acquire) ||
            ta_get_page_counts(u->allocator, i, &stats))
            continue;
        pthread_mutex_lock(&d->mutex);
        phase_counts *p = &d->phases[phase];
        p->page_moves += stats.page_moves - d->page_moves;
        p->spilled += stats.spill_bytes - d->spilled;
        p->waits += stats.waits - d->waits;
        p->wait_us += stats.wait_us - d->wait_us;
        seen(u, d, &stats);
        pthread_mutex_unlock(&d->mutex);
    }
}

void ta_usage_enter(ta_usage *u, const char *name, ta_usage_span *span)
{
    memset(span, 0, sizeof *span);
    if (child(u)) return;
    if (own.generation != u->generation) {
        own.generation = u->generation;
        own.depth = own.phase = 0;
        own.leads = false;
        pthread_setspecific(u->ends, u);
    }
    pthread_mutex_lock(&u->names);
    if (!own.depth && !u->leader_depth) own.leads = true;
    span->before = phase_now(u);
    span->phase = phase_of(u, own.depth ? span->before : 0, name);
    own.depth++;
    if (own.leads) {
        u->leader_depth++;
        atomic_store(&u->leading, span->phase);
    } else
        own.phase = span->phase;
    pthread_mutex_unlock(&u->names);
    if (own.leads) charge(u, span->before);
    span->begin_us = ta_now_us();
}

/* A thread that ends inside phases leads no longer. */
static void thread_ends(void *usage)
{
    ta_usage *u = usage;
    if (child(u) || own.generation != u->generation || !own.depth) return;
    const uint32_t last = phase_now(u);
    const bool led = own.leads;
    pthread_mutex_lock(&u->names);
    if (led) {
        u->leader_depth = 0;
        atomic_store(&u->leading, u->between);
    }
    own.depth = 0;
    own.leads = false;
    pthread_mutex_unlock(&u->names);
    if (led) charge(u, last);
}

/* With `names` held. */
static bool is_within(const ta_usage *u, uint32_t phase, uint32_t around)
{
    while (phase && phase != around) phase = u->phase[phase].around;
    return phase == around;
}

void ta_usage_leave(ta_usage *u, const ta_usage_span *span)
{
    if (child(u) || own.generation != u->generation || !own.depth) return;
    double us = ta_now_us() - span->begin_us;
    const bool led = own.leads;
    for (int i = 0; i < devices_of(u); i++) {
        device_usage *d = &u->device[i];
        if (!atomic_load_explicit(&d->used, memory_order_acquire)) continue;
        pthread_mutex_lock(&d->mutex);
        d->phases[span->phase].kept = d->phases[span->phase].live;
        pthread_mutex_unlock(&d->mutex);
    }
    pthread_mutex_lock(&u->names);
    if (span->phase != span->before) {
        u->phase[span->phase].entries++;
        u->phase[span->phase].us += us;
    }
    /* Spans of generators that take turns end in any order: one that is not around what
     * the thread is in now was ended by another. */
    const uint32_t now = phase_now(u);
    const uint32_t then = is_within(u, now, span->phase) ? span->before : now;
    own.depth--;
    if (own.leads) {
        u->leader_depth--;
        atomic_store(&u->leading, own.depth ? then : u->between);
        own.leads = own.depth > 0;
    } else
        own.phase = then;
    pthread_mutex_unlock(&u->names);
    if (led) charge(u, span->phase);
}

void ta_usage_between(ta_usage *u, const char *name)
{
    if (child(u)) return;
    pthread_mutex_lock(&u->names);
    u->between = name ? phase_of(u, 0, name) : 0;
    const uint32_t before = atomic_load(&u->leading);
    const bool now = !u->leader_depth && before != u->between;
    if (now) atomic_store(&u->leading, u->between);
    pthread_mutex_unlock(&u->names);
    if (now) charge(u, before);
}

void ta_usage_step(ta_usage *u)
{
    if (!child(u)) atomic_fetch_add(&u->step, 1);
}

void ta_usage_unused(ta_usage *u, uint64_t bytes)
{
    if (!child(u)) atomic_store(&u->unused, bytes);
}

/* The timeline is settled by the caller. */
static void set_category(const ta_usage *u, device_usage *d, ta_usage_entry *e,
                         ta_category category, bool guessed)
{
    ta_timeline_tell(&d->timeline, e->born, e->size, counts_as(u, e->category, e->phase),
                     counts_as(u, category, e->phase));
    d->guesses = d->guesses + guessed - e->guessed;
    e->category = (uint8_t)category;
    e->guessed = guessed;
}

size_t ta_usage_set_category(ta_usage *u, int device, const uint64_t *addrs, size_t count,
                             ta_category category)
{
    size_t found = 0;
    if (child(u) || device < 0 || device >= TA_MAX_DEVICES) return 0;
    device_usage *d = &u->device[device];
    pthread_mutex_lock(&d->mutex);
    for (size_t i = 0; i < count; i++) {
        ta_usage_entry *e = ta_usage_table_find(&d->table, addrs[i]);
        if (!e) continue;
        set_category(u, d, e, category, false);
        found++;
    }
    ta_timeline_settle(&d->timeline);
    pthread_mutex_unlock(&d->mutex);
    return found;
}

/* The device where something was allocated, its mutex taken; NULL elsewhere. */
static device_usage *used(ta_usage *u, int device)
{
    device_usage *d = &u->device[device];
    if (!atomic_load_explicit(&d->used, memory_order_acquire)) return NULL;
    pthread_mutex_lock(&d->mutex);
    return d;
}

bool ta_usage_due(ta_usage *u)
{
    bool due = false;
    for (int i = 0; !child(u) && !due && i < devices_of(u); i++) {
        device_usage *d = used(u, i);
        if (!d) continue;
        due = d->moments[TA_USAGE_PEAK].at > d->told_at;
        pthread_mutex_unlock(&d->mutex);
    }
    return due;
}

static void guess(const ta_usage *u, device_usage *d, uint32_t phase)
{
    for (size_t i = 0; i < d->table.room; i++) {
        ta_usage_entry *e = &d->table.slots[i];
        if (e->addr && e->born > d->guessed_at && e->phase == phase &&
            e->category == TA_CATEGORY_UNKNOWN)
            set_category(u, d, e, TA_CATEGORY_GRADIENT, true);
    }
    d->guessed_at = d->events;
}

bool ta_usage_backward_ends(ta_usage *u, const ta_usage_span *span)
{
    if (child(u)) return false;
    if (ta_usage_due(u)) return true;
    for (int i = 0; i < devices_of(u); i++) {
        device_usage *d = used(u, i);
        if (!d) continue;
        guess(u, d, span->phase);
        ta_timeline_settle(&d->timeline);
        pthread_mutex_unlock(&d->mutex);
    }
    return false;
}

void ta_usage_told(ta_usage *u)
{
    for (int i = 0; !child(u) && i < devices_of(u); i++) {
        device_usage *d = used(u, i);
        if (!d) continue;
        for (size_t k = 0; d->guesses && k < d->table.room; k++)
            if (d->table.slots[k].guessed)
                set_category(u, d, &d->table.slots[k], TA_CATEGORY_UNKNOWN, false);
        ta_timeline_settle(&d->timeline);
        d->told_at = d->guessed_at = d->events;
        pthread_mutex_unlock(&d->mutex);
    }
}

size_t ta_usage_set_modules(ta_usage *u, int device, const uint64_t *addrs,
                            const uint16_t *modules, size_t count)
{
    size_t found = 0;
    if (child(u) || device < 0 || device >= TA_MAX_DEVICES) return 0;
    device_usage *d = &u->device[device];
    pthread_mutex_lock(&d->mutex);
    for (size_t i = 0; i < count; i++) {
        ta_usage_entry *e = ta_usage_table_find(&d->table, addrs[i]);
        if (!e || modules[i] >= TA_USAGE_MODULES) continue;
        e->module = modules[i];
        found++;
    }
    pthread_mutex_unlock(&d->mutex);
    return found;
}

/* --- looking --------------------------------------------------------------------------------- */
static device_usage *looked_at(ta_usage *u, int device)
{
    return child(u) || device < 0 || device >= TA_MAX_DEVICES ? NULL : &u->device[device];
}

void ta_usage_look(ta_usage *u, int device, ta_usage_counts *counts)
{
    memset(counts, 0, sizeof *counts);
    device_usage *d = looked_at(u, device);
    if (!d) return;
    pthread_mutex_lock(&d->mutex);
    *counts = (ta_usage_counts){
        .live = d->live,
        .blocks = d->table.count,
        .now_us = ta_now_us() - u->begin_us,
        .step = atomic_load(&u->step),
        .lost = d->lost,
        .unused_bytes = atomic_load(&u->unused),
        .bytes = sizeof *u + TA_USAGE_PHASES * sizeof *u->phase +
                 (d->phases ? TA_USAGE_PHASES * sizeof *d->phases : 0) +
                 (d->modules ? TA_USAGE_MODULES * sizeof *d->modules : 0) +
                 d->table.room * sizeof *d->table.slots + ta_timeline_bytes(&d->timeline),
    };
    for (int i = 0; i < TA_USAGE_MOMENTS; i++) {
        counts->when[i] = d->moments[i].when;
        counts->bytes += d->moments[i].gone_room * sizeof *d->moments[i].gone;
    }
    pthread_mutex_unlock(&d->mutex);
}

void ta_usage_reset_peaks(ta_usage *u, int device)
{
    device_usage *d = looked_at(u, device);
    if (!d) return;
    pthread_mutex_lock(&d->mutex);
    begin_moment(u, d, &d->moments[TA_USAGE_PEAK], phase_now(u), 0);
    for (uint32_t i = 0; d->phases && i < TA_USAGE_PHASES; i++) d->phases[i].peak = 0;
    pthread_mutex_unlock(&d->mutex);
}

size_t ta_usage_phases(ta_usage *u, int device, ta_usage_phase *phases, size_t capacity)
{
    device_usage *d = looked_at(u, device);
    if (!d) return 0;
    pthread_mutex_lock(&u->names);
    size_t count = u->phase_count;
    for (size_t i = 0; i < count && i < capacity; i++) {
        phases[i] = (ta_usage_phase){.around = u->phase[i].around,
                                     .entries = u->phase[i].entries,
                                     .us = u->phase[i].us,
                                     .activations = u->phase[i].activations};
        memcpy(phases[i].name, u->phase[i].name, sizeof phases[i].name);
    }
    pthread_mutex_unlock(&u->names);
    pthread_mutex_lock(&d->mutex);
    for (size_t i = 0; d->phases && i < count && i < capacity; i++) {
        const phase_counts *p = &d->phases[i];
        phases[i].allocs = p->allocs;
        phases[i].bytes = p->bytes;
        phases[i].live = p->live;
        phases[i].peak = p->peak;
        phases[i].kept = p->kept;
        phases[i].page_moves = p->page_moves;
        phases[i].spilled = p->spilled;
        phases[i].waits = p->waits;
        phases[i].wait_us = p->wait_us;
    }
    pthread_mutex_unlock(&d->mutex);
    return count;
}

size_t ta_usage_blocks(ta_usage *u, int device, ta_usage_moment which,
                       ta_usage_block *blocks, size_t capacity)
{
    device_usage *d = looked_at(u, device);
    size_t count = 0;
    if (!d || which > TA_USAGE_NOW) return 0;
    pthread_mutex_lock(&d->mutex);
    const moment *m = which == TA_USAGE_NOW ? NULL : &d->moments[which];
    for (size_t i = 0; i < d->table.room; i++) {
        const ta_usage_entry *e = &d->table.slots[i];
        if (!e->addr || (m && e->born > m->at)) continue;
        if (count++ < capacity)
            blocks[count - 1] = (ta_usage_block){
                e->addr, e->size, e->step, e->phase, e->module, e->stack, e->category};
    }
    for (size_t i = 0; m && i < m->gone_count; i++) {
        const gone_block *g = &m->gone[i];
        if (count++ < capacity)
            blocks[count - 1] = (ta_usage_block){
                0, g->size, g->step, g->phase, g->module, g->stack, g->category};
    }
    pthread_mutex_unlock(&d->mutex);
    return count;
}

size_t ta_usage_modules(ta_usage *u, int device, ta_usage_module *modules,
                        size_t capacity)
{
    device_usage *d = looked_at(u, device);
    if (!d) return 0;
    pthread_mutex_lock(&d->mutex);
    const bool told = d->modules != NULL;
    for (size_t i = 0; told && i < TA_USAGE_MODULES && i < capacity; i++)
        modules[i] = d->modules[i];
    pthread_mutex_unlock(&d->mutex);
    return told ? TA_USAGE_MODULES : 0;
}

size_t ta_usage_timeline(ta_usage *u, int device, ta_usage_sample *samples,
                         size_t capacity, double *interval_us)
{
    device_usage *d = looked_at(u, device);
    *interval_us = 0;
    if (!d) return 0;
    pthread_mutex_lock(&d->mutex);
    pass(u, d);
    size_t count = d->timeline.count;
    *interval_us = d->timeline.interval_us;
    for (size_t i = 0; i < count && i < capacity; i++)
        samples[i] = d->timeline.samples[i];
    pthread_mutex_unlock(&d->mutex);
    return count;
}

/* --- checking -------------------------------------------------------------------------------- */
static bool check_moment(const device_usage *d, const moment *m, char *text,
                         size_t capacity)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < d->table.room; i++)
        if (d->table.slots[i].addr && d->table.slots[i].born <= m->at)
            sum += d->table.slots[i].size;
    for (size_t i = 0; i < m->gone_count; i++) sum += m->gone[i].size;
    if (sum == m->when.bytes) return true;
    snprintf(text, capacity,
             "usage: a moment of %llu bytes, the sum of its blocks is %llu",
             (unsigned long long)m->when.bytes, (unsigned long long)sum);
    return false;
}

static bool check_device(const ta_usage *u, const device_usage *d, char *text,
                         size_t capacity)
{
    uint64_t live = 0, of[TA_USAGE_PHASES] = {0};
    size_t guesses = 0;
    for (size_t i = 0; i < d->table.room; i++) {
        const ta_usage_entry *e = &d->table.slots[i];
        if (!e->addr) continue;
        live += e->size;
        of[e->phase] += e->size;
        guesses += e->guessed;
    }
    if (guesses != d->guesses) {
        snprintf(text, capacity, "usage: guesses %zu, in the table %zu", d->guesses,
                 guesses);
        return false;
    }
    if (live != d->live || live > d->moments[TA_USAGE_PEAK].when.bytes) {
        snprintf(text, capacity, "usage: live %llu, in the table %llu, peak %llu",
                 (unsigned long long)d->live, (unsigned long long)live,
                 (unsigned long long)d->moments[TA_USAGE_PEAK].when.bytes);
        return false;
    }
    for (uint32_t p = 0; d->phases && p < u->phase_count; p++)
        if (of[p] != d->phases[p].live) {
            snprintf(text, capacity, "usage: phase %u: live %llu, in the table %llu", p,
                     (unsigned long long)d->phases[p].live, (unsigned long long)of[p]);
            return false;
        }
    for (int i = 0; i < TA_USAGE_MOMENTS; i++)
        if (!check_moment(d, &d->moments[i], text, capacity)) return false;
    return ta_timeline_check(&d->timeline, d->live, text, capacity);
}

bool ta_usage_check(ta_usage *u, char *text, size_t capacity)
{
    bool good = true;
    pthread_mutex_lock(&u->names);
    for (int i = 0; good && i < TA_MAX_DEVICES; i++) {
        pthread_mutex_lock(&u->device[i].mutex);
        good = check_device(u, &u->device[i], text, capacity);
        pthread_mutex_unlock(&u->device[i].mutex);
    }
    pthread_mutex_unlock(&u->names);
    return good;
}
