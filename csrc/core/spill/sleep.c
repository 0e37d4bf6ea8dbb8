/* sleep.c - regions sleep and wake.
 *
 * Public functions, thread-safe. Each marks the region's arenas `moving` on every device, waits
 * for all devices, exchanges the pages (exchange.c), and undoes what it did where one of them
 * fails. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "pages/chunk.h"
#include "clock.h"
#include "device.h"
#include "epoch.h"
#include "exchange.h"
#include "pages/pages.h"
#include "region.h"
#include "ledger/share.h"
#include "tier.h"

typedef struct ta_marks {
    bool moving, asleep;
} ta_marks;

static void mark_arena(ta_device *d, ta_arena *arena, void *context)
{
    const ta_marks *marks = context;
    (void)d;
    ta_arena_lock(arena);
    arena->moving = marks->moving;
    arena->asleep = marks->asleep;
    ta_arena_unlock(arena);
}

static void find_moving(ta_device *d, ta_arena *arena, void *context)
{
    bool *moves = context;
    (void)d;
    *moves |= arena->moving;
}

/* A step moves some of its pages: over before anything else does. */
static void await_step(ta_device *d, const ta_region *r)
{
    for (bool moves = true; moves;) {
        moves = false;
        ta_region_each(d, r, find_moving, &moves);
        if (moves) pthread_cond_wait(&d->pool_idle, &d->pages.mutex);
    }
}

/* On every device, while no capture may begin if they move. Takes each one's `pages`. */
static void mark_all(ta_allocator *a, const ta_region *r, bool moving, bool asleep)
{
    ta_marks marks = {moving, asleep};
    for (int i = 0; i < TA_MAX_DEVICES; i++) {
        ta_device *d = ta_device_if_used(a, i);
        if (!d) continue;
        ta_lock_take(&d->pages);
        if (moving) await_step(d, r);
        ta_region_each(d, r, mark_arena, &marks);
        if (!moving) pthread_cond_broadcast(&d->pool_idle);
        ta_lock_drop(&d->pages);
    }
}

/* --- sleep and wake on one device --------------------------------------------------------- */
/* What a call does on each device. */
typedef struct ta_passage {
    const ta_region *region;
    bool keep;
    ta_sleep_info *info;
    ta_moves moves;
    bool room; /* for the moves */
    bool undo; /* of a sleep: what has no room on the device may stay on the host */
    ta_status status;
} ta_passage;

static ta_status refuse(ta_sleep_info *info, ta_status status, const char *why)
{
    if (!info->why[0]) snprintf(info->why, sizeof info->why, "%s", why);
    return status;
}

/* Nothing in it may be in use by work, and what is idle goes to the ready ones. */
static void prepare(ta_device *d, ta_arena *arena, void *context)
{
    ta_passage *p = context;
    enum { MOST = 64 };
    ta_handle pages[MOST];
    if (p->status) return;
    ta_pending_poll(d, arena);
    ta_pages_mend(d, arena);
    ta_arena_lock(arena);
    const bool pending = arena->pending_first != NULL, broken = arena->broken != NULL;
    for (size_t got; !p->status && !pending && !broken &&
                     (got = ta_arena_steal(arena, MOST, TA_NEVER, pages, &p->status));)
        while (got)
            if (!ta_ready_push(d, pages[--got], arena->page_bytes))
                ta_page_release(d, pages[got], arena->page_bytes);
    ta_arena_unlock(arena);
    if (pending)
        p->status = refuse(p->info, TA_BUSY,
                           "blocks of it were freed while a stream still uses them");
    if (broken)
        p->status = refuse(p->info, TA_DRIVER,
                           "the driver neither maps nor unmaps some of its pages");
}

static void find_on_device(ta_device *d, ta_arena *arena, void *context)
{
    ta_passage *p = context;
    (void)d;
    p->room &= ta_moves_find(&p->moves, arena, true);
}

static void find_elsewhere(ta_device *d, ta_arena *arena, void *context)
{
    ta_passage *p = context;
    (void)d;
    p->room &= ta_moves_find(&p->moves, arena, false);
}

/* A host page for each of the first `count` moves. */
static ta_status take_pages(ta_device *d, ta_passage *p, size_t count)
{
    ta_sleep_info *info = p->info;
    const double since = ta_now_us();
    const uint64_t before = info->pinned;
    ta_status status = ta_moves_take(d, &p->moves, count, &info->pinned);
    if (info->pinned > before) info->pin_us += ta_now_us() - since;
    if (status == TA_OUT_OF_MEMORY)
        refuse(info, status, "the budget of host memory is used up");
    else if (status == TA_NO_HOST_MEMORY)
        refuse(info, status, "the machine has no more memory to pin");
    else if (status)
        refuse(info, status, "the driver makes no pages of host memory");
    return status;
}

static void count_moves(ta_passage *p)
{
    p->info->copied += p->moves.copied;
    p->info->dropped += p->moves.dropped;
    p->info->copy_us += p->moves.copy_us;
    ta_moves_free(&p->moves);
}

