/* table.h - the live and pending blocks of one arena by address. Guarded by its lock. */
#ifndef TA_TABLE_H
#define TA_TABLE_H

#include "types.h"

static inline size_t ta_table_home(const ta_table *table, uint64_t addr)
{
    return (size_t)((addr / TA_GRANULE * 0x9e3779b97f4a7c15u) >> 20) & table->mask;
}
bool ta_table_grow(ta_table *table);
/* Makes room for one more; false: no host memory, nothing changed. */
static inline bool ta_table_reserve(ta_table *table)
{
    return __builtin_expect(
               table->slots && (table->count + 1) * 4 <= (table->mask + 1) * 3, 1) ||
           ta_table_grow(table);
}
bool ta_table_reserve_for(ta_table *table, size_t count); /* for so many */
/* Room must have been reserved. */
static inline void ta_table_insert(ta_table *table, ta_block *block)
{
    size_t i = ta_table_home(table, block->addr);
    while (table->slots[i]) i = (i + 1) & table->mask;
    table->slots[i] = block;
    table->count++;
}
static inline ta_block *ta_table_find(const ta_table *table, uint64_t addr)
{
    if (!table->slots) return NULL;
    for (size_t i = ta_table_home(table, addr); table->slots[i];
         i = (i + 1) & table->mask)
        if (table->slots[i]->addr == addr) return table->slots[i];
    return NULL;
}
void ta_table_remove(ta_table *table, const ta_block *block);
void ta_table_free(ta_table *table);

#endif
