/* spill_world.h - a world with a cap and host memory, for tests of what spills: its books, and
 * blocks whose bytes are checked. */
#ifndef TA_SPILL_WORLD_H
#define TA_SPILL_WORLD_H

#include "world.h"

static inline void open_capped(world *w, uint64_t memory, uint64_t cap, uint64_t host)
{
    ta_sim_config config = {.devices = 1, .memory = memory, .seed = 5};
    world_open(w, &config, 2);
    ta_oracle_allow_moves(w->sim, true);
    const ta_spill_config spill = {.host_bytes = host, .net = host != 0};
    CHECK_EQ(ta_set_spill(w->allocator, &spill), TA_OK);
    CHECK_EQ(ta_set_limit(w->allocator, 0, TA_LIMIT_API, cap), TA_OK);
}

/* The books of device 0, too. */
static inline void good(world *w)
{
    const ta_stats s = world_stats(w, 0);
    world_check(w);
    CHECK_EQ(s.reserved.current, ta_sim_used(w->sim, 0, false));
    CHECK_EQ(s.host.current, ta_sim_pinned(w->sim));
    CHECK_EQ(s.host_held, ta_sim_pinned(w->sim));
    CHECK_EQ(s.reserved.current + s.spilled.current + s.dropped.current,
             s.active[0].current + s.idle + s.partly_used);
    CHECK(s.spilled.current <= s.host.current);
}

static inline void bring(world *w, held *h, uint64_t size)
{
    CHECK_EQ(world_alloc(w, h, size, 0, w->stream[0][0]), TA_OK);
    h->serial = (uint64_t)(uintptr_t)h->at / 512;
    world_write(h);
    world_use(w, h, h->stream, true, -1);
}

static inline void kept(const held *h, int count)
{
    for (int i = 0; i < count; i++)
        if (h[i].at && !world_kept(&h[i])) TA_TEST_FAIL("block %d is changed", i);
}

static inline void drop(world *w, held *h)
{
    if (!h->at) return;
    CHECK_EQ(ta_free(w->allocator, h->at), TA_OK);
    h->at = NULL;
}

static inline uint64_t map_calls(world *w)
{
    static const ta_sim_call calls[] = {TA_SIM_CALL_create,  TA_SIM_CALL_map,
                                        TA_SIM_CALL_unmap,   TA_SIM_CALL_set_access,
                                        TA_SIM_CALL_release, TA_SIM_CALL_copy};
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        sum += ta_sim_calls(w->sim, calls[i]);
    return sum;
}

#endif
