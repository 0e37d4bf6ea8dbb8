/* sim_handles.c - physical memory of the simulated machine.
 *
 *   used(device) = context_bytes + sum of sizes of handles there that are live or mapped
 *   pinned       = the same sum of handles on the host  <=  config.host_memory
 *
 * As with the real driver, a handle that is released while mapped stays until it is
 * unmapped. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "sim_memory.h"

ta_sim_handle *ta_sim_find_handle(ta_sim *sim, ta_handle handle)
{
    uint32_t index = (uint32_t)handle;
    if (index == 0 || index > sim->handle_count) return NULL;
    ta_sim_handle *h = &sim->handles[index - 1];
    return h->live && h->generation == handle >> 32 ? h : NULL;
}

uint64_t ta_sim_host_left(const ta_sim *sim)
{
    const uint64_t all = sim->config.host_memory;
    return all > sim->pinned ? all - sim->pinned : 0;
}

static bool grow_handles(ta_sim *sim)
{
    if (sim->free_handle_count || sim->handle_count < sim->handle_capacity) return true;
    uint32_t capacity = sim->handle_capacity ? sim->handle_capacity * 2 : 256;
    ta_sim_handle *handles = realloc(sim->handles, capacity * sizeof *handles);
    if (!handles) return false;
    sim->handles = handles;
    uint32_t *free_ones = realloc(sim->free_handles, capacity * sizeof *free_ones);
    if (!free_ones) return false;
    sim->free_handles = free_ones;
    sim->handle_capacity = capacity;
    return true;
}

static bool take_memory(ta_sim *sim, int device, uint64_t size)
{
    ta_sim_device *d = &sim->devices[device];
    if (d->shared) {
        if (!ta_sim_shared_raise(d->shared, d->used + size)) return false;
    } else if (size > sim->config.memory - d->used)
        return false;
    d->used += size;
    return true;
}

static void give_memory(ta_sim *sim, int device, uint64_t size)
{
    ta_sim_device *d = &sim->devices[device];
    d->used -= size;
    if (d->shared) ta_sim_shared_lower(d->shared, d->used);
}

ta_status ta_sim_make_handle(ta_sim *sim, int device, ta_tier tier, uint64_t size,
                             ta_handle *handle)
{
    if (!grow_handles(sim)) return TA_NO_HOST_MEMORY;
    if (tier == TA_TIER_DEVICE && !take_memory(sim, device, size))
        return TA_OUT_OF_MEMORY;
    if (tier == TA_TIER_HOST && size > ta_sim_host_left(sim)) return TA_OUT_OF_MEMORY;
    if (tier == TA_TIER_HOST) sim->pinned += size;
    uint32_t index;
    if (sim->free_handle_count)
        index = sim->free_handles[--sim->free_handle_count];
    else {
        index = sim->handle_count++;
        sim->handles[index].generation = 0;
    }
    ta_sim_handle *h = &sim->handles[index];
    *h = (ta_sim_handle){.size = size,
                         .offset = sim->next_offset,
                         .device = device,
                         .tier = tier,
                         .generation = h->generation + 1,
                         .live = true};
    sim->next_offset += size;
    *handle = (uint64_t)h->generation << 32 | (index + 1);
    return TA_OK;
}

/* The memory goes when a handle is neither live nor mapped. */
void ta_sim_drop_handle(ta_sim *sim, ta_sim_handle *h)
{
    if (h->live || h->maps) return;
    if (h->touchable && !h->exported && !h->foreign)
        ta_sim_pages_drop(sim, h->offset, h->size);
    if (h->foreign)
        close(h->foreign - 1); /* counted where it was made */
    else if (h->tier == TA_TIER_DEVICE)
        give_memory(sim, h->device, h->size);
    else
        sim->pinned -= h->size;
    sim->free_handles[sim->free_handle_count++] = (uint32_t)(h - sim->handles);
}

