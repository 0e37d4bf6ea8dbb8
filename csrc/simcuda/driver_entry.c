/* driver_entry.c - the driver's functions by name, modules and launches.
 *
 * cuGetProcAddress, cudaGetDriverEntryPoint and their versions answer with our own exported
 * functions, never another library's. Triton and Inductor load modules and launch kernels
 * here: modules are empty objects, launches are queued work. Thread-safe. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cudart.h"

/* --- entry points ------------------------------------------------------------------------ */
static void *find(const char *name)
{
    static void *self;
    void *handle = __atomic_load_n(&self, __ATOMIC_ACQUIRE);
    if (!handle) {
        Dl_info info;
        if (!dladdr((const void *)&self, &info)) return NULL;
        handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
        if (!handle) return NULL;
        __atomic_store_n(&self, handle, __ATOMIC_RELEASE);
    }
    /* dlsym also searches what the library needs: only our own counts. */
    void *address = dlsym(handle, name);
    Dl_info mine, found;
    if (!address || !dladdr((const void *)&self, &mine) || !dladdr(address, &found) ||
        mine.dli_fbase != found.dli_fbase)
        return NULL;
    return address;
}

/* Where a name got a new signature: from this version on, this suffix. The newest first. */
static const struct {
    const char *name;
    int version;
    const char *suffix;
} versions[] = {
    {"cuStreamGetCaptureInfo", 12030, "_v3"},
    {"cuStreamGetCaptureInfo", 11030, "_v2"},
    {"cuEventElapsedTime", 0, ""},
    {"cuGetProcAddress", 12000, "_v2"},
    {"cuGetProcAddress", 0, ""},
    {"cuDeviceGetUuid", 0, ""},
};

void *ta_sc_entry(const char *symbol, int version)
{
    char name[128];
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        if (strcmp(versions[i].name, symbol) != 0 || version < versions[i].version)
            continue;
        snprintf(name, sizeof name, "%s%s", symbol, versions[i].suffix);
        return find(name);
    }
    snprintf(name, sizeof name, "%s_v2", symbol);
    void *address = find(name);
    return address ? address : find(symbol);
}

TA_EXPORT int cuGetProcAddress_v2(const char *symbol, void **function, int version,
                                  uint64_t flags, int *status)
{
    (void)flags;
    if (!symbol || !function) return TA_CU_INVALID;
    *function = ta_sc_entry(symbol, version);
    if (status) *status = *function ? 0 : 1; /* found, not found */
    return *function || status ? TA_CU_OK : TA_CU_NOT_FOUND;
}
TA_EXPORT int cuGetProcAddress(const char *symbol, void **function, int version,
                               uint64_t flags)
{
    return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}
TA_EXPORT int cudaGetDriverEntryPointByVersion(const char *symbol, void **function,
                                               unsigned version, unsigned long long flags,
                                               int *status)
{
    return ta_sc_note(cuGetProcAddress_v2(symbol, function, (int)version, flags, status));
}
TA_EXPORT int cudaGetDriverEntryPoint(const char *symbol, void **function,
                                      unsigned long long flags, int *status)
{
    return cudaGetDriverEntryPointByVersion(
        symbol, function, (unsigned)ta_sc_runtime_version(), flags, status);
}

/* --- modules and kernels ------------------------------------------------------------------- */
static char module; /* its address is every module, function and linker state */

