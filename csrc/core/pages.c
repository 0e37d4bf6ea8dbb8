/* pages.c - the order in which a page is looked for, and its way back to the driver.
 *
 * Called by alloc.c, limit.c and allocator.c with the device's `pages` held; arenas are
 * locked one at a time. Invariant, whenever `pages` is free:
 *     stats.pages.current = mapped pages + ready.count
 * A page is looked for in this order: ready; new, while little is reserved beyond the live
 * peak; the longest idle whose stream has passed; idle after a wait, below the cap a short
 * one; that of graph pools that are over, after the whole device; new; pending blocks after a
 * wait; new, after others have given theirs back. New is what the caps, the ledger and the
 * driver grant: a refusal of either leads to the next in the order. */
#include "pages.h"

#include <stdlib.h>

#include "arena.h"
#include "block.h"
#include "calls.h"
#include "chunk.h"
#include "count.h"
#include "epoch.h"
#include "events.h"
#include "plain.h"
#include "pool.h"

#define SLACK 1.02              /* see ta_config */
#define PAID 2                  /* moves that earn a page */
#define EARNED_MOST 0.02        /* of the live peak */
#define EARNED_LEAST 50331648.0 /* bytes that small programs may earn all the same */

/* Pages in hand, not mapped yet. */
typedef struct ta_hand {
    ta_handle *pages;
    size_t count, want, created;
    bool retried; /* idle pages were taken since none could be made */
} ta_hand;

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
    const ta_pool *p = atomic_load_explicit(&arena->pool, memory_order_relaxed);
    return !p || (p->begins == p->releases && p->released_at < d->device_passed);
}

/* Idle pages of the arena can be had now or after a wait: its graph pool, if any, is over. */
static bool will_yield(const ta_arena *arena)
{
    const ta_pool *p = atomic_load_explicit(&arena->pool, memory_order_relaxed);
    return !p || p->begins == p->releases;
}

