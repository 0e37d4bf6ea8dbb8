/* arena.c - where blocks go, and what becomes of them.
 *
 * Called by alloc.c and pages.c with the arena's lock held. A request takes the front or the
 * back of a hole; what is freed joins its neighbours at once. Nothing here counts pages one
 * by one while a hole has all of its own. */
#include "arena.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "check.h"
#include "bins.h"
#include "pages/chunk.h"
#include "count.h"
#include "events.h"
#include "huge.h"
#include "table.h"
#include "spill/tier.h"

#define CANDIDATES 16 /* best-fitting holes among which the fewest missing pages win */

/* --- spare descriptors ------------------------------------------------------------ */
/* A hole lies in one line, and of each block what its neighbours look at. */
typedef struct ta_slab {
    _Alignas(TA_LINE) ta_hole holes[128];
    ta_block blocks[128];
    struct ta_slab *next; /* of those that were allocated: the first of each run */
} ta_slab;
_Static_assert(sizeof(ta_hole) == TA_LINE && sizeof(ta_block) == TA_LINE + TA_LINE / 2,
               "lines begin at a multiple of either");
_Static_assert(offsetof(ta_block, prev) == TA_LINE / 2 &&
                   offsetof(ta_block, hole) < TA_LINE,
               "links, state and hole in one line");

/* An arena with as many slabs gets so many at once from then on. */
#define SLAB_RUN (TA_HUGE / sizeof(ta_slab))

static ta_slab *new_slab(ta_arena *arena)
{
    if (arena->slab_run) {
        arena->slab_run--;
        return arena->slab_next++;
    }
    const bool many = arena->slab_count >= SLAB_RUN;
    ta_slab *slab = many ? ta_huge_alloc(TA_HUGE) : aligned_alloc(TA_LINE, sizeof *slab);
    if (!slab) return NULL;
    slab->next = arena->slabs;
    arena->slabs = slab;
    arena->slab_next = slab + 1;
    arena->slab_run = many ? SLAB_RUN - 1 : 0;
    return slab;
}

bool ta_arena_restock(ta_arena *arena)
{
    ta_slab *slab = new_slab(arena);
    if (!slab) return false;
    arena->slab_count++;
    memset(slab->holes, 0, sizeof slab->holes);
    memset(slab->blocks, 0, sizeof slab->blocks);
    for (size_t i = 0; i < sizeof slab->blocks / sizeof *slab->blocks; i++) {
        slab->blocks[i].next = arena->spare_blocks;
        arena->spare_blocks = &slab->blocks[i];
        arena->spares++;
    }
    for (size_t i = 0; i < sizeof slab->holes / sizeof *slab->holes; i++) {
        slab->holes[i].spare = arena->spare_holes;
        arena->spare_holes = &slab->holes[i];
    }
    return true;
}

/* A take in the middle of a hole cuts off two pieces, a free none. */
bool ta_arena_stock_for(ta_arena *arena, size_t count)
{
    while (arena->spares < 4 + arena->chunk_count + 2 * count)
        if (!ta_arena_restock(arena)) return false;
    return true;
}

static ta_block *new_block(ta_arena *arena, ta_chunk *chunk, uint64_t addr, uint64_t size)
{
    ta_block *b = arena->spare_blocks;
    arena->spare_blocks = b->next;
    arena->spares--;
    b->addr = addr;
    b->size = size;
    b->chunk = chunk;
    b->prev = b->next = NULL;
    b->state = TA_FREE;
    b->broken = b->listed = false;
    b->uses = NULL;                                /* of what becomes live */
    b->own_first = b->own_end = b->own_mapped = 0; /* of what becomes part of a hole */
    return b;
}

static void drop_block(ta_arena *arena, ta_block *b)
{
    b->next = arena->spare_blocks;
    arena->spare_blocks = b;
    arena->spares++;
}

static ta_hole *new_hole(ta_arena *arena)
{
    ta_hole *h = arena->spare_holes;
    arena->spare_holes = h->spare;
    return h;
}

static void drop_hole(ta_arena *arena, ta_hole *h)
{
    h->spare = arena->spare_holes;
    arena->spare_holes = h;
}

/* --- neighbours -------------------------------------------------------------------- */
static uint64_t end_of(const ta_block *b) { return b->addr + b->size; }

static void insert_after(ta_block *at, ta_block *b)
{
    b->prev = at;
    b->next = at->next;
    if (at->next) at->next->prev = b;
    at->next = b;
}

