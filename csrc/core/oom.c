/* oom.c - the diagnosis of a refusal: gathered under the device's `pages`, told later. */
#include "oom.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "pages/gather.h"
#include "count.h"
#include "pages/pages.h"

uint64_t ta_arena_partly_used(const ta_arena *arena)
{
    uint64_t mapped = 0;
    for (const ta_chunk *c = arena->chunks; c; c = c->next)
        mapped += (uint64_t)c->mapped_count << c->shift;
    uint64_t used = arena->counts.live_bytes + arena->counts.pending_bytes +
                    arena->idle * arena->page_bytes;
    return mapped > used ? mapped - used : 0; /* less where a place is held just now */
}

uint64_t ta_partly_used(ta_device *d)
{
    uint64_t partly = 0;
    for (ta_arena *a = d->arenas; a; a = a->next) {
        ta_arena_lock(a);
        partly += ta_arena_partly_used(a);
        ta_arena_unlock(a);
    }
    ta_spin_take(&d->counting);
    if (partly > d->stats.largest_idle_partly_used)
        d->stats.largest_idle_partly_used = partly;
    ta_spin_drop(&d->counting);
    return partly;
}

static void keep_largest(ta_oom *oom, uint64_t size, const ta_arena *arena)
{
    enum { COUNT = sizeof oom->largest / sizeof *oom->largest };
    if (size <= oom->largest[COUNT - 1]) return;
    int at = COUNT - 1;
    for (; at > 0 && oom->largest[at - 1] < size; at--) {
        oom->largest[at] = oom->largest[at - 1];
        oom->largest_stream[at] = oom->largest_stream[at - 1];
        oom->largest_pooled[at] = oom->largest_pooled[at - 1];
    }
    oom->largest[at] = size;
    oom->largest_stream[at] = arena->stream->handle;
    oom->largest_pooled[at] = atomic_load(&arena->pool) != NULL;
}

void ta_oom_fill(ta_device *d, ta_stream stream, uint64_t requested, const ta_lack *lack,
                 ta_status status, ta_oom *oom)
{
    const ta_driver *driver = d->allocator->driver;
    ta_limit_source source;
    uintptr_t saved[2];
    memset(oom, 0, sizeof *oom);
    oom->status = status;
    oom->device = d->ordinal;
    oom->stream = stream;
    oom->requested = requested;
    oom->short_by = lack->bytes;
    oom->refusal = lack->refusal;
    oom->page_bytes = d->page_bytes;
    oom->host_budget = atomic_load(&d->allocator->host_budget);
    oom->host_held = atomic_load(&d->allocator->host_held);
    oom->limit = ta_limit_of(d, &source);
    oom->limit_source = (int)source;
    oom->device_total = d->total;
    oom->can_spill = !d->plain && driver->copy;
    if (driver->enter(driver->self, d->ordinal, saved) == TA_OK) {
        uint64_t total;
        if (driver->mem_info(driver->self, d->ordinal, &oom->device_free, &total))
            oom->device_free = 0;
        driver->leave(driver->self, d->ordinal, saved);
    }
    const ta_now now = ta_count_now(d);
    oom->live = now.live;
    oom->pending = now.active - now.live;
    ta_spin_take(&d->counting);
    oom->reserved = d->stats.reserved.current;
    oom->spilled = d->stats.spilled.current;
    ta_spin_drop(&d->counting);
    oom->idle = ta_ready_held(d);
    for (ta_arena *a = d->arenas; a; a = a->next) {
        ta_arena_lock(a);
        uint64_t idle = a->idle * a->page_bytes;
        oom->idle += idle;
        if (!ta_arena_yields(d, a)) oom->idle_in_graphs += idle;
        oom->partly_used += ta_arena_partly_used(a);
        for (size_t i = 0; a->table.slots && i <= a->table.mask; i++) {
            const ta_block *b = a->table.slots[i];
            if (b && b->state == TA_LIVE) keep_largest(oom, b->size, a);
        }
        ta_arena_unlock(a);
    }
}

/* --- the text --------------------------------------------------------------------------- */
typedef struct ta_text {
    char *text;
    size_t capacity;
    int length;
} ta_text;

__attribute__((format(printf, 2, 3))) static void add(ta_text *t, const char *format, ...)
{
    va_list arguments;
    size_t used = (size_t)t->length < t->capacity ? (size_t)t->length : t->capacity;
    va_start(arguments, format);
    int n =
        vsnprintf(t->text ? t->text + used : NULL, t->capacity - used, format, arguments);
    va_end(arguments);
    if (n > 0) t->length += n;
}

static void add_size(ta_text *t, const char *before, uint64_t bytes, const char *after)
{
    static const char *const unit[] = {"KiB", "MiB", "GiB"};
    double n = (double)bytes / 1024;
    int i = 0;
    for (; n >= 1024 && i < 2; i++) n /= 1024;
    if (bytes < 1024)
        add(t, "%s%llu bytes%s", before, (unsigned long long)bytes, after);
    else
        add(t, "%s%.2f %s%s", before, n, unit[i], after);
}

