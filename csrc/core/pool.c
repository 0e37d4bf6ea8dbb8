/* pool.c - begin, end and release of graph pools.
 *
 * Called by PyTorch's hooks through the public functions, by alloc.c and epoch.c. While a
 * filter runs no lock is held; `calls` keeps its pool open until it has returned. */
#include "pool.h"

#include <stdlib.h>
#include <time.h>

#include "device.h"
#include "epoch.h"
#include "pages/pages.h"

#define FILTER_SECONDS 1 /* far longer than a filter takes */

static ta_pool *find(const ta_device *d, ta_pool_id id)
{
    ta_pool *p = d->pools;
    while (p && (p->id.a != id.a || p->id.b != id.b)) p = p->next;
    return p;
}

bool ta_pools_over(const ta_device *d)
{
    if (atomic_load(&d->open_count)) return false;
    for (const ta_arena *a = d->arenas; a; a = a->next) {
        const ta_pool *p = atomic_load_explicit(&a->pool, memory_order_relaxed);
        if (p && p->begins == p->releases && p->released_at >= d->device_passed)
            return true;
    }
    return false;
}

static bool is_open(const ta_device *d, const ta_pool *p)
{
    const ta_open_pool *o = d->open;
    while (o && o->pool != p) o = o->next;
    return o != NULL;
}

/* Bytes that pools which are over hold idle, until the device has passed their release. */
static uint64_t held_by_earlier(ta_device *d)
{
    uint64_t bytes = 0;
    for (ta_arena *a = d->arenas; a; a = a->next) {
        const ta_pool *p = atomic_load_explicit(&a->pool, memory_order_relaxed);
        if (!p || p->begins != p->releases) continue;
        ta_arena_lock(a);
        bytes += a->idle * a->page_bytes;
        ta_arena_unlock(a);
    }
    return bytes;
}

/* Fewer bytes than that can still be had from the driver. */
static bool room_is_short(ta_device *d)
{
    const ta_driver *driver = d->allocator->driver;
    const uint64_t limit = ta_limit_of(d, NULL), reserved = ta_reserved(d);
    uint64_t room = limit > reserved ? limit - reserved : 0, free_bytes, total;
    if (!driver->mem_info(driver->self, d->ordinal, &free_bytes, &total) &&
        free_bytes < room)
        room = free_bytes;
    return room < held_by_earlier(d);
}

/* While a pool is open the device cannot be waited for, so what earlier ones left is made
 * usable before: else it would pile up where every request comes from some pool. Waited for
 * only where there would be nothing else to give: else what streams have not passed is left
 * to a later time. */
static void settle_earlier(ta_device *d)
{
    uintptr_t saved[2];
    if (ta_enter(d, saved)) return;
    ta_lock_take(&d->pages);
    if (ta_pools_over(d) &&
        (ta_streams_empty(d) || (room_is_short(d) && ta_streams_pass(d, TA_PATIENCE_US))))
        ta_device_wait(d);
    ta_lock_drop(&d->pages);
    ta_leave(d, saved);
}

ta_status ta_pool_begin(ta_allocator *a, int device, ta_pool_id id,
                        ta_pool_filter *filter, void *context)
{
    ta_device *d;
    if (ta_forked(a)) return TA_FORKED;
    ta_status status = ta_device_open(a, device, &d);
    if (status) return status;
    ta_open_pool *open = calloc(1, sizeof *open);
    if (!open) return TA_NO_HOST_MEMORY;
    settle_earlier(d);
    ta_lock_take(&d->pages);
    while (d->device_waits) pthread_cond_wait(&d->pool_idle, &d->pages.mutex);
    ta_pool *p = find(d, id);
    if (p && is_open(d, p))
        status = TA_BUSY; /* an end names the pool alone: it could not tell whose it is */
    else if (atomic_load(&d->open_count) >= TA_OPEN_POOLS)
        status = TA_INVALID;
    else if (!p && (p = calloc(1, sizeof *p))) {
        p->id = id;
        p->next = d->pools;
        d->pools = p;
    } else if (!p)
        status = TA_NO_HOST_MEMORY;
    if (!status) {
        p->begins++;
        *open = (ta_open_pool){d->open, p, filter, context, 0};
        d->open = open;
        atomic_fetch_add(&d->open_count, 1);
    }
    ta_lock_drop(&d->pages);
    if (status) free(open);
    return status;
}

