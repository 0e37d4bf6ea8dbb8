/* table.c - open addressing with linear probing; removal shifts back, so no tombstones.
 * Called by arena.c and alloc.c under the arena's lock. */
#include "table.h"

#include <stdlib.h>

static size_t slot_of(const ta_table *table, uint64_t addr)
{
    return (size_t)((addr / TA_GRANULE * 0x9e3779b97f4a7c15u) >> 20) & table->mask;
}

bool ta_table_reserve(ta_table *table) { return ta_table_reserve_for(table, 1); }

bool ta_table_reserve_for(ta_table *table, size_t count)
{
    if (table->slots && (table->count + count) * 4 <= (table->mask + 1) * 3) return true;
    size_t size = table->slots ? (table->mask + 1) * 2 : 64;
    while ((table->count + count) * 4 > size * 3) size *= 2;
    ta_table bigger = {calloc(size, sizeof(void *)), size - 1, 0};
    if (!bigger.slots) return false;
    for (size_t i = 0; table->slots && i <= table->mask; i++)
        if (table->slots[i]) ta_table_insert(&bigger, table->slots[i]);
    free(table->slots);
    *table = bigger;
    return true;
}

void ta_table_insert(ta_table *table, ta_block *block)
{
    size_t i = slot_of(table, block->addr);
    while (table->slots[i]) i = (i + 1) & table->mask;
    table->slots[i] = block;
    table->count++;
}

ta_block *ta_table_find(const ta_table *table, uint64_t addr)
{
    if (!table->slots) return NULL;
    for (size_t i = slot_of(table, addr); table->slots[i]; i = (i + 1) & table->mask)
        if (table->slots[i]->addr == addr) return table->slots[i];
    return NULL;
}

void ta_table_remove(ta_table *table, const ta_block *block)
{
    size_t i = slot_of(table, block->addr);
    while (table->slots[i] != block) i = (i + 1) & table->mask;
    for (size_t next = (i + 1) & table->mask; table->slots[next];
         next = (next + 1) & table->mask) {
        size_t home = slot_of(table, table->slots[next]->addr);
        if (((next - home) & table->mask) >= ((next - i) & table->mask)) {
            table->slots[i] = table->slots[next];
            i = next;
        }
    }
    table->slots[i] = NULL;
    table->count--;
}

void ta_table_free(ta_table *table)
{
    free(table->slots);
    *table = (ta_table){0};
}
