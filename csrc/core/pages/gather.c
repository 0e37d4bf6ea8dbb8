/* gather.c - the order in which a page is looked for.
 *
 * Called by pages.c, limit.c and sleep.c with the device's `pages` held; arenas are locked one
 * at a time. Invariant, whenever `pages` is free:
 *     stats.pages.current = mapped pages + ready ones, of every size
 * A page of a size is looked for in this order: ready; new, while little is reserved beyond the
 * live peak; the longest idle whose stream has passed; where none can be made, such pages of
 * other sizes, released; idle after a wait, below the cap a short one; that of graph pools that
 * are over, after the whole device; new; pending blocks after a wait; new, after others have
 * given theirs back. New is what the caps, the ledger and the driver grant: a refusal of either
 * leads to the next in the order. */
#include "gather.h"

#include <stdlib.h>

#include "arena.h"
#include "calls.h"
#include "count.h"
#include "epoch.h"
#include "spill/host.h"
#include "pages.h"
#include "pool.h"
#define SLACK 1.02              /* see ta_config */
#define PAID 2                  /* moves that earn a page */
#define EARNED_MOST 0.02        /* of the live peak */
#define EARNED_LEAST 50331648.0 /* bytes that small programs may earn all the same */

uint64_t ta_limit_of(const ta_device *d, ta_limit_source *source)
{
    uint64_t least = TA_NO_LIMIT;
    ta_limit_source whose = TA_LIMIT_NONE;
    for (int i = TA_LIMIT_API; i < TA_LIMIT_SOURCES; i++)
        if (d->limits[i] < least) {
            least = d->limits[i];
            whose = (ta_limit_source)i;
        }
    if (source) *source = whose;
    return least == TA_NO_LIMIT ? least : least / d->page_bytes * d->page_bytes;
}

bool ta_arena_yields(const ta_device *d, const ta_arena *arena)
{
    if (arena->moving) return false;
    const ta_pool *p = atomic_load_explicit(&arena->pool, memory_order_relaxed);
    return !p || (p->begins == p->releases && p->released_at < d->device_passed);
}

/* Its idle pages stay where they are: copies of ours may read them. */
static bool withheld(const ta_device *d, const ta_arena *arena)
{
    return d->adrift || (arena->moving && !arena->incoming);
}

/* Idle pages of the arena can be had now. */
static bool yields(const ta_device *d, const ta_arena *arena)
{
    return !withheld(d, arena) && (arena->incoming || ta_arena_yields(d, arena));
}

/* The same now or after a wait: its graph pool, if any, is over. */
static bool will_yield(const ta_device *d, const ta_arena *arena)
{
    const ta_pool *p = atomic_load_explicit(&arena->pool, memory_order_relaxed);
    return !withheld(d, arena) && (!p || p->begins == p->releases);
}

bool ta_ready_push(ta_device *d, ta_handle page, uint64_t bytes)
{
    ta_ready *r = ta_ready_of(d, bytes);
    if (r->count == r->capacity) {
        size_t capacity = r->capacity ? r->capacity * 2 : 256;
        ta_handle *more = realloc(r->pages, capacity * sizeof *more);
        if (!more) return false;
        r->pages = more;
        r->capacity = capacity;
    }
    r->pages[r->count++] = page;
    return true;
}

ta_status ta_page_release(ta_device *d, ta_handle page, uint64_t bytes)
{
    ta_status status = ta_call_release(d, page, bytes);
    if (status) return status;
    ta_count_pages(d, -1, bytes);
    ta_share_return(d, bytes);
    return TA_OK;
}

ta_status ta_ready_release(ta_device *d, ta_ready *ready)
{
    ta_status status =
        ta_page_release(d, ready->pages[ready->count - 1], ta_ready_bytes(d, ready));
    if (!status) ready->count--;
    return status;
}

uint64_t ta_ready_held(const ta_device *d)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < TA_PAGE_SIZES; i++)
        bytes += d->ready[i].count * ta_ready_bytes(d, &d->ready[i]);
    return bytes;
}

void ta_put_down(ta_device *d, ta_hand *hand, bool keep_created)
{
    ta_ready *ready = ta_ready_of(d, hand->bytes);
    while (hand->count) {
        ta_handle page = hand->pages[--hand->count];
        bool release = !keep_created && hand->created;
        if (release) hand->created--;
        if ((!release || ta_page_release(d, page, hand->bytes)) &&
            !ta_ready_push(d, page, hand->bytes))
            ta_page_release(d, page, hand->bytes);
    }
    /* Those that were ready to others during a wait. */
    while (!keep_created && hand->created && ready->count) {
        if (ta_ready_release(d, ready)) break;
        hand->created--;
    }
    ta_share_settle(d);
}