/* Of whom, too: the stream where there are several, and that it is a graph pool's. */
static void add_largest(ta_text *t, const ta_oom *oom)
{
    enum { SHOWN = 5 };
    bool several = false;
    if (!oom->largest[0]) return;
    for (int i = 1; i < SHOWN && oom->largest[i]; i++)
        several |= oom->largest_stream[i] != oom->largest_stream[0];
    for (int i = 0; i < SHOWN && oom->largest[i]; i++) {
        const unsigned long long stream = (uintptr_t)oom->largest_stream[i];
        add_size(t, i ? ", " : " Largest live blocks: ", oom->largest[i], "");
        if (several) add(t, " (stream %#llx", stream);
        if (oom->largest_pooled[i]) add(t, several ? ", graph pool" : " (graph pool");
        if (several || oom->largest_pooled[i]) add(t, ")");
    }
    add(t, ".");
}

static const char *const source_text[TA_LIMIT_SOURCES] = {
    "", "set by enable() or set_limit()", "set by TORCHARENA_LIMIT or --limit",
    "set by torch.cuda.set_per_process_memory_fraction()", "set by the administrator"};

/* The cap that refused, or else the process's own. */
static void add_cap(ta_text *t, const ta_oom *oom)
{
    const ta_refusal *no = &oom->refusal;
    const int source = oom->limit_source;
    if (no->scope == TA_SCOPE_LEDGER)
        add(t,
            "Growth is refused while the ledger of the GPU's shared cap cannot be used "
            "(%s). ",
            no->why);
    else if (no->scope == TA_SCOPE_DEVICE || no->scope == TA_SCOPE_TENANT) {
        const bool tenant = no->scope == TA_SCOPE_TENANT;
        add_size(t, "", no->cap, " allowed (the cap that the processes ");
        if (tenant) add(t, "of tenant '%s' ", no->why);
        if (no->processes)
            add(t, "on this GPU share, of which %d other%s ", no->processes,
                no->processes == 1 ? " holds" : "s hold");
        else
            add(t, "on this GPU share, of which nobody else holds any, ");
        if (no->processes) add_size(t, "", no->others, " and ");
        add_size(t, "this one ", no->ours, "; CUDA contexts come on top); ");
    } else if (oom->limit != TA_NO_LIMIT) {
        add_size(t, "", oom->limit, " allowed");
        add(t, " (the cap %s, for this process; the CUDA context comes on top); ",
            source > 0 && source < TA_LIMIT_SOURCES ? source_text[source] : "");
    }
}

/* What would help. */
static void add_advice(ta_text *t, const ta_oom *oom)
{
    const ta_refusal *no = &oom->refusal;
    const bool shared = no->scope == TA_SCOPE_DEVICE || no->scope == TA_SCOPE_TENANT;
    const uint64_t held = oom->device_free + oom->reserved;
    if (shared && no->unused)
        add_size(t, " The others were asked for the ", no->unused,
                 " that they hold unused, and have not given enough of it.");
    if (shared && oom->device_free > oom->short_by)
        add(t, " The device itself has room: a higher shared cap would do.");
    else if (!shared && oom->limit != TA_NO_LIMIT && oom->device_free > oom->short_by)
        add(t, " The device itself has room: a higher cap would do.");
    else if (oom->limit == TA_NO_LIMIT && oom->device_total > held)
        add_size(t, " ", oom->device_total - held,
                 " of the device is held by CUDA contexts and other processes.");
    if (oom->can_spill && !oom->host_budget)
        add(t,
            " Spill is off: enable(spill=) or TORCHARENA_SPILL would put what does not "
            "fit into host memory, slower.");
}

int ta_oom_text(const ta_oom *oom, char *text, size_t capacity)
{
    ta_text t = {text, capacity, 0};
    if (capacity) *text = 0;
    add_size(&t, "CUDA out of memory. Tried to allocate ", oom->requested, ". ");
    add(&t, "GPU %d has a total capacity of ", oom->device);
    add_size(&t, "", oom->device_total, " of which ");
    add_size(&t, "", oom->device_free, " is free. ");
    if (oom->status != TA_OUT_OF_MEMORY) {
        add(&t, "torcharena could not serve the request: %s.",
            ta_status_text(oom->status));
        return t.length;
    }
    add_cap(&t, oom);
    if (oom->reserved) {
        add_size(&t, "Of the ", oom->reserved, " reserved, ");
        add_size(&t, "", oom->live, " is in live blocks");
    } else
        add(&t, "Nothing is reserved");
    if (oom->pending)
        add_size(&t, ", ", oom->pending, " was freed while other streams use it");
    if (oom->partly_used) {
        add_size(&t, ", ", oom->partly_used, " is lost in partly used pages (each of ");
        add_size(&t, "", oom->page_bytes, ", free in part beside live blocks)");
    }
    if (oom->idle_in_graphs)
        add_size(&t, ", ", oom->idle_in_graphs, " is idle but belongs to CUDA graphs");
    if (oom->idle > oom->idle_in_graphs)
        add_size(&t, ", ", oom->idle - oom->idle_in_graphs, " is idle and too little");
    add_size(&t, ". The request is short by ", oom->short_by, ".");
    if (oom->host_budget) {
        add_size(&t, " Spill is on: ", oom->spilled, " of it is in host memory, where ");
        add_size(&t, "", oom->host_held, " of ");
        add_size(&t, "", oom->host_budget, " allowed is pinned.");
    }
    add_largest(&t, oom);
    add_advice(&t, oom);
    return t.length;
}
