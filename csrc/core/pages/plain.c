/* plain.c - fallback where the driver has no virtual memory management.
 *
 * Called by alloc.c and pages.c with the device's `pages` held, which is dropped while the
 * driver frees. A chunk is then one plain
 * allocation whose pages are all there, so nothing moves: best fit, epochs, pools and
 * counts work as ever, and what is given back is a chunk that is one hole. */
#include "plain.h"

#include <stdlib.h>

#include "arena.h"
#include "calls.h"
#include "chunk.h"
#include "count.h"
#include "epoch.h"
#include "guard/guard.h"
#include "pages.h"

#define LARGE_CHUNK ((uint64_t)32 << 20) /* least size of a range for large blocks */

/* A whole chunk that is idle and yields, and the tick it became so; the longest idle. */
typedef struct ta_idle_chunk {
    ta_arena *arena;
    ta_chunk *chunk;
    uint64_t tick;
} ta_idle_chunk;

static uint64_t newest_tick(const ta_chunk *c)
{
    uint64_t tick = 0;
    for (const ta_block *b = c->first; b; b = b->next)
        if (b->tick > tick) tick = b->tick;
    return tick;
}

static ta_idle_chunk oldest_of(ta_arena *a)
{
    ta_idle_chunk oldest = {NULL, NULL, UINT64_MAX};
    ta_arena_lock(a);
    for (ta_chunk *c = a->chunks; c; c = c->next) {
        if (c->first->state != TA_FREE || c->first->hole->size != c->size) continue;
        uint64_t tick = newest_tick(c);
        if (tick < oldest.tick) oldest = (ta_idle_chunk){a, c, tick};
    }
    ta_arena_unlock(a);
    return oldest;
}

/* Of those whose stream has passed; without `passed`, or that can be waited for, so long. */
static ta_idle_chunk find(ta_device *d, bool passed, double most_us)
{
    ta_idle_chunk best = {NULL, NULL, UINT64_MAX};
    for (ta_arena *a = d->arenas; a; a = a->next) {
        if (!ta_arena_yields(d, a)) continue;
        ta_idle_chunk oldest = oldest_of(a);
        if (!oldest.chunk) continue;
        ta_stream_remark(d, a->stream, oldest.tick);
        ta_stream_poll(d, a->stream);
        /* It may pass at any moment: what is to be waited for can be over by now. */
        const bool past = a->stream->passed > oldest.tick;
        if (oldest.tick < best.tick &&
            (past || (!passed && ta_stream_waitable(d, a->stream, oldest.tick, most_us))))
            best = oldest;
    }
    return best;
}

/* The chunk was seen idle; others may have taken it since: looked at again. All of it is held
 * while the driver frees, which waits for the device: `pages` is dropped meanwhile. The bytes
 * count until they are gone, so nobody takes the cap's room too early. */
static ta_status release(ta_device *d, const ta_idle_chunk *idle, uint64_t *released)
{
    const ta_driver *driver = d->allocator->driver;
    ta_arena *arena = idle->arena;
    ta_chunk *c = idle->chunk;
    uint64_t addr = c->addr, size = c->size;
    ta_block *held = NULL;
    ta_arena_lock(arena);
    bool stocked = ta_arena_stock(arena);
    if (stocked && c->first->state == TA_FREE && c->first->hole->size == size &&
        newest_tick(c) <= idle->tick)
        held = ta_arena_take(arena, c->first->hole, addr, size);
    ta_arena_unlock(arena);
    if (!held) return stocked ? TA_OK : TA_NO_HOST_MEMORY;
    ta_lookup_clear(d, c); /* before: another device may get the same addresses at once */
    d->plain_frees++;
    ta_lock_drop(&d->pages);
    ta_status status = d->guard ? ta_guard_unmap(d, c)
                                : driver->plain_free(driver->self, d->ordinal, addr);
    ta_lock_take(&d->pages);
    d->plain_frees--;
    pthread_cond_broadcast(&d->pool_idle);
    /* The driver keeps it: so do we, as it was, but held where no host memory is left to find
     * its blocks by. */
    if (status && !ta_lookup_set(d, c)) return status;
    ta_arena_lock(arena);
    ta_arena_give(arena, held, idle->tick); /* needs no spares: it frees a block */
    if (!status) ta_arena_drop_chunk(arena, c);
    ta_arena_unlock(arena);
    if (status) return status;
    ta_count_pages(d, -(int64_t)c->slots, d->page_bytes);
    ta_count_mapped(arena, -(int64_t)c->slots);
    ta_share_return(d, size);
    ta_chunk_retire(d, c);
    *released += size;
    return TA_OK;
}

