/* cuda_calls.h - the driver's entry points that cuda.c and cuda_probe.c call, found at run
 * time. Private to those files.
 *
 * The names are those that the driver exports: a suffix `_v2` is a signature, kept by every
 * later driver, so asking for the name is asking for the version. The plain names mean the
 * legacy default stream for handle 0, as torch does. */
#ifndef TA_CUDA_CALLS_H
#define TA_CUDA_CALLS_H

#include <cuda.h>

#include "cuda.h"

/* member, exported name; the type is that of cuda.h's function. */
#define TA_CUDA_CALLS(X)                                                                 \
    X(init, cuInit, "cuInit")                                                            \
    X(driver_version, cuDriverGetVersion, "cuDriverGetVersion")                          \
    X(device_count, cuDeviceGetCount, "cuDeviceGetCount")                                \
    X(device, cuDeviceGet, "cuDeviceGet")                                                \
    X(attribute, cuDeviceGetAttribute, "cuDeviceGetAttribute")                           \
    X(name, cuDeviceGetName, "cuDeviceGetName")                                          \
    X(total, cuDeviceTotalMem, "cuDeviceTotalMem_v2")                                    \
    X(uuid, cuDeviceGetUuid, "cuDeviceGetUuid_v2")                                       \
    X(can_access_peer, cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer")                   \
    X(primary_retain, cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")              \
    X(primary_state, cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState")           \
    X(push, cuCtxPushCurrent, "cuCtxPushCurrent_v2")                                     \
    X(pop, cuCtxPopCurrent, "cuCtxPopCurrent_v2")                                        \
    X(synchronize, cuCtxSynchronize, "cuCtxSynchronize")                                 \
    X(capture_mode, cuThreadExchangeStreamCaptureMode,                                   \
      "cuThreadExchangeStreamCaptureMode")                                               \
    X(mem_info, cuMemGetInfo, "cuMemGetInfo_v2")                                         \
    X(granularity, cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity")       \
    X(reserve, cuMemAddressReserve, "cuMemAddressReserve")                               \
    X(unreserve, cuMemAddressFree, "cuMemAddressFree")                                   \
    X(create, cuMemCreate, "cuMemCreate")                                                \
    X(release, cuMemRelease, "cuMemRelease")                                             \
    X(map, cuMemMap, "cuMemMap")                                                         \
    X(unmap, cuMemUnmap, "cuMemUnmap")                                                   \
    X(set_access, cuMemSetAccess, "cuMemSetAccess")                                      \
    X(export_handle, cuMemExportToShareableHandle, "cuMemExportToShareableHandle")       \
    X(import_handle, cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle")   \
    X(alloc, cuMemAlloc, "cuMemAlloc_v2")                                                \
    X(free, cuMemFree, "cuMemFree_v2")                                                   \
    X(event_create, cuEventCreate, "cuEventCreate")                                      \
    X(event_destroy, cuEventDestroy, "cuEventDestroy_v2")                                \
    X(event_record, cuEventRecord, "cuEventRecord")                                      \
    X(event_query, cuEventQuery, "cuEventQuery")                                         \
    X(event_wait, cuEventSynchronize, "cuEventSynchronize")                              \
    X(is_capturing, cuStreamIsCapturing, "cuStreamIsCapturing")                          \
    X(stream_create, cuStreamCreate, "cuStreamCreate")                                   \
    X(stream_wait, cuStreamSynchronize, "cuStreamSynchronize")                           \
    X(copy, cuMemcpyAsync, "cuMemcpyAsync")                                              \
    X(copy_out, cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2")                               \
    X(fill, cuMemsetD8Async, "cuMemsetD8Async")

typedef struct ta_cuda_calls {
#define X(member, function, symbol) __typeof__ (&(function))(member);
    TA_CUDA_CALLS(X)
#undef X
} ta_cuda_calls;

/* The simulated machine's own answer for its host memory, NULL on a real one. */
typedef int ta_cuda_simulated_host(uint64_t *bytes);
ta_cuda_simulated_host *ta_cuda_find_simulated_host(void);

/* Starts the driver; NULL where it is missing, lacks one of them, or does not start. */
const ta_cuda_calls *ta_cuda_start(void);
ta_status ta_cuda_status(CUresult result);
/* An attribute, 0 where the driver does not know it. */
int ta_cuda_attribute(const ta_cuda_calls *cu, CUdevice device, int attribute);

/* Values of newer headers than the oldest one we build with. */
enum {
    TA_ATTRIBUTE_VMM = 102,
    TA_ATTRIBUTE_EXPORT_FD = 103,
    TA_ATTRIBUTE_RDMA_WITH_VMM = 110,
    TA_ATTRIBUTE_HOST_NUMA_ID = 134,
    TA_ATTRIBUTE_HOST_NUMA_VMM = 141,
    TA_ATTRIBUTE_HOST_VMM = 145,
    TA_LOCATION_HOST = 2,
    TA_LOCATION_HOST_NUMA = 3
};

#endif
