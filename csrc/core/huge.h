/* huge.h - host memory in pieces of 2 MiB, in which the kernel may put one huge page: what is
 * spread over many is found with few walks through its tables. Freed by free(). */
#ifndef TA_HUGE_H
#define TA_HUGE_H

#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>

#define TA_HUGE ((size_t)2 << 20)

/* A multiple of TA_HUGE bytes, of any contents; NULL: no host memory. Where the kernel gives no
 * huge pages, only what is touched is taken. */
static inline void *ta_huge_alloc(size_t bytes)
{
    void *memory = aligned_alloc(TA_HUGE, bytes);
    if (memory) madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

#endif
