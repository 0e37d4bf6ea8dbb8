/* oracle_blocks.c - blocks of an allocator whose kernels' ranges are unknown.
 *
 * Any work on a stream may touch every block that is live on it or recorded for it. At
 * its FREE a block leaves one touch for each of its streams, at the stream's last item;
 * the next ALLOC of the bytes must be ordered after all of them, and unmapping them must
 * wait until the host has seen them done. A block allocated while its stream is captured
 * belongs to the graph. Called with the machine's lock held. */
#include <stdlib.h>

#include "oracle_internal.h"

struct ta_oracle_block {
    uint32_t queue, lane; /* lane: of the capture it was allocated in, or TA_NO_QUEUE */
    bool pending;         /* freed, and its bytes not yet usable */
    bool outside;         /* allocated outside every capture */
    bool pooled; /* of a graph pool, perhaps outside every capture all the same */
    uint32_t count, capacity;
    uint32_t *recorded; /* further queues */
};

#define HEX(x) ((unsigned long long)(x))

static void pin(ta_oracle *oracle, uint32_t queue, bool yes)
{
    if (queue == TA_NO_QUEUE) return;
    if (yes)
        oracle->queues[queue].pins++;
    else
        oracle->queues[queue].pins--;
}

static ta_range *find_block(ta_oracle *oracle, uint64_t addr)
{
    ta_space_find(oracle, &oracle->blocks, addr, addr + 1);
    for (uint32_t i = 0; i < oracle->found_count; i++)
        if (!oracle->found[i]->block->pending) return oracle->found[i];
    return oracle->found_count ? oracle->found[0] : NULL;
}

static void drop_block(ta_oracle *oracle, ta_range *range)
{
    ta_oracle_block *block = range->block;
    pin(oracle, block->queue, false);
    pin(oracle, block->lane, false);
    for (uint32_t i = 0; i < block->count; i++) pin(oracle, block->recorded[i], false);
    free(block->recorded);
    free(block);
    ta_space_remove(&oracle->blocks, range);
}

void ta_oracle_blocks_clear(ta_oracle *oracle)
{
    while (oracle->blocks.root) drop_block(oracle, oracle->blocks.root);
}

void ta_oracle_block_alloc(ta_oracle *oracle, uint64_t addr, uint64_t size,
                           uint32_t queue, uint32_t lane, ta_oracle_graph *graph,
                           bool pooled)
{
    const uint64_t high = addr + size;
    const uint32_t user = lane != TA_NO_QUEUE ? lane : queue;
    ta_space_find(oracle, &oracle->blocks, addr, high);
    for (uint32_t i = 0; i < oracle->found_count; i++)
        ta_oracle_violation(oracle, "%#llx + %llu is handed out on top of a %s block",
                            HEX(addr), HEX(size),
                            oracle->found[i]->block->pending ? "pending" : "live");
    ta_space_find(oracle, &oracle->freed, addr, high);
    for (uint32_t i = 0; i < oracle->found_count; i++) {
        ta_range *x = oracle->found[i];
        if (!ta_oracle_is_ordered(oracle, x->at, user))
            ta_oracle_violation(
                oracle,
                "%#llx + %llu is handed out to queue %u, not ordered after "
                "item %llu of queue %u, which may still touch it",
                HEX(addr), HEX(size), user, HEX(x->at.number), x->at.queue);
        else if (!graph && x->low >= addr && x->high <= high)
            ta_space_remove(&oracle->freed, x); /* the new block's own touch implies it */
    }
    if (graph)
        ta_oracle_graph_block(graph, addr, size);
    else if (oracle->graphs)
        ta_oracle_graphs_intrude(oracle, addr, high, 1);

    ta_oracle_block *block = calloc(1, sizeof *block);
    ta_range *range = block ? ta_space_add(&oracle->blocks, addr, high) : NULL;
    if (!range) {
        free(block);
        return;
    }
    block->queue = queue;
    block->lane = lane;
    block->outside = graph == NULL;
    block->pooled = pooled;
    pin(oracle, queue, true);
    pin(oracle, lane, true);
    range->block = block;
}

