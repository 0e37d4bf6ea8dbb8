/* map.c - a hash table from addresses and handles to pointers.
 *
 * Open addressing, linear probing. Used by memory.c, stream.c and driver_vmm.c under locks
 * of theirs: nothing here is thread-safe.
 *
 * live <= used < capacity; used counts deleted slots too; 4 used <= 3 capacity. */
#include <stdlib.h>

#include "simcuda.h"

static size_t place(uint64_t key, size_t capacity)
{
    uint64_t h = key * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(h >> 20) & (capacity - 1);
}

static ta_sc_slot *lookup(const ta_sc_map *map, uint64_t key)
{
    if (!map->capacity) return NULL;
    for (size_t i = place(key, map->capacity);; i = (i + 1) & (map->capacity - 1)) {
        if (map->slots[i].key == key) return &map->slots[i];
        if (map->slots[i].key == 0) return NULL;
    }
}

void *ta_sc_map_get(const ta_sc_map *map, uint64_t key)
{
    const ta_sc_slot *slot = lookup(map, key);
    return slot ? slot->value : NULL;
}

static bool grow(ta_sc_map *map)
{
    size_t capacity = 64;
    while (capacity < map->live * 4) capacity *= 2;
    ta_sc_slot *slots = calloc(capacity, sizeof *slots);
    if (!slots) return false;
    for (size_t i = 0; i < map->capacity; i++) {
        if (map->slots[i].key <= 1) continue;
        size_t at = place(map->slots[i].key, capacity);
        while (slots[at].key) at = (at + 1) & (capacity - 1);
        slots[at] = map->slots[i];
    }
    free(map->slots);
    map->slots = slots;
    map->capacity = capacity;
    map->used = map->live;
    return true;
}

bool ta_sc_map_put(ta_sc_map *map, uint64_t key, void *value)
{
    ta_sc_slot *slot = lookup(map, key);
    if (slot) {
        slot->value = value;
        return true;
    }
    if (4 * (map->used + 1) > 3 * map->capacity && !grow(map)) return false;
    size_t at = place(key, map->capacity);
    while (map->slots[at].key) at = (at + 1) & (map->capacity - 1);
    map->slots[at] = (ta_sc_slot){key, value};
    map->used++;
    map->live++;
    return true;
}

void *ta_sc_map_take(ta_sc_map *map, uint64_t key)
{
    ta_sc_slot *slot = lookup(map, key);
    if (!slot) return NULL;
    void *value = slot->value;
    slot->key = 1;
    slot->value = NULL;
    map->live--;
    return value;
}
