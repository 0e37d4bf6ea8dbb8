/* categories.c - what blocks are told to be, after they were allocated; see usage.h.
 *
 * Called by the Python binding, at ends of steps and where somebody looks; thread-safe. A
 * block that is told something counts as that for the past too: at the peak, and in the
 * timeline.
 *
 * Guesses: what backward left is taken for gradients, until a telling says what they are.
 *     an entry is guessed: it is a gradient that no telling named, and d->guesses counts it
 *     told_at <= guessed_at <= events */
#define _POSIX_C_SOURCE 200809L
#include "inside.h"

void ta_usage_unused(ta_usage *u, uint64_t bytes)
{
    if (!ta_usage_child(u)) atomic_store(&u->unused, bytes);
}

/* The timeline is settled by the caller. */
static void set_category(const ta_usage *u, ta_device_usage *d, ta_usage_entry *e,
                         ta_category category, bool guessed)
{
    ta_timeline_tell(&d->timeline, e->born, e->size,
                     ta_usage_counts_as(u, e->category, e->phase),
                     ta_usage_counts_as(u, category, e->phase));
    d->guesses = d->guesses + guessed - e->guessed;
    e->category = (uint8_t)category;
    e->guessed = guessed;
}

size_t ta_usage_set_category(ta_usage *u, int device, const uint64_t *addrs, size_t count,
                             ta_category category)
{
    size_t found = 0;
    if (ta_usage_child(u) || device < 0 || device >= TA_MAX_DEVICES) return 0;
    ta_device_usage *d = &u->device[device];
    ta_spin_take(&d->lock);
    for (size_t i = 0; i < count; i++) {
        ta_usage_entry *e = ta_usage_table_find(&d->table, addrs[i]);
        if (!e) continue;
        set_category(u, d, e, category, false);
        found++;
    }
    ta_timeline_settle(&d->timeline);
    ta_spin_drop(&d->lock);
    return found;
}

bool ta_usage_due(ta_usage *u)
{
    bool due = false;
    for (int i = 0; !ta_usage_child(u) && !due && i < ta_usage_devices(u); i++) {
        ta_device_usage *d = ta_usage_used(u, i);
        if (!d) continue;
        due = d->moments[TA_USAGE_PEAK].at > d->told_at;
        ta_spin_drop(&d->lock);
    }
    return due;
}

static void guess(const ta_usage *u, ta_device_usage *d, uint32_t phase)
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
    if (ta_usage_child(u)) return false;
    if (ta_usage_due(u)) return true;
    for (int i = 0; i < ta_usage_devices(u); i++) {
        ta_device_usage *d = ta_usage_used(u, i);
        if (!d) continue;
        guess(u, d, span->phase);
        ta_timeline_settle(&d->timeline);
        ta_spin_drop(&d->lock);
    }
    return false;
}

void ta_usage_told(ta_usage *u)
{
    for (int i = 0; !ta_usage_child(u) && i < ta_usage_devices(u); i++) {
        ta_device_usage *d = ta_usage_used(u, i);
        if (!d) continue;
        for (size_t k = 0; d->guesses && k < d->table.room; k++)
            if (d->table.slots[k].guessed)
                set_category(u, d, &d->table.slots[k], TA_CATEGORY_UNKNOWN, false);
        ta_timeline_settle(&d->timeline);
        d->told_at = d->guessed_at = d->events;
        ta_spin_drop(&d->lock);
    }
}

size_t ta_usage_set_modules(ta_usage *u, int device, const uint64_t *addrs,
                            const uint16_t *modules, size_t count)
{
    size_t found = 0;
    if (ta_usage_child(u) || device < 0 || device >= TA_MAX_DEVICES) return 0;
    ta_device_usage *d = &u->device[device];
    ta_spin_take(&d->lock);
    for (size_t i = 0; i < count; i++) {
        ta_usage_entry *e = ta_usage_table_find(&d->table, addrs[i]);
        if (!e || modules[i] >= TA_USAGE_MODULES) continue;
        e->module = modules[i];
        found++;
    }
    ta_spin_drop(&d->lock);
    return found;
}
