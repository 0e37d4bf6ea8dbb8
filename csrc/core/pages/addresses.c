/* addresses.c - ranges of addresses for arenas, bounded on each device.
 *
 * Called by alloc.c and limit.c with the device's `pages` held. An arena's chunks double, so
 * that a busy one has few and an idle one takes little. Over the bound, empty chunks go back
 * and new ones are as small as the request allows; the bound itself refuses nothing. */
#include "arena.h"
#include "calls.h"
#include "chunk.h"
#include "count.h"
#include "pages.h"

static void count_addresses(ta_device *d, uint64_t bytes, bool up)
{
    ta_spin_take(&d->counting);
    if (up)
        ta_gauge_up(&d->stats.addresses, bytes);
    else
        ta_gauge_down(&d->stats.addresses, bytes);
    ta_spin_drop(&d->counting);
    d->addresses = d->stats.addresses.current;
}

/* An arena of a pool that is over, and empty. Stray addresses may still lead to its lock, so
 * the structure is kept for the next pool. */
static void retire_arena(ta_device *d, ta_arena *a)
{
    ta_lock_take(&d->leveling);
    *(a->prev ? &a->prev->next : &d->arenas) = a->next;
    if (a->next) a->next->prev = a->prev;
    ta_count_gone(a);
    ta_lock_drop(&d->leveling);
    a->prev = NULL;
    a->next = d->spare_arenas;
    d->spare_arenas = a;
}

void ta_addresses_trim(ta_device *d)
{
    for (ta_arena *a = d->arenas, *after; a; a = after) {
        after = a->next;
        if (a->moving) continue; /* what moves is looked at by chunk */
        ta_arena_lock(a);
        for (ta_chunk *c = a->chunks, *next; c; c = next) {
            next = c->next;
            if (!ta_chunk_empty(c)) continue;
            /* Before the range goes: another device may get the same addresses at once. */
            ta_lookup_clear(d, c);
            if (ta_call_unreserve(d, c->addr, c->size)) {
                ta_lookup_set(d, c);
                continue;
            }
            count_addresses(d, c->size, false);
            ta_arena_drop_chunk(a, c);
            ta_chunk_retire(d, c);
        }
        if (!a->chunks) a->next_chunk_bytes = 0;
        bool over = a->orphan && !a->chunks;
        ta_arena_unlock(a);
        if (over) retire_arena(d, a);
    }
}

ta_status ta_addresses_add(ta_device *d, ta_arena *arena, uint64_t bytes)
{
    uint64_t least = ta_round_up(bytes, TA_LOOKUP_BYTES), addr;
    uint64_t size = arena->next_chunk_bytes;
    if (!size)
        size =
            arena->small ? TA_LOOKUP_BYTES : ta_round_up(d->total / 64, TA_LOOKUP_BYTES);
    uint64_t next = size < d->total / 8 ? size * 2 : size;
    if (size < least) size = least;
    if (d->addresses + size > d->address_bound) {
        ta_addresses_trim(d);
        if (d->addresses + size > d->address_bound) size = least;
    }
    ta_status status = ta_call_reserve(d, size, &addr);
    if (status && size > least) status = ta_call_reserve(d, size = least, &addr);
    if (status) return status;
    ta_chunk *c = NULL;
    if (addr % TA_LOOKUP_BYTES == 0 &&
        (addr + size - 1) >> TA_LOOKUP_SHIFT < TA_LOOKUP_SLOTS)
        c = ta_chunk_create(d, addr, size, arena->page_bytes);
    else
        status = TA_UNSUPPORTED;
    ta_arena_lock(arena);
    bool stocked = c && ta_arena_stock(arena);
    if (stocked) ta_arena_add_chunk(arena, c, 0);
    ta_arena_unlock(arena);
    if (!stocked) {
        if (c) ta_chunk_retire(d, c);
        ta_call_unreserve(d, addr, size);
        return status ? status : TA_NO_HOST_MEMORY;
    }
    ta_lookup_set(d, c);
    count_addresses(d, size, true);
    arena->next_chunk_bytes = next;
    return TA_OK;
}
