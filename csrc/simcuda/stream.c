/* stream.c - streams, events and queued work, for the runtime's and the driver's functions.
 *
 * A stream's handle is the simulator's own, so that what the allocator is told and what the
 * oracle sees is the same; what CUDA remembers besides (device, flags, priority) is in a
 * table here. Thread-safe. */
#include <pthread.h>
#include <stdlib.h>

#include "simcuda.h"

typedef struct stream_info {
    int device, priority;
    unsigned flags;
} stream_info;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ta_sc_map streams;

#define POLL_US 50 /* from one question to the next */

static bool is_default(ta_stream stream) { return (uintptr_t)stream <= 2; }

static bool info_of(ta_stream stream, stream_info *info)
{
    pthread_mutex_lock(&lock);
    const stream_info *found = ta_sc_map_get(&streams, (uintptr_t)stream);
    if (found) *info = *found;
    pthread_mutex_unlock(&lock);
    return found != NULL;
}

bool ta_sc_stream_device(ta_stream stream, int *device)
{
    if (is_default(stream)) {
        *device = ta_sc_device();
        return true;
    }
    stream_info info;
    if (!info_of(stream, &info)) return false;
    *device = info.device;
    return true;
}

int ta_sc_stream_create(unsigned flags, int priority, ta_stream *stream)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return TA_CU_NOT_INITIALIZED;
    stream_info *info = malloc(sizeof *info);
    if (!info) return TA_CU_NO_MEMORY;
    *info = (stream_info){ta_sc_device(), priority, flags};
    ta_sc_use(info->device);
    ta_status status = ta_sim_stream_create(m->sim, info->device, !(flags & 1), stream);
    bool kept = false;
    if (status == TA_OK) {
        pthread_mutex_lock(&lock);
        kept = ta_sc_map_put(&streams, (uintptr_t)*stream, info);
        pthread_mutex_unlock(&lock);
        if (!kept) ta_sim_stream_destroy(m->sim, *stream);
    }
    if (!kept) free(info);
    if (status != TA_OK) return ta_sc_status(status);
    return kept ? TA_CU_OK : TA_CU_NO_MEMORY;
}

int ta_sc_stream_destroy(ta_stream stream)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return TA_CU_NOT_INITIALIZED;
    if (is_default(stream)) return TA_CU_BAD_HANDLE;
    pthread_mutex_lock(&lock);
    stream_info *info = ta_sc_map_take(&streams, (uintptr_t)stream);
    pthread_mutex_unlock(&lock);
    if (!info) return TA_CU_BAD_HANDLE;
    free(info);
    return ta_sc_status(ta_sim_stream_destroy(m->sim, stream));
}

int ta_sc_stream_priority(ta_stream stream, int *priority)
{
    stream_info info = {0, 0, 0};
    if (!is_default(stream) && !info_of(stream, &info)) return TA_CU_BAD_HANDLE;
    *priority = info.priority;
    return TA_CU_OK;
}

int ta_sc_stream_flags(ta_stream stream, unsigned *flags)
{
    stream_info info = {0, 0, 0};
    if (!is_default(stream) && !info_of(stream, &info)) return TA_CU_BAD_HANDLE;
    *flags = info.flags;
    return TA_CU_OK;
}

#define WITH_STREAM                                                                      \
    const ta_sc_machine *m = ta_sc_machine_get();                                        \
    int device;                                                                          \
    if (!m) return TA_CU_NOT_INITIALIZED;                                                \
    if (!ta_sc_stream_device(stream, &device)) return TA_CU_BAD_HANDLE

int ta_sc_stream_query(ta_stream stream)
{
    WITH_STREAM;
    int unsafe = ta_sc_unsafe();
    if (unsafe) return unsafe;
    return ta_sc_status(ta_sim_stream_query(m->sim, device, stream));
}

int ta_sc_stream_wait(ta_stream stream)
{
    WITH_STREAM;
    int unsafe = ta_sc_unsafe();
    if (unsafe) return unsafe;
    return ta_sc_status(ta_sim_stream_wait(m->sim, device, stream));
}

int ta_sc_stream_wait_event(ta_stream stream, ta_event event)
{
    WITH_STREAM;
    if (!event) return TA_CU_BAD_HANDLE;
    return ta_sc_status(ta_sim_stream_wait_event(m->sim, device, stream, event));
}

int ta_sc_launch(ta_stream stream)
{
    WITH_STREAM;
    ta_sc_use(device);
    return ta_sc_status(ta_sim_launch(m->sim, device, stream, NULL, 0, -1.0));
}

/* Runs at once: what it would wait for has, as far as contents go, happened. */
int ta_sc_host_func(ta_stream stream, void (*fn)(void *), void *data)
{
    if (!fn) return TA_CU_INVALID;
    int result = ta_sc_launch(stream);
    if (result != TA_CU_OK) return result;
    int status = 0;
    uint64_t id;
    if (ta_sc_capture_info(stream, &status, &id) == TA_CU_OK && status != 0)
        return TA_CU_OK;
    fn(data);
    return TA_CU_OK;
}

int ta_sc_device_wait(int device)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return TA_CU_NOT_INITIALIZED;
    int unsafe = ta_sc_unsafe();
    if (unsafe) return unsafe;
    uintptr_t saved[2];
    ta_status status = m->driver->enter(m->driver->self, device, saved);
    if (status != TA_OK) return ta_sc_status(status);
    status = m->driver->device_wait(m->driver->self, device);
    m->driver->leave(m->driver->self, device, saved);
    return ta_sc_status(status);
}

int ta_sc_event_create(ta_event *event)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return TA_CU_NOT_INITIALIZED;
    return ta_sc_status(m->driver->event_create(m->driver->self, ta_sc_device(), event));
}

int ta_sc_event_destroy(ta_event event)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return TA_CU_NOT_INITIALIZED;
    if (!event) return TA_CU_BAD_HANDLE;
    return ta_sc_status(m->driver->event_destroy(m->driver->self, event));
}

int ta_sc_event_record(ta_event event, ta_stream stream)
{
    WITH_STREAM;
    if (!event) return TA_CU_BAD_HANDLE;
    return ta_sc_status(m->driver->event_record(m->driver->self, event, device, stream));
}

int ta_sc_event_query(ta_event event)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return TA_CU_NOT_INITIALIZED;
    if (!event) return TA_CU_BAD_HANDLE;
    int unsafe = ta_sc_unsafe();
    if (unsafe) return unsafe;
    ta_status status = m->driver->event_query(m->driver->self, event);
    /* Time passes for who asks again and again. */
    if (status == TA_NOT_READY) ta_sim_advance_us(m->sim, POLL_US);
    return ta_sc_status(status);
}

int ta_sc_event_wait(ta_event event)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return TA_CU_NOT_INITIALIZED;
    if (!event) return TA_CU_BAD_HANDLE;
    int unsafe = ta_sc_unsafe();
    if (unsafe) return unsafe;
    return ta_sc_status(m->driver->event_wait(m->driver->self, event, TA_FOREVER_US));
}

int ta_sc_event_elapsed(float *ms, ta_event start, ta_event end)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return TA_CU_NOT_INITIALIZED;
    if (!start || !end || !ms) return TA_CU_BAD_HANDLE;
    return ta_sc_status(ta_sim_event_elapsed(m->sim, start, end, ms));
}
