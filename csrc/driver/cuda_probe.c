/* cuda_probe.c - what a device is and can do, for `doctor` and for enabling.
 *
 * Called from Python. Makes no context: only questions that the driver answers without one.
 * Thread-safe. */
#include "cuda.h"
#include "cuda_calls.h"

#include <stdio.h>
#include <string.h>

/* Windows' Linux has the paravirtual GPU device; the kernel names itself too. */
static bool in_wsl2(void)
{
    FILE *file = fopen("/proc/sys/kernel/osrelease", "r");
    if (file == NULL) return false;
    char line[256] = "";
    bool read = fgets(line, sizeof line, file) != NULL;
    fclose(file);
    return read &&
           (strstr(line, "microsoft") != NULL || strstr(line, "Microsoft") != NULL);
}

static void write_uuid(const CUuuid *uuid, bool mig, char *text, size_t capacity)
{
    unsigned char b[16];
    memcpy(b, uuid->bytes, sizeof b);
    snprintf(text, capacity,
             "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             mig ? "MIG" : "GPU", b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8],
             b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

static void probe_memory(const ta_cuda_calls *cu, CUdevice handle, ta_cuda_facts *facts)
{
    facts->vmm = ta_cuda_attribute(cu, handle, TA_ATTRIBUTE_VMM) != 0;
    facts->rdma = ta_cuda_attribute(cu, handle, TA_ATTRIBUTE_RDMA_WITH_VMM) != 0;
    int node = 0;
    facts->numa_node = -1;
    if (cu->attribute(&node, (CUdevice_attribute)TA_ATTRIBUTE_HOST_NUMA_ID, handle) ==
        CUDA_SUCCESS)
        facts->numa_node = node;
    facts->host_pages =
        facts->vmm && (ta_cuda_attribute(cu, handle, TA_ATTRIBUTE_HOST_NUMA_VMM) != 0 ||
                       ta_cuda_attribute(cu, handle, TA_ATTRIBUTE_HOST_VMM) != 0);
    if (!facts->vmm) return;
    CUmemAllocationProp prop;
    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = handle;
    size_t bytes = 0;
    if (cu->granularity(&bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS)
        facts->granularity = bytes;
}

ta_status ta_cuda_probe(int device, ta_cuda_facts *facts)
{
    memset(facts, 0, sizeof *facts);
    const ta_cuda_calls *cu = ta_cuda_start();
    if (cu == NULL) return TA_UNSUPPORTED;
    CUdevice handle = 0;
    CUresult result = cu->driver_version(&facts->driver_version);
    if (result == CUDA_SUCCESS) result = cu->device_count(&facts->devices);
    if (result == CUDA_SUCCESS) result = cu->device(&handle, device);
    if (result == CUDA_SUCCESS)
        result = cu->name(facts->name, (int)sizeof facts->name, handle);
    size_t total = 0;
    if (result == CUDA_SUCCESS) result = cu->total(&total, handle);
    if (result != CUDA_SUCCESS) return ta_cuda_status(result);
    facts->total = total;
    facts->major =
        ta_cuda_attribute(cu, handle, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    facts->minor =
        ta_cuda_attribute(cu, handle, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    facts->multiprocessors =
        ta_cuda_attribute(cu, handle, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    facts->mig = strstr(facts->name, "MIG") != NULL;
    facts->wsl2 = in_wsl2();
    CUuuid uuid;
    if (cu->uuid(&uuid, handle) == CUDA_SUCCESS)
        write_uuid(&uuid, facts->mig, facts->uuid, sizeof facts->uuid);
    probe_memory(cu, handle, facts);
    for (int peer = 0; peer < facts->devices && peer < 64; peer++) {
        CUdevice other = 0;
        int can = 0;
        if (peer == device || cu->device(&other, peer) != CUDA_SUCCESS) continue;
        if (cu->can_access_peer(&can, handle, other) == CUDA_SUCCESS && can != 0)
            facts->peers |= (uint64_t)1 << peer;
    }
    unsigned flags = 0;
    int active = 0;
    if (cu->primary_state(handle, &flags, &active) == CUDA_SUCCESS)
        facts->context = active != 0;
    return TA_OK;
}
