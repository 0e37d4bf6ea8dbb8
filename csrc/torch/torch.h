/* torch.h - what torch calls, and what we call of torch's.
 *
 * torch is not linked: its functions are found at run time, in the libraries that Python
 * has loaded already. Where one is missing, ta_torch_status says so, for `doctor`. */
#ifndef TA_TORCH_H
#define TA_TORCH_H

#include "../include/torcharena.h"

/* --- the hooks, with torch's signatures --------------------------------------------- */
typedef struct ta_mempool_id {
    unsigned long long a, b;
} ta_mempool_id;

/* Raises torch.OutOfMemoryError, or RuntimeError where there is no torch.OutOfMemoryError
 * or the failure is another; without torch returns NULL. */
TA_API void *ta_torch_alloc(size_t size, int device, ta_stream stream);
/* Any address will do, NULL and strangers too: the size and the stream are not believed. */
TA_API void ta_torch_free(void *ptr, size_t size, int device, ta_stream stream);
TA_API void ta_torch_init(int device_count);
TA_API void ta_torch_empty_cache(void);
TA_API void ta_torch_memory_fraction(double fraction, int device);
TA_API void *ta_torch_base_address(void *ptr, size_t *size);
TA_API void ta_torch_record_stream(void *ptr, ta_stream stream);
/* `filter` is a std::function<bool(cudaStream_t)> that dies on return. */
TA_API void ta_torch_pool_begin(int device, ta_mempool_id id, const void *filter);
TA_API void ta_torch_pool_end(int device, ta_mempool_id id);
TA_API void ta_torch_pool_release(int device, ta_mempool_id id);

/* --- throwing ------------------------------------------------------------------------- */
/* Each throws a C++ exception of torch's through the caller, which must hold no lock and
 * nothing to undo. They return only where torch's functions are not to be found. */
void ta_throw_out_of_memory(const char *text);
void ta_throw_error(const char *text);
/* Tests: given to torch as the hook of empty_cache, they show without a GPU what Python
 * gets. */
TA_API void ta_test_throw_out_of_memory(void);
TA_API void ta_test_throw_error(void);

/* --- streams --------------------------------------------------------------------------- */
/* What is known of the stream's life: torch never destroys those of its pool, and the one
 * that the thread works on exists. A ta_stream_asked. */
ta_stream_life ta_torch_stream_life(void *context, int device, ta_stream stream);

TA_API int ta_test_stream_life(int device, ta_stream stream);

/* --- virtual functions that have no hook ------------------------------------------------ */
/* Replaces them in the allocator object that torch uses now. Once is enough; again does
 * nothing. Comes after change_current_allocator; the init hook calls it. */
void ta_vtable_install(void);

/* --- what was found --------------------------------------------------------------------- */
typedef enum ta_torch_item {
    TA_TORCH_THROW = 0,       /* torch.OutOfMemoryError from C */
    TA_TORCH_STREAMS = 1,     /* whose stream it is */
    TA_TORCH_CACHE_INFO = 2,  /* cudnn.benchmark asks it */
    TA_TORCH_MEMCPY = 3,      /* copies between devices that cannot reach each other */
    TA_TORCH_PEER_ACCESS = 4, /* enablePeerAccess */
    TA_TORCH_CHECKPOINT = 5,  /* setting a graph pool back: CUDA graph trees */
    TA_TORCH_SHARING = 6,     /* CUDA tensors handed to other processes */
    TA_TORCH_ITEMS = 7
} ta_torch_item;
const char *ta_torch_item_name(ta_torch_item item);
/* "ok", or what is missing and what that means. Valid for ever. */
const char *ta_torch_status(ta_torch_item item);

#endif
