/* cuda_table.c - checks csrc/driver/cuda*.c against a driver whose answers are made up here.
 *
 * Built and run by test_cuda_table.py, with -rdynamic: the driver's functions are first
 * looked for in the process. Ends with 0, or prints what is wrong. */
#include <cuda.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../csrc/driver/cuda.h"

#define CHECK(condition)                                                                 \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            printf("%s:%d: %s\n", __FILE__, __LINE__, #condition);                       \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)
#define FAKE __attribute__((visibility("default"))) CUresult

static int inits, pushes, pops, creates, retains, unreserved, accesses;
static CUresult answer = CUDA_SUCCESS;      /* of queries and captures */
static CUresult mode_answer = CUDA_SUCCESS; /* of the capture mode's exchange */
static bool refuse_rdma, refuse_export, refuse_numa, full;
static CUdeviceptr reserve_at = (CUdeviceptr)1 << 40;
static CUmemAllocationProp last;
static CUmemAccessDesc last_access[4];
static CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

FAKE cuInit(unsigned flags)
{
    inits++;
    return flags ? CUDA_ERROR_INVALID_VALUE : 0;
}
FAKE cuDriverGetVersion(int *v)
{
    *v = 13000;
    return 0;
}
FAKE cuDeviceGetCount(int *n)
{
    *n = 2;
    return 0;
}
FAKE cuDeviceGet(CUdevice *d, int i)
{
    *d = i;
    return i < 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
FAKE cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    (void)device;
    *value = attribute == 134 ? 3 : 1; /* HOST_NUMA_ID is 3; all features are there */
    return 0;
}
FAKE cuDeviceGetName(char *name, int n, CUdevice d)
{
    snprintf(name, (size_t)n, d ? "NVIDIA A100 MIG 1g.5gb" : "NVIDIA A100");
    return 0;
}
FAKE cuDeviceTotalMem_v2(size_t *n, CUdevice d)
{
    (void)d;
    *n = 1u << 30;
    return 0;
}
FAKE cuDeviceGetUuid_v2(CUuuid *u, CUdevice d)
{
    for (int i = 0; i < 16; i++) u->bytes[i] = (char)(0xf0 + i + 0 * d);
    return 0;
}
FAKE cuDeviceCanAccessPeer(int *can, CUdevice a, CUdevice b)
{
    *can = a != b;
    return 0;
}
FAKE cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d)
{
    retains++;
    *c = (CUcontext)(size_t)(100 + d);
    return 0;
}
FAKE cuDevicePrimaryCtxGetState(CUdevice d, unsigned *f, int *active)
{
    (void)d;
    *f = 0;
    *active = retains > 0;
    return 0;
}
FAKE cuCtxPushCurrent_v2(CUcontext c)
{
    CHECK(c != NULL);
    pushes++;
    return 0;
}
FAKE cuCtxPopCurrent_v2(CUcontext *c)
{
    *c = NULL;
    pops++;
    return 0;
}
FAKE cuCtxSynchronize(void) { return answer; }
FAKE cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *m)
{
    if (mode_answer) return mode_answer;
    CUstreamCaptureMode old = mode;
    mode = *m;
    *m = old;
    return 0;
}
FAKE cuMemGetInfo_v2(size_t *a, size_t *b)
{
    *a = 5;
    *b = 9;
    return answer;
}
FAKE cuMemGetAllocationGranularity(size_t *g, const CUmemAllocationProp *p,
                                   CUmemAllocationGranularity_flags f)
{
    (void)f;
    last = *p;
    *g = 2u << 20;
    return 0;
}
FAKE cuMemAddressReserve(CUdeviceptr *p, size_t n, size_t align, CUdeviceptr at,
                         unsigned long long f)
{
    (void)n, (void)align, (void)at, (void)f;
    *p = reserve_at;
    return 0;
}
FAKE cuMemAddressFree(CUdeviceptr p, size_t n)
{
    (void)p, (void)n;
    unreserved++;
    return 0;
}
FAKE cuMemCreate(CUmemGenericAllocationHandle *h, size_t n, const CUmemAllocationProp *p,
                 unsigned long long f)
{
    (void)n, (void)f;
    creates++;
    last = *p;
    if (full) return CUDA_ERROR_OUT_OF_MEMORY;
    if (refuse_rdma && p->allocFlags.gpuDirectRDMACapable)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (refuse_export && p->requestedHandleTypes) return CUDA_ERROR_NOT_PERMITTED;
    if (refuse_numa && (int)p->location.type == 3) return CUDA_ERROR_INVALID_DEVICE;
    *h = 77;
    return 0;
}
FAKE cuMemRelease(CUmemGenericAllocationHandle h)
{
    CHECK(h == 77);
    return 0;
}
FAKE cuMemMap(CUdeviceptr p, size_t n, size_t o, CUmemGenericAllocationHandle h,
              unsigned long long f)
{
    (void)p, (void)n;
    CHECK(o == 0 && h == 77 && f == 0);
    return 0;
}
FAKE cuMemUnmap(CUdeviceptr p, size_t n)
{
    (void)p, (void)n;
    return 0;
}
FAKE cuMemSetAccess(CUdeviceptr p, size_t n, const CUmemAccessDesc *d, size_t count)
{
    (void)p, (void)n;
    accesses = (int)count;
    for (size_t i = 0; i < count && i < 4; i++) last_access[i] = d[i];
    return 0;
}
FAKE cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle h,
                                  CUmemAllocationHandleType type, unsigned long long f)
{
    CHECK(h == 77 && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && f == 0);
    *(int *)out = 5;
    return answer;
}
FAKE cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *h, void *from,
                                    CUmemAllocationHandleType type)
{
    CHECK(from == (void *)5 && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    *h = 77;
    return answer;
}
FAKE cuMemAlloc_v2(CUdeviceptr *p, size_t n)
{
    (void)n;
    *p = 4096;
    return answer;
}
FAKE cuMemFree_v2(CUdeviceptr p)
{
    CHECK(p == 4096);
    return 0;
}
FAKE cuEventCreate(CUevent *e, unsigned f)
{
    CHECK(f == CU_EVENT_DISABLE_TIMING);
    *e = (CUevent)(size_t)5;
    return 0;
}
FAKE cuEventDestroy_v2(CUevent e)
{
    (void)e;
    return 0;
}
FAKE cuEventRecord(CUevent e, CUstream s)
{
    (void)e, (void)s;
    return answer;
}
FAKE cuEventQuery(CUevent e)
{
    (void)e;
    return answer;
}
FAKE cuEventSynchronize(CUevent e)
{
    (void)e;
    return answer;
}
FAKE cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *status)
{
    *status = s == (CUstream)9 ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                               : CU_STREAM_CAPTURE_STATUS_NONE;
    return answer;
}
static int streams_made, copies;
FAKE cuStreamCreate(CUstream *s, unsigned f)
{
    CHECK(f == CU_STREAM_NON_BLOCKING);
    *s = answer ? NULL : (CUstream)(size_t)(40 + ++streams_made);
    return answer;
}
FAKE cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s)
{
    CHECK(to == 1 << 20 && from == 2 << 20 && n == 4096 && s == (CUstream)(size_t)41);
    copies++;
    return answer;
}
static int fills, outward, stream_waits;
FAKE cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t n, CUstream s)
{
    CHECK(to == 1 << 20 && value == 0xa5 && n == 4096 && s == (CUstream)(size_t)42);
    fills++;
    return answer;
}
FAKE cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t n, CUstream s)
{
    CHECK(to != NULL && from == 1 << 20 && n == 4096 && s == (CUstream)(size_t)42);
    outward++;
    return answer;
}
FAKE cuStreamSynchronize(CUstream s)
{
    CHECK(s == (CUstream)(size_t)42);
    stream_waits++;
    return CUDA_SUCCESS;
}

