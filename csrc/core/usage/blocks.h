/* blocks.h - live blocks by address, for usage.c; under its lock. */
#ifndef TA_USAGE_BLOCKS_H
#define TA_USAGE_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ta_usage_entry {
    uint64_t addr, size;
    uint64_t born; /* events on the device when it was allocated, itself included */
    uint32_t step;
    uint16_t phase, module, stack;
    uint8_t category;
    bool guessed; /* the category, see ta_usage_backward_ends */
} ta_usage_entry;

/* Open addressing, a power of two, at most half full; a slot of address 0 is empty. */
typedef struct ta_usage_table {
    ta_usage_entry *slots;
    size_t room, count;
} ta_usage_table;

/* A place for the address, which must not be in it; the rest is for the caller to fill in.
 * NULL: no memory, nothing is changed. */
ta_usage_entry *ta_usage_table_add(ta_usage_table *table, uint64_t addr);
ta_usage_entry *ta_usage_table_find(const ta_usage_table *table, uint64_t addr);
/* Removes it and says what it was; false where there is none. */
bool ta_usage_table_take(ta_usage_table *table, uint64_t addr, ta_usage_entry *entry);

#endif
