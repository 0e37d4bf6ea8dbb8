/* step.c - a step's mark: live pages that the safety net put on the host come back, and live
 * pages leave for a cap that was lowered or for others. And the budget of host memory. Public
 * functions, thread-safe. */
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "device.h"
#include "epoch.h"
#include "exchange.h"
#include "pages/pages.h"
#include "plan.h"
#include "ledger/share.h"
#include "tier.h"

/* --- what comes back -------------------------------------------------------------------- */
/* It has pages that belong on the device, and may be moved. */
static bool may_move(const ta_device *d, const ta_arena *a)
{
    return a->spilled && !a->asleep && ta_arena_yields(d, a) && !atomic_load(&a->pool) &&
           !(a->region && a->region->config.home == TA_ON_HOST);
}

/* Live slots of one page size that are on the host; false: no host memory. */
static bool find(ta_device *d, uint64_t page_bytes, ta_moves *m)
{
    bool room = true;
    ta_moves_free(m);
    for (ta_arena *a = d->arenas; a && room; a = a->next)
        if (a->page_bytes == page_bytes && may_move(d, a))
            room = ta_moves_find(m, a, false);
    ta_moves_order(m, true);
    return room;
}

static void mark(ta_device *d, const ta_moves *m, bool moving, bool incoming)
{
    for (size_t i = 0; i < m->count; i++) {
        m->at[i].arena->moving = moving;
        m->at[i].arena->incoming = moving && incoming;
    }
    if (!moving) pthread_cond_broadcast(&d->pool_idle);
}

/* Whatever of one size is on the host, as far as there is room. */
static ta_status bring_back(ta_device *d, uint64_t page_bytes, ta_step_info *info)
{
    ta_moves m = {0};
    ta_lack lack = {0};
    ta_status status = find(d, page_bytes, &m) ? TA_OK : TA_NO_HOST_MEMORY;
    if (m.count && !status) {
        mark(d, &m, true, true);
        status = ta_moves_to_device(d, &m, true, true, &lack);
        if (!status) status = ta_moves_touch(d, &m); /* what found no room once failed */
        mark(d, &m, false, false);
        info->brought_back += m.came;
        info->copy_us += m.copy_us;
    }
    ta_moves_free(&m);
    return status;
}

/* --- what leaves ------------------------------------------------------------------------ */
/* Its live pages on the device may go to the host. */
static bool may_leave(const ta_device *d, const ta_arena *a)
{
    return !a->asleep && ta_arena_yields(d, a) && !atomic_load(&a->pool) &&
           !(a->region && a->region->config.home == TA_ON_HOST);
}

/* Live pages of one size, until `target` bytes are reserved or the host has no more room.
 * Where some cannot be reached there they come back, to the pages they had. */
static ta_status send_out(ta_device *d, uint64_t page_bytes, uint64_t target,
                          ta_step_info *info)
{
    ta_moves m = {0};
    ta_lack lack = {0};
    bool room = true;
    uint64_t pinned = 0;
    const uint64_t held = ta_reserved(d);
    for (ta_arena *a = d->arenas; a && room; a = a->next)
        if (a->page_bytes == page_bytes && may_leave(d, a))
            room = ta_moves_find(&m, a, true);
    ta_status status = room ? TA_OK : TA_NO_HOST_MEMORY;
    if (status || !m.count || held <= target) {
        ta_moves_free(&m);
        return status;
    }
    ta_moves_order(&m, false);
    size_t count = (size_t)((held - target + page_bytes - 1) / page_bytes);
    const size_t found = m.count;
    if (count > found) count = found;
    mark(d, &m, true, false);
    while (count && (status = ta_moves_take(d, &m, count, &pinned))) count /= 2;
    if (count) {
        m.count = count;
        status = ta_moves_to_host(d, &m, true, true);
        if (status) ta_moves_touch(d, &m);
        if (status && ta_moves_amiss(&m)) ta_moves_to_device(d, &m, true, true, &lack);
    } else if (status == TA_OUT_OF_MEMORY || status == TA_NO_HOST_MEMORY)
        status = TA_OK; /* there it stays */
    m.count = found;
    mark(d, &m, false, false);
    info->sent_out += m.copied;
    info->copy_us += m.copy_us;
    ta_moves_free(&m);
    ta_ready *ready = ta_ready_of(d, page_bytes);
    while (ready->count && ta_reserved(d) > target)
        if (ta_ready_release(d, ready)) break;
    return status;
}

