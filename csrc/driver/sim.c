/* sim.c - the simulated machine: its making, the bookkeeping of its calls, faults, time.
 *
 * ta_sim_create makes a machine; ta_sim_driver is its driver table, as the allocator sees
 * it. One mutex guards all of a machine. In a forked child every call gives TA_FORKED: a
 * fork handler counts the process's generation, so that no call asks for the process id,
 * and gives up the descriptors by which the parent holds its shares of the machine. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_memory.h"

#define HOST_MEMORY ((uint64_t)1 << 40)

static atomic_uint process_generation;
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static ta_sim *all_sims; /* guarded by all_lock */
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

/* --- fork --------------------------------------------------------------------------- */
static void before_fork(void) { pthread_mutex_lock(&all_lock); }

static void after_fork_parent(void) { pthread_mutex_unlock(&all_lock); }

static void after_fork_child(void)
{
    atomic_fetch_add(&process_generation, 1);
    for (ta_sim *sim = all_sims; sim; sim = sim->next_sim) {
        ta_sim_pages_destroy(sim);
        for (int i = 0; i < sim->config.devices; i++)
            if (sim->devices[i].shared) ta_sim_shared_forked(sim->devices[i].shared);
    }
    all_sims = NULL;
    pthread_mutex_unlock(&all_lock);
}

static void install_fork_handlers(void)
{
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

static bool forked(const ta_sim *sim)
{
    return sim->generation !=
           atomic_load_explicit(&process_generation, memory_order_relaxed);
}

/* --- bookkeeping -------------------------------------------------------------------- */
static void lock(const ta_sim *sim) { pthread_mutex_lock((pthread_mutex_t *)&sim->lock); }

static void unlock(const ta_sim *sim)
{
    pthread_mutex_unlock((pthread_mutex_t *)&sim->lock);
}

void ta_sim_end(ta_sim *sim) { unlock(sim); }

void ta_sim_charge(ta_sim *sim, double us)
{
    sim->driver_us += us;
    if (!sim->config.free_calls) sim->now_us += us;
}

static bool fault_due(ta_sim_fault *fault)
{
    if (fault->status == TA_OK) return false;
    if (fault->skip) {
        fault->skip--;
        return false;
    }
    if (fault->times == 0) {
        fault->status = TA_OK;
        return false;
    }
    if (fault->times != UINT64_MAX) fault->times--;
    return true;
}

static ta_status next_fault(ta_sim *sim, ta_sim_call call)
{
    ta_sim_fault *mine = &sim->faults[call], *any = &sim->faults[TA_SIM_CALL_COUNT];
    /* Both count every call, whichever of them fails it. */
    ta_status a = mine->status, b = any->status;
    bool mine_due = fault_due(mine), any_due = fault_due(any);
    return mine_due ? a : any_due ? b : TA_OK;
}

ta_status ta_sim_begin(ta_sim *sim, ta_sim_call call, double us)
{
    if (forked(sim)) return TA_FORKED;
    lock(sim);
    sim->calls[call]++;
    ta_sim_charge(sim, us);
    if (sim->faulty) {
        ta_status status = next_fault(sim, call);
        if (status != TA_OK) {
            unlock(sim);
            return status;
        }
    }
    return TA_OK;
}

ta_status ta_sim_begin_other(ta_sim *sim, double us)
{
    if (forked(sim)) return TA_FORKED;
    lock(sim);
    if (!sim->config.free_calls) sim->now_us += us;
    return TA_OK;
}

void ta_sim_violate(ta_sim *sim, const char *format, ...)
{
    if (sim->violations++) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sim->violation, sizeof sim->violation, format, arguments);
    va_end(arguments);
}

static void oracle_says(void *context, const char *text)
{
    ta_sim_violate(context, "%s", text);
}

double ta_sim_random(ta_sim *sim)
{
    uint64_t x = sim->random; /* xorshift64* */
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    sim->random = x;
    return (double)((x * 0x2545f4914f6cdd1du) >> 11) / 9007199254740992.0;
}

ta_status ta_sim_use_device(ta_sim *sim, int device)
{
    if (device < 0 || device >= sim->config.devices) return TA_INVALID;
    ta_sim_device *d = &sim->devices[device];
    if (d->context) return TA_OK;
    uint64_t bytes = sim->config.context_bytes;
    if (d->shared ? !ta_sim_shared_raise(d->shared, bytes) : bytes > sim->config.memory)
        return TA_OUT_OF_MEMORY;
    d->used = bytes;
    d->context = true;
    return TA_OK;
}

