/* table.c - open addressing with linear probing; removal shifts back, so no tombstones.
 * Called by arena.c and alloc.c under the arena's lock. */
#include "table.h"

#include <stdlib.h>
#include <string.h>

#include "huge.h"

static ta_block **empty(size_t size)
{
    const size_t bytes = size * sizeof(ta_block *);
    if (bytes < TA_HUGE) return calloc(size, sizeof(ta_block *));
    ta_block **slots = ta_huge_alloc(bytes);
    return slots ? memset(slots, 0, bytes) : NULL;
}

bool ta_table_grow(ta_table *table)
{
    size_t size = table->slots ? (table->mask + 1) * 2 : 64;
    ta_table bigger = {empty(size), size - 1, 0};
    if (!bigger.slots) return false;
    for (size_t i = 0; table->slots && i <= table->mask; i++)
        if (table->slots[i]) ta_table_insert(&bigger, table->slots[i]);
    free(table->slots);
    *table = bigger;
    return true;
}

bool ta_table_reserve_for(ta_table *table, size_t count)
{
    while (!table->slots || (table->count + count) * 4 > (table->mask + 1) * 3)
        if (!ta_table_grow(table)) return false;
    return true;
}

void ta_table_remove(ta_table *table, const ta_block *block)
{
    size_t i = ta_table_home(table, block->addr);
    while (table->slots[i] != block) i = (i + 1) & table->mask;
    for (size_t next = (i + 1) & table->mask; table->slots[next];
         next = (next + 1) & table->mask) {
        size_t home = ta_table_home(table, table->slots[next]->addr);
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
