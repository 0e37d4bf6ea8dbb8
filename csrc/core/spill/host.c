/* host.c - the host tier: pinned pages of each device, under one budget of the process.
 *
 * Called by tier.c and sleep.c with any lock or none; thread-safe. Pinning costs ten times
 * what a copy does, and opening a page to the device more than a copy: so a page is made once,
 * keeps an address of its own where copies find it, and goes back to the machine only when
 * somebody asks for that. Invariants:
 *     allocator.host_held = sum over devices of stats.host.current <= what the budget was
 *     stats.host.current = bytes of the pages that are not vacant */
#include "host.h"

#include <stdlib.h>

#include "calls.h"
#include "count.h"
#include "crew.h"
#include "device.h"

#define SPARED 16u /* this part of what is available stays the machine's */
#define THREADS 4u /* that pin at once: more gain nothing */
#define BY_ONE ((uint64_t)128 << 20) /* bytes for which a thread is worth its start */

/* A range of addresses, cut into pages of one size. */
typedef struct ta_host_slab {
    struct ta_host_slab *next;
    uint64_t addr, page_bytes;
    uint32_t count;
    ta_host_page pages[];
} ta_host_slab;

static unsigned size_of(uint64_t bytes)
{
    return (unsigned)__builtin_ctzll(bytes / TA_GRANULE);
}

bool ta_host_supported(const ta_allocator *a)
{
    return a->driver->host_memory && a->driver->copy_stream && a->driver->copy;
}

static ta_host_page *pop(ta_device *d, ta_host_page **list)
{
    ta_lock_take(&d->host.lock);
    ta_host_page *page = *list;
    if (page) *list = page->next;
    ta_lock_drop(&d->host.lock);
    return page;
}

static void push(ta_device *d, ta_host_page **list, ta_host_page *page)
{
    ta_lock_take(&d->host.lock);
    page->next = *list;
    *list = page;
    ta_lock_drop(&d->host.lock);
}

void ta_host_put(ta_device *d, ta_host_page *page)
{
    if (!page) return;
    page->shut = false;
    push(d, &d->host.idle[size_of(page->bytes)], page);
}

void ta_host_put_unsure(ta_device *d, ta_host_page *page)
{
    if (page) push(d, &d->host.unsure, page);
}

void ta_host_settle(ta_device *d)
{
    d->adrift = false;
    for (ta_host_page *page; (page = pop(d, &d->host.unsure));) ta_host_put(d, page);
}

/* Addresses for more pages of the size. */
static ta_status add_slab(ta_device *d, uint64_t bytes)
{
    const uint32_t count = (uint32_t)(TA_LOOKUP_BYTES / bytes);
    ta_host_slab *slab = calloc(1, sizeof *slab + count * sizeof *slab->pages);
    if (!slab) return TA_NO_HOST_MEMORY;
    ta_status status = ta_call_reserve(d, TA_LOOKUP_BYTES, &slab->addr);
    if (status) {
        free(slab);
        return status;
    }
    slab->page_bytes = bytes;
    slab->count = count;
    ta_lock_take(&d->host.lock);
    slab->next = d->host.slabs;
    d->host.slabs = slab;
    for (uint32_t i = count; i-- > 0;) {
        ta_host_page *page = &slab->pages[i];
        page->at = slab->addr + i * bytes;
        page->bytes = bytes;
        page->next = d->host.vacant[size_of(bytes)];
        d->host.vacant[size_of(bytes)] = page;
    }
    ta_lock_drop(&d->host.lock);
    return TA_OK;
}

/* --- the budget ------------------------------------------------------------------------- */
static bool charge(ta_allocator *a, uint64_t bytes)
{
    uint64_t held = atomic_load(&a->host_held), budget;
    do {
        budget = atomic_load(&a->host_budget);
        if (held > budget || bytes > budget - held) return false;
    } while (!atomic_compare_exchange_weak(&a->host_held, &held, held + bytes));
    return true;
}

static void uncharge(ta_allocator *a, uint64_t bytes)
{
    atomic_fetch_sub(&a->host_held, bytes);
}

/* Pages that other sizes and devices keep unused make room. */
static ta_status charge_or_release(ta_allocator *a, uint64_t bytes)
{
    if (charge(a, bytes)) return TA_OK;
    const uint64_t budget = atomic_load(&a->host_budget);
    uint64_t released = 0;
    if (bytes > budget) return TA_OUT_OF_MEMORY;
    for (int i = 0; i < TA_MAX_DEVICES; i++)
        if (atomic_load_explicit(&a->device[i].used, memory_order_acquire))
            ta_host_release(&a->device[i], budget - bytes, &released);
    return charge(a, bytes) ? TA_OK : TA_OUT_OF_MEMORY;
}

static ta_status machine_has(ta_allocator *a, uint64_t bytes)
{
    uint64_t available = 0;
    ta_status status = a->driver->host_memory(a->driver->self, &available);
    if (status) return status;
    return bytes <= available - available / SPARED ? TA_OK : TA_NO_HOST_MEMORY;
}

/* --- pages ------------------------------------------------------------------------------ */
/* Whatever the page lacks of being usable. */
static ta_status make_good(ta_device *d, ta_host_page *page)
{
    ta_status status = TA_OK;
    if (!page->handle &&
        (status = ta_call_create(d, TA_TIER_HOST, page->bytes, &page->handle))) {
        page->handle = 0;
        if (status == TA_OUT_OF_MEMORY) status = TA_NO_HOST_MEMORY;
    }
    if (!status && !page->mapped) {
        status = ta_call_map(d, page->at, page->bytes, page->handle);
        page->mapped = !status;
    }
    if (!status && !page->open) {
        status = ta_call_access_self(d, page->at, page->bytes);
        page->open = !status;
    }
    return status;
}

