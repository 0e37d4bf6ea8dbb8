/* sim_pages.c - real memory behind the simulated machine's addresses.
 *
 * All pages are parts of one memfd, each at an offset of its own that is never used
 * twice, so that pages made in a row and mapped in a row share one mapping of the kernel
 * (Linux allows 65,530). A range is shut (PROT_NONE) until access is set and after unmap.
 * Forked children do not get the mappings. Called by sim.c and the files of
 * sim_memory.h under the machine's lock; with no_backing addresses are numbers and nothing
 * is done. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim_internal.h"

bool ta_sim_pages_create(ta_sim *sim)
{
    sim->memfd = -1;
    if (sim->config.no_backing) return true;
    sim->memfd = memfd_create("torcharena-sim", MFD_CLOEXEC);
    /* Sparse: only what is touched takes memory. */
    return sim->memfd >= 0 && ftruncate(sim->memfd, (off_t)1 << 60) == 0;
}

void ta_sim_pages_destroy(ta_sim *sim)
{
    if (sim->memfd >= 0) close(sim->memfd);
    sim->memfd = -1;
}

static void *shut_range(void *at, uint64_t size, int fixed)
{
    return mmap(at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed,
                -1, 0);
}

uint64_t ta_sim_pages_reserve(ta_sim *sim, uint64_t wish, uint64_t size, uint64_t align)
{
    if (sim->config.no_backing) return size > UINT64_MAX / 2 - wish ? 0 : wish;
    if (size > (uint64_t)1 << 47 || align > (uint64_t)1 << 46) return 0;
    uint8_t *got = shut_range((void *)(uintptr_t)wish, size, 0);
    if (got == MAP_FAILED) return 0;
    if (((uint64_t)(uintptr_t)got & (align - 1)) == 0) return (uint64_t)(uintptr_t)got;
    /* Something else is there, and the kernel's choice is not aligned. */
    munmap(got, size);
    got = shut_range(NULL, size + align, 0);
    if (got == MAP_FAILED) return 0;
    uint64_t at = ((uint64_t)(uintptr_t)got + align - 1) & ~(align - 1);
    uint64_t before = at - (uint64_t)(uintptr_t)got, after = align - before;
    if (before) munmap(got, before);
    if (after) munmap(got + before + size, after);
    return at;
}

void ta_sim_pages_unreserve(ta_sim *sim, uint64_t addr, uint64_t size)
{
    if (!sim->config.no_backing) munmap((void *)(uintptr_t)addr, size);
}

bool ta_sim_pages_open(ta_sim *sim, uint64_t addr, uint64_t size, int fd, uint64_t offset)
{
    if (sim->config.no_backing) return true;
    void *at = (void *)(uintptr_t)addr;
    if (mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
             fd < 0 ? sim->memfd : fd, (off_t)offset) == MAP_FAILED)
        return false;
    madvise(at, size, MADV_DONTFORK);
    return true;
}

bool ta_sim_pages_shut(ta_sim *sim, uint64_t addr, uint64_t size)
{
    if (sim->config.no_backing) return true;
    return shut_range((void *)(uintptr_t)addr, size, MAP_FIXED) != MAP_FAILED;
}

/* place = offset | size << 40, both in granules */
#define PLACE_BITS 40

int ta_sim_pages_export(ta_sim *sim, uint64_t offset, uint64_t size)
{
    char path[40];
    if (sim->config.no_backing) return -1;
    snprintf(path, sizeof path, "/proc/self/fd/%d", sim->memfd);
    const int fd = open(path, O_RDWR | O_CLOEXEC); /* anew: with a place of its own */
    const uint64_t place = offset / TA_SIM_GRANULARITY | size / TA_SIM_GRANULARITY
                                                             << PLACE_BITS;
    if (fd >= 0 && lseek(fd, (off_t)place, SEEK_SET) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

bool ta_sim_pages_exported(int fd, uint64_t *offset, uint64_t *size)
{
    const off_t place = lseek(fd, 0, SEEK_CUR);
    if (place < 0) return false;
    *offset = ((uint64_t)place & (((uint64_t)1 << PLACE_BITS) - 1)) * TA_SIM_GRANULARITY;
    *size = ((uint64_t)place >> PLACE_BITS) * TA_SIM_GRANULARITY;
    return *size != 0;
}

void ta_sim_pages_drop(ta_sim *sim, uint64_t offset, uint64_t size)
{
    if (sim->config.no_backing) return;
    (void)!fallocate(sim->memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                     (off_t)offset, (off_t)size);
}

/* The first byte at or after `offset` that the file has, or has not; `end` at most. */
static uint64_t seek(const ta_sim *sim, uint64_t offset, uint64_t end, int whence)
{
    const off_t at = lseek(sim->memfd, (off_t)offset, whence);
    return at < 0 || (uint64_t)at > end ? end : (uint64_t)at;
}

void ta_sim_pages_copy(ta_sim *sim, uint64_t to, uint64_t to_offset, uint64_t from,
                       uint64_t from_offset, uint64_t size)
{
    const uint64_t end = from_offset + size, to_end = to_offset + size;
    if (seek(sim, to_offset, to_end, SEEK_DATA) < to_end)
        ta_sim_pages_drop(sim, to_offset, size);
    for (uint64_t at = from_offset, after; at < end; at = after) {
        at = seek(sim, at, end, SEEK_DATA);
        after = seek(sim, at, end, SEEK_HOLE);
        if (at == end) break;
        memcpy((void *)(uintptr_t)(to + (at - from_offset)),
               (const void *)(uintptr_t)(from + (at - from_offset)), after - at);
    }
}