void ta_pages_judge(ta_device *d)
{
    atomic_store(&d->over, ta_reserved(d) > ta_limit_of(d, NULL));
}

void ta_pages_forget(ta_device *d)
{
    ta_lock_take(&d->pages);
    d->moves = 0;
    ta_count_forget_live(d);
    ta_lock_drop(&d->pages);
}

/* --- idle pages ------------------------------------------------------------------------ */
typedef struct ta_oldest {
    ta_arena *arena;
    uint64_t tick;
} ta_oldest;

/* The arena with the longest idle page, of `size` bytes or, with 0, of any: of those whose
 * stream has passed, or of those that can be waited for.
 * Looks at every stream once, and marks where it is now. */
static ta_oldest find_oldest(ta_device *d, uint64_t size, bool passed, double most_us)
{
    ta_oldest best = {NULL, UINT64_MAX};
    for (ta_arena *a = d->arenas; a; a = a->next) {
        if (!yields(d, a) || (size && a->page_bytes != size)) continue;
        ta_arena_lock(a);
        bool any = a->oldest != NULL;
        uint64_t oldest = any ? a->oldest->tick : 0, newest = any ? a->newest->tick : 0;
        ta_arena_unlock(a);
        if (!any) continue;
        ta_stream_remark(d, a->stream, newest);
        if (a->stream->passed <= oldest) ta_stream_poll(d, a->stream);
        if ((a->stream->passed > oldest) == passed && oldest < best.tick &&
            (passed || ta_stream_waitable(d, a->stream, oldest, most_us)))
            best = (ta_oldest){a, oldest};
    }
    return best;
}

size_t ta_steal(ta_device *d, uint64_t size, ta_handle *pages, size_t max,
                uint64_t *got_size, ta_status *status)
{
    for (;;) {
        ta_oldest o = find_oldest(d, size, true, 0);
        *status = TA_OK;
        if (!o.arena) return 0;
        ta_arena_lock(o.arena);
        size_t got = ta_arena_steal(o.arena, max, o.arena->stream->passed, pages, status);
        ta_arena_unlock(o.arena);
        *got_size = o.arena->page_bytes;
        if (got || *status) return got; /* else its owner took it meanwhile */
    }
}

ta_status ta_wait_idle(ta_device *d, uint64_t size, uint64_t before, double most_us)
{
    ta_oldest o = find_oldest(d, size, false, most_us);
    if (o.arena && o.tick < before)
        return ta_stream_wait(d, o.arena->stream, o.tick, most_us);
    /* What had not passed when it was last looked at may have by now. */
    return find_oldest(d, size, true, 0).arena ? TA_OK : TA_NOT_READY;
}

ta_status ta_wait_pending(ta_device *d, uint64_t tick)
{
    size_t settled = 0;
    for (ta_arena *a = d->arenas; a; a = a->next) settled += ta_pending_poll(d, a);
    ta_status status = settled ? TA_OK : TA_NOT_READY;
    for (ta_arena *a = d->arenas; a && status == TA_NOT_READY; a = a->next) {
        status = ta_pending_wait(d, a, tick);
        if (!status) ta_pending_poll(d, a); /* only now may `a` have left the list */
    }
    return status;
}

/* --- new pages --------------------------------------------------------------------------- */
uint64_t ta_reserved(ta_device *d)
{
    ta_spin_take(&d->counting);
    uint64_t bytes = d->stats.reserved.current;
    ta_spin_drop(&d->counting);
    return bytes;
}

uint64_t ta_unused(ta_device *d)
{
    ta_spin_take(&d->counting);
    uint64_t held = d->stats.reserved.current + d->stats.spilled.current +
                    d->stats.dropped.current,
             used = d->stats.pending.current;
    ta_spin_drop(&d->counting);
    /* An arena's lock may be held: so nearly of one moment, which is enough for others. */
    for (const ta_arena *a = d->arenas; a; a = a->next)
        used += atomic_load_explicit(&a->counts.live_bytes, memory_order_relaxed);
    return held > used ? held - used : 0;
}

