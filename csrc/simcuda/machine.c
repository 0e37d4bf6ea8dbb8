/* machine.c - the simulated machine of this process, and each thread's current device.
 *
 * Everything in simcuda starts from ta_sc_machine_get. Made at the first call, from the
 * environment: TORCHARENA_SIM_GPU (a card of cards.c or a size; h200), TORCHARENA_SIM_DEVICES
 * (1), TORCHARENA_SIM_DIR (private), TORCHARENA_SIM_SEED (0), TORCHARENA_SIM_HOST (bytes that
 * can be pinned by pages; 1 TiB; 0: no pages on the host). CUDA_VISIBLE_DEVICES lowers the
 * count. It is never torn down: frees may come from destructors at exit. Thread-safe. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simcuda.h"

#define MAX_DEVICES TA_MAX_DEVICES
#define MAX_DEPTH 32

static pthread_once_t once = PTHREAD_ONCE_INIT;
static ta_sc_machine machine;
static bool made, forked;
static ta_sc_context contexts[MAX_DEVICES];
static _Thread_local ta_sc_context *stack[MAX_DEPTH];
static _Thread_local int depth;

static void in_child(void) { forked = true; }

static int visible(int devices)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (!list) return devices;
    int count = 0;
    while (*list && *list != '-') {
        count++;
        list = strchr(list, ',');
        if (!list) break;
        list++;
    }
    return count < devices ? count : devices;
}

void *ta_sc_real(const char *const *libraries, const char *symbol)
{
    for (; *libraries; libraries++) {
        void *library = dlopen(*libraries, RTLD_LAZY | RTLD_NOLOAD);
        if (library) return dlsym(library, symbol);
    }
    return NULL;
}

int ta_sc_runtime_version(void)
{
    static int version;
    int known = __atomic_load_n(&version, __ATOMIC_RELAXED);
    if (known) return known;
    static const char *const names[] = {"libcudart.so.13", "libcudart.so.12", NULL};
    int (*ask)(int *);
    *(void **)&ask = ta_sc_real(names, "cudaRuntimeGetVersion");
    int found = 0;
    if (!ask || ask(&found) != 0 || found <= 0) found = 13000;
    __atomic_store_n(&version, found, __ATOMIC_RELAXED);
    return found;
}

static void make(void)
{
    const char *gpu = getenv("TORCHARENA_SIM_GPU");
    const char *number = getenv("TORCHARENA_SIM_DEVICES");
    const char *seed = getenv("TORCHARENA_SIM_SEED");
    const char *host = getenv("TORCHARENA_SIM_HOST");
    if (!gpu || !*gpu) gpu = "h200";
    if (!ta_sc_find_card(gpu, &machine.card)) {
        fprintf(
            stderr,
            "torcharena: TORCHARENA_SIM_GPU=%s is neither a known card nor a size such "
            "as 16GiB\n",
            gpu);
        return;
    }
    int devices = number ? atoi(number) : 1;
    if (devices < 1 || devices > MAX_DEVICES) {
        fprintf(stderr, "torcharena: TORCHARENA_SIM_DEVICES=%s is not 1 to %d\n", number,
                MAX_DEVICES);
        return;
    }
    ta_sim_config config = {
        .devices = devices,
        .memory = machine.card.memory,
        .context_bytes = (uint64_t)machine.card.context_mib << 20,
        .seed = seed ? strtoull(seed, NULL, 10) : 0,
        .dir = getenv("TORCHARENA_SIM_DIR"),
        .host_memory = host ? strtoull(host, NULL, 10) : 0,
        .no_host_pages = host && strtoull(host, NULL, 10) == 0,
    };
    if (config.dir && !*config.dir) config.dir = NULL;
    ta_status status = ta_sim_create(&config, &machine.sim);
    if (status != TA_OK) {
        fprintf(stderr, "torcharena: the simulated GPU could not be made: %s\n",
                status == TA_NO_HOST_MEMORY ? "no memory" : "error");
        return;
    }
    machine.driver = ta_sim_driver(machine.sim);
    machine.devices = visible(devices);
    machine.host_pages = !config.no_host_pages;
    machine.runtime_version = ta_sc_runtime_version();
    machine.driver_version =
        machine.runtime_version > 13000 ? machine.runtime_version : 13000;
    for (int d = 0; d < MAX_DEVICES; d++) contexts[d].device = d;
    pthread_atfork(NULL, NULL, in_child);
    made = true;
}

const ta_sc_machine *ta_sc_machine_get(void)
{
    pthread_once(&once, make);
    return made && !forked ? &machine : NULL;
}

int ta_sc_device_count(void)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    return m ? m->devices : 0;
}

int ta_sc_status(ta_status status)
{
    switch (status) {
    case TA_OK:
        return TA_CU_OK;
    case TA_OUT_OF_MEMORY:
        return TA_CU_NO_MEMORY;
    case TA_NOT_READY:
        return TA_CU_NOT_READY;
    case TA_INVALID:
        return TA_CU_INVALID;
    case TA_UNSUPPORTED:
        return TA_CU_UNSUPPORTED;
    case TA_FORKED:
        return TA_CU_NOT_INITIALIZED;
    case TA_GONE:
        return TA_CU_GONE;
    case TA_NO_HOST_MEMORY:
        return TA_CU_NO_MEMORY;
    case TA_DRIVER:
    case TA_BUSY:
    case TA_ASLEEP:
    case TA_GUARDED:
        break;
    }
    return TA_CU_UNKNOWN;
}

ta_sc_context *ta_sc_context_of(int device)
{
    return device >= 0 && device < ta_sc_device_count() ? &contexts[device] : NULL;
}

ta_sc_context *ta_sc_current(void) { return depth ? stack[depth - 1] : NULL; }

int ta_sc_set_current(ta_sc_context *context)
{
    if (!context) {
        if (depth) depth--;
    } else if (depth) {
        stack[depth - 1] = context;
    } else {
        stack[depth++] = context;
    }
    return TA_CU_OK;
}

int ta_sc_push(ta_sc_context *context)
{
    if (!context) return TA_CU_BAD_CONTEXT;
    if (depth == MAX_DEPTH) return TA_CU_INVALID;
    stack[depth++] = context;
    return TA_CU_OK;
}

int ta_sc_pop(ta_sc_context **context)
{
    if (!depth) return TA_CU_BAD_CONTEXT;
    depth--;
    if (context) *context = stack[depth];
    return TA_CU_OK;
}

int ta_sc_device(void)
{
    const ta_sc_context *context = ta_sc_current();
    return context ? context->device : 0;
}

int ta_sc_activate(ta_sc_context *context)
{
    if (__atomic_load_n(&context->active, __ATOMIC_ACQUIRE)) return TA_CU_OK;
    ta_status status = ta_sim_settle(machine.sim, context->device); /* charges it */
    if (status == TA_OK) __atomic_store_n(&context->active, true, __ATOMIC_RELEASE);
    return ta_sc_status(status);
}

