/* ranges.c - the memory we handed out, by address.
 *
 * A sorted array under one lock: pointer attributes look up any address inside a range, and
 * ranges are few (segments, pinned buffers, reservations), so an insertion that moves the
 * tail is cheap. Thread-safe.
 *
 * ranges[i].addr + ranges[i].size <= ranges[i + 1].addr */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "simcuda.h"

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static ta_sc_range *ranges;
static size_t count, capacity;
static uint64_t serial;

/* Number of ranges that begin at or below addr. */
static size_t below(uint64_t addr)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].addr <= addr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool ta_sc_range_add(uint64_t addr, uint64_t size, ta_sc_kind kind, int device)
{
    bool ok = true;
    pthread_rwlock_wrlock(&lock);
    if (count == capacity) {
        size_t more = capacity ? 2 * capacity : 256;
        ta_sc_range *grown = realloc(ranges, more * sizeof *grown);
        if (grown) {
            ranges = grown;
            capacity = more;
        } else {
            ok = false;
        }
    }
    if (ok) {
        size_t at = below(addr);
        memmove(ranges + at + 1, ranges + at, (count - at) * sizeof *ranges);
        ranges[at] = (ta_sc_range){addr, size, kind, device, ++serial};
        count++;
    }
    pthread_rwlock_unlock(&lock);
    return ok;
}

bool ta_sc_range_find(uint64_t addr, ta_sc_range *range)
{
    pthread_rwlock_rdlock(&lock);
    size_t at = below(addr);
    bool found = at && addr - ranges[at - 1].addr < ranges[at - 1].size;
    if (found) *range = ranges[at - 1];
    pthread_rwlock_unlock(&lock);
    return found;
}

bool ta_sc_range_remove(uint64_t addr, ta_sc_range *range)
{
    pthread_rwlock_wrlock(&lock);
    size_t at = below(addr);
    bool found = at && ranges[at - 1].addr == addr;
    if (found) {
        *range = ranges[at - 1];
        memmove(ranges + at - 1, ranges + at, (count - at) * sizeof *ranges);
        count--;
    }
    pthread_rwlock_unlock(&lock);
    return found;
}

void ta_sc_range_set_device(uint64_t addr, int device)
{
    pthread_rwlock_wrlock(&lock);
    size_t at = below(addr);
    if (at && addr - ranges[at - 1].addr < ranges[at - 1].size)
        ranges[at - 1].device = device;
    pthread_rwlock_unlock(&lock);
}