static uint64_t live_peak(ta_device *d, uint64_t more)
{
    const uint64_t now = ta_count_now(d).live + more, before = ta_count_live_peak(d);
    return now < before ? before : now;
}

/* What may be reserved before idle pages are taken. A move recurs, a page is bought once: so
 * every PAID moves earn the device one page beyond the policy's, up to a bound. Thus a loop
 * that repeats itself soon moves nothing, and one that never does wastes little. */
static uint64_t allowed(ta_device *d, double slack, uint64_t peak)
{
    double bound = (double)peak * EARNED_MOST;
    if (bound < EARNED_LEAST) bound = EARNED_LEAST;
    uint64_t pages = d->moves / PAID;
    double earned = (double)(pages * d->page_bytes);
    return (uint64_t)((double)peak * slack + (earned < bound ? earned : bound));
}

static ta_status make_page(ta_device *d, ta_hand *hand)
{
    ta_handle page;
    ta_status status = ta_call_create(d, TA_TIER_DEVICE, hand->bytes, &page);
    if (status) return status;
    ta_share_spend(d, hand->bytes);
    hand->pages[hand->count++] = page;
    hand->created++;
    ta_count_pages(d, 1, hand->bytes);
    return TA_OK;
}

/* A page made. Where it must be charged first, as many are as will be wanted, `most` bytes at
 * most; `pages` is dropped meanwhile, so that none may be made: then all is looked at again. */
static ta_status grow(ta_device *d, ta_hand *hand, uint64_t most, ta_lack *lack)
{
    if (ta_share_charged(d) < hand->bytes) {
        ta_put_down(d, hand, true);
        uint64_t want = hand->want * hand->bytes;
        ta_status status =
            ta_share_charge(d, hand->bytes, want < most ? want : most, lack);
        if (status || ta_reserved(d) + hand->bytes > ta_limit_of(d, NULL)) return status;
    }
    ta_status status = make_page(d, hand);
    if (status == TA_OUT_OF_MEMORY) lack->refusal = (ta_refusal){0};
    return status;
}

/* The process's own cap refuses. */
static ta_status capped(ta_device *d, uint64_t bytes, ta_lack *lack)
{
    lack->bytes = bytes;
    lack->refusal = (ta_refusal){.scope = TA_SCOPE_PROCESS,
                                 .cap = ta_limit_of(d, NULL),
                                 .ours = ta_reserved(d),
                                 .short_by = bytes};
    return TA_OUT_OF_MEMORY;
}

/* How many of `need` pages of `size` must be new, whatever is waited for and released. */
static size_t must_make(ta_device *d, size_t need, uint64_t size)
{
    size_t have = ta_ready_held(d) / size;
    for (ta_arena *a = d->arenas; a; a = a->next) {
        ta_arena_lock(a);
        have += ((will_yield(d, a) ? a->idle : 0) + 2 * a->counts.pending_blocks) *
                    a->page_bytes / size +
                a->counts.pending_bytes / size;
        ta_arena_unlock(a);
    }
    return need > have ? need - have : 0;
}

/* Pages that the driver can make; only asked where `need` is many, for the call costs as much
 * as a few. */
static size_t driver_room(ta_device *d, size_t need, uint64_t size)
{
    uint64_t free_bytes, total;
    const ta_driver *driver = d->allocator->driver;
    if (need < 256 ||
        driver->mem_info(driver->self, d->ordinal, &free_bytes, &total) != TA_OK)
        return SIZE_MAX;
    return free_bytes / size;
}

ta_status ta_look_ahead(ta_device *d, size_t need, uint64_t size, ta_lack *lack)
{
    for (size_t must; (must = must_make(d, need, size));) {
        const uint64_t limit = ta_limit_of(d, NULL), held = ta_reserved(d);
        const uint64_t room = limit > held ? (limit - held) / size : 0;
        const uint64_t bytes = must * size;
        if (must > room) return capped(d, bytes - room * size, lack);
        ta_status status = TA_OUT_OF_MEMORY;
        lack->bytes = bytes;
        if (ta_share_charged(d) < bytes)
            status = ta_share_charge(d, bytes, bytes, lack);
        else {
            const size_t driver_has = driver_room(d, need, size);
            if (must <= driver_has) break;
            lack->bytes -= driver_has * size;
            lack->refusal = (ta_refusal){0};
        }
        if (status && status != TA_OUT_OF_MEMORY) return status;
        if (!status || ta_share_await(d, bytes, lack)) continue;
        if (lack->refusal.short_by) lack->bytes = lack->refusal.short_by;
        return status;
    }
    return TA_OK;
}

