/* chunk.h - a range of addresses cut into page slots. Guarded by its arena's lock. */
#ifndef TA_CHUNK_H
#define TA_CHUNK_H

#include "types.h"

/* Spare or new structure for `size` bytes at `addr`, no slot mapped; NULL: no host memory.
 * Device's `pages` held. */
ta_chunk *ta_chunk_create(ta_device *device, uint64_t addr, uint64_t size,
                          uint64_t page_bytes);
/* Keeps the structure as a spare: a stray free may still look at it. */
void ta_chunk_retire(ta_device *device, ta_chunk *chunk);
uint32_t ta_chunk_mapped_words(const ta_chunk *chunk, uint32_t low, uint32_t high);
/* Mapped slots in [low, high). */
static inline uint32_t ta_chunk_mapped(const ta_chunk *chunk, uint32_t low, uint32_t high)
{
    if (low >= high) return 0;
    const uint32_t count = high - low;
    if (low / 64 == (high - 1) / 64) { /* mostly all are */
        const uint64_t all = ~(uint64_t)0 >> (64 - count) % 64;
        if ((chunk->mapped[low / 64] >> low % 64 & all) == all) return count;
    }
    return ta_chunk_mapped_words(chunk, low, high);
}
void ta_chunk_set(ta_chunk *chunk, uint32_t slot, ta_handle page);
/* Another process has the slot's page. The arena's lock is held. */
static inline bool ta_chunk_handed(const ta_chunk *c, uint32_t slot)
{
    return c->handed && c->handed[slot / 64] >> slot % 64 & 1;
}
ta_handle ta_chunk_clear(ta_chunk *chunk, uint32_t slot);
static inline bool ta_chunk_has(const ta_chunk *chunk, uint32_t slot)
{
    return chunk->mapped[slot / 64] >> slot % 64 & 1;
}
/* From address to chunk, for every address of every chunk. `pages` held to set and clear;
 * set is false where there is no host memory. No lock needed to look. */
bool ta_lookup_set(ta_device *device, ta_chunk *chunk);
void ta_lookup_clear(ta_device *device, const ta_chunk *chunk);
ta_chunk *ta_lookup(ta_allocator *allocator, uint64_t addr);

#endif
