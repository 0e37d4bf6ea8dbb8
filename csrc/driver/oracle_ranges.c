/* oracle_ranges.c - bytes that queued work touches, and whether later work may touch
 * them.
 *
 * A write must come after every access of the same bytes, a read after every write. Kept
 * are only accesses that can still matter: not those which the host has seen done, and
 * not those which lie inside a later one that is ordered after them and at least as
 * strong. Called with the machine's lock held. */
#include <stdlib.h>

#include "oracle_internal.h"

/* --- the set of ranges -------------------------------------------------------------- */
static bool before(const ta_range *a, const ta_range *b)
{
    return a->low != b->low ? a->low < b->low : a->serial < b->serial;
}

static void refresh(ta_range *node)
{
    uint64_t high = node->high;
    if (node->left && node->left->max_high > high) high = node->left->max_high;
    if (node->right && node->right->max_high > high) high = node->right->max_high;
    node->max_high = high;
}

/* What comes before `key` to *left, the others to *right. */
static void split(ta_range *node, const ta_range *key, ta_range **left, ta_range **right)
{
    if (!node) {
        *left = *right = NULL;
    } else if (before(node, key)) {
        split(node->right, key, &node->right, right);
        *left = node;
        refresh(node);
    } else {
        split(node->left, key, left, &node->left);
        *right = node;
        refresh(node);
    }
}

static ta_range *join(ta_range *left, ta_range *right)
{
    if (!left || !right) return left ? left : right;
    if (left->priority > right->priority) {
        left->right = join(left->right, right);
        refresh(left);
        return left;
    }
    right->left = join(left, right->left);
    refresh(right);
    return right;
}

static ta_range *insert(ta_range *node, ta_range *added)
{
    if (!node || added->priority > node->priority) {
        split(node, added, &added->left, &added->right);
        node = added;
    } else if (before(added, node))
        node->left = insert(node->left, added);
    else
        node->right = insert(node->right, added);
    refresh(node);
    return node;
}

static ta_range *cut(ta_range *node, const ta_range *removed)
{
    if (node == removed) return join(node->left, node->right);
    if (before(removed, node))
        node->left = cut(node->left, removed);
    else
        node->right = cut(node->right, removed);
    refresh(node);
    return node;
}

ta_range *ta_space_add(ta_oracle_space *space, uint64_t low, uint64_t high)
{
    ta_range *range = calloc(1, sizeof *range);
    if (!range) return NULL;
    space->random = space->random * 6364136223846793005u + 1442695040888963407u;
    range->low = low;
    range->high = high;
    range->serial = ++space->serial;
    range->priority = space->random >> 16;
    space->root = insert(space->root, range);
    space->count++;
    return range;
}

void ta_space_remove(ta_oracle_space *space, ta_range *range)
{
    space->root = cut(space->root, range);
    space->count--;
    free(range);
}

static void clear(ta_range *node)
{
    if (!node) return;
    clear(node->left);
    clear(node->right);
    free(node);
}

void ta_space_clear(ta_oracle_space *space)
{
    clear(space->root);
    space->root = NULL;
    space->count = 0;
}

static bool found(ta_oracle *oracle, ta_range *range)
{
    if (oracle->found_count == oracle->found_capacity) {
        uint32_t capacity = oracle->found_capacity ? oracle->found_capacity * 2 : 64;
        ta_range **list = realloc(oracle->found, capacity * sizeof(void *));
        if (!list) return false;
        oracle->found = list;
        oracle->found_capacity = capacity;
    }
    oracle->found[oracle->found_count++] = range;
    return true;
}

static void find(ta_oracle *oracle, ta_range *node, uint64_t low, uint64_t high)
{
    if (!node || node->max_high <= low) return;
    find(oracle, node->left, low, high);
    if (node->low >= high) return;
    if (node->high > low && !found(oracle, node)) return;
    find(oracle, node->right, low, high);
}

void ta_space_find(ta_oracle *oracle, const ta_oracle_space *space, uint64_t low,
                   uint64_t high)
{
    oracle->found_count = 0;
    find(oracle, space->root, low, high);
}

static void find_seen(ta_oracle *oracle, ta_range *node)
{
    if (!node) return;
    find_seen(oracle, node->left);
    if (ta_oracle_is_seen(oracle, node->at)) found(oracle, node);
    find_seen(oracle, node->right);
}

