/* plan.c - which requests of a step go to the host: those that hurt least.
 *
 * Called by step.c at marks, by alloc.c and by count.c for every block while steps are being
 * recorded, which begins when a request first went to the host and ends when none did for a
 * while. A step is its sequence of requests, and for each when its block was freed, in
 * requests. Where the next step begins with the same ones, the blocks that live longest over
 * the time when there is no room go to the host at once: what lives long is touched least for
 * its time there, as what forward saves for backward. Else it would be the block that comes
 * last, which is as often the one that is read again and again. The first request that is
 * another than the step before had ends the plan, and the safety net does what it did. */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

#include "count.h"
#include "pages/pages.h"

#define MOST 65536u /* requests of a step; a longer one is not learned from */
#define PATIENCE 8u /* steps with nothing on the host, after which none is recorded */
#define WORK ((uint64_t)1 << 26) /* looks at requests that finding a plan may take */

typedef struct ta_request {
    uint64_t bytes, old_freed; /* bytes of earlier steps' blocks freed just before it */
    uintptr_t stream;
    uint32_t died; /* how many requests there had been; UINT32_MAX: it lives on */
    bool host;
} ta_request;

/* Guarded by the device's `counting`; allocated and replaced under `pages`, too. */
struct ta_plan {
    ta_request *now, *before; /* MOST + 1 each */
    uint32_t count, count_before;
    uint64_t first; /* the serial, as the device counts them, of now[0] */
    uint64_t base;  /* bytes on the device as the step began */
    uint64_t room;  /* bytes that were on the device when it was full */
    uint64_t peak;  /* bytes on the device at the most, if nothing had gone to the host */
    uint64_t tried; /* room for which what was learned was forgotten last */
    uint32_t unused; /* steps since something went to the host */
    bool recording, spilled;
};

static uint64_t on_device(const ta_device *d, uint64_t live)
{
    const uint64_t host = d->stats.spilled.current + d->stats.dropped.current;
    return live > host ? live - host : 0;
}

void ta_plan_spilled(ta_device *d)
{
    ta_plan *p = d->plan;
    if (!p && (p = calloc(1, sizeof *p))) {
        p->now = calloc(MOST + 1, sizeof *p->now);
        p->before = calloc(MOST + 1, sizeof *p->before);
        if (!p->now || !p->before) {
            free(p->now);
            free(p->before);
            free(p);
            return;
        }
    }
    if (!p) return;
    const uint64_t live = ta_count_now(d).live;
    ta_spin_take(&d->counting);
    d->plan = p;
    const uint64_t room = on_device(d, live);
    if (!p->spilled || room < p->room) p->room = room;
    p->spilled = true;
    ta_spin_drop(&d->counting);
}

void ta_plan_alloc(ta_device *d, uint64_t bytes, uintptr_t stream)
{
    ta_plan *p = d->plan;
    if (!p->recording) return;
    if (p->count == MOST) {
        p->recording = false;
        atomic_store_explicit(&d->planned, false, memory_order_relaxed);
        return;
    }
    ta_request *r = &p->now[p->count++];
    r->bytes = bytes;
    r->stream = stream;
    r->died = UINT32_MAX;
    r->host = false;
    p->now[p->count].old_freed = 0;
}

void ta_plan_free(ta_device *d, uint64_t serial, uint64_t bytes)
{
    ta_plan *p = d->plan;
    if (!p->recording) return;
    serial /= TA_MAX_DEVICES;
    if (serial >= p->first)
        p->now[serial - p->first].died = p->count;
    else
        p->now[p->count].old_freed += bytes;
}

bool ta_plan_says(ta_device *d, uint64_t bytes, uintptr_t stream)
{
    bool host = false;
    ta_spin_take(&d->counting);
    const ta_plan *p = d->plan;
    const ta_request *r = &p->before[p->count];
    if (p->count < p->count_before && r->bytes == bytes && r->stream == stream)
        host = r->host;
    else
        atomic_store_explicit(&d->planned, false, memory_order_relaxed);
    ta_spin_drop(&d->counting);
    return host;
}

/* --- finding a plan ---------------------------------------------------------------------- */
/* live[k]: bytes on the device once request k is served, if all were there. */
static uint64_t add_up(const ta_plan *p, int64_t *live)
{
    for (uint32_t k = 0; k < p->count; k++) live[k] = 0;
    for (uint32_t k = 0; k < p->count; k++) {
        const ta_request *r = &p->now[k];
        live[k] += (int64_t)r->bytes - (int64_t)r->old_freed;
        if (r->died < p->count) live[r->died] -= (int64_t)r->bytes;
    }
    int64_t sum = (int64_t)p->base, most = 0;
    for (uint32_t k = 0; k < p->count; k++) {
        live[k] = sum += live[k];
        if (sum > most) most = sum;
    }
    return (uint64_t)most;
}