static void insert_before(ta_block *at, ta_block *b)
{
    b->next = at;
    b->prev = at->prev;
    if (at->prev)
        at->prev->next = b;
    else
        b->chunk->first = b;
    at->prev = b;
}

static void unlink_block(ta_block *b)
{
    if (b->prev)
        b->prev->next = b->next;
    else
        b->chunk->first = b->next;
    if (b->next) b->next->prev = b->prev;
}

/* --- idle memory, longest idle first ------------------------------------------------ */
static void list_newest(ta_arena *arena, ta_block *b)
{
    b->listed = true;
    b->newer = NULL;
    b->older = arena->newest;
    *(arena->newest ? &arena->newest->newer : &arena->oldest) = b;
    arena->newest = b;
}

static void list_beside(ta_arena *arena, ta_block *at, ta_block *b)
{
    b->listed = true;
    b->older = at;
    b->newer = at->newer;
    *(at->newer ? &at->newer->older : &arena->newest) = b;
    at->newer = b;
}

static void unlist(ta_arena *arena, ta_block *b)
{
    if (!b->listed) return;
    b->listed = false;
    *(b->older ? &b->older->newer : &arena->oldest) = b->newer;
    *(b->newer ? &b->newer->older : &arena->newest) = b->older;
}

/* arena.idle = sum of own_mapped over its free blocks */
static void set_own_mapped(ta_arena *arena, ta_block *b, uint32_t mapped)
{
    arena->idle += mapped;
    arena->idle -= b->own_mapped;
    b->own_mapped = mapped;
    if (!mapped) unlist(arena, b);
}

static bool owns_none(const ta_block *b) { return b->own_first == b->own_end; }

/* The block owns at most [low, high) from now on. */
static void own_within(ta_arena *arena, ta_block *b, uint32_t low, uint32_t high,
                       bool all_mapped)
{
    if (b->own_first < low) b->own_first = low;
    if (b->own_end > high) b->own_end = high;
    if (b->own_first >= b->own_end) b->own_first = b->own_end = 0;
    set_own_mapped(arena, b,
                   all_mapped ? b->own_end - b->own_first
                              : ta_chunk_mapped(b->chunk, b->own_first, b->own_end));
}

/* Two neighbours of a hole, one of which owns nothing, become one. */
static ta_block *join(ta_arena *arena, ta_block *left, ta_block *right)
{
    ta_block *stays = owns_none(left) ? right : left,
             *goes = stays == left ? right : left;
    unlink_block(goes);
    if (stays == right) stays->addr = left->addr;
    stays->size += goes->size;
    drop_block(arena, goes);
    return stays;
}

/* --- taking -------------------------------------------------------------------------- */
static uint32_t missing(const ta_chunk *c, uint64_t addr, uint64_t end)
{
    uint32_t low = ta_slot_below(c, addr), high = ta_slot_above(c, end);
    return high - low - ta_chunk_mapped(c, low, high);
}

ta_place ta_arena_best(const ta_arena *arena, uint64_t size)
{
    ta_hole *h = ta_bins_fit(&arena->bins, size);
    ta_place best = {NULL, 0, UINT32_MAX};
    for (int i = 0; h && i < CANDIDATES; i++, h = ta_bins_next(&arena->bins, h)) {
        if (!h->unmapped) return (ta_place){h, h->addr, 0};
        const ta_chunk *c = h->first->chunk;
        uint64_t back = h->addr + h->size - size;
        uint32_t need = missing(c, h->addr, h->addr + size);
        if (need < best.need) best = (ta_place){h, h->addr, need};
        if (!best.need) return best;
        need = missing(c, back, back + size);
        if (need < best.need) best = (ta_place){h, back, need};
        if (!best.need) return best;
    }
    return best;
}

/* Slots of [addr, end) that lie wholly in the hole: nothing else keeps their pages. */
static uint32_t alone(const ta_chunk *c, const ta_hole *h, uint64_t addr, uint64_t end)
{
    uint32_t low = ta_slot_below(c, addr), high = ta_slot_above(c, end);
    if (low < ta_slot_above(c, h->addr)) low = ta_slot_above(c, h->addr);
    if (high > ta_slot_below(c, h->addr + h->size))
        high = ta_slot_below(c, h->addr + h->size);
    return low < high ? high - low : 0;
}