/* `pages` held; the device has passed all its work. */
static ta_status sleep_on(ta_device *d, ta_passage *p)
{
    const ta_region_config *config = &p->region->config;
    const uint64_t before = ta_reserved(d);
    ta_region_each(d, p->region, prepare, p);
    if (p->status) return p->status;
    p->room = p->moves.release = p->moves.apart = true;
    ta_region_each(d, p->region, find_on_device, p);
    const size_t leaving = p->moves.count;
    /* What is on the host already goes from its place, or altogether. */
    if (!config->touch_host || !p->keep) ta_region_each(d, p->region, find_elsewhere, p);
    if (!p->room) p->status = TA_NO_HOST_MEMORY;
    if (!p->status && p->keep && leaving) p->status = take_pages(d, p, leaving);
    if (!p->status) {
        p->status = ta_moves_to_host(d, &p->moves, p->keep, config->touch_host);
        if (p->status) refuse(p->info, p->status, "the driver failed");
    }
    count_moves(p);
    ta_ready *ready = ta_ready_of(d, config->page_bytes);
    while (!p->status && ready->count)
        if (ta_ready_release(d, ready)) break; /* it stays ours, ready for others */
    const uint64_t after = ta_reserved(d);
    if (before > after) p->info->device += before - after;
    return p->status;
}

static ta_status wake_home_host(ta_device *d, ta_passage *p)
{
    size_t empty = 0;
    for (size_t i = 0; i < p->moves.count; i++) { /* those without a page first */
        ta_move *m = &p->moves.at[i], other = *m;
        if (ta_slot_is(m->chunk, m->slot) != TA_SLOT_VOID) continue;
        *m = p->moves.at[empty];
        p->moves.at[empty++] = other;
    }
    if (empty && (p->status = take_pages(d, p, empty))) return p->status;
    for (size_t i = 0; i < empty; i++) {
        ta_move *m = &p->moves.at[i];
        ta_arena_lock(m->arena);
        if (ta_chunk_has(m->chunk, m->slot))
            ta_slot_become(m->arena, m->chunk, m->slot, TA_SLOT_AWAY, m->page);
        else
            ta_host_put(d, m->page);
        ta_arena_unlock(m->arena);
        m->page = NULL;
    }
    return p->status = ta_moves_touch(d, &p->moves);
}

/* Every slot is on the device or reaches the host. */
static ta_status settle_undone(ta_device *d, ta_passage *p)
{
    ta_status status = ta_moves_touch(d, &p->moves);
    for (size_t i = 0; i < p->moves.count && !status; i++) {
        const ta_move *m = &p->moves.at[i];
        ta_arena_lock(m->arena);
        const ta_slot_state state = ta_slot_is(m->chunk, m->slot);
        if (ta_chunk_has(m->chunk, m->slot) &&
            (state > TA_SLOT_HOST || ta_slot_shut(m->chunk, m->slot)))
            status = TA_DRIVER;
        ta_arena_unlock(m->arena);
    }
    return status;
}

static ta_status wake_device(ta_device *d, ta_passage *p)
{
    const ta_region_config *config = &p->region->config;
    const size_t count = p->moves.count;
    ta_lack lack = {0};
    if (!p->undo) p->status = ta_look_ahead(d, count, config->page_bytes, &lack);
    if (!p->status)
        p->status = ta_moves_to_device(d, &p->moves, p->undo, config->touch_host, &lack);
    if (p->status == TA_OUT_OF_MEMORY)
        refuse(p->info, p->status, "the device has no room for it");
    else if (p->status)
        refuse(p->info, p->status, "the driver failed");
    else
        p->info->device += p->moves.came;
    ta_share_settle(d);
    if (p->undo) p->status = settle_undone(d, p);
    return p->status;
}

static ta_status wake_on(ta_device *d, ta_passage *p)
{
    p->room = true;
    ta_region_each(d, p->region, find_elsewhere, p);
    if (!p->room) p->status = TA_NO_HOST_MEMORY;
    if (!p->status && p->moves.count) {
        if (p->region->config.home == TA_ON_HOST)
            wake_home_host(d, p);
        else
            wake_device(d, p);
    }
    count_moves(p);
    return p->status;
}

/* --- on all ------------------------------------------------------------------------------- */
typedef ta_status ta_on_device(ta_device *d, ta_passage *p);

/* One after the other, up to the first that fails; *done: how many ordinals were gone
 * through without. */
static ta_status on_all(ta_allocator *a, ta_passage *p, ta_on_device *act, int most,
                        int *done)
{
    ta_status status = TA_OK;
    int i = 0;
    for (; i < most && !status; i++) {
        ta_device *d = ta_device_if_used(a, i);
        uintptr_t saved[2];
        if (!d) continue;
        if ((status = ta_enter(d, saved))) {
            refuse(p->info, status, "the driver failed");
            continue;
        }
        ta_lock_take(&d->pages);
        p->status = TA_OK;
        ta_host_settle(d); /* all devices were waited for */
        if (ta_region_each(d, p->region, NULL, NULL)) {
            if (d->plain)
                status = refuse(p->info, TA_UNSUPPORTED,
                                "the device has no virtual memory management");
            else
                status = act(d, p);
        }
        ta_share_say_spilled(d);
        ta_lock_drop(&d->pages);
        ta_leave(d, saved);
    }
    if (done) *done = status ? i - 1 : i;
    return status;
}