/* --- the table's calls ---------------------------------------------------------- */
ta_status ta_sim_begin_vmm(ta_sim *sim, ta_sim_call call, double us)
{
    ta_status status = ta_sim_begin(sim, call, us);
    if (status != TA_OK || !sim->config.no_vmm) return status;
    ta_sim_end(sim);
    return TA_UNSUPPORTED;
}

static ta_status sim_create(void *self, int device, ta_tier tier, uint64_t size,
                            ta_handle *handle)
{
    ta_sim *sim = self;
    double us = ta_sim_cost_us(TA_SIM_CALL_create, tier, size, 1);
    ta_status status = ta_sim_begin_vmm(sim, TA_SIM_CALL_create, us);
    if (status != TA_OK) return status;
    status = ta_sim_use_device(sim, device);
    if (status == TA_OK && tier == TA_TIER_HOST && sim->config.no_host_pages)
        status = TA_UNSUPPORTED;
    else if (status == TA_OK && (size == 0 || !ta_sim_aligned(size)))
        status = MISUSE(sim, "create of %llu bytes", HEX(size));
    else if (status == TA_OK)
        status = ta_sim_make_handle(sim, device, tier, size, handle);
    ta_sim_end(sim);
    return status;
}

ta_status ta_sim_do_release(ta_sim *sim, ta_handle handle, uint64_t size)
{
    ta_sim_handle *h = ta_sim_find_handle(sim, handle);
    if (!h)
        return MISUSE(sim, "release of handle %#llx, not held (released twice?)",
                      HEX(handle));
    if (h->size != size)
        return MISUSE(sim, "release of a handle of %llu bytes as %llu", HEX(h->size),
                      HEX(size));
    /* As with the real driver, what is still mapped stays until it is unmapped. */
    h->live = false;
    ta_sim_drop_handle(sim, h);
    return TA_OK;
}

static ta_status sim_release(void *self, ta_handle handle, uint64_t size)
{
    ta_sim *sim = self;
    double us = ta_sim_cost_us(TA_SIM_CALL_release, TA_TIER_DEVICE, size, 1);
    ta_status status = ta_sim_begin_vmm(sim, TA_SIM_CALL_release, us);
    if (status != TA_OK) return status;
    status = ta_sim_do_release(sim, handle, size);
    ta_sim_end(sim);
    return status;
}

static ta_status sim_export_page(void *self, ta_handle handle, int *fd)
{
    ta_sim *sim = self;
    double us = ta_sim_cost_us(TA_SIM_CALL_export_page, TA_TIER_DEVICE, 0, 1);
    ta_status status = ta_sim_begin_vmm(sim, TA_SIM_CALL_export_page, us);
    if (status != TA_OK) return status;
    ta_sim_handle *h = ta_sim_find_handle(sim, handle);
    if (!h || h->foreign)
        status = MISUSE(sim, "export of handle %#llx, not held", HEX(handle));
    else if ((*fd = ta_sim_pages_export(sim, h->offset, h->size)) < 0)
        status = TA_UNSUPPORTED;
    else
        h->exported = true;
    ta_sim_end(sim);
    return status;
}

/* Only what is a handle here: the memory was counted by the process that made it. */
static ta_status import_page(ta_sim *sim, int device, int fd, uint64_t size,
                             ta_handle *handle)
{
    if (!grow_handles(sim)) return TA_NO_HOST_MEMORY;
    uint64_t offset, bytes;
    if (!ta_sim_pages_exported(fd, &offset, &bytes) || (size && bytes != size))
        return MISUSE(sim, "import of %llu bytes from a descriptor of others", HEX(size));
    const int kept = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (kept < 0) return TA_NO_HOST_MEMORY;
    uint32_t index;
    if (sim->free_handle_count)
        index = sim->free_handles[--sim->free_handle_count];
    else {
        index = sim->handle_count++;
        sim->handles[index].generation = 0;
    }
    ta_sim_handle *h = &sim->handles[index];
    *h = (ta_sim_handle){.size = bytes,
                         .offset = offset,
                         .device = device,
                         .tier = TA_TIER_DEVICE,
                         .generation = h->generation + 1,
                         .live = true,
                         .foreign = kept + 1};
    *handle = (uint64_t)h->generation << 32 | (index + 1);
    return TA_OK;
}

