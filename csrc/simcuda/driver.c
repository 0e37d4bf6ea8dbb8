/* driver.c - the driver's functions on devices, contexts, plain memory, streams and events.
 *
 * Called by the allocator's own csrc/driver/cuda.c, by PyTorch through entry points, by
 * Triton. Under their exported names, versions included; handles are those of the runtime.
 * Thread-safe. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cudart.h"

typedef uint64_t devptr;
#define P(address) ((void *)(uintptr_t)(address))

/* --- init, errors, devices ------------------------------------------------------------- */
TA_EXPORT int cuInit(unsigned flags)
{
    if (flags) return TA_CU_INVALID;
    if (!ta_sc_machine_get()) return TA_CU_NOT_INITIALIZED;
    return ta_sc_device_count() ? TA_CU_OK : TA_CU_NO_DEVICE;
}
TA_EXPORT int cuDriverGetVersion(int *version) { return cudaDriverGetVersion(version); }
/* The run-time compiler calls it without looking whether it is there. Its tables are nowhere
 * documented: none is had. */
TA_EXPORT int cuGetExportTable(const void **table, const void *id)
{
    (void)id;
    *table = NULL;
    return TA_CU_NOT_FOUND;
}
TA_EXPORT int cuGetErrorName(int error, const char **text)
{
    *text = ta_sc_error(error, 1);
    return *text ? TA_CU_OK : TA_CU_INVALID;
}
TA_EXPORT int cuGetErrorString(int error, const char **text)
{
    *text = ta_sc_error(error, 2);
    return *text ? TA_CU_OK : TA_CU_INVALID;
}
TA_EXPORT int cuDeviceGetCount(int *count)
{
    if (!ta_sc_machine_get()) return TA_CU_NOT_INITIALIZED;
    *count = ta_sc_device_count();
    return TA_CU_OK;
}
TA_EXPORT int cuDeviceGet(int *device, int ordinal)
{
    if (!ta_sc_context_of(ordinal)) return TA_CU_BAD_DEVICE;
    *device = ordinal;
    return TA_CU_OK;
}
TA_EXPORT int cuDeviceGetName(char *name, int length, int device)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m || !ta_sc_context_of(device)) return TA_CU_BAD_DEVICE;
    snprintf(name, (size_t)length, "%s", m->card.name);
    return TA_CU_OK;
}
TA_EXPORT int cuDeviceGetUuid(unsigned char *uuid, int device)
{
    if (!ta_sc_context_of(device)) return TA_CU_BAD_DEVICE;
    ta_sc_uuid(device, uuid);
    return TA_CU_OK;
}
TA_EXPORT int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    return cuDeviceGetUuid(uuid, device);
}
TA_EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m || !ta_sc_context_of(device)) return TA_CU_BAD_DEVICE;
    *bytes = m->card.memory;
    return TA_CU_OK;
}
TA_EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    return ta_sc_attribute(value, attribute, device);
}
TA_EXPORT int cuDeviceComputeCapability(int *major, int *minor, int device)
{
    int result = ta_sc_attribute(major, 75, device);
    return result ? result : ta_sc_attribute(minor, 76, device);
}
TA_EXPORT int cuDeviceGetPCIBusId(char *text, int length, int device)
{
    return cudaDeviceGetPCIBusId(text, length, device);
}
TA_EXPORT int cuDeviceGetByPCIBusId(int *device, const char *text)
{
    return cudaDeviceGetByPCIBusId(device, text);
}
TA_EXPORT int cuDeviceCanAccessPeer(int *can, int device, int peer)
{
    return cudaDeviceCanAccessPeer(can, device, peer);
}
TA_EXPORT int cuDeviceGetP2PAttribute(int *value, int attribute, int device, int peer)
{
    return cudaDeviceGetP2PAttribute(value, attribute, device, peer);
}