/* --- the table's calls that belong nowhere else ------------------------------------- */
static ta_status sim_device_count(void *self, int *count)
{
    ta_sim *sim = self;
    ta_status status =
        ta_sim_begin(sim, TA_SIM_CALL_device_count,
                     ta_sim_cost_us(TA_SIM_CALL_device_count, TA_TIER_DEVICE, 0, 1));
    if (status != TA_OK) return status;
    *count = sim->config.devices;
    ta_sim_end(sim);
    return TA_OK;
}

static ta_status sim_enter(void *self, int device, uintptr_t saved[2])
{
    ta_sim *sim = self;
    saved[0] = (uintptr_t)ta_sim_mode;
    saved[1] = 0;
    ta_status status = ta_sim_begin(
        sim, TA_SIM_CALL_enter, ta_sim_cost_us(TA_SIM_CALL_enter, TA_TIER_DEVICE, 0, 1));
    if (status != TA_OK) return status;
    status = ta_sim_use_device(sim, device);
    if (status == TA_OK) ta_sim_mode = 2;
    ta_sim_end(sim);
    return status;
}

static void sim_leave(void *self, int device, const uintptr_t saved[2])
{
    (void)self;
    (void)device;
    ta_sim_mode = (int)saved[0];
}

static ta_status sim_can_access_peer(void *self, int device, int peer, bool *yes)
{
    ta_sim *sim = self;
    ta_status status =
        ta_sim_begin(sim, TA_SIM_CALL_can_access_peer,
                     ta_sim_cost_us(TA_SIM_CALL_can_access_peer, TA_TIER_DEVICE, 0, 1));
    if (status != TA_OK) return status;
    int n = sim->config.devices;
    if (device < 0 || device >= n || peer < 0 || peer >= n)
        status = TA_INVALID;
    else
        *yes = device != peer && !sim->config.no_peers;
    ta_sim_end(sim);
    return status;
}

/* --- making and ending -------------------------------------------------------------- */
static void destroy(ta_sim *sim)
{
    if (sim->oracle) ta_sim_stream_finish(sim);
    ta_sim_memory_destroy(sim);
    ta_sim_pages_destroy(sim);
    for (int i = 0; sim->devices && i < sim->config.devices; i++)
        if (sim->devices[i].shared) ta_sim_shared_close(sim->devices[i].shared);
    ta_oracle_destroy(sim->oracle);
    free(sim->devices);
    pthread_mutex_destroy(&sim->lock);
    free(sim);
}

static ta_status open_shared(ta_sim *sim)
{
    for (int i = 0; sim->config.dir && i < sim->config.devices; i++) {
        ta_status status = ta_sim_shared_open(sim->config.dir, i, sim->config.memory,
                                              &sim->devices[i].shared);
        if (status != TA_OK) return status;
    }
    sim->config.dir = NULL; /* the caller's */
    return TA_OK;
}

ta_status ta_sim_create(const ta_sim_config *config, ta_sim **out)
{
    *out = NULL;
    if (config->devices < 1 || config->devices > TA_MAX_DEVICES) return TA_INVALID;
    ta_sim *sim = calloc(1, sizeof *sim);
    if (!sim) return TA_NO_HOST_MEMORY;
    sim->config = *config;
    if (sim->config.host_memory == 0) sim->config.host_memory = HOST_MEMORY;
    sim->memfd = -1;
    sim->random = (config->seed * 2 + 1) * 0x9e3779b97f4a7c15u;
    pthread_mutex_init(&sim->lock, NULL);
    sim->devices = calloc((size_t)config->devices, sizeof *sim->devices);
    sim->oracle = ta_oracle_create(oracle_says, sim);
    if (!sim->devices || !sim->oracle || !ta_sim_pages_create(sim)) {
        destroy(sim);
        return TA_NO_HOST_MEMORY;
    }
    ta_status status = open_shared(sim);
    if (status != TA_OK) {
        destroy(sim);
        return status;
    }
    sim->driver.self = sim;
    sim->driver.device_count = sim_device_count;
    sim->driver.enter = sim_enter;
    sim->driver.leave = sim_leave;
    sim->driver.can_access_peer = sim_can_access_peer;
    ta_sim_ranges_table(&sim->driver);
    ta_sim_handles_table(&sim->driver);
    ta_sim_maps_table(&sim->driver);
    ta_sim_plain_table(&sim->driver);
    ta_sim_stream_table(&sim->driver);

    pthread_once(&fork_once, install_fork_handlers);
    pthread_mutex_lock(&all_lock);
    sim->generation = atomic_load(&process_generation);
    sim->next_sim = all_sims;
    all_sims = sim;
    pthread_mutex_unlock(&all_lock);
    *out = sim;
    return TA_OK;
}

