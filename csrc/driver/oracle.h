/* oracle.h - judges whether bytes are reused or unmapped while work may still touch them.
 *
 * Written apart from the allocator. It knows queues of work, the edges between them, and
 * what the host has seen finished, and nothing else: no clock time, no pages, no arenas.
 *
 *   queue      a stream of a device; its work items are numbered 1, 2, 3, ...
 *   position   (queue, number): an item and all before it in that queue
 *   clock      for each queue the number up to which its items come before some point
 *   ordered    (q, n) comes before queue s's next work iff s = q, or n <= clock_s[q],
 *              or n <= host[q], where host is what the host has seen finished
 *
 * Two ways to tell it what work touches, both always on:
 *   ranges   ta_oracle_access: the bytes are known;
 *   blocks   ta_oracle_observe, as an observer of an allocator: any work on a stream
 *            touches every block that is live on it or recorded for it, until its FREE.
 *
 * The simulated machine calls all of this under its lock; only ta_oracle_observe locks.
 * */
#ifndef TA_ORACLE_H
#define TA_ORACLE_H

#include "sim.h"

typedef struct ta_oracle ta_oracle;
typedef struct ta_clock {
    uint32_t count, capacity; /* queues beyond `count` stand at 0 */
    uint64_t *seen;
} ta_clock;
typedef void ta_oracle_report(void *context, const char *text);

#define TA_NO_QUEUE UINT32_MAX

ta_oracle *ta_oracle_create(ta_oracle_report *report, void *context);
void ta_oracle_destroy(ta_oracle *oracle);

/* --- queues and order -------------------------------------------------------------- */
/* A new queue, or one that is closed and done with; TA_NO_QUEUE without memory. */
uint32_t ta_oracle_open(ta_oracle *oracle);
/* No work follows; what is queued goes on. */
void ta_oracle_close(ta_oracle *oracle, uint32_t queue);
/* The number of a new item at the queue's end. */
uint64_t ta_oracle_work(ta_oracle *oracle, uint32_t queue);
/* The later queue's next work comes after all that is in the earlier one. */
void ta_oracle_order(ta_oracle *oracle, uint32_t later, uint32_t earlier);
/* *clock becomes the point that the queue is at: an event recorded there. */
void ta_oracle_mark(ta_oracle *oracle, uint32_t queue, ta_clock *clock);
/* The queue's next work comes after the point. */
void ta_oracle_after(ta_oracle *oracle, uint32_t queue, const ta_clock *clock);
/* The host saw the point passed; the queue empty. */
void ta_oracle_seen(ta_oracle *oracle, const ta_clock *clock);
void ta_oracle_seen_queue(ta_oracle *oracle, uint32_t queue);
/* A capture ends: its lane's items are done with, and say nothing of others. */
void ta_oracle_seen_lane(ta_oracle *oracle, uint32_t lane);
/* All that is in `earlier` comes before the next work of `later`. */
bool ta_oracle_joined(const ta_oracle *oracle, uint32_t later, uint32_t earlier);
/* Nothing is in it that the host has not seen done. */
bool ta_oracle_idle(const ta_oracle *oracle, uint32_t queue);

/* --- ranges ------------------------------------------------------------------------ */
/* Where accesses are compared with each other: one for the machine (NULL) and one for
 * each capture, whose work runs later. */
typedef struct ta_oracle_space ta_oracle_space;
ta_oracle_space *ta_oracle_space_create(void);
void ta_oracle_space_destroy(ta_oracle_space *space);
/* The queue's last item touches the bytes. */
void ta_oracle_access(ta_oracle *oracle, ta_oracle_space *space, uint32_t queue,
                      uint64_t addr, uint64_t size, bool write);
/* The bytes go away (`how`: "unmap") and nothing waits for work that touches them. */
void ta_oracle_gone(ta_oracle *oracle, uint64_t addr, uint64_t size, const char *how);

/* --- graphs ------------------------------------------------------------------------ */
typedef struct ta_oracle_graph ta_oracle_graph;
ta_oracle_graph *ta_oracle_graph_create(ta_oracle *oracle);
void ta_oracle_graph_destroy(ta_oracle *oracle, ta_oracle_graph *graph);
/* Its work touches the bytes. */
void ta_oracle_graph_range(ta_oracle_graph *graph, uint64_t addr, uint64_t size,
                           bool write);
/* A block allocated while it was captured. */
void ta_oracle_graph_block(ta_oracle_graph *graph, uint64_t addr, uint64_t size);
/* The queue's last item is the graph's work. */
void ta_oracle_graph_launch(ta_oracle *oracle, ta_oracle_graph *graph, uint32_t queue);

/* --- blocks ------------------------------------------------------------------------ */
/* `lane` is the queue of the capture that the stream is in, or TA_NO_QUEUE; `graph` what
 * it becomes, or NULL; `pooled`: the block is a graph pool's. */
void ta_oracle_block_alloc(ta_oracle *oracle, uint64_t addr, uint64_t size,
                           uint32_t queue, uint32_t lane, ta_oracle_graph *graph,
                           bool pooled);
void ta_oracle_block_record(ta_oracle *oracle, uint64_t addr, uint32_t queue);
void ta_oracle_block_free(ta_oracle *oracle, uint64_t addr);
void ta_oracle_block_done(ta_oracle *oracle, uint64_t addr);
void ta_oracle_blocks_end(ta_oracle *oracle);
void ta_oracle_moves(ta_oracle *oracle, bool allow);
/* An observer for ta_add_observer; the context is the ta_sim. */
void ta_oracle_observe(void *sim, const ta_event_info *event);
/* The allocator is about to be destroyed with blocks still live: they count as freed now,
 * so it must wait for their work, and may then unmap them. */
void ta_oracle_end(ta_sim *sim);
/* Live blocks may be unmapped and mapped again once their work is seen done (sleep, page
 * moves). Off at first: unmapping under a live block is a violation. */
void ta_oracle_allow_moves(ta_sim *sim, bool allow);

#endif