static void copying(const ta_driver *d)
{
    ta_stream stream = NULL, again = NULL, other = NULL;
    answer = CUDA_ERROR_OUT_OF_MEMORY;
    CHECK(d->copy_stream(d->self, 0, 0, &stream) == TA_OUT_OF_MEMORY && !streams_made);
    answer = CUDA_SUCCESS;
    CHECK(d->copy_stream(d->self, 0, 0, &stream) == TA_OK && streams_made == 1);
    CHECK(d->copy_stream(d->self, 0, 0, &again) == TA_OK && again == stream);
    CHECK(d->copy_stream(d->self, 0, 1, &other) == TA_OK && streams_made == 2);
    CHECK(other != stream && d->copy_stream(d->self, 0, 2, &other) == TA_INVALID);
    CHECK(d->copy(d->self, 0, stream, 1 << 20, 2 << 20, 4096) == TA_OK && copies == 1);
    CHECK(d->fill(d->self, 0, 1 << 20, 0xa5, 4096) == TA_OK && fills == 1);
    char read[4096];
    CHECK(d->read(d->self, 0, read, 1 << 20, 4096) == TA_OK && outward == 1);
    CHECK(stream_waits == 2); /* both have happened when they return */
    answer = CUDA_ERROR_ILLEGAL_ADDRESS;
    CHECK(d->fill(d->self, 0, 1 << 20, 0xa5, 4096) == TA_DRIVER && stream_waits == 2);
    CHECK(d->read(d->self, 0, read, 1 << 20, 4096) == TA_DRIVER);
    answer = CUDA_SUCCESS;
    uint64_t room = 0;
    CHECK(d->host_memory(d->self, &room) == TA_OK && room > 0);
}

