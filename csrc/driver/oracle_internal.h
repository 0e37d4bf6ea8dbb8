/* oracle_internal.h - what the oracle's files share.
 *
 *   oracle.c         queues, clocks, order
 *   oracle_ranges.c  bytes that work is known to touch
 *   oracle_graph.c   what graphs touch
 *   oracle_blocks.c  blocks of an allocator, touched by any work on their streams */
#ifndef TA_ORACLE_INTERNAL_H
#define TA_ORACLE_INTERNAL_H

#include "oracle.h"

/* host <= items; closed and host = items and pins = 0: may be opened anew. */
typedef struct ta_oracle_queue {
    uint64_t items; /* number of its last item */
    uint64_t host;  /* number up to which the host saw items done */
    uint32_t pins;  /* blocks that name it */
    bool closed;
    ta_clock clock; /* what comes before its next item, itself left out */
} ta_oracle_queue;

typedef struct ta_position {
    uint32_t queue;
    uint64_t number;
} ta_position;

/* A set of byte ranges that may overlap: a treap by (low, serial), each node with the
 * highest end below it. */
typedef struct ta_oracle_block ta_oracle_block;
typedef struct ta_range {
    uint64_t low, high; /* [low, high) */
    uint64_t serial, priority, max_high;
    struct ta_range *left, *right;
    ta_position at; /* what touches it */
    bool write;
    bool captured;          /* left by a block of a graph pool, not as the graph */
    ta_oracle_block *block; /* of the set of blocks */
} ta_range;
struct ta_oracle_space {
    ta_range *root;
    uint64_t count, serial, random;
    uint64_t sweep_at; /* count at which what is seen done is thrown out */
};

typedef struct ta_span {
    uint64_t low, high;
} ta_span;
typedef struct ta_spans {
    ta_span *list;
    uint32_t count, capacity;
    bool merged;
} ta_spans;
struct ta_oracle_graph {
    ta_spans reads, writes, blocks;
    uint64_t gone;      /* an address of its that was unmapped; 0: none */
    uint32_t intruders; /* live blocks of others on its blocks' bytes */
    ta_oracle_graph *next;
};

struct ta_oracle {
    ta_oracle_report *report;
    void *context;
    ta_oracle_queue *queues;
    uint32_t queue_count, queue_capacity;
    ta_range **found; /* of the last look-up */
    uint32_t found_count, found_capacity;
    ta_oracle_space ranges; /* work with known ranges */
    ta_oracle_space freed;  /* blocks freed, and graphs' blocks launched: last touches */
    ta_oracle_space blocks; /* live and pending blocks */
    ta_oracle_graph *graphs;
    bool allow_moves;
};

bool ta_oracle_is_seen(const ta_oracle *oracle, ta_position at);
/* `at` comes before the queue's next item. */
bool ta_oracle_is_ordered(const ta_oracle *oracle, ta_position at, uint32_t queue);
__attribute__((format(printf, 2, 3))) void ta_oracle_violation(ta_oracle *oracle,
                                                               const char *format, ...);

/* --- oracle_ranges.c --- */
void ta_space_clear(ta_oracle_space *space);
ta_range *ta_space_add(ta_oracle_space *space, uint64_t low, uint64_t high);
void ta_space_remove(ta_oracle_space *space, ta_range *range);
/* oracle->found gets the ranges that overlap. */
void ta_space_find(ta_oracle *oracle, const ta_oracle_space *space, uint64_t low,
                   uint64_t high);
/* Throws out what the host has seen done, now and then. */
void ta_space_sweep(ta_oracle *oracle, ta_oracle_space *space);
/* Adds a touch that writes; drops those it makes needless: inside it, ordered before it. */
void ta_space_touch(ta_oracle *oracle, ta_oracle_space *space, ta_position at,
                    uint64_t low, uint64_t high, bool captured);

/* --- oracle_graph.c --- */
void ta_oracle_graphs_gone(ta_oracle *oracle, uint64_t low, uint64_t high);
/* A block of somebody else comes to lie on (1), or leaves (-1), bytes of graphs' blocks.
 * */
void ta_oracle_graphs_intrude(ta_oracle *oracle, uint64_t low, uint64_t high, int change);

/* --- oracle_blocks.c --- */
void ta_oracle_blocks_gone(ta_oracle *oracle, uint64_t low, uint64_t high,
                           const char *how);
void ta_oracle_blocks_clear(ta_oracle *oracle);

#endif
