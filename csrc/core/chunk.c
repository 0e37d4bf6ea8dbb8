/* chunk.c - page slots of a range, and the way from an address to its chunk.
 *
 * Called by arena.c and pages.c under the locks chunk.h names; ta_lookup alone needs none.
 * Structures are never freed before the allocator is, so that a stray address given to free
 * finds a structure that says it is spare instead of freed memory. */
#include "chunk.h"

#include <stdlib.h>
#include <string.h>

ta_chunk *ta_chunk_create(ta_device *device, uint64_t addr, uint64_t size,
                          uint64_t page_bytes)
{
    ta_chunk *c = device->spare_chunks;
    if (c)
        device->spare_chunks = c->next;
    else if (!(c = calloc(1, sizeof *c)))
        return NULL;
    uint32_t slots = (uint32_t)(size / page_bytes);
    ta_handle *pages = calloc(slots, sizeof *pages);
    uint64_t *mapped = calloc((slots + 63u) / 64u, sizeof *mapped);
    if (!pages || !mapped) {
        free(pages);
        free(mapped);
        c->next = device->spare_chunks;
        device->spare_chunks = c;
        return NULL;
    }
    *c = (ta_chunk){.addr = addr, .size = size, .page_bytes = page_bytes, .pages = pages,
                    .mapped = mapped, .slots = slots,
                    .shift = (unsigned)__builtin_ctzll(page_bytes)};
    return c;
}

void ta_chunk_retire(ta_device *device, ta_chunk *c)
{
    free(c->pages);
    free(c->mapped);
    *c = (ta_chunk){.next = device->spare_chunks};
    device->spare_chunks = c;
}

uint32_t ta_chunk_mapped(const ta_chunk *c, uint32_t low, uint32_t high)
{
    uint32_t count = 0;
    while (low < high) {
        uint32_t end = (low / 64 + 1) * 64;
        uint64_t word = c->mapped[low / 64] >> low % 64;
        if (end > high) {
            word &= ((uint64_t)1 << (high - low)) - 1; /* fewer than 64 are left */
            end = high;
        }
        count += (uint32_t)__builtin_popcountll(word);
        low = end;
    }
    return count;
}

void ta_chunk_set(ta_chunk *c, uint32_t slot, ta_handle page)
{
    c->pages[slot] = page;
    c->mapped[slot / 64] |= (uint64_t)1 << slot % 64;
    c->mapped_count++;
}

ta_handle ta_chunk_clear(ta_chunk *c, uint32_t slot)
{
    ta_handle page = c->pages[slot];
    c->pages[slot] = 0;
    c->mapped[slot / 64] &= ~((uint64_t)1 << slot % 64);
    c->mapped_count--;
    return page;
}

void ta_lookup_set(ta_allocator *a, const ta_chunk *c, ta_chunk *value)
{
    for (uint64_t at = c->addr; at < c->addr + c->size; at += TA_LOOKUP_BYTES)
        atomic_store_explicit(&a->lookup[at >> TA_LOOKUP_SHIFT], value, memory_order_release);
}

ta_chunk *ta_lookup(const ta_allocator *a, uint64_t addr)
{
    uint64_t slot = addr >> TA_LOOKUP_SHIFT;
    if (slot >= TA_LOOKUP_SLOTS) return NULL;
    return atomic_load_explicit(&a->lookup[slot], memory_order_acquire);
}
