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
#include "pages/chunk.h"
#include "clock.h"
#include "count.h"
#include "crew.h"
#include "device.h"
#include "tier.h"

#define RUN 16u                     /* pages for which an arena's lock is held at once */
#define BATCH ((uint64_t)128 << 20) /* bytes copied between two points in the stream */
#define DEPTH 8u                    /* batches under way, at most */
#define OPENERS 3u /* threads that open pages at once, beside the caller */

static bool add(ta_moves *m, const ta_move *move)
{
    if (!m->at || m->count == m->capacity) {
        size_t capacity = m->capacity ? m->capacity * 2 : 64;
        ta_move *more = realloc(m->at, capacity * sizeof *more);
        if (!more) return false;
        m->at = more;
        m->capacity = capacity;
    }
    m->at[m->count++] = *move;
    return true;
}

/* The slots under a block; the first may be that of its neighbour, too, who was there first. */
static bool add_block(ta_moves *m, ta_arena *arena, const ta_block *b, bool on_device)
{
    ta_chunk *c = b->chunk;
    const uint64_t born = b->state == TA_HELD ? UINT64_MAX : b->serial;
    const uint32_t end = ta_slot_above(c, b->addr + b->size);
    for (uint32_t i = ta_slot_below(c, b->addr); i < end; i++) {
        ta_move *last = m->count ? &m->at[m->count - 1] : NULL;
        if (last && last->chunk == c && last->slot == i) {
            if (born < last->born) last->born = born;
        } else if (ta_chunk_has(c, i) && !ta_chunk_handed(c, i) &&
                   (ta_slot_is(c, i) == TA_SLOT_DEVICE) == on_device) {
            if (!add(m, &(ta_move){arena, c, i, NULL, born})) return false;
        }
    }
    return true;
}

bool ta_moves_find(ta_moves *m, ta_arena *arena, bool on_device)
{
    bool room = true;
    ta_arena_lock(arena);
    for (ta_chunk *c = arena->chunks; c && room; c = c->next) {
        if (!on_device && !c->spilled_count) continue;
        room = ta_tier_stock(c);
        for (const ta_block *b = c->first; b && room; b = b->next)
            if (b->state != TA_FREE) room = add_block(m, arena, b, on_device);
    }
    ta_arena_unlock(arena);
    return room;
}

static int by_place(const ta_move *a, const ta_move *b)
{
    if (a->chunk->addr != b->chunk->addr) return a->chunk->addr < b->chunk->addr ? -1 : 1;
    return a->slot < b->slot ? -1 : a->slot > b->slot;
}
static int older(const void *one, const void *other)
{
    const ta_move *a = one, *b = other;
    if (a->born != b->born) return a->born < b->born ? -1 : 1;
    return by_place(a, b);
}
static int younger(const void *one, const void *other)
{
    const ta_move *a = one, *b = other;
    if (a->arena->small != b->arena->small) return a->arena->small ? 1 : -1;
    if (a->born != b->born) return a->born > b->born ? -1 : 1;
    return by_place(a, b);
}

void ta_moves_order(ta_moves *m, bool oldest_first)
{
    if (m->count) qsort(m->at, m->count, sizeof *m->at, oldest_first ? older : younger);
}

ta_status ta_moves_take(ta_device *d, ta_moves *m, size_t count, uint64_t *pinned)
{
    ta_host_page **pages = calloc(count + 1, sizeof(void *));
    if (!pages) return TA_NO_HOST_MEMORY;
    ta_tier_sweep(d);
    ta_lock_drop(&d->pages);
    ta_status status = ta_host_take(d, m->at[0].chunk->page_bytes, count, pages, pinned);
    ta_lock_take(&d->pages);
    for (size_t i = 0; i < count && !status; i++) m->at[i].page = pages[i];
    free(pages);
    return status;
}

void ta_moves_free(ta_moves *m)
{
    free(m->at);
    *m = (ta_moves){0};
}

/* Neighbours under one lock, `most` of them: the end of those from `i` on. */
static size_t run_end(const ta_moves *m, size_t i, size_t most)
{
    size_t end = i + 1;
    while (end < m->count && end - i < most && m->at[end].chunk == m->at[i].chunk) end++;
    return end;
}

