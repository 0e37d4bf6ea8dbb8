/* memory.c - allocations, copies and fills, for the runtime's and the driver's functions.
 *
 * Contents are real: copies and fills move bytes at once, and are queued as work on their
 * ranges. Large fills with zero give the pages back instead of touching them, since most
 * device memory is never looked at. Thread-safe. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "simcuda.h"

#define KEEP_ZERO ((size_t)256 << 10) /* fills up to this are written */
#define STRIDE ((size_t)1 << 20)      /* what is looked at as one, for having pages */

/* Set by the values mode around a copy whose contents do not matter; SIZE_MAX where they
 * do. 0: as every thread, which copies what comes from the host or goes there, and of device
 * memory up to `device_skip_above` bytes (0: all): an operation's own copies of large floats
 * are not worth their pages. */
static _Thread_local size_t skip_above;
static size_t device_skip_above;

TA_EXPORT void ta_simcuda_skip_above(size_t bytes) { skip_above = bytes; }
TA_EXPORT void ta_simcuda_device_skip_above(size_t bytes)
{
    __atomic_store_n(&device_skip_above, bytes, __ATOMIC_RELAXED);
}

static bool on_device(const void *ptr)
{
    ta_sc_range range;
    return ta_sc_range_find((uintptr_t)ptr, &range) &&
           (range.kind == TA_SC_DEVICE || range.kind == TA_SC_RESERVED);
}

static bool skipped(const void *dst, const void *src, size_t size)
{
    if (skip_above) return size > skip_above;
    size_t limit = __atomic_load_n(&device_skip_above, __ATOMIC_RELAXED);
    return limit && size > limit && on_device(dst) && on_device(src);
}

int ta_sc_malloc(int device, size_t size, void **ptr)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    *ptr = NULL;
    if (!m) return TA_CU_NOT_INITIALIZED;
    if (!size) return TA_CU_OK;
    int unsafe = ta_sc_unsafe();
    if (unsafe) return unsafe;
    uint64_t addr;
    uintptr_t saved[2];
    ta_status status = m->driver->enter(m->driver->self, device, saved);
    if (status == TA_OK) {
        status = m->driver->plain_alloc(m->driver->self, device, size, &addr);
        m->driver->leave(m->driver->self, device, saved);
    }
    if (status != TA_OK) return ta_sc_status(status);
    if (!ta_sc_range_add(addr, size, TA_SC_DEVICE, device)) {
        m->driver->plain_free(m->driver->self, device, addr);
        return TA_CU_NO_MEMORY;
    }
    ta_sc_use(device);
    *ptr = (void *)(uintptr_t)addr;
    return TA_CU_OK;
}

int ta_sc_free(void *ptr)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return TA_CU_NOT_INITIALIZED;
    if (!ptr) return TA_CU_OK;
    ta_sc_range range;
    uint64_t addr = (uintptr_t)ptr;
    if (!ta_sc_range_find(addr, &range) || range.addr != addr) return TA_CU_INVALID;
    if (range.kind == TA_SC_MANAGED) return ta_sc_host_free(ptr);
    if (range.kind != TA_SC_DEVICE) return TA_CU_INVALID;
    int unsafe = ta_sc_unsafe();
    if (unsafe) return unsafe;
    if (!ta_sc_range_remove(addr, &range)) return TA_CU_INVALID;
    uintptr_t saved[2];
    ta_status status = m->driver->enter(m->driver->self, range.device, saved);
    if (status == TA_OK) {
        /* cudaFree waits for the device. */
        m->driver->device_wait(m->driver->self, range.device);
        status = m->driver->plain_free(m->driver->self, range.device, addr);
        m->driver->leave(m->driver->self, range.device, saved);
    }
    return ta_sc_status(status);
}

int ta_sc_host_alloc(size_t size, ta_sc_kind kind, void **ptr)
{
    *ptr = NULL;
    if (!ta_sc_machine_get()) return TA_CU_NOT_INITIALIZED;
    if (!size) return TA_CU_OK;
    void *memory =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return TA_CU_NO_MEMORY;
    if (!ta_sc_range_add((uintptr_t)memory, size, kind, ta_sc_device())) {
        munmap(memory, size);
        return TA_CU_NO_MEMORY;
    }
    *ptr = memory;
    return TA_CU_OK;
}

