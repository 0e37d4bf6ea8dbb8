/* pages.c - pages under a new block, and their way back to the driver.
 *
 * Called by alloc.c, limit.c and allocator.c with the device's `pages` held; arenas are
 * locked one at a time. Where pages come from is gather.c's to say. */
#include "pages.h"

#include <stdlib.h>

#include "arena.h"
#include "block.h"
#include "calls.h"
#include "chunk.h"
#include "count.h"
#include "epoch.h"
#include "events.h"
#include "gather.h"
#include "spill/host.h"
#include "guard/guard.h"
#include "plain.h"
#include "pool.h"
#include "spill/tier.h"

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
    ta_arena_lock(arena);
    ta_count_mapped(arena, count);
    for (uint32_t i = 0, end; i < count; i = end) {
        end = run_end(slots, i, count);
        ta_emit_pages(arena, TA_EVENT_MAP, c, slots[i], slots[end - 1] + 1);
        for (uint32_t k = i; k < end; k++) ta_chunk_set(c, slots[k], pages[k]);
    }
    ta_arena_unlock(arena);
}

/* The slots get pages of the hand, which may have more. */
static ta_status map_all(ta_device *d, ta_arena *arena, ta_block *block,
                         const uint32_t *slots, uint32_t count, ta_hand *hand)
{
    ta_chunk *c = block->chunk;
    uint32_t mapped = 0, end, stuck = 0;
    ta_status status = TA_OK;
    for (; mapped < count; mapped = end) {
        end = run_end(slots, mapped, count);
        status = map_run(d, c, slots[mapped], end - mapped, hand->pages + mapped, &stuck);
        if (status) break;
    }
    if (!status) {
        settle(arena, c, slots, count, hand->pages);
        hand->count -= count;
        for (size_t i = 0; i < hand->count; i++) hand->pages[i] = hand->pages[count + i];
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
    for (size_t i = 0; i < hand->count; i++)
        if (hand->pages[i]) hand->pages[left++] = hand->pages[i];
    hand->count = left;
    return status;
}

void ta_pages_mend(ta_device *d, ta_arena *arena)
{
    ta_arena_lock(arena);
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
    ta_arena_unlock(arena);
}

/* The slots under the block that lack a page are ours alone, until they have one. */
static uint32_t missing_slots(ta_arena *arena, const ta_block *block, uint32_t *slots,
                              uint32_t most)
{
    const ta_chunk *c = block->chunk;
    uint32_t high = ta_slot_above(c, block->addr + block->size), n = 0;
    ta_arena_lock(arena);
    for (uint32_t i = ta_slot_below(c, block->addr); i < high && n < most; i++)
        if (!ta_chunk_has(c, i)) slots[n++] = i;
    ta_arena_unlock(arena);
    return n;
}

ta_status ta_pages_bring(ta_device *d, ta_arena *arena, ta_block *block, uint32_t need,
                         ta_lack *lack)
{
    const uint64_t bytes = arena->page_bytes;
    ta_status status = ta_look_ahead(d, need, bytes, lack);
    if (status) {
        ta_share_settle(d);
        return status;
    }
    ta_hand hand = {
        .pages = calloc(need, sizeof *hand.pages), .bytes = bytes, .want = need};
    uint32_t *slots = calloc(need, sizeof *slots);
    status = TA_NO_HOST_MEMORY;
    lack->bytes = need * bytes;
    if (hand.pages && slots) {
        uint32_t n = missing_slots(arena, block, slots, need);
        status = ta_gather(d, &hand, block->size, lack);
        /* What is in hand or ready does not lack; others may have left some just now. */
        size_t had = hand.count + ta_ready_of(d, bytes)->count;
        lack->bytes = (had < need ? need - had : 1) * bytes;
        if (lack->refusal.short_by) lack->bytes = lack->refusal.short_by;
        if (!status && arena->spilled)
            status = ta_tier_clear(d, arena, block->chunk, slots, &n);
        if (!status) status = map_all(d, arena, block, slots, n, &hand);
        if (!status && hand.retried) ta_count_retry(d);
        if (!status) hand.created = 0;
    }
    ta_put_down(d, &hand, false);
    free(hand.pages);
    free(slots);
    return status;
}

ta_status ta_pages_bring_host(ta_device *d, ta_arena *arena, ta_block *block)
{
    const ta_chunk *c = block->chunk;
    uint32_t most =
        ta_slot_above(c, block->addr + block->size) - ta_slot_below(c, block->addr);
    uint32_t *slots = calloc(most, sizeof *slots);
    if (!slots) return TA_NO_HOST_MEMORY;
    uint32_t n = missing_slots(arena, block, slots, most);
    ta_status status = ta_tier_bring(d, arena, block, slots, n);
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
            status = ta_wait_pending(d, start);
        } while (!status);
        return status == TA_NOT_READY ? TA_OK : status;
    }
    while (ta_reserved(d) > keep) {
        ta_ready *ready = d->ready;
        while (ready < d->ready + TA_PAGE_SIZES && !ready->count) ready++;
        if (ready < d->ready + TA_PAGE_SIZES) {
            if ((status = ta_ready_release(d, ready))) break;
            *released += ta_ready_bytes(d, ready);
            continue;
        }
        size_t max =
            (size_t)((ta_reserved(d) - keep + d->page_bytes - 1) / d->page_bytes);
        uint64_t size;
        size_t got = ta_steal(d, 0, pages, max < BATCH ? max : BATCH, &size, &status);
        for (size_t i = 0; i < got; i++)
            if (!ta_ready_push(d, pages[i], size)) ta_page_release(d, pages[i], size);
        if (got) continue;
        if (status || !wait) break;
        status = ta_wait_idle(d, 0, start, TA_FOREVER_US);
        if (status == TA_NOT_READY) status = ta_wait_pending(d, start);
        if (status) break;
    }
    return status == TA_NOT_READY ? TA_OK : status;
}