/* --- contexts ----------------------------------------------------------------------------- */
TA_EXPORT int cuDevicePrimaryCtxRetain(ta_sc_context **context, int device)
{
    *context = ta_sc_context_of(device);
    if (!*context) return ta_sc_machine_get() ? TA_CU_BAD_DEVICE : TA_CU_NOT_INITIALIZED;
    int result = ta_sc_activate(*context);
    if (result != TA_CU_OK) return result;
    __atomic_add_fetch(&(*context)->retained, 1, __ATOMIC_RELAXED);
    return TA_CU_OK;
}
TA_EXPORT int cuDevicePrimaryCtxRelease_v2(int device)
{
    ta_sc_context *context = ta_sc_context_of(device);
    if (!context) return TA_CU_BAD_DEVICE;
    __atomic_sub_fetch(&context->retained, 1, __ATOMIC_RELAXED);
    return TA_CU_OK;
}
TA_EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    const ta_sc_context *context = ta_sc_context_of(device);
    if (!context) return TA_CU_BAD_DEVICE;
    if (flags) *flags = 0;
    if (active) *active = context->active;
    return TA_CU_OK;
}
TA_EXPORT int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags)
{
    (void)flags;
    return ta_sc_context_of(device) ? TA_CU_OK : TA_CU_BAD_DEVICE;
}
TA_EXPORT int cuCtxGetCurrent(ta_sc_context **context)
{
    if (!ta_sc_machine_get()) return TA_CU_NOT_INITIALIZED;
    *context = ta_sc_current();
    return TA_CU_OK;
}
TA_EXPORT int cuCtxSetCurrent(ta_sc_context *context)
{
    if (!ta_sc_machine_get()) return TA_CU_NOT_INITIALIZED;
    return ta_sc_set_current(context);
}
TA_EXPORT int cuCtxPushCurrent_v2(ta_sc_context *context)
{
    if (!ta_sc_machine_get()) return TA_CU_NOT_INITIALIZED;
    return ta_sc_push(context);
}
TA_EXPORT int cuCtxPopCurrent_v2(ta_sc_context **context) { return ta_sc_pop(context); }
TA_EXPORT int cuCtxGetDevice(int *device)
{
    const ta_sc_context *context = ta_sc_current();
    if (!context) return TA_CU_BAD_CONTEXT;
    *device = context->device;
    return TA_CU_OK;
}
TA_EXPORT int cuCtxSynchronize(void)
{
    if (!ta_sc_current()) return TA_CU_BAD_CONTEXT;
    return ta_sc_device_wait(ta_sc_device());
}
TA_EXPORT int cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    return cudaDeviceGetStreamPriorityRange(least, greatest);
}
TA_EXPORT int cuCtxGetLimit(size_t *value, int limit)
{
    return cudaDeviceGetLimit(value, limit);
}
TA_EXPORT int cuCtxSetLimit(int limit, size_t value)
{
    return cudaDeviceSetLimit(limit, value);
}
TA_EXPORT int cuCtxGetApiVersion(ta_sc_context *context, unsigned *version)
{
    (void)context;
    *version = 3020;
    return TA_CU_OK;
}
TA_EXPORT int cuCtxGetFlags(unsigned *flags)
{
    *flags = 0;
    return TA_CU_OK;
}
TA_EXPORT int cuCtxEnablePeerAccess(ta_sc_context *peer, unsigned flags)
{
    return peer ? cudaDeviceEnablePeerAccess(peer->device, flags) : TA_CU_BAD_CONTEXT;
}
TA_EXPORT int cuCtxDisablePeerAccess(ta_sc_context *peer)
{
    return peer ? cudaDeviceDisablePeerAccess(peer->device) : TA_CU_BAD_CONTEXT;
}

/* --- memory -------------------------------------------------------------------------------- */
#define NEEDS_CONTEXT                                                                    \
    if (!ta_sc_current())                                                                \
    return ta_sc_machine_get() ? TA_CU_BAD_CONTEXT : TA_CU_NOT_INITIALIZED

