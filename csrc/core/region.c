/* region.c - regions: what is allocated in one, and how it sleeps and wakes.
 *
 * Public functions, thread-safe; ta_alloc asks which region it is in. A sleep or wake marks the
 * region's arenas `moving` on every device, waits for the devices, exchanges the pages
 * (exchange.c), and undoes what it did where one of them fails. */
#include "region.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "chunk.h"
#include "clock.h"
#include "device.h"
#include "epoch.h"
#include "exchange.h"
#include "pages.h"
#include "share.h"
#include "tier.h"

/* --- which ------------------------------------------------------------------------------- */
static _Thread_local struct {
    const ta_allocator *allocator;
    ta_region_id id;
} mine;

static ta_region *by_id(ta_allocator *a, ta_region_id id)
{
    return id && id <= atomic_load(&a->region_count) ? &a->region[id - 1] : NULL;
}

ta_region *ta_region_current(ta_allocator *a)
{
    ta_region_id id = mine.allocator == a ? mine.id : 0;
    return by_id(a, id ? id : atomic_load_explicit(&a->led, memory_order_relaxed));
}

static bool same_config(const ta_region_config *a, const ta_region_config *b)
{
    return a->page_bytes == b->page_bytes && a->home == b->home &&
           a->touch_host == b->touch_host;
}

ta_status ta_region_open(ta_allocator *a, const char *name,
                         const ta_region_config *config, ta_region_id *id)
{
    const uint64_t least = a->config.page_bytes ? a->config.page_bytes : TA_DEFAULT_PAGE;
    ta_region_config c = config ? *config : (ta_region_config){0};
    *id = 0;
    if (ta_forked(a)) return TA_FORKED;
    if (!c.page_bytes) c.page_bytes = least > TA_REGION_PAGE ? least : TA_REGION_PAGE;
    if (c.page_bytes < least || c.page_bytes & (c.page_bytes - 1) ||
        c.page_bytes > TA_LOOKUP_BYTES || c.home > TA_ON_HOST || !*name ||
        strlen(name) >= TA_REGION_TEXT)
        return TA_INVALID;
    ta_status status = TA_OK;
    ta_lock_take(&a->setup);
    const unsigned count = atomic_load(&a->region_count);
    for (unsigned i = 0; i < count && !*id; i++)
        if (!strcmp(a->region[i].name, name)) *id = i + 1;
    if (*id && !same_config(&a->region[*id - 1].config, &c))
        status = TA_INVALID;
    else if (!*id && count == TA_REGIONS)
        status = TA_INVALID;
    else if (!*id) {
        ta_region *r = &a->region[count];
        snprintf(r->name, sizeof r->name, "%s", name);
        r->config = c;
        *id = r->id = count + 1;
        atomic_store(&a->region_count, count + 1);
    }
    ta_lock_drop(&a->setup);
    if (status) *id = 0;
    return status;
}

ta_status ta_region_enter(ta_allocator *a, ta_region_id id, ta_region_id *before)
{
    ta_region_id unused;
    if (!before) before = &unused;
    *before = 0;
    if (ta_forked(a)) return TA_FORKED;
    if (id && !by_id(a, id)) return TA_INVALID;
    const uintptr_t key = ta_thread_key();
    if (mine.allocator == a) *before = mine.id;
    mine.allocator = a;
    mine.id = id;
    if (id && !*before) atomic_fetch_add(&a->entered, 1);
    /* What is at home on the host is entered for one tensor: nobody follows there. */
    const bool leads = id && by_id(a, id)->config.home != TA_ON_HOST;
    uintptr_t nobody = 0;
    if (leads && atomic_compare_exchange_strong(&a->leader, &nobody, key)) nobody = key;
    if (leads && nobody == key) atomic_store(&a->led, id);
    if (!id && atomic_load(&a->leader) == key) {
        atomic_store(&a->led, 0);
        atomic_store(&a->leader, 0);
    }
    if (!id && *before) atomic_fetch_sub(&a->entered, 1);
    return TA_OK;
}

/* --- its arenas --------------------------------------------------------------------------- */
typedef void ta_arena_visit(ta_device *d, ta_arena *arena, void *context);

/* `pages` held. */
static bool each_arena(ta_device *d, const ta_region *r, ta_arena_visit *visit,
                       void *context)
{
    bool any = false;
    for (ta_arena *a = d->arenas; a; a = a->next) {
        if (a->region != r) continue;
        any = true;
        if (visit) visit(d, a, context);
    }
    return any;
}

