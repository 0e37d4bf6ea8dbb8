/* test_sim.c - the simulated machine keeps the driver's contract. */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../csrc/driver/sim.h"
#include "testing.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
#define P2 (2 * MIB)

static ta_sim *machine(ta_sim_config config)
{
    ta_sim *sim = NULL;
    if (!config.devices) config.devices = 1;
    if (!config.memory) config.memory = GIB;
    return ta_sim_create(&config, &sim) == TA_OK ? sim : NULL;
}

static uint64_t violations(ta_sim *sim)
{
    uint64_t count;
    ta_sim_first_violation(sim, &count);
    return count;
}

static sigjmp_buf faulted;
static void on_fault(int signal) { siglongjmp(faulted, signal); }

/* Whether a byte can be read and written. */
static bool touchable(uint64_t addr)
{
    struct sigaction act = {.sa_handler = on_fault}, old_segv, old_bus;
    sigaction(SIGSEGV, &act, &old_segv);
    sigaction(SIGBUS, &act, &old_bus);
    volatile bool ok = false;
    if (sigsetjmp(faulted, 1) == 0) {
        volatile uint8_t *byte = (volatile uint8_t *)(uintptr_t)addr;
        *byte = *byte;
        ok = true;
    }
    sigaction(SIGSEGV, &old_segv, NULL);
    sigaction(SIGBUS, &old_bus, NULL);
    return ok;
}

TEST(map_access_unmap)
{
    ta_sim *sim = machine((ta_sim_config){0});
    const ta_driver *d = ta_sim_driver(sim);
    uint64_t at;
    ta_handle h;
    const int zero = 0;
    CHECK_EQ(d->reserve(sim, 16 * MIB, 8 * MIB, &at), TA_OK);
    CHECK_EQ(at % (8 * MIB), 0);
    CHECK(!touchable(at));
    CHECK_EQ(d->create(sim, 0, TA_TIER_DEVICE, 4 * MIB, &h), TA_OK);
    CHECK_EQ(ta_sim_used(sim, 0, false), 4 * MIB);
    CHECK_EQ(d->map(sim, at, 4 * MIB, h), TA_OK);
    CHECK(!touchable(at));
    CHECK_EQ(d->set_access(sim, at, 4 * MIB, &zero, 1), TA_OK);
    CHECK(touchable(at) && touchable(at + 4 * MIB - 1) && !touchable(at + 4 * MIB));
    *(int *)(uintptr_t)at = 1234;

    /* The same page at a second address. */
    CHECK_EQ(d->map(sim, at + 8 * MIB, 4 * MIB, h), TA_OK);
    CHECK_EQ(d->set_access(sim, at + 8 * MIB, 4 * MIB, &zero, 1), TA_OK);
    CHECK_EQ(*(int *)(uintptr_t)(at + 8 * MIB), 1234);
    CHECK_EQ(d->unmap(sim, at, 4 * MIB), TA_OK);
    CHECK(!touchable(at));
    CHECK_EQ(*(int *)(uintptr_t)(at + 8 * MIB), 1234);

    /* Released while mapped: goes with its last mapping. */
    CHECK_EQ(d->release(sim, h, 4 * MIB), TA_OK);
    CHECK_EQ(ta_sim_used(sim, 0, false), 4 * MIB);
    CHECK_EQ(*(int *)(uintptr_t)(at + 8 * MIB), 1234);
    CHECK_EQ(d->unmap(sim, at + 8 * MIB, 4 * MIB), TA_OK);
    CHECK_EQ(ta_sim_used(sim, 0, false), 0);
    CHECK_EQ(d->unreserve(sim, at, 16 * MIB), TA_OK);
    CHECK_EQ(ta_sim_reserved_addresses(sim), 0);
    CHECK_EQ(violations(sim), 0);
    ta_sim_destroy(sim);
}

TEST_MAIN()