/* At least so many bytes leave, idle ones first. */
static ta_status make_room(ta_device *d, uint64_t bytes, ta_step_info *info)
{
    uint64_t held = ta_reserved(d), target = held > bytes ? held - bytes : 0,
             released = 0;
    ta_status status = ta_pages_give_back(d, target, false, &released);
    for (unsigned i = 0; i < TA_PAGE_SIZES && !status; i++)
        if (d->sizes >> i & 1)
            status = send_out(d, ta_ready_bytes(d, &d->ready[i]), target, info);
    ta_pages_judge(d);
    return status;
}

/* --- the mark --------------------------------------------------------------------------- */
/* What a mark has to do. */
typedef struct ta_chores {
    bool back;              /* something is on the host */
    uint64_t over, yielded; /* bytes beyond our own cap, and for others */
    bool ended;             /* the step was */
    bool hosts;             /* host pages that are idle serve nobody any more */
    bool tidy;              /* something idle has pages that it should not have */
} ta_chores;

/* As long as a step that was learned sends requests to the host: others, and other programs, may
 * have left room for all of it. */
static void look_for_room(ta_device *d)
{
    const ta_driver *driver = d->allocator->driver;
    uintptr_t saved[2];
    uint64_t unheld = 0, total;
    if (!ta_plan_sends(d) || ta_enter(d, saved)) return;
    ta_status status = driver->mem_info(driver->self, d->ordinal, &unheld, &total);
    ta_leave(d, saved);
    if (status) return;
    const uint64_t shared = ta_share_room(d), limit = ta_limit_of(d, NULL),
                   held = ta_reserved(d);
    if (shared < unheld) unheld = shared;
    const uint64_t most = held + unheld;
    ta_plan_room(d, most < limit ? most : limit);
}

/* The learned order's step ends. */
static void end_step(ta_device *d, ta_chores *chores)
{
    const bool wanting = ta_plan_step(d);
    look_for_room(d);
    chores->ended = true;
    chores->hosts = !wanting || ta_host_beyond(d->allocator);
}

static ta_status step_on(ta_device *d, ta_chores *chores, ta_step_info *info)
{
    const uint64_t sent = info->sent_out, bytes = chores->over > chores->yielded
                                                      ? chores->over
                                                      : chores->yielded;
    ta_status status = TA_OK;
    ta_host_settle(d);
    for (ta_arena *a = d->arenas; a; a = a->next) ta_pending_poll(d, a);
    if (bytes) status = make_room(d, bytes, info);
    if (chores->yielded) ta_share_yield(d, info->sent_out > sent);
    const bool back = info->sent_out == sent && !ta_share_yields(d);
    for (unsigned i = 0; i < TA_PAGE_SIZES && back && !status; i++)
        if (d->sizes >> i & 1)
            status = bring_back(d, ta_ready_bytes(d, &d->ready[i]), info);
    for (ta_arena *a = d->arenas; a; a = a->next) {
        if (!may_move(d, a)) continue;
        ta_moves left = {0};
        ta_moves_find(&left, a, false);
        info->still_on_host += left.count * a->page_bytes;
        ta_moves_free(&left);
    }
    if (!chores->ended) end_step(d, chores);
    ta_tier_tidy(d, chores->hosts);
    ta_host_shrink(d);
    ta_share_say_spilled(d);
    return status;
}

