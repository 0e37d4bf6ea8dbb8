/* history.h - the last events of an allocator, in memory, with their times.
 *
 * For torch's memory history. Keeps the newest `limit` events and drops the oldest; the
 * memory taken grows with what is kept, to at most 48 bytes times `limit` and a little.
 * Where no memory is to be had, the oldest goes earlier. Marks are not kept. */
#ifndef TA_HISTORY_H
#define TA_HISTORY_H

#include "../../include/torcharena.h"

typedef struct ta_history ta_history;

typedef struct ta_history_entry {
    int64_t time_us; /* since 1970 */
    uint64_t addr, size, serial;
    ta_stream stream;
    uint16_t kind; /* ta_event_kind */
    uint16_t device;
    uint16_t stack; /* of an allocation, where lines are told: place.h */
} ta_history_entry;

typedef struct ta_history_counts {
    uint64_t seen; /* events since the start or the last clear */
    uint64_t kept; /* of those, the newest */
    uint64_t limit;
    uint64_t bytes; /* of memory taken */
} ta_history_counts;

/* Begins to watch. TA_INVALID: a limit of 0, or too many observers. */
ta_status ta_history_start(ta_allocator *allocator, uint64_t limit, ta_history **history);
/* Before the allocator is destroyed. In a forked child it does nothing. */
ta_status ta_history_stop(ta_history *history);
/* A lower limit drops the oldest at once. */
ta_status ta_history_set_limit(ta_history *history, uint64_t limit);
ta_status ta_history_clear(ta_history *history);
/* The newest events, at most `capacity`, oldest first; returns how many. Allocations wait
 * for the copy. */
size_t ta_history_copy(ta_history *history, ta_history_entry *entries, size_t capacity);
/* All zero in a forked child. */
void ta_history_look(ta_history *history, ta_history_counts *counts);

#endif