/* Pages of the batch that comes after `done` of them. The host needs up to three quarters of a
 * copy's time for its page: so the copies' lead allows for a quarter of what is queued. */
static size_t batch(size_t done, uint64_t page_bytes)
{
    size_t most = BATCH > page_bytes ? BATCH / page_bytes : 1;
    if (most > RUN) most = RUN;
    return done / 4 < most ? 1 + done / 4 : most;
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

static ta_status await(ta_device *d, ta_event event, double *us)
{
    const ta_driver *driver = d->allocator->driver;
    const double since = ta_now_us();
    ta_share_settle(d);
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

/* Points in the copies' stream, each behind a batch:
 *     passed <= marked <= passed + DEPTH */
typedef struct ta_tail {
    ta_stream stream;
    ta_event event[DEPTH];
    size_t marked, passed;
} ta_tail;

/* Waits for the oldest point that was not waited for. */
static ta_status tail_pass(ta_device *d, ta_tail *t, double *us)
{
    ta_status status = await(d, t->event[t->passed % DEPTH], us);
    t->passed += !status;
    return status;
}

/* A point behind all that is queued; there is room for it. */
static ta_status tail_mark(ta_device *d, ta_tail *t)
{
    const ta_driver *driver = d->allocator->driver;
    ta_event *event = &t->event[t->marked % DEPTH];
    ta_status status = TA_OK;
    if (!*event) status = driver->event_create(driver->self, d->ordinal, event);
    if (status) *event = NULL;
    if (!status)
        status = driver->event_record(driver->self, *event, d->ordinal, t->stream);
    t->marked += !status;
    return status;
}

/* All that was queued is over; by its last point where `good`. Else copies may be under way,
 * and the device is adrift until it has passed all its work. */
static ta_status tail_end(ta_device *d, ta_tail *t, bool good, double *us)
{
    const ta_driver *driver = d->allocator->driver;
    ta_status status = TA_OK;
    if (!good)
        status = await(d, NULL, us);
    else if (t->passed < t->marked)
        status = await(d, t->event[(t->marked - 1) % DEPTH], us);
    if (status) d->adrift = true;
    for (size_t i = 0; i < DEPTH; i++)
        if (t->event[i]) driver->event_destroy(driver->self, t->event[i]);
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
        m->page->shut = false;
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
                m->came += at->chunk->page_bytes;
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
        amiss =
            is(&m->at[i], TA_SLOT_AWAY) || is(&m->at[i], TA_SLOT_COMING) ||
            (is(&m->at[i], TA_SLOT_HOST) && ta_slot_shut(m->at[i].chunk, m->at[i].slot));
    return amiss;
}

/* The slot's bytes, which are in a host page, can be reached there. Needs no lock: what moves is
 * the mover's, though a block may be freed meanwhile. */
static ta_status touch_slot(ta_device *d, const ta_move *at)
{
    ta_chunk *c = at->chunk;
    const uint64_t addr = ta_slot_addr(c, at->slot);
    const int devices = d->access_count;
    ta_arena_lock(at->arena);
    const bool shut = ta_slot_shut(c, at->slot), away = is(at, TA_SLOT_AWAY);
    ta_host_page *page = away || shut ? c->spilled[at->slot].page : NULL;
    ta_arena_unlock(at->arena);
    if (!page) return TA_OK;
    ta_status status = shut ? TA_OK : ta_call_map(d, addr, c->page_bytes, page->handle);
    if (status) return status;
    status = ta_call_access(d, addr, c->page_bytes);
    if (status && !shut && !ta_call_unmap(d, addr, c->page_bytes)) return status;
    ta_arena_lock(at->arena);
    if (!shut) {
        c->pages[at->slot] = page->handle;
        ta_slot_become(at->arena, c, at->slot, TA_SLOT_HOST, page);
    }
    if (devices != d->access_count) { /* another device came, and did not find it here */
        const ta_status again = ta_call_access(d, addr, c->page_bytes);
        if (!status) status = again;
    }
    page->shut = status != TA_OK;
    ta_arena_unlock(at->arena);
    return status;
}

ta_status ta_moves_touch(ta_device *d, ta_moves *m)
{
    ta_status first = TA_OK;
    for (size_t i = 0; i < m->count; i++) {
        const ta_status status = touch_slot(d, &m->at[i]);
        if (!first) first = status;
    }
    return first;
}

/* Pages in hand for the run's slots that need one. *full: there are no more, which is no
 * failure for the modest. */
static ta_status provide(ta_device *d, ta_moves *m, size_t i, size_t end, ta_hand *hand,
                         ta_lack *lack, bool *full)
{
    size_t need = 0;
    ta_arena_lock(m->at[i].arena);
    for (size_t k = i; k < end; k++)
        need += ta_chunk_has(m->at[k].chunk, m->at[k].slot) &&
                ta_slot_is(m->at[k].chunk, m->at[k].slot) != TA_SLOT_DEVICE &&
                !is(&m->at[k], TA_SLOT_COMING);
    ta_arena_unlock(m->at[i].arena);
    hand->want = need;
    if (need <= hand->count) return TA_OK;
    ta_status status = ta_gather(d, hand, m->count * hand->bytes, lack);
    *full = status == TA_OUT_OF_MEMORY && hand->modest;
    return *full ? TA_OK : status;
}

ta_status ta_moves_to_device(ta_device *d, ta_moves *m, bool modest, bool touch,
                             ta_lack *lack)
{
    ta_handle pages[RUN] = {0};
    ta_tail tail = {0};
    ta_hand hand = {.pages = pages, .modest = modest};
    bool full = false;
    hand.bytes = m->at[0].chunk->page_bytes;
    ta_status status = copy_stream(d, 1, &tail.stream);
    for (size_t i = 0, end; i < m->count && !status; i = end) {
        end = run_end(m, i, batch(i, hand.bytes));
        if (!full) status = provide(d, m, i, end, &hand, lack, &full);
        if (status) break;
        ta_arena_lock(m->at[i].arena);
        for (size_t k = i; k < end && !status; k++)
            if (ta_slot_is(m->at[k].chunk, m->at[k].slot) != TA_SLOT_DEVICE &&
                ta_chunk_has(m->at[k].chunk, m->at[k].slot) &&
                (hand.count || is(&m->at[k], TA_SLOT_COMING)))
                status = come(d, &m->at[k], &hand);
        if (!status) status = fill(d, m, i, end, tail.stream);
        ta_arena_unlock(m->at[i].arena);
        if (!status && tail.marked - tail.passed == DEPTH)
            status = tail_pass(d, &tail, &m->copy_us);
        if (!status) status = tail_mark(d, &tail);
    }
    const ta_status waited = tail_end(d, &tail, !status, &m->copy_us);
    if (!waited) arrive(d, m, !status); /* else all stays COMING */
    if (!status) status = waited;
    if (status && touch) ta_moves_touch(d, m);
    if (!status && hand.created > hand.count) hand.created = hand.count;
    ta_put_down(d, &hand, false);
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
    if (was.state == TA_SLOT_DEVICE && (is_idle(m) || ta_chunk_handed(c, m->slot)))
        return TA_OK; /* freed, or handed out, since it was copied */
    ta_status status = was.state == TA_SLOT_AWAY ? TA_OK : unmap(d, m);
    if (status) return status;
    if (was.state == TA_SLOT_DEVICE || was.state == TA_SLOT_COMING)
        give_page(d, m, page, all->release);
    ta_host_page *holds = was.state == TA_SLOT_DEVICE ? m->page : was.page;
    if (was.state == TA_SLOT_DEVICE) m->page = NULL;
    if (holds) holds->shut = false;
    if (!keep && holds) {
        ta_host_put(d, holds);
        holds = NULL;
    }
    if (holds && was.state == TA_SLOT_DEVICE) all->copied += c->page_bytes;
    if (!holds) all->dropped += c->page_bytes;
    ta_slot_become(m->arena, c, m->slot, holds ? TA_SLOT_AWAY : TA_SLOT_VOID, holds);
    return TA_OK;
}

/* Copies of a batch from `i` on; its end. */
static ta_status queue(ta_device *d, ta_moves *m, size_t i, size_t end, ta_tail *tail)
{
    const ta_driver *driver = d->allocator->driver;
    ta_status status = TA_OK;
    for (; i < end && !status; i++) {
        const ta_move *at = &m->at[i];
        if (at->page)
            status = driver->copy(driver->self, d->ordinal, tail->stream, at->page->at,
                                  ta_slot_addr(at->chunk, at->slot), at->page->bytes);
    }
    return status ? status : tail_mark(d, tail);
}

/* The batch's bytes are in their pages. */
static ta_status leave_all(ta_device *d, ta_moves *m, size_t i, size_t end, bool keep)
{
    ta_status status = TA_OK;
    for (size_t to; i < end && !status; i = to) {
        to = run_end(m, i, end - i < RUN ? end - i : RUN);
        ta_arena *arena = m->at[i].arena;
        ta_arena_lock(arena);
        for (size_t k = i; k < to && !status; k++) status = leave(d, &m->at[k], keep, m);
        ta_arena_unlock(arena);
    }
    return status;
}

/* Pages that have left, being opened at their places on the host: by threads of our own, since
 * the driver takes longer for it than the link for the copy. */
typedef struct ta_opening {
    ta_device *device;
    const ta_moves *moves;
    atomic_int status; /* of the first that failed */
} ta_opening;

static bool open_one(void *context, size_t number)
{
    ta_opening *o = context;
    uintptr_t saved[2];
    int none = TA_OK;
    ta_status status = ta_enter(o->device, saved);
    if (!status) {
        status = touch_slot(o->device, &o->moves->at[number]);
        ta_leave(o->device, saved);
    }
    if (status) atomic_compare_exchange_strong(&o->status, &none, (int)status);
    return status == TA_OK;
}

/* Copies run ahead of what follows them by DEPTH batches. Those at the end are small, so that
 * little is left to do when the last has passed. */
static ta_status send(ta_device *d, ta_moves *m, ta_tail *tail, bool touch)
{
    size_t ends[DEPTH], queued = 0, left = 0;
    const size_t threads = m->count / 4; /* for fewer one is not worth its start */
    ta_opening opening = {.device = d, .moves = m};
    ta_crew crew;
    ta_status status = copy_stream(d, 0, &tail->stream);
    if (touch)
        ta_crew_open(&crew, threads < OPENERS ? (unsigned)threads : OPENERS, open_one,
                     &opening);
    while (left < m->count && !status) {
        if (queued < m->count && tail->marked - tail->passed < DEPTH) {
            const size_t done = queued < m->count - queued ? queued : m->count - queued;
            size_t end = queued + batch(done, m->at[queued].chunk->page_bytes);
            if (end > m->count) end = m->count;
            ends[tail->marked % DEPTH] = end;
            status = queue(d, m, queued, end, tail);
            queued = end;
            continue;
        }
        const size_t end = ends[tail->passed % DEPTH];
        status = tail_pass(d, tail, &m->copy_us);
        if (!status) status = leave_all(d, m, left, end, true);
        left = end;
        if (!touch) continue;
        if (!status) ta_crew_know(&crew, left);
        if (!status) status = (ta_status)atomic_load(&opening.status);
    }
    if (touch) ta_crew_close(&crew);
    return status ? status : (ta_status)atomic_load(&opening.status);
}

ta_status ta_moves_to_host(ta_device *d, ta_moves *m, bool keep, bool touch)
{
    ta_tail tail = {0};
    ta_status status =
        keep ? send(d, m, &tail, touch) : leave_all(d, m, 0, m->count, false);
    for (size_t i = 0; i < m->count && !status && m->apart; i++)
        if (!i || m->at[i].arena != m->at[i - 1].arena)
            status = set_free_apart(d, m->at[i].arena);
    const bool over = tail_end(d, &tail, !status, &m->copy_us) == TA_OK;
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
