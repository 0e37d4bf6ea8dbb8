/* hooks.c - the functions that torch's CUDAPluggableAllocator calls.
 *
 * They translate, nothing more. torch calls them from any thread, with or without the GIL,
 * and with no lock of its own held. alloc may throw torch's exceptions; free may not, and
 * reports nothing: what is wrong with an address there was wrong before, and only where
 * blocks are guarded is it told, by the next alloc. */
#include <stdio.h>

#include "../core/usage/usage.h"
#include "../driver/cuda.h"
#include "guard.h"
#include "process.h"
#include "torch.h"

#define OOM_TEXT 4096

#define NO_DEVICE (-1) /* it is not known which */

static void refuse(const char *what, int device, ta_status status)
{
    char text[512];
    char place[24] = "";
    int code = ta_cuda_last_error();
    if (device != NO_DEVICE) snprintf(place, sizeof place, " on GPU %d", device);
    int length = snprintf(text, sizeof text, "torcharena: %s%s failed: %s", what, place,
                          ta_status_text(status));
    if (status == TA_DRIVER && code != 0 && length > 0 && (size_t)length < sizeof text)
        snprintf(text + length, sizeof text - (size_t)length, " (CUDA error %d)", code);
    ta_throw_error(text);
}

/* Kept out of alloc's own frame: the text is large, and this is rare. */
__attribute__((noinline, cold)) static void *fail(size_t size, int device,
                                                  ta_status status, const ta_oom *oom)
{
    if (status == TA_OUT_OF_MEMORY) {
        char text[OOM_TEXT];
        int length = ta_oom_text(oom, text, sizeof text);
        ta_usage *usage = ta_process_usage();
        if (usage != NULL && length > 0 && (size_t)length < sizeof text)
            ta_usage_oom_text(usage, device, text + length, sizeof text - (size_t)length);
        ta_throw_out_of_memory(text);
    } else if (status == TA_FORKED) {
        ta_throw_error(
            "torcharena: CUDA memory was asked for in a forked child, where CUDA "
            "does not work; start the process with the spawn or forkserver "
            "method");
    } else if (status == TA_GUARDED) {
        char text[8 * TA_GUARD_TEXT];
        ta_guard_tell_all(text, sizeof text);
        /* Another thread may have been told it all meanwhile. */
        ta_throw_error(text[0] != '\0' ? text : "torcharena guard: see the error before");
    } else if (ta_process_allocator() == NULL) {
        ta_throw_error("torcharena: the allocator was not created before its first use; "
                       "call torcharena.enable()");
    } else {
        char what[64];
        snprintf(what, sizeof what, "allocating %zu bytes", size);
        refuse(what, device, status);
    }
    return NULL;
}

void *ta_torch_alloc(size_t size, int device, ta_stream stream)
{
    ta_allocator *allocator = ta_process_allocator();
    if (size == 0) return NULL;
    ta_oom oom;
    void *ptr = NULL;
    ta_status status = TA_INVALID;
    if (__builtin_expect(allocator != NULL, 1))
        status = ta_alloc(allocator, size, device, stream, &ptr, &oom);
    if (__builtin_expect(status == TA_OK, 1)) return ptr;
    return fail(size, device, status, &oom);
}

void ta_torch_free(void *ptr, size_t size, int device, ta_stream stream)
{
    (void)size;
    (void)device;
    (void)stream;
    ta_allocator *allocator = ta_process_allocator();
    if (ptr != NULL && allocator != NULL && ta_free(allocator, ptr) == TA_INVALID)
        ta_guard_bad_free(allocator, ptr);
}

/* torch tells how many devices there are; ours are looked at when first used. By now torch
 * has our hooks and its allocator is the object that it will keep. */
void ta_torch_init(int device_count)
{
    (void)device_count;
    ta_vtable_install();
}

void ta_torch_empty_cache(void)
{
    ta_allocator *allocator = ta_process_allocator();
    if (allocator == NULL) return;
    uint64_t released = 0;
    ta_guard_look(allocator);
    ta_status status = ta_trim(allocator, -1, &released);
    if (status == TA_DRIVER || status == TA_NO_HOST_MEMORY)
        ta_say("empty_cache did not give everything back: %s", ta_status_text(status));
}

void ta_torch_memory_fraction(double fraction, int device)
{
    ta_allocator *allocator = ta_process_allocator();
    ta_status status = TA_INVALID;
    if (allocator != NULL && fraction >= 1.0) {
        status = ta_set_limit(allocator, device, TA_LIMIT_FRACTION, TA_NO_LIMIT);
    } else if (allocator != NULL && fraction >= 0.0) {
        uint64_t free_bytes = 0;
        uint64_t total = 0;
        status = ta_device_memory(allocator, device, &free_bytes, &total);
        if (status == TA_OK)
            status = ta_set_limit(allocator, device, TA_LIMIT_FRACTION,
                                  (uint64_t)(fraction * (double)total));
    }
    if (status != TA_OK) refuse("setting the memory fraction", device, status);
}

void *ta_torch_base_address(void *ptr, size_t *size)
{
    ta_allocator *allocator = ta_process_allocator();
    void *base = ptr;
    size_t bytes = 0;
    if (allocator != NULL && ta_base_address(allocator, ptr, &base, &bytes) != TA_OK)
        base = ptr;
    if (size != NULL) *size = bytes;
    return base;
}

void ta_torch_record_stream(void *ptr, ta_stream stream)
{
    ta_allocator *allocator = ta_process_allocator();
    if (ptr == NULL || allocator == NULL) return;
    ta_status status = ta_record_stream(allocator, ptr, stream);
    /* Memory of others is none of ours; for the rest, silence would be a race. */
    if (status != TA_OK && status != TA_INVALID && status != TA_FORKED &&
        status != TA_GONE)
        refuse("record_stream", NO_DEVICE, status);
}
