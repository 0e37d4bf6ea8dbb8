/* epoch.c - ticks, marks in streams, pending blocks, and every wait of the allocator.
 *
 * Called by alloc.c, pages.c and pool.c with the device's `pages` held. A tick is taken
 * before its event is recorded, and a free reads the tick after its stream's work was
 * queued: so an event of tick t covers every free that bears a lower one. No lock of ours is
 * held while the host waits; what was true before is looked at again by the caller. */
#include "epoch.h"

#include <stdlib.h>

#include "arena.h"
#include "calls.h"
#include "pool.h"
#include "block.h"
#include "count.h"

#define MARKS_MAX 256 /* a stream's; the newest is moved when there are more */

static bool default_stream(ta_stream stream) { return (uintptr_t)stream <= 1; }

uintptr_t ta_thread_key(void)
{
    static atomic_uintptr_t threads;
    static _Thread_local uintptr_t mine;
    if (!mine) mine = 2 * atomic_fetch_add(&threads, 1) + 3;
    return mine;
}

static ta_stream_state *find(const ta_device *d, uintptr_t key)
{
    ta_stream_state *s = d->streams;
    while (s && s->key != key) s = s->next;
    return s;
}

/* The per-thread stream ends with its thread, whoever says otherwise. */
static ta_stream_life life(ta_device *d, ta_stream handle)
{
    ta_allocator *a = d->allocator;
    if (default_stream(handle)) return TA_STREAM_LASTS;
    if ((uintptr_t)handle == TA_PER_THREAD) return TA_STREAM_EXISTS;
    ta_lock_take(&a->setup);
    ta_stream_asked *asked = a->asked;
    void *context = a->asked_context;
    ta_lock_drop(&a->setup);
    return asked ? asked(context, d->ordinal, handle) : TA_STREAM_EXISTS;
}

bool ta_stream_exists(ta_device *d, ta_stream handle)
{
    return life(d, handle) != TA_STREAM_STRANGE;
}

ta_stream_state *ta_stream_meet(ta_device *d, ta_stream handle)
{
    uintptr_t key = ta_stream_key(handle);
    ta_lock_take(&d->pages);
    ta_stream_state *s = find(d, key);
    ta_lock_drop(&d->pages);
    if (s) return s; /* states stay until the device's end */
    bool lasts = life(d, handle) == TA_STREAM_LASTS;
    ta_stream_state *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->handle = handle;
    made->key = key;
    made->lasts = lasts;
    made->unmarked = TA_NEVER;
    ta_lock_take(&d->pages);
    s = find(d, key); /* another thread may have met it meanwhile */
    if (!s) {
        made->next = d->streams;
        d->streams = s = made;
    }
    ta_lock_drop(&d->pages);
    if (s != made) free(made);
    return s;
}

/* The calling thread can name it. */
static bool ours(const ta_stream_state *s) { return ta_stream_key(s->handle) == s->key; }

static void spare_mark(ta_device *d, ta_mark_event *m)
{
    m->next = d->spare_marks;
    d->spare_marks = m;
}

static void unlink_mark(ta_device *d, ta_stream_state *s)
{
    ta_mark_event *m = s->first;
    s->first = m->next;
    if (!s->first) s->last = NULL;
    s->marks--;
    m->popped = true;
    if (!m->waiters) spare_mark(d, m); /* else the last waiter does */
}

static void pop_mark(ta_device *d, ta_stream_state *s)
{
    const uint64_t at = s->first->tick, tick = at < s->unmarked ? at : s->unmarked;
    if (tick > s->passed) s->passed = tick;
    unlink_mark(d, s);
}

/* The oldest mark is never passed: a capture that began as it was recorded swallowed it. What
 * it stood for is seen by a later one, or, on a stream that does not last, has none. */
static void lose_mark(ta_device *d, ta_stream_state *s)
{
    if (!s->lasts) {
        if (s->passed < s->unmarked) s->unmarked = s->passed;
        if (s->unmarked_last < s->first->tick) s->unmarked_last = s->first->tick;
    }
    unlink_mark(d, s);
}