static ta_status sim_import_page(void *self, int device, int fd, uint64_t size,
                                 ta_handle *handle)
{
    ta_sim *sim = self;
    double us = ta_sim_cost_us(TA_SIM_CALL_import_page, TA_TIER_DEVICE, size, 1);
    ta_status status = ta_sim_begin_vmm(sim, TA_SIM_CALL_import_page, us);
    if (status != TA_OK) return status;
    status = ta_sim_use_device(sim, device);
    if (status == TA_OK) status = import_page(sim, device, fd, size, handle);
    ta_sim_end(sim);
    return status;
}

uint64_t ta_sim_handle_size(ta_sim *sim, ta_handle handle)
{
    if (ta_sim_begin_other(sim, 0) != TA_OK) return 0;
    const ta_sim_handle *h = ta_sim_find_handle(sim, handle);
    const uint64_t size = h ? h->size : 0;
    ta_sim_end(sim);
    return size;
}

static ta_status sim_mem_info(void *self, int device, uint64_t *free_bytes,
                              uint64_t *total)
{
    ta_sim *sim = self;
    double us = ta_sim_cost_us(TA_SIM_CALL_mem_info, TA_TIER_DEVICE, 0, 1);
    ta_status status = ta_sim_begin(sim, TA_SIM_CALL_mem_info, us);
    if (status != TA_OK) return status;
    status = ta_sim_use_device(sim, device);
    if (status == TA_OK) {
        const ta_sim_device *d = &sim->devices[device];
        uint64_t used = d->shared ? ta_sim_shared_total(d->shared) : d->used;
        *total = sim->config.memory;
        *free_bytes = used < *total ? *total - used : 0;
    }
    ta_sim_end(sim);
    return status;
}

static ta_status sim_has_vmm(void *self, int device, bool *yes)
{
    ta_sim *sim = self;
    double us = ta_sim_cost_us(TA_SIM_CALL_has_vmm, TA_TIER_DEVICE, 0, 1);
    ta_status status = ta_sim_begin(sim, TA_SIM_CALL_has_vmm, us);
    if (status != TA_OK) return status;
    if (device < 0 || device >= sim->config.devices)
        status = TA_INVALID;
    else
        *yes = !sim->config.no_vmm;
    ta_sim_end(sim);
    return status;
}

static ta_status sim_granularity(void *self, int device, ta_tier tier, uint64_t *bytes)
{
    ta_sim *sim = self;
    double us = ta_sim_cost_us(TA_SIM_CALL_granularity, tier, 0, 1);
    ta_status status = ta_sim_begin_vmm(sim, TA_SIM_CALL_granularity, us);
    if (status != TA_OK) return status;
    if (device < 0 || device >= sim->config.devices)
        status = TA_INVALID;
    else if (tier == TA_TIER_HOST && sim->config.no_host_pages)
        status = TA_UNSUPPORTED;
    else
        *bytes = TA_SIM_GRANULARITY;
    ta_sim_end(sim);
    return status;
}

static ta_status sim_host_memory(void *self, uint64_t *available)
{
    ta_sim *sim = self;
    double us = ta_sim_cost_us(TA_SIM_CALL_host_memory, TA_TIER_HOST, 0, 1);
    ta_status status = ta_sim_begin_vmm(sim, TA_SIM_CALL_host_memory, us);
    if (status != TA_OK) return status;
    *available = ta_sim_host_left(sim);
    ta_sim_end(sim);
    return TA_OK;
}

void ta_sim_handles_table(ta_driver *driver)
{
    driver->host_memory = sim_host_memory;
    driver->create = sim_create;
    driver->release = sim_release;
    driver->export_page = sim_export_page;
    driver->import_page = sim_import_page;
    driver->mem_info = sim_mem_info;
    driver->has_vmm = sim_has_vmm;
    driver->granularity = sim_granularity;
}
