/* bins.c - best fit: bins of sizes, a treap in each, a bitmap of the bins that hold any.
 *
 * Called by arena.c under the arena's lock. Order everywhere: size, then address, so that
 * the first hole that fits is the best fit. A search reads one or two words of the bitmap
 * and the path of one small tree. The hole that changed last keeps its old place in the trees
 * until another one changes: an allocation and its free put it back, and then no tree was
 * touched. A search passes it over there and looks at what it really is. */
#include "bins.h"

#include <stdio.h>
#include <string.h>

void ta_bins_init(ta_bins *bins)
{
    memset(bins, 0, sizeof *bins);
    bins->random = 0x9e3779b9u;
}

static unsigned bin_of(uint64_t size)
{
    uint64_t granules = size / TA_GRANULE;
    if (granules < TA_BIN_EXACT) return (unsigned)granules;
    unsigned top = 63u - (unsigned)__builtin_clzll(granules);
    unsigned split = (unsigned)(granules >> (top - 5u)) & (TA_BIN_SPLIT - 1u);
    unsigned bin = TA_BIN_EXACT + (top - 6u) * TA_BIN_SPLIT + split;
    return bin < TA_BINS ? bin : TA_BINS - 1u;
}

static bool before(const ta_hole *a, uint64_t size, uint64_t addr)
{
    return a->size != size ? a->size < size : a->addr < addr;
}

/* By the places that holes have in the trees. */
static bool stands_before(const ta_bins *bins, const ta_hole *a, uint64_t size,
                          uint64_t addr)
{
    if (__builtin_expect(a != bins->moved, 1)) return before(a, size, addr);
    return bins->was_size != size ? bins->was_size < size : bins->was_addr < addr;
}

static uint32_t next_random(ta_bins *bins)
{
    uint32_t x = bins->random;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return bins->random = x;
}

/* It is all that its bin's tree has. */
static bool is_alone(const ta_hole *root, const ta_hole *hole)
{
    return root == hole && !hole->left && !hole->right;
}

static void set_bit(ta_bins *bins, unsigned bin)
{
    bins->words[bin / 64] |= (uint64_t)1 << bin % 64;
    bins->top |= (uint64_t)1 << bin / 64;
}

static void clear_bit(ta_bins *bins, unsigned bin)
{
    bins->words[bin / 64] &= ~((uint64_t)1 << bin % 64);
    if (!bins->words[bin / 64]) bins->top &= ~((uint64_t)1 << bin / 64);
}

static void plant(ta_bins *bins, ta_hole *hole, unsigned bin)
{
    ta_hole **at = &bins->root[bin];
    hole->bin = bin;
    hole->priority = next_random(bins);
    if (!*at) {
        *at = hole;
        hole->left = hole->right = NULL;
        set_bit(bins, bin);
        return;
    }
    while (*at && (*at)->priority >= hole->priority)
        at = before(*at, hole->size, hole->addr) ? &(*at)->right : &(*at)->left;
    ta_hole *rest = *at, **left = &hole->left, **right = &hole->right;
    *at = hole;
    while (rest) /* split what hung there around the new hole */
        if (before(rest, hole->size, hole->addr)) {
            *left = rest;
            left = &rest->right;
            rest = rest->right;
        } else {
            *right = rest;
            right = &rest->left;
            rest = rest->left;
        }
    *left = *right = NULL;
}

/* From where it stands by (size, addr). */
static void uproot(ta_bins *bins, const ta_hole *hole, uint64_t size, uint64_t addr)
{
    const unsigned bin = hole->bin;
    ta_hole **at = &bins->root[bin];
    if (is_alone(*at, hole)) {
        *at = NULL;
        clear_bit(bins, bin);
        return;
    }
    while (*at != hole) at = before(*at, size, addr) ? &(*at)->right : &(*at)->left;
    ta_hole *left = hole->left, *right = hole->right;
    while (left && right) /* merge its two subtrees into its place */
        if (left->priority >= right->priority) {
            *at = left;
            at = &left->right;
            left = left->right;
        } else {
            *at = right;
            at = &right->left;
            right = right->left;
        }
    *at = left ? left : right;
}

/* No hole stands elsewhere than where it belongs. */
static void settle(ta_bins *bins)
{
    ta_hole *hole = bins->moved;
    if (!hole) return;
    bins->moved = NULL;
    uproot(bins, hole, bins->was_size, bins->was_addr);
    if (!bins->gone) plant(bins, hole, bin_of(hole->size));
}

/* It may change now, and keeps its place in the trees until another hole changes. */
static void loosen(ta_bins *bins, ta_hole *hole)
{
    if (bins->moved == hole) return;
    settle(bins);
    bins->moved = hole;
    bins->was_size = hole->size;
    bins->was_addr = hole->addr;
}