void ta_stream_poll(ta_device *d, ta_stream_state *s)
{
    while (s->first) {
        ta_status status = ta_call_query(d, s->first->event);
        if (status == TA_NOT_READY || status == TA_GONE) return;
        if (status)
            lose_mark(d, s);
        else
            pop_mark(d, s);
    }
}

/* What the newest mark stands for: one that passed is in `passed`, as far as it counts. */
static uint64_t newest(const ta_stream_state *s)
{
    return s->last ? s->last->tick : s->passed;
}

ta_status ta_stream_mark(ta_device *d, ta_stream_state *s, uint64_t tick)
{
    if (newest(s) > tick) return TA_OK;
    if (!ours(s)) return TA_UNSUPPORTED;
    if (s->marks >= MARKS_MAX) ta_stream_poll(d, s);
    bool move = s->marks >= MARKS_MAX && !s->last->waiters;
    if (move && !s->lasts) return TA_UNSUPPORTED; /* its point may be another stream's */
    ta_mark_event *m = move ? s->last : d->spare_marks;
    if (!m && !(m = calloc(1, sizeof *m))) return TA_NO_HOST_MEMORY;
    if (m == d->spare_marks) d->spare_marks = m->next;
    tick = atomic_fetch_add(&d->tick, 1) + 1;
    ta_status status = ta_call_record(d, s->handle, &m->event);
    /* A capture of torch's has its pool open, which tells of its end by itself. */
    s->capturing = status == TA_NOT_READY && !atomic_load(&d->open_count);
    s->foreign = status && status != TA_NOT_READY;
    if (status) {
        if (!move) spare_mark(d, m); /* else it stands for its old point as before */
        return status;
    }
    m->tick = tick;
    if (move) return TA_OK;
    m->next = NULL;
    m->popped = false;
    *(s->last ? &s->last->next : &s->first) = m;
    s->last = m;
    s->marks++;
    return TA_OK;
}

/* Marks reach past what was freed at `tick`. */
static bool marked(const ta_stream_state *s, uint64_t tick)
{
    return newest(s) > tick && s->unmarked > tick;
}

void ta_stream_mark_free(ta_device *d, ta_stream_state *s, uint64_t tick, bool exists)
{
    if (exists && !ta_stream_mark(d, s, tick)) return;
    if (s->lasts) return; /* it is marked when its pages are wanted */
    if (s->unmarked == TA_NEVER) s->unmarked = tick;
    s->unmarked_last = tick;
}

ta_status ta_stream_remark(ta_device *d, ta_stream_state *s, uint64_t tick)
{
    if (s->lasts) return ta_stream_mark(d, s, tick);
    return marked(s, tick) ? TA_OK : TA_UNSUPPORTED;
}

/* The device can be waited for: no capture would break, of a pool or of a stream we know. */
static bool device_waitable(ta_device *d)
{
    const ta_driver *driver = d->allocator->driver;
    if (atomic_load(&d->open_count)) return false;
    for (ta_stream_state *s = d->streams; s; s = s->next) {
        bool capturing = false;
        /* It may be gone. But one that others captured when it was last marked is asked:
         * else its capture would break, or the device could not be waited for any more. */
        if (!s->lasts && !s->capturing) continue;
        if (!ours(s)) return false; /* nobody but its thread can tell */
        if (driver->is_capturing(driver->self, d->ordinal, s->handle, &capturing)) {
            if (s->lasts) return false;
            s->capturing = false; /* it is gone */
        } else if (capturing)
            return false;
    }
    return true;
}

bool ta_stream_waitable(ta_device *d, ta_stream_state *s, uint64_t tick, double most_us)
{
    if (most_us < TA_FOREVER_US) return marked(s, tick) && s->slow <= s->passed;
    return marked(s, tick) || device_waitable(d);
}

static void count_wait(ta_device *d, double since)
{
    ta_spin_take(&d->counting);
    d->stats.waits++;
    d->stats.wait_us += ta_now_us() - since;
    ta_spin_drop(&d->counting);
}

static ta_status wait_for_device(ta_device *d, const ta_stream_state *s, uint64_t tick)
{
    ta_status status = ta_device_wait(d);
    return !status && s->passed <= tick ? TA_NOT_READY : status;
}

