/* check.c - every invariant of types.h, both sides printed when one fails.
 * ta_check is public and thread-safe; the rest is called with the lock it names. */
#include "check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "bins.h"
#include "count.h"
#include "pages/chunk.h"
#include "device.h"
#include "pages/gather.h"
#include "spill/host.h"
#include "ledger/share.h"
#include "table.h"

typedef struct ta_checker {
    char *text;
    size_t capacity;
} ta_checker;

__attribute__((format(printf, 2, 3))) static bool fail(const ta_checker *k,
                                                       const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(k->text, k->capacity, format, arguments);
    va_end(arguments);
    return false;
}

typedef unsigned long long ull;
#define SAME(what, a, b)                                                                 \
    do {                                                                                 \
        ull left_ = (ull)(a), right_ = (ull)(b);                                         \
        if (left_ != right_)                                                             \
            return fail(k, "%s: %s = %llu, %s = %llu", what, #a, left_, #b, right_);     \
    } while (0)

typedef struct ta_sums {
    ta_counts counts;
    uint64_t holes, idle, listed, spilled, stray;
} ta_sums;

static bool check_hole(const ta_checker *k, const ta_chunk *c, const ta_block *first,
                       const ta_block *last, ta_sums *sums)
{
    const ta_hole *h = first->hole;
    SAME("hole", h == last->hole, 1);
    SAME("hole", h->first == first, 1);
    SAME("hole", h->last == last, 1);
    SAME("hole", h->addr, first->addr);
    SAME("hole", h->addr + h->size, last->addr + last->size);
    uint32_t low = ta_slot_above(c, h->addr), high = ta_slot_below(c, h->addr + h->size);
    uint32_t mapped = low < high ? ta_chunk_mapped(c, low, high) : 0, owned = 0;
    uint32_t at = low;
    SAME("slots without a page", h->unmapped, low < high ? high - low - mapped : 0);
    for (const ta_block *b = first;; b = b->next) {
        bool owns = b->own_first < b->own_end;
        SAME("owned pages", b->own_mapped, ta_chunk_mapped(c, b->own_first, b->own_end));
        SAME("listed", b->listed, b->own_mapped > 0);
        if (owns) {
            SAME("owner touches", b->own_first >= ta_slot_below(c, b->addr), 1);
            SAME("owner touches", b->own_end <= ta_slot_above(c, b->addr + b->size), 1);
            SAME("each page has one owner", b->own_first, at);
            at = b->own_end;
        } else
            SAME("a hole of several blocks has none that owns nothing", first == last, 1);
        owned += b->own_mapped;
        sums->listed += b->listed;
        if (b == last) break;
    }
    SAME("owned pages", owned, mapped);
    if (low < high) SAME("each page has one owner", at, high);
    for (uint32_t i = low; i < high && c->spilled_count; i++)
        SAME("spilled slots under a hole serve nobody",
             ta_slot_is(c, i) != TA_SLOT_DEVICE && ta_chunk_has(c, i), 0);
    sums->idle += mapped;
    sums->holes++;
    return true;
}

static bool check_used(const ta_checker *k, const ta_arena *arena, const ta_block *b,
                       ta_sums *sums)
{
    const ta_chunk *c = b->chunk;
    bool in_table = ta_table_find(&arena->table, b->addr) == b;
    if (b->state == TA_HELD && !in_table) return true; /* its pages are on the way */
    uint32_t low = ta_slot_below(c, b->addr), high = ta_slot_above(c, b->addr + b->size);
    SAME("block in table", in_table, 1);
    SAME("pages under a block", ta_chunk_mapped(c, low, high), high - low);
    SAME("aligned", b->addr % TA_GRANULE, 0);
    SAME("fits", b->requested <= b->size, 1);
    if (b->state == TA_PENDING) {
        sums->counts.pending_blocks++;
        sums->counts.pending_bytes += b->size;
    } else {
        sums->counts.live_blocks++;
        sums->counts.live_bytes += b->size;
        sums->counts.live_requested += b->requested;
    }
    return true;
}

static bool check_spilled(const ta_checker *k, const ta_chunk *c, uint32_t i)
{
    const ta_spilled *s = &c->spilled[i];
    const bool mapped = s->state == TA_SLOT_HOST || s->state == TA_SLOT_COMING;
    SAME("mapped", c->pages[i] != 0, mapped);
    if (s->state == TA_SLOT_HOST) SAME("host page", c->pages[i], s->page->handle);
    if (s->state == TA_SLOT_AWAY) SAME("host page", s->page != NULL, 1);
    if (s->state == TA_SLOT_VOID) SAME("host page", s->page == NULL, 1);
    return true;
}

static bool check_chunk(const ta_checker *k, const ta_arena *arena, const ta_chunk *c,
                        ta_sums *sums)
{
    uint64_t at = c->addr;
    uint32_t set = 0, spilled = 0;
    const ta_block *prev = NULL, *first = NULL;
    for (const ta_block *b = c->first; b; prev = b, b = b->next) {
        SAME("blocks tile a chunk", b->addr, at);
        SAME("links", b->prev == prev, 1);
        SAME("chunk", b->chunk == c, 1);
        SAME("not empty", b->size > 0, 1);
        at += b->size;
        if (b->state != TA_FREE) {
            if (!check_used(k, arena, b, sums)) return false;
            continue;
        }
        if (!first) first = b;
        if (b->next && b->next->state == TA_FREE) continue;
        if (!check_hole(k, c, first, b, sums)) return false;
        first = NULL;
    }
    SAME("blocks tile a chunk", at, c->addr + c->size);
    for (uint32_t i = 0; i < c->slots; i++) {
        const ta_slot_state state = ta_slot_is(c, i);
        if (state == TA_SLOT_DEVICE)
            SAME("page and its bit", c->pages[i] != 0, ta_chunk_has(c, i));
        else if (!check_spilled(k, c, i))
            return false;
        set += ta_chunk_has(c, i);
        spilled += state != TA_SLOT_DEVICE;
        sums->spilled += state != TA_SLOT_DEVICE;
        sums->stray += state == TA_SLOT_COMING && !ta_chunk_has(c, i);
    }
    SAME("mapped pages", c->mapped_count, set);
    SAME("spilled slots", c->spilled_count, spilled);
    return true;
}

bool ta_arena_check(const ta_arena *arena, char *text, size_t capacity)
{
    const ta_checker checker = {text, capacity}, *k = &checker;
    ta_sums sums = {0};
    uint64_t listed = 0, pending = 0;
    for (const ta_chunk *c = arena->chunks; c; c = c->next)
        if (!check_chunk(k, arena, c, &sums)) return false;
    SAME("live blocks", arena->counts.live_blocks, sums.counts.live_blocks);
    SAME("live bytes", arena->counts.live_bytes, sums.counts.live_bytes);
    SAME("live requested", arena->counts.live_requested, sums.counts.live_requested);
    SAME("pending blocks", arena->counts.pending_blocks, sums.counts.pending_blocks);
    SAME("pending bytes", arena->counts.pending_bytes, sums.counts.pending_bytes);
    SAME("table", arena->table.count,
         sums.counts.live_blocks + sums.counts.pending_blocks + (arena->warm != NULL));
    SAME("idle pages", arena->idle, sums.idle);
    SAME("spilled slots", arena->spilled, sums.spilled);
    SAME("stray pages", arena->stray, sums.stray);
    SAME("holes", arena->bins.count, sums.holes);
    for (const ta_block *b = arena->oldest; b; b = b->newer, listed++)
        SAME("list", b->newer ? b->newer->older == b : arena->newest == b, 1);
    SAME("listed blocks", listed, sums.listed);
    for (const ta_block *b = arena->pending_first; b; b = b->pending_next) pending++;
    SAME("pending blocks", pending, sums.counts.pending_blocks);
    return ta_bins_check(&arena->bins, text, capacity);
}

#ifdef TA_CHECKING
void ta_arena_verify(const ta_arena *arena, const char *where)
{
    static _Thread_local unsigned calls;
    char text[256];
    if (arena->table.count > 64 && ++calls % (unsigned)arena->table.count) return;
    if (ta_arena_check(arena, text, sizeof text)) return;
    fprintf(stderr, "invariant broken in %s: %s\n", where, text);
    abort();
}

static _Thread_local ta_rank held[16];
static _Thread_local int held_count;

void ta_rank_push(ta_rank rank)
{
    if (held_count && held[held_count - 1] >= rank) {
        fprintf(stderr, "lock of rank %d taken under one of rank %d\n", (int)rank,
                (int)held[held_count - 1]);
        abort();
    }
    held[held_count++] = rank;
}

void ta_rank_pop(ta_rank rank)
{
    int at = held_count - 1;
    while (at >= 0 && held[at] != rank) at--;
    if (at < 0) {
        fprintf(stderr, "lock of rank %d dropped but not held\n", (int)rank);
        abort();
    }
    for (held_count--; at < held_count; at++) held[at] = held[at + 1];
}
#endif

/* --- the whole ---------------------------------------------------------------------- */
/* Blocks come and go under their arena's lock alone, so the device's sums are compared only
 * where nothing did while the arenas were looked at one by one. */
static uint64_t changes(ta_device *d, ta_stats *s)
{
    ta_count_stats(d, s);
    const ta_gauge *blocks = &s->allocations[TA_POOL_ALL];
    const ta_gauge *active = &s->active_blocks[TA_POOL_ALL];
    return blocks->increased + blocks->decreased + active->decreased;
}

/* `pages` is held. */
/* Bytes of slots by what they hold; of those that are not on the device, with blocks on. */
typedef struct ta_tiers {
    uint64_t pages, bytes, spilled, dropped;
} ta_tiers;

static void add_tiers(ta_tiers *t, const ta_arena *a)
{
    for (const ta_chunk *c = a->chunks; c; c = c->next)
        for (uint32_t i = 0; i < c->slots; i++) {
            const ta_slot_state state = ta_slot_is(c, i);
            const bool device = state == TA_SLOT_DEVICE || state == TA_SLOT_COMING;
            if (device ? !c->pages[i] : !ta_chunk_has(c, i)) continue;
            if (device) {
                t->pages++;
                t->bytes += c->page_bytes;
            } else
                *(state == TA_SLOT_VOID ? &t->dropped : &t->spilled) += c->page_bytes;
        }
}

static bool check_device(const ta_checker *k, ta_device *d)
{
    ta_stats s;
    const uint64_t before = changes(d, &s);
    ta_tiers tiers = {0};
    ta_counts sum = {0};
    for (ta_arena *a = d->arenas; a; a = a->next) {
        ta_arena_lock(a);
        bool good = ta_arena_check(a, k->text, k->capacity);
        add_tiers(&tiers, a);
        sum.live_bytes += a->counts.live_bytes;
        sum.live_requested += a->counts.live_requested;
        sum.pending_bytes += a->counts.pending_bytes;
        sum.live_blocks += a->counts.live_blocks;
        ta_arena_unlock(a);
        if (!good) return false;
    }
    if (changes(d, &s) == before) {
        SAME("allocated", s.allocated[TA_POOL_ALL].current, sum.live_bytes);
        SAME("requested", s.requested[TA_POOL_ALL].current, sum.live_requested);
        SAME("pending", s.pending.current, sum.pending_bytes);
        SAME("active", s.active[TA_POOL_ALL].current, sum.live_bytes + sum.pending_bytes);
        SAME("allocations", s.allocations[TA_POOL_ALL].current, sum.live_blocks);
    }
    const uint64_t ready = ta_ready_held(d);
    SAME("mapped", s.mapped[TA_POOL_ALL].current, s.reserved.current - ready);
    /* Pages on the way to a place that waits are ready ones meanwhile, so none is in hand. */
    SAME("reserved", s.reserved.current, tiers.bytes + ready);
    for (unsigned i = 0; i < TA_PAGE_SIZES; i++) tiers.pages += d->ready[i].count;
    SAME("pages", s.pages.current, tiers.pages);
    ta_stats after;
    if (changes(d, &after) == before) {
        SAME("spilled", s.spilled.current, tiers.spilled);
        SAME("dropped", s.dropped.current, tiers.dropped);
    }
    if (!ta_share_check(d, k->text, k->capacity)) return false;
    for (const ta_stream_state *stream = d->streams; stream; stream = stream->next) {
        uint64_t tick = stream->passed;
        for (const ta_mark_event *m = stream->first; m; tick = m->tick, m = m->next)
            SAME("marks rise", m->tick > tick, 1);
    }
    return true;
}

bool ta_check(ta_allocator *a, char *text, size_t capacity)
{
    const ta_checker checker = {text, capacity}, *k = &checker;
    bool good = true;
    if (ta_forked(a)) return fail(k, "called in a forked child");
    for (int i = 0; i < TA_MAX_DEVICES && good; i++) {
        ta_device *d = ta_device_if_used(a, i);
        if (!d) continue;
        ta_lock_take(&d->pages);
        good = check_device(k, d);
        ta_lock_drop(&d->pages);
    }
    return good;
}
