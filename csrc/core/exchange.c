/* exchange.c - live pages change places, at the same addresses.
 *
 * Called by sleep.c and step.c, the only ones who may: inside a user's call, after all work
 * of the device. Copies run on a stream of our own between a slot's address and the host
 * page's own, so nothing is mapped twice for them; `pages` is dropped while they are waited
 * for. A block may be freed meanwhile: then its slot is left as it is and swept later. At every
 * moment the bytes of a live block are whole in its slot or in its host page:
 *     to the device   HOST -unmap-> AWAY -map-> COMING -copied-> DEVICE
 *     to the host     DEVICE -copied, unmap-> AWAY -map-> HOST
 * and a failure walks back as far as the driver lets it; the next attempt goes on from
 * wherever that was. */
#include "exchange.h"

#include <stdlib.h>

#include "arena.h"
#include "calls.h"
#include "chunk.h"
#include "clock.h"
#include "count.h"
#include "tier.h"

#define RUN 16u /* pages for which an arena's lock is held at once */
#define BATCH                                                                            \
    ((uint64_t)256 << 20) /* bytes copied between two points that are waited for */

static bool add(ta_moves *m, const ta_move *move)
{
    if (m->count == m->capacity) {
        size_t capacity = m->capacity ? m->capacity * 2 : 64;
        ta_move *more = realloc(m->at, capacity * sizeof *more);
        if (!more) return false;
        m->at = more;
        m->capacity = capacity;
    }
    m->at[m->count++] = *move;
    return true;
}

bool ta_moves_find(ta_moves *m, ta_arena *arena, bool on_device)
{
    bool room = true;
    ta_arena_lock(arena);
    for (ta_chunk *c = arena->chunks; c && room; c = c->next) {
        if (!on_device && !c->spilled_count) continue;
        room = ta_tier_stock(c);
        for (uint32_t i = 0; i < c->slots && room; i++) {
            if (!ta_chunk_has(c, i)) continue;
            if ((ta_slot_is(c, i) == TA_SLOT_DEVICE) == on_device)
                room = add(m, &(ta_move){arena, c, i, NULL});
        }
    }
    ta_arena_unlock(arena);
    return room;
}

void ta_moves_free(ta_moves *m)
{
    free(m->at);
    *m = (ta_moves){0};
}

/* Neighbours under one lock: the end of those from `i` on. */
static size_t run_end(const ta_moves *m, size_t i)
{
    size_t end = i + 1;
    while (end < m->count && end - i < RUN && m->at[end].chunk == m->at[i].chunk) end++;
    return end;
}

/* The slot is in the state, with blocks on it. */
static bool is(const ta_move *m, ta_slot_state state)
{
    return ta_slot_is(m->chunk, m->slot) == state && ta_chunk_has(m->chunk, m->slot);
}

static ta_status unmap(ta_device *d, const ta_move *m)
{
    ta_status status =
        ta_call_unmap(d, ta_slot_addr(m->chunk, m->slot), m->chunk->page_bytes);
    if (!status) m->chunk->pages[m->slot] = 0;
    return status;
}

static void give_page(ta_device *d, const ta_move *m, ta_handle page, bool release)
{
    ta_count_mapped(m->arena, -1);
    if (release && !ta_page_release(d, page, m->chunk->page_bytes)) return;
    if (!ta_ready_push(d, page, m->chunk->page_bytes))
        ta_page_release(d, page, m->chunk->page_bytes);
}

/* --- copies ------------------------------------------------------------------------------ */
static ta_status copy_stream(ta_device *d, int which, ta_stream *stream)
{
    const ta_driver *driver = d->allocator->driver;
    if (!driver->copy_stream) return TA_UNSUPPORTED;
    return driver->copy_stream(driver->self, d->ordinal, which, stream);
}

/* A point in the stream, to be waited for with `pages` dropped. */
static ta_status mark(ta_device *d, ta_stream stream, ta_event *event)
{
    const ta_driver *driver = d->allocator->driver;
    ta_status status = driver->event_create(driver->self, d->ordinal, event);
    if (status) return status;
    status = driver->event_record(driver->self, *event, d->ordinal, stream);
    if (!status) return TA_OK;
    driver->event_destroy(driver->self, *event);
    *event = NULL;
    return status;
}