int ta_sc_host_free(void *ptr)
{
    ta_sc_range range;
    if (!ptr) return TA_CU_OK;
    if (!ta_sc_range_find((uintptr_t)ptr, &range) || range.addr != (uintptr_t)ptr ||
        (range.kind != TA_SC_HOST && range.kind != TA_SC_MANAGED))
        return TA_CU_INVALID;
    if (!ta_sc_range_remove((uintptr_t)ptr, &range)) return TA_CU_INVALID;
    if (ta_sc_machine_get()) ta_sc_device_wait(range.device);
    return munmap(ptr, range.size) == 0 ? TA_CU_OK : TA_CU_INVALID;
}

int ta_sc_register(void *ptr, size_t size)
{
    ta_sc_range range;
    if (!ptr || !size) return TA_CU_INVALID;
    if (ta_sc_range_find((uintptr_t)ptr, &range)) return TA_CU_REGISTERED;
    if (!ta_sc_range_add((uintptr_t)ptr, size, TA_SC_REGISTERED, ta_sc_device()))
        return TA_CU_NO_MEMORY;
    return TA_CU_OK;
}

int ta_sc_unregister(void *ptr)
{
    ta_sc_range range;
    if (!ta_sc_range_find((uintptr_t)ptr, &range) || range.kind != TA_SC_REGISTERED ||
        !ta_sc_range_remove((uintptr_t)ptr, &range))
        return TA_CU_NOT_REGISTERED;
    return TA_CU_OK;
}

int ta_sc_mem_info(int device, size_t *free_bytes, size_t *total)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return TA_CU_NOT_INITIALIZED;
    uint64_t room = 0, all = 0;
    uintptr_t saved[2];
    ta_status status = m->driver->enter(m->driver->self, device, saved);
    if (status == TA_OK) {
        status = m->driver->mem_info(m->driver->self, device, &room, &all);
        m->driver->leave(m->driver->self, device, saved);
    }
    if (status != TA_OK) return ta_sc_status(status);
    ta_sc_use(device);
    if (free_bytes) *free_bytes = room;
    if (total) *total = all;
    return TA_CU_OK;
}

/* Ranges of work that leaves the bytes as they are. */
static int queue(const ta_sc_machine *m, ta_stream stream, const void *dst,
                 const void *src, size_t size)
{
    int device;
    if (!ta_sc_stream_device(stream, &device)) return TA_CU_BAD_HANDLE;
    ta_sim_range ranges[2];
    int count = 0; /* of those on the device: the host's are no GPU's to touch */
    if (on_device(dst)) ranges[count++] = (ta_sim_range){(uintptr_t)dst, size, true};
    if (src && on_device(src))
        ranges[count++] = (ta_sim_range){(uintptr_t)src, size, false};
    return ta_sc_status(ta_sim_launch(m->sim, device, stream, ranges, count, -1.0));
}

/* Zeroes without touching: the whole pages inside go back to the system. False where that
 * cannot be, and nothing was done. */
static bool drop_pages(void *dst, size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)dst + page - 1) / page * page;
    uintptr_t to = ((uintptr_t)dst + size) / page * page;
    if (madvise((void *)from, to - from, MADV_REMOVE) != 0) return false;
    memset(dst, 0, from - (uintptr_t)dst);
    memset((void *)to, 0, (uintptr_t)dst + size - to);
    return true;
}

/* True where none of the pages around these bytes exists: what nobody wrote, which reads as
 * zeros. Asked without making them. Where the system has swapped anything out it cannot be
 * told from that. */
static bool untouched(const void *from, size_t size)
{
    unsigned char present[STRIDE / 4096 + 2];
    struct sysinfo info;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = (uintptr_t)from / page * page, end = (uintptr_t)from + size;
    size_t count = (end - begin + page - 1) / page;
    if (count > sizeof present || sysinfo(&info) != 0 || info.freeswap != info.totalswap)
        return false;
    if (mincore((void *)begin, end - begin, present) != 0) return false;
    for (size_t i = 0; i < count; i++)
        if (present[i] & 1) return false;
    return true;
}

/* For the values mode: what was written of device memory, into memory that is all zeros.
 * `dst` NULL: nothing is copied. Bytes that were written, in whole strides. */
TA_EXPORT size_t ta_simcuda_copy_touched(void *dst, const void *src, size_t size)
{
    size_t touched = 0;
    for (size_t at = 0; at < size; at += STRIDE) {
        const size_t part = size - at < STRIDE ? size - at : STRIDE;
        if (untouched((const char *)src + at, part)) continue;
        touched += part;
        if (dst) memcpy((char *)dst + at, (const char *)src + at, part);
    }
    return touched;
}

