/* checkpoint.c - which blocks of a graph pool live, and setting that back.
 *
 * CUDA graph trees replay graphs whose outputs live in a pool's memory although nobody
 * allocated them this time: the books say that the memory is free. Before another graph is
 * captured, the pool is told what lives: exactly the blocks that lived when the graph had
 * been captured. No byte moves and no page changes; only the books do.
 *
 * Called by csrc/torch on Python's behalf. `pages` is held throughout: every request for a
 * pool passes there, so meanwhile others can free, and nobody allocates. A free that needs
 * `pages` itself leaves its block held until then: one under way is let through first, and
 * from the first look at an arena on (`restoring`) none begins there. All is looked at before
 * anything is changed, a refusal changes nothing. */
#include <stdlib.h>
#include <time.h>

#include "arena.h"
#include "block.h"
#include "check.h"
#include "pages/chunk.h"
#include "count.h"
#include "device.h"
#include "epoch.h"
#include "events.h"
#include "pool.h"
#include "table.h"

#define PATIENCE_US 2e6 /* far longer than a free takes that has begun */
#define PAUSE_NS 50000  /* as long as a thread needs to wake and take a lock */

/* --- a block for the thread's next request -------------------------------------------- */
static _Thread_local struct {
    ta_device *device; /* NULL: nothing is promised */
    void *ptr;
    size_t size;
} promise;

/* Requests look for a promise only where a pool may be open: so one seems to be. */
static void forget_promise(void)
{
    if (promise.device) atomic_fetch_sub(&promise.device->open_count, 1);
    promise.device = NULL;
}

void ta_pool_promise(ta_allocator *a, int device, void *ptr, size_t size)
{
    ta_device *d = ta_forked(a) ? NULL : ta_device_if_used(a, device);
    forget_promise();
    if (!d || !ptr) return;
    promise.device = d;
    promise.ptr = ptr;
    promise.size = size;
    atomic_fetch_add(&d->open_count, 1);
}

void *ta_pool_promised(const ta_device *d, size_t size)
{
    if (promise.device != d || promise.size != size) return NULL;
    forget_promise();
    return promise.ptr;
}

/* --- what lives ------------------------------------------------------------------------ */
static ta_pool *pool_of(const ta_device *d, ta_pool_id id)
{
    ta_pool *p = d->pools;
    while (p && (p->id.a != id.a || p->id.b != id.b)) p = p->next;
    return p;
}

static ta_pool_block told(const ta_arena *arena, const ta_block *b)
{
    return (ta_pool_block){.addr = b->addr,
                           .size = b->size,
                           .requested = b->requested,
                           .stream = arena->stream->handle};
}

ta_status ta_pool_blocks(ta_allocator *a, int device, ta_pool_id id,
                         ta_pool_block *blocks, size_t capacity, size_t *count)
{
    *count = 0;
    if (ta_forked(a)) return TA_FORKED;
    ta_device *d = ta_device_if_used(a, device);
    if (!d) return TA_OK;
    ta_lock_take(&d->pages);
    const ta_pool *p = pool_of(d, id);
    ta_status status = p && p->users ? TA_BUSY : TA_OK;
    for (ta_arena *arena = p && !status ? d->arenas : NULL; arena; arena = arena->next) {
        if (atomic_load(&arena->pool) != p) continue;
        ta_arena_lock(arena);
        for (const ta_chunk *c = arena->chunks; c; c = c->next)
            for (const ta_block *b = c->first; b; b = b->next) {
                if (b->state != TA_LIVE) continue;
                if (*count < capacity) blocks[*count] = told(arena, b);
                ++*count;
            }
        ta_arena_unlock(arena);
    }
    ta_lock_drop(&d->pages);
    return status;
}

/* --- setting it back --------------------------------------------------------------------- */
typedef struct wanted {
    const ta_pool_block *blocks; /* by address */
    size_t count;
} wanted;

static int by_address(const void *left, const void *right)
{
    const ta_pool_block *l = left, *r = right;
    return (l->addr > r->addr) - (l->addr < r->addr);
}