static void statuses(const ta_driver *d)
{
    static const struct {
        CUresult result;
        ta_status status;
    } table[] = {
        {CUDA_SUCCESS, TA_OK},
        {CUDA_ERROR_OUT_OF_MEMORY, TA_OUT_OF_MEMORY},
        {CUDA_ERROR_NOT_READY, TA_NOT_READY},
        {CUDA_ERROR_DEINITIALIZED, TA_GONE},
        {CUDA_ERROR_CONTEXT_IS_DESTROYED, TA_GONE},
        {CUDA_ERROR_INVALID_VALUE, TA_INVALID},
        {CUDA_ERROR_NOT_SUPPORTED, TA_UNSUPPORTED},
        {CUDA_ERROR_ILLEGAL_ADDRESS, TA_DRIVER},
        {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, TA_DRIVER},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        answer = table[i].result;
        CHECK(d->event_query(d->self, (ta_event)(size_t)5) == table[i].status);
        CHECK(d->device_wait(d->self, 0) == table[i].status);
    }
    answer = CUDA_ERROR_NOT_READY; /* a bounded wait ends */
    CHECK(d->event_wait(d->self, (ta_event)(size_t)5, 500) == TA_NOT_READY);
    answer = CUDA_ERROR_ILLEGAL_ADDRESS;
    d->event_wait(d->self, (ta_event)(size_t)5, TA_FOREVER_US);
    CHECK(ta_cuda_last_error() == CUDA_ERROR_ILLEGAL_ADDRESS);
    answer = CUDA_SUCCESS;
}

static void entering(const ta_driver *d)
{
    uintptr_t outer[2];
    uintptr_t inner[2];
    CHECK(d->enter(d->self, 0, outer) == TA_OK && pushes == 1);
    CHECK(mode == CU_STREAM_CAPTURE_MODE_RELAXED);
    mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL; /* a thread may change it inside */
    CHECK(d->enter(d->self, 1, inner) == TA_OK && pushes == 2 && retains == 2);
    CHECK(mode == CU_STREAM_CAPTURE_MODE_RELAXED);
    d->leave(d->self, 1, inner);
    CHECK(mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && pops == 1);
    d->leave(d->self, 0, outer);
    CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL && pops == 2 && retains == 2);
    CHECK(d->enter(d->self, 5, outer) == TA_INVALID && pushes == 2);
    CHECK(d->enter(d->self, -1, outer) == TA_INVALID && pushes == 2);
    mode_answer = CUDA_ERROR_INVALID_VALUE;
    CHECK(d->enter(d->self, 0, outer) == TA_INVALID && pushes == pops);
    mode_answer = CUDA_SUCCESS;
}