void ta_sc_use(int device)
{
    ta_sc_context *context = ta_sc_context_of(device);
    if (!context) return;
    ta_sc_activate(context);
    if (!depth) stack[depth++] = context;
}

int ta_sc_set_device(int device)
{
    ta_sc_context *context = ta_sc_context_of(device);
    if (!context) return ta_sc_machine_get() ? TA_CU_BAD_DEVICE : TA_CU_NOT_INITIALIZED;
    int result = ta_sc_activate(context);
    return result == TA_CU_OK ? ta_sc_set_current(context) : result;
}

void ta_sc_report(const char *function)
{
    fprintf(stderr, "torcharena: %s is not simulated: it fails\n", function);
}

ta_sc_handle *ta_sc_handle_new(void)
{
    ta_sc_handle *handle = calloc(1, sizeof *handle);
    if (handle) handle->device = ta_sc_device();
    return handle;
}

int ta_sc_handle_launch(const void *handle)
{
    return ta_sc_launch(handle ? ((const ta_sc_handle *)handle)->stream : NULL);
}

void ta_sc_no_error(int *to, int64_t count)
{
    for (int64_t i = 0; to && i < count; i++) to[i] = 0;
}
void ta_sc_no_pivoting(int *to, int64_t count)
{
    for (int64_t i = 0; to && i < count; i++) to[i] = (int)(i + 1);
}
