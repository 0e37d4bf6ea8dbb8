/* checkpoint.c - setting a graph pool back, where torch asks for it.
 *
 * torch._C._cuda_setCheckpointPoolState calls the virtual function of the allocator that is
 * here, and then gives storages their deleters, or takes them away, by what comes back: the
 * addresses that were freed, and a DataPtr for each block that lives. torch's own state
 * object, which only its own allocator can make, is not looked at: what is wanted stands in
 * a variable of the thread, put there by Python right before (csrc/py/pools.c).
 *
 * The DataPtrs are torch's own: its allocate() is called for each block, and the hook that it
 * calls is promised the block. So torch's books of addresses have them too. What throws in
 * there comes through here as an exception, past what stands behind it: a promise that was
 * not taken is taken back when Python has it (ta_torch_checkpoint_next). */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"
#include "find.h"
#include "gil.h"
#include "process.h"
#include "torch.h"

#define ALLOCATE                                                                         \
    "_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator8allocateEm"

/* c10::DataPtr and CheckpointDelta as torch lays them out. Both are returned in memory, as C
 * does with what is so large. */
typedef struct data_ptr {
    void *data;
    void *deleter, *context;
    int8_t device[8];
} data_ptr;
typedef struct cxx_vector {
    void *begin, *end, *room;
} cxx_vector;
typedef struct delta {
    cxx_vector freed, allocated; /* of void *, of data_ptr */
} delta;

typedef data_ptr allocate_function(void *object, size_t size);
static struct {
    allocate_function *allocate;
    void *(*operator_new)(size_t size);
} cxx;

static _Thread_local struct {
    bool set;
    ta_pool_id id;
    const ta_pool_block *blocks;
    size_t count;
} next;

void ta_torch_checkpoint_next(ta_pool_id id, const ta_pool_block *blocks, size_t count)
{
    next.set = blocks != NULL;
    next.id = id;
    next.blocks = blocks;
    next.count = count;
    ta_allocator *allocator = ta_process_allocator();
    if (blocks == NULL && allocator != NULL) ta_pool_promise(allocator, 0, NULL, 0);
}

static void refuse(int device, const char *why)
{
    char text[320];
    snprintf(text, sizeof text,
             "torcharena: a CUDA graph pool on GPU %d cannot be set back: %s; "
             "torch._inductor.config.triton.cudagraph_trees = False does without",
             device, why);
    ta_throw_error(text);
}

/* The pool's live blocks before; NULL with why. */
static ta_pool_block *living(ta_allocator *allocator, int device, size_t *count,
                             const char **why)
{
    size_t room = 64;
    for (;;) {
        ta_pool_block *blocks = malloc(room * sizeof *blocks);
        ta_status status = blocks == NULL ? TA_NO_HOST_MEMORY
                                          : ta_pool_blocks(allocator, device, next.id,
                                                           blocks, room, count);
        if (status == TA_OK && *count <= room) return blocks;
        free(blocks);
        if (status != TA_OK) {
            *why = ta_status_text(status);
            return NULL;
        }
        room = *count + 64;
    }
}

/* An array of C++'s; NULL where it is empty. */
static void *array(cxx_vector *vector, size_t count, size_t size)
{
    if (count == 0) return NULL;
    vector->begin = cxx.operator_new(count * size);
    vector->end = vector->room = (char *)vector->begin + count * size;
    return vector->begin;
}

/* The virtual function. The state is a reference to a std::shared_ptr. */
static delta set_state(void *object, int8_t device, const void *state)
{
    (void)state;
    delta result = {{NULL, NULL, NULL}, {NULL, NULL, NULL}};
    ta_allocator *allocator = ta_process_allocator();
    const char *why = "its state is not of torcharena";
    size_t before = 0;
    ta_pool_block *lived = NULL;
    if (allocator != NULL && next.set) lived = living(allocator, device, &before, &why);
    if (lived == NULL) {
        refuse(device, why);
        return result;
    }
    void *thread = ta_gil_drop(); /* the device is waited for */
    ta_status status =
        ta_pool_restore(allocator, device, next.id, next.blocks, next.count);
    ta_gil_take(thread);
    if (status != TA_OK) {
        free(lived);
        refuse(device, status == TA_BUSY      ? "a block of it is used by another stream"
                       : status == TA_INVALID ? "it does not have that memory any more"
                                              : ta_status_text(status));
        return result;
    }
    void **freed = array(&result.freed, before, sizeof *freed);
    for (size_t i = 0; i < before; i++) freed[i] = (void *)(uintptr_t)lived[i].addr;
    free(lived);
    data_ptr *allocated = array(&result.allocated, next.count, sizeof *allocated);
    for (size_t i = 0; i < next.count; i++) {
        ta_pool_promise(allocator, device, (void *)(uintptr_t)next.blocks[i].addr,
                        next.blocks[i].requested);
        allocated[i] = cxx.allocate(object, next.blocks[i].requested);
    }
    ta_pool_promise(allocator, device, NULL, 0);
    return result;
}

const void *ta_torch_checkpoint_function(void)
{
    if (!ta_find("libtorch_cuda.so", ALLOCATE, &cxx.allocate) ||
        !ta_find("libstdc++.so.6", "_Znwm", &cxx.operator_new))
        return NULL;
    return (const void *)(uintptr_t)set_state;
}