/* Of the blocks that live at that time and end in the step, the one that lives longest. */
static ta_request *longest(ta_plan *p, uint32_t at, uint64_t least)
{
    ta_request *best = NULL;
    uint32_t best_life = 0;
    for (uint32_t k = 0; k <= at; k++) {
        ta_request *r = &p->now[k];
        if (r->host || r->died == UINT32_MAX || r->died <= at || r->bytes < least)
            continue;
        if (r->died - k > best_life) {
            best = r;
            best_life = r->died - k;
        }
    }
    return best;
}

/* Marks requests until the rest fits; how many. */
static uint32_t choose(ta_plan *p, uint64_t least)
{
    int64_t *live = calloc(p->count + 1, sizeof *live);
    uint32_t chosen = 0;
    if (!live) return 0;
    p->peak = add_up(p, live);
    for (uint64_t work = 0; work < WORK; work += 3 * (uint64_t)p->count) {
        uint32_t peak = 0;
        for (uint32_t k = 1; k < p->count; k++)
            if (live[k] > live[peak]) peak = k;
        if (live[peak] <= (int64_t)p->room) break;
        ta_request *r = longest(p, peak, least);
        if (!r) break;
        r->host = true;
        chosen++;
        for (uint32_t k = (uint32_t)(r - p->now); k < r->died && k < p->count; k++)
            live[k] -= (int64_t)r->bytes;
    }
    free(live);
    return chosen;
}

/* The step that ends had the same requests as the one before it. */
static bool repeated(const ta_plan *p)
{
    if (p->count != p->count_before) return false;
    for (uint32_t k = 0; k < p->count; k++)
        if (p->now[k].bytes != p->before[k].bytes ||
            p->now[k].stream != p->before[k].stream ||
            p->now[k].died != p->before[k].died)
            return false;
    return true;
}

/* The plan's user data are its own while `pages` is held and nothing records. */
bool ta_plan_step(ta_device *d)
{
    ta_plan *p = d->plan;
    if (!p) return false;
    ta_spin_take(&d->counting);
    const bool recorded = p->recording;
    p->recording = false;
    atomic_store_explicit(&d->planned, false, memory_order_relaxed);
    ta_spin_drop(&d->counting);

    uint32_t chosen = 0;
    if (recorded && p->count && p->room) {
        /* The same again, with room as it was: so is the plan. */
        if (repeated(p) && !p->spilled)
            for (uint32_t k = 0; k < p->count; k++)
                chosen += p->now[k].host = p->before[k].host;
        else
            chosen = choose(p, d->page_bytes);
    }
    const bool wanting = chosen || p->spilled;
    p->unused = wanting ? 0 : p->unused + 1;

    const uint64_t live = ta_count_now(d).live;
    ta_spin_take(&d->counting);
    ta_request *was = p->before;
    p->before = p->now;
    p->count_before = recorded ? p->count : 0;
    p->now = was;
    p->count = 0;
    p->now[0].old_freed = 0;
    p->first = d->serial + 1;
    p->base = on_device(d, live);
    p->recording = p->unused < PATIENCE;
    p->spilled = false;
    atomic_store_explicit(&d->planned, chosen && p->recording, memory_order_relaxed);
    ta_spin_drop(&d->counting);
    return wanting;
}

bool ta_plan_sends(const ta_device *d)
{
    return atomic_load_explicit(&d->planned, memory_order_relaxed);
}

/* What pages lose to packing is a sixteenth at most; where it was in vain once, there must be
 * more. */
void ta_plan_room(ta_device *d, uint64_t room)
{
    ta_plan *p = d->plan;
    if (!p || !ta_plan_sends(d) || room < p->peak + p->peak / 16 ||
        room < p->tried + p->tried / 8)
        return;
    p->tried = room;
    ta_plan_forget(d);
}

void ta_plan_forget(ta_device *d)
{
    ta_plan *p = d->plan;
    if (!p) return;
    ta_spin_take(&d->counting);
    p->recording = p->spilled = false;
    p->count_before = 0;
    p->room = 0;
    atomic_store_explicit(&d->planned, false, memory_order_relaxed);
    ta_spin_drop(&d->counting);
}

void ta_plan_destroy(ta_device *d)
{
    if (!d->plan) return;
    ta_plan *p = d->plan;
    free(p->now);
    free(p->before);
    free(p);
    d->plan = NULL;
}
