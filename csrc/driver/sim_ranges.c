/* sim_ranges.c - address ranges of the simulated machine.
 *
 *   reserved = sum of sizes of reservations, plain ones left out
 *
 * Reservations are an array by address; each has a slot for every granule, so that
 * finding what is mapped at an address is one search and one look. */
#include <stdlib.h>
#include <string.h>

#include "sim_memory.h"

/* Away from where Linux puts programs and their libraries. */
#define FIRST_ADDRESS ((uint64_t)1 << 45)

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
ta_sim_reservation *ta_sim_holder(ta_sim *sim, uint64_t addr, uint64_t size)
{
    ta_sim_reservation *r = ta_sim_find_reservation(sim, addr);
    return r && size && size <= r->addr + r->size - addr ? r : NULL;
}

static uint64_t aligned_up(uint64_t at, uint64_t align)
{
    return (at + align - 1) & ~(align - 1);
}

/* The lowest address where the range fits, as a GPU's driver gives them: the allocator
 * prefers low addresses among equals, so what it reserves hangs on their order. Gaps between
 * ranges have running over an end noticed. */
static uint64_t lowest(const ta_sim *sim, uint64_t size, uint64_t align)
{
    uint64_t at = aligned_up(FIRST_ADDRESS, align);
    for (size_t i = reservation_index(sim, at); i < sim->reservation_count; i++) {
        const ta_sim_reservation *r = &sim->reservations[i];
        if (r->addr > at && r->addr - at > size) break;
        at = aligned_up(r->addr + r->size + TA_SIM_GRANULARITY, align);
    }
    return at;
}

ta_status ta_sim_add_reservation(ta_sim *sim, uint64_t size, uint64_t align,
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
    uint64_t at = ta_sim_pages_reserve(sim, lowest(sim, size, align), size, align);
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

void ta_sim_remove_reservation(ta_sim *sim, ta_sim_reservation *r)
{
    ta_sim_pages_unreserve(sim, r->addr, r->size);
    free(r->slots);
    size_t i = (size_t)(r - sim->reservations);
    sim->reservation_count--;
    memmove(r, r + 1, (sim->reservation_count - i) * sizeof *r);
}

bool ta_sim_accessible(ta_sim *sim, int device, uint64_t addr, uint64_t size)
{
    if (size == 0) return true;
    const ta_sim_reservation *r = ta_sim_holder(sim, addr, size);
    if (!r) return false;
    const ta_sim_slot *slot = ta_sim_slot_at(r, addr),
                      *last = ta_sim_slot_at(r, addr + size - 1);
    while (slot <= last) {
        if (!slot->handle) return false;
        slot -= slot->part;
        if (!(slot->access >> device & 1)) return false;
        slot += sim->handles[slot->handle - 1].size / TA_SIM_GRANULARITY;
    }
    return true;
}

/* --- the table's calls ---------------------------------------------------------- */
static ta_status do_reserve(ta_sim *sim, uint64_t size, uint64_t align, uint64_t *addr)
{
    if (align < TA_SIM_GRANULARITY) align = TA_SIM_GRANULARITY;
    if (size == 0 || !ta_sim_aligned(size) || (align & (align - 1)))
        return MISUSE(sim, "reserve of %llu bytes aligned to %llu", HEX(size),
                      HEX(align));
    ta_status status = ta_sim_add_reservation(sim, size, align, addr);
    if (status == TA_OK) sim->reserved += size;
    return status;
}

static ta_status sim_reserve(void *self, uint64_t size, uint64_t align, uint64_t *addr)
{
    ta_sim *sim = self;
    double us = ta_sim_cost_us(TA_SIM_CALL_reserve, TA_TIER_DEVICE, size, 1);
    ta_status status = ta_sim_begin_vmm(sim, TA_SIM_CALL_reserve, us);
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
    ta_sim_remove_reservation(sim, r);
    sim->reserved -= size;
    return TA_OK;
}

/* Where the granule's bytes lie; false: in no handle. */
static bool offset_of(ta_sim *sim, uint64_t addr, uint64_t *offset)
{
    const ta_sim_reservation *r = ta_sim_holder(sim, addr, TA_SIM_GRANULARITY);
    if (!r || r->plain) return false;
    const ta_sim_slot *slot = ta_sim_slot_at(r, addr);
    if (!slot->handle) return false;
    *offset = sim->handles[slot->handle - 1].offset + slot->part * TA_SIM_GRANULARITY;
    return true;
}

void ta_sim_copy_granules(ta_sim *sim, uint64_t to, uint64_t from, uint64_t size)
{
    for (uint64_t at = 0; at < size; at += TA_SIM_GRANULARITY) {
        uint64_t to_offset, from_offset;
        if (offset_of(sim, to + at, &to_offset) &&
            offset_of(sim, from + at, &from_offset) && to_offset != from_offset)
            ta_sim_pages_copy(sim, to + at, to_offset, from + at, from_offset,
                              TA_SIM_GRANULARITY);
        else
            memmove((void *)(uintptr_t)(to + at), (const void *)(uintptr_t)(from + at),
                    TA_SIM_GRANULARITY);
    }
}

static ta_status sim_unreserve(void *self, uint64_t addr, uint64_t size)
{
    ta_sim *sim = self;
    double us = ta_sim_cost_us(TA_SIM_CALL_unreserve, TA_TIER_DEVICE, size, 1);
    ta_status status = ta_sim_begin_vmm(sim, TA_SIM_CALL_unreserve, us);
    if (status != TA_OK) return status;
    status = do_unreserve(sim, addr, size);
    ta_sim_end(sim);
    return status;
}

void ta_sim_ranges_table(ta_driver *driver)
{
    driver->reserve = sim_reserve;
    driver->unreserve = sim_unreserve;
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