ta_place ta_arena_thriftiest(const ta_arena *arena, uint64_t size)
{
    ta_place best = {NULL, 0, 0};
    uint32_t fewest = UINT32_MAX;
    for (ta_hole *h = ta_bins_fit(&arena->bins, size); h;
         h = ta_bins_next(&arena->bins, h)) {
        const ta_chunk *c = h->first->chunk;
        uint64_t at[2] = {h->addr, h->addr + h->size - size};
        for (int i = 0; i < 2; i++) {
            uint32_t pages = alone(c, h, at[i], at[i] + size);
            if (pages >= fewest) continue;
            fewest = pages;
            best = (ta_place){h, at[i], missing(c, at[i], at[i] + size)};
        }
    }
    return best;
}

/* Of a hole that is in no bin, or of one that is and changes. */
static void set_hole(ta_arena *arena, ta_hole *h, ta_block *first, ta_block *last,
                     uint32_t unmapped, bool in_bin)
{
    const uint64_t addr = first->addr, size = end_of(last) - addr;
    h->first = first;
    h->last = last;
    h->unmapped = unmapped;
    first->hole = last->hole = h;
    if (in_bin) {
        ta_bins_move(&arena->bins, h, addr, size);
        return;
    }
    h->addr = addr;
    h->size = size;
    ta_bins_insert(&arena->bins, h);
}

/* Slots of [addr, end) without a page; each lies wholly inside. */
static uint32_t unmapped_in(const ta_chunk *c, uint64_t addr, uint64_t end)
{
    uint32_t low = ta_slot_above(c, addr), high = ta_slot_below(c, end);
    return low < high ? high - low - ta_chunk_mapped(c, low, high) : 0;
}

/* The page at the edge of what was taken is idle no more: nobody owns it, and blocks that
 * owned nothing else join their neighbours. Returns the block at the edge. */
static ta_block *settle_left(ta_arena *arena, ta_block *edge, const ta_block *first,
                             uint64_t addr, bool all_mapped)
{
    const ta_chunk *c = edge->chunk;
    uint32_t slot = ta_slot_below(c, addr);
    uint64_t page = c->addr + ((uint64_t)slot << c->shift);
    for (ta_block *b = edge; end_of(b) > page; b = b->prev) {
        own_within(arena, b, 0, slot, all_mapped);
        if (b == first) break;
    }
    while (edge != first && (owns_none(edge) || owns_none(edge->prev))) {
        bool to_first = edge->prev == first;
        edge = join(arena, edge->prev, edge);
        if (to_first) break;
    }
    return edge;
}

static ta_block *settle_right(ta_arena *arena, ta_block *edge, const ta_block *last,
                              uint64_t end, bool all_mapped)
{
    const ta_chunk *c = edge->chunk;
    uint32_t slot = ta_slot_above(c, end);
    uint64_t page = c->addr + ((uint64_t)slot << c->shift);
    for (ta_block *b = edge; b->addr < page; b = b->next) {
        own_within(arena, b, slot, UINT32_MAX, all_mapped);
        if (b == last) break;
    }
    while (edge != last && (owns_none(edge) || owns_none(edge->next))) {
        bool to_last = edge->next == last;
        edge = join(arena, edge, edge->next);
        if (to_last) break;
    }
    return edge;
}

/* The front of a hole that is one block, or all of it, with pages under all that is taken: as
 * the general way does it. */
static inline ta_block *take_front(ta_arena *arena, ta_hole *hole, uint64_t size)
{
    ta_block *b = hole->first, *taken;
    if (size == hole->size) {
        ta_bins_remove(&arena->bins, hole);
        drop_hole(arena, hole);
        set_own_mapped(arena, b, 0);
        b->state = TA_HELD;
        b->uses = NULL;
        return b;
    }
    taken = new_block(arena, b->chunk, b->addr, size);
    taken->state = TA_HELD;
    insert_before(b, taken);
    b->addr += size;
    b->size -= size;
    const uint32_t low = ta_slot_above(b->chunk, b->addr);
    if (b->own_first < low && !owns_none(b))
        own_within(arena, b, low, UINT32_MAX, !hole->unmapped);
    ta_bins_move(&arena->bins, hole, b->addr, b->size);
    return taken;
}