void ta_space_sweep(ta_oracle *oracle, ta_oracle_space *space)
{
    if (space->count < space->sweep_at || space->count < 1024) return;
    oracle->found_count = 0;
    find_seen(oracle, space->root);
    for (uint32_t i = 0; i < oracle->found_count; i++)
        ta_space_remove(space, oracle->found[i]);
    space->sweep_at = space->count * 2;
}

ta_oracle_space *ta_oracle_space_create(void)
{
    return calloc(1, sizeof(ta_oracle_space));
}

void ta_oracle_space_destroy(ta_oracle_space *space)
{
    if (!space) return;
    ta_space_clear(space);
    free(space);
}

/* --- accesses ----------------------------------------------------------------------- */
/* Overlapping touches are in oracle->found. */
static void add_touch(ta_oracle *oracle, ta_oracle_space *space, ta_position at,
                      uint64_t low, uint64_t high, bool write, bool captured)
{
    for (uint32_t i = 0; i < oracle->found_count; i++) {
        ta_range *x = oracle->found[i];
        bool covered = x->low >= low && x->high <= high && (write || !x->write) &&
                       (x->captured || !captured);
        if (ta_oracle_is_seen(oracle, x->at) ||
            (covered && ta_oracle_is_ordered(oracle, x->at, at.queue)))
            ta_space_remove(space, x);
    }
    if (ta_oracle_is_seen(oracle, at)) return;
    ta_range *range = ta_space_add(space, low, high);
    if (range) {
        range->at = at;
        range->write = write;
        range->captured = captured;
    }
    ta_space_sweep(oracle, space);
}

void ta_space_touch(ta_oracle *oracle, ta_oracle_space *space, ta_position at,
                    uint64_t low, uint64_t high, bool captured)
{
    ta_space_find(oracle, space, low, high);
    add_touch(oracle, space, at, low, high, true, captured);
}

void ta_oracle_access(ta_oracle *oracle, ta_oracle_space *space, uint32_t queue,
                      uint64_t addr, uint64_t size, bool write)
{
    if (size == 0) return;
    if (!space) space = &oracle->ranges;
    const ta_position at = {queue, oracle->queues[queue].items};
    ta_space_find(oracle, space, addr, addr + size);
    for (uint32_t i = 0; i < oracle->found_count; i++) {
        const ta_range *x = oracle->found[i];
        if ((write || x->write) && !ta_oracle_is_ordered(oracle, x->at, queue))
            ta_oracle_violation(oracle,
                                "queue %u %s %#llx + %llu, not ordered after item %llu "
                                "of queue %u, which "
                                "%s %#llx + %llu",
                                queue, write ? "writes" : "reads",
                                (unsigned long long)addr, (unsigned long long)size,
                                (unsigned long long)x->at.number, x->at.queue,
                                x->write ? "writes" : "reads", (unsigned long long)x->low,
                                (unsigned long long)(x->high - x->low));
    }
    add_touch(oracle, space, at, addr, addr + size, write, false);
}

void ta_oracle_gone(ta_oracle *oracle, uint64_t addr, uint64_t size, const char *how)
{
    const uint64_t high = addr + size;
    if (oracle->ranges.root)
        ta_space_find(oracle, &oracle->ranges, addr, high);
    else
        oracle->found_count = 0;
    for (uint32_t i = 0; i < oracle->found_count; i++) {
        ta_range *x = oracle->found[i];
        if (!ta_oracle_is_seen(oracle, x->at))
            ta_oracle_violation(oracle,
                                "%s of %#llx + %llu before the host saw item %llu of "
                                "queue %u done, which "
                                "%s %#llx + %llu",
                                how, (unsigned long long)addr, (unsigned long long)size,
                                (unsigned long long)x->at.number, x->at.queue,
                                x->write ? "writes" : "reads", (unsigned long long)x->low,
                                (unsigned long long)(x->high - x->low));
        if (x->low >= addr && x->high <= high) ta_space_remove(&oracle->ranges, x);
    }
    if (oracle->graphs) ta_oracle_graphs_gone(oracle, addr, high);
    if (oracle->blocks.root || oracle->freed.root)
        ta_oracle_blocks_gone(oracle, addr, high, how);
}