/* Where there is nothing to do the step ends here. */
static bool anything(ta_device *d, ta_chores *chores)
{
    *chores = (ta_chores){0};
    ta_lock_take(&d->pages);
    for (ta_arena *a = d->arenas; a && !chores->back; a = a->next) {
        ta_moves m = {0};
        if (!may_move(d, a)) continue;
        ta_moves_find(&m, a, false);
        chores->back = m.count;
        ta_moves_free(&m);
    }
    if (atomic_load(&d->allocator->net) && !d->plain) {
        const uint64_t limit = ta_limit_of(d, NULL), held = ta_reserved(d);
        chores->over = held > limit ? held - limit : 0;
        chores->yielded = ta_share_excess(d);
    }
    if (!chores->back && !chores->over && !chores->yielded) {
        end_step(d, chores);
        chores->tidy = ta_tier_idles(d, chores->hosts);
        ta_share_say_spilled(d);
    }
    ta_lock_drop(&d->pages);
    return !chores->ended || chores->tidy;
}

ta_status ta_step(ta_allocator *a, int device, ta_step_info *info)
{
    ta_step_info unused;
    if (!info) info = &unused;
    memset(info, 0, sizeof *info);
    if (ta_forked(a)) return TA_FORKED;
    if (device < -1 || device >= TA_MAX_DEVICES) return TA_INVALID;
    const double since = ta_now_us();
    ta_status status = TA_OK;
    bool waited = false;
    for (int i = 0; i < TA_MAX_DEVICES && !status; i++) {
        ta_device *d = device < 0 || device == i ? ta_device_if_used(a, i) : NULL;
        uintptr_t saved[2];
        ta_chores chores;
        if (!d || !anything(d, &chores)) continue;
        if (!waited) status = ta_devices_wait(a);
        waited = !status;
        if (status == TA_NOT_READY) {
            status = chores.ended ? TA_OK : TA_BUSY; /* idle pages can wait */
            if (!status) continue;
        }
        if (status || (status = ta_enter(d, saved))) continue;
        ta_lock_take(&d->pages);
        d->device_waits++; /* no capture begins meanwhile */
        status = step_on(d, &chores, info);
        d->device_waits--;
        pthread_cond_broadcast(&d->pool_idle);
        ta_lock_drop(&d->pages);
        ta_leave(d, saved);
    }
    info->us = ta_now_us() - since;
    return status;
}

/* --- the budget ------------------------------------------------------------------------- */
static ta_status give_back(ta_allocator *a, uint64_t keep, uint64_t *released)
{
    ta_status status = TA_OK;
    for (int i = 0; i < TA_MAX_DEVICES; i++) {
        ta_device *d = ta_device_if_used(a, i);
        uintptr_t saved[2];
        if (!d || atomic_load(&a->host_held) <= keep) continue;
        ta_status failed = ta_enter(d, saved);
        if (!failed) {
            ta_lock_take(&d->pages);
            if ((d->host.unsure || d->adrift) && !ta_device_wait(d)) ta_host_settle(d);
            ta_tier_sweep(d);
            failed = ta_host_release(d, keep, released);
            ta_lock_drop(&d->pages);
            ta_leave(d, saved);
        }
        if (failed) status = failed;
    }
    return status;
}

ta_status ta_set_spill(ta_allocator *a, const ta_spill_config *config)
{
    const ta_spill_config off = {0};
    uint64_t released = 0;
    if (!config) config = &off;
    if (ta_forked(a)) return TA_FORKED;
    if (config->host_bytes && !ta_host_supported(a)) return TA_UNSUPPORTED;
    atomic_store(&a->host_budget, config->host_bytes);
    atomic_store(&a->net, config->net && config->host_bytes);
    return give_back(a, config->host_bytes, &released);
}

ta_status ta_host_trim(ta_allocator *a, uint64_t *released)
{
    uint64_t bytes = 0;
    if (!released) released = &bytes;
    *released = 0;
    if (ta_forked(a)) return TA_FORKED;
    return give_back(a, 0, released);
}
