/* driver_vmm.c - the driver's virtual memory management.
 *
 * Called by expandable segments, by NCCL-like users and by our own csrc/driver/cuda.c. A
 * handle released while it is mapped lives on until it is unmapped, as with the driver, so
 * handles and mappings are counted here. Thread-safe: one lock over the books, never held
 * across a call of the simulator's. */
#include <cuda.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "simcuda.h"

typedef struct page {
    ta_handle handle;
    uint64_t size;
    int device; /* -1: host */
    int owners; /* create and retain, less release */
    int mapped; /* addresses it is mapped at */
    CUmemAllocationProp prop;
} page;

/* A page lives while owners + mapped > 0. `pages` is by handle, `at` by address. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ta_sc_map pages, at;

/* Takes the page off the books if nothing holds it; the caller then releases it. Locked. */
static bool forget(page *p)
{
    if (p->owners > 0 || p->mapped > 0) return false;
    ta_sc_map_take(&pages, p->handle + 2);
    return true;
}

static int let_go(const ta_sc_machine *m, page *p)
{
    ta_status status = m->driver->release(m->driver->self, p->handle, p->size);
    free(p);
    return ta_sc_status(status);
}

TA_EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity,
                                                 const CUmemAllocationProp *prop,
                                                 CUmemAllocationGranularity_flags option)
{
    (void)option;
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return CUDA_ERROR_NOT_INITIALIZED;
    if (!granularity || !prop) return CUDA_ERROR_INVALID_VALUE;
    bool device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (device && !ta_sc_context_of(prop->location.id)) return CUDA_ERROR_INVALID_DEVICE;
    uint64_t bytes;
    ta_status status =
        m->driver->granularity(m->driver->self, device ? prop->location.id : 0,
                               device ? TA_TIER_DEVICE : TA_TIER_HOST, &bytes);
    if (status == TA_OK) *granularity = bytes;
    return (CUresult)ta_sc_status(status);
}

TA_EXPORT CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment,
                                       CUdeviceptr addr, unsigned long long flags)
{
    (void)addr; /* a wish */
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return CUDA_ERROR_NOT_INITIALIZED;
    if (!ptr || !size || flags) return CUDA_ERROR_INVALID_VALUE;
    if (!alignment) alignment = (size_t)2 << 20;
    uint64_t got;
    ta_status status = m->driver->reserve(m->driver->self, size, alignment, &got);
    if (status != TA_OK) return (CUresult)ta_sc_status(status);
    if (!ta_sc_range_add(got, size, TA_SC_RESERVED, ta_sc_device())) {
        m->driver->unreserve(m->driver->self, got, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ptr = got;
    return CUDA_SUCCESS;
}

TA_EXPORT CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    ta_sc_range range;
    if (!m) return CUDA_ERROR_NOT_INITIALIZED;
    if (!ta_sc_range_find(ptr, &range) || range.addr != ptr || range.size != size ||
        range.kind != TA_SC_RESERVED)
        return CUDA_ERROR_INVALID_VALUE;
    ta_sc_range_remove(ptr, &range);
    ta_status status = m->driver->unreserve(m->driver->self, ptr, size);
    if (status != TA_OK) ta_sc_range_add(ptr, size, TA_SC_RESERVED, range.device);
    return (CUresult)ta_sc_status(status);
}

TA_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                               const CUmemAllocationProp *prop, unsigned long long flags)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return CUDA_ERROR_NOT_INITIALIZED;
    if (!handle || !prop || !size || flags) return CUDA_ERROR_INVALID_VALUE;
    bool device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (device && !ta_sc_context_of(prop->location.id)) return CUDA_ERROR_INVALID_DEVICE;
    page *p = calloc(1, sizeof *p);
    if (!p) return CUDA_ERROR_OUT_OF_MEMORY;
    *p = (page){.size = size, .owners = 1, .device = device ? prop->location.id : -1};
    p->prop = *prop;
    ta_status status =
        m->driver->create(m->driver->self, device ? p->device : ta_sc_device(),
                          device ? TA_TIER_DEVICE : TA_TIER_HOST, size, &p->handle);
    if (status != TA_OK) {
        free(p);
        return (CUresult)ta_sc_status(status);
    }
    if (device) ta_sc_use(p->device);
    pthread_mutex_lock(&lock);
    bool kept = ta_sc_map_put(&pages, p->handle + 2, p);
    pthread_mutex_unlock(&lock);
    if (!kept) {
        let_go(m, p);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = p->handle;
    return CUDA_SUCCESS;
}

TA_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&lock);
    page *p = ta_sc_map_get(&pages, handle + 2);
    bool valid = p && p->owners > 0;
    if (valid) p->owners--;
    bool gone = valid && forget(p);
    pthread_mutex_unlock(&lock);
    if (!valid) return CUDA_ERROR_INVALID_VALUE;
    return (CUresult)(gone ? let_go(m, p) : TA_CU_OK);
}