void ta_sim_destroy(ta_sim *sim)
{
    if (!sim || forked(sim)) return;
    pthread_mutex_lock(&all_lock);
    ta_sim **link = &all_sims;
    while (*link && *link != sim) link = &(*link)->next_sim;
    if (*link) *link = sim->next_sim;
    pthread_mutex_unlock(&all_lock);
    destroy(sim);
}

const ta_driver *ta_sim_driver(ta_sim *sim) { return &sim->driver; }

/* --- time, cost, faults ------------------------------------------------------------- */
const char *ta_sim_call_name(ta_sim_call call)
{
    static const char *const names[] = {
#define X(name) #name,
        TA_SIM_CALLS(X)
#undef X
    };
    return (unsigned)call < TA_SIM_CALL_COUNT ? names[call] : "any";
}

uint64_t ta_sim_calls(const ta_sim *sim, ta_sim_call call)
{
    lock(sim);
    uint64_t calls = 0;
    for (int i = 0; i < TA_SIM_CALL_COUNT; i++)
        if (call == TA_SIM_CALL_COUNT || (int)call == i) calls += sim->calls[i];
    unlock(sim);
    return calls;
}

void ta_sim_fail(ta_sim *sim, ta_sim_call call, uint64_t k, uint64_t times,
                 ta_status status)
{
    if ((unsigned)call > TA_SIM_CALL_COUNT) return;
    lock(sim);
    if (k == 0 && call == TA_SIM_CALL_COUNT) memset(sim->faults, 0, sizeof sim->faults);
    sim->faults[call] = (ta_sim_fault){
        .skip = k ? k - 1 : 0,
        .times = times == UINT64_MAX ? times : times + 1,
        .status = k ? status : TA_OK,
    };
    sim->faulty = false;
    for (int i = 0; i <= TA_SIM_CALL_COUNT; i++)
        sim->faulty |= sim->faults[i].status != TA_OK;
    unlock(sim);
}

double ta_sim_driver_us(const ta_sim *sim)
{
    lock(sim);
    double us = sim->driver_us;
    unlock(sim);
    return us;
}

double ta_sim_now_us(const ta_sim *sim)
{
    lock(sim);
    double us = sim->now_us;
    unlock(sim);
    return us;
}

void ta_sim_advance_us(ta_sim *sim, double us)
{
    lock(sim);
    if (us > 0) sim->now_us += us;
    unlock(sim);
}

uint64_t ta_sim_used(ta_sim *sim, int device, bool all_processes)
{
    if (device < 0 || device >= sim->config.devices || forked(sim)) return 0;
    lock(sim);
    ta_sim_device *d = &sim->devices[device];
    uint64_t used = all_processes && d->shared ? ta_sim_shared_total(d->shared) : d->used;
    unlock(sim);
    return used;
}

uint64_t ta_sim_pinned(ta_sim *sim)
{
    lock(sim);
    uint64_t bytes = sim->pinned;
    unlock(sim);
    return bytes;
}

void ta_sim_set_host_memory(ta_sim *sim, uint64_t bytes)
{
    lock(sim);
    sim->config.host_memory = bytes;
    unlock(sim);
}

uint64_t ta_sim_reserved_addresses(ta_sim *sim)
{
    lock(sim);
    uint64_t bytes = sim->reserved;
    unlock(sim);
    return bytes;
}

const char *ta_sim_first_violation(const ta_sim *sim, uint64_t *count)
{
    lock(sim);
    uint64_t violations = sim->violations;
    unlock(sim);
    if (count) *count = violations;
    return violations ? sim->violation : NULL; /* the first is never written again */
}