/* Waits for no GPU: a filter looks at what the host knows.
 * A filter is C++: what it throws leaves ta_pool_for without counting down. So the wait for
 * a call under way ends; what the call may still look at is then kept. */
static bool calls_returned(ta_device *d, ta_open_pool *open)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += FILTER_SECONDS;
    while (open->calls)
        if (pthread_cond_timedwait(&d->pool_idle, &d->pages.mutex, &until)) break;
    return !open->calls;
}

ta_status ta_pool_end(ta_allocator *a, int device, ta_pool_id id, void **context)
{
    *context = NULL;
    if (ta_forked(a)) return TA_FORKED;
    ta_device *d = ta_device_if_used(a, device);
    if (!d) return TA_INVALID;
    ta_lock_take(&d->pages);
    ta_open_pool **at = &d->open, *open;
    while (*at && ((*at)->pool->id.a != id.a || (*at)->pool->id.b != id.b))
        at = &(*at)->next;
    if ((open = *at)) {
        *at = open->next;
        atomic_fetch_sub(&d->open_count, 1);
        if (calls_returned(d, open)) {
            *context = open->context;
            free(open);
        } else {
            open->pool = NULL; /* should the call come back, it is too late */
            open->next = d->lost;
            d->lost = open;
        }
    }
    ta_lock_drop(&d->pages);
    return open ? TA_OK : TA_INVALID;
}

/* It takes requests, or one is under way. */
static bool in_use(const ta_device *d, const ta_pool *p)
{
    return is_open(d, p) || p->users;
}

static bool has_memory(const ta_device *d, const ta_pool *p)
{
    const ta_arena *a = d->arenas;
    while (a && atomic_load(&a->pool) != p) a = a->next;
    return a != NULL;
}

static void forget(ta_device *d, ta_pool *p)
{
    ta_pool **at = &d->pools;
    while (*at != p) at = &(*at)->next;
    *at = p->next;
    free(p);
}

ta_status ta_pool_release(ta_allocator *a, int device, ta_pool_id id)
{
    if (ta_forked(a)) return TA_FORKED;
    ta_device *d = ta_device_if_used(a, device);
    if (!d) return TA_INVALID;
    ta_lock_take(&d->pages);
    ta_pool *p = find(d, id);
    bool known = p && p->releases < p->begins;
    if (known && ++p->releases == p->begins) {
        p->released_at = atomic_load(&d->tick);
        if (!in_use(d, p) && !has_memory(d, p)) forget(d, p);
    }
    ta_lock_drop(&d->pages);
    return known ? TA_OK : TA_INVALID;
}

ta_pool *ta_pool_for(ta_device *d, ta_stream stream)
{
    ta_open_pool *open[TA_OPEN_POOLS];
    ta_pool *found = NULL;
    int count = 0, which = -1;
    ta_lock_take(&d->pages);
    for (ta_open_pool *o = d->open; o; o = o->next) {
        o->calls++;
        open[count++] = o;
    }
    ta_lock_drop(&d->pages);
    for (int i = 0; i < count && which < 0; i++)
        if (open[i]->filter(open[i]->context, stream)) which = i;
    ta_lock_take(&d->pages);
    if (which >= 0) found = open[which]->pool;
    for (int i = 0; i < count; i++) open[i]->calls--;
    if (found) found->users++;
    pthread_cond_broadcast(&d->pool_idle);
    ta_lock_drop(&d->pages);
    return found;
}

void ta_pools_retire(ta_device *d)
{
    for (ta_pool *p = d->pools, *next; p; p = next) {
        next = p->next;
        if (in_use(d, p) || p->begins != p->releases ||
            p->released_at >= d->device_passed)
            continue;
        for (ta_arena *a = d->arenas; a; a = a->next)
            if (atomic_load(&a->pool) == p) {
                a->orphan = true;
                atomic_store(&a->pool, NULL);
            }
        forget(d, p);
    }
}

void ta_pools_destroy(ta_device *d)
{
    for (ta_open_pool *o = d->open, *next; o; o = next) {
        next = o->next;
        free(o);
    }
    for (ta_open_pool *o = d->lost, *next; o; o = next) {
        next = o->next;
        free(o);
    }
    for (ta_pool *p = d->pools, *next; p; p = next) {
        next = p->next;
        free(p);
    }
    d->open = d->lost = NULL;
    d->pools = NULL;
}