static bool ready_push(ta_device *d, ta_handle page)
{
    ta_ready *r = &d->ready;
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

static ta_status release_page(ta_device *d, ta_handle page)
{
    ta_status status = ta_call_release(d, page, d->page_bytes);
    if (status) return status;
    ta_count_pages(d, -1, d->page_bytes);
    ta_share_return(d, d->page_bytes);
    return TA_OK;
}

/* Pages taken from idle places stay ours; those made for this request do not, nor does what
 * was charged for it. */
static void put_down(ta_device *d, ta_hand *hand, bool keep_created)
{
    while (hand->count) {
        ta_handle page = hand->pages[--hand->count];
        bool release = !keep_created && hand->created;
        if (release) hand->created--;
        if ((!release || release_page(d, page)) && !ready_push(d, page))
            release_page(d, page);
    }
    /* Those that were ready to others during a wait. */
    while (!keep_created && hand->created && d->ready.count) {
        if (release_page(d, d->ready.pages[d->ready.count - 1])) break;
        d->ready.count--;
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
    ta_spin_take(&d->counting);
    d->live_peak = d->stats.allocated[TA_POOL_ALL].current;
    ta_spin_drop(&d->counting);
    ta_lock_drop(&d->pages);
}

/* --- idle pages ------------------------------------------------------------------------ */
typedef struct ta_oldest {
    ta_arena *arena;
    uint64_t tick;
} ta_oldest;

/* The arena with the longest idle page: of those whose stream has passed, or of those that
 * can be waited for.
 * Looks at every stream once, and marks where it is now. */
static ta_oldest find_oldest(ta_device *d, bool passed, double most_us)
{
    ta_oldest best = {NULL, UINT64_MAX};
    for (ta_arena *a = d->arenas; a; a = a->next) {
        if (!ta_arena_yields(d, a)) continue;
        ta_lock_take(&a->lock);
        bool any = a->oldest != NULL;
        uint64_t oldest = any ? a->oldest->tick : 0, newest = any ? a->newest->tick : 0;
        ta_lock_drop(&a->lock);
        if (!any) continue;
        ta_stream_remark(d, a->stream, newest);
        if (a->stream->passed <= oldest) ta_stream_poll(d, a->stream);
        if ((a->stream->passed > oldest) == passed && oldest < best.tick &&
            (passed || ta_stream_waitable(d, a->stream, oldest, most_us)))
            best = (ta_oldest){a, oldest};
    }
    return best;
}

static size_t steal(ta_device *d, ta_handle *pages, size_t max, ta_status *status)
{
    for (;;) {
        ta_oldest o = find_oldest(d, true, 0);
        *status = TA_OK;
        if (!o.arena) return 0;
        ta_lock_take(&o.arena->lock);
        size_t got = ta_arena_steal(o.arena, max, o.arena->stream->passed, pages, status);
        ta_lock_drop(&o.arena->lock);
        if (got || *status) return got; /* else its owner took it meanwhile */
    }
}

/* Waits for the one thing that makes memory free soonest, of what was freed before a tick.
 * TA_NOT_READY: there is nothing to wait for, or not so shortly. */
static ta_status wait_idle(ta_device *d, uint64_t before, double most_us)
{
    ta_oldest o = find_oldest(d, false, most_us);
    if (o.arena && o.tick < before)
        return ta_stream_wait(d, o.arena->stream, o.tick, most_us);
    /* What had not passed when it was last looked at may have by now. */
    return find_oldest(d, true, 0).arena ? TA_OK : TA_NOT_READY;
}

/* The same for a block freed before `tick` that a recorded stream uses. */
static ta_status wait_pending(ta_device *d, uint64_t tick)
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
    uint64_t held = d->stats.reserved.current,
             used = d->stats.active[TA_POOL_ALL].current;
    ta_spin_drop(&d->counting);
    return held > used ? held - used : 0;
}

static uint64_t live_peak(ta_device *d, uint64_t more)
{
    ta_spin_take(&d->counting);
    uint64_t peak = d->stats.allocated[TA_POOL_ALL].current + more;
    if (peak < d->live_peak) peak = d->live_peak;
    ta_spin_drop(&d->counting);
    return peak;
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
    ta_status status = ta_call_create(d, d->page_bytes, &page);
    if (status) return status;
    ta_share_spend(d, d->page_bytes);
    hand->pages[hand->count++] = page;
    hand->created++;
    ta_count_pages(d, 1, d->page_bytes);
    return TA_OK;
}

/* A page made. Where it must be charged first, as many are as will be wanted, `most` bytes at
 * most; `pages` is dropped meanwhile, so that none may be made: then all is looked at again. */
static ta_status grow(ta_device *d, ta_hand *hand, uint64_t most, ta_lack *lack)
{
    if (ta_share_charged(d) < d->page_bytes) {
        put_down(d, hand, true);
        uint64_t want = hand->want * d->page_bytes;
        ta_status status =
            ta_share_charge(d, d->page_bytes, want < most ? want : most, lack);
        if (status || ta_reserved(d) + d->page_bytes > ta_limit_of(d, NULL))
            return status;
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

/* How many of `need` pages must be new, whatever is waited for. */
static size_t must_make(ta_device *d, size_t need)
{
    size_t have = d->ready.count;
    for (ta_arena *a = d->arenas; a; a = a->next) {
        ta_lock_take(&a->lock);
        have += (will_yield(a) ? a->idle : 0) + a->counts.pending_bytes / d->page_bytes +
                2 * a->counts.pending_blocks;
        ta_lock_drop(&a->lock);
    }
    return need > have ? need - have : 0;
}

/* Pages that the driver can make; only asked where `need` is many, for the call costs as much
 * as a few. */
static size_t driver_room(ta_device *d, size_t need)
{
    uint64_t free_bytes, total;
    const ta_driver *driver = d->allocator->driver;
    if (need < 256 ||
        driver->mem_info(driver->self, d->ordinal, &free_bytes, &total) != TA_OK)
        return SIZE_MAX;
    return free_bytes / d->page_bytes;
}

/* Where the pages cannot be had whatever is waited for, that is better known before everything
 * idle is torn down. Those that must be new are charged. */
static ta_status look_ahead(ta_device *d, size_t need, ta_lack *lack)
{
    for (size_t must; (must = must_make(d, need));) {
        const uint64_t limit = ta_limit_of(d, NULL), held = ta_reserved(d);
        const uint64_t room = limit > held ? (limit - held) / d->page_bytes : 0;
        const uint64_t bytes = must * d->page_bytes;
        if (must > room) return capped(d, bytes - room * d->page_bytes, lack);
        ta_status status = TA_OUT_OF_MEMORY;
        lack->bytes = bytes;
        if (ta_share_charged(d) < bytes)
            status = ta_share_charge(d, bytes, bytes, lack);
        else {
            const size_t driver_has = driver_room(d, need);
            if (must <= driver_has) break;
            lack->bytes -= driver_has * d->page_bytes;
            lack->refusal = (ta_refusal){0};
        }
        if (status && status != TA_OUT_OF_MEMORY) return status;
        if (!status || ta_share_await(d, bytes, lack)) continue;
        if (lack->refusal.short_by) lack->bytes = lack->refusal.short_by;
        return status;
    }
    return TA_OK;
}

static ta_status gather(ta_device *d, ta_hand *hand, uint64_t bytes, ta_lack *lack)
{
    const ta_config *config = &d->allocator->config;
    double slack = config->slack > 0 ? config->slack : SLACK;
    ta_status refused = TA_OK, status;
    while (hand->count < hand->want) {
        if (d->ready.count) {
            hand->pages[hand->count++] = d->ready.pages[--d->ready.count];
            continue;
        }
        uint64_t held = ta_reserved(d), peak = live_peak(d, bytes);
        uint64_t limit = ta_limit_of(d, NULL), after = held + d->page_bytes;
        uint64_t policy = allowed(d, slack, peak);
        bool below = after > held && after <= limit, may_grow = below && !refused;
        if (may_grow && after <= policy) {
            refused = grow(d, hand, (policy < limit ? policy : limit) - held, lack);
            if (refused && refused != TA_OUT_OF_MEMORY) return refused;
            continue;
        }
        size_t got =
            steal(d, hand->pages + hand->count, hand->want - hand->count, &status);
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
        /* Others must be able to use what we hold while we wait. */
        put_down(d, hand, true);
        const double most_us = may_grow ? TA_PATIENCE_US : TA_FOREVER_US;
        status = wait_idle(d, UINT64_MAX, most_us);
        /* What released pools hold is idle too, but for a wait for the whole device. */
        if (status == TA_NOT_READY && ta_pools_over(d) &&
            (!may_grow || ta_streams_pass(d, most_us)))
            status = ta_device_wait(d);
        if (status == TA_NOT_READY && may_grow) {
            refused = grow(d, hand, d->page_bytes, lack);
            if (refused && refused != TA_OUT_OF_MEMORY) return refused;
            continue;
        }
        if (status == TA_NOT_READY) status = wait_pending(d, UINT64_MAX);
        if (!status) continue;
        if (status != TA_NOT_READY) return status;
        uint64_t missing = (hand->want - d->ready.count) * d->page_bytes;
        if (!below) return capped(d, missing, lack);
        if (!ta_share_await(d, missing, lack)) return TA_OUT_OF_MEMORY;
        refused = TA_OK;
    }
    return TA_OK;
}

/* --- mapping ------------------------------------------------------------------------------- */
/* The end of the run of neighbouring slots that starts at `at`. */
static uint32_t run_end(const uint32_t *slots, uint32_t at, uint32_t count)
{
    uint32_t end = at + 1;
    while (end < count && slots[end] == slots[end - 1] + 1) end++;
    return end;
}

/* *stuck: how many pages, from the first on, a failure left mapped. */
static ta_status map_run(ta_device *d, ta_chunk *c, uint32_t slot, uint32_t count,
                         const ta_handle *pages, uint32_t *stuck)
{
    uint64_t at = c->addr + ((uint64_t)slot << c->shift);
    ta_status status = TA_OK;
    uint32_t done = 0;
    *stuck = 0;
    while (done < count && !status) {
        status =
            ta_call_map(d, at + ((uint64_t)done << c->shift), c->page_bytes, pages[done]);
        if (!status) done++;
    }
    if (!status) status = ta_call_access(d, at, (uint64_t)count << c->shift);
    if (status && done && ta_call_unmap(d, at, (uint64_t)done << c->shift)) *stuck = done;
    return status;
}

/* The slots have their pages: the arena may count on them. */
static void settle(ta_arena *arena, ta_chunk *c, const uint32_t *slots, uint32_t count,
                   const ta_handle *pages)
{
    ta_lock_take(&arena->lock);
    ta_count_mapped(arena, count);
    for (uint32_t i = 0, end; i < count; i = end) {
        end = run_end(slots, i, count);
        ta_emit_pages(arena, TA_EVENT_MAP, c, slots[i], slots[end - 1] + 1);
        for (uint32_t k = i; k < end; k++) ta_chunk_set(c, slots[k], pages[k]);
    }
    ta_lock_drop(&arena->lock);
}

static ta_status map_all(ta_device *d, ta_arena *arena, ta_block *block,
                         const uint32_t *slots, ta_hand *hand)
{
    ta_chunk *c = block->chunk;
    uint32_t count = (uint32_t)hand->count, mapped = 0, end, stuck = 0;
    ta_status status = TA_OK;
    for (; mapped < count; mapped = end) {
        end = run_end(slots, mapped, count);
        status = map_run(d, c, slots[mapped], end - mapped, hand->pages + mapped, &stuck);
        if (status) break;
    }
    if (!status) {
        settle(arena, c, slots, count, hand->pages);
        hand->count = 0;
        return TA_OK;
    }
    for (uint32_t i = 0; i < mapped + stuck; i = end) {
        end = run_end(slots, i, i < mapped ? mapped : mapped + stuck);
        uint64_t at = c->addr + ((uint64_t)slots[i] << c->shift);
        if (i < mapped && ta_call_unmap(d, at, (uint64_t)(end - i) << c->shift) == TA_OK)
            continue;
        /* What the driver will not unmap stays where it is, and the place with it. */
        settle(arena, c, slots + i, end - i, hand->pages + i);
        for (uint32_t k = i; k < end; k++) hand->pages[k] = 0;
        block->broken = true;
    }
    size_t left = 0;
    for (size_t i = 0; i < count; i++)
        if (hand->pages[i]) hand->pages[left++] = hand->pages[i];
    hand->count = left;
    return status;
}

void ta_pages_mend(ta_device *d, ta_arena *arena)
{
    ta_lock_take(&arena->lock);
    for (ta_block **at = &arena->broken, *b; (b = *at);) {
        ta_chunk *c = b->chunk;
        uint32_t high = ta_slot_above(c, b->addr + b->size);
        ta_status status = ta_arena_stock(arena) ? TA_OK : TA_NO_HOST_MEMORY;
        for (uint32_t i = ta_slot_below(c, b->addr); i < high && !status; i++)
            if (ta_chunk_has(c, i))
                status =
                    ta_call_access(d, c->addr + ((uint64_t)i << c->shift), c->page_bytes);
        if (status) {
            at = &b->pending_next;
            continue;
        }
        *at = b->pending_next;
        b->broken = false;
        ta_arena_give(arena, b, arena->last_freed);
    }
    ta_lock_drop(&arena->lock);
}

ta_status ta_pages_bring(ta_device *d, ta_arena *arena, ta_block *block, uint32_t need,
                         ta_lack *lack)
{
    ta_chunk *c = block->chunk;
    ta_status status = look_ahead(d, need, lack);
    if (status) {
        ta_share_settle(d);
        return status;
    }
    ta_hand hand = {.pages = calloc(need, sizeof *hand.pages), .want = need};
    uint32_t *slots = calloc(need, sizeof *slots), n = 0;
    status = TA_NO_HOST_MEMORY;
    lack->bytes = (uint64_t)need * d->page_bytes;
    if (hand.pages && slots) {
        uint32_t high = ta_slot_above(c, block->addr + block->size);
        ta_lock_take(
            &arena->lock); /* the missing ones are ours alone, until they have pages */
        for (uint32_t i = ta_slot_below(c, block->addr); i < high; i++)
            if (!ta_chunk_has(c, i)) slots[n++] = i;
        ta_lock_drop(&arena->lock);
        status = gather(d, &hand, block->size, lack);
        /* What is in hand or ready does not lack; others may have left some just now. */
        size_t had = hand.count + d->ready.count;
        lack->bytes = (had < need ? need - had : 1) * d->page_bytes;
        if (lack->refusal.short_by) lack->bytes = lack->refusal.short_by;
        if (!status) status = map_all(d, arena, block, slots, &hand);
        if (!status && hand.retried) ta_count_retry(d);
        if (!status) hand.created = 0;
    }
    put_down(d, &hand, false);
    free(hand.pages);
    free(slots);
    return status;
}

/* --- giving back ------------------------------------------------------------------------- */
ta_status ta_pages_give_back(ta_device *d, uint64_t keep, bool wait, uint64_t *released)
{
    enum { BATCH = 64 };
    ta_handle pages[BATCH];
    uint64_t start = atomic_load(&d->tick) + 1; /* what is freed later may stay */
    ta_status status = TA_OK;
    for (ta_arena *a = d->arenas; a; a = a->next) {
        ta_pages_mend(d, a);
        ta_pending_poll(d, a);
    }
    if (wait && ta_pools_over(d)) {
        status = ta_device_wait(d);
        if (status && status != TA_NOT_READY) return status;
        status = TA_OK;
    }
    if (d->plain) {
        do {
            status = ta_plain_give_back(d, keep, wait, start, released);
            if (status || !wait || ta_reserved(d) <= keep) break;
            status = wait_pending(d, start);
        } while (!status);
        return status == TA_NOT_READY ? TA_OK : status;
    }
    while (ta_reserved(d) > keep) {
        if (d->ready.count) {
            if ((status = release_page(d, d->ready.pages[d->ready.count - 1]))) break;
            d->ready.count--;
            *released += d->page_bytes;
            continue;
        }
        size_t max =
            (size_t)((ta_reserved(d) - keep + d->page_bytes - 1) / d->page_bytes);
        size_t got = steal(d, pages, max < BATCH ? max : BATCH, &status);
        for (size_t i = 0; i < got; i++)
            if (!ready_push(d, pages[i])) release_page(d, pages[i]);
        if (got) continue;
        if (status || !wait) break;
        status = wait_idle(d, start, TA_FOREVER_US);
        if (status == TA_NOT_READY) status = wait_pending(d, start);
        if (status) break;
    }
    return status == TA_NOT_READY ? TA_OK : status;
}

static void unmap_all(ta_device *d, ta_chunk *c)
{
    for (uint32_t i = 0, end; i < c->slots; i = end) {
        end = i + 1;
        if (!ta_chunk_has(c, i)) continue;
        while (end < c->slots && ta_chunk_has(c, end)) end++;
        if (ta_call_unmap(d, c->addr + ((uint64_t)i << c->shift),
                          (uint64_t)(end - i) << c->shift))
            continue;
        for (uint32_t k = i; k < end; k++) release_page(d, ta_chunk_clear(c, k));
    }
}

/* All that the driver gave for the chunk. */
static void give_up(ta_device *d, ta_chunk *c)
{
    const ta_driver *driver = d->allocator->driver;
    if (d->plain) {
        if (!driver->plain_free(driver->self, d->ordinal, c->addr))
            ta_share_return(d, c->size);
        return;
    }
    unmap_all(d, c);
    if (!c->mapped_count) ta_call_unreserve(d, c->addr, c->size);
}

void ta_pages_destroy(ta_device *d, bool reachable)
{
    for (ta_arena *a = d->arenas, *next; a; a = next) {
        next = a->next;
        for (ta_chunk *c = a->chunks, *after; c; c = after) {
            after = c->next;
            for (ta_block *b = c->first; b; b = b->next)
                if (b->state != TA_FREE) ta_uses_free(b);
            if (reachable) give_up(d, c);
            ta_chunk_retire(d, c);
        }
        ta_arena_destroy(a);
        free(a);
    }
    for (ta_arena *a = d->spare_arenas, *next; a; a = next) {
        next = a->next;
        ta_arena_destroy(a);
        free(a);
    }
    while (reachable && d->ready.count) release_page(d, d->ready.pages[--d->ready.count]);
    free(d->ready.pages);
    for (ta_chunk *c = d->spare_chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    d->arenas = d->spare_arenas = NULL;
    d->spare_chunks = NULL;
}