TA_EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    NEEDS_CONTEXT;
    return ta_sc_mem_info(ta_sc_device(), free_bytes, total);
}
TA_EXPORT int cuMemAlloc_v2(devptr *ptr, size_t size)
{
    NEEDS_CONTEXT;
    if (!size) return TA_CU_INVALID;
    void *memory;
    int result = ta_sc_malloc(ta_sc_device(), size, &memory);
    *ptr = (uintptr_t)memory;
    return result;
}
TA_EXPORT int cuMemFree_v2(devptr ptr) { return ta_sc_free(P(ptr)); }
TA_EXPORT int cuMemAllocManaged(devptr *ptr, size_t size, unsigned flags)
{
    (void)flags;
    void *memory;
    int result = ta_sc_host_alloc(size, TA_SC_MANAGED, &memory);
    *ptr = (uintptr_t)memory;
    return result;
}
TA_EXPORT int cuMemHostAlloc(void **ptr, size_t size, unsigned flags)
{
    (void)flags;
    NEEDS_CONTEXT;
    return ta_sc_host_alloc(size, TA_SC_HOST, ptr);
}
TA_EXPORT int cuMemAllocHost_v2(void **ptr, size_t size)
{
    NEEDS_CONTEXT;
    return ta_sc_host_alloc(size, TA_SC_HOST, ptr);
}
TA_EXPORT int cuMemFreeHost(void *ptr) { return ta_sc_host_free(ptr); }
TA_EXPORT int cuMemHostRegister_v2(void *ptr, size_t size, unsigned flags)
{
    (void)flags;
    return ta_sc_register(ptr, size);
}
TA_EXPORT int cuMemHostUnregister(void *ptr) { return ta_sc_unregister(ptr); }
TA_EXPORT int cuMemHostGetDevicePointer_v2(devptr *device, void *host, unsigned flags)
{
    (void)flags;
    ta_sc_range range;
    if (!ta_sc_range_find((uintptr_t)host, &range)) return TA_CU_INVALID;
    *device = (uintptr_t)host;
    return TA_CU_OK;
}
TA_EXPORT int cuMemGetAddressRange_v2(devptr *base, size_t *size, devptr ptr)
{
    ta_sc_range range;
    if (!ta_sc_range_find(ptr, &range)) return TA_CU_NOT_FOUND;
    if (base) *base = range.addr;
    if (size) *size = range.size;
    return TA_CU_OK;
}
TA_EXPORT int cuPointerGetAttribute(void *data, int attribute, devptr ptr)
{
    ta_sc_range range;
    if (!ta_sc_machine_get()) return TA_CU_NOT_INITIALIZED;
    if (!data || !ta_sc_range_find(ptr, &range)) return TA_CU_INVALID;
    bool on_device = range.kind == TA_SC_DEVICE || range.kind == TA_SC_RESERVED;
    switch (attribute) {
    case 1:
        *(void **)data = ta_sc_context_of(range.device);
        break;
    case 2:
        *(unsigned *)data = on_device ? 2 : 1;
        break;
    case 3:
        *(devptr *)data = ptr;
        break;
    case 4:
        if (on_device) return TA_CU_INVALID;
        *(void **)data = P(ptr);
        break;
    case 6:
        *(unsigned *)data = 0;
        break;
    case 7:
        *(uint64_t *)data = range.id;
        break;
    case 8:
        *(unsigned *)data = range.kind == TA_SC_MANAGED;
        break;
    case 9:
        *(int *)data = range.device;
        break;
    case 11:
        *(devptr *)data = range.addr;
        break;
    case 12:
        *(size_t *)data = range.size;
        break;
    case 13:
        *(unsigned *)data = 1;
        break;
    default:
        return TA_CU_UNSUPPORTED;
    }
    return TA_CU_OK;
}
TA_EXPORT int cuPointerGetAttributes(unsigned count, int *attributes, void **data,
                                     devptr ptr)
{
    for (unsigned i = 0; i < count; i++)
        if (cuPointerGetAttribute(data[i], attributes[i], ptr) != TA_CU_OK)
            memset(data[i], 0, 4);
    return TA_CU_OK;
}
TA_EXPORT int cuPointerSetAttribute(const void *value, int attribute, devptr ptr)
{
    (void)value, (void)attribute;
    ta_sc_range range;
    return ta_sc_range_find(ptr, &range) ? TA_CU_OK : TA_CU_INVALID;
}