static void pages(const ta_driver *d)
{
    ta_handle handle = 0;
    CHECK(d->create(d->self, 1, TA_TIER_DEVICE, 4u << 20, &handle) == TA_OK);
    CHECK(handle == 77 && last.location.type == CU_MEM_LOCATION_TYPE_DEVICE);
    CHECK(last.location.id == 1 && last.allocFlags.gpuDirectRDMACapable == 1);
    full = true;
    creates = 0;
    handle = 0;
    CHECK(d->create(d->self, 1, TA_TIER_DEVICE, 4u << 20, &handle) == TA_OUT_OF_MEMORY);
    CHECK(creates == 1 && handle == 0);
    full = false;
    refuse_rdma = true;
    CHECK(d->create(d->self, 1, TA_TIER_DEVICE, 4u << 20, &handle) == TA_OK);
    CHECK(creates == 3 && last.allocFlags.gpuDirectRDMACapable == 0);
    CHECK(d->create(d->self, 1, TA_TIER_DEVICE, 4u << 20, &handle) == TA_OK);
    CHECK(creates == 4); /* remembered, by device */
    CHECK(d->create(d->self, 0, TA_TIER_DEVICE, 4u << 20, &handle) == TA_OK &&
          creates == 6);
    /* Pages that others can import, each device by itself. */
    CHECK(last.requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    refuse_export = true;
    CHECK(d->create(d->self, 1, TA_TIER_DEVICE, 4u << 20, &handle) == TA_OK);
    CHECK(last.requestedHandleTypes == 0 && last.allocFlags.gpuDirectRDMACapable == 0);
    creates = 0;
    CHECK(d->create(d->self, 1, TA_TIER_DEVICE, 4u << 20, &handle) == TA_OK);
    CHECK(creates == 1);
    CHECK(d->create(d->self, 0, TA_TIER_DEVICE, 4u << 20, &handle) == TA_OK);
    CHECK(last.requestedHandleTypes == 0 && last.allocFlags.gpuDirectRDMACapable == 0);
    refuse_export = false;
    int fd = 0;
    CHECK(d->export_page(d->self, 77, &fd) == TA_OK && fd == 5);
    handle = 0;
    CHECK(d->import_page(d->self, 0, fd, 4u << 20, &handle) == TA_OK && handle == 77);
    CHECK(d->create(d->self, 0, TA_TIER_HOST, 4u << 20, &handle) == TA_OK);
    CHECK(last.requestedHandleTypes == 0);
    CHECK((int)last.location.type == 3 && last.location.id == 3);
    refuse_numa = true;
    CHECK(d->create(d->self, 0, TA_TIER_HOST, 4u << 20, &handle) == TA_OK);
    CHECK((int)last.location.type == 2 && last.location.id == 0);
    uint64_t addr = 0;
    CHECK(d->reserve(d->self, 1u << 30, 1u << 30, &addr) == TA_OK && addr == reserve_at);
    reserve_at += 4096;
    CHECK(d->reserve(d->self, 1u << 30, 1u << 30, &addr) == TA_DRIVER && unreserved == 1);
    int devices[] = {1, 0};
    CHECK(d->set_access(d->self, addr, 4u << 20, devices, 2) == TA_OK && accesses == 2);
    CHECK(last_access[0].location.id == 1 && last_access[1].location.id == 0);
    CHECK(last_access[1].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CHECK(d->set_access(d->self, addr, 4u << 20, devices, 0) == TA_INVALID);
}

static void capturing(const ta_driver *d)
{
    bool yes = false;
    CHECK(d->is_capturing(d->self, 0, (ta_stream)9, &yes) == TA_OK && yes);
    CHECK(d->is_capturing(d->self, 0, (ta_stream)8, &yes) == TA_OK && !yes);
    answer = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT; /* the legacy stream, beside a capture */
    CHECK(d->is_capturing(d->self, 0, NULL, &yes) == TA_OK && yes);
    answer = CUDA_ERROR_ILLEGAL_ADDRESS;
    CHECK(d->is_capturing(d->self, 0, NULL, &yes) == TA_DRIVER);
    answer = CUDA_SUCCESS;
}

static void probing(void)
{
    ta_cuda_facts facts;
    CHECK(ta_cuda_probe(1, &facts) == TA_OK);
    CHECK(facts.mig && facts.vmm && facts.host_pages && facts.rdma && facts.devices == 2);
    CHECK(facts.peers == 1 && facts.numa_node == 3 && facts.granularity == 2u << 20);
    CHECK(facts.driver_version == 13000 && facts.total == 1u << 30);
    CHECK(facts.uuid[0] == 'M' && facts.uuid[4] == 'f' && facts.uuid[5] == '0');
    CHECK(retains == 0 && !facts.context);
    CHECK(ta_cuda_probe(2, &facts) == TA_INVALID);
}

int main(void)
{
    const ta_driver *d = ta_cuda_driver();
    CHECK(ta_cuda_problem()[0] == '\0');
    CHECK(inits == 0); /* nothing starts before it is needed */
    int count = 0;
    CHECK(d->device_count(d->self, &count) == TA_OK && count == 2 && inits == 1);
    probing();
    entering(d);
    statuses(d);
    pages(d);
    capturing(d);
    copying(d);
    CHECK(inits == 1);
    return 0;
}
