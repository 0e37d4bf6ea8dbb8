/* look.c - reading who used what; see usage.h.
 *
 * Called by the Python binding and by text.c; thread-safe. Each answer is of one moment
 * of one device: its lock is held while it is copied, by the one who asked. */
#define _POSIX_C_SOURCE 200809L
#include "inside.h"

#include <string.h>

static ta_device_usage *looked_at(ta_usage *u, int device)
{
    return ta_usage_child(u) || device < 0 || device >= TA_MAX_DEVICES
               ? NULL
               : &u->device[device];
}

void ta_usage_look(ta_usage *u, int device, ta_usage_counts *counts)
{
    memset(counts, 0, sizeof *counts);
    ta_device_usage *d = looked_at(u, device);
    if (!d) return;
    ta_spin_take(&d->lock);
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
    ta_spin_drop(&d->lock);
}

void ta_usage_reset_peaks(ta_usage *u, int device)
{
    ta_device_usage *d = looked_at(u, device);
    if (!d) return;
    ta_spin_take(&d->lock);
    ta_usage_moment_begins(u, d, &d->moments[TA_USAGE_PEAK], ta_now_us(),
                           ta_usage_phase_now(u), 0);
    for (uint32_t i = 0; d->phases && i < TA_USAGE_PHASES; i++) d->phases[i].peak = 0;
    ta_spin_drop(&d->lock);
}

/* The higher of the rates since the last two marks, where that is four steps or more. */
static double late_a_step(const ta_phase_counts *p, uint32_t step)
{
    double most = 0;
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t steps = step % TA_USAGE_MARK + i * TA_USAGE_MARK;
        if (steps > step) steps = step;
        const double rate = steps ? (double)(p->late - p->late_at[i]) / steps : 0;
        if (steps >= TA_USAGE_MARK / 2 && rate > most) most = rate;
    }
    return most;
}

size_t ta_usage_phases(ta_usage *u, int device, ta_usage_phase *phases, size_t capacity)
{
    ta_device_usage *d = looked_at(u, device);
    if (!d) return 0;
    pthread_mutex_lock(&u->names);
    size_t count = u->phase_count;
    for (size_t i = 0; i < count && i < capacity; i++) {
        phases[i] = (ta_usage_phase){.around = u->phase[i].around,
                                     .entries = u->phase[i].entries,
                                     .us = u->phase[i].us,
                                     .activations = u->activations[i]};
        memcpy(phases[i].name, u->phase[i].name, sizeof phases[i].name);
    }
    pthread_mutex_unlock(&u->names);
    const uint32_t step = atomic_load(&u->step);
    ta_spin_take(&d->lock);
    for (size_t i = 0; d->phases && i < count && i < capacity; i++) {
        const ta_phase_counts *p = &d->phases[i];
        phases[i].allocs = p->allocs;
        phases[i].bytes = p->bytes;
        phases[i].live = p->live;
        phases[i].peak = p->peak;
        phases[i].kept = p->kept;
        phases[i].late = late_a_step(p, step);
        phases[i].page_moves = p->page_moves;
        phases[i].spilled = p->spilled;
        phases[i].waits = p->waits;
        phases[i].wait_us = p->wait_us;
    }
    ta_spin_drop(&d->lock);
    return count;
}

size_t ta_usage_blocks(ta_usage *u, int device, ta_usage_moment which,
                       ta_usage_block *blocks, size_t capacity)
{
    ta_device_usage *d = looked_at(u, device);
    size_t count = 0;
    if (!d || which > TA_USAGE_NOW) return 0;
    ta_spin_take(&d->lock);
    const ta_moment *m = which == TA_USAGE_NOW ? NULL : &d->moments[which];
    for (size_t i = 0; i < d->table.room; i++) {
        const ta_usage_entry *e = &d->table.slots[i];
        if (!e->addr || (m && e->born > m->at)) continue;
        if (count++ < capacity)
            blocks[count - 1] = (ta_usage_block){
                e->addr, e->size, e->step, e->phase, e->module, e->stack, e->category};
    }
    for (size_t i = 0; m && i < m->gone_count; i++) {
        const ta_gone_block *g = &m->gone[i];
        if (count++ < capacity)
            blocks[count - 1] = (ta_usage_block){
                0, g->size, g->step, g->phase, g->module, g->stack, g->category};
    }
    ta_spin_drop(&d->lock);
    return count;
}

size_t ta_usage_modules(ta_usage *u, int device, ta_usage_module *modules,
                        size_t capacity)
{
    ta_device_usage *d = looked_at(u, device);
    if (!d) return 0;
    ta_spin_take(&d->lock);
    const bool told = d->modules != NULL;
    for (size_t i = 0; told && i < TA_USAGE_MODULES && i < capacity; i++)
        modules[i] = d->modules[i];
    ta_spin_drop(&d->lock);
    return told ? TA_USAGE_MODULES : 0;
}

size_t ta_usage_timeline(ta_usage *u, int device, ta_usage_sample *samples,
                         size_t capacity, double *interval_us)
{
    ta_device_usage *d = looked_at(u, device);
    *interval_us = 0;
    if (!d) return 0;
    ta_spin_take(&d->lock);
    ta_usage_pass(u, d, ta_now_us());
    size_t count = d->timeline.count;
    *interval_us = d->timeline.interval_us;
    for (size_t i = 0; i < count && i < capacity; i++)
        samples[i] = d->timeline.samples[i];
    ta_spin_drop(&d->lock);
    return count;
}
