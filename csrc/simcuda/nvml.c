/* nvml.c - the management library, found by those who open libnvidia-ml.so.1.
 *
 * The build puts a link of that name beside the library. Devices, memory, identity; clocks
 * and power are not simulated. Thread-safe. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cudart.h"

enum {
    ML_OK = 0,
    ML_BAD = 2,
    ML_UNSUPPORTED = 3,
    ML_NOT_FOUND = 6,
    ML_SMALL = 7,
    ML_LOST = 999
};

static char handles[TA_MAX_DEVICES]; /* a device's handle is its address here */

static int device_of(const void *handle)
{
    const char *at = handle;
    if (at < handles || at >= handles + ta_sc_device_count()) return -1;
    return (int)(at - handles);
}
static int give(void **handle, int device)
{
    if (!ta_sc_context_of(device)) return ML_BAD;
    *handle = &handles[device];
    return ML_OK;
}
static int text(char *to, unsigned length, const char *from)
{
    if (strlen(from) >= length) return ML_SMALL;
    memcpy(to, from, strlen(from) + 1);
    return ML_OK;
}
static void uuid_text(int device, char out[48])
{
    unsigned char u[16];
    ta_sc_uuid(device, u);
    int n = snprintf(out, 48, "GPU-");
    for (int i = 0; i < 16; i++)
        n += snprintf(out + n, 48 - (size_t)n, "%02x%s", u[i],
                      i == 3 || i == 5 || i == 7 || i == 9 ? "-" : "");
}

TA_EXPORT int nvmlInit_v2(void) { return ta_sc_machine_get() ? ML_OK : ML_LOST; }
TA_EXPORT int nvmlInit(void) { return nvmlInit_v2(); }
TA_EXPORT int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return nvmlInit_v2();
}
TA_EXPORT int nvmlShutdown(void) { return ML_OK; }
TA_EXPORT const char *nvmlErrorString(int result)
{
    return result == ML_OK            ? "Success"
           : result == ML_BAD         ? "Invalid Argument"
           : result == ML_UNSUPPORTED ? "Not Supported"
           : result == ML_NOT_FOUND   ? "Not Found"
           : result == ML_SMALL       ? "Insufficient Size"
                                      : "Unknown Error";
}
TA_EXPORT int nvmlSystemGetDriverVersion(char *to, unsigned length)
{
    return text(to, length, "580.159.00");
}
TA_EXPORT int nvmlSystemGetNVMLVersion(char *to, unsigned length)
{
    return text(to, length, "13.580.159");
}
TA_EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return cudaDriverGetVersion(version) == TA_CU_OK ? ML_OK : ML_LOST;
}
TA_EXPORT int nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}
TA_EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = (unsigned)ta_sc_device_count();
    return ML_OK;
}
TA_EXPORT int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }
TA_EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle)
{
    return give(handle, (int)index);
}
TA_EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, void **handle)
{
    return give(handle, (int)index);
}
TA_EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **handle)
{
    int device;
    if (cudaDeviceGetByPCIBusId(&device, id) != TA_CU_OK) {
        cudaGetLastError();
        return ML_NOT_FOUND;
    }
    return give(handle, device);
}
TA_EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle)
{
    char own[48];
    for (int d = 0; d < ta_sc_device_count(); d++) {
        uuid_text(d, own);
        if (strcmp(own, uuid) == 0) return give(handle, d);
    }
    return ML_NOT_FOUND;
}
TA_EXPORT int nvmlDeviceGetIndex(const void *handle, unsigned *index)
{
    int device = device_of(handle);
    *index = (unsigned)device;
    return device < 0 ? ML_BAD : ML_OK;
}
TA_EXPORT int nvmlDeviceGetMinorNumber(const void *handle, unsigned *number)
{
    return nvmlDeviceGetIndex(handle, number);
}
TA_EXPORT int nvmlDeviceGetName(const void *handle, char *to, unsigned length)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    return m && device_of(handle) >= 0 ? text(to, length, m->card.name) : ML_BAD;
}
TA_EXPORT int nvmlDeviceGetUUID(const void *handle, char *to, unsigned length)
{
    char own[48];
    int device = device_of(handle);
    if (device < 0) return ML_BAD;
    uuid_text(device, own);
    return text(to, length, own);
}
TA_EXPORT int nvmlDeviceGetCudaComputeCapability(const void *handle, int *major,
                                                 int *minor)
{
    int device = device_of(handle);
    if (device < 0) return ML_BAD;
    ta_sc_attribute(major, 75, device);
    ta_sc_attribute(minor, 76, device);
    return ML_OK;
}

