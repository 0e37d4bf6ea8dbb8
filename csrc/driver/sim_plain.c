/* sim_plain.c - memory of the simulated machine with its address, as without VMM.
 *
 * A plain allocation is a reservation with one handle mapped over all of it. */
#include "sim_memory.h"

static ta_status do_plain_alloc(ta_sim *sim, int device, uint64_t size, uint64_t *addr)
{
    if (size == 0 || size > UINT64_MAX / 2)
        return MISUSE(sim, "plain_alloc of %llu bytes", HEX(size));
    size = (size + TA_SIM_GRANULARITY - 1) & ~(TA_SIM_GRANULARITY - 1);
    if (size > sim->config.memory) return TA_OUT_OF_MEMORY;
    uint64_t at;
    ta_status status = ta_sim_add_reservation(sim, size, TA_SIM_GRANULARITY, &at);
    if (status != TA_OK) return status;
    ta_sim_reservation *r = ta_sim_find_reservation(sim, at);
    ta_handle handle;
    status = ta_sim_make_handle(sim, device, TA_TIER_DEVICE, size, &handle);
    if (status != TA_OK) {
        ta_sim_remove_reservation(sim, r);
        return status;
    }
    if (ta_sim_do_map(sim, at, size, handle) == TA_OK) {
        int everyone = sim->config.no_peers ? 0 : sim->config.devices;
        ta_sim_slot *slot = ta_sim_slot_at(r, at);
        slot->access = (uint64_t)1 << device;
        for (int i = 0; i < everyone; i++) slot->access |= (uint64_t)1 << i;
        ta_sim_find_handle(sim, handle)->touchable = true;
    }
    r->plain = handle;
    if (!ta_sim_pages_open(sim, at, size, -1, ta_sim_find_handle(sim, handle)->offset)) {
        ta_sim_find_handle(sim, handle)->maps--;
        ta_sim_do_release(sim, handle, size);
        ta_sim_remove_reservation(sim, r);
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
    ta_sim_handle *h = ta_sim_find_handle(sim, r->plain);
    if (h->device != device)
        return MISUSE(sim, "plain_free of %#llx on device %d, allocated on %d", HEX(addr),
                      device, h->device);
    ta_sim_charge(sim,
                  ta_sim_cost_us(TA_SIM_CALL_plain_free, TA_TIER_DEVICE, h->size, 1));
    ta_oracle_gone(sim->oracle, addr, h->size, "plain_free");
    ta_sim_remove_reservation(sim, r);
    h->maps--;
    h->live = false;
    ta_sim_drop_handle(sim, h);
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

void ta_sim_plain_table(ta_driver *driver)
{
    driver->plain_alloc = sim_plain_alloc;
    driver->plain_free = sim_plain_free;
}
