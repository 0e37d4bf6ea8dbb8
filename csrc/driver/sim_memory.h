/* sim_memory.h - what the files of the simulated machine's memory share: sim_ranges.c,
 * sim_handles.c, sim_maps.c, sim_plain.c, over sim_pages.c.
 *
 * All expect the machine's lock held. A misuse (what the real driver refuses, or what
 * would corrupt memory there) is TA_INVALID, changes nothing, and counts as a violation.
 * */
#ifndef TA_SIM_MEMORY_H
#define TA_SIM_MEMORY_H

#include "sim_internal.h"

#define MISUSE(sim, ...) (ta_sim_violate(sim, __VA_ARGS__), TA_INVALID)
#define HEX(x) ((unsigned long long)(x))

static inline bool ta_sim_aligned(uint64_t bytes)
{
    return bytes % TA_SIM_GRANULARITY == 0;
}

/* --- sim_ranges.c --- */
void ta_sim_ranges_table(ta_driver *driver);
/* The reservation that holds all of the range; NULL where there is none, or for size 0.
 * */
ta_sim_reservation *ta_sim_holder(ta_sim *sim, uint64_t addr, uint64_t size);
ta_status ta_sim_add_reservation(ta_sim *sim, uint64_t size, uint64_t align,
                                 uint64_t *addr);
void ta_sim_remove_reservation(ta_sim *sim, ta_sim_reservation *reservation);
static inline ta_sim_slot *ta_sim_slot_at(const ta_sim_reservation *r, uint64_t addr)
{
    return &r->slots[(addr - r->addr) / TA_SIM_GRANULARITY];
}

/* --- sim_handles.c --- */
void ta_sim_handles_table(ta_driver *driver);
/* Bytes that can still be pinned. */
uint64_t ta_sim_host_left(const ta_sim *sim);
/* As ta_sim_begin, for calls that need VMM. */
ta_status ta_sim_begin_vmm(ta_sim *sim, ta_sim_call call, double us);
/* NULL: not a live handle. */
ta_sim_handle *ta_sim_find_handle(ta_sim *sim, ta_handle handle);
ta_status ta_sim_make_handle(ta_sim *sim, int device, ta_tier tier, uint64_t size,
                             ta_handle *handle);
/* The memory goes if the handle is neither live nor mapped. */
void ta_sim_drop_handle(ta_sim *sim, ta_sim_handle *handle);
ta_status ta_sim_do_release(ta_sim *sim, ta_handle handle, uint64_t size);

/* --- sim_maps.c --- */
void ta_sim_maps_table(ta_driver *driver);
ta_status ta_sim_do_map(ta_sim *sim, uint64_t addr, uint64_t size, ta_handle handle);

/* --- sim_plain.c --- */
void ta_sim_plain_table(ta_driver *driver);

#endif
