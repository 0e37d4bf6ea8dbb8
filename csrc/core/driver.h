/* driver.h - the driver calls the allocator needs, as one table.
 *
 * Two implementations: csrc/driver/cuda.c (the CUDA driver) and csrc/driver/sim.c (a
 * simulated GPU). The core calls nothing else outside libc. Every call returns a
 * ta_status; a call that fails changes nothing and leaves no error behind in the driver.
 * All calls are thread-safe. Addresses and sizes are bytes. */
#ifndef TA_DRIVER_H
#define TA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../include/torcharena.h"

typedef uint64_t ta_handle;         /* physical memory; 0 is none */
typedef struct ta_event_ *ta_event; /* the driver's event; NULL is none */

#define TA_FOREVER_US 1e18

typedef enum ta_tier { TA_TIER_DEVICE = 0, TA_TIER_HOST = 1 } ta_tier;

typedef struct ta_driver ta_driver;
struct ta_driver {
    void *self; /* the implementation's own state, first argument of every call */

    ta_status (*device_count)(void *self, int *count);

    /* Brackets every other call below: makes the device's primary context current and puts
     * the thread in the relaxed capture mode, so that all of them are legal while a graph is
     * being captured. `saved` keeps what leave restores. Nests. */
    ta_status (*enter)(void *self, int device, uintptr_t saved[2]);
    void (*leave)(void *self, int device, const uintptr_t saved[2]);

    ta_status (*mem_info)(void *self, int device, uint64_t *free_bytes, uint64_t *total);
    /* True where VMM works on the device; false means plain_alloc only. */
    ta_status (*has_vmm)(void *self, int device, bool *yes);
    /* The smallest multiple that page sizes of the tier must have. */
    ta_status (*granularity)(void *self, int device, ta_tier tier, uint64_t *bytes);
    ta_status (*can_access_peer)(void *self, int device, int peer, bool *yes);

    /* Address ranges. `align` is a power of two; the address is a multiple of it. */
    ta_status (*reserve)(void *self, uint64_t size, uint64_t align, uint64_t *addr);
    ta_status (*unreserve)(void *self, uint64_t addr, uint64_t size);

    /* Physical memory: one handle is mapped whole. */
    ta_status (*create)(void *self, int device, ta_tier tier, uint64_t size,
                        ta_handle *handle);
    ta_status (*release)(void *self, ta_handle handle, uint64_t size);
    ta_status (*map)(void *self, uint64_t addr, uint64_t size, ta_handle handle);
    /* Waits for nothing: the caller knows that no queued work touches the range, which may
     * span several handles, each whole. */
    ta_status (*unmap)(void *self, uint64_t addr, uint64_t size);
    /* Read and write access to [addr, addr+size), which may span several mapped handles,
     * for each of the devices. */
    ta_status (*set_access)(void *self, uint64_t addr, uint64_t size, const int *devices,
                            int count);

    /* A page as a file descriptor that another process can import, or NULL, both: this driver
     * cannot. The descriptor is the caller's to close, and import leaves it open. What is
     * imported lives until both sides have released and unmapped it. */
    ta_status (*export_page)(void *self, ta_handle handle, int *fd);
    ta_status (*import_page)(void *self, int device, int fd, uint64_t size,
                             ta_handle *handle);

    /* Physical memory of the host's tier is made at the NUMA node of the device, and pinned.
     * Bytes of it that the machine could still give this process: the least of what is
     * available and of the room in its cgroups. */
    ta_status (*host_memory)(void *self, uint64_t *available);
    /* Streams of our own, for copies: `which` 0 and 1 are two, made when first asked for,
     * there until the process ends, ordered with no other stream. NULL, as the two calls
     * above and below may be: this driver cannot spill. */
    ta_status (*copy_stream)(void *self, int device, int which, ta_stream *stream);
    /* Queues a copy between mapped ranges that the device may touch, in either direction. */
    ta_status (*copy)(void *self, int device, ta_stream stream, uint64_t to,
                      uint64_t from, uint64_t bytes);
    /* Sets and reads bytes of mapped memory of the device, on the second of those streams; done
     * when it returns. Legal while others are being captured. `to` is any host memory. */
    ta_status (*fill)(void *self, int device, uint64_t addr, int value, uint64_t bytes);
    ta_status (*read)(void *self, int device, void *to, uint64_t from, uint64_t bytes);

    /* Without VMM: memory and its address together. */
    ta_status (*plain_alloc)(void *self, int device, uint64_t size, uint64_t *addr);
    ta_status (*plain_free)(void *self, int device, uint64_t addr);

    /* Events mark a point in a stream of the entered device. */
    ta_status (*event_create)(void *self, int device, ta_event *event);
    ta_status (*event_destroy)(void *self, ta_event event);
    ta_status (*event_record)(void *self, ta_event event, int device, ta_stream stream);
    ta_status (*event_query)(void *self, ta_event event); /* TA_OK or TA_NOT_READY */
    /* Blocks the thread until the event has passed, or so long: TA_NOT_READY. */
    ta_status (*event_wait)(void *self, ta_event event, double most_us);
    /* True while the stream is being captured into a graph. */
    ta_status (*is_capturing)(void *self, int device, ta_stream stream, bool *yes);
    /* Waits for all work of the device, by any stream. Never called while a capture that we
     * know of is open: it would break it. */
    ta_status (*device_wait)(void *self, int device);
};

#endif
