/* sim_machine.h - what the tests of the simulated machine share. */
#ifndef TA_SIM_MACHINE_H
#define TA_SIM_MACHINE_H

#include <setjmp.h>
#include <signal.h>

#include "../../csrc/driver/sim.h"
#include "testing.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
#define P2 (2 * MIB)

static inline ta_sim *machine(ta_sim_config config)
{
    ta_sim *sim = NULL;
    if (!config.devices) config.devices = 1;
    if (!config.memory) config.memory = GIB;
    return ta_sim_create(&config, &sim) == TA_OK ? sim : NULL;
}

static inline uint64_t violations(ta_sim *sim)
{
    uint64_t count;
    ta_sim_first_violation(sim, &count);
    return count;
}

static sigjmp_buf faulted;
static inline void on_fault(int signal) { siglongjmp(faulted, signal); }

/* Whether a byte can be read and written. */
static inline bool touchable(uint64_t addr)
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

/* n pages of 2 MiB mapped in a row at a new range. */
static inline uint64_t pages(ta_sim *sim, int n, ta_handle *handles)
{
    const ta_driver *d = ta_sim_driver(sim);
    const int zero = 0;
    uint64_t at = 0;
    d->reserve(sim, (uint64_t)n * P2, 0, &at);
    for (int i = 0; i < n; i++) {
        d->create(sim, 0, TA_TIER_DEVICE, P2, &handles[i]);
        d->map(sim, at + (uint64_t)i * P2, P2, handles[i]);
    }
    d->set_access(sim, at, (uint64_t)n * P2, &zero, 1);
    return at;
}

#endif
