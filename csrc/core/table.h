/* table.h - the live and pending blocks of one arena by address. Guarded by its lock. */
#ifndef TA_TABLE_H
#define TA_TABLE_H

#include "types.h"

/* Makes room for one more; false: no host memory, nothing changed. */
bool ta_table_reserve(ta_table *table);
bool ta_table_reserve_for(ta_table *table, size_t count); /* for so many */
/* Room must have been reserved. */
void ta_table_insert(ta_table *table, ta_block *block);
ta_block *ta_table_find(const ta_table *table, uint64_t addr);
void ta_table_remove(ta_table *table, const ta_block *block);
void ta_table_free(ta_table *table);

#endif
