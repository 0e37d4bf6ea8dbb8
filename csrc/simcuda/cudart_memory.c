/* cudart_memory.c - the runtime's functions on memory.
 *
 * Called by PyTorch in place of libcudart's; the work is memory.c's. Thread-safe. */
#include <string.h>

#include "cudart.h"

#define IPC_HANDLE 64 /* bytes */
#define NOTE(call) return ta_sc_note(call)

TA_EXPORT int cudaMalloc(void **ptr, size_t size)
{
    if (!ptr) NOTE(TA_CU_INVALID);
    NOTE(ta_sc_malloc(ta_sc_device(), size, ptr));
}
TA_EXPORT int cudaFree(void *ptr)
{
    ta_sc_use(ta_sc_device()); /* cudaFree(0) is the usual way to initialise */
    NOTE(ta_sc_free(ptr));
}
TA_EXPORT int cudaMallocManaged(void **ptr, size_t size, unsigned flags)
{
    (void)flags;
    NOTE(ta_sc_host_alloc(size, TA_SC_MANAGED, ptr));
}
TA_EXPORT int cudaMallocPitch(void **ptr, size_t *pitch, size_t width, size_t height)
{
    *pitch = (width + 511) / 512 * 512;
    NOTE(ta_sc_malloc(ta_sc_device(), *pitch * height, ptr));
}
TA_EXPORT int cudaHostAlloc(void **ptr, size_t size, unsigned flags)
{
    (void)flags;
    NOTE(ta_sc_host_alloc(size, TA_SC_HOST, ptr));
}
TA_EXPORT int cudaMallocHost(void **ptr, size_t size)
{
    NOTE(ta_sc_host_alloc(size, TA_SC_HOST, ptr));
}
TA_EXPORT int cudaFreeHost(void *ptr) { NOTE(ta_sc_host_free(ptr)); }
TA_EXPORT int cudaHostRegister(void *ptr, size_t size, unsigned flags)
{
    (void)flags;
    NOTE(ta_sc_register(ptr, size));
}
TA_EXPORT int cudaHostUnregister(void *ptr) { NOTE(ta_sc_unregister(ptr)); }
TA_EXPORT int cudaHostGetDevicePointer(void **device, void *host, unsigned flags)
{
    (void)flags;
    ta_sc_range range;
    if (!ta_sc_range_find((uintptr_t)host, &range)) NOTE(TA_CU_INVALID);
    *device = host;
    return TA_CU_OK;
}
TA_EXPORT int cudaHostGetFlags(unsigned *flags, void *host)
{
    ta_sc_range range;
    if (!ta_sc_range_find((uintptr_t)host, &range)) NOTE(TA_CU_INVALID);
    *flags = 3; /* portable, mapped */
    return TA_CU_OK;
}
TA_EXPORT int cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    NOTE(ta_sc_mem_info(ta_sc_device(), free_bytes, total));
}

struct pointer_attributes {
    int type; /* 0 unregistered, 1 host, 2 device, 3 managed */
    int device;
    void *device_pointer, *host_pointer;
};
TA_EXPORT int cudaPointerGetAttributes(struct pointer_attributes *a, const void *ptr)
{
    ta_sc_range range;
    if (!ta_sc_machine_get()) NOTE(TA_CU_NOT_INITIALIZED);
    if (!a) NOTE(TA_CU_INVALID);
    *a = (struct pointer_attributes){0, -2, NULL, (void *)(uintptr_t)ptr};
    if (!ta_sc_range_find((uintptr_t)ptr, &range)) return TA_CU_OK;
    bool on_device = range.kind == TA_SC_DEVICE || range.kind == TA_SC_RESERVED;
    a->type = on_device ? 2 : range.kind == TA_SC_MANAGED ? 3 : 1;
    a->device = range.device;
    a->device_pointer = (void *)(uintptr_t)ptr;
    if (on_device) a->host_pointer = NULL;
    return TA_CU_OK;
}

/* --- copies and fills ----------------------------------------------------------------- */
/* kind: 0 host to host, 1 to device, 2 to host, 3 between devices, 4 by the addresses. An
 * asynchronous copy to or from pageable memory is synchronous for the host. */