/* It is a hole of this place and size from now on. */
static void become(ta_bins *bins, ta_hole *hole, uint64_t addr, uint64_t size)
{
    hole->addr = addr;
    hole->size = size;
    bins->gone = false;
    if (size == bins->was_size && addr == bins->was_addr) bins->moved = NULL;
}

void ta_bins_insert(ta_bins *bins, ta_hole *hole)
{
    bins->count++;
    if (bins->moved == hole) {
        become(bins, hole, hole->addr, hole->size);
        return;
    }
    settle(bins);
    plant(bins, hole, bin_of(hole->size));
}

void ta_bins_remove(ta_bins *bins, ta_hole *hole)
{
    bins->count--;
    loosen(bins, hole);
    bins->gone = true;
}

void ta_bins_move(ta_bins *bins, ta_hole *hole, uint64_t addr, uint64_t size)
{
    loosen(bins, hole);
    become(bins, hole, addr, size);
}

static ta_hole *lowest_from(const ta_bins *bins, ta_hole *node, uint64_t size,
                            uint64_t addr)
{
    ta_hole *best = NULL;
    while (node)
        if (stands_before(bins, node, size, addr))
            node = node->right;
        else {
            best = node;
            node = node->left;
        }
    return best;
}

/* The first in the trees not before (size, addr). */
static ta_hole *standing_from(const ta_bins *bins, uint64_t size, uint64_t addr)
{
    unsigned bin = bin_of(size);
    ta_hole *found = lowest_from(bins, bins->root[bin], size, addr);
    if (found || ++bin >= TA_BINS) return found;
    uint64_t word = bins->words[bin / 64] & (~(uint64_t)0 << bin % 64);
    unsigned index = bin / 64;
    if (!word) {
        uint64_t top = index + 1 < 64 ? bins->top & (~(uint64_t)0 << (index + 1)) : 0;
        if (!top) return NULL;
        index = (unsigned)__builtin_ctzll(top);
        word = bins->words[index];
    }
    bin = index * 64 + (unsigned)__builtin_ctzll(word);
    return lowest_from(bins, bins->root[bin], 0, 0);
}

/* The first hole in order not before (size, addr). */
static ta_hole *from(const ta_bins *bins, uint64_t size, uint64_t addr)
{
    ta_hole *found = standing_from(bins, size, addr), *moved = bins->moved;
    if (!moved) return found;
    if (found == moved) found = standing_from(bins, bins->was_size, bins->was_addr + 1);
    if (bins->gone || before(moved, size, addr)) return found;
    return found && before(found, moved->size, moved->addr) ? found : moved;
}

ta_hole *ta_bins_fit(const ta_bins *bins, uint64_t size) { return from(bins, size, 0); }

ta_hole *ta_bins_next(const ta_bins *bins, const ta_hole *hole)
{
    return from(bins, hole->size, hole->addr + 1);
}

/* Counts what stands in the tree; `last` is the place of the one before. */
typedef struct ta_seen {
    uint64_t size, addr;
    size_t count;
    bool moved;
} ta_seen;

static bool check_tree(const ta_bins *bins, const ta_hole *node, unsigned bin,
                       ta_seen *seen, char *text, size_t capacity)
{
    for (; node; node = node->right) {
        if (!check_tree(bins, node->left, bin, seen, text, capacity)) return false;
        const bool moved = node == bins->moved;
        const uint64_t size = moved ? bins->was_size : node->size,
                       addr = moved ? bins->was_addr : node->addr;
        if (bin_of(size) != bin || node->bin != bin || size < seen->size ||
            (size == seen->size && addr <= seen->addr)) {
            snprintf(text, capacity, "hole %#llx+%llu stands in bin %u after %#llx+%llu",
                     (unsigned long long)addr, (unsigned long long)size, bin,
                     (unsigned long long)seen->addr, (unsigned long long)seen->size);
            return false;
        }
        *seen = (ta_seen){size, addr, seen->count + 1, seen->moved || moved};
    }
    return true;
}

bool ta_bins_check(const ta_bins *bins, char *text, size_t capacity)
{
    ta_seen seen = {0};
    for (unsigned bin = 0; bin < TA_BINS; bin++) {
        if (!check_tree(bins, bins->root[bin], bin, &seen, text, capacity)) return false;
        bool bit = bins->words[bin / 64] >> bin % 64 & 1;
        if (bit != (bins->root[bin] != NULL)) {
            snprintf(text, capacity, "bin %u: bit %d, holes %d", bin, bit, !bit);
            return false;
        }
    }
    if (seen.moved != (bins->moved != NULL)) {
        snprintf(text, capacity, "a moved hole stands nowhere");
        return false;
    }
    const size_t count = seen.count - (bins->moved && bins->gone);
    if (count != bins->count) {
        snprintf(text, capacity, "bins count %zu, holes in them %zu", bins->count, count);
        return false;
    }
    return true;
}