ta_status ta_plain_give_back(ta_device *d, uint64_t keep, bool wait, uint64_t before,
                             uint64_t *released)
{
    ta_status status = TA_OK;
    while (!status && ta_reserved(d) > keep) {
        ta_idle_chunk idle = find(d, true, 0);
        if (idle.chunk) {
            status = release(d, &idle, released);
            continue;
        }
        if (wait) idle = find(d, false, TA_FOREVER_US);
        if (wait && d->plain_frees && (!idle.chunk || idle.tick >= before)) {
            /* What others are giving back is about to be there: no reason to refuse. */
            pthread_cond_wait(&d->pool_idle, &d->pages.mutex);
            continue;
        }
        if (!idle.chunk || idle.tick >= before) break;
        status = ta_stream_wait(d, idle.arena->stream, idle.tick, TA_FOREVER_US);
    }
    return status;
}

void ta_plain_sweep(ta_device *d, ta_arena *arena)
{
    uint64_t released = 0;
    ta_status status = TA_OK;
    ta_pending_sweep(d, arena, TA_PATIENCE_US);
    while (!status) {
        ta_idle_chunk idle = find(d, true, 0);
        if (idle.chunk) {
            status = release(d, &idle, &released);
            continue;
        }
        idle = find(d, false, TA_PATIENCE_US);
        if (!idle.chunk) break;
        status = ta_stream_wait(d, idle.arena->stream, idle.tick, TA_PATIENCE_US);
    }
}

static ta_status capped(ta_device *d, uint64_t size, ta_lack *lack)
{
    lack->bytes = size;
    lack->refusal = (ta_refusal){.scope = TA_SCOPE_PROCESS,
                                 .cap = ta_limit_of(d, NULL),
                                 .ours = ta_reserved(d),
                                 .short_by = size};
    return TA_OUT_OF_MEMORY;
}

static bool fits(ta_device *d, uint64_t size)
{
    uint64_t limit = ta_limit_of(d, NULL);
    return size <= limit && ta_reserved(d) <= limit - size;
}

/* Within the cap and the ledger, and counted; what was charged is spent or given back. */
static ta_status take(ta_device *d, uint64_t size, uint64_t bytes, uint64_t *addr,
                      ta_lack *lack)
{
    const ta_driver *driver = d->allocator->driver;
    ta_status status = TA_OK;
    lack->bytes = size;
    if (!fits(d, size)) return capped(d, size, lack);
    if (ta_share_charged(d) < size) status = ta_share_charge(d, size, size, lack);
    if (!status && !fits(d, size)) status = capped(d, size, lack); /* others grew */
    if (!status) {
        status = d->guard ? ta_guard_map(d, size, bytes, addr)
                          : driver->plain_alloc(driver->self, d->ordinal, size, addr);
        if (status) lack->refusal = (ta_refusal){0};
    }
    if (!status) {
        ta_share_spend(d, size);
        ta_count_pages(d, (int64_t)(size / d->page_bytes), d->page_bytes);
    }
    ta_share_settle(d);
    return status;
}

ta_status ta_plain_add(ta_device *d, ta_arena *arena, uint64_t bytes, ta_lack *lack)
{
    const ta_driver *driver = d->allocator->driver;
    const uint64_t least = ta_round_up(bytes, d->page_bytes);
    uint64_t size = least, addr, released = 0;
    if (!d->guard && !arena->small && size < LARGE_CHUNK &&
        LARGE_CHUNK <= ta_limit_of(d, NULL))
        size = LARGE_CHUNK;
    for (bool gave_back = false;; gave_back = true) {
        /* The cap may have been lowered during a wait. */
        const uint64_t limit = ta_limit_of(d, NULL);
        if (size > limit) return capped(d, size, lack);
        ta_status status = take(d, size, bytes, &addr, lack);
        if (!status) break;
        if (status != TA_OUT_OF_MEMORY) return status;
        if (gave_back && size > least)
            size = least;
        else if (gave_back) {
            if (!ta_share_await(d, size, lack)) return status;
        } else {
            const uint64_t keep = ta_reserved(d) > limit - size ? limit - size : 0;
            status = ta_pages_give_back(d, keep, true, &released);
            if (status) return status;
        }
    }
    ta_chunk *c = ta_chunk_create(d, addr, size, d->page_bytes);
    for (uint32_t i = 0; c && i < c->slots; i++) ta_chunk_set(c, i, addr);
    const bool watched = !d->guard || (c && (c->guarded = calloc(1, sizeof *c->guarded)));
    ta_arena_lock(arena);
    bool stocked = c && watched && ta_arena_stock(arena) && ta_lookup_set(d, c);
    if (stocked) ta_arena_add_chunk(arena, c, 0);
    ta_arena_unlock(arena);
    if (!stocked) {
        if (d->guard)
            ta_guard_discard(d, addr, size);
        else
            driver->plain_free(driver->self, d->ordinal, addr);
        if (c) ta_chunk_retire(d, c);
        ta_count_pages(d, -(int64_t)(size / d->page_bytes), d->page_bytes);
        ta_share_return(d, size);
        return TA_NO_HOST_MEMORY;
    }
    ta_count_mapped(arena, c->slots);
    if (released) ta_count_retry(d);
    return TA_OK;
}
