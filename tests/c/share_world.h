/* share_world.h - allocators that share a cap: a world whose device has a ledger. */
#ifndef TA_SHARE_WORLD_H
#define TA_SHARE_WORLD_H

#include <sys/mman.h>

#include "ledger_people.h"
#include "world.h"

#define CAP(DEVICE, TENANT)                                                              \
    (ta_share_caps) { DEVICE, TENANT, false }

static inline ta_share_config share_of(const char *label, const char *tenant,
                                       ta_share_caps caps)
{
    return (ta_share_config){.directory = directory,
                             .gpu = GPU,
                             .label = label,
                             .tenant = tenant,
                             .caps = caps};
}

/* A machine of one device, whose memory processes share where `dir` says so. */
static inline void share_open(world *w, uint64_t memory, const char *dir,
                              const ta_share_config *share)
{
    ta_sim_config config = {.devices = 1,
                            .memory = memory,
                            .seed = 5,
                            .no_backing = true,
                            .free_calls = true,
                            .dir = dir};
    bool shared;
    world_open(w, &config, 3);
    if (ta_test_failed) return;
    CHECK_EQ(ta_share_open(w->allocator, 0, share, &shared, why), TA_OK);
    CHECK(!shared);
}

/* The directory of a machine that real processes share, beside the ledger's. */
static inline char *shared_machine(void)
{
    static char path[80];
    return path;
}
/* Makes both; returns zeroed bytes that parent and children see. */
static inline void *shared_begin(size_t bytes)
{
    open_directory();
    snprintf(shared_machine(), 80, "%s/machine", directory);
    void *board =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) abort();
    return board;
}
static inline void shared_end(void *board, size_t bytes)
{
    char path[128];
    snprintf(path, sizeof path, "%s/device0", shared_machine());
    unlink(path);
    rmdir(shared_machine());
    munmap(board, bytes);
    close_directory();
}

/* The ledger says what the driver gave. */
static inline void share_settled(world *w)
{
    ta_share_state state;
    CHECK_EQ(ta_share_get(w->allocator, 0, &state), TA_OK);
    CHECK_EQ(state.held, ta_sim_used(w->sim, 0, false));
    CHECK_EQ(state.held, world_stats(w, 0).reserved.current);
    world_check(w);
}

static inline ta_status share_alloc(world *w, held *h, uint64_t size, ta_oom *oom)
{
    void *at = NULL;
    ta_status status = ta_alloc(w->allocator, size, 0, NULL, &at, oom);
    *h = (held){.at = at, .size = size};
    return status;
}
static inline ta_status share_free(world *w, held *h)
{
    void *at = h->at;
    h->at = NULL;
    return ta_free(w->allocator, at);
}

#endif
