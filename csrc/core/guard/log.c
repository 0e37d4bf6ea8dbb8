/* log.c - what guarded blocks showed, and addresses that had one; see log.h.
 *
 * Called by guard.c, and through the public functions by whoever asks. The lock is an inner
 * one: nothing is called while it is held. */
#include "log.h"

#include <stdio.h>
#include <stdlib.h>

#include "records/place.h"

#define ROOM 64u /* findings; those beyond are counted */

/* told <= said <= told + ROOM;  waiting = said - told
 * parted: the newest is at (first + count - 1) % TA_PARTED */
struct ta_guard {
    ta_lock lock;
    atomic_uint waiting;
    unsigned said, told;
    ta_guard_finding findings[ROOM];
    unsigned first, count;
    ta_parted parted[TA_PARTED];
};

bool ta_guard_create(ta_allocator *a)
{
    a->guard = calloc(1, sizeof *a->guard);
    if (!a->guard) return false;
    ta_lock_init(&a->guard->lock, TA_RANK_LOOKUP);
    return true;
}

void ta_guard_destroy(ta_allocator *a)
{
    if (!a->guard) return;
    ta_lock_destroy(&a->guard->lock);
    free(a->guard);
    a->guard = NULL;
}

void ta_guard_note(ta_guarded *guarded, const ta_block *b, ta_stream stream)
{
    const ta_place place = ta_place_now();
    *guarded = (ta_guarded){.addr = b->addr,
                            .size = b->requested,
                            .serial = b->serial,
                            .stream = stream,
                            .module = place.module,
                            .stack = place.stack};
}

void ta_guard_tell(ta_allocator *a, const ta_guard_finding *finding)
{
    struct ta_guard *g = a->guard;
    ta_lock_take(&g->lock);
    if (g->said - g->told < ROOM) { /* the first are the ones that matter */
        g->findings[g->said++ % ROOM] = *finding;
        atomic_store(&g->waiting, g->said - g->told);
    }
    ta_lock_drop(&g->lock);
}

bool ta_guard_found(const ta_allocator *a)
{
    return a->guard && atomic_load_explicit(&a->guard->waiting, memory_order_relaxed);
}

bool ta_guard_next(ta_allocator *a, ta_guard_finding *finding)
{
    struct ta_guard *g = a->guard;
    if (!g || ta_forked(a)) return false;
    ta_lock_take(&g->lock);
    const bool any = g->said != g->told;
    if (any) *finding = g->findings[g->told++ % ROOM];
    atomic_store(&g->waiting, g->said - g->told);
    ta_lock_drop(&g->lock);
    return any;
}

void ta_guard_bad_free(ta_allocator *a, const void *ptr)
{
    struct ta_guard *g = a->guard;
    if (!g || ta_forked(a)) return;
    const uint64_t addr = (uintptr_t)ptr;
    ta_guard_finding finding = {.kind = TA_GUARD_BAD_FREE, .device = -1, .addr = addr};
    ta_lock_take(&g->lock);
    for (unsigned i = g->count; i-- > 0;) {
        const ta_parted *p = &g->parted[(g->first + i) % TA_PARTED];
        if (addr - p->base >= p->bytes) continue;
        finding.device = p->device;
        finding.stream = p->block.stream;
        finding.size = p->block.size;
        finding.serial = p->block.serial;
        finding.at = (int64_t)(addr - p->block.addr);
        finding.module = p->block.module;
        finding.stack = p->block.stack;
        break;
    }
    ta_lock_drop(&g->lock);
    ta_guard_tell(a, &finding);
}

bool ta_guard_part(ta_allocator *a, const ta_parted *in, ta_parted *out)
{
    struct ta_guard *g = a->guard;
    ta_lock_take(&g->lock);
    const bool full = g->count == TA_PARTED;
    if (full) {
        *out = g->parted[g->first];
        g->first = (g->first + 1) % TA_PARTED;
        g->count--;
    }
    g->parted[(g->first + g->count++) % TA_PARTED] = *in;
    ta_lock_drop(&g->lock);
    return full;
}

bool ta_guard_unpart(ta_allocator *a, int device, ta_parted *out)
{
    struct ta_guard *g = a->guard;
    bool found = false;
    ta_lock_take(&g->lock);
    for (unsigned i = 0; i < g->count && !found; i++) {
        ta_parted *p = &g->parted[(g->first + i) % TA_PARTED];
        if (p->device != device) continue;
        found = true;
        *out = *p;
        *p = g->parted[g->first]; /* they have an order no more: it ends */
        g->first = (g->first + 1) % TA_PARTED;
        g->count--;
    }
    ta_lock_drop(&g->lock);
    return found;
}

static const char *unit(uint64_t count) { return count == 1 ? "byte" : "bytes"; }

/* Of the block: how large, which, and where from. */
static int about(const ta_guard_finding *f, const char *place, char *text, size_t size)
{
    return snprintf(text, size, "%llu %s at %#llx on GPU %d (allocation %llu%s%s)",
                    (unsigned long long)f->size, unit(f->size),
                    (unsigned long long)(f->kind == TA_GUARD_BAD_FREE
                                             ? f->addr - (uint64_t)f->at
                                             : f->addr),
                    f->device, (unsigned long long)f->serial,
                    place && *place ? ", made at " : "", place && *place ? place : "");
}

int ta_guard_text(const ta_guard_finding *f, const char *place, char *text,
                  size_t capacity)
{
    char block[512], where[96];
    if (f->kind == TA_GUARD_BAD_FREE && !f->serial)
        return snprintf(text, capacity,
                        "torcharena guard: a free of %#llx, where no block begins",
                        (unsigned long long)f->addr);
    about(f, place, block, sizeof block);
    if (f->kind == TA_GUARD_BAD_FREE)
        return snprintf(
            text, capacity,
            "torcharena guard: a free of %#llx, where no block lives; there was "
            "one of %s, freed before",
            (unsigned long long)f->addr, block);
    const uint64_t past = f->at < 0 ? 0 : (uint64_t)f->at - f->size;
    if (f->at < 0)
        snprintf(where, sizeof where, "%llu %s before its start",
                 (unsigned long long)-f->at, unit((uint64_t)-f->at));
    else if (past == 0)
        snprintf(where, sizeof where, "right behind its end");
    else
        snprintf(where, sizeof where, "%llu %s past its end", (unsigned long long)past,
                 unit(past));
    return snprintf(
        text, capacity,
        "torcharena guard: %llu %s outside of a block were written, the nearest "
        "%s (byte %lld, %#04x in place of %#04x). The block had %s. Whatever "
        "writes near it, a kernel or a copy, wrote too far",
        (unsigned long long)f->bytes, unit(f->bytes), where, (long long)f->at,
        (unsigned)f->found, TA_GUARD_BYTE, block);
}
