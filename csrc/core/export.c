/* export.c - pages handed to other processes, and pages of theirs.
 *
 * A block is shared by its pages: each becomes a file descriptor, which another process maps
 * at addresses of its own. What is handed out must stay where it is while others have it. A
 * live block's pages do: idle ones alone are moved or released, and what else moves is a
 * region that sleeps and a page on the host, so blocks there are refused; what leaves for the
 * host at a step is other pages (exchange.c). Who hands out keeps the block live until the
 * others are done.
 *
 * Called by csrc/torch. Thread-safe, but an import belongs to one thread until it is ready. */
#include "export.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "block.h"
#include "pages/chunk.h"
#include "device.h"
#include "epoch.h"
#include "table.h"

/* --- handing out ------------------------------------------------------------------------ */
/* The live block that holds the address, its arena locked; NULL: none, nothing is locked. */
static ta_block *hold_block(ta_allocator *a, uint64_t addr)
{
    ta_chunk *c = ta_lookup(a, addr);
    ta_arena *arena = c ? atomic_load_explicit(&c->arena, memory_order_acquire) : NULL;
    if (!arena) return NULL;
    ta_arena_lock(arena);
    ta_block *b = NULL;
    if (atomic_load_explicit(&c->arena, memory_order_relaxed) == arena &&
        addr - c->addr < c->size) {
        b = ta_table_find(&arena->table, addr);
        if (!b)
            for (b = c->first; b && b->addr + b->size <= addr;) b = b->next;
    }
    if (b && b->state == TA_LIVE) return b;
    ta_arena_unlock(arena);
    return NULL;
}

static void let_go(const ta_block *b) { ta_arena_unlock(atomic_load(&b->chunk->arena)); }

static const char *why_not(const ta_block *b, const ta_export_info *info)
{
    const ta_chunk *c = b->chunk;
    const ta_arena *arena = atomic_load(&c->arena);
    const ta_driver *driver = arena->device->allocator->driver;
    if (arena->device->plain || !driver->export_page)
        return "this memory is the driver's own (fallback=True), not made of pages";
    if (arena->region)
        return "it is in a region, which may sleep and move: allocate it outside of any";
    const uint32_t first = ta_slot_below(c, info->first_page);
    for (uint32_t i = first; i < first + info->pages; i++)
        if (ta_slot_is(c, i) != TA_SLOT_DEVICE || !c->pages[i])
            return "some of it has spilled to the host";
    return NULL;
}

static void describe(const ta_block *b, ta_export_info *info)
{
    const ta_chunk *c = b->chunk;
    const uint32_t first = ta_slot_below(c, b->addr),
                   last = ta_slot_below(c, b->addr + b->size - 1);
    *info = (ta_export_info){.base = b->addr,
                             .size = b->size,
                             .serial = b->serial,
                             .device = atomic_load(&c->arena)->device->ordinal,
                             .first_page = ta_slot_addr(c, first),
                             .page_bytes = c->page_bytes,
                             .pages = last - first + 1};
}

ta_status ta_export_look(ta_allocator *a, const void *ptr, ta_export_info *info,
                         const char **why)
{
    *why = NULL;
    if (ta_forked(a)) return TA_FORKED;
    const ta_block *b = hold_block(a, (uintptr_t)ptr);
    if (!b) return TA_INVALID;
    describe(b, info);
    *why = why_not(b, info);
    let_go(b);
    return *why ? TA_UNSUPPORTED : TA_OK;
}

/* The slot's page stays where it is from now on. The arena's lock is held. */
static bool stays(ta_chunk *c, uint32_t slot)
{
    if (!c->handed) c->handed = calloc((c->slots + 63u) / 64u, sizeof *c->handed);
    if (!c->handed) return false;
    c->handed[slot / 64] |= (uint64_t)1 << slot % 64;
    return true;
}

ta_status ta_export_pages(ta_allocator *a, uint64_t base, uint64_t serial, uint32_t first,
                          uint32_t count, int *fds)
{
    if (ta_forked(a)) return TA_FORKED;
    const ta_block *b = hold_block(a, base);
    if (!b) return TA_INVALID;
    ta_export_info info;
    describe(b, &info);
    ta_status status = TA_OK;
    uint32_t made = 0;
    if (info.base != base || info.serial != serial || first > info.pages ||
        count > info.pages - first)
        status = TA_INVALID;
    else if (why_not(b, &info))
        status = TA_UNSUPPORTED;
    const uint32_t slot = ta_slot_below(b->chunk, info.first_page) + first;
    for (; !status && made < count; made += !status)
        status = stays(b->chunk, slot + made)
                     ? a->driver->export_page(a->driver->self,
                                              b->chunk->pages[slot + made], &fds[made])
                     : TA_NO_HOST_MEMORY;
    let_go(b);
    while (status && made) close(fds[--made]);
    return status;
}