TA_EXPORT int cuMemcpy(devptr dst, devptr src, size_t size)
{
    return ta_sc_copy(P(dst), P(src), size, NULL, true);
}
TA_EXPORT int cuMemcpyAsync(devptr dst, devptr src, size_t size, ta_stream s)
{
    return ta_sc_copy_whole(P(dst), P(src), size, s);
}
TA_EXPORT int cuMemcpyHtoD_v2(devptr dst, const void *src, size_t size)
{
    return ta_sc_copy(P(dst), src, size, NULL, true);
}
TA_EXPORT int cuMemcpyDtoH_v2(void *dst, devptr src, size_t size)
{
    return ta_sc_copy(dst, P(src), size, NULL, true);
}
TA_EXPORT int cuMemcpyDtoD_v2(devptr dst, devptr src, size_t size)
{
    return ta_sc_copy(P(dst), P(src), size, NULL, false);
}
TA_EXPORT int cuMemcpyHtoDAsync_v2(devptr dst, const void *src, size_t size, ta_stream s)
{
    return ta_sc_copy(P(dst), src, size, s, false);
}
TA_EXPORT int cuMemcpyDtoHAsync_v2(void *dst, devptr src, size_t size, ta_stream s)
{
    return ta_sc_copy(dst, P(src), size, s, false);
}
TA_EXPORT int cuMemcpyDtoDAsync_v2(devptr dst, devptr src, size_t size, ta_stream s)
{
    return ta_sc_copy(P(dst), P(src), size, s, false);
}
TA_EXPORT int cuMemcpyPeer(devptr dst, void *to, devptr src, void *from, size_t size)
{
    (void)to, (void)from;
    return ta_sc_copy(P(dst), P(src), size, NULL, true);
}
TA_EXPORT int cuMemcpyPeerAsync(devptr dst, void *to, devptr src, void *from, size_t size,
                                ta_stream s)
{
    (void)to, (void)from;
    return ta_sc_copy(P(dst), P(src), size, s, false);
}
TA_EXPORT int cuMemsetD8_v2(devptr dst, unsigned char value, size_t count)
{
    return ta_sc_fill(P(dst), value, 1, count, NULL, false);
}
TA_EXPORT int cuMemsetD16_v2(devptr dst, unsigned short value, size_t count)
{
    return ta_sc_fill(P(dst), value, 2, count, NULL, false);
}
TA_EXPORT int cuMemsetD32_v2(devptr dst, unsigned value, size_t count)
{
    return ta_sc_fill(P(dst), value, 4, count, NULL, false);
}
TA_EXPORT int cuMemsetD8Async(devptr dst, unsigned char value, size_t count, ta_stream s)
{
    return ta_sc_fill(P(dst), value, 1, count, s, false);
}
TA_EXPORT int cuMemsetD16Async(devptr dst, unsigned short value, size_t count,
                               ta_stream s)
{
    return ta_sc_fill(P(dst), value, 2, count, s, false);
}
TA_EXPORT int cuMemsetD32Async(devptr dst, unsigned value, size_t count, ta_stream s)
{
    return ta_sc_fill(P(dst), value, 4, count, s, false);
}

