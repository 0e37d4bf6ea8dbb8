/* region.c - regions: their names, and which one an allocation belongs to.
 *
 * Public functions, thread-safe; ta_alloc asks which region its thread is in. How they sleep and
 * wake is in sleep.c. */
#include "region.h"

#include <stdio.h>
#include <string.h>

#include "pages/chunk.h"
#include "device.h"
#include "epoch.h"

/* --- which ------------------------------------------------------------------------------- */
static _Thread_local struct {
    const ta_allocator *allocator;
    ta_region_id id;
} mine;

ta_region *ta_region_by_id(ta_allocator *a, ta_region_id id)
{
    return id && id <= atomic_load(&a->region_count) ? &a->region[id - 1] : NULL;
}

ta_region *ta_region_current(ta_allocator *a)
{
    ta_region_id id = mine.allocator == a ? mine.id : 0;
    return ta_region_by_id(a,
                           id ? id : atomic_load_explicit(&a->led, memory_order_relaxed));
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
    if (id && !ta_region_by_id(a, id)) return TA_INVALID;
    const uintptr_t key = ta_thread_key();
    if (mine.allocator == a) *before = mine.id;
    mine.allocator = a;
    mine.id = id;
    if (id && !*before) atomic_fetch_add(&a->entered, 1);
    /* What is at home on the host is entered for one tensor: nobody follows there. */
    const bool leads = id && ta_region_by_id(a, id)->config.home != TA_ON_HOST;
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
bool ta_region_each(ta_device *d, const ta_region *r, ta_arena_visit *visit,
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

/* --- questions ---------------------------------------------------------------------------- */
static void add_info(ta_device *d, ta_arena *arena, void *context)
{
    ta_region_info *info = context;
    (void)d;
    ta_arena_lock(arena);
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
    ta_arena_unlock(arena);
}

ta_status ta_region_get(ta_allocator *a, ta_region_id id, ta_region_info *info)
{
    memset(info, 0, sizeof *info);
    if (ta_forked(a)) return TA_FORKED;
    ta_region *r = ta_region_by_id(a, id);
    if (!r) return TA_INVALID;
    memcpy(info->name, r->name, sizeof info->name);
    info->config = r->config;
    info->asleep = atomic_load(&r->asleep);
    for (int i = 0; i < TA_MAX_DEVICES; i++) {
        ta_device *d = ta_device_if_used(a, i);
        if (!d) continue;
        ta_lock_take(&d->pages);
        ta_region_each(d, r, add_info, info);
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
    ta_arena_lock(arena);
    if (atomic_load_explicit(&c->arena, memory_order_relaxed) == arena && arena->region) {
        *id = arena->region->id;
        *asleep = atomic_load(&arena->region->asleep);
    }
    ta_arena_unlock(arena);
    return TA_OK;
}