/* No capture begins on any device, used already or not: some first use may come meanwhile. */
static void hold_captures(ta_allocator *a, int by)
{
    for (int i = 0; i < TA_MAX_DEVICES; i++) {
        ta_device *d = &a->device[i];
        ta_lock_take(&d->pages);
        d->device_waits += by;
        pthread_cond_broadcast(&d->pool_idle);
        ta_lock_drop(&d->pages);
    }
}

/* What was freed meanwhile goes. */
static void tidy(ta_allocator *a)
{
    for (int i = 0; i < TA_MAX_DEVICES; i++) {
        ta_device *d = ta_device_if_used(a, i);
        uintptr_t saved[2];
        if (!d || ta_enter(d, saved)) continue;
        ta_lock_take(&d->pages);
        ta_tier_tidy(d, false);
        ta_host_shrink(d);
        ta_lock_drop(&d->pages);
        ta_leave(d, saved);
    }
}

/* TA_OK with *nothing: it is as it should be. */
static ta_status begin(ta_allocator *a, ta_region *r, bool sleep, ta_sleep_info *info,
                       bool *nothing)
{
    ta_status status = TA_OK;
    memset(info, 0, sizeof *info);
    ta_lock_take(&a->setup);
    *nothing = false;
    if (r->busy)
        status = refuse(info, TA_BUSY, "another thread sends it to sleep or wakes it");
    else
        *nothing = atomic_load(&r->asleep) == sleep && !(sleep && r->partial);
    if (!status && !*nothing) r->busy = true;
    ta_lock_drop(&a->setup);
    return status;
}

static void end(ta_allocator *a, ta_region *r)
{
    ta_lock_take(&a->setup);
    r->busy = false;
    ta_lock_drop(&a->setup);
}

static ta_status wait_for_all(ta_allocator *a, ta_sleep_info *info)
{
    ta_status status = ta_devices_wait(a);
    if (status == TA_NOT_READY)
        return refuse(info, TA_BUSY, "a CUDA graph is being captured");
    return status ? refuse(info, status, "the driver failed") : TA_OK;
}

ta_status ta_region_sleep(ta_allocator *a, ta_region_id id, bool keep,
                          ta_sleep_info *info)
{
    ta_sleep_info unused;
    const double since = ta_now_us();
    bool nothing;
    if (!info) info = &unused;
    if (ta_forked(a)) return TA_FORKED;
    ta_region *r = ta_region_by_id(a, id);
    if (!r) return TA_INVALID;
    ta_status status = begin(a, r, true, info, &nothing);
    if (status || nothing) return status;
    ta_passage p = {.region = r, .keep = keep, .info = info};
    int reached = 0;
    atomic_store(&r->asleep, true);
    r->kept = keep;
    hold_captures(a, 1);
    mark_all(a, r, true, true);
    status = wait_for_all(a, info);
    const bool begun = !status;
    if (begun) status = on_all(a, &p, sleep_on, TA_MAX_DEVICES, &reached);
    bool asleep = begun;
    if (begun && status) { /* all of it back; else it goes on sleeping */
        ta_sleep_info back = {0};
        ta_passage undo = {.region = r, .keep = true, .info = &back, .undo = true};
        asleep = wait_for_all(a, &back) ||
                 on_all(a, &undo, wake_on, TA_MAX_DEVICES, NULL) != TA_OK;
    }
    r->partial = asleep && status;
    atomic_store(&r->asleep, asleep);
    mark_all(a, r, false, asleep);
    tidy(a);
    hold_captures(a, -1);
    end(a, r);
    info->us = ta_now_us() - since;
    return status;
}

ta_status ta_region_wake(ta_allocator *a, ta_region_id id, ta_sleep_info *info)
{
    ta_sleep_info unused;
    const double since = ta_now_us();
    bool nothing;
    if (!info) info = &unused;
    if (ta_forked(a)) return TA_FORKED;
    ta_region *r = ta_region_by_id(a, id);
    if (!r) return TA_INVALID;
    ta_status status = begin(a, r, false, info, &nothing);
    if (status || nothing) return status;
    ta_passage p = {.region = r, .keep = true, .info = info};
    int reached = 0;
    hold_captures(a, 1);
    mark_all(a, r, true, true);
    status = wait_for_all(a, info);
    if (!status && (status = on_all(a, &p, wake_on, TA_MAX_DEVICES, &reached))) {
        ta_sleep_info back = {0};
        ta_passage undo = {.region = r, .keep = r->kept, .info = &back};
        r->partial |= on_all(a, &undo, sleep_on, reached, NULL) != TA_OK ||
                      status != TA_OUT_OF_MEMORY;
    }
    if (!status) r->partial = false;
    if (!status) atomic_store(&r->asleep, false);
    mark_all(a, r, false, status != TA_OK);
    tidy(a);
    hold_captures(a, -1);
    end(a, r);
    info->us = ta_now_us() - since;
    return status;
}
