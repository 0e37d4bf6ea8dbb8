/* check.c - the invariants of inside.h; both sides of the first that fails. */
#include "inside.h"

#include <stdio.h>

static bool check_moment(const ta_device_usage *d, const ta_moment *m, char *text,
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

static bool check_device(const ta_usage *u, const ta_device_usage *d, char *text,
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
    uint64_t latest = 0;
    for (int i = 0; i < TA_USAGE_MOMENTS; i++)
        if (d->moments[i].at > latest) latest = d->moments[i].at;
    if (latest != d->latest) {
        snprintf(text, capacity, "usage: latest moment %llu, of the moments %llu",
                 (unsigned long long)d->latest, (unsigned long long)latest);
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
        ta_spin_take(&u->device[i].lock);
        good = check_device(u, &u->device[i], text, capacity);
        ta_spin_drop(&u->device[i].lock);
    }
    pthread_mutex_unlock(&u->names);
    return good;
}