/* Pages of other sizes that are ready, or idle and passed, go back to the driver until `bytes`
 * did; how many did. */
static uint64_t release_others(ta_device *d, uint64_t size, uint64_t bytes)
{
    uint64_t released = 0;
    for (unsigned i = 0; i < TA_PAGE_SIZES; i++) {
        ta_ready *r = &d->ready[i];
        while (ta_ready_bytes(d, r) != size && r->count && released < bytes) {
            if (ta_ready_release(d, r)) return released;
            released += ta_ready_bytes(d, r);
        }
    }
    for (unsigned i = 0; i < TA_PAGE_SIZES; i++) {
        ta_ready *r = &d->ready[i];
        uint64_t other = ta_ready_bytes(d, r), got_size;
        ta_status status;
        ta_handle page;
        while (other != size && d->sizes >> i & 1 && released < bytes &&
               ta_steal(d, other, &page, 1, &got_size, &status)) {
            if (ta_page_release(d, page, other)) {
                if (!ta_ready_push(d, page, other)) ta_page_release(d, page, other);
                return released;
            }
            released += other;
        }
    }
    return released;
}

ta_status ta_gather(ta_device *d, ta_hand *hand, uint64_t bytes, ta_lack *lack)
{
    const ta_config *config = &d->allocator->config;
    double slack = config->slack > 0 ? config->slack : SLACK;
    ta_ready *ready = ta_ready_of(d, hand->bytes);
    ta_status refused = TA_OK, status;
    uint64_t size;
    if (d->adrift && !hand->modest && !ta_device_wait(d)) ta_host_settle(d);
    while (hand->count < hand->want) {
        if (ready->count) {
            hand->pages[hand->count++] = ready->pages[--ready->count];
            continue;
        }
        uint64_t held = ta_reserved(d), peak = live_peak(d, bytes);
        uint64_t limit = ta_limit_of(d, NULL), after = held + hand->bytes;
        uint64_t policy = allowed(d, slack, peak);
        bool below = after > held && after <= limit, may_grow = below && !refused;
        if (may_grow && after <= policy) {
            refused = grow(d, hand, (policy < limit ? policy : limit) - held, lack);
            if (refused && refused != TA_OUT_OF_MEMORY) return refused;
            continue;
        }
        size_t got = ta_steal(d, hand->bytes, hand->pages + hand->count,
                              hand->want - hand->count, &size, &status);
        if (got) {
            hand->retried |= !may_grow;
            hand->count += got;
            d->moves += got;
            ta_spin_take(&d->counting);
            d->stats.page_moves += got;
            ta_spin_drop(&d->counting);
            continue;
        }
        if (status) return status;
        if (!may_grow &&
            release_others(d, hand->bytes, (hand->want - hand->count) * hand->bytes)) {
            hand->retried = true;
            refused = TA_OK;
            continue;
        }
        if (hand->modest && !may_grow) return TA_OUT_OF_MEMORY;
        if (hand->modest) {
            refused = grow(d, hand, hand->bytes, lack);
            if (refused && refused != TA_OUT_OF_MEMORY) return refused;
            continue;
        }
        /* Others must be able to use what we hold while we wait. */
        ta_put_down(d, hand, true);
        const double most_us = may_grow ? TA_PATIENCE_US : TA_FOREVER_US;
        status = ta_wait_idle(d, may_grow ? hand->bytes : 0, UINT64_MAX, most_us);
        /* What released pools hold is idle too, but for a wait for the whole device. */
        if (status == TA_NOT_READY && ta_pools_over(d) &&
            (!may_grow || ta_streams_pass(d, most_us)))
            status = ta_device_wait(d);
        if (status == TA_NOT_READY && may_grow) {
            refused = grow(d, hand, hand->bytes, lack);
            if (refused && refused != TA_OUT_OF_MEMORY) return refused;
            continue;
        }
        if (status == TA_NOT_READY) status = ta_wait_pending(d, UINT64_MAX);
        if (!status) continue;
        if (status != TA_NOT_READY) return status;
        uint64_t missing = (hand->want - ready->count) * hand->bytes;
        if (!below) return capped(d, missing, lack);
        if (!ta_share_await(d, missing, lack)) return TA_OUT_OF_MEMORY;
        refused = TA_OK;
    }
    return TA_OK;
}
