/* cudart_device.c - the runtime's functions on devices, versions, errors and peers.
 *
 * Called by PyTorch in place of libcudart's. Thread-safe; the last error is the thread's. */
#include <stdio.h>
#include <string.h>

#include "cudart.h"
#include "props.h"

static _Thread_local int last_error;

int ta_sc_note(int result)
{
    if (result) last_error = result;
    return result;
}

TA_EXPORT int cudaGetLastError(void)
{
    int error = last_error;
    last_error = 0;
    return error;
}
TA_EXPORT int cudaPeekAtLastError(void) { return last_error; }

/* --- names of errors ---------------------------------------------------------------- */
static const struct {
    int code;
    const char *name, *driver_name, *text;
} errors[] = {
    {0, "cudaSuccess", "CUDA_SUCCESS", "no error"},
    {1, "cudaErrorInvalidValue", "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "cudaErrorInitializationError", "CUDA_ERROR_NOT_INITIALIZED",
     "initialization error"},
    {4, "cudaErrorCudartUnloading", "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {100, "cudaErrorNoDevice", "CUDA_ERROR_NO_DEVICE",
     "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "CUDA_ERROR_INVALID_DEVICE",
     "invalid device ordinal"},
    {201, "cudaErrorDeviceUninitialized", "CUDA_ERROR_INVALID_CONTEXT",
     "invalid device context"},
    {217, "cudaErrorPeerAccessUnsupported", "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "peer access is not supported between these two devices"},
    {400, "cudaErrorInvalidResourceHandle", "CUDA_ERROR_INVALID_HANDLE",
     "invalid resource handle"},
    {500, "cudaErrorSymbolNotFound", "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "cudaErrorNotReady", "CUDA_ERROR_NOT_READY", "device not ready"},
    {704, "cudaErrorPeerAccessAlreadyEnabled", "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
     "peer access is already enabled"},
    {712, "cudaErrorHostMemoryAlreadyRegistered",
     "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {713, "cudaErrorHostMemoryNotRegistered", "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {801, "cudaErrorNotSupported", "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {900, "cudaErrorStreamCaptureUnsupported", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {901, "cudaErrorStreamCaptureInvalidated", "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {908, "cudaErrorStreamCaptureWrongThread", "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {999, "cudaErrorUnknown", "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const char *ta_sc_error(int code, int which)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code)
            return which == 0   ? errors[i].name
                   : which == 1 ? errors[i].driver_name
                                : errors[i].text;
    return NULL;
}

TA_EXPORT const char *cudaGetErrorName(int code)
{
    const char *name = ta_sc_error(code, 0);
    return name ? name : "unrecognized error code";
}
TA_EXPORT const char *cudaGetErrorString(int code)
{
    const char *text = ta_sc_error(code, 2);
    return text ? text : "unrecognized error code";
}

/* --- versions and devices ------------------------------------------------------------ */
TA_EXPORT int cudaRuntimeGetVersion(int *version)
{
    *version = ta_sc_runtime_version();
    return TA_CU_OK;
}
TA_EXPORT int cudaDriverGetVersion(int *version)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    *version = m ? m->driver_version : 0;
    return TA_CU_OK;
}
TA_EXPORT int cudaGetDeviceCount(int *count)
{
    if (!count) return ta_sc_note(TA_CU_INVALID);
    *count = ta_sc_device_count();
    if (!ta_sc_machine_get()) return ta_sc_note(TA_CU_NOT_INITIALIZED);
    return ta_sc_note(*count ? TA_CU_OK : TA_CU_NO_DEVICE);
}
TA_EXPORT int cudaGetDevice(int *device)
{
    if (!device) return ta_sc_note(TA_CU_INVALID);
    if (!ta_sc_machine_get()) return ta_sc_note(TA_CU_NOT_INITIALIZED);
    *device = ta_sc_device();
    return TA_CU_OK;
}
TA_EXPORT int cudaSetDevice(int device) { return ta_sc_note(ta_sc_set_device(device)); }
TA_EXPORT int cudaInitDevice(int device, unsigned device_flags, unsigned flags)
{
    (void)device_flags, (void)flags;
    ta_sc_context *context = ta_sc_context_of(device);
    if (!context) return ta_sc_note(TA_CU_BAD_DEVICE);
    return ta_sc_note(ta_sc_activate(context));
}
TA_EXPORT int cudaSetValidDevices(int *devices, int count)
{
    (void)devices, (void)count;
    return TA_CU_OK;
}
TA_EXPORT int cudaGetDeviceFlags(unsigned *flags)
{
    *flags = 0;
    return TA_CU_OK;
}
TA_EXPORT int cudaSetDeviceFlags(unsigned flags)
{
    (void)flags;
    return TA_CU_OK;
}
TA_EXPORT int cudaDeviceSynchronize(void)
{
    return ta_sc_note(ta_sc_device_wait(ta_sc_device()));
}
TA_EXPORT int cudaDeviceReset(void) { return TA_CU_OK; }
TA_EXPORT int cudaDeviceGetAttribute(int *value, int attribute, int device)
{
    return ta_sc_note(ta_sc_attribute(value, attribute, device));
}
TA_EXPORT int cudaDeviceGetLimit(size_t *value, int limit)
{
    *value = limit == 0 ? 1024 : limit == 1 ? (size_t)7 << 20 : (size_t)8 << 20;
    return TA_CU_OK;
}
TA_EXPORT int cudaDeviceSetLimit(int limit, size_t value)
{
    (void)limit, (void)value;
    return TA_CU_OK;
}
TA_EXPORT int cudaDeviceGetPCIBusId(char *text, int length, int device)
{
    if (!ta_sc_context_of(device)) return ta_sc_note(TA_CU_BAD_DEVICE);
    snprintf(text, (size_t)length, "0000:%02X:00.0", 0x19 + device);
    return TA_CU_OK;
}
TA_EXPORT int cudaDeviceGetByPCIBusId(int *device, const char *text)
{
    unsigned domain, bus;
    if (sscanf(text, "%x:%x", &domain, &bus) != 2 || !ta_sc_context_of((int)bus - 0x19))
        return ta_sc_note(TA_CU_BAD_DEVICE);
    *device = (int)bus - 0x19;
    return TA_CU_OK;
}
TA_EXPORT int cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return TA_CU_OK;
}

/* --- cudaDeviceProp ------------------------------------------------------------------- */
enum prop {
#define X(field, in12, in13, bytes) P_##field,
    TA_SC_PROPS(X)
#undef X
        P_COUNT
};
static const struct {
    short in12, in13, bytes;
} places[P_COUNT] = {
#define X(field, in12, in13, bytes) {in12, in13, bytes},
    TA_SC_PROPS(X)
#undef X
};

static void put(void *props, bool old, enum prop field, int64_t value)
{
    int at = old ? places[field].in12 : places[field].in13;
    if (at < 0) return;
    int32_t narrow = (int32_t)value;
    if (places[field].bytes == 8)
        memcpy((char *)props + at, &value, 8);
    else
        memcpy((char *)props + at, &narrow, 4);
}

static int properties(void *props, int device, bool old)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return ta_sc_note(TA_CU_NOT_INITIALIZED);
    if (device < 0 || device >= m->devices) return ta_sc_note(TA_CU_BAD_DEVICE);
    memset(props, 0, old ? TA_SC_PROPS_SIZE_12 : TA_SC_PROPS_SIZE_13);
    strncpy(props, m->card.name, 255);
    ta_sc_uuid(device, (unsigned char *)props + 256);
    /* field, the attribute that holds the same */
    static const struct {
        enum prop field;
        int attribute;
    } same[] = {
        {P_sharedMemPerBlock, 8},
        {P_regsPerBlock, 12},
        {P_warpSize, 10},
        {P_memPitch, 11},
        {P_maxThreadsPerBlock, 1},
        {P_clockRate, 13},
        {P_totalConstMem, 9},
        {P_major, 75},
        {P_minor, 76},
        {P_textureAlignment, 14},
        {P_texturePitchAlignment, 51},
        {P_deviceOverlap, 15},
        {P_multiProcessorCount, 16},
        {P_integrated, 18},
        {P_canMapHostMemory, 19},
        {P_concurrentKernels, 31},
        {P_ECCEnabled, 32},
        {P_pciBusID, 33},
        {P_pciDeviceID, 34},
        {P_pciDomainID, 50},
        {P_asyncEngineCount, 40},
        {P_unifiedAddressing, 41},
        {P_memoryClockRate, 36},
        {P_memoryBusWidth, 37},
        {P_l2CacheSize, 38},
        {P_persistingL2CacheMaxSize, 108},
        {P_maxThreadsPerMultiProcessor, 39},
        {P_streamPrioritiesSupported, 78},
        {P_globalL1CacheSupported, 79},
        {P_localL1CacheSupported, 80},
        {P_sharedMemPerMultiprocessor, 81},
        {P_regsPerMultiprocessor, 82},
        {P_managedMemory, 83},
        {P_concurrentManagedAccess, 89},
        {P_computePreemptionSupported, 90},
        {P_canUseHostPointerForRegisteredMem, 91},
        {P_cooperativeLaunch, 95},
        {P_sharedMemPerBlockOptin, 97},
        {P_maxBlocksPerMultiProcessor, 106},
        {P_accessPolicyMaxWindowSize, 109},
        {P_reservedSharedMemPerBlock, 111},
        {P_hostRegisterSupported, 99},
        {P_memoryPoolsSupported, 115},
        {P_gpuDirectRDMASupported, 116},
        {P_clusterLaunch, 120},
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        int value = 0;
        ta_sc_attribute(&value, same[i].attribute, device);
        put(props, old, same[i].field, value);
    }
    put(props, old, P_totalGlobalMem, (int64_t)m->card.memory);
    static const int dims[3] = {1024, 1024, 64}, grid[3] = {2147483647, 65535, 65535};
    memcpy((char *)props + places[P_maxThreadsDim].in12, dims, sizeof dims);
    memcpy((char *)props + places[P_maxGridSize].in12, grid, sizeof grid);
    return TA_CU_OK;
}

/* The name tells the layout: CUDA 12's headers rename to _v2, CUDA 13's do not. */
TA_EXPORT int cudaGetDeviceProperties(void *props, int device)
{
    return properties(props, device, false);
}
TA_EXPORT int cudaGetDeviceProperties_v2(void *props, int device)
{
    return properties(props, device, true);
}

/* --- peers ---------------------------------------------------------------------------- */
static bool peers[TA_MAX_DEVICES][TA_MAX_DEVICES];

TA_EXPORT int cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return ta_sc_note(TA_CU_NOT_INITIALIZED);
    if (!ta_sc_context_of(device) || !ta_sc_context_of(peer))
        return ta_sc_note(TA_CU_BAD_DEVICE);
    bool yes = false;
    if (device != peer) {
        ta_status status =
            m->driver->can_access_peer(m->driver->self, device, peer, &yes);
        if (status != TA_OK) return ta_sc_note(ta_sc_status(status));
    }
    *can = yes;
    return TA_CU_OK;
}
TA_EXPORT int cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    int can = 0, device = ta_sc_device();
    if (flags) return ta_sc_note(TA_CU_INVALID);
    int result = cudaDeviceCanAccessPeer(&can, device, peer);
    if (result) return result;
    if (!can) return ta_sc_note(TA_CU_NO_PEER);
    bool on = __atomic_exchange_n(&peers[device][peer], true, __ATOMIC_ACQ_REL);
    return ta_sc_note(on ? TA_CU_PEER_ON : TA_CU_OK);
}
TA_EXPORT int cudaDeviceDisablePeerAccess(int peer)
{
    if (!ta_sc_context_of(peer)) return ta_sc_note(TA_CU_BAD_DEVICE);
    bool on = __atomic_exchange_n(&peers[ta_sc_device()][peer], false, __ATOMIC_ACQ_REL);
    return ta_sc_note(on ? TA_CU_OK : 705);
}
TA_EXPORT int cudaDeviceGetP2PAttribute(int *value, int attribute, int device, int peer)
{
    int result = cudaDeviceCanAccessPeer(value, device, peer);
    if (result == TA_CU_OK && attribute == 1) *value = 0; /* performance rank */
    return result;
}

TA_EXPORT int cudaProfilerStart(void) { return TA_CU_OK; }
TA_EXPORT int cudaProfilerStop(void) { return TA_CU_OK; }
