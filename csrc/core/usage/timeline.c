/* timeline.c - live bytes over time; see timeline.h.
 *
 * Called by usage.c alone, under the mutex of the device whose timeline it is.
 *
 *     of every sample, and of now:  live = sum of its categories
 *     events never fall from one sample to the next
 *     highest = the most live bytes of any sample;  now.live <= those of the open sample
 *
 * A block that lives now lived at a sample's moment if it was born by then: so a category
 * that is told later is moved in all samples from the first such one on. */
#include "timeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_INTERVAL_US 100.0

bool ta_timeline_begin(ta_timeline *t)
{
    if (t->samples) return true;
    ta_usage_sample *samples = malloc(TA_USAGE_SAMPLES * sizeof *samples);
    int64_t(*told)[TA_CATEGORIES] = calloc(TA_USAGE_SAMPLES, sizeof *told);
    if (!samples || !told) {
        free(samples);
        free(told);
        return false;
    }
    t->samples = samples;
    t->told = told;
    t->interval_us = FIRST_INTERVAL_US;
    t->count = 1;
    t->highest = t->now.live;
    samples[0] = t->now;
    return true;
}

void ta_timeline_end(ta_timeline *t)
{
    free(t->samples);
    free(t->told);
    memset(t, 0, sizeof *t);
}

uint64_t ta_timeline_bytes(const ta_timeline *t)
{
    return t->samples ? TA_USAGE_SAMPLES * (sizeof *t->samples + sizeof *t->told) : 0;
}

/* Of two that are equally high the later: what came to be known since is in it. */
static void halve(ta_timeline *t)
{
    for (uint32_t i = 0; i < t->count; i += 2) {
        const ta_usage_sample *one = &t->samples[i];
        const uint64_t reserved = one[i + 1 < t->count].reserved;
        ta_usage_sample higher = *one;
        if (i + 1 < t->count && one[1].live >= one[0].live) higher = one[1];
        higher.reserved = reserved > one->reserved ? reserved : one->reserved;
        t->samples[i / 2] = higher;
    }
    t->count = (t->count + 1) / 2;
    t->interval_us *= 2;
}

void ta_timeline_pass(ta_timeline *t, double us)
{
    if (!t->samples) return;
    while (us >= t->interval_us * TA_USAGE_SAMPLES) halve(t);
    uint32_t open = us > 0 ? (uint32_t)(us / t->interval_us) : 0;
    if (open >= TA_USAGE_SAMPLES) open = TA_USAGE_SAMPLES - 1; /* rounding */
    while (t->count <= open) t->samples[t->count++] = t->now;
}

void ta_timeline_reserve(ta_timeline *t, uint64_t bytes)
{
    t->now.reserved = bytes;
    if (!t->samples) return;
    ta_usage_sample *open = &t->samples[t->count - 1];
    if (bytes > open->reserved) open->reserved = bytes;
}

/* --- categories told later --------------------------------------------------------------- */
void ta_timeline_tell(ta_timeline *t, uint64_t born, uint64_t size, ta_category from,
                      ta_category to)
{
    if (!t->samples || from == to) return;
    t->now.of[from] -= size;
    t->now.of[to] += size;
    /* The first sample with event >= born. Mostly a late one: steps that double, from the
     * end, until it is enclosed. */
    uint32_t low = 0, high = t->count;
    for (uint32_t back = 1; back <= t->count; back *= 2) {
        if (t->samples[t->count - back].event < born) {
            low = t->count - back + 1;
            break;
        }
        high = t->count - back;
    }
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (t->samples[middle].event < born)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == t->count) return;
    t->told[low][from] -= (int64_t)size;
    t->told[low][to] += (int64_t)size;
    if (t->untold < t->count - low) t->untold = t->count - low;
}

void ta_timeline_settle(ta_timeline *t)
{
    if (!t->untold) return;
    int64_t sum[TA_CATEGORIES] = {0};
    for (uint32_t i = t->count - t->untold; i < t->count; i++)
        for (int c = 0; c < TA_CATEGORIES; c++) {
            sum[c] += t->told[i][c];
            t->told[i][c] = 0;
            t->samples[i].of[c] += (uint64_t)sum[c];
        }
    t->untold = 0;
}

/* --- checking ------------------------------------------------------------------------------ */
static bool adds_up(const ta_usage_sample *s)
{
    uint64_t sum = 0;
    for (int c = 0; c < TA_CATEGORIES; c++) {
        if (s->of[c] > s->live) return false;
        sum += s->of[c];
    }
    return sum == s->live;
}

bool ta_timeline_check(const ta_timeline *t, uint64_t live, char *text, size_t capacity)
{
    if (!t->samples) return true;
    uint64_t highest = 0;
    bool good = adds_up(&t->now) && t->count >= 1 && t->count <= TA_USAGE_SAMPLES;
    for (uint32_t i = 0; good && i < t->count; i++) {
        const ta_usage_sample *s = &t->samples[i];
        good = adds_up(s) && (!i || s[-1].event <= s->event);
        if (s->live > highest) highest = s->live;
        if (!good)
            snprintf(
                text, capacity,
                "timeline: sample %u of %u: event %llu, its categories do not sum to "
                "%llu",
                i, t->count, (unsigned long long)s->event, (unsigned long long)s->live);
    }
    if (!good) return false;
    const ta_usage_sample *open = &t->samples[t->count - 1];
    if (highest == t->highest && t->now.live == live && live <= open->live) return true;
    snprintf(text, capacity,
             "timeline: highest %llu, of the samples %llu; now %llu, live %llu",
             (unsigned long long)t->highest, (unsigned long long)highest,
             (unsigned long long)t->now.live, (unsigned long long)live);
    return false;
}