static int give_module(void **out)
{
    if (!out) return TA_CU_INVALID;
    *out = &module;
    return ta_sc_current() ? TA_CU_OK : TA_CU_BAD_CONTEXT;
}
TA_EXPORT int cuModuleLoad(void **out, const char *path)
{
    (void)path;
    return give_module(out);
}
TA_EXPORT int cuModuleLoadData(void **out, const void *image)
{
    (void)image;
    return give_module(out);
}
TA_EXPORT int cuModuleLoadDataEx(void **out, const void *image, unsigned count,
                                 const int *options, void **values)
{
    (void)image, (void)count, (void)options, (void)values;
    return give_module(out);
}
TA_EXPORT int cuModuleLoadFatBinary(void **out, const void *image)
{
    (void)image;
    return give_module(out);
}
TA_EXPORT int cuModuleUnload(void *m)
{
    (void)m;
    return TA_CU_OK;
}
TA_EXPORT int cuModuleGetFunction(void **function, void *m, const char *name)
{
    (void)m, (void)name;
    *function = &module;
    return TA_CU_OK;
}
TA_EXPORT int cuModuleGetGlobal_v2(uint64_t *address, size_t *size, void *m,
                                   const char *name)
{
    (void)m, (void)name;
    if (address) *address = 0;
    if (size) *size = 0;
    return TA_CU_NOT_FOUND;
}
TA_EXPORT int cuLibraryLoadData(void **library, const void *code)
{
    (void)code;
    return give_module(library);
}
TA_EXPORT int cuLibraryUnload(void *library)
{
    (void)library;
    return TA_CU_OK;
}
TA_EXPORT int cuLibraryGetKernel(void **kernel, void *library, const char *name)
{
    (void)library, (void)name;
    return give_module(kernel);
}
TA_EXPORT int cuKernelGetFunction(void **function, void *kernel)
{
    *function = kernel;
    return TA_CU_OK;
}
TA_EXPORT int cuLinkCreate_v2(unsigned count, int *options, void **values, void **state)
{
    (void)count, (void)options, (void)values;
    return give_module(state);
}
TA_EXPORT int cuLinkAddData_v2(void) { return TA_CU_OK; }
TA_EXPORT int cuLinkAddFile_v2(void) { return TA_CU_OK; }
TA_EXPORT int cuLinkDestroy(void *state)
{
    (void)state;
    return TA_CU_OK;
}
TA_EXPORT int cuLinkComplete(void *state, void **image, size_t *size)
{
    (void)state;
    if (image) *image = &module;
    if (size) *size = 1;
    return TA_CU_OK;
}
TA_EXPORT int cuFuncGetAttribute(int *value, int attribute, void *function)
{
    (void)function;
    static const int values[] = {1024, 0, 0, 0, 32, 0, 0, 0, 49152};
    int version;
    ta_sc_attribute(&version, 75, ta_sc_device());
    *value = attribute >= 0 && attribute <= 8 ? values[attribute] : 0;
    if (attribute == 5 || attribute == 6) *value = version * 10;
    return TA_CU_OK;
}
TA_EXPORT int cuFuncSetAttribute(void *function, int attribute, int value)
{
    (void)function, (void)attribute, (void)value;
    return TA_CU_OK;
}
TA_EXPORT int cuFuncSetCacheConfig(void *function, int config)
{
    (void)function, (void)config;
    return TA_CU_OK;
}
TA_EXPORT int cuFuncGetModule(void **out, void *function)
{
    (void)function;
    return give_module(out);
}
TA_EXPORT int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz,
                             unsigned bx, unsigned by, unsigned bz, unsigned shared,
                             ta_stream stream, void **params, void **extra)
{
    (void)shared, (void)params, (void)extra;
    if (!function || !gx || !gy || !gz || !bx || !by || !bz) return TA_CU_INVALID;
    return ta_sc_launch(stream);
}
TA_EXPORT int cuLaunchCooperativeKernel(void *function, unsigned gx, unsigned gy,
                                        unsigned gz, unsigned bx, unsigned by,
                                        unsigned bz, unsigned shared, ta_stream stream,
                                        void **params)
{
    return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, params, NULL);
}
struct launch {
    unsigned gx, gy, gz, bx, by, bz, shared;
    ta_stream stream;
    void *attributes;
    unsigned count;
};
TA_EXPORT int cuLaunchKernelEx(const struct launch *c, void *function, void **params,
                               void **extra)
{
    return cuLaunchKernel(function, c->gx, c->gy, c->gz, c->bx, c->by, c->bz, c->shared,
                          c->stream, params, extra);
}
TA_EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function,
                                                          int size, size_t shared)
{
    (void)function;
    return ta_sc_occupancy(blocks, size, shared);
}
TA_EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int *blocks, void *function, int size, size_t shared, unsigned flags)
{
    (void)function, (void)flags;
    return ta_sc_occupancy(blocks, size, shared);
}
TA_EXPORT int cuOccupancyMaxActiveClusters(int *clusters, void *function,
                                           const struct launch *c)
{
    (void)function;
    return ta_sc_occupancy(clusters, (int)(c->bx * c->by * c->bz), c->shared);
}
TA_EXPORT int cuTensorMapEncodeTiled(void *map)
{
    memset(map, 0, 128);
    return TA_CU_OK;
}
TA_EXPORT int cuTensorMapEncodeIm2col(void *map)
{
    memset(map, 0, 128);
    return TA_CU_OK;
}
TA_EXPORT int cuTensorMapReplaceAddress(void *map, void *address)
{
    (void)map, (void)address;
    return TA_CU_OK;
}