/* --- streams and events ----------------------------------------------------------------------- */
TA_EXPORT int cuStreamCreate(ta_stream *s, unsigned flags)
{
    NEEDS_CONTEXT;
    return ta_sc_stream_create(flags, 0, s);
}
TA_EXPORT int cuStreamCreateWithPriority(ta_stream *s, unsigned flags, int priority)
{
    NEEDS_CONTEXT;
    return ta_sc_stream_create(flags, priority, s);
}
TA_EXPORT int cuStreamDestroy_v2(ta_stream s) { return ta_sc_stream_destroy(s); }
TA_EXPORT int cuStreamQuery(ta_stream s) { return ta_sc_stream_query(s); }
TA_EXPORT int cuStreamSynchronize(ta_stream s) { return ta_sc_stream_wait(s); }
TA_EXPORT int cuStreamWaitEvent(ta_stream s, ta_event e, unsigned flags)
{
    (void)flags;
    return ta_sc_stream_wait_event(s, e);
}
TA_EXPORT int cuStreamGetPriority(ta_stream s, int *priority)
{
    return ta_sc_stream_priority(s, priority);
}
TA_EXPORT int cuStreamGetFlags(ta_stream s, unsigned *flags)
{
    return ta_sc_stream_flags(s, flags);
}
TA_EXPORT int cuStreamGetId(ta_stream s, uint64_t *id)
{
    *id = (uintptr_t)s;
    return TA_CU_OK;
}
TA_EXPORT int cuStreamGetCtx(ta_stream s, ta_sc_context **context)
{
    int device;
    if (!ta_sc_stream_device(s, &device)) return TA_CU_BAD_HANDLE;
    *context = ta_sc_context_of(device);
    return TA_CU_OK;
}
TA_EXPORT int cuStreamGetDevice(ta_stream s, int *device)
{
    return ta_sc_stream_device(s, device) ? TA_CU_OK : TA_CU_BAD_HANDLE;
}
TA_EXPORT int cuStreamWriteValue32_v2(ta_stream s, devptr address, unsigned value,
                                      unsigned flags)
{
    (void)flags;
    return ta_sc_fill(P(address), value, 4, 1, s, false);
}
TA_EXPORT int cuStreamWriteValue32(ta_stream s, devptr address, unsigned value,
                                   unsigned flags)
{
    return cuStreamWriteValue32_v2(s, address, value, flags);
}
TA_EXPORT int cuLaunchHostFunc(ta_stream s, void (*fn)(void *), void *data)
{
    return ta_sc_host_func(s, fn, data);
}
TA_EXPORT int cuThreadExchangeStreamCaptureMode(int *mode)
{
    return ta_sc_capture_mode(mode);
}
TA_EXPORT int cuStreamIsCapturing(ta_stream s, int *status)
{
    uint64_t id;
    return ta_sc_capture_info(s, status, &id);
}
TA_EXPORT int cuStreamGetCaptureInfo_v2(ta_stream s, int *status, uint64_t *id,
                                        void **graph, const void **needs, size_t *count)
{
    return cudaStreamGetCaptureInfo_v2(s, status, id, graph, needs, count);
}
TA_EXPORT int cuStreamGetCaptureInfo_v3(ta_stream s, int *status, uint64_t *id,
                                        void **graph, const void **needs,
                                        const void **edges, size_t *count)
{
    return cudaStreamGetCaptureInfo_v3(s, status, id, graph, needs, edges, count);
}
TA_EXPORT int cuStreamBeginCapture_v2(ta_stream s, int mode)
{
    return ta_sc_capture_begin(s, mode);
}
TA_EXPORT int cuStreamEndCapture(ta_stream s, ta_sc_graph **graph)
{
    return ta_sc_capture_end(s, graph);
}
TA_EXPORT int cuGraphDestroy(ta_sc_graph *graph) { return ta_sc_graph_drop(graph); }
TA_EXPORT int cuGraphExecDestroy(ta_sc_graph *exec) { return ta_sc_graph_drop(exec); }
TA_EXPORT int cuGraphInstantiateWithFlags(ta_sc_graph **exec, ta_sc_graph *graph,
                                          unsigned long long flags)
{
    (void)flags;
    *exec = graph;
    return ta_sc_graph_hold(graph);
}
TA_EXPORT int cuGraphLaunch(ta_sc_graph *exec, ta_stream s)
{
    return ta_sc_graph_launch(exec, s);
}
TA_EXPORT int cuEventCreate(ta_event *e, unsigned flags)
{
    (void)flags;
    NEEDS_CONTEXT;
    return ta_sc_event_create(e);
}
TA_EXPORT int cuEventDestroy_v2(ta_event e) { return ta_sc_event_destroy(e); }
TA_EXPORT int cuEventRecord(ta_event e, ta_stream s) { return ta_sc_event_record(e, s); }
TA_EXPORT int cuEventRecordWithFlags(ta_event e, ta_stream s, unsigned flags)
{
    (void)flags;
    return ta_sc_event_record(e, s);
}
TA_EXPORT int cuEventQuery(ta_event e) { return ta_sc_event_query(e); }
TA_EXPORT int cuEventSynchronize(ta_event e) { return ta_sc_event_wait(e); }
TA_EXPORT int cuEventElapsedTime(float *ms, ta_event start, ta_event end)
{
    return ta_sc_event_elapsed(ms, start, end);
}
TA_EXPORT int cuEventElapsedTime_v2(float *ms, ta_event start, ta_event end)
{
    return ta_sc_event_elapsed(ms, start, end);
}

/* Multicast: no card here has it. */
TA_EXPORT int cuMulticastCreate(void) { return TA_CU_UNSUPPORTED; }
TA_EXPORT int cuMulticastAddDevice(void) { return TA_CU_UNSUPPORTED; }
TA_EXPORT int cuMulticastBindMem(void) { return TA_CU_UNSUPPORTED; }
TA_EXPORT int cuMulticastUnbind(void) { return TA_CU_UNSUPPORTED; }