static ta_status await(ta_device *d, ta_event event, double *us)
{
    const ta_driver *driver = d->allocator->driver;
    const double since = ta_now_us();
    ta_lock_drop(&d->pages);
    /* Without a point in the stream the whole device will do: no capture is open. */
    ta_status status = event ? driver->event_wait(driver->self, event, TA_FOREVER_US)
                             : driver->device_wait(driver->self, d->ordinal);
    if (status && event) status = driver->device_wait(driver->self, d->ordinal);
    ta_lock_take(&d->pages);
    const double took = ta_now_us() - since;
    *us += took;
    ta_spin_take(&d->counting);
    d->stats.spill_wait_us += took;
    ta_spin_drop(&d->counting);
    return status;
}

static void count_copied(ta_device *d, uint64_t to_host, uint64_t to_device)
{
    ta_spin_take(&d->counting);
    d->stats.to_host += to_host;
    d->stats.to_device += to_device;
    ta_spin_drop(&d->counting);
}

/* --- to the device ----------------------------------------------------------------------- */
/* HOST and what is nowhere become COMING, with a page of the hand. */
static ta_status come(ta_device *d, ta_move *m, ta_hand *hand)
{
    ta_chunk *c = m->chunk;
    m->page = c->spilled[m->slot].page;
    if (is(m, TA_SLOT_HOST)) {
        ta_status status = unmap(d, m);
        if (status) return status;
        ta_slot_become(m->arena, c, m->slot, TA_SLOT_AWAY, m->page);
    }
    if (is(m, TA_SLOT_COMING)) return TA_OK; /* it got so far once */
    const ta_handle page = hand->pages[hand->count - 1];
    ta_status status = ta_call_map(d, ta_slot_addr(c, m->slot), c->page_bytes, page);
    if (status) return status;
    hand->count--;
    c->pages[m->slot] = page;
    ta_count_mapped(m->arena, 1);
    ta_slot_become(m->arena, c, m->slot, TA_SLOT_COMING, m->page);
    return TA_OK;
}

/* Access for the run's COMING slots, neighbours in one call, and their bytes on the way. */
static ta_status fill(ta_device *d, ta_moves *m, size_t i, size_t end, ta_stream stream)
{
    const ta_driver *driver = d->allocator->driver;
    ta_status status = TA_OK;
    for (size_t to; i < end && !status; i = to) {
        to = i + 1;
        if (!is(&m->at[i], TA_SLOT_COMING)) continue;
        while (to < end && m->at[to].slot == m->at[to - 1].slot + 1 &&
               is(&m->at[to], TA_SLOT_COMING))
            to++;
        const ta_chunk *c = m->at[i].chunk;
        status = ta_call_access(d, ta_slot_addr(c, m->at[i].slot),
                                (uint64_t)(to - i) << c->shift);
        for (size_t k = i; k < to && !status; k++) {
            const ta_host_page *page = m->at[k].page;
            if (!page) continue;
            status = driver->copy(driver->self, d->ordinal, stream,
                                  ta_slot_addr(c, m->at[k].slot), page->at, page->bytes);
        }
    }
    return status;
}

/* What is COMING has arrived, or goes back to where it was. */
static void arrive(ta_device *d, ta_moves *m, bool good)
{
    for (size_t i = 0; i < m->count; i++) {
        ta_move *at = &m->at[i];
        ta_arena_lock(at->arena);
        if (is(at, TA_SLOT_COMING)) {
            const ta_handle page = at->chunk->pages[at->slot];
            if (good) {
                ta_slot_become(at->arena, at->chunk, at->slot, TA_SLOT_DEVICE, NULL);
                if (at->page) m->copied += at->chunk->page_bytes;
                ta_host_put(d, at->page);
                at->page = NULL;
            } else if (!unmap(d, at)) {
                ta_slot_become(at->arena, at->chunk, at->slot,
                               at->page ? TA_SLOT_AWAY : TA_SLOT_VOID, at->page);
                give_page(d, at, page, false);
            }
        }
        ta_arena_unlock(at->arena);
    }
    if (good) count_copied(d, 0, m->copied);
}