struct memory_info {
    unsigned long long total, free, used;
};
struct memory_info_2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
/* Does not make the context, unlike cudaMemGetInfo. */
static int memory_of(const void *handle, uint64_t *total, uint64_t *used)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    int device = device_of(handle);
    if (!m || device < 0) return ML_BAD;
    *total = m->card.memory;
    *used = ta_sim_used(m->sim, device, true);
    return ML_OK;
}
TA_EXPORT int nvmlDeviceGetMemoryInfo(const void *handle, struct memory_info *info)
{
    uint64_t total = 0, used = 0;
    int result = memory_of(handle, &total, &used);
    *info = (struct memory_info){total, total - used, used};
    return result;
}
TA_EXPORT int nvmlDeviceGetMemoryInfo_v2(const void *handle, struct memory_info_2 *info)
{
    uint64_t total = 0, used = 0;
    int result = memory_of(handle, &total, &used);
    info->total = total;
    info->reserved = 0;
    info->free = total - used;
    info->used = used;
    return result;
}

struct process_1 {
    unsigned pid;
    unsigned long long used;
};
struct process_3 {
    unsigned pid;
    unsigned long long used;
    unsigned instance, compute;
};
static int own_process(const void *handle, unsigned *count, unsigned *pid, uint64_t *used)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    int device = device_of(handle);
    if (!m || device < 0 || !count) return ML_BAD;
    *pid = (unsigned)getpid();
    *used = ta_sim_used(m->sim, device, false);
    unsigned room = *count;
    *count = *used ? 1 : 0;
    return *count > room ? ML_SMALL : ML_OK;
}
TA_EXPORT int nvmlDeviceGetComputeRunningProcesses(const void *handle, unsigned *count,
                                                   struct process_1 *list)
{
    unsigned pid;
    uint64_t used;
    int result = own_process(handle, count, &pid, &used);
    if (result == ML_OK && *count) list[0] = (struct process_1){pid, used};
    return result;
}
TA_EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(const void *handle, unsigned *count,
                                                      struct process_3 *list)
{
    unsigned pid;
    uint64_t used;
    int result = own_process(handle, count, &pid, &used);
    if (result == ML_OK && *count)
        list[0] = (struct process_3){pid, used, 0xFFFFFFFFu, 0xFFFFFFFFu};
    return result;
}
TA_EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(const void *handle, unsigned *count,
                                                      struct process_3 *list)
{
    return nvmlDeviceGetComputeRunningProcesses_v3(handle, count, list);
}
TA_EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(const void *handle,
                                                       unsigned *count,
                                                       struct process_3 *list)
{
    (void)handle, (void)list;
    *count = 0;
    return ML_OK;
}

struct utilization {
    unsigned gpu, memory;
};
TA_EXPORT int nvmlDeviceGetUtilizationRates(const void *handle, struct utilization *u)
{
    *u = (struct utilization){0, 0};
    return device_of(handle) < 0 ? ML_BAD : ML_OK;
}
TA_EXPORT int nvmlDeviceGetMigMode(const void *handle, unsigned *current,
                                   unsigned *pending)
{
    (void)handle;
    *current = *pending = 0;
    return ML_OK;
}
TA_EXPORT int nvmlDeviceGetP2PStatus(const void *a, const void *b, int index, int *status)
{
    (void)index;
    *status = 0; /* fine */
    return device_of(a) < 0 || device_of(b) < 0 ? ML_BAD : ML_OK;
}

#define UNSUPPORTED(name)                                                                \
    TA_EXPORT int name(void) { return ML_UNSUPPORTED; }
UNSUPPORTED(nvmlDeviceGetTemperature)
UNSUPPORTED(nvmlDeviceGetTemperatureV)
UNSUPPORTED(nvmlDeviceGetPowerUsage)
UNSUPPORTED(nvmlDeviceGetClockInfo)
UNSUPPORTED(nvmlDeviceGetMaxClockInfo)
UNSUPPORTED(nvmlDeviceGetFanSpeed)
UNSUPPORTED(nvmlDeviceGetTotalEnergyConsumption)
UNSUPPORTED(nvmlDeviceGetEnforcedPowerLimit)
UNSUPPORTED(nvmlDeviceGetGpuFabricInfoV)
UNSUPPORTED(nvmlDeviceGetNvLinkState)
UNSUPPORTED(nvmlDeviceGetNvLinkRemoteDeviceType)
UNSUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo_v2)
UNSUPPORTED(nvmlDeviceGetProcessUtilization)
