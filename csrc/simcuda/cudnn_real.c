/* cudnn_real.c - the real libcudnn, asked about a device that is only described.
 *
 * From 9.8 on its heuristics and plans take a description of a device in place of a handle,
 * and need neither GPU nor driver. So cudnn_backend.c passes descriptors on to it and learns
 * which engines a card would use and the workspaces they want; nothing is ever executed
 * there. PyTorch has the library loaded already; our definitions stand before its own, which
 * are reached here by their library's handle.
 *
 * The report's numbers are for the rehearsal, which says where workspaces come from.
 * Thread-safe. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dladdr */
#endif
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cudnn_real.h"

enum { DEVICE = 38, DEVICE_JSON = 2702, TYPE_CHAR = 24 };

static ta_sc_real_dnn real;
static bool usable;
static const char *why = "not asked";
static struct {
    uint64_t count, largest;
} spaces[TA_SC_SPACE_KINDS];

size_t ta_sc_describe_card(const ta_sc_card *card, int driver_version, char *text,
                           size_t size)
{
    int length = snprintf(
        text, size,
        "{\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
        "\"regsPerBlock\":65536,\"multiProcessorCount\":%d,\"warpSize\":32,"
        "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%d,"
        "\"reservedSharedMemoryPerBlock\":%d,\"maxRegistersPerSM\":65536,"
        "\"maxCtasPerSM\":%d,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":%d,"
        "\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,"
        "\"totalGlobalMem\":%llu,\"smClockRateKHz\":%d,\"memClockRateKHz\":%d,"
        "\"l2CacheSize\":%d,\"cudaDeviceId\":0,\"deviceVer\":%d,\"driverVer\":%d,"
        "\"deviceName\":\"%s\"}",
        card->sms, card->shared_block * 1024, card->major >= 8 ? 1024 : 0,
        card->blocks_sm, card->threads_sm, (unsigned long long)card->memory,
        card->clock_mhz * 1000, card->memory_mhz * 1000, card->l2_kib * 1024,
        card->major * 100 + card->minor * 10, driver_version, card->name);
    return length > 0 && (size_t)length < size ? (size_t)length : 0;
}

/* A library of cuDNN's, from where PyTorch's libcudnn is. */
static void *open_library(const char *name)
{
    void *front = dlopen("libcudnn.so.9", RTLD_LAZY | RTLD_NOLOAD);
    void *symbol = front ? dlsym(front, "cudnnGetVersion") : NULL;
    Dl_info info;
    if (!symbol || !dladdr(symbol, &info) || !info.dli_fname) return NULL;
    const char *slash = strrchr(info.dli_fname, '/');
    char path[4096];
    int length =
        snprintf(path, sizeof path, "%.*s%s",
                 slash ? (int)(slash - info.dli_fname + 1) : 0, info.dli_fname, name);
    if (length < 0 || (size_t)length >= sizeof path) return NULL;
    return dlopen(path, RTLD_LAZY | RTLD_LOCAL);
}

static bool describe(void)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    char json[2048];
    size_t length =
        m ? ta_sc_describe_card(&m->card, m->driver_version, json, sizeof json) : 0;
    if (!length || real.create(DEVICE, &real.device) != DNN_OK) return false;
    if (real.set(real.device, DEVICE_JSON, TYPE_CHAR, (int64_t)length + 1, json) !=
            DNN_OK ||
        real.finalize(real.device) != DNN_OK)
        return false;
    ta_sc_tell_gpcs(real.device, &m->card, m->driver_version);
    return true;
}

static void load(void)
{
    const char *wanted = getenv("TORCHARENA_SIM_CUDNN");
    why = "TORCHARENA_SIM_CUDNN=guess";
    if (wanted && strcmp(wanted, "guess") == 0) return;
    why = "no libcudnn.so.9 is loaded";
    void *library = open_library("libcudnn_graph.so.9");
    if (!library) return;
    void *engines = open_library("libcudnn_engines_precompiled.so.9");
    if (engines) ta_sc_redirect_blas(engines);
    struct {
        void *to;
        const char *name;
    } functions[] = {{&real.create, "cudnnBackendCreateDescriptor"},
                     {&real.destroy, "cudnnBackendDestroyDescriptor"},
                     {&real.set, "cudnnBackendSetAttribute"},
                     {&real.get, "cudnnBackendGetAttribute"},
                     {&real.finalize, "cudnnBackendFinalize"},
                     {&real.last_error, "cudnnGetLastErrorString"}};
    why = "libcudnn_graph.so.9 lacks a function";
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *symbol = dlsym(library, functions[i].name);
        if (!symbol) return;
        memcpy(functions[i].to, &symbol, sizeof symbol);
    }
    why = "libcudnn takes no description of a device (older than 9.8)";
    if (!describe()) return;
    why = "";
    usable = true;
}

const ta_sc_real_dnn *ta_sc_real_dnn_get(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return usable ? &real : NULL;
}

static void raise_to(uint64_t *largest, uint64_t bytes)
{
    uint64_t seen = __atomic_load_n(largest, __ATOMIC_RELAXED);
    while (seen < bytes &&
           !__atomic_compare_exchange_n(largest, &seen, bytes, true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
    }
}
void ta_sc_workspace(ta_sc_space kind, uint64_t bytes)
{
    __atomic_add_fetch(&spaces[kind].count, 1, __ATOMIC_RELAXED);
    raise_to(&spaces[kind].largest, bytes);
}

/* For the rehearsal's report, since the process began: how many workspaces of a kind, and
 * the largest in bytes. Returns why the real libcudnn is not asked: empty where it is. */
TA_EXPORT const char *ta_simcuda_workspaces(uint64_t counts[2 * TA_SC_SPACE_KINDS])
{
    for (size_t kind = 0; kind < TA_SC_SPACE_KINDS; kind++) {
        counts[2 * kind] = __atomic_load_n(&spaces[kind].count, __ATOMIC_RELAXED);
        counts[2 * kind + 1] = __atomic_load_n(&spaces[kind].largest, __ATOMIC_RELAXED);
    }
    return why;
}

/* --- driver functions that only libcudnn looks up ---------------------------------------- */
TA_EXPORT int cuCtxPopCurrent(ta_sc_context **context) { return ta_sc_pop(context); }
TA_EXPORT int cuCtxPushCurrent(ta_sc_context *context) { return ta_sc_push(context); }
TA_EXPORT int cuLinkCreate(void) { return TA_CU_UNSUPPORTED; }
TA_EXPORT int cuLinkAddData(void) { return TA_CU_UNSUPPORTED; }
TA_EXPORT int cuLibraryLoadFromFile(void) { return TA_CU_UNSUPPORTED; }
TA_EXPORT int cuKernelSetAttribute(void) { return TA_CU_OK; }
TA_EXPORT int cuKernelGetAttribute(int *value)
{
    *value = 0;
    return TA_CU_OK;
}
TA_EXPORT int cuOccupancyMaxPotentialClusterSize(int *size)
{
    *size = 8;
    return TA_CU_OK;
}
