/* cuda.c - the allocator's driver table over the real CUDA driver.
 *
 * The core calls these through the table that ta_cuda_driver gives. Each device's primary
 * context is retained at its first use and never given up: torch and the CUDA runtime use
 * the same one. All functions are thread-safe; the only state that changes is the table of
 * contexts and what was learned of each device.
 *
 * Errors of the driver's interface are returned once and do not stick, save those of a
 * broken context, which every later call returns too. */
#include "cuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "cuda_calls.h"
#include "host_memory.h"
#include "../core/clock.h"

static pthread_mutex_t retain_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(CUcontext) contexts[TA_MAX_DEVICES];
/* Pages were refused with the GPUDirect RDMA flag and made without it. */
static atomic_bool no_rdma[TA_MAX_DEVICES];
/* Pages were refused as ones that other processes can import, and made without that. */
static atomic_bool no_export[TA_MAX_DEVICES];
/* Host pages were refused at the device's NUMA node and made on the host at large. */
static atomic_bool no_numa[TA_MAX_DEVICES];
/* Streams for copies, made when first asked for; guarded by retain_lock. */
#define COPY_STREAMS 2
static CUstream copy_streams[TA_MAX_DEVICES][COPY_STREAMS];

/* The entry points. Every call but the few that check comes after an enter that found
 * them. */
static const ta_cuda_calls *cu(void) { return ta_cuda_start(); }

static bool known(int device) { return device >= 0 && device < TA_MAX_DEVICES; }

static ta_status device_count(void *self, int *count)
{
    (void)self;
    if (cu() == NULL) return TA_UNSUPPORTED;
    return ta_cuda_status(cu()->device_count(count));
}

static ta_status context_of(int device, CUcontext *context)
{
    if (cu() == NULL) return TA_UNSUPPORTED;
    if (!known(device)) return TA_INVALID;
    *context = atomic_load_explicit(&contexts[device], memory_order_acquire);
    if (*context != NULL) return TA_OK;
    pthread_mutex_lock(&retain_lock);
    CUresult result = CUDA_SUCCESS;
    *context = atomic_load(&contexts[device]);
    if (*context == NULL) {
        CUdevice handle = 0;
        result = cu()->device(&handle, device);
        if (result == CUDA_SUCCESS) result = cu()->primary_retain(context, handle);
        if (result == CUDA_SUCCESS)
            atomic_store_explicit(&contexts[device], *context, memory_order_release);
    }
    pthread_mutex_unlock(&retain_lock);
    return ta_cuda_status(result);
}

static ta_status enter(void *self, int device, uintptr_t saved[2])
{
    (void)self;
    CUcontext context = NULL;
    ta_status status = context_of(device, &context);
    if (status != TA_OK) return status;
    status = ta_cuda_status(cu()->push(context));
    if (status != TA_OK) return status;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    status = ta_cuda_status(cu()->capture_mode(&mode));
    if (status != TA_OK) {
        cu()->pop(&context);
        return status;
    }
    saved[0] = (uintptr_t)mode;
    saved[1] = (uintptr_t)context;
    return TA_OK;
}

static void leave(void *self, int device, const uintptr_t saved[2])
{
    (void)self;
    (void)device;
    CUstreamCaptureMode mode = (CUstreamCaptureMode)saved[0];
    cu()->capture_mode(&mode);
    CUcontext popped = NULL;
    cu()->pop(&popped);
}

static ta_status mem_info(void *self, int device, uint64_t *free_bytes, uint64_t *total)
{
    (void)self;
    (void)device; /* the entered one */
    size_t available = 0;
    size_t all = 0;
    ta_status status = ta_cuda_status(cu()->mem_info(&available, &all));
    *free_bytes = available;
    *total = all;
    return status;
}

static ta_status has_vmm(void *self, int device, bool *yes)
{
    (void)self;
    if (cu() == NULL) return TA_UNSUPPORTED;
    CUdevice handle = 0;
    CUresult result = cu()->device(&handle, device);
    *yes =
        result == CUDA_SUCCESS && ta_cuda_attribute(cu(), handle, TA_ATTRIBUTE_VMM) != 0;
    return ta_cuda_status(result);
}

