/* sim_memory.c - ranges, handles and mappings of the simulated machine.
 *
 * The driver table's memory calls, under the machine's lock. A misuse (anything that the
 * real driver refuses or that corrupts memory there) is TA_INVALID, changes nothing, and
 * counts as a violation.
 *
 *   used(device) = context_bytes + sum of sizes of handles there that are live or mapped
 *   reserved     = sum of sizes of reservations, plain ones left out */
#include <stdlib.h>
#include <string.h>

#include "sim_internal.h"

#define MISUSE(sim, ...) (ta_sim_violate(sim, __VA_ARGS__), TA_INVALID)
#define HEX(x) ((unsigned long long)(x))

static bool aligned(uint64_t bytes) { return bytes % TA_SIM_GRANULARITY == 0; }

/* --- reservations ------------------------------------------------------------------- */
/* Index of the first reservation that ends above addr. */
static size_t reservation_index(const ta_sim *sim, uint64_t addr)
{
    size_t low = 0, high = sim->reservation_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const ta_sim_reservation *r = &sim->reservations[middle];
        if (r->addr + r->size <= addr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

ta_sim_reservation *ta_sim_find_reservation(ta_sim *sim, uint64_t addr)
{
    size_t i = reservation_index(sim, addr);
    if (i == sim->reservation_count || sim->reservations[i].addr > addr) return NULL;
    return &sim->reservations[i];
}

/* The reservation that holds all of the range. */
static ta_sim_reservation *holder(ta_sim *sim, uint64_t addr, uint64_t size)
{
    ta_sim_reservation *r = ta_sim_find_reservation(sim, addr);
    return r && size && size <= r->addr + r->size - addr ? r : NULL;
}

static ta_status add_reservation(ta_sim *sim, uint64_t size, uint64_t align,
                                 uint64_t *addr)
{
    if (sim->reservation_count == sim->reservation_capacity) {
        size_t capacity = sim->reservation_capacity ? sim->reservation_capacity * 2 : 64;
        ta_sim_reservation *grown =
            realloc(sim->reservations, capacity * sizeof *sim->reservations);
        if (!grown) return TA_NO_HOST_MEMORY;
        sim->reservations = grown;
        sim->reservation_capacity = capacity;
    }
    ta_sim_slot *slots = calloc(size / TA_SIM_GRANULARITY, sizeof *slots);
    if (!slots) return TA_NO_HOST_MEMORY;
    uint64_t at = ta_sim_pages_reserve(sim, size, align);
    if (!at) {
        free(slots);
        return TA_OUT_OF_MEMORY;
    }
    size_t i = reservation_index(sim, at);
    memmove(&sim->reservations[i + 1], &sim->reservations[i],
            (sim->reservation_count - i) * sizeof *sim->reservations);
    sim->reservations[i] = (ta_sim_reservation){.addr = at, .size = size, .slots = slots};
    sim->reservation_count++;
    *addr = at;
    return TA_OK;
}

static void remove_reservation(ta_sim *sim, ta_sim_reservation *r)
{
    ta_sim_pages_unreserve(sim, r->addr, r->size);
    free(r->slots);
    size_t i = (size_t)(r - sim->reservations);
    sim->reservation_count--;
    memmove(r, r + 1, (sim->reservation_count - i) * sizeof *r);
}

static ta_sim_slot *slot_at(const ta_sim_reservation *r, uint64_t addr)
{
    return &r->slots[(addr - r->addr) / TA_SIM_GRANULARITY];
}

bool ta_sim_accessible(ta_sim *sim, int device, uint64_t addr, uint64_t size)
{
    if (size == 0) return true;
    const ta_sim_reservation *r = holder(sim, addr, size);
    if (!r) return false;
    const ta_sim_slot *slot = slot_at(r, addr), *last = slot_at(r, addr + size - 1);
    while (slot <= last) {
        if (!slot->handle) return false;
        slot -= slot->part;
        if (!(slot->access >> device & 1)) return false;
        slot += sim->handles[slot->handle - 1].size / TA_SIM_GRANULARITY;
    }
    return true;
}

/* --- handles ------------------------------------------------------------------------ */
static ta_sim_handle *find_handle(ta_sim *sim, ta_handle handle)
{
    uint32_t index = (uint32_t)handle;
    if (index == 0 || index > sim->handle_count) return NULL;
    ta_sim_handle *h = &sim->handles[index - 1];
    return h->live && h->generation == handle >> 32 ? h : NULL;
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

static ta_status make_handle(ta_sim *sim, int device, ta_tier tier, uint64_t size,
                             ta_handle *handle)
{
    if (!grow_handles(sim)) return TA_NO_HOST_MEMORY;
    if (tier == TA_TIER_DEVICE && !take_memory(sim, device, size))
        return TA_OUT_OF_MEMORY;
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
static void drop_handle(ta_sim *sim, ta_sim_handle *h)
{
    if (h->live || h->maps) return;
    if (h->touchable) ta_sim_pages_drop(sim, h->offset, h->size);
    if (h->tier == TA_TIER_DEVICE) give_memory(sim, h->device, h->size);
    sim->free_handles[sim->free_handle_count++] = (uint32_t)(h - sim->handles);
}

/* --- the table: ranges and handles -------------------------------------------------- */
static ta_status begin_vmm(ta_sim *sim, ta_sim_call call, double us)
{
    ta_status status = ta_sim_begin(sim, call, us);
    if (status != TA_OK || !sim->config.no_vmm) return status;
    ta_sim_end(sim);
    return TA_UNSUPPORTED;
}

static ta_status do_reserve(ta_sim *sim, uint64_t size, uint64_t align, uint64_t *addr)
{
    if (align < TA_SIM_GRANULARITY) align = TA_SIM_GRANULARITY;
    if (size == 0 || !aligned(size) || (align & (align - 1)))
        return MISUSE(sim, "reserve of %llu bytes aligned to %llu", HEX(size),
                      HEX(align));
    ta_status status = add_reservation(sim, size, align, addr);
    if (status == TA_OK) sim->reserved += size;
    return status;
}

static ta_status sim_reserve(void *self, uint64_t size, uint64_t align, uint64_t *addr)
{
    ta_sim *sim = self;
    double us = ta_sim_cost_us(TA_SIM_CALL_reserve, TA_TIER_DEVICE, size, 1);
    ta_status status = begin_vmm(sim, TA_SIM_CALL_reserve, us);
    if (status != TA_OK) return status;
    status = do_reserve(sim, size, align, addr);
    ta_sim_end(sim);
    return status;
}

static ta_status do_unreserve(ta_sim *sim, uint64_t addr, uint64_t size)
{
    ta_sim_reservation *r = ta_sim_find_reservation(sim, addr);
    if (!r || r->plain || r->addr != addr || r->size != size)
        return MISUSE(sim, "unreserve of %#llx + %llu, not a reserved range", HEX(addr),
                      HEX(size));
    if (r->mapped)
        return MISUSE(sim, "unreserve of %#llx + %llu while %llu bytes are mapped",
                      HEX(addr), HEX(size), HEX(r->mapped));
    remove_reservation(sim, r);
    sim->reserved -= size;
    return TA_OK;
}

static ta_status sim_unreserve(void *self, uint64_t addr, uint64_t size)
{
    ta_sim *sim = self;
    double us = ta_sim_cost_us(TA_SIM_CALL_unreserve, TA_TIER_DEVICE, size, 1);
    ta_status status = begin_vmm(sim, TA_SIM_CALL_unreserve, us);
    if (status != TA_OK) return status;
    status = do_unreserve(sim, addr, size);
    ta_sim_end(sim);
    return status;
}

static ta_status sim_create(void *self, int device, ta_tier tier, uint64_t size,
                            ta_handle *handle)
{
    ta_sim *sim = self;
    double us = ta_sim_cost_us(TA_SIM_CALL_create, tier, size, 1);
    ta_status status = begin_vmm(sim, TA_SIM_CALL_create, us);
    if (status != TA_OK) return status;
    status = ta_sim_use_device(sim, device);
    if (status == TA_OK && (size == 0 || !aligned(size)))
        status = MISUSE(sim, "create of %llu bytes", HEX(size));
    else if (status == TA_OK)
        status = make_handle(sim, device, tier, size, handle);
    ta_sim_end(sim);
    return status;
}

static ta_status do_release(ta_sim *sim, ta_handle handle, uint64_t size)
{
    ta_sim_handle *h = find_handle(sim, handle);
    if (!h)
        return MISUSE(sim, "release of handle %#llx, not held (released twice?)",
                      HEX(handle));
    if (h->size != size)
        return MISUSE(sim, "release of a handle of %llu bytes as %llu", HEX(h->size),
                      HEX(size));
    /* As with the real driver, what is still mapped stays until it is unmapped. */
    h->live = false;
    drop_handle(sim, h);
    return TA_OK;
}

static ta_status sim_release(void *self, ta_handle handle, uint64_t size)
{
    ta_sim *sim = self;
    double us = ta_sim_cost_us(TA_SIM_CALL_release, TA_TIER_DEVICE, size, 1);
    ta_status status = begin_vmm(sim, TA_SIM_CALL_release, us);
    if (status != TA_OK) return status;
    status = do_release(sim, handle, size);
    ta_sim_end(sim);
    return status;
}

/* --- the table: mappings ------------------------------------------------------------ */
static ta_status do_map(ta_sim *sim, uint64_t addr, uint64_t size, ta_handle handle)
{
    ta_sim_handle *h = find_handle(sim, handle);
    if (!h) return MISUSE(sim, "map of handle %#llx, not held", HEX(handle));
    if (h->size != size)
        return MISUSE(sim, "map of %llu bytes of a handle of %llu", HEX(size),
                      HEX(h->size));
    ta_sim_reservation *r = holder(sim, addr, size);
    if (!r || r->plain || !aligned(addr))
        return MISUSE(sim, "map at %#llx + %llu, not inside a reserved range", HEX(addr),
                      HEX(size));
    ta_sim_slot *slots = slot_at(r, addr);
    const uint32_t count = (uint32_t)(size / TA_SIM_GRANULARITY);
    for (uint32_t i = 0; i < count; i++)
        if (slots[i].handle)
            return MISUSE(sim, "map at %#llx + %llu over a mapping", HEX(addr),
                          HEX(size));
    for (uint32_t i = 0; i < count; i++)
        slots[i] = (ta_sim_slot){.handle = (uint32_t)handle, .part = i};
    h->maps++;
    r->mapped += size;
    return TA_OK;
}

static ta_status sim_map(void *self, uint64_t addr, uint64_t size, ta_handle handle)
{
    ta_sim *sim = self;
    double us = ta_sim_cost_us(TA_SIM_CALL_map, TA_TIER_DEVICE, size, 1);
    ta_status status = begin_vmm(sim, TA_SIM_CALL_map, us);
    if (status != TA_OK) return status;
    status = do_map(sim, addr, size, handle);
    ta_sim_end(sim);
    return status;
}

/* A range of whole mappings: *count of them, and what the call costs. */
static ta_sim_reservation *whole(ta_sim *sim, ta_sim_call call, uint64_t addr,
                                 uint64_t size, double *us)
{
    ta_sim_reservation *r = holder(sim, addr, size);
    if (!r || r->plain || !aligned(addr) || !aligned(size)) return NULL;
    const ta_sim_slot *slot = slot_at(r, addr);
    const ta_sim_slot *end = slot + size / TA_SIM_GRANULARITY;
    *us = 0;
    while (slot < end) {
        if (!slot->handle || slot->part) return NULL;
        const ta_sim_handle *h = &sim->handles[slot->handle - 1];
        *us += ta_sim_cost_us(call, h->tier, h->size, 1);
        slot += h->size / TA_SIM_GRANULARITY;
    }
    return slot == end ? r : NULL;
}

static ta_status do_unmap(ta_sim *sim, uint64_t addr, uint64_t size)
{
    double us;
    ta_sim_reservation *r = whole(sim, TA_SIM_CALL_unmap, addr, size, &us);
    if (!r)
        return MISUSE(sim, "unmap of %#llx + %llu, not a range of whole mappings",
                      HEX(addr), HEX(size));
    ta_sim_charge(sim, us);
    if (!ta_sim_pages_shut(sim, addr, size)) return TA_DRIVER;
    ta_oracle_gone(sim->oracle, addr, size, "unmap");
    ta_sim_slot *slot = slot_at(r, addr), *end = slot + size / TA_SIM_GRANULARITY;
    while (slot < end) {
        ta_sim_handle *h = &sim->handles[slot->handle - 1];
        const uint64_t count = h->size / TA_SIM_GRANULARITY;
        memset(slot, 0, count * sizeof *slot);
        slot += count;
        h->maps--;
        drop_handle(sim, h);
    }
    r->mapped -= size;
    return TA_OK;
}

static ta_status sim_unmap(void *self, uint64_t addr, uint64_t size)
{
    ta_sim *sim = self;
    ta_status status = begin_vmm(sim, TA_SIM_CALL_unmap, 0);
    if (status != TA_OK) return status;
    status = do_unmap(sim, addr, size);
    ta_sim_end(sim);
    return status;
}

/* Opens, or shuts again, the mappings of [slot, end) that nobody has access to yet;
 * neighbours in the memfd in one go. */
static bool open_pages(ta_sim *sim, const ta_sim_slot *slot, const ta_sim_slot *end,
                       uint64_t addr, bool shut)
{
    while (slot < end) {
        const ta_sim_handle *h = &sim->handles[slot->handle - 1];
        const uint64_t offset = h->offset;
        uint64_t size = 0;
        const bool skip = slot->access != 0;
        do {
            size += h->size;
            slot += h->size / TA_SIM_GRANULARITY;
            if (slot < end) h = &sim->handles[slot->handle - 1];
        } while (slot < end && !skip && !slot->access && h->offset == offset + size);
        if (skip)
            ;
        else if (shut)
            ta_sim_pages_shut(sim, addr, size);
        else if (!ta_sim_pages_open(sim, addr, size, offset))
            return false;
        addr += size;
    }
    return true;
}

static ta_status do_set_access(ta_sim *sim, uint64_t addr, uint64_t size,
                               const int *devices, int count)
{
    double us;
    ta_sim_reservation *r = whole(sim, TA_SIM_CALL_set_access, addr, size, &us);
    if (!r)
        return MISUSE(sim, "set_access on %#llx + %llu, not a range of whole mappings",
                      HEX(addr), HEX(size));
    uint64_t mask = 0;
    for (int i = 0; i < count; i++) {
        if (devices[i] < 0 || devices[i] >= sim->config.devices)
            return MISUSE(sim, "set_access for device %d", devices[i]);
        mask |= (uint64_t)1 << devices[i];
    }
    ta_sim_slot *slot = slot_at(r, addr), *end = slot + size / TA_SIM_GRANULARITY;
    for (const ta_sim_slot *s = slot; s < end;) {
        const ta_sim_handle *h = &sim->handles[s->handle - 1];
        if (sim->config.no_peers && h->tier == TA_TIER_DEVICE &&
            (mask & ~((uint64_t)1 << h->device)))
            return MISUSE(sim, "set_access for a device that cannot reach device %d",
                          h->device);
        s += h->size / TA_SIM_GRANULARITY;
    }
    ta_sim_charge(sim, us);
    if (mask && !open_pages(sim, slot, end, addr, false)) {
        open_pages(sim, slot, end, addr, true);
        return TA_DRIVER;
    }
    while (slot < end) {
        ta_sim_handle *h = &sim->handles[slot->handle - 1];
        slot->access |= mask;
        h->touchable |= mask != 0;
        slot += h->size / TA_SIM_GRANULARITY;
    }
    return TA_OK;
}

static ta_status sim_set_access(void *self, uint64_t addr, uint64_t size,
                                const int *devices, int count)
{
    ta_sim *sim = self;
    ta_status status = begin_vmm(sim, TA_SIM_CALL_set_access, 0);
    if (status != TA_OK) return status;
    status = do_set_access(sim, addr, size, devices, count);
    ta_sim_end(sim);
    return status;
}

/* --- the table: plain memory -------------------------------------------------------- */
static ta_status do_plain_alloc(ta_sim *sim, int device, uint64_t size, uint64_t *addr)
{
    if (size == 0 || size > UINT64_MAX / 2)
        return MISUSE(sim, "plain_alloc of %llu bytes", HEX(size));
    size = (size + TA_SIM_GRANULARITY - 1) & ~(TA_SIM_GRANULARITY - 1);
    if (size > sim->config.memory) return TA_OUT_OF_MEMORY;
    uint64_t at;
    ta_status status = add_reservation(sim, size, TA_SIM_GRANULARITY, &at);
    if (status != TA_OK) return status;
    ta_sim_reservation *r = ta_sim_find_reservation(sim, at);
    ta_handle handle;
    status = make_handle(sim, device, TA_TIER_DEVICE, size, &handle);
    if (status != TA_OK) {
        remove_reservation(sim, r);
        return status;
    }
    if (do_map(sim, at, size, handle) == TA_OK) {
        int everyone = sim->config.no_peers ? 0 : sim->config.devices;
        ta_sim_slot *slot = slot_at(r, at);
        slot->access = (uint64_t)1 << device;
        for (int i = 0; i < everyone; i++) slot->access |= (uint64_t)1 << i;
        find_handle(sim, handle)->touchable = true;
    }
    r->plain = handle;
    if (!ta_sim_pages_open(sim, at, size, find_handle(sim, handle)->offset)) {
        find_handle(sim, handle)->maps--;
        do_release(sim, handle, size);
        remove_reservation(sim, r);
        return TA_DRIVER;
    }
    *addr = at;
    return TA_OK;
}

static ta_status sim_plain_alloc(void *self, int device, uint64_t size, uint64_t *addr)
{
    ta_sim *sim = self;
    double us = ta_sim_cost_us(TA_SIM_CALL_plain_alloc, TA_TIER_DEVICE, size, 1);
    ta_status status = ta_sim_begin(sim, TA_SIM_CALL_plain_alloc, us);
    if (status != TA_OK) return status;
    if (!ta_sim_capture_allows(sim, "plain_alloc"))
        status = TA_DRIVER;
    else
        status = ta_sim_use_device(sim, device);
    if (status == TA_OK) status = do_plain_alloc(sim, device, size, addr);
    ta_sim_end(sim);
    return status;
}

static ta_status do_plain_free(ta_sim *sim, int device, uint64_t addr)
{
    ta_sim_reservation *r = ta_sim_find_reservation(sim, addr);
    if (!r || !r->plain || r->addr != addr)
        return MISUSE(sim, "plain_free of %#llx, not a plain allocation", HEX(addr));
    ta_sim_handle *h = find_handle(sim, r->plain);
    if (h->device != device)
        return MISUSE(sim, "plain_free of %#llx on device %d, allocated on %d", HEX(addr),
                      device, h->device);
    ta_sim_charge(sim,
                  ta_sim_cost_us(TA_SIM_CALL_plain_free, TA_TIER_DEVICE, h->size, 1));
    ta_oracle_gone(sim->oracle, addr, h->size, "plain_free");
    remove_reservation(sim, r);
    h->maps--;
    h->live = false;
    drop_handle(sim, h);
    return TA_OK;
}

static ta_status sim_plain_free(void *self, int device, uint64_t addr)
{
    ta_sim *sim = self;
    ta_status status = ta_sim_begin(sim, TA_SIM_CALL_plain_free, 0);
    if (status != TA_OK) return status;
    status = do_plain_free(sim, device, addr);
    ta_sim_end(sim);
    return status;
}

/* --- the table: questions ----------------------------------------------------------- */
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
    ta_status status = begin_vmm(sim, TA_SIM_CALL_granularity, us);
    if (status != TA_OK) return status;
    if (device < 0 || device >= sim->config.devices)
        status = TA_INVALID;
    else
        *bytes = TA_SIM_GRANULARITY;
    ta_sim_end(sim);
    return status;
}

void ta_sim_memory_table(ta_driver *driver)
{
    driver->mem_info = sim_mem_info;
    driver->has_vmm = sim_has_vmm;
    driver->granularity = sim_granularity;
    driver->reserve = sim_reserve;
    driver->unreserve = sim_unreserve;
    driver->create = sim_create;
    driver->release = sim_release;
    driver->map = sim_map;
    driver->unmap = sim_unmap;
    driver->set_access = sim_set_access;
    driver->plain_alloc = sim_plain_alloc;
    driver->plain_free = sim_plain_free;
}

void ta_sim_memory_destroy(ta_sim *sim)
{
    for (size_t i = 0; i < sim->reservation_count; i++) {
        ta_sim_pages_unreserve(sim, sim->reservations[i].addr, sim->reservations[i].size);
        free(sim->reservations[i].slots);
    }
    free(sim->reservations);
    free(sim->handles);
    free(sim->free_handles);
}