/* Runs of what is mapped, of whatever tier; the pages of the host are the pool's. */
static bool unmap_all(ta_device *d, ta_chunk *c)
{
    bool all = true;
    for (uint32_t i = 0, end; i < c->slots; i = end) {
        end = i + 1;
        if (!c->pages[i]) continue;
        while (end < c->slots && c->pages[end]) end++;
        if (ta_call_unmap(d, ta_slot_addr(c, i), (uint64_t)(end - i) << c->shift)) {
            all = false;
            continue;
        }
        for (uint32_t k = i; k < end; k++)
            if (ta_slot_is(c, k) != TA_SLOT_HOST)
                ta_page_release(d, c->pages[k], c->page_bytes);
    }
    return all;
}

/* All that the driver gave for the chunk. */
static void give_up(ta_device *d, ta_chunk *c)
{
    const ta_driver *driver = d->allocator->driver;
    if (d->plain) {
        const ta_status status =
            d->guard ? ta_guard_unmap(d, c)
                     : driver->plain_free(driver->self, d->ordinal, c->addr);
        if (!status) ta_share_return(d, c->size);
        return;
    }
    if (unmap_all(d, c)) ta_call_unreserve(d, c->addr, c->size);
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
        d->arenas = next; /* what is live is added up over those that are left */
        ta_arena_destroy(a);
        free(a);
    }
    for (ta_arena *a = d->spare_arenas, *next; a; a = next) {
        next = a->next;
        ta_arena_destroy(a);
        free(a);
    }
    for (ta_ready *r = d->ready; r < d->ready + TA_PAGE_SIZES; r++) {
        while (reachable && r->count)
            ta_page_release(d, r->pages[--r->count], ta_ready_bytes(d, r));
        free(r->pages);
    }
    ta_host_destroy(d, reachable);
    for (ta_chunk *c = d->spare_chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    d->spare_arenas = NULL;
    d->spare_chunks = NULL;
}