/* --- taking in ---------------------------------------------------------------------------- */
struct ta_import {
    ta_import *next;
    ta_allocator *allocator;
    int device;
    uint64_t base, page_bytes;
    uint32_t pages, mapped;
};

/* Over, but a capture was open, which the wait for the devices would have broken. */
static pthread_mutex_t lingering_lock = PTHREAD_MUTEX_INITIALIZER;
static ta_import *lingering;

/* Nothing on the devices touches it any more. */
static void unmap(ta_import *import)
{
    const ta_driver *driver = import->allocator->driver;
    uintptr_t saved[2];
    if (driver->enter(driver->self, import->device, saved) == TA_OK) {
        const uint64_t bytes = import->mapped * import->page_bytes;
        if (!bytes || driver->unmap(driver->self, import->base, bytes) == TA_OK)
            driver->unreserve(driver->self, import->base,
                              import->pages * import->page_bytes);
        driver->leave(driver->self, import->device, saved);
    }
    free(import);
}

/* Takes the list; what cannot go now is put back. */
static void settle_lingering(ta_allocator *a)
{
    pthread_mutex_lock(&lingering_lock);
    ta_import *all = lingering;
    lingering = NULL;
    pthread_mutex_unlock(&lingering_lock);
    if (!all) return;
    const bool passed = ta_devices_wait(a) == TA_OK;
    for (ta_import *import = all, *next; import; import = next) {
        next = import->next;
        if (passed)
            unmap(import);
        else {
            pthread_mutex_lock(&lingering_lock);
            import->next = lingering;
            lingering = import;
            pthread_mutex_unlock(&lingering_lock);
        }
    }
}

ta_status ta_import_open(ta_allocator *a, int device, uint64_t page_bytes, uint32_t pages,
                         ta_import **made)
{
    ta_device *d;
    *made = NULL;
    if (ta_forked(a)) return TA_FORKED;
    if (!pages || !page_bytes || page_bytes & (page_bytes - 1)) return TA_INVALID;
    if (!a->driver->import_page) return TA_UNSUPPORTED;
    ta_status status = ta_device_open(a, device, &d);
    if (status) return status;
    if (d->plain) return TA_UNSUPPORTED;
    settle_lingering(a);
    ta_import *import = calloc(1, sizeof *import);
    if (!import) return TA_NO_HOST_MEMORY;
    *import = (ta_import){NULL, a, device, 0, page_bytes, pages, 0};
    uintptr_t saved[2];
    if (!(status = ta_enter(d, saved))) {
        status = a->driver->reserve(a->driver->self, pages * page_bytes, page_bytes,
                                    &import->base);
        ta_leave(d, saved);
    }
    if (status)
        free(import);
    else
        *made = import;
    return status;
}

ta_status ta_import_page(ta_import *import, int fd)
{
    const ta_driver *driver = import->allocator->driver;
    const uint64_t at = import->base + import->mapped * import->page_bytes;
    uintptr_t saved[2];
    ta_handle page;
    if (import->mapped == import->pages) return TA_INVALID;
    ta_status status = driver->enter(driver->self, import->device, saved);
    if (status) return status;
    status =
        driver->import_page(driver->self, import->device, fd, import->page_bytes, &page);
    if (!status) {
        status = driver->map(driver->self, at, import->page_bytes, page);
        driver->release(driver->self, page,
                        import->page_bytes); /* the mapping keeps it */
        import->mapped += !status;
    }
    driver->leave(driver->self, import->device, saved);
    return status;
}

/* Every device here that can, so that copies between devices work whichever is used later. */
static int reaching(const ta_driver *driver, int device, int devices[TA_MAX_DEVICES])
{
    int count = 0, all = 0;
    devices[count++] = device;
    if (driver->device_count(driver->self, &all)) all = 0;
    for (int i = 0; i < all && i < TA_MAX_DEVICES; i++) {
        bool yes = false;
        if (i != device && !driver->can_access_peer(driver->self, i, device, &yes) && yes)
            devices[count++] = i;
    }
    return count;
}

ta_status ta_import_ready(ta_import *import, void **base)
{
    const ta_driver *driver = import->allocator->driver;
    int devices[TA_MAX_DEVICES];
    uintptr_t saved[2];
    if (import->mapped != import->pages) return TA_INVALID;
    ta_status status = driver->enter(driver->self, import->device, saved);
    if (status) return status;
    const int count = reaching(driver, import->device, devices);
    status = driver->set_access(driver->self, import->base,
                                import->pages * import->page_bytes, devices, count);
    driver->leave(driver->self, import->device, saved);
    *base = (void *)(uintptr_t)import->base;
    return status;
}

void ta_import_close(ta_import *import)
{
    if (!import || ta_forked(import->allocator)) return;
    pthread_mutex_lock(&lingering_lock);
    import->next = lingering;
    lingering = import;
    pthread_mutex_unlock(&lingering_lock);
    settle_lingering(import->allocator);
}
