/* tier.c - slots on the host: the state of each, and host pages for new blocks.
 *
 * Called by pages.c for a request that nothing else is left for, by arena.c as blocks go, and
 * by exchange.c. A host page under a block serves it as any page does. When the last block
 * has left it, it stays mapped, since the stream may still use it, but counts as missing: so a
 * request takes it only after looking for a page of the device, and a loop that spills the
 * same block again finds it there. */
#include "tier.h"

#include <stdlib.h>

#include "bins.h"
#include "calls.h"
#include "pages/chunk.h"
#include "count.h"
#include "epoch.h"
#include "events.h"
#include "pages/gather.h"
#include "pages/pages.h"

bool ta_tier_stock(ta_chunk *c)
{
    if (!c->spilled) c->spilled = calloc(c->slots, sizeof *c->spilled);
    return c->spilled != NULL;
}

/* A slot with blocks on it comes into the state, or leaves it. */
static void count_state(ta_arena *arena, ta_slot_state state, bool up)
{
    ta_device *d = arena->device;
    if (state == TA_SLOT_DEVICE || state == TA_SLOT_COMING) return;
    ta_spin_take(&d->counting);
    ta_gauge *g = state == TA_SLOT_VOID ? &d->stats.dropped : &d->stats.spilled;
    if (up)
        ta_gauge_up(g, arena->page_bytes);
    else
        ta_gauge_down(g, arena->page_bytes);
    ta_spin_drop(&d->counting);
}

void ta_slot_become(ta_arena *arena, ta_chunk *c, uint32_t slot, ta_slot_state state,
                    ta_host_page *page)
{
    ta_spilled *s = &c->spilled[slot];
    if (ta_chunk_has(c, slot)) {
        count_state(arena, s->state, false);
        count_state(arena, state, true);
    }
    if ((s->state != TA_SLOT_DEVICE) != (state != TA_SLOT_DEVICE)) {
        uint32_t by = state != TA_SLOT_DEVICE ? 1u : UINT32_MAX; /* one more, one less */
        c->spilled_count += by;
        arena->spilled += by;
    }
    *s = (ta_spilled){page, state};
}

/* The slot, idle and spilled, has a block on it again. */
static void use(ta_arena *arena, ta_chunk *c, uint32_t slot)
{
    c->mapped[slot / 64] |= (uint64_t)1 << slot % 64;
    c->mapped_count++;
    count_state(arena, c->spilled[slot].state, true);
}

uint32_t ta_tier_leave(ta_arena *arena, ta_chunk *c, uint32_t low, uint32_t high)
{
    uint32_t left = 0;
    for (uint32_t i = low; i < high; i++) {
        if (ta_slot_is(c, i) == TA_SLOT_DEVICE || !ta_chunk_has(c, i)) continue;
        c->mapped[i / 64] &= ~((uint64_t)1 << i % 64);
        c->mapped_count--;
        count_state(arena, c->spilled[i].state, false);
        arena->stray += ta_slot_is(c, i) == TA_SLOT_COMING;
        left++;
    }
    return left;
}

/* A page of the device leaves the idle slot that it was coming to: no work ever saw it. */
static ta_status shed(ta_device *d, ta_arena *arena, ta_chunk *c, uint32_t slot)
{
    const ta_spilled was = c->spilled[slot];
    const ta_handle page = c->pages[slot];
    if (was.state != TA_SLOT_COMING) return TA_OK;
    if (d->adrift) return TA_DRIVER;
    ta_status status = ta_call_unmap(d, ta_slot_addr(c, slot), c->page_bytes);
    if (status) return status;
    c->pages[slot] = 0;
    arena->stray--;
    ta_count_mapped(arena, -1);
    if (!ta_ready_push(d, page, c->page_bytes)) ta_page_release(d, page, c->page_bytes);
    ta_slot_become(arena, c, slot, was.page ? TA_SLOT_AWAY : TA_SLOT_VOID, was.page);
    return TA_OK;
}

/* The idle slot has nothing any more; its pages are kept for others. The arena's lock is
 * held; no queued work touches it. */
static ta_status drop(ta_device *d, ta_arena *arena, ta_chunk *c, uint32_t slot)
{
    ta_status status = shed(d, arena, c, slot);
    if (status) return status;
    if (c->pages[slot]) {
        status = ta_call_unmap(d, ta_slot_addr(c, slot), c->page_bytes);
        if (status) return status;
        c->pages[slot] = 0;
    }
    ta_emit_pages(arena, TA_EVENT_UNMAP, c, slot, slot + 1);
    ta_host_page *page = c->spilled[slot].page;
    ta_slot_become(arena, c, slot, TA_SLOT_DEVICE, NULL);
    ta_host_put(d, page);
    return TA_OK;
}

