/* device.c - what a simulated device says of itself: attributes, identity, occupancy.
 *
 * Attribute numbers are the driver's; the runtime's are the same. Pure; thread-safe. */
#include <cuda.h>
#include <string.h>

#include "simcuda.h"

int ta_sc_attribute(int *value, int attribute, int device)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return TA_CU_NOT_INITIALIZED;
    if (device < 0 || device >= m->devices) return TA_CU_BAD_DEVICE;
    if (!value) return TA_CU_INVALID;
    const ta_sc_card *c = &m->card;
    bool ampere = c->major >= 8, hopper = c->major >= 9;
    int v = 0;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
        v = 1024;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
        v = 64;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
        v = 2147483647;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
        v = 65535;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
        v = 49152;
        break;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
        v = 65536;
        break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
        v = 32;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
        v = 2147483647;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
        v = 65536;
        break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
        v = c->clock_mhz * 1000;
        break;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
        v = 512;
        break;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT:
        v = 32;
        break;
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
        v = 1;
        break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        v = c->sms;
        break;
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
        v = 1;
        break;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        v = ta_sc_machine_get() && ta_sc_machine_get()->host_pages;
        break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        v = 0x19 + device;
        break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
        v = c->memory_mhz * 1000;
        break;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
        v = c->bus_bits;
        break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
        v = c->l2_kib * 1024;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
        v = c->threads_sm;
        break;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
        v = 3;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        v = c->major;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        v = c->minor;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
        v = c->shared_sm * 1024;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        v = c->shared_block * 1024;
        break;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
        v = ampere ? 1024 : 0;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
        v = c->blocks_sm;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE:
        v = ampere ? c->l2_kib * 640 : 0;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE:
        v = ampere ? 134213632 : 0;
        break;
    case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
        v = 1;
        break;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
        v = hopper;
        break;
    /* Tensor memory accelerator's maps, multicast, RDMA: nobody here needs them. */
    default:
        break;
    }
    *value = v;
    return TA_CU_OK;
}

void ta_sc_uuid(int device, unsigned char uuid[16])
{
    static const unsigned char name[15] = "torcharena-sim";
    memcpy(uuid, name, sizeof name);
    uuid[15] = (unsigned char)device;
}

int ta_sc_occupancy(int *blocks, int block_size, size_t shared)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return TA_CU_NOT_INITIALIZED;
    if (block_size <= 0 || !blocks) return TA_CU_INVALID;
    int fit = m->card.threads_sm / ((block_size + 31) / 32 * 32);
    if (fit > m->card.blocks_sm) fit = m->card.blocks_sm;
    if (shared) {
        size_t by_shared = (size_t)m->card.shared_sm * 1024 / (shared + 1024);
        if ((size_t)fit > by_shared) fit = (int)by_shared;
    }
    *blocks = fit;
    return TA_CU_OK;
}
