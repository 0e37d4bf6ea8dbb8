/* testing.c - what tests and the rehearsal ask of the simulated machine.
 *
 * Exported as ta_simcuda_*, for ctypes. Thread-safe. */
#include <string.h>

#include "../driver/oracle.h"
#include "simcuda.h"

/* True in a process that runs on simulated GPUs: the function being there says it. */
TA_EXPORT int ta_simcuda_devices(void) { return ta_sc_device_count(); }

/* The machine, as context for ta_simcuda_observe and for the functions of sim.h. */
TA_EXPORT void *ta_simcuda_machine(void)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    return m ? m->sim : NULL;
}

/* The oracle, as an observer of an allocator; its context is ta_simcuda_machine(). */
TA_EXPORT void ta_simcuda_observe(void *sim, const ta_event_info *event)
{
    ta_oracle_observe(sim, event);
}
TA_EXPORT void ta_simcuda_allow_moves(int allow)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (m) ta_oracle_allow_moves(m->sim, allow != 0);
}

/* The first broken rule, NULL if none. */
TA_EXPORT const char *ta_simcuda_violation(uint64_t *count)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    uint64_t all = 0;
    const char *text = m ? ta_sim_first_violation(m->sim, &all) : NULL;
    if (count) *count = all;
    return text;
}

/* The call of sim.h's list with this name; -1: any. -2: there is none. */
static int call_of(const char *name)
{
    if (strcmp(name, "any") == 0) return -1;
    for (int c = 0; c < TA_SIM_CALL_COUNT; c++)
        if (strcmp(name, ta_sim_call_name((ta_sim_call)c)) == 0) return c;
    return -2;
}

/* The k-th next call fails with the ta_status, and the `times` after it; k 0: none does. */
TA_EXPORT int ta_simcuda_fail(const char *call, uint64_t k, uint64_t times, int status)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    int which = call_of(call);
    if (!m || which == -2) return TA_INVALID;
    ta_sim_fail(m->sim, which < 0 ? TA_SIM_CALL_COUNT : (ta_sim_call)which, k, times,
                (ta_status)status);
    return TA_OK;
}

/* Driver calls so far: of one kind, or "any". */
TA_EXPORT uint64_t ta_simcuda_driver_calls(const char *call)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    int which = call_of(call);
    if (!m || which == -2) return 0;
    if (which >= 0) return ta_sim_calls(m->sim, (ta_sim_call)which);
    uint64_t all = 0;
    for (int c = 0; c < TA_SIM_CALL_COUNT; c++)
        all += ta_sim_calls(m->sim, (ta_sim_call)c);
    return all;
}
TA_EXPORT double ta_simcuda_driver_us(void)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    return m ? ta_sim_driver_us(m->sim) : 0;
}
TA_EXPORT double ta_simcuda_now_us(void)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    return m ? ta_sim_now_us(m->sim) : 0;
}
TA_EXPORT void ta_simcuda_advance_us(double us)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (m) ta_sim_advance_us(m->sim, us);
}
/* Bytes of device memory held by this process, or by all. */
TA_EXPORT uint64_t ta_simcuda_used(int device, int all)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    return m && ta_sc_context_of(device) ? ta_sim_used(m->sim, device, all != 0) : 0;
}
/* Bytes of the host that pages have pinned. */
TA_EXPORT uint64_t ta_simcuda_pinned(void)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    return m ? ta_sim_pinned(m->sim) : 0;
}
/* For csrc/driver/cuda.c: the simulated machine's host memory, not that of this one. */
TA_EXPORT int ta_simcuda_host_memory(uint64_t *bytes)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return TA_GONE;
    return (int)m->driver->host_memory(m->driver->self, bytes);
}
/* Queues work on known bytes; us below 0: a random while. */
TA_EXPORT int ta_simcuda_touch(int device, void *stream, uint64_t addr, uint64_t size,
                               int write, double us)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return TA_GONE;
    ta_sim_range range = {addr, size, write != 0};
    return (int)ta_sim_launch(m->sim, device, stream, &range, 1, us);
}