/* What a page of the tier is made of. */
static ta_status properties(int device, ta_tier tier, CUmemAllocationProp *prop)
{
    if (cu() == NULL) return TA_UNSUPPORTED;
    if (!known(device)) return TA_INVALID;
    CUdevice handle = 0;
    CUresult result = cu()->device(&handle, device);
    if (result != CUDA_SUCCESS) return ta_cuda_status(result);
    memset(prop, 0, sizeof *prop);
    prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    if (tier == TA_TIER_DEVICE) {
        prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        prop->location.id = handle;
        prop->allocFlags.gpuDirectRDMACapable =
            !atomic_load(&no_rdma[device]) &&
            ta_cuda_attribute(cu(), handle, TA_ATTRIBUTE_RDMA_WITH_VMM) != 0;
        if (!atomic_load(&no_export[device]) &&
            ta_cuda_attribute(cu(), handle, TA_ATTRIBUTE_EXPORT_FD) != 0)
            prop->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        return TA_OK;
    }
    int node = ta_cuda_attribute(cu(), handle, TA_ATTRIBUTE_HOST_NUMA_ID);
    if (!atomic_load(&no_numa[device]) && node >= 0 &&
        ta_cuda_attribute(cu(), handle, TA_ATTRIBUTE_HOST_NUMA_VMM) != 0) {
        prop->location.type = (CUmemLocationType)TA_LOCATION_HOST_NUMA;
        prop->location.id = node;
        return TA_OK;
    }
    if (ta_cuda_attribute(cu(), handle, TA_ATTRIBUTE_HOST_NUMA_VMM) == 0 &&
        ta_cuda_attribute(cu(), handle, TA_ATTRIBUTE_HOST_VMM) == 0)
        return TA_UNSUPPORTED;
    prop->location.type = (CUmemLocationType)TA_LOCATION_HOST;
    return TA_OK;
}

static ta_status granularity(void *self, int device, ta_tier tier, uint64_t *bytes)
{
    (void)self;
    CUmemAllocationProp prop;
    ta_status status = properties(device, tier, &prop);
    if (status != TA_OK) return status;
    size_t smallest = 0;
    CUresult result =
        cu()->granularity(&smallest, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    *bytes = smallest;
    return ta_cuda_status(result);
}

static ta_status can_access_peer(void *self, int device, int peer, bool *yes)
{
    (void)self;
    if (cu() == NULL) return TA_UNSUPPORTED;
    CUdevice from = 0;
    CUdevice to = 0;
    int can = 0;
    CUresult result = cu()->device(&from, device);
    if (result == CUDA_SUCCESS) result = cu()->device(&to, peer);
    if (result == CUDA_SUCCESS) result = cu()->can_access_peer(&can, from, to);
    *yes = can != 0;
    return ta_cuda_status(result);
}

static ta_status reserve(void *self, uint64_t size, uint64_t align, uint64_t *addr)
{
    (void)self;
    CUdeviceptr start = 0;
    CUresult result = cu()->reserve(&start, size, align, 0, 0);
    if (result != CUDA_SUCCESS) return ta_cuda_status(result);
    if (align != 0 && (start & (align - 1)) != 0) {
        /* The driver promises the alignment; a range that breaks it is of no use. */
        cu()->unreserve(start, size);
        return TA_DRIVER;
    }
    *addr = start;
    return TA_OK;
}

static ta_status unreserve(void *self, uint64_t addr, uint64_t size)
{
    (void)self;
    return ta_cuda_status(cu()->unreserve(addr, size));
}

/* Some systems name a feature and then refuse it: once without, and remember. */
static CUresult create_without(int device, CUmemAllocationProp prop, uint64_t size,
                               CUmemGenericAllocationHandle *made, CUresult result)
{
    const bool export = prop.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE;
    const bool rdma = prop.allocFlags.gpuDirectRDMACapable != 0;
    static const int ways[] = {2, 1, 3}; /* bits: not exportable, no RDMA */
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const int less = ways[i];
        if ((less & 1 && !export) || (less & 2 && !rdma)) continue;
        CUmemAllocationProp lesser = prop;
        if (less & 1) lesser.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
        if (less & 2) lesser.allocFlags.gpuDirectRDMACapable = 0;
        result = cu()->create(made, size, &lesser, 0);
        if (result != CUDA_SUCCESS) continue;
        if (less & 1) atomic_store(&no_export[device], true);
        if (less & 2) atomic_store(&no_rdma[device], true);
        break;
    }
    return result;
}