/* A copy out of device memory that is large and mostly untouched: reading such pages would
 * make them. 1: done, the work is queued; 0: it is as any other copy. */
static int copy_sparse(const ta_sc_machine *m, void *dst, const void *src, size_t size,
                       ta_stream stream, int *result)
{
    int capturing = 0;
    uint64_t id;
    uintptr_t from = (uintptr_t)src, to = (uintptr_t)dst;
    if (size < 2 * STRIDE || !on_device(src) || (from < to + size && to < from + size) ||
        ta_sc_capture_info(stream, &capturing, &id) != TA_CU_OK || capturing)
        return 0;
    const bool within = on_device(dst);
    *result = queue(m, stream, dst, src, size);
    for (size_t at = 0; at < size && *result == TA_CU_OK; at += STRIDE) {
        const size_t part = size - at < STRIDE ? size - at : STRIDE;
        char *out = (char *)dst + at;
        const char *in = (const char *)src + at;
        if (!untouched(in, part))
            memcpy(out, in, part);
        else if (!within || !drop_pages(out, part))
            memset(out, 0, part);
    }
    return 1;
}

int ta_sc_copy(void *dst, const void *src, size_t size, ta_stream stream, bool wait)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return TA_CU_NOT_INITIALIZED;
    if (!size) return TA_CU_OK;
    if (!dst || !src) return TA_CU_INVALID;
    int device;
    if (!ta_sc_stream_device(stream, &device)) return TA_CU_BAD_HANDLE;
    ta_sc_use(device); /* a copy brings the context up, as a launch does */
    if (wait) {
        int unsafe = ta_sc_unsafe();
        if (unsafe) return unsafe;
    }
    int result = TA_CU_OK;
    if (skipped(dst, src, size))
        result = queue(m, stream, dst, src, size);
    else if (!copy_sparse(m, dst, src, size, stream, &result))
        result = ta_sc_status(
            ta_sim_copy(m->sim, device, stream, (uintptr_t)dst, (uintptr_t)src, size));
    if (result == TA_CU_OK && wait) result = ta_sc_stream_wait(stream);
    return result;
}

int ta_sc_copy_whole(void *dst, const void *src, size_t size, ta_stream stream)
{
    const size_t before = skip_above;
    skip_above = SIZE_MAX;
    int result = ta_sc_copy(dst, src, size, stream, false);
    skip_above = before;
    return result;
}

int ta_sc_copy_2d(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                  size_t width, size_t height, ta_stream stream, bool wait)
{
    if (width > dst_pitch || width > src_pitch) return TA_CU_INVALID;
    if (width == dst_pitch && width == src_pitch)
        return ta_sc_copy(dst, src, width * height, stream, wait);
    int result = TA_CU_OK;
    for (size_t row = 0; row < height && result == TA_CU_OK; row++)
        result = ta_sc_copy((char *)dst + row * dst_pitch,
                            (const char *)src + row * src_pitch, width, stream, false);
    if (result == TA_CU_OK && wait) result = ta_sc_stream_wait(stream);
    return result;
}

/* For the values mode: large integers become zero and take no memory. */
TA_EXPORT int ta_simcuda_zero(void *dst, size_t size)
{
    return drop_pages(dst, size) ? TA_CU_OK : TA_CU_INVALID;
}

int ta_sc_fill(void *dst, unsigned value, int unit, size_t count, ta_stream stream,
               bool wait)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return TA_CU_NOT_INITIALIZED;
    size_t size = count * (size_t)unit;
    if (!size) return TA_CU_OK;
    if (!dst) return TA_CU_INVALID;
    int device, result;
    if (!ta_sc_stream_device(stream, &device)) return TA_CU_BAD_HANDLE;
    ta_sc_use(device);
    if (wait) {
        int unsafe = ta_sc_unsafe();
        if (unsafe) return unsafe;
    }
    if (value == 0 && size > KEEP_ZERO && drop_pages(dst, size)) {
        result = queue(m, stream, dst, NULL, size);
    } else if (unit == 1) {
        result = ta_sc_status(ta_sim_fill(m->sim, device, stream, (uintptr_t)dst,
                                          (int)(value & 255), size));
    } else {
        result = queue(m, stream, dst, NULL, size);
        for (size_t i = 0; i < count && result == TA_CU_OK; i++)
            memcpy((char *)dst + i * (size_t)unit, &value, (size_t)unit);
    }
    if (result == TA_CU_OK && wait) result = ta_sc_stream_wait(stream);
    return result;
}