/* What was freed in the arena is used by no queued work; its lock is not needed. */
static bool passed(ta_device *d, ta_arena *arena)
{
    ta_arena_lock(arena);
    const uint64_t tick = arena->last_freed;
    ta_arena_unlock(arena);
    if (arena->stream->passed > tick) return true;
    ta_stream_remark(d, arena->stream, tick);
    ta_stream_poll(d, arena->stream);
    return arena->stream->passed > tick;
}

/* Its blocks are in host memory from birth on: idle host pages are for the next ones. */
static bool at_home(const ta_arena *arena)
{
    return arena->region && arena->region->config.home == TA_ON_HOST;
}

/* While its stream has not passed the frees, a slot keeps what it has, so that its addresses
 * go to nobody either; but for pages of the device. */
static size_t sweep(ta_device *d, ta_arena *arena, bool hosts)
{
    size_t swept = 0;
    if (!arena->spilled || !ta_arena_yields(d, arena)) return 0;
    const bool all = passed(d, arena);
    ta_arena_lock(arena);
    const bool still = all && arena->stream->passed > arena->last_freed;
    for (ta_chunk *c = arena->chunks; c; c = c->next)
        for (uint32_t i = 0; i < c->slots && c->spilled_count; i++) {
            const ta_slot_state state = ta_slot_is(c, i);
            if (state == TA_SLOT_DEVICE || ta_chunk_has(c, i)) continue;
            if (!still)
                shed(d, arena, c, i);
            else if (hosts || state != TA_SLOT_HOST)
                swept += drop(d, arena, c, i) == TA_OK;
        }
    ta_arena_unlock(arena);
    return swept;
}

size_t ta_tier_sweep(ta_device *d)
{
    size_t swept = 0;
    for (ta_arena *a = d->arenas; a; a = a->next) swept += sweep(d, a, true);
    return swept;
}

void ta_tier_tidy(ta_device *d, bool hosts)
{
    for (ta_arena *a = d->arenas; a; a = a->next) sweep(d, a, hosts && !at_home(a));
}

bool ta_tier_idles(ta_device *d, bool hosts)
{
    bool any = false;
    for (ta_arena *a = d->arenas; a && !any; a = a->next) {
        if (!a->spilled || !ta_arena_yields(d, a)) continue;
        ta_arena_lock(a);
        any = a->stray;
        for (const ta_chunk *c = a->chunks; c && hosts && !at_home(a) && !any;
             c = c->next)
            for (uint32_t i = 0; i < c->slots && c->spilled_count && !any; i++)
                any = ta_slot_is(c, i) == TA_SLOT_HOST && !ta_chunk_has(c, i);
        ta_arena_unlock(a);
    }
    return any;
}

ta_status ta_tier_clear(ta_device *d, ta_arena *arena, ta_chunk *c, uint32_t *slots,
                        uint32_t *count)
{
    const bool free_to_go = ta_arena_yields(d, arena) && passed(d, arena);
    ta_status status = TA_OK;
    uint32_t left = 0;
    ta_arena_lock(arena);
    for (uint32_t i = 0; i < *count; i++) {
        const ta_slot_state state = ta_slot_is(c, slots[i]);
        if (state == TA_SLOT_HOST && !ta_slot_shut(c, slots[i]) &&
            (!free_to_go || arena->stream->passed <= arena->last_freed ||
             drop(d, arena, c, slots[i]))) {
            use(arena, c, slots[i]);
            continue;
        }
        if ((state > TA_SLOT_HOST || ta_slot_shut(c, slots[i])) &&
            !status) /* what moves is the mover's */
            status = arena->moving ? TA_BUSY : drop(d, arena, c, slots[i]);
        slots[left++] = slots[i];
    }
    ta_arena_unlock(arena);
    *count = left;
    return status;
}