static ta_status create(void *self, int device, ta_tier tier, uint64_t size,
                        ta_handle *handle)
{
    (void)self;
    CUmemAllocationProp prop;
    ta_status status = properties(device, tier, &prop);
    if (status != TA_OK) return status;
    CUmemGenericAllocationHandle made = 0;
    CUresult result = cu()->create(&made, size, &prop, 0);
    /* Memory that is merely used up is no reason. */
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY &&
        result != CUDA_ERROR_DEINITIALIZED) {
        if (tier == TA_TIER_DEVICE) {
            result = create_without(device, prop, size, &made, result);
        } else if (prop.location.type == (CUmemLocationType)TA_LOCATION_HOST_NUMA) {
            prop.location.type = (CUmemLocationType)TA_LOCATION_HOST;
            prop.location.id = 0;
            result = cu()->create(&made, size, &prop, 0);
            if (result == CUDA_SUCCESS) atomic_store(&no_numa[device], true);
        }
    }
    if (result != CUDA_SUCCESS) return ta_cuda_status(result);
    *handle = made;
    return TA_OK;
}

static ta_status export_page(void *self, ta_handle handle, int *fd)
{
    (void)self;
    if (cu() == NULL) return TA_UNSUPPORTED;
    return ta_cuda_status(
        cu()->export_handle(fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

static ta_status import_page(void *self, int device, int fd, uint64_t size,
                             ta_handle *handle)
{
    (void)self;
    (void)device;
    (void)size;
    CUmemGenericAllocationHandle made = 0;
    CUresult result = cu()->import_handle(&made, (void *)(intptr_t)fd,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != CUDA_SUCCESS) return ta_cuda_status(result);
    *handle = made;
    return TA_OK;
}

static ta_status release(void *self, ta_handle handle, uint64_t size)
{
    (void)self;
    (void)size;
    return ta_cuda_status(cu()->release(handle));
}

static ta_status map(void *self, uint64_t addr, uint64_t size, ta_handle handle)
{
    (void)self;
    return ta_cuda_status(cu()->map(addr, size, 0, handle, 0));
}

static ta_status unmap(void *self, uint64_t addr, uint64_t size)
{
    (void)self;
    return ta_cuda_status(cu()->unmap(addr, size));
}

static ta_status set_access(void *self, uint64_t addr, uint64_t size, const int *devices,
                            int count)
{
    (void)self;
    CUmemAccessDesc access[TA_MAX_DEVICES];
    if (count < 1 || count > TA_MAX_DEVICES) return TA_INVALID;
    memset(access, 0, (size_t)count * sizeof access[0]);
    for (int i = 0; i < count; i++) {
        access[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        access[i].location.id = devices[i];
        access[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    return ta_cuda_status(cu()->set_access(addr, size, access, (size_t)count));
}

static ta_status host_memory(void *self, uint64_t *available)
{
    (void)self;
    ta_cuda_simulated_host *simulated = ta_cuda_find_simulated_host();
    if (simulated != NULL) return (ta_status)simulated(available);
    return ta_host_memory("", available);
}

static ta_status copy_stream(void *self, int device, int which, ta_stream *stream)
{
    (void)self;
    if (!known(device) || which < 0 || which >= COPY_STREAMS) return TA_INVALID;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&retain_lock);
    CUstream *made = &copy_streams[device][which];
    if (*made == NULL) result = cu()->stream_create(made, CU_STREAM_NON_BLOCKING);
    *stream = *made;
    pthread_mutex_unlock(&retain_lock);
    return ta_cuda_status(result);
}

static ta_status copy(void *self, int device, ta_stream stream, uint64_t to,
                      uint64_t from, uint64_t bytes)
{
    (void)self;
    (void)device; /* the entered one */
    return ta_cuda_status(cu()->copy(to, from, bytes, (CUstream)stream));
}

static ta_status fill(void *self, int device, uint64_t addr, int value, uint64_t bytes)
{
    ta_stream stream = NULL;
    ta_status status = copy_stream(self, device, 1, &stream);
    if (status != TA_OK) return status;
    CUstream ours = (CUstream)stream;
    CUresult result = cu()->fill(addr, (unsigned char)value, bytes, ours);
    if (result == CUDA_SUCCESS) result = cu()->stream_wait(ours);
    return ta_cuda_status(result);
}

static ta_status read_bytes(void *self, int device, void *to, uint64_t from,
                            uint64_t bytes)
{
    ta_stream stream = NULL;
    ta_status status = copy_stream(self, device, 1, &stream);
    if (status != TA_OK) return status;
    CUstream ours = (CUstream)stream;
    CUresult result = cu()->copy_out(to, from, bytes, ours);
    if (result == CUDA_SUCCESS) result = cu()->stream_wait(ours);
    return ta_cuda_status(result);
}

static ta_status plain_alloc(void *self, int device, uint64_t size, uint64_t *addr)
{
    (void)self;
    (void)device; /* the entered one */
    CUdeviceptr start = 0;
    CUresult result = cu()->alloc(&start, size);
    if (result == CUDA_SUCCESS) *addr = start;
    return ta_cuda_status(result);
}

static ta_status plain_free(void *self, int device, uint64_t addr)
{
    (void)self;
    (void)device;
    return ta_cuda_status(cu()->free(addr));
}

static ta_status event_create(void *self, int device, ta_event *event)
{
    (void)self;
    (void)device;
    CUevent made = NULL;
    CUresult result = cu()->event_create(&made, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS) *event = (ta_event)(void *)made;
    return ta_cuda_status(result);
}

static ta_status event_destroy(void *self, ta_event event)
{
    (void)self;
    return ta_cuda_status(cu()->event_destroy((CUevent)(void *)event));
}

static ta_status event_record(void *self, ta_event event, int device, ta_stream stream)
{
    (void)self;
    (void)device;
    return ta_cuda_status(cu()->event_record((CUevent)(void *)event, (CUstream)stream));
}

static ta_status event_query(void *self, ta_event event)
{
    (void)self;
    return ta_cuda_status(cu()->event_query((CUevent)(void *)event));
}

/* The driver's own wait has no bound; where there is one, it is asked now and then. */
static ta_status event_wait(void *self, ta_event event, double most_us)
{
    if (most_us >= TA_FOREVER_US)
        return ta_cuda_status(cu()->event_wait((CUevent)(void *)event));
    const double until = ta_now_us() + most_us;
    ta_status status = event_query(self, event);
    for (long us = 2; status == TA_NOT_READY && ta_now_us() < until;
         us += us < 64 ? us : 0) {
        nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
        status = event_query(self, event);
    }
    return status;
}

static ta_status is_capturing(void *self, int device, ta_stream stream, bool *yes)
{
    (void)self;
    (void)device;
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = cu()->is_capturing((CUstream)stream, &capture);
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
        /* The legacy stream, while a blocking stream is captured: not in a capture itself,
         * but recording an event there would break that capture. To be left alone. */
        *yes = true;
        return TA_OK;
    }
    *yes = capture != CU_STREAM_CAPTURE_STATUS_NONE;
    return ta_cuda_status(result);
}

static ta_status device_wait(void *self, int device)
{
    (void)self;
    (void)device;
    return ta_cuda_status(cu()->synchronize());
}

static const ta_driver table = {
    .device_count = device_count,
    .enter = enter,
    .leave = leave,
    .mem_info = mem_info,
    .has_vmm = has_vmm,
    .granularity = granularity,
    .can_access_peer = can_access_peer,
    .reserve = reserve,
    .unreserve = unreserve,
    .create = create,
    .release = release,
    .map = map,
    .unmap = unmap,
    .set_access = set_access,
    .export_page = export_page,
    .import_page = import_page,
    .host_memory = host_memory,
    .copy_stream = copy_stream,
    .copy = copy,
    .fill = fill,
    .read = read_bytes,
    .plain_alloc = plain_alloc,
    .plain_free = plain_free,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_query = event_query,
    .event_wait = event_wait,
    .is_capturing = is_capturing,
    .device_wait = device_wait,
};

const ta_driver *ta_cuda_driver(void) { return &table; }