void ta_oracle_block_record(ta_oracle *oracle, uint64_t addr, uint32_t queue)
{
    ta_range *range = find_block(oracle, addr);
    if (!range || range->block->pending || range->block->queue == queue) return;
    ta_oracle_block *block = range->block;
    for (uint32_t i = 0; i < block->count; i++)
        if (block->recorded[i] == queue) return;
    if (block->count == block->capacity) {
        uint32_t capacity = block->capacity ? block->capacity * 2 : 4;
        uint32_t *recorded = realloc(block->recorded, capacity * sizeof *recorded);
        if (!recorded) return;
        block->recorded = recorded;
        block->capacity = capacity;
    }
    block->recorded[block->count++] = queue;
    pin(oracle, queue, true);
}

static void leave_touch(ta_oracle *oracle, const ta_range *range, uint32_t queue)
{
    if (queue == TA_NO_QUEUE) return;
    const ta_position at = {queue, oracle->queues[queue].items};
    ta_space_touch(oracle, &oracle->freed, at, range->low, range->high,
                   !range->block->outside || range->block->pooled);
}

static void free_block(ta_oracle *oracle, ta_range *range)
{
    ta_oracle_block *block = range->block;
    block->pending = true;
    leave_touch(oracle, range, block->queue);
    leave_touch(oracle, range, block->lane);
    for (uint32_t i = 0; i < block->count; i++)
        leave_touch(oracle, range, block->recorded[i]);
    if (block->outside && oracle->graphs)
        ta_oracle_graphs_intrude(oracle, range->low, range->high, -1);
}

void ta_oracle_block_free(ta_oracle *oracle, uint64_t addr)
{
    ta_range *range = find_block(oracle, addr);
    if (!range) return; /* older than the observer */
    ta_oracle_block *block = range->block;
    if (block->pending || range->low != addr) {
        ta_oracle_violation(oracle, "FREE of %#llx, which is not a live block",
                            HEX(addr));
        return;
    }
    free_block(oracle, range);
}

void ta_oracle_blocks_end(ta_oracle *oracle)
{
    while (oracle->blocks.root) {
        ta_range *range = oracle->blocks.root;
        if (!range->block->pending) free_block(oracle, range);
        drop_block(oracle, range);
    }
}

void ta_oracle_block_done(ta_oracle *oracle, uint64_t addr)
{
    ta_range *range = find_block(oracle, addr);
    if (!range) return;
    if (!range->block->pending || range->low != addr)
        ta_oracle_violation(oracle, "FREE_DONE of %#llx before its FREE", HEX(addr));
    else
        drop_block(oracle, range);
}

/* All that may touch a live block has been seen done. */
static bool block_seen(const ta_oracle *oracle, const ta_oracle_block *block)
{
    if (!ta_oracle_idle(oracle, block->queue)) return false;
    for (uint32_t i = 0; i < block->count; i++)
        if (!ta_oracle_idle(oracle, block->recorded[i])) return false;
    return true;
}

void ta_oracle_blocks_gone(ta_oracle *oracle, uint64_t low, uint64_t high,
                           const char *how)
{
    ta_space_find(oracle, &oracle->blocks, low, high);
    for (uint32_t i = 0; i < oracle->found_count; i++) {
        const ta_range *x = oracle->found[i];
        if (x->block->pending || (oracle->allow_moves && block_seen(oracle, x->block)))
            continue;
        ta_oracle_violation(
            oracle, "%s of %#llx + %llu under a live block at %#llx + %llu", how,
            HEX(low), HEX(high - low), HEX(x->low), HEX(x->high - x->low));
    }
    ta_space_find(oracle, &oracle->freed, low, high);
    for (uint32_t i = 0; i < oracle->found_count; i++) {
        ta_range *x = oracle->found[i];
        if (!ta_oracle_is_seen(oracle, x->at))
            ta_oracle_violation(
                oracle,
                "%s of %#llx + %llu before the host saw item %llu of queue "
                "%u done, which may touch a block freed there",
                how, HEX(low), HEX(high - low), HEX(x->at.number), x->at.queue);
        if (x->low >= low && x->high <= high) ta_space_remove(&oracle->freed, x);
    }
}

void ta_oracle_moves(ta_oracle *oracle, bool allow) { oracle->allow_moves = allow; }
