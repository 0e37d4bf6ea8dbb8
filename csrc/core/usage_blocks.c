/* usage_blocks.c - a table with linear probing; removal shifts back, so no tombstones. */
#include "usage_blocks.h"

#include <stdlib.h>

static size_t slot_of(const ta_usage_table *table, uint64_t addr)
{
    return (size_t)((addr / 512 * 0x9e3779b97f4a7c15u) >> 20) & (table->room - 1);
}

static void put(ta_usage_table *table, const ta_usage_entry *entry)
{
    size_t i = slot_of(table, entry->addr);
    while (table->slots[i].addr) i = (i + 1) & (table->room - 1);
    table->slots[i] = *entry;
    table->count++;
}

bool ta_usage_table_add(ta_usage_table *table, const ta_usage_entry *entry)
{
    if ((table->count + 1) * 4 > table->room * 3) {
        size_t room = table->room ? table->room * 2 : 1024;
        ta_usage_table larger = {calloc(room, sizeof *larger.slots), room, 0};
        if (!larger.slots) return false;
        for (size_t i = 0; i < table->room; i++)
            if (table->slots[i].addr) put(&larger, &table->slots[i]);
        free(table->slots);
        *table = larger;
    }
    put(table, entry);
    return true;
}

ta_usage_entry *ta_usage_table_find(const ta_usage_table *table, uint64_t addr)
{
    if (!table->room) return NULL;
    for (size_t i = slot_of(table, addr); table->slots[i].addr;
         i = (i + 1) & (table->room - 1))
        if (table->slots[i].addr == addr) return &table->slots[i];
    return NULL;
}

void ta_usage_table_remove(ta_usage_table *table, ta_usage_entry *entry)
{
    size_t mask = table->room - 1, i = (size_t)(entry - table->slots);
    for (size_t next = (i + 1) & mask; table->slots[next].addr;
         next = (next + 1) & mask) {
        size_t home = slot_of(table, table->slots[next].addr);
        if (((next - home) & mask) >= ((next - i) & mask)) {
            table->slots[i] = table->slots[next];
            i = next;
        }
    }
    table->slots[i] = (ta_usage_entry){0};
    table->count--;
}