ta_block *ta_arena_take(ta_arena *arena, ta_hole *hole, uint64_t addr, uint64_t size)
{
    if (hole->first == hole->last && addr == hole->addr &&
        (!hole->unmapped || !unmapped_in(hole->first->chunk, addr, addr + size))) {
        ta_arena_verify(arena, "take");
        arena->changes++;
        ta_block *front = take_front(arena, hole, size);
        ta_arena_verify(arena, "take, after");
        return front;
    }
    uint64_t end = addr + size, hole_end = hole->addr + hole->size;
    ta_block *first = hole->first, *last = hole->last, *b;
    ta_chunk *c = first->chunk;
    bool all_mapped = !hole->unmapped, has_left = addr > hole->addr,
         has_right = end < hole_end;
    uint32_t inside = all_mapped ? 0 : unmapped_in(c, addr, end);
    uint32_t on_left = all_mapped || !has_left ? 0 : unmapped_in(c, hole->addr, addr);
    uint32_t on_right = hole->unmapped - inside - on_left;

    ta_arena_verify(arena, "take");
    arena->changes++;
    ta_bins_remove(&arena->bins, hole);
    ta_block *taken = new_block(arena, c, addr, size);
    taken->state = TA_HELD;
    if (addr - hole->addr <= hole_end - end)
        for (b = first; end_of(b) <= addr; b = b->next) {
        }
    else
        for (b = last; b->addr > addr; b = b->prev) {
        }

    /* b holds addr: what of it lies left of the taken stays, the rest is consumed. */
    if (b->addr < addr) {
        if (end_of(b) > end) { /* and right of it too */
            ta_block *r = new_block(arena, c, end, end_of(b) - end);
            r->tick = b->tick;
            r->own_first = b->own_first;
            r->own_end = b->own_end;
            if (b->listed) list_beside(arena, b, r);
            own_within(arena, r, ta_slot_above(c, end), UINT32_MAX, all_mapped);
            insert_after(b, r);
            if (last == b) last = r;
        }
        b->size = addr - b->addr;
        own_within(arena, b, 0, ta_slot_below(c, addr), all_mapped);
        insert_after(b, taken);
    } else
        insert_before(b, taken);
    for (b = taken->next; b && b->addr < end;) {
        ta_block *next = b->next;
        if (end_of(b) > end) {
            b->size = end_of(b) - end;
            b->addr = end;
            own_within(arena, b, ta_slot_above(c, end), UINT32_MAX, all_mapped);
            break;
        }
        set_own_mapped(arena, b, 0);
        unlink_block(b);
        drop_block(arena, b);
        b = next;
    }
    ta_block *left = taken->prev, *right = taken->next;
    if (has_left) {
        left = settle_left(arena, left, first, addr, all_mapped);
        if (left->addr == hole->addr) first = left;
    }
    if (has_right) {
        right = settle_right(arena, right, last, end, all_mapped);
        if (end_of(right) == hole_end) last = right;
    }
    if (has_left && has_right) {
        set_hole(arena, hole, first, left, on_left, false);
        set_hole(arena, new_hole(arena), right, last, on_right, false);
    } else if (has_left)
        set_hole(arena, hole, first, left, on_left, false);
    else if (has_right)
        set_hole(arena, hole, right, last, on_right, false);
    else
        drop_hole(arena, hole);
    ta_arena_verify(arena, "take, after");
    return taken;
}

/* --- giving --------------------------------------------------------------------------- */
void ta_arena_give(ta_arena *arena, ta_block *block, uint64_t tick)
{
    ta_chunk *c = block->chunk;
    ta_block *prev = block->prev, *next = block->next;
    arena->changes++;
    if (prev && prev->state != TA_FREE) prev = NULL;
    if (next && next->state != TA_FREE) next = NULL;
    ta_hole *left = prev ? prev->hole : NULL, *right = next ? next->hole : NULL;
    uint64_t start = left ? left->addr : block->addr;
    uint64_t end = right ? right->addr + right->size : end_of(block);
    bool held = block->state == TA_HELD; /* only then can pages be missing under it */
    uint32_t unmapped = held ? unmapped_in(c, block->addr, end_of(block)) : 0;

    uint32_t low = ta_slot_below(c, block->addr), high = ta_slot_above(c, end_of(block));
    if (low < ta_slot_above(c, start)) low = ta_slot_above(c, start);
    if (high > ta_slot_below(c, end)) high = ta_slot_below(c, end);
    if (low >= high) low = high = 0;
    block->state = TA_FREE;
    block->listed = false;
    block->tick = tick;
    block->own_first = low;
    block->own_end = high;
    block->own_mapped = 0;
    const uint32_t on_host = c->spilled_count ? ta_tier_leave(arena, c, low, high) : 0;
    unmapped += on_host;
    set_own_mapped(arena, block,
                   held ? ta_chunk_mapped(c, low, high) : high - low - on_host);
    if (block->own_mapped) list_newest(arena, block);

    ta_block *first = left ? left->first : block, *last = right ? right->last : block;
    if (left) unmapped += left->unmapped;
    if (right) unmapped += right->unmapped;
    if (left && right) ta_bins_remove(&arena->bins, right);
    if (prev && (owns_none(prev) || owns_none(block))) {
        bool was_first = first == prev;
        block = join(arena, prev, block);
        if (was_first) first = block;
        if (!right) last = block;
    }
    if (next && (owns_none(block) || owns_none(next))) {
        bool was_first = first == block, was_last = last == next;
        block = join(arena, block, next);
        if (was_first) first = block;
        if (was_last) last = block;
    }
    if (left && right) drop_hole(arena, right);
    set_hole(arena,
             left    ? left
             : right ? right
                     : new_hole(arena),
             first, last, unmapped, left || right);
    ta_arena_verify(arena, "give");
}

