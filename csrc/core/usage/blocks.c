/* blocks.c - a table with linear probing; removal shifts back, so no tombstones. */
#include "blocks.h"

#include <stdlib.h>

static size_t slot_of(const ta_usage_table *table, uint64_t addr)
{
    return (size_t)((addr / 512 * 0x9e3779b97f4a7c15u) >> 20) & (table->room - 1);
}

/* An empty slot for the address. */
static ta_usage_entry *place_of(const ta_usage_table *table, uint64_t addr)
{
    size_t i = slot_of(table, addr);
    while (table->slots[i].addr) i = (i + 1) & (table->room - 1);
    return &table->slots[i];
}

static bool grow(ta_usage_table *table)
{
    const size_t room = table->room ? table->room * 2 : 1024;
    ta_usage_table larger = {calloc(room, sizeof *larger.slots), room, table->count};
    if (!larger.slots) return false;
    for (size_t i = 0; i < table->room; i++)
        if (table->slots[i].addr)
            *place_of(&larger, table->slots[i].addr) = table->slots[i];
    free(table->slots);
    *table = larger;
    return true;
}

ta_usage_entry *ta_usage_table_add(ta_usage_table *table, uint64_t addr)
{
    if ((table->count + 1) * 2 > table->room && !grow(table)) return NULL;
    ta_usage_entry *entry = place_of(table, addr);
    entry->addr = addr;
    table->count++;
    return entry;
}

ta_usage_entry *ta_usage_table_find(const ta_usage_table *table, uint64_t addr)
{
    if (!table->room) return NULL;
    for (size_t i = slot_of(table, addr); table->slots[i].addr;
         i = (i + 1) & (table->room - 1))
        if (table->slots[i].addr == addr) return &table->slots[i];
    return NULL;
}

bool ta_usage_table_take(ta_usage_table *table, uint64_t addr, ta_usage_entry *entry)
{
    const ta_usage_entry *found = ta_usage_table_find(table, addr);
    if (!found) return false;
    *entry = *found;
    const size_t mask = table->room - 1;
    size_t i = (size_t)(found - table->slots);
    for (size_t next = (i + 1) & mask; table->slots[next].addr;
         next = (next + 1) & mask) {
        size_t home = slot_of(table, table->slots[next].addr);
        if (((next - home) & mask) >= ((next - i) & mask)) {
            table->slots[i] = table->slots[next];
            i = next;
        }
    }
    table->slots[i].addr = 0;
    table->slots[i].guessed = false;
    table->count--;
    return true;
}
