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
    c->addr = addr;
    c->size = size;
    c->page_bytes = page_bytes;
    c->prev = c->next = NULL;
    c->first = NULL;
    c->pages = pages;
    c->mapped = mapped;
    c->slots = slots;
    c->spilled = NULL;
    c->handed = NULL;
    c->guarded = NULL;
    c->mapped_count = c->spilled_count = 0;
    c->shift = (unsigned)__builtin_ctzll(page_bytes);
    return c;
}

void ta_chunk_retire(ta_device *device, ta_chunk *c)
{
    free(c->pages);
    free(c->mapped);
    free(c->spilled);
    free(c->handed);
    free(c->guarded);
    c->guarded = NULL;
    c->pages = NULL;
    c->mapped = NULL;
    c->spilled = NULL;
    c->handed = NULL;
    atomic_store(&c->arena, NULL);
    c->next = device->spare_chunks;
    device->spare_chunks = c;
}

uint32_t ta_chunk_mapped_words(const ta_chunk *c, uint32_t low, uint32_t high)
{
    uint32_t count = 0;
    while (low < high) {
        uint32_t end = (low / 64 + 1) * 64;
        uint64_t word = c->mapped[low / 64] >> low % 64;
        if (end > high) {
            word &= ((uint64_t)1 << (high - low)) - 1; /* fewer than 64 are left */
            end = high;
        }
        const uint32_t all = end - low;
        count += word == (~(uint64_t)0 >> (64 - all))
                     ? all
                     : (uint32_t)__builtin_popcountll(word);
        low = end;
    }
    return count;
}

void ta_chunk_set(ta_chunk *c, uint32_t slot, ta_handle page)
{
    c->pages[slot] = page;
    c->mapped[slot / 64] |= (uint64_t)1 << slot % 64;
    if (c->handed) c->handed[slot / 64] &= ~((uint64_t)1 << slot % 64);
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

/* Plain chunks lie anywhere, so they stand in an array by address: how many start at or below
 * `addr`. `plain_lock` held. */
static size_t plain_below(const ta_allocator *a, uint64_t addr)
{
    size_t low = 0, high = a->plain_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (a->plain[middle]->addr <= addr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool plain_insert(ta_allocator *a, ta_chunk *c)
{
    bool room = true;
    ta_lock_take(&a->plain_lock);
    if (a->plain_count == a->plain_capacity) {
        size_t capacity = a->plain_capacity ? a->plain_capacity * 2 : 64;
        ta_chunk **more = realloc(a->plain, capacity * sizeof(void *));
        room = more != NULL;
        if (room) {
            a->plain = more;
            a->plain_capacity = capacity;
        }
    }
    if (room) {
        size_t at = plain_below(a, c->addr);
        memmove(a->plain + at + 1, a->plain + at, (a->plain_count - at) * sizeof(void *));
        a->plain[at] = c;
        a->plain_count++;
    }
    ta_lock_drop(&a->plain_lock);
    return room;
}

static void slots_set(ta_allocator *a, const ta_chunk *c, ta_chunk *value)
{
    for (uint64_t at = c->addr; at < c->addr + c->size; at += TA_LOOKUP_BYTES)
        atomic_store_explicit(&a->lookup[at >> TA_LOOKUP_SHIFT], value,
                              memory_order_release);
}

bool ta_lookup_set(ta_device *d, ta_chunk *c)
{
    if (d->plain) return plain_insert(d->allocator, c);
    slots_set(d->allocator, c, c);
    return true;
}

void ta_lookup_clear(ta_device *d, const ta_chunk *c)
{
    ta_allocator *a = d->allocator;
    if (!d->plain) {
        slots_set(a, c, NULL);
        return;
    }
    ta_lock_take(&a->plain_lock);
    size_t at = plain_below(a, c->addr);
    if (at && a->plain[at - 1] == c) {
        memmove(a->plain + at - 1, a->plain + at, (a->plain_count - at) * sizeof(void *));
        a->plain_count--;
    }
    ta_lock_drop(&a->plain_lock);
}

ta_chunk *ta_lookup(ta_allocator *a, uint64_t addr)
{
    uint64_t slot = addr >> TA_LOOKUP_SHIFT;
    ta_chunk *c = slot < TA_LOOKUP_SLOTS
                      ? atomic_load_explicit(&a->lookup[slot], memory_order_acquire)
                      : NULL;
    if (c || !atomic_load_explicit(&a->any_plain, memory_order_acquire)) return c;
    ta_lock_take(&a->plain_lock);
    size_t at = plain_below(a, addr);
    if (at && addr - a->plain[at - 1]->addr < a->plain[at - 1]->size)
        c = a->plain[at - 1];
    ta_lock_drop(&a->plain_lock);
    return c;
}
