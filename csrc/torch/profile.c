/* profile.c - memory events of torch's profiler.
 *
 * torch's own allocator tells the profiler of every allocation and free; a plug-in's do not.
 * While a profiler is on, an observer does that here: it calls the function of c10 that torch
 * itself calls, which finds the profiler of the calling thread and notes a line. Python says
 * when one begins and ends (answers/profiler.py); in between every event asks whether this
 * thread's profiler wants memory. Nothing is paid while there is none.
 *
 * The observer runs with an arena's lock held. What it calls takes the profiler's own locks and
 * malloc's, and neither the GIL nor an allocator of the GPU. */
#include "profile.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "../core/count.h"
#include "find.h"
#include "process.h"

/* c10::Device: comes in one register. */
typedef struct torch_device {
    int8_t type, index;
} torch_device;
#define CUDA_DEVICE_TYPE 1

static struct {
    bool (*wanted)(void);
    void (*report)(void *ptr, int64_t bytes, size_t allocated, size_t reserved,
                   torch_device device);
    void (*report_out_of_memory)(int64_t bytes, size_t allocated, size_t reserved,
                                 torch_device device);
} torch;

/* Profilers that are on; guarded by the lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int profilers;

/* Bytes that live on each device: what lived when the observer came, and the change since. */
static _Atomic uint64_t base[TA_MAX_DEVICES], since[TA_MAX_DEVICES];
#define KINDS (1u << TA_EVENT_ALLOC | 1u << TA_EVENT_FREE | 1u << TA_EVENT_OOM)

/* No lock of an arena is held here, as it is where events are told. */
static void note_base(ta_allocator *allocator)
{
    for (int i = 0; i < TA_MAX_DEVICES; i++) {
        ta_stats stats;
        if (ta_get_stats(allocator, i, &stats) != TA_OK) stats.allocated[0].current = 0;
        atomic_store(&base[i], stats.allocated[0].current - atomic_load(&since[i]));
    }
}

static void tell(void *context, const ta_event_info *event)
{
    ta_allocator *allocator = context;
    const torch_device device = {CUDA_DEVICE_TYPE, (int8_t)event->device};
    if (event->kind == TA_EVENT_ALLOC)
        atomic_fetch_add(&since[event->device], ta_round_up(event->size, TA_GRANULE));
    else if (event->kind == TA_EVENT_FREE)
        atomic_fetch_sub(&since[event->device], ta_round_up(event->size, TA_GRANULE));
    if (!torch.wanted()) return;
    const uint64_t bytes = ta_round_up(event->size, TA_GRANULE);
    const uint64_t allocated =
        atomic_load(&base[event->device]) + atomic_load(&since[event->device]);
    const uint64_t reserved = ta_count_reserved(allocator, event->device);
    if (event->kind == TA_EVENT_OOM) {
        if (torch.report_out_of_memory != NULL)
            torch.report_out_of_memory((int64_t)bytes, allocated, reserved, device);
        return;
    }
    const bool freed = event->kind == TA_EVENT_FREE;
    torch.report((void *)(uintptr_t)event->addr, freed ? -(int64_t)bytes : (int64_t)bytes,
                 allocated, reserved, device);
}

static bool found(void)
{
    static const char library[] = "libc10.so";
    ta_find(library, "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE",
            &torch.report_out_of_memory);
    return ta_find(library, "_ZN3c1022memoryProfilingEnabledEv", &torch.wanted) &&
           ta_find(library, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE",
                   &torch.report);
}

ta_status ta_torch_profile(bool begins)
{
    ta_allocator *allocator = ta_process_allocator();
    ta_status status = allocator == NULL ? TA_INVALID : TA_OK;
    if (status != TA_OK || ta_process_forked()) return status;
    pthread_mutex_lock(&lock);
    if (begins && profilers == 0) {
        status = found() ? ta_add_observer_of(allocator, tell, allocator, KINDS)
                         : TA_UNSUPPORTED;
        if (status == TA_OK) note_base(allocator);
        profilers += status == TA_OK;
    } else if (begins) {
        profilers++;
    } else if (profilers > 0 && --profilers == 0) {
        status = ta_remove_observer(allocator, tell, allocator);
    }
    pthread_mutex_unlock(&lock);
    return status;
}