ta_place ta_tier_place(const ta_arena *arena, uint64_t size)
{
    enum { HOLES = 64 };
    const uint32_t need = (uint32_t)((size + arena->page_bytes - 1) / arena->page_bytes);
    ta_place best = {NULL, 0, 0};
    uint32_t best_hosts = 0;
    ta_hole *h = ta_bins_fit(&arena->bins, need * arena->page_bytes);
    for (int i = 0; h && i < HOLES; i++, h = ta_bins_next(&arena->bins, h)) {
        const ta_chunk *c = h->first->chunk;
        const uint32_t low = ta_slot_above(c, h->addr),
                       high = ta_slot_below(c, h->addr + h->size);
        uint32_t run = 0,
                 hosts = 0; /* slots without a page up to here; of the last `need` */
        for (uint32_t slot = low; slot < high && h->unmapped >= need; slot++) {
            run = ta_chunk_has(c, slot) ? 0 : run + 1;
            hosts = run ? hosts + (ta_slot_is(c, slot) == TA_SLOT_HOST) : 0;
            if (run > need) hosts -= ta_slot_is(c, slot - need) == TA_SLOT_HOST;
            if (run < need || (best.hole && hosts <= best_hosts)) continue;
            best = (ta_place){h, ta_slot_addr(c, slot + 1 - need), need};
            best_hosts = hosts;
            if (hosts == need) return best;
        }
    }
    return best;
}

/* --- host pages for a new block ---------------------------------------------------------- */
/* A host page for each slot that has none; how many. Others' idle ones are had, too. */
static ta_status take_pages(ta_device *d, const ta_chunk *c, const uint32_t *slots,
                            uint32_t count, ta_host_page **pages, uint32_t *taken)
{
    for (bool swept = false;; swept = true) {
        uint64_t pinned = 0;
        uint32_t fresh = 0;
        for (uint32_t i = 0; i < count; i++)
            fresh += ta_slot_is(c, slots[i]) == TA_SLOT_DEVICE;
        ta_status status = ta_host_take(d, c->page_bytes, fresh, pages, &pinned);
        if (!status) *taken = fresh;
        if (!status || swept || !ta_tier_sweep(d)) return status;
    }
}

static ta_status map_host(ta_device *d, const ta_chunk *c, uint32_t slot,
                          const ta_host_page *page, bool *stuck)
{
    const uint64_t at = ta_slot_addr(c, slot);
    ta_status status = ta_call_map(d, at, c->page_bytes, page->handle);
    *stuck = false;
    if (status) return status;
    status = ta_call_access(d, at, c->page_bytes);
    if (status) *stuck = ta_call_unmap(d, at, c->page_bytes) != TA_OK;
    return status;
}

ta_status ta_tier_bring(ta_device *d, ta_arena *arena, ta_block *block,
                        const uint32_t *slots, uint32_t count)
{
    ta_chunk *c = block->chunk;
    ta_host_page **pages = calloc(count ? count : 1, sizeof(void *));
    uint32_t taken = 0, at = 0, mapped = 0;
    bool stuck = false;
    ta_status status = pages && ta_tier_stock(c) ? TA_OK : TA_NO_HOST_MEMORY;
    for (uint32_t i = 0; i < count && !status; i++) /* what a failure left of a sleep */
        if (ta_slot_is(c, slots[i]) > TA_SLOT_HOST || ta_slot_shut(c, slots[i])) {
            ta_arena_lock(arena);
            status = arena->moving ? TA_BUSY : drop(d, arena, c, slots[i]);
            ta_arena_unlock(arena);
        }
    if (!status) status = take_pages(d, c, slots, count, pages, &taken);
    for (; mapped < count && !status; mapped++)
        if (ta_slot_is(c, slots[mapped]) == TA_SLOT_DEVICE)
            status = map_host(d, c, slots[mapped], pages[at++], &stuck);
    if (status && at && !stuck) at--; /* the one that failed is in hand again */
    /* All of them serve; or those that are mapped go again, where the driver lets them. */
    ta_arena_lock(arena);
    for (uint32_t i = 0, k = 0; i < count && (!status || k < at); i++) {
        const uint32_t slot = slots[i];
        if (ta_slot_is(c, slot) == TA_SLOT_DEVICE) {
            ta_host_page *page = pages[k++];
            const bool last = status && stuck && k == at;
            if (status && !last &&
                ta_call_unmap(d, ta_slot_addr(c, slot), c->page_bytes) == TA_OK) {
                ta_host_put(d, page);
                continue;
            }
            ta_slot_become(arena, c, slot, TA_SLOT_HOST, page);
            c->pages[slot] = page->handle;
            ta_emit_pages(arena, TA_EVENT_MAP, c, slot, slot + 1);
            block->broken |= status != TA_OK;
            use(arena, c, slot);
        } else if (!status)
            use(arena, c, slot);
    }
    ta_arena_unlock(arena);
    if (status)
        while (at < taken) ta_host_put(d, pages[at++]);
    free(pages);
    return status;
}