TA_EXPORT CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                            CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return CUDA_ERROR_NOT_INITIALIZED;
    if (offset || flags) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    page *p = ta_sc_map_get(&pages, handle + 2);
    bool valid = p && p->size == size && !ta_sc_map_get(&at, ptr);
    if (valid) p->mapped++;
    pthread_mutex_unlock(&lock);
    if (!valid) return CUDA_ERROR_INVALID_VALUE;
    ta_status status = m->driver->map(m->driver->self, ptr, size, handle);
    pthread_mutex_lock(&lock);
    if (status == TA_OK && !ta_sc_map_put(&at, ptr, p)) {
        m->driver->unmap(m->driver->self, ptr, size);
        status = TA_NO_HOST_MEMORY;
    }
    if (status != TA_OK) p->mapped--;
    int device = p->device;
    bool gone = forget(p);
    pthread_mutex_unlock(&lock);
    if (gone) let_go(m, p);
    if (status == TA_OK && device >= 0) ta_sc_range_set_device(ptr, device);
    return (CUresult)ta_sc_status(status);
}

TA_EXPORT CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return CUDA_ERROR_NOT_INITIALIZED;
    ta_status status = m->driver->unmap(m->driver->self, ptr, size);
    if (status != TA_OK) return (CUresult)ta_sc_status(status);
    for (uint64_t where = ptr; where < ptr + size;) {
        pthread_mutex_lock(&lock);
        page *p = ta_sc_map_take(&at, where);
        if (p) p->mapped--;
        uint64_t step = p ? p->size : (uint64_t)2 << 20;
        bool gone = p && forget(p);
        pthread_mutex_unlock(&lock);
        if (gone) let_go(m, p);
        where += step;
    }
    return CUDA_SUCCESS;
}

TA_EXPORT CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size,
                                  const CUmemAccessDesc *desc, size_t count)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return CUDA_ERROR_NOT_INITIALIZED;
    if (!desc || !count || count > (size_t)2 * TA_MAX_DEVICES)
        return CUDA_ERROR_INVALID_VALUE;
    int devices[2 * TA_MAX_DEVICES], used = 0;
    for (size_t i = 0; i < count; i++) {
        if (desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) continue;
        if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) continue;
        if (!ta_sc_context_of(desc[i].location.id)) return CUDA_ERROR_INVALID_DEVICE;
        devices[used++] = desc[i].location.id;
    }
    if (!used) return CUDA_SUCCESS;
    return (CUresult)ta_sc_status(
        m->driver->set_access(m->driver->self, ptr, size, devices, used));
}

TA_EXPORT CUresult cuMemGetAccess(unsigned long long *flags,
                                  const CUmemLocation *location, CUdeviceptr ptr)
{
    ta_sc_range range;
    if (!flags || !location || !ta_sc_range_find(ptr, &range))
        return CUDA_ERROR_INVALID_VALUE;
    *flags = range.device == location->id ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : 0;
    return CUDA_SUCCESS;
}

TA_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle,
                                               void *addr)
{
    pthread_mutex_lock(&lock);
    uint64_t where = (uintptr_t)addr & ~(((uint64_t)2 << 20) - 1);
    page *p = ta_sc_map_get(&at, where);
    if (p) {
        p->owners++;
        *handle = p->handle;
    }
    pthread_mutex_unlock(&lock);
    return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

TA_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(
    CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    pthread_mutex_lock(&lock);
    page *p = ta_sc_map_get(&pages, handle + 2);
    if (p) *prop = p->prop;
    pthread_mutex_unlock(&lock);
    return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- sharing pages between processes ------------------------------------------------- */
TA_EXPORT CUresult cuMemExportToShareableHandle(void *out,
                                                CUmemGenericAllocationHandle handle,
                                                CUmemAllocationHandleType type,
                                                unsigned long long flags)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return CUDA_ERROR_NOT_INITIALIZED;
    if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&lock);
    const page *p = ta_sc_map_get(&pages, handle + 2);
    const bool valid = p && p->prop.requestedHandleTypes == type;
    pthread_mutex_unlock(&lock);
    if (!valid) return CUDA_ERROR_INVALID_VALUE;
    return (CUresult)ta_sc_status(m->driver->export_page(m->driver->self, handle, out));
}

TA_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
                                                  void *from,
                                                  CUmemAllocationHandleType type)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return CUDA_ERROR_NOT_INITIALIZED;
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    page *p = calloc(1, sizeof *p);
    if (!p) return CUDA_ERROR_OUT_OF_MEMORY;
    *p = (page){.owners = 1, .device = ta_sc_device()};
    ta_status status = m->driver->import_page(m->driver->self, p->device,
                                              (int)(intptr_t)from, 0, &p->handle);
    if (status != TA_OK) {
        free(p);
        return (CUresult)ta_sc_status(status);
    }
    p->size = ta_sim_handle_size(m->sim, p->handle);
    pthread_mutex_lock(&lock);
    const bool kept = ta_sc_map_put(&pages, p->handle + 2, p);
    pthread_mutex_unlock(&lock);
    if (!kept) {
        let_go(m, p);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = p->handle;
    return CUDA_SUCCESS;
}
