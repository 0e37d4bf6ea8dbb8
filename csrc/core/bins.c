/* bins.c - best fit: bins of sizes, a treap in each, a bitmap of the bins that hold any.
 *
 * Called by arena.c under the arena's lock. Order everywhere: size, then address, so that
 * the first hole that fits is the best fit. A search reads one or two words of the bitmap
 * and the path of one small tree. */
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

static uint32_t next_random(ta_bins *bins)
{
    uint32_t x = bins->random;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return bins->random = x;
}

/* It is all that its bin has. */
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

static inline void insert(ta_bins *bins, ta_hole *hole, unsigned bin)
{
    ta_hole **at = &bins->root[bin];
    hole->bin = bin;
    hole->priority = next_random(bins);
    bins->count++;
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

void ta_bins_insert(ta_bins *bins, ta_hole *hole)
{
    insert(bins, hole, bin_of(hole->size));
}

void ta_bins_remove(ta_bins *bins, ta_hole *hole)
{
    const unsigned bin = hole->bin;
    ta_hole **at = &bins->root[bin];
    bins->count--;
    if (is_alone(*at, hole)) {
        *at = NULL;
        clear_bit(bins, bin);
        return;
    }
    while (*at != hole)
        at = before(*at, hole->size, hole->addr) ? &(*at)->right : &(*at)->left;
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

void ta_bins_move(ta_bins *bins, ta_hole *hole, uint64_t addr, uint64_t size)
{
    const unsigned bin = bin_of(size);
    const bool stays = bin == hole->bin && is_alone(bins->root[bin], hole);
    if (!stays) ta_bins_remove(bins, hole);
    hole->addr = addr;
    hole->size = size;
    if (!stays) insert(bins, hole, bin);
}

static ta_hole *lowest_from(ta_hole *node, uint64_t size, uint64_t addr)
{
    ta_hole *best = NULL;
    while (node)
        if (before(node, size, addr))
            node = node->right;
        else {
            best = node;
            node = node->left;
        }
    return best;
}

/* The first hole in order not before (size, addr). */
static ta_hole *from(const ta_bins *bins, uint64_t size, uint64_t addr)
{
    unsigned bin = bin_of(size);
    ta_hole *found = lowest_from(bins->root[bin], size, addr);
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
    return lowest_from(bins->root[bin], 0, 0);
}

ta_hole *ta_bins_fit(const ta_bins *bins, uint64_t size) { return from(bins, size, 0); }

ta_hole *ta_bins_next(const ta_bins *bins, const ta_hole *hole)
{
    return from(bins, hole->size, hole->addr + 1);
}

static bool check_tree(const ta_hole *node, unsigned bin, const ta_hole **last,
                       size_t *count, char *text, size_t capacity)
{
    for (; node; node = node->right) {
        if (!check_tree(node->left, bin, last, count, text, capacity)) return false;
        if (bin_of(node->size) != bin || node->bin != bin ||
            (*last && !before(*last, node->size, node->addr))) {
            snprintf(text, capacity, "hole %#llx+%llu stands in bin %u after %#llx+%llu",
                     (unsigned long long)node->addr, (unsigned long long)node->size, bin,
                     *last ? (unsigned long long)(*last)->addr : 0ull,
                     *last ? (unsigned long long)(*last)->size : 0ull);
            return false;
        }
        *last = node;
        ++*count;
    }
    return true;
}

bool ta_bins_check(const ta_bins *bins, char *text, size_t capacity)
{
    size_t count = 0;
    for (unsigned bin = 0; bin < TA_BINS; bin++) {
        const ta_hole *last = NULL;
        if (!check_tree(bins->root[bin], bin, &last, &count, text, capacity))
            return false;
        bool bit = bins->words[bin / 64] >> bin % 64 & 1;
        if (bit != (bins->root[bin] != NULL)) {
            snprintf(text, capacity, "bin %u: bit %d, holes %d", bin, bit, !bit);
            return false;
        }
    }
    if (count != bins->count) {
        snprintf(text, capacity, "bins count %zu, holes in them %zu", bins->count, count);
        return false;
    }
    return true;
}