ta_status ta_stream_wait(ta_device *d, ta_stream_state *s, uint64_t tick, double most_us)
{
    const ta_driver *driver = d->allocator->driver;
    const bool forever = most_us >= TA_FOREVER_US;
    ta_status status = ta_stream_remark(d, s, tick);
    if (status == TA_NOT_READY || status == TA_GONE) return status;
    if (status) return forever ? wait_for_device(d, s, tick) : TA_NOT_READY;
    if (s->passed > tick) return TA_OK;
    /* A handle of others may stand for another stream by now, so that a later mark says
     * nothing of an earlier one: one at a time, and the caller looks again. */
    ta_mark_event *m = s->first;
    while (s->lasts && m && m->tick <= tick) m = m->next;
    if (!m) return forever ? wait_for_device(d, s, tick) : TA_NOT_READY;
    double since = ta_now_us();
    m->waiters++;
    ta_lock_drop(&d->pages);
    const uint64_t awaited = m->tick;
    status = driver->event_wait(driver->self, m->event, most_us);
    ta_lock_take(&d->pages);
    m->waiters--;
    count_wait(d, since);
    if (m->popped) {
        if (!m->waiters) spare_mark(d, m);
    } else if (!status) { /* a stream is passed in order, and queries may fail */
        tick = m->tick;
        while (s->first && s->first->tick <= tick) pop_mark(d, s);
    }
    if (status == TA_NOT_READY && awaited > s->slow) s->slow = awaited;
    if (status && status != TA_GONE)
        return forever ? wait_for_device(d, s, tick) : TA_NOT_READY;
    return status;
}

bool ta_streams_pass(ta_device *d, double most_us)
{
    const uint64_t tick = atomic_load(&d->tick);
    for (ta_stream_state *s = d->streams; s; s = s->next) {
        if (!s->lasts)
            ta_stream_poll(d, s);
        else if (s->slow > s->passed || ta_stream_wait(d, s, tick, most_us))
            return false;
        if (s->first && s->first->tick <= tick) return false;
    }
    return true;
}

bool ta_streams_empty(ta_device *d)
{
    enum { EVENT_US = 50 }; /* an idle GPU has passed a new event by then */
    const uint64_t tick = atomic_load(&d->tick);
    const double until = ta_now_us() + EVENT_US;
    for (ta_stream_state *s = d->streams; s; s = s->next) ta_stream_poll(d, s);
    for (ta_stream_state *s = d->streams; s; s = s->next)
        if (s->first || (s->lasts && ta_stream_mark(d, s, tick))) return false;
    for (ta_stream_state *s = d->streams; s; s = s->next) do
            ta_stream_poll(d, s);
        while (s->first && ta_now_us() < until);
    for (const ta_stream_state *s = d->streams; s; s = s->next)
        if (s->first) return false;
    return true;
}

/* Every other device that is used is waited for, one after the other; false where one cannot
 * be. None of their locks is held meanwhile, nor ours. */
static bool wait_for_others(ta_device *d)
{
    ta_allocator *a = d->allocator;
    const ta_driver *driver = a->driver;
    bool all = true;
    for (int i = 0; i < TA_MAX_DEVICES && all; i++) {
        ta_device *other = &a->device[i];
        uintptr_t saved[2];
        if (other == d || !atomic_load(&other->used)) continue;
        if (driver->enter(driver->self, i, saved)) return false;
        ta_lock_take(&other->pages);
        all = device_waitable(other);
        other->device_waits += all;
        ta_lock_drop(&other->pages);
        if (all) {
            all = driver->device_wait(driver->self, i) == TA_OK;
            ta_lock_take(&other->pages);
            other->device_waits--;
            pthread_cond_broadcast(&other->pool_idle);
            ta_lock_drop(&other->pages);
        }
        driver->leave(driver->self, i, saved);
    }
    return all;
}