/* Its memory goes; what a failing call leaves is kept. */
static ta_status unmake(ta_device *d, ta_host_page *page)
{
    ta_status status = TA_OK;
    if (page->mapped && !(status = ta_call_unmap(d, page->at, page->bytes)))
        page->mapped = page->open = false;
    if (!status && page->handle &&
        !(status = ta_call_release(d, page->handle, page->bytes)))
        page->handle = 0;
    return status;
}

/* A new page; its bytes are charged already. */
static ta_status make(ta_device *d, uint64_t bytes, ta_host_page **made)
{
    ta_host_page **vacant = &d->host.vacant[size_of(bytes)], *page;
    while (!(page = pop(d, vacant))) {
        ta_status status = add_slab(d, bytes);
        if (!status) continue;
        uncharge(d->allocator, bytes);
        return status;
    }
    ta_status status = make_good(d, page);
    if (!status) {
        ta_count_host(d, bytes, true);
        *made = page;
        return TA_OK;
    }
    unmake(d, page);
    if (page->handle) { /* it exists, and is made good some other time */
        ta_count_host(d, bytes, true);
        ta_host_put(d, page);
        return TA_DRIVER;
    }
    uncharge(d->allocator, bytes);
    push(d, vacant, page);
    return status;
}

/* The page exists no more; where the driver keeps it, it is kept for others. */
static ta_status give_up(ta_device *d, ta_host_page *page)
{
    ta_status status = unmake(d, page);
    if (status) {
        ta_host_put(d, page);
        return status;
    }
    ta_count_host(d, page->bytes, false);
    uncharge(d->allocator, page->bytes);
    push(d, &d->host.vacant[size_of(page->bytes)], page);
    return TA_OK;
}

typedef struct ta_making {
    ta_device *device;
    uint64_t bytes;
    ta_host_page **pages;
    atomic_int status; /* of the first that failed */
} ta_making;

static bool make_one(void *context, size_t number)
{
    ta_making *m = context;
    uintptr_t saved[2];
    int none = TA_OK;
    ta_status status = ta_enter(m->device, saved);
    if (status)
        uncharge(m->device->allocator, m->bytes);
    else {
        status = make(m->device, m->bytes, &m->pages[number]);
        ta_leave(m->device, saved);
    }
    if (status) atomic_compare_exchange_strong(&m->status, &none, (int)status);
    return status == TA_OK;
}

/* New pages, all or none; charged already. */
static ta_status make_all(ta_device *d, uint64_t bytes, size_t count,
                          ta_host_page **pages)
{
    ta_making m = {.device = d, .bytes = bytes, .pages = pages};
    const uint64_t most = count * bytes / BY_ONE;
    for (size_t i = 0; i < count; i++) pages[i] = NULL;
    const size_t begun =
        ta_crew_run(count, most < THREADS ? (unsigned)most : THREADS, make_one, &m);
    const ta_status status = (ta_status)atomic_load(&m.status);
    if (!status) return TA_OK;
    uncharge(d->allocator, (count - begun) * bytes);
    for (size_t i = 0; i < begun; i++)
        if (pages[i]) give_up(d, pages[i]);
    return status;
}

ta_status ta_host_take(ta_device *d, uint64_t bytes, size_t count, ta_host_page **pages,
                       uint64_t *pinned)
{
    ta_allocator *a = d->allocator;
    size_t n = 0;
    ta_status status = ta_host_supported(a) ? TA_OK : TA_UNSUPPORTED;
    while (!status && n < count && (pages[n] = pop(d, &d->host.idle[size_of(bytes)])))
        status = make_good(d, pages[n++]);
    const size_t left = count - n;
    if (!status && left && !(status = charge_or_release(a, left * bytes))) {
        if ((status = machine_has(a, left * bytes)))
            uncharge(a, left * bytes);
        else if (!(status = make_all(d, bytes, left, pages + n)))
            *pinned += left * bytes;
    }
    if (status)
        while (n) ta_host_put(d, pages[--n]);
    return status;
}

ta_status ta_host_release(ta_device *d, uint64_t keep, uint64_t *released)
{
    ta_allocator *a = d->allocator;
    for (unsigned i = 0; i < TA_PAGE_SIZES; i++) {
        ta_host_page *page;
        while (atomic_load(&a->host_held) > keep && (page = pop(d, &d->host.idle[i]))) {
            const uint64_t bytes = page->bytes;
            ta_status status = give_up(d, page);
            if (status) return status;
            *released += bytes;
        }
    }
    return TA_OK;
}

bool ta_host_beyond(const ta_allocator *a)
{
    return atomic_load(&a->host_held) > atomic_load(&a->host_budget);
}

void ta_host_shrink(ta_device *d)
{
    uint64_t released = 0;
    if (ta_host_beyond(d->allocator)) /* what fails stays kept, for the next time */
        ta_host_release(d, atomic_load(&d->allocator->host_budget), &released);
}

void ta_host_destroy(ta_device *d, bool reachable)
{
    for (ta_host_slab *slab = d->host.slabs, *next; slab; slab = next) {
        next = slab->next;
        bool empty = true;
        for (uint32_t i = 0; reachable && i < slab->count; i++)
            empty &= unmake(d, &slab->pages[i]) == TA_OK;
        if (reachable && empty) ta_call_unreserve(d, slab->addr, TA_LOOKUP_BYTES);
        free(slab);
    }
    d->host.slabs = NULL;
}
