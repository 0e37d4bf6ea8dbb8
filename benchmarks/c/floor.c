/* floor.c - a plug-in for PyTorch that does nothing: blocks are addresses one after the other
 * where there is no memory, and freeing one does nothing. What an allocation costs with it, any
 * allocator costs that PyTorch is given as a plug-in. Nothing may touch a block: for timing
 * alone. They differ, since PyTorch keeps a table of them. Thread-safe. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define FIRST ((uintptr_t)1 << 44)
#define BETWEEN 512

static _Atomic uintptr_t count;

EXPORT void *floor_alloc(size_t size, int device, void *stream)
{
    (void)device, (void)stream;
    if (!size) return NULL;
    uintptr_t number = atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
    return (void *)(FIRST + (number << 32 >> 32) * BETWEEN);
}

EXPORT void floor_free(void *ptr, size_t size, int device, void *stream)
{
    (void)ptr, (void)size, (void)device, (void)stream;
}