void ta_arena_cut(ta_arena *arena, ta_block *block, uint64_t addr, uint64_t size)
{
    uint64_t end = addr + size;
    /* What is cut off shares its page with the block, so it owns no page. */
    if (block->addr < addr) {
        ta_block *b = new_block(arena, block->chunk, block->addr, addr - block->addr);
        b->state = TA_HELD;
        insert_before(block, b);
        block->size -= b->size;
        block->addr = addr;
        ta_arena_give(arena, b, 0);
    }
    if (end_of(block) > end) {
        ta_block *b = new_block(arena, block->chunk, end, end_of(block) - end);
        b->state = TA_HELD;
        insert_after(block, b);
        block->size = size;
        ta_arena_give(arena, b, 0);
    }
}

/* --- chunks ---------------------------------------------------------------------------- */
void ta_arena_add_chunk(ta_arena *arena, ta_chunk *c, uint64_t tick)
{
    ta_block *b = new_block(arena, c, c->addr, c->size);
    b->state = TA_HELD;
    c->first = b;
    atomic_store_explicit(&c->arena, arena, memory_order_release);
    c->prev = NULL;
    c->next = arena->chunks;
    if (c->next) c->next->prev = c;
    arena->chunks = c;
    arena->chunk_count++;
    ta_arena_give(arena, b, tick);
}

bool ta_chunk_empty(const ta_chunk *c)
{
    return !c->mapped_count && !c->spilled_count && c->first &&
           c->first->state == TA_FREE && c->first->hole->size == c->size;
}

void ta_arena_drop_chunk(ta_arena *arena, ta_chunk *c)
{
    ta_hole *h = c->first->hole;
    ta_bins_remove(&arena->bins, h);
    drop_hole(arena, h);
    while (c->first) {
        ta_block *b = c->first;
        c->first = b->next;
        set_own_mapped(arena, b, 0);
        drop_block(arena, b);
    }
    *(c->prev ? &c->prev->next : &arena->chunks) = c->next;
    if (c->next) c->next->prev = c->prev;
    atomic_store(&c->arena, NULL);
    arena->chunk_count--;
}

void ta_arena_destroy(ta_arena *arena)
{
    for (ta_slab *slab = arena->slabs, *next; slab; slab = next) {
        next = slab->next;
        free(slab);
    }
    ta_table_free(&arena->table);
}

/* --- idle pages ------------------------------------------------------------------------- */
static ta_hole *hole_of(ta_block *b)
{
    while (b->prev && b->prev->state == TA_FREE) b = b->prev;
    return b->hole;
}

size_t ta_arena_steal(ta_arena *arena, size_t max, uint64_t passed, ta_handle *pages,
                      ta_status *status)
{
    size_t got = 0;
    *status = TA_OK;
    while (got < max && arena->oldest && arena->oldest->tick < passed) {
        ta_block *b = arena->oldest;
        ta_chunk *c = b->chunk;
        uint32_t end = b->own_end; /* requests take the front, so the back goes first */
        while (!ta_chunk_has(c, end - 1)) end--;
        uint32_t begin = end;
        while (begin > b->own_first && ta_chunk_has(c, begin - 1) &&
               end - begin < max - got)
            begin--;
        *status = ta_call_unmap(arena->device, c->addr + ((uint64_t)begin << c->shift),
                                (uint64_t)(end - begin) << c->shift);
        if (*status) return got;
        uint32_t count = end - begin;
        hole_of(b)->unmapped += count;
        ta_emit_pages(arena, TA_EVENT_UNMAP, c, begin, end);
        while (end > begin) pages[got++] = ta_chunk_clear(c, --end);
        set_own_mapped(arena, b, b->own_mapped - count);
        ta_count_mapped(arena, -(int64_t)count);
        ta_arena_verify(arena, "steal");
    }
    return got;
}