bool ta_moves_amiss(const ta_moves *m)
{
    bool amiss = false;
    for (size_t i = 0; i < m->count && !amiss; i++)
        amiss = is(&m->at[i], TA_SLOT_AWAY) || is(&m->at[i], TA_SLOT_COMING);
    return amiss;
}

ta_status ta_moves_touch(ta_device *d, ta_moves *m)
{
    ta_status first = TA_OK;
    for (size_t i = 0; i < m->count; i++) {
        const ta_move *at = &m->at[i];
        ta_chunk *c = at->chunk;
        ta_arena_lock(at->arena);
        if (is(at, TA_SLOT_AWAY)) {
            const uint64_t addr = ta_slot_addr(c, at->slot);
            ta_host_page *page = c->spilled[at->slot].page;
            ta_status status = ta_call_map(d, addr, c->page_bytes, page->handle);
            bool there = !status;
            if (there && (status = ta_call_access(d, addr, c->page_bytes)))
                there = ta_call_unmap(d, addr, c->page_bytes) != TA_OK;
            if (there) {
                c->pages[at->slot] = page->handle;
                ta_slot_become(at->arena, c, at->slot, TA_SLOT_HOST, page);
            }
            if (!first) first = status;
        }
        ta_arena_unlock(at->arena);
    }
    return first;
}

ta_status ta_moves_to_device(ta_device *d, ta_moves *m, ta_hand *hand, bool touch)
{
    ta_stream stream;
    ta_event event = NULL;
    ta_status status = copy_stream(d, 1, &stream);
    for (size_t i = 0, end; i < m->count && !status; i = end) {
        end = run_end(m, i);
        ta_arena_lock(m->at[i].arena);
        for (size_t k = i; k < end && !status; k++)
            if (ta_slot_is(m->at[k].chunk, m->at[k].slot) != TA_SLOT_DEVICE &&
                ta_chunk_has(m->at[k].chunk, m->at[k].slot) &&
                (hand->count || is(&m->at[k], TA_SLOT_COMING)))
                status = come(d, &m->at[k], hand);
        if (!status) status = fill(d, m, i, end, stream);
        ta_arena_unlock(m->at[i].arena);
    }
    if (!status) status = mark(d, stream, &event);
    const ta_status waited = await(d, event, &m->copy_us);
    if (!waited)
        arrive(d, m, !status); /* else copies may be under way: all stays COMING */
    if (!status) status = waited;
    if (status && touch) ta_moves_touch(d, m);
    if (event) d->allocator->driver->event_destroy(d->allocator->driver->self, event);
    return status;
}

/* --- to the host -------------------------------------------------------------------------- */
/* What was freed since is idle, and goes apart: copies of it are over, too. */
static ta_status set_free_apart(ta_device *d, ta_arena *arena)
{
    enum { MOST = 64 };
    ta_handle pages[MOST];
    ta_status status = TA_OK;
    ta_arena_lock(arena);
    for (size_t got; (got = ta_arena_steal(arena, MOST, TA_NEVER, pages, &status));)
        while (got)
            if (!ta_ready_push(d, pages[--got], arena->page_bytes))
                ta_page_release(d, pages[got], arena->page_bytes);
    ta_arena_unlock(arena);
    return status;
}

/* No block lies on the slot, which has a page of the device. */
static bool is_idle(const ta_move *m)
{
    for (const ta_block *b = m->arena->oldest; b; b = b->newer)
        if (b->chunk == m->chunk && b->own_first <= m->slot && m->slot < b->own_end)
            return true;
    return false;
}