static bool pageable(const void *dst, const void *src, int kind)
{
    ta_sc_range range;
    if (kind == 3) return false;
    if (kind == 2) return !ta_sc_range_find((uintptr_t)dst, &range);
    if (kind == 1) return !ta_sc_range_find((uintptr_t)src, &range);
    return !ta_sc_range_find((uintptr_t)dst, &range) ||
           !ta_sc_range_find((uintptr_t)src, &range);
}

TA_EXPORT int cudaMemcpy(void *dst, const void *src, size_t size, int kind)
{
    (void)kind;
    NOTE(ta_sc_copy(dst, src, size, NULL, true));
}
TA_EXPORT int cudaMemcpyAsync(void *dst, const void *src, size_t size, int kind,
                              ta_stream stream)
{
    int capturing = 0;
    uint64_t id;
    bool wait = pageable(dst, src, kind) &&
                ta_sc_capture_info(stream, &capturing, &id) == TA_CU_OK && !capturing;
    NOTE(ta_sc_copy(dst, src, size, stream, wait));
}
TA_EXPORT int cudaMemcpyPeer(void *dst, int dst_device, const void *src, int src_device,
                             size_t size)
{
    (void)dst_device, (void)src_device;
    NOTE(ta_sc_copy(dst, src, size, NULL, true));
}
TA_EXPORT int cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src,
                                  int src_device, size_t size, ta_stream stream)
{
    (void)dst_device, (void)src_device;
    NOTE(ta_sc_copy(dst, src, size, stream, false));
}
TA_EXPORT int cudaMemcpy2D(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                           size_t width, size_t height, int kind)
{
    (void)kind;
    NOTE(ta_sc_copy_2d(dst, dst_pitch, src, src_pitch, width, height, NULL, true));
}
TA_EXPORT int cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src,
                                size_t src_pitch, size_t width, size_t height, int kind,
                                ta_stream stream)
{
    (void)kind;
    NOTE(ta_sc_copy_2d(dst, dst_pitch, src, src_pitch, width, height, stream, false));
}
TA_EXPORT int cudaMemset(void *dst, int value, size_t size)
{
    NOTE(ta_sc_fill(dst, (unsigned)value & 255, 1, size, NULL, false));
}
TA_EXPORT int cudaMemsetAsync(void *dst, int value, size_t size, ta_stream stream)
{
    NOTE(ta_sc_fill(dst, (unsigned)value & 255, 1, size, stream, false));
}
/* A symbol's host shadow is its address here: nothing on a device reads it. */
TA_EXPORT int cudaMemcpyToSymbol(void *symbol, const void *src, size_t size,
                                 size_t offset, int kind)
{
    (void)symbol, (void)src, (void)size, (void)offset, (void)kind;
    NOTE(ta_sc_launch(NULL));
}
TA_EXPORT int cudaMemcpyToSymbolAsync(void *symbol, const void *src, size_t size,
                                      size_t offset, int kind, ta_stream stream)
{
    (void)symbol, (void)src, (void)size, (void)offset, (void)kind;
    NOTE(ta_sc_launch(stream));
}
TA_EXPORT int cudaMemPrefetchAsync(void) { return TA_CU_OK; }
TA_EXPORT int cudaMemAdvise(void) { return TA_CU_OK; }

/* --- stream-ordered pools -------------------------------------------------------------- */
/* used_high >= used. Nothing is cached: what is freed goes back when its stream has come
 * so far. */
typedef struct mem_pool {
    int device;
    uint64_t threshold, used, used_high;
} mem_pool;
static mem_pool pools[TA_MAX_DEVICES];