static bool apart(const wanted *w)
{
    for (size_t i = 0; i < w->count; i++) {
        const ta_pool_block *b = &w->blocks[i];
        if (!b->size || b->size % TA_GRANULE || b->requested > b->size) return false;
        if (i && w->blocks[i - 1].addr + w->blocks[i - 1].size > b->addr) return false;
    }
    return true;
}

static const ta_pool_block *wanted_at(const wanted *w, uint64_t addr)
{
    const ta_pool_block key = {.addr = addr};
    return w->count ? bsearch(&key, w->blocks, w->count, sizeof *w->blocks, by_address)
                    : NULL;
}

/* A live block that is wanted as it is. */
static bool stays(const wanted *w, const ta_block *b)
{
    const ta_pool_block *at = b->state == TA_LIVE ? wanted_at(w, b->addr) : NULL;
    return at && at->size == b->size && at->requested == b->requested;
}

/* The first of the wanted that ends above the address. */
static size_t first_above(const wanted *w, uint64_t addr)
{
    size_t low = 0, high = w->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (w->blocks[middle].addr + w->blocks[middle].size <= addr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* What is on the host serves a block that stays; freed it would leave with its block. */
static bool has_pages(const ta_chunk *c, const wanted *w, const ta_pool_block *b)
{
    const ta_block *now = ta_table_find(&atomic_load(&c->arena)->table, b->addr);
    const bool there = now && stays(w, now);
    const uint32_t last = ta_slot_below(c, b->addr + b->size - 1);
    for (uint32_t i = ta_slot_below(c, b->addr); i <= last; i++)
        if (!ta_chunk_has(c, i) || (!there && ta_slot_is(c, i) != TA_SLOT_DEVICE))
            return false;
    return true;
}

/* Whether the chunk can be set so; *found counts the wanted that lie in it. TA_NOT_READY: a
 * free is under way in it. */
static ta_status judge_chunk(const ta_chunk *c, const wanted *w, size_t *found)
{
    size_t i = first_above(w, c->addr);
    const size_t begin = i;
    for (; i < w->count && w->blocks[i].addr < c->addr + c->size; i++) {
        const ta_pool_block *b = &w->blocks[i];
        if (b->addr < c->addr || b->addr + b->size > c->addr + c->size) return TA_INVALID;
        if (!has_pages(c, w, b)) return TA_INVALID;
    }
    *found += i - begin;
    i = begin;
    for (const ta_block *b = c->first; b; b = b->next) {
        if (b->state == TA_FREE || stays(w, b)) continue;
        if (b->state == TA_HELD && !b->broken) return TA_NOT_READY;
        if (b->state == TA_LIVE && !b->uses) continue; /* it will be freed */
        while (i < w->count && w->blocks[i].addr + w->blocks[i].size <= b->addr) i++;
        const bool covered = i < w->count && w->blocks[i].addr < b->addr + b->size;
        /* Its free would have to wait for a stream, or waits already. */
        if (covered || b->state == TA_LIVE) return TA_BUSY;
    }
    return TA_OK;
}

/* Frees and takes need no host memory afterwards. */
static bool stocked_for(ta_arena *arena, size_t count)
{
    return ta_arena_stock_for(arena, count) && ta_table_reserve_for(&arena->table, count);
}

static ta_status judge(ta_device *d, const ta_pool *p, const wanted *w)
{
    size_t found = 0;
    ta_status status = TA_OK;
    for (ta_arena *arena = d->arenas; arena && !status; arena = arena->next) {
        if (atomic_load(&arena->pool) != p) continue;
        ta_pending_poll(d, arena);
        ta_arena_lock(arena);
        arena->restoring = true;
        if (!stocked_for(arena, w->count)) status = TA_NO_HOST_MEMORY;
        for (const ta_chunk *c = arena->chunks; c && !status; c = c->next)
            status = judge_chunk(c, w, &found);
        ta_arena_unlock(arena);
    }
    return !status && found != w->count ? TA_INVALID : status;
}

static void let_frees_begin(ta_device *d)
{
    for (ta_arena *arena = d->arenas; arena; arena = arena->next) {
        if (!arena->restoring) continue;
        ta_arena_lock(arena);
        arena->restoring = false;
        ta_arena_unlock(arena);
    }
}

static void free_others(ta_arena *arena, const wanted *w, uint64_t tick)
{
    for (ta_chunk *c = arena->chunks; c; c = c->next)
        for (ta_block *b = c->first; b;) {
            if (b->state != TA_LIVE || stays(w, b)) {
                b = b->next;
                continue;
            }
            /* Freed it joins its neighbours; what comes after them stays as it is. */
            ta_block *next = b->next;
            while (next && next->state == TA_FREE) next = next->next;
            ta_emit(arena, TA_EVENT_FREE, b, arena->stream->handle);
            ta_block_end(arena, b, tick);
            if (arena->warm) ta_block_cool(arena);
            b = next;
        }
}

static ta_hole *hole_at(ta_block *b)
{
    while (b->prev && b->prev->state == TA_FREE) b = b->prev;
    return b->hole;
}

static void take_missing(ta_arena *arena, const wanted *w)
{
    for (ta_chunk *c = arena->chunks; c; c = c->next) {
        ta_block *b = c->first;
        for (size_t i = first_above(w, c->addr);
             i < w->count && w->blocks[i].addr < c->addr + c->size; i++) {
            const ta_pool_block *at = &w->blocks[i];
            while (b->addr + b->size <= at->addr) b = b->next;
            if (b->state != TA_FREE) continue; /* it stayed */
            b = ta_arena_take(arena, hole_at(b), at->addr, at->size);
            ta_count_admit(arena, at->size, at->requested);
            ta_block_begin(arena, b, at->requested);
        }
    }
}

static void set(ta_device *d, const ta_pool *p, const wanted *w)
{
    const uint64_t tick = atomic_load(&d->tick);
    for (ta_arena *arena = d->arenas; arena; arena = arena->next) {
        if (atomic_load(&arena->pool) != p) continue;
        /* It is not named, for it may be gone: what is freed waits for the device. */
        if (!arena->stream->lasts) ta_stream_mark_free(d, arena->stream, tick, false);
        ta_count_lock(arena);
        arena->changes++;
        if (arena->warm) ta_block_cool(arena);
        free_others(arena, w, tick);
        take_missing(arena, w);
        ta_count_unlock(arena);
    }
}

/* With `pages` held. */
static ta_status restore(ta_device *d, ta_pool_id id, const wanted *w)
{
    const ta_pool *p = pool_of(d, id);
    if (!p) return w->count ? TA_INVALID : TA_OK;
    if (p->users) return TA_BUSY;
    const ta_status status = judge(d, p, w);
    if (!status) set(d, p, w);
    let_frees_begin(d);
    return status;
}

ta_status ta_pool_restore(ta_allocator *a, int device, ta_pool_id id,
                          const ta_pool_block *blocks, size_t count)
{
    if (ta_forked(a)) return TA_FORKED;
    ta_device *d = ta_device_if_used(a, device);
    if (!d) return count ? TA_INVALID : TA_OK;
    /* Whoever read or wrote these blocks is through with them before the books say that they
     * are others'. Where a capture is open, it is the caller's to have waited. */
    ta_status status = ta_devices_wait(a);
    if (status && status != TA_NOT_READY) return status;
    ta_pool_block *sorted = malloc((count ? count : 1) * sizeof *sorted);
    if (!sorted) return TA_NO_HOST_MEMORY;
    for (size_t i = 0; i < count; i++) sorted[i] = blocks[i];
    qsort(sorted, count, sizeof *sorted, by_address);
    const wanted w = {sorted, count};
    uintptr_t saved[2];
    status = apart(&w) ? ta_enter(d, saved) : TA_INVALID;
    if (!status) {
        ta_lock_take(&d->pages);
        const struct timespec pause = {0, PAUSE_NS};
        const double until = ta_now_us() + PATIENCE_US;
        while ((status = restore(d, id, &w)) == TA_NOT_READY && ta_now_us() < until) {
            ta_lock_drop(&d->pages); /* the free under way waits for it */
            nanosleep(&pause, NULL);
            ta_lock_take(&d->pages);
        }
        if (status == TA_NOT_READY) status = TA_BUSY;
        ta_lock_drop(&d->pages);
        ta_leave(d, saved);
    }
    free(sorted);
    return status;
}
