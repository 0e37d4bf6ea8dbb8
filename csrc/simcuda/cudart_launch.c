/* cudart_launch.c - kernels: registering, asking about, launching them.
 *
 * nvcc's generated code registers every kernel under the address of its host stub. A launch
 * computes nothing: it is queued work that may touch anything. Thread-safe. */
#include <stdlib.h>
#include <string.h>

#include "cudart.h"

#define NOTE(call) return ta_sc_note(call)

typedef struct dim3 {
    unsigned x, y, z;
} dim3;

/* --- registration (before main) ----------------------------------------------------------- */
static char anything; /* its address stands for what nobody looks into */

/* A fat binary's handle is its own address. */
TA_EXPORT void **__cudaRegisterFatBinary(void *binary) { return binary; }
TA_EXPORT void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
TA_EXPORT void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
TA_EXPORT char __cudaInitModule(void **handle)
{
    (void)handle;
    return 1;
}
/* Seven arguments more, of no use here. */
TA_EXPORT void __cudaRegisterFunction(void **handle, const void *stub)
{
    ta_sc_kernel_add(stub, handle);
}
TA_EXPORT void __cudaRegisterVar(void) {}
TA_EXPORT void __cudaRegisterManagedVar(void) {}
TA_EXPORT void __cudaRegisterHostVar(void) {}

/* The <<<>>> syntax: the configuration is pushed, the stub pops it and launches. */
static _Thread_local struct {
    dim3 grid, block;
    size_t shared;
    ta_stream stream;
} pushed;
TA_EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared,
                                               ta_stream stream)
{
    pushed.grid = grid;
    pushed.block = block;
    pushed.shared = shared;
    pushed.stream = stream;
    return 0;
}
TA_EXPORT int __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared,
                                         ta_stream *stream)
{
    *grid = pushed.grid;
    *block = pushed.block;
    *shared = pushed.shared;
    *stream = pushed.stream;
    return 0;
}
/* CUDA 13's stubs turn the host function into a kernel handle first. */
TA_EXPORT int __cudaGetKernel(void **kernel, const void *function)
{
    *kernel = (void *)(uintptr_t)function;
    return 0;
}

/* --- launches ------------------------------------------------------------------------------ */
static int launch(const void *kernel, dim3 grid, dim3 block, ta_stream stream)
{
    if (!kernel) NOTE(TA_CU_INVALID);
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    /* As on the device: an empty grid or too large a block is a bad configuration (9). */
    if (!grid.x || !grid.y || !grid.z || !threads || threads > 1024 || grid.y > 65535 ||
        grid.z > 65535)
        NOTE(9);
    NOTE(ta_sc_launch(stream));
}
TA_EXPORT int cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **args,
                               size_t shared, ta_stream stream)
{
    (void)args, (void)shared;
    return launch(kernel, grid, block, stream);
}
TA_EXPORT int __cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **args,
                                 size_t shared, ta_stream stream)
{
    (void)args, (void)shared;
    return launch(kernel, grid, block, stream);
}
TA_EXPORT int cudaLaunchCooperativeKernel(const void *kernel, dim3 grid, dim3 block,
                                          void **args, size_t shared, ta_stream stream)
{
    (void)args, (void)shared;
    return launch(kernel, grid, block, stream);
}
struct launch_config {
    dim3 grid, block;
    size_t shared;
    ta_stream stream;
    void *attributes;
    unsigned count;
};
TA_EXPORT int cudaLaunchKernelExC(const struct launch_config *config, const void *kernel,
                                  void **args)
{
    (void)args;
    return launch(kernel, config->grid, config->block, config->stream);
}

/* --- facts about kernels --------------------------------------------------------------------- */
struct func_attributes {
    size_t shared, constant, local;
    int max_threads, registers, ptx_version, binary_version, cache_mode,
        max_dynamic_shared, carveout;
};
TA_EXPORT int cudaFuncGetAttributes(struct func_attributes *a, const void *kernel)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    int code, ptx;
    if (!m) NOTE(TA_CU_NOT_INITIALIZED);
    if (!ta_sc_kernel_versions(kernel, m->card.major * 10 + m->card.minor, &code, &ptx))
        NOTE(TA_CU_NO_BINARY_FOR_GPU);
    *a = (struct func_attributes){.max_threads = 1024,
                                  .registers = 32,
                                  .ptx_version = ptx,
                                  .binary_version = code,
                                  .max_dynamic_shared = 49152,
                                  .carveout = -1};
    return TA_CU_OK;
}
TA_EXPORT int cudaFuncSetAttribute(const void *kernel, int attribute, int value)
{
    (void)kernel, (void)attribute, (void)value;
    return TA_CU_OK;
}
TA_EXPORT int cudaFuncSetCacheConfig(const void *kernel, int config)
{
    (void)kernel, (void)config;
    return TA_CU_OK;
}
TA_EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks,
                                                            const void *kernel, int size,
                                                            size_t shared)
{
    (void)kernel;
    NOTE(ta_sc_occupancy(blocks, size, shared));
}
TA_EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int *blocks, const void *kernel, int size, size_t shared, unsigned flags)
{
    (void)kernel, (void)flags;
    NOTE(ta_sc_occupancy(blocks, size, shared));
}
TA_EXPORT int cudaOccupancyMaxActiveClusters(int *clusters, const void *kernel,
                                             const struct launch_config *config)
{
    (void)kernel;
    dim3 block = config->block;
    NOTE(ta_sc_occupancy(clusters, (int)(block.x * block.y * block.z), config->shared));
}
/* Device variables live at their host shadows. */
TA_EXPORT int cudaGetSymbolAddress(void **address, const void *symbol)
{
    *address = (void *)(uintptr_t)symbol;
    return TA_CU_OK;
}
TA_EXPORT int cudaGetFuncBySymbol(void **function, const void *symbol)
{
    *function = (void *)(uintptr_t)symbol;
    return TA_CU_OK;
}

/* --- libraries loaded at run time -------------------------------------------------------------- */
TA_EXPORT int cudaLibraryLoadData(void **library, const void *code)
{
    (void)code;
    *library = (void *)&anything;
    return TA_CU_OK;
}
TA_EXPORT int cudaLibraryUnload(void *library)
{
    (void)library;
    return TA_CU_OK;
}
TA_EXPORT int cudaLibraryGetKernel(void **kernel, void *library, const char *name)
{
    (void)library, (void)name;
    *kernel = (void *)&anything;
    return TA_CU_OK;
}
TA_EXPORT int cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value,
                                              int device)
{
    (void)kernel, (void)attribute, (void)value, (void)device;
    return TA_CU_OK;
}