TA_EXPORT int cudaDeviceGetDefaultMemPool(mem_pool **pool, int device)
{
    if (!ta_sc_context_of(device)) NOTE(TA_CU_BAD_DEVICE);
    pools[device].device = device;
    *pool = &pools[device];
    return TA_CU_OK;
}
TA_EXPORT int cudaDeviceGetMemPool(mem_pool **pool, int device)
{
    return cudaDeviceGetDefaultMemPool(pool, device);
}
TA_EXPORT int cudaDeviceSetMemPool(int device, mem_pool *pool)
{
    NOTE(pool == &pools[device] ? TA_CU_OK : TA_CU_UNSUPPORTED);
}
TA_EXPORT int cudaMallocFromPoolAsync(void **ptr, size_t size, mem_pool *pool,
                                      ta_stream stream)
{
    (void)stream;
    if (!pool) NOTE(TA_CU_INVALID);
    int mode = 2;
    ta_sc_capture_mode(&mode);
    int result = ta_sc_malloc(pool->device, size, ptr);
    ta_sc_capture_mode(&mode);
    if (result == TA_CU_OK) {
        uint64_t used = __atomic_add_fetch(&pool->used, size, __ATOMIC_RELAXED);
        if (used > pool->used_high) pool->used_high = used;
    }
    NOTE(result);
}
TA_EXPORT int cudaMallocAsync(void **ptr, size_t size, ta_stream stream)
{
    mem_pool *pool = NULL;
    int result = cudaDeviceGetDefaultMemPool(&pool, ta_sc_device());
    return result ? result : cudaMallocFromPoolAsync(ptr, size, pool, stream);
}
TA_EXPORT int cudaFreeAsync(void *ptr, ta_stream stream)
{
    ta_sc_range range;
    (void)stream;
    if (!ta_sc_range_find((uintptr_t)ptr, &range)) NOTE(TA_CU_INVALID);
    int mode = 2;
    ta_sc_capture_mode(&mode);
    int result = ta_sc_free(ptr);
    ta_sc_capture_mode(&mode);
    if (result == TA_CU_OK)
        __atomic_sub_fetch(&pools[range.device].used, range.size, __ATOMIC_RELAXED);
    NOTE(result);
}
TA_EXPORT int cudaMemPoolGetAttribute(mem_pool *pool, int attribute, void *value)
{
    uint64_t number = 0;
    if (attribute <= 3) { /* which reuse is allowed */
        *(int *)value = 1;
        return TA_CU_OK;
    }
    if (attribute == 4) number = pool->threshold;
    if (attribute == 5 || attribute == 7) number = pool->used;
    if (attribute == 6 || attribute == 8) number = pool->used_high;
    memcpy(value, &number, sizeof number);
    return TA_CU_OK;
}
TA_EXPORT int cudaMemPoolSetAttribute(mem_pool *pool, int attribute, void *value)
{
    if (attribute == 4) memcpy(&pool->threshold, value, sizeof pool->threshold);
    if (attribute == 6 || attribute == 8) pool->used_high = pool->used;
    return TA_CU_OK;
}
TA_EXPORT int cudaMemPoolTrimTo(mem_pool *pool, size_t keep)
{
    (void)pool, (void)keep;
    return TA_CU_OK;
}
TA_EXPORT int cudaMemPoolSetAccess(mem_pool *pool, const void *list, size_t count)
{
    (void)pool, (void)list, (void)count;
    return TA_CU_OK;
}
TA_EXPORT int cudaDeviceGetGraphMemAttribute(int device, int attribute, void *value)
{
    (void)device, (void)attribute;
    memset(value, 0, 8);
    return TA_CU_OK;
}
TA_EXPORT int cudaDeviceSetGraphMemAttribute(int device, int attribute, void *value)
{
    (void)device, (void)attribute, (void)value;
    return TA_CU_OK;
}
TA_EXPORT int cudaDeviceGraphMemTrim(int device)
{
    (void)device;
    return TA_CU_OK;
}

/* --- sharing between processes ----------------------------------------------------------
 * Memory of cudaMalloc is not shared here. Events are: each process has its own time, in which
 * what others queued has passed, so another's event is one that has. */
TA_EXPORT int cudaIpcGetMemHandle(void *handle, void *ptr)
{
    (void)handle, (void)ptr;
    NOTE(TA_CU_UNSUPPORTED);
}
TA_EXPORT int cudaIpcOpenMemHandle(void) { NOTE(TA_CU_UNSUPPORTED); }
TA_EXPORT int cudaIpcCloseMemHandle(void) { NOTE(TA_CU_UNSUPPORTED); }
TA_EXPORT int cudaIpcGetEventHandle(void *handle, ta_event event)
{
    (void)event;
    memset(handle, 0, IPC_HANDLE);
    return TA_CU_OK;
}
/* The handle comes by value, in memory. */
TA_EXPORT int cudaIpcOpenEventHandle(ta_event *event) { NOTE(ta_sc_event_create(event)); }
