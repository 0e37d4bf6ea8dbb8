/* streams.c - tells torch's own streams from those that others may destroy.
 *
 * The core asks at a stream's first sight, and again at a free on one that does not last.
 * torch never destroys the streams of its pool, so an event can be recorded on them at any
 * later time. One of others is known to exist where it is the thread's current stream, since
 * torch would launch on it; else it may be gone, and naming it is undefined. Thread-safe; may
 * be called with no lock of torch's held, which is so in every hook.
 *
 * A torch stream is known by an id. Ids with the lowest bit set are of torch's pool; above
 * it come four bits of priority (1: the usual one, 2: high, ...) and five of the place in
 * the pool; 0 is the default stream; another even id is the handle of a stranger's stream.
 * So: first the thread's current stream, which is the usual asker, then the pool's places.
 * An id that does not decode this way, as a later torch might have, is a stranger. */
#include <pthread.h>
#include <stdint.h>

#include "../core/driver.h"
#include "../driver/cuda.h"
#include "find.h"
#include "mempool.h"
#include "process.h"
#include "status.h"
#include "torch.h"

/* c10::Stream, which c10::cuda::CUDAStream wraps: plain, so it comes in two registers. */
typedef struct torch_stream {
    int8_t device_type;
    int8_t device_index;
    int64_t id;
} torch_stream;

#define CUDA_DEVICE_TYPE 1
#define POOL_PLACES 32

static struct {
    torch_stream (*current)(int8_t device);
    void *(*handle)(const torch_stream *stream);
} torch;

static bool ready(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (torch.current == NULL || torch.handle == NULL) {
        ta_find("libc10_cuda.so", "_ZN3c104cuda20getCurrentCUDAStreamEa", &torch.current);
        ta_find("libc10_cuda.so", "_ZNK3c104cuda10CUDAStream6streamEv", &torch.handle);
    }
    bool found = torch.current != NULL && torch.handle != NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

const char *ta_streams_status(void)
{
    return ready()
               ? "ok"
               : "no c10::cuda::getCurrentCUDAStream: an event is recorded at every free "
                 "on streams other than the default one";
}

static bool in_pool(int64_t id) { return (id & 1) != 0; }

ta_stream_life ta_torch_stream_life(void *context, int device, ta_stream stream)
{
    (void)context;
    uintptr_t handle = (uintptr_t)stream;
    if (handle <= 1) return TA_STREAM_LASTS; /* the legacy default stream */
    if (handle == 2)
        return TA_STREAM_EXISTS; /* the per-thread one ends with its thread */
    if (device < 0 || device > INT8_MAX || !ready()) return TA_STREAM_EXISTS;
    torch_stream current = torch.current((int8_t)device);
    if (current.device_type != CUDA_DEVICE_TYPE || current.device_index != device)
        return TA_STREAM_EXISTS; /* a torch that we do not know */
    if (torch.handle(&current) == stream)
        return in_pool(current.id) ? TA_STREAM_LASTS : TA_STREAM_EXISTS;
    /* Both priorities that every torch accepts: asking for a further one would throw. */
    for (int64_t priority = 1; priority <= 2; priority++) {
        for (int64_t place = 0; place < POOL_PLACES; place++) {
            torch_stream candidate = {.device_type = CUDA_DEVICE_TYPE,
                                      .device_index = (int8_t)device,
                                      .id = place << 5 | priority << 1 | 1};
            if (torch.handle(&candidate) == stream) return TA_STREAM_LASTS;
        }
    }
    return TA_STREAM_STRANGE;
}

/* Captures of torch are on streams of its pool. The default stream cannot be captured. */
static bool capturing_on(const ta_driver *driver, int device)
{
    bool yes = false;
    for (int64_t priority = 1; priority <= 2 && !yes; priority++) {
        for (int64_t place = 0; place < POOL_PLACES && !yes; place++) {
            torch_stream one = {.device_type = CUDA_DEVICE_TYPE,
                                .device_index = (int8_t)device,
                                .id = place << 5 | priority << 1 | 1};
            bool it = false;
            yes = driver->is_capturing(driver->self, device, torch.handle(&one), &it) ==
                      TA_OK &&
                  it;
        }
    }
    return yes;
}

bool ta_mempool_capturing(void)
{
    ta_allocator *allocator = ta_process_allocator();
    const ta_driver *driver = ta_cuda_driver();
    bool yes = false;
    if (allocator == NULL || !ready()) return false;
    for (int device = 0; device < TA_MAX_DEVICES && !yes; device++) {
        uintptr_t saved[2];
        if (!ta_device_used(allocator, device)) continue;
        if (driver->enter(driver->self, device, saved) != TA_OK) continue;
        yes = capturing_on(driver, device);
        driver->leave(driver->self, device, saved);
    }
    return yes;
}

int ta_test_stream_life(int device, ta_stream stream)
{
    return (int)ta_torch_stream_life(NULL, device, stream);
}
