/* sim_maps.c - mappings of the simulated machine: handles at addresses, each whole.
 *
 * A mapping fills the slots of its granules; access, by device, stands in its first one.
 * Unmapping waits for nothing: the oracle judges whether it had to. */
#include <string.h>

#include "sim_memory.h"

ta_status ta_sim_do_map(ta_sim *sim, uint64_t addr, uint64_t size, ta_handle handle)
{
    ta_sim_handle *h = ta_sim_find_handle(sim, handle);
    if (!h) return MISUSE(sim, "map of handle %#llx, not held", HEX(handle));
    if (h->size != size)
        return MISUSE(sim, "map of %llu bytes of a handle of %llu", HEX(size),
                      HEX(h->size));
    ta_sim_reservation *r = ta_sim_holder(sim, addr, size);
    if (!r || r->plain || !ta_sim_aligned(addr))
        return MISUSE(sim, "map at %#llx + %llu, not inside a reserved range", HEX(addr),
                      HEX(size));
    ta_sim_slot *slots = ta_sim_slot_at(r, addr);
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
    ta_status status = ta_sim_begin_vmm(sim, TA_SIM_CALL_map, us);
    if (status != TA_OK) return status;
    status = ta_sim_do_map(sim, addr, size, handle);
    ta_sim_end(sim);
    return status;
}

/* A range of whole mappings: *count of them, and what the call costs. */
static ta_sim_reservation *whole(ta_sim *sim, ta_sim_call call, uint64_t addr,
                                 uint64_t size, double *us)
{
    ta_sim_reservation *r = ta_sim_holder(sim, addr, size);
    if (!r || r->plain || !ta_sim_aligned(addr) || !ta_sim_aligned(size)) return NULL;
    const ta_sim_slot *slot = ta_sim_slot_at(r, addr);
    const ta_sim_slot *end = slot + size / TA_SIM_GRANULARITY;
    *us = 0;
    while (slot < end) {
        if (!slot->handle || slot->part) return NULL;
        const ta_sim_handle *h = &sim->handles[slot->handle - 1];
        const bool opens = call == TA_SIM_CALL_set_access && h->tier == TA_TIER_HOST;
        const unsigned by = opens && sim->config.openers ? sim->config.openers : 1;
        *us += ta_sim_cost_us(call, h->tier, h->size, 1) / by;
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
    ta_sim_slot *slot = ta_sim_slot_at(r, addr), *end = slot + size / TA_SIM_GRANULARITY;
    while (slot < end) {
        ta_sim_handle *h = &sim->handles[slot->handle - 1];
        const uint64_t count = h->size / TA_SIM_GRANULARITY;
        memset(slot, 0, count * sizeof *slot);
        slot += count;
        h->maps--;
        ta_sim_drop_handle(sim, h);
    }
    r->mapped -= size;
    return TA_OK;
}

static ta_status sim_unmap(void *self, uint64_t addr, uint64_t size)
{
    ta_sim *sim = self;
    ta_status status = ta_sim_begin_vmm(sim, TA_SIM_CALL_unmap, 0);
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
        const int foreign = h->foreign;
        uint64_t size = 0;
        const bool skip = slot->access != 0;
        do {
            size += h->size;
            slot += h->size / TA_SIM_GRANULARITY;
            if (slot < end) h = &sim->handles[slot->handle - 1];
        } while (slot < end && !skip && !slot->access && !foreign && !h->foreign &&
                 h->offset == offset + size);
        if (skip)
            ;
        else if (shut)
            ta_sim_pages_shut(sim, addr, size);
        else if (!ta_sim_pages_open(sim, addr, size, foreign - 1, offset))
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
    ta_sim_slot *slot = ta_sim_slot_at(r, addr), *end = slot + size / TA_SIM_GRANULARITY;
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
    ta_status status = ta_sim_begin_vmm(sim, TA_SIM_CALL_set_access, 0);
    if (status != TA_OK) return status;
    status = do_set_access(sim, addr, size, devices, count);
    ta_sim_end(sim);
    return status;
}

void ta_sim_maps_table(ta_driver *driver)
{
    driver->map = sim_map;
    driver->unmap = sim_unmap;
    driver->set_access = sim_set_access;
}