ta_status ta_device_wait(ta_device *d)
{
    const ta_driver *driver = d->allocator->driver;
    if (!device_waitable(d)) return TA_NOT_READY;
    double since = ta_now_us();
    uint64_t tick = atomic_fetch_add(&d->tick, 1) + 1;
    bool foreign = false;
    for (const ta_stream_state *s = d->streams; s; s = s->next) foreign |= s->foreign;
    d->device_waits++;
    ta_lock_drop(&d->pages);
    ta_status status = driver->device_wait(driver->self, d->ordinal);
    bool others = foreign && !status && wait_for_others(d);
    ta_lock_take(&d->pages);
    d->device_waits--;
    pthread_cond_broadcast(&d->pool_idle);
    count_wait(d, since);
    if (status) return status;
    for (ta_stream_state *s = d->streams; s; s = s->next) {
        if (s->foreign && !others) continue;
        while (s->first && s->first->tick <= tick) pop_mark(d, s);
        if (s->passed < tick) s->passed = tick;
        if (s->unmarked < tick) s->unmarked = s->unmarked_last < tick ? TA_NEVER : tick;
    }
    if (d->device_passed < tick) d->device_passed = tick;
    ta_pools_retire(d);
    return TA_OK;
}

ta_status ta_devices_wait(ta_allocator *a)
{
    const ta_driver *driver = a->driver;
    ta_status status = TA_OK;
    for (int i = 0; i < TA_MAX_DEVICES && !status; i++) {
        ta_device *d = &a->device[i];
        uintptr_t saved[2];
        if (!atomic_load_explicit(&d->used, memory_order_acquire)) continue;
        if ((status = driver->enter(driver->self, i, saved))) return status;
        ta_lock_take(&d->pages);
        status = ta_device_wait(d);
        ta_lock_drop(&d->pages);
        driver->leave(driver->self, i, saved);
    }
    return status;
}

/* --- pending blocks ----------------------------------------------------------------- */
static bool still_used(ta_device *d, const ta_use *u)
{
    for (; u; u = u->next) {
        ta_stream_remark(d, u->stream, u->tick);
        ta_stream_poll(d, u->stream);
        if (u->stream->passed <= u->tick) return true;
    }
    return false;
}

size_t ta_pending_poll(ta_device *d, ta_arena *arena)
{
    size_t settled = 0;
    ta_arena_lock(arena);
    for (ta_block *b = arena->pending_first, *next; b; b = next) {
        next = b->pending_next;
        if (still_used(d, b->uses)) continue;
        *(b->pending_prev ? &b->pending_prev->pending_next : &arena->pending_first) =
            next;
        *(next ? &next->pending_prev : &arena->pending_last) = b->pending_prev;
        ta_block_settle(arena, b);
        settled++;
    }
    ta_arena_unlock(arena);
    return settled;
}

static ta_status wait_pending(ta_device *d, ta_arena *arena, uint64_t before,
                              double most_us)
{
    ta_stream_state *stream = NULL;
    uint64_t tick = 0;
    ta_arena_lock(arena);
    for (ta_block *b = arena->pending_first; b && !stream; b = b->pending_next)
        for (ta_use *u = b->uses; u && !stream; u = u->next)
            if (u->stream->passed <= u->tick && u->tick < before &&
                ta_stream_waitable(d, u->stream, u->tick, most_us)) {
                stream = u->stream;
                tick = u->tick;
            }
    ta_arena_unlock(arena);
    return stream ? ta_stream_wait(d, stream, tick, most_us) : TA_NOT_READY;
}

ta_status ta_pending_wait(ta_device *d, ta_arena *arena, uint64_t before)
{
    return wait_pending(d, arena, before, TA_FOREVER_US);
}

void ta_pending_sweep(ta_device *d, ta_arena *arena, double most_us)
{
    while (!wait_pending(d, arena, UINT64_MAX, most_us)) {
    }
    ta_pending_poll(d, arena);
}

void ta_epoch_destroy(ta_device *d, bool reachable)
{
    const ta_driver *driver = d->allocator->driver;
    for (ta_stream_state *s = d->streams, *next; s; s = next) {
        next = s->next;
        while (s->first) pop_mark(d, s);
        free(s);
    }
    for (ta_mark_event *m = d->spare_marks, *next; m; m = next) {
        next = m->next;
        if (m->event && reachable) driver->event_destroy(driver->self, m->event);
        free(m);
    }
    d->streams = NULL;
    d->spare_marks = NULL;
}