typedef struct ta_marks {
    bool moving, asleep;
} ta_marks;

static void mark_arena(ta_device *d, ta_arena *arena, void *context)
{
    const ta_marks *marks = context;
    (void)d;
    ta_lock_take(&arena->lock);
    arena->moving = marks->moving;
    arena->asleep = marks->asleep;
    ta_lock_drop(&arena->lock);
}

/* On every device, while no capture may begin if they move. Takes each one's `pages`. */
static void mark_all(ta_allocator *a, const ta_region *r, bool moving, bool asleep)
{
    ta_marks marks = {moving, asleep};
    for (int i = 0; i < TA_MAX_DEVICES; i++) {
        ta_device *d = ta_device_if_used(a, i);
        if (!d) continue;
        ta_lock_take(&d->pages);
        each_arena(d, r, mark_arena, &marks);
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
    ta_lock_take(&arena->lock);
    const bool pending = arena->pending_first != NULL, broken = arena->broken != NULL;
    for (size_t got; !p->status && !pending && !broken &&
                     (got = ta_arena_steal(arena, MOST, TA_NEVER, pages, &p->status));)
        while (got)
            if (!ta_ready_push(d, pages[--got], arena->page_bytes))
                ta_page_release(d, pages[got], arena->page_bytes);
    ta_lock_drop(&arena->lock);
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

/* A host page for each of the first `count` moves. Pinning takes long: with `pages` dropped. */
static ta_status take_pages(ta_device *d, ta_passage *p, size_t count)
{
    ta_sleep_info *info = p->info;
    ta_host_page **pages = calloc(count + 1, sizeof *pages);
    if (!pages) return TA_NO_HOST_MEMORY;
    const double since = ta_now_us();
    const uint64_t before = info->pinned;
    ta_tier_sweep(d);
    ta_lock_drop(&d->pages);
    ta_status status =
        ta_host_take(d, p->region->config.page_bytes, count, pages, &info->pinned);
    ta_lock_take(&d->pages);
    if (info->pinned > before) info->pin_us += ta_now_us() - since;
    for (size_t i = 0; i < count && !status; i++) p->moves.at[i].page = pages[i];
    free(pages);
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
    each_arena(d, p->region, prepare, p);
    if (p->status) return p->status;
    p->room = p->moves.release = true;
    each_arena(d, p->region, find_on_device, p);
    const size_t leaving = p->moves.count;
    /* What is on the host already goes from its place, or altogether. */
    if (!config->touch_host || !p->keep) each_arena(d, p->region, find_elsewhere, p);
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
        ta_lock_take(&m->arena->lock);
        if (ta_chunk_has(m->chunk, m->slot))
            ta_slot_become(m->arena, m->chunk, m->slot, TA_SLOT_AWAY, m->page);
        else
            ta_host_put(d, m->page);
        ta_lock_drop(&m->arena->lock);
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
        ta_lock_take(&m->arena->lock);
        const ta_slot_state state = ta_slot_is(m->chunk, m->slot);
        if (ta_chunk_has(m->chunk, m->slot) && state > TA_SLOT_HOST) status = TA_DRIVER;
        ta_lock_drop(&m->arena->lock);
    }
    return status;
}

static ta_status wake_device(ta_device *d, ta_passage *p)
{
    const ta_region_config *config = &p->region->config;
    const size_t count = p->moves.count;
    ta_lack lack = {0};
    ta_hand hand = {.pages = calloc(count, sizeof *hand.pages),
                    .bytes = config->page_bytes,
                    .want = count};
    hand.modest = p->undo;
    if (!hand.pages) p->status = TA_NO_HOST_MEMORY;
    if (!p->status && !p->undo) p->status = ta_look_ahead(d, count, hand.bytes, &lack);
    if (!p->status) p->status = ta_gather(d, &hand, count * hand.bytes, &lack);
    if (p->undo && p->status == TA_OUT_OF_MEMORY) p->status = TA_OK;
    if (p->status == TA_OUT_OF_MEMORY)
        refuse(p->info, p->status, "the device has no room for it");
    const size_t had = hand.count;
    if (!p->status) {
        p->status = ta_moves_to_device(d, &p->moves, &hand, config->touch_host);
        if (p->status) refuse(p->info, p->status, "the driver failed");
        if (!p->status) hand.created = 0;
        p->info->device += (had - hand.count) * hand.bytes;
    }
    ta_put_down(d, &hand, false);
    free(hand.pages);
    if (p->undo) p->status = settle_undone(d, p);
    return p->status;
}

static ta_status wake_on(ta_device *d, ta_passage *p)
{
    p->room = true;
    each_arena(d, p->region, find_elsewhere, p);
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
        if (!d || (status = ta_enter(d, saved))) continue;
        ta_lock_take(&d->pages);
        p->status = TA_OK;
        ta_host_settle(d); /* all devices were waited for */
        if (each_arena(d, p->region, NULL, NULL)) {
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

/* No capture begins on any device. */
static void hold_captures(ta_allocator *a, int by)
{
    for (int i = 0; i < TA_MAX_DEVICES; i++) {
        ta_device *d = ta_device_if_used(a, i);
        if (!d) continue;
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
        ta_tier_tidy(d);
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
    *nothing = atomic_load(&r->asleep) == sleep;
    if (r->busy)
        status = refuse(info, TA_BUSY, "another thread sends it to sleep or wakes it");
    else if (!*nothing)
        r->busy = true;
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
    ta_region *r = by_id(a, id);
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
    if (!status) status = on_all(a, &p, sleep_on, TA_MAX_DEVICES, &reached);
    bool asleep = !status;
    if (status && !wait_for_all(a, info)) { /* all of it back; else it goes on sleeping */
        ta_sleep_info back = {0};
        ta_passage undo = {.region = r, .keep = true, .info = &back, .undo = true};
        asleep = on_all(a, &undo, wake_on, TA_MAX_DEVICES, NULL) != TA_OK;
    } else if (status)
        asleep = false; /* nothing has begun */
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
    ta_region *r = by_id(a, id);
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
        on_all(a, &undo, sleep_on, reached, NULL);
    }
    if (!status) atomic_store(&r->asleep, false);
    mark_all(a, r, false, status != TA_OK);
    tidy(a);
    hold_captures(a, -1);
    end(a, r);
    info->us = ta_now_us() - since;
    return status;
}

/* --- questions ---------------------------------------------------------------------------- */
static void add_info(ta_device *d, ta_arena *arena, void *context)
{
    ta_region_info *info = context;
    (void)d;
    ta_lock_take(&arena->lock);
    info->blocks += arena->counts.live_blocks;
    info->allocated += arena->counts.live_bytes;
    for (const ta_chunk *c = arena->chunks; c; c = c->next) {
        uint64_t spilled = 0;
        for (uint32_t i = 0; i < c->slots && c->spilled_count; i++) {
            const ta_slot_state state = ta_slot_is(c, i);
            if (state == TA_SLOT_DEVICE) continue;
            if (state == TA_SLOT_COMING) info->device += c->page_bytes;
            if (!ta_chunk_has(c, i)) continue;
            spilled++;
            if (state == TA_SLOT_VOID) info->dropped += c->page_bytes;
            if (state == TA_SLOT_HOST || state == TA_SLOT_AWAY)
                info->host += c->page_bytes;
        }
        info->device += (c->mapped_count - spilled) * c->page_bytes;
    }
    ta_lock_drop(&arena->lock);
}

ta_status ta_region_get(ta_allocator *a, ta_region_id id, ta_region_info *info)
{
    memset(info, 0, sizeof *info);
    if (ta_forked(a)) return TA_FORKED;
    ta_region *r = by_id(a, id);
    if (!r) return TA_INVALID;
    memcpy(info->name, r->name, sizeof info->name);
    info->config = r->config;
    info->asleep = atomic_load(&r->asleep);
    for (int i = 0; i < TA_MAX_DEVICES; i++) {
        ta_device *d = ta_device_if_used(a, i);
        if (!d) continue;
        ta_lock_take(&d->pages);
        each_arena(d, r, add_info, info);
        ta_lock_drop(&d->pages);
    }
    return TA_OK;
}

ta_status ta_region_of(ta_allocator *a, const void *ptr, ta_region_id *id, bool *asleep)
{
    *id = 0;
    *asleep = false;
    if (ta_forked(a)) return TA_FORKED;
    ta_chunk *c = ta_lookup(a, (uintptr_t)ptr);
    ta_arena *arena = c ? atomic_load_explicit(&c->arena, memory_order_acquire) : NULL;
    if (!arena) return TA_OK;
    ta_lock_take(&arena->lock);
    if (atomic_load_explicit(&c->arena, memory_order_relaxed) == arena && arena->region) {
        *id = arena->region->id;
        *asleep = atomic_load(&arena->region->asleep);
    }
    ta_lock_drop(&arena->lock);
    return TA_OK;
}