/* The slot's bytes, if kept, are in the move's page: it leaves the device. */
static ta_status leave(ta_device *d, ta_move *m, bool keep, ta_moves *all)
{
    ta_chunk *c = m->chunk;
    const ta_spilled was = c->spilled[m->slot];
    const ta_handle page = c->pages[m->slot];
    if (!ta_chunk_has(c, m->slot) || was.state == TA_SLOT_VOID) return TA_OK;
    if (was.state == TA_SLOT_AWAY && keep) return TA_OK;
    if (was.state == TA_SLOT_DEVICE && is_idle(m)) return TA_OK;
    ta_status status = was.state == TA_SLOT_AWAY ? TA_OK : unmap(d, m);
    if (status) return status;
    if (was.state == TA_SLOT_DEVICE || was.state == TA_SLOT_COMING)
        give_page(d, m, page, all->release);
    ta_host_page *holds = was.state == TA_SLOT_DEVICE ? m->page : was.page;
    if (was.state == TA_SLOT_DEVICE) m->page = NULL;
    if (!keep && holds) {
        ta_host_put(d, holds);
        holds = NULL;
    }
    if (holds && was.state == TA_SLOT_DEVICE) all->copied += c->page_bytes;
    if (!holds) all->dropped += c->page_bytes;
    ta_slot_become(m->arena, c, m->slot, holds ? TA_SLOT_AWAY : TA_SLOT_VOID, holds);
    return TA_OK;
}

/* Points in the copies' stream, one after every BATCH. */
typedef struct ta_batch {
    size_t end; /* of its moves */
    ta_event event;
} ta_batch;

/* Queues every copy. *count: how many batches. */
static ta_status queue(ta_device *d, ta_moves *m, ta_batch *batches, size_t *count)
{
    const ta_driver *driver = d->allocator->driver;
    ta_stream stream;
    uint64_t bytes = 0;
    ta_status status = copy_stream(d, 0, &stream);
    for (size_t i = 0; i < m->count && !status; i++) {
        const ta_move *at = &m->at[i];
        if (at->page) {
            status = driver->copy(driver->self, d->ordinal, stream, at->page->at,
                                  ta_slot_addr(at->chunk, at->slot), at->page->bytes);
            bytes += at->page->bytes;
        }
        if (status || (bytes < BATCH && i + 1 < m->count)) continue;
        bytes = 0;
        batches[*count].end = i + 1;
        status = mark(d, stream, &batches[*count].event);
        *count += !status;
    }
    return status;
}

ta_status ta_moves_to_host(ta_device *d, ta_moves *m, bool keep, bool touch)
{
    const ta_driver *driver = d->allocator->driver;
    ta_batch *batches = calloc(m->count + 1, sizeof *batches);
    size_t count = 0, from = 0;
    if (!batches) return TA_NO_HOST_MEMORY;
    ta_status status = m->count && keep ? queue(d, m, batches, &count) : TA_OK;
    if (!status && !keep) batches[count++].end = m->count;
    for (size_t b = 0; b < count && !status; b++) {
        if (batches[b].event) status = await(d, batches[b].event, &m->copy_us);
        for (size_t end; from < batches[b].end && !status; from = end) {
            end = run_end(m, from);
            if (end > batches[b].end) end = batches[b].end;
            ta_arena *arena = m->at[from].arena;
            ta_arena_lock(arena);
            for (size_t k = from; k < end && !status; k++)
                status = leave(d, &m->at[k], keep, m);
            ta_arena_unlock(arena);
        }
    }
    for (size_t i = 0; i < m->count && !status; i++)
        if (!i || m->at[i].arena != m->at[i - 1].arena)
            status = set_free_apart(d, m->at[i].arena);
    const bool over = !status || await(d, NULL, &m->copy_us) == TA_OK;
    for (size_t b = 0; b < count; b++)
        if (batches[b].event) driver->event_destroy(driver->self, batches[b].event);
    free(batches);
    for (size_t i = 0; i < m->count; i++) { /* pages that were not needed */
        if (over)
            ta_host_put(d, m->at[i].page);
        else
            ta_host_put_unsure(d, m->at[i].page);
        m->at[i].page = NULL;
    }
    count_copied(d, m->copied, 0);
    if (!status && keep && touch) status = ta_moves_touch(d, m);
    return status;
}
