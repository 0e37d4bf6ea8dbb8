/* pools.c - the hooks of CUDA graph pools.
 *
 * torch calls begin with a filter that says which streams' allocations belong to the pool.
 * It is a std::function that dies when begin returns, so it is cloned through its manager,
 * as libstdc++ lays it out: 16 bytes of the callable, the manager, the invoker. The clone
 * lives until end gives it back. Some of torch's callers hold the GIL, which is dropped
 * where the core may wait. Thread-safe; a refusal is thrown as torch's error. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../driver/cuda.h"
#include "gil.h"
#include "process.h"
#include "torch.h"

#define TEXT(x) #x
#define NUMBER(x) TEXT(x)

enum { CLONE = 2, DESTROY = 3 }; /* operations of the manager */

typedef struct cxx_function {
    void *callable[2];
    bool (*manager)(void *to, const void *from, int operation);
    bool (*invoker)(const void *callable, ta_stream *stream);
} cxx_function;

static bool accept(void *context, ta_stream stream)
{
    cxx_function *filter = context;
    if (filter->invoker == NULL) return true; /* an empty function: everything */
    return filter->invoker(filter->callable, &stream);
}

static void destroy(cxx_function *filter)
{
    if (filter == NULL) return;
    if (filter->manager != NULL)
        filter->manager(filter->callable, filter->callable, DESTROY);
    free(filter);
}

static void refuse(const char *what, int device, const char *why)
{
    char text[320];
    snprintf(text, sizeof text, "torcharena: %s of a CUDA graph's pool on GPU %d: %s",
             what, device, why);
    ta_throw_error(text);
}

static const char *why_not_begun(ta_status status)
{
    static const char full[] =
        "at most " NUMBER(TA_OPEN_POOLS) " captures and MemPools can be in use at once; "
                                         "end one first";
    static const char busy[] = "a capture or use_mem_pool allocates to this pool "
                               "already; wait until it has ended, "
                               "or take another pool";
    if (status == TA_BUSY) return busy;
    return status == TA_INVALID ? full : ta_status_text(status);
}

/* A status that the process's end or a fork explains: nothing to report. */
static bool excused(ta_status status)
{
    return status == TA_OK || status == TA_GONE || status == TA_FORKED;
}

void ta_torch_pool_begin(int device, ta_mempool_id id, const void *filter)
{
    ta_allocator *allocator = ta_process_allocator();
    if (allocator == NULL) return;
    cxx_function *clone = calloc(1, sizeof *clone);
    if (clone == NULL) {
        refuse("the beginning", device, ta_status_text(TA_NO_HOST_MEMORY));
        return;
    }
    const cxx_function *original = filter;
    if (original != NULL && original->manager != NULL) {
        original->manager(clone->callable, original->callable, CLONE);
        clone->manager = original->manager;
        clone->invoker = original->invoker;
    }
    ta_pool_id pool = {id.a, id.b};
    void *thread = ta_gil_drop(); /* others may have to launch what is waited for */
    ta_status status = ta_pool_begin(allocator, device, pool, accept, clone);
    ta_gil_take(thread);
    if (status == TA_OK) return;
    destroy(clone);
    refuse("the beginning", device, why_not_begun(status));
}

void ta_torch_pool_end(int device, ta_mempool_id id)
{
    ta_allocator *allocator = ta_process_allocator();
    if (allocator == NULL) return;
    void *context = NULL;
    ta_pool_id pool = {id.a, id.b};
    void *thread = ta_gil_drop(); /* a filter under way may want it */
    ta_status status = ta_pool_end(allocator, device, pool, &context);
    ta_gil_take(thread);
    destroy(context);
    if (!excused(status)) refuse("the end", device, ta_status_text(status));
}

void ta_torch_pool_release(int device, ta_mempool_id id)
{
    ta_allocator *allocator = ta_process_allocator();
    if (allocator == NULL) return;
    ta_pool_id pool = {id.a, id.b};
    ta_status status = ta_pool_release(allocator, device, pool);
    /* Called by destructors, out of which nothing may be thrown: also by that of a MemPool
     * that was never begun, of which we know nothing. */
    if (!excused(status) && status != TA_INVALID)
        ta_say("a CUDA graph's pool on GPU %d could not be released: %s", device,
               ta_status_text(status));
}
