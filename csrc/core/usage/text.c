/* text.c - what usage adds to the text of a refusal: who held the memory, and what
 * would have saved most. Called by the hooks when a request has been refused, with no lock
 * held; thread-safe. The same estimates as in python/torcharena/reports/remedies.py,
 * but for bf16: what a model is computed in is not known here. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "usage.h"

enum { REMEDIES = 7, SHOWN = 3 };

typedef struct amount {
    const char *what;
    uint64_t bytes;
} amount;

typedef struct line {
    char *text;
    size_t capacity, length;
} line;

__attribute__((format(printf, 2, 3))) static void add(line *l, const char *format, ...)
{
    va_list arguments;
    size_t used = l->length < l->capacity ? l->length : l->capacity;
    va_start(arguments, format);
    int n =
        vsnprintf(l->text ? l->text + used : NULL, l->capacity - used, format, arguments);
    va_end(arguments);
    if (n > 0) l->length += (size_t)n;
}

static void add_size(line *l, uint64_t bytes)
{
    if (bytes >= (uint64_t)1 << 30)
        add(l, "%.2f GiB", (double)bytes / (double)(1 << 30));
    else
        add(l, "%.2f MiB", (double)bytes / (double)(1 << 20));
}

/* Bytes by category, and of activations that forward passes made. */
typedef struct held {
    uint64_t of[TA_CATEGORIES], forward;
} held;

/* What an earlier step made and nobody freed is no activation that checkpointing would save:
 * workspaces of libraries are such. */
static void sum_up(const ta_usage_block *blocks, size_t count,
                   const ta_usage_phase *phases, size_t phase_count, uint64_t step,
                   held *h)
{
    for (size_t i = 0; i < count; i++) {
        const ta_usage_block *b = &blocks[i];
        if (b->phase >= phase_count) continue;
        const ta_usage_phase *p = &phases[b->phase];
        uint32_t as = b->category;
        if (as == TA_CATEGORY_UNKNOWN)
            as = p->activations ? TA_CATEGORY_ACTIVATION : TA_CATEGORY_OTHER;
        h->of[as] += b->size;
        if (as == TA_CATEGORY_ACTIVATION && b->step == step &&
            strcmp(p->name, "forward") == 0)
            h->forward += b->size;
    }
}

static int more_first(const void *a, const void *b)
{
    const amount *one = a, *other = b;
    return one->bytes < other->bytes ? 1 : one->bytes > other->bytes ? -1 : 0;
}

static void add_held(line *l, const held *h)
{
    amount found[] = {
        {"activations", h->of[TA_CATEGORY_ACTIVATION]},
        {"parameters", h->of[TA_CATEGORY_PARAMETER]},
        {"optimizer state", h->of[TA_CATEGORY_OPTIMIZER_STATE]},
        {"gradients", h->of[TA_CATEGORY_GRADIENT]},
        {"buffers", h->of[TA_CATEGORY_BUFFER]},
        {"workspaces", h->of[TA_CATEGORY_WORKSPACE]},
        {"other", h->of[TA_CATEGORY_OTHER]},
    };
    const size_t count = sizeof found / sizeof *found;
    qsort(found, count, sizeof *found, more_first);
    for (size_t i = 0; i < count && found[i].bytes; i++) {
        add(l, "%s%s ", i ? ", " : " By what they hold: ", found[i].what);
        add_size(l, found[i].bytes);
    }
}

static void add_remedies(line *l, const held *h, const ta_usage_counts *c)
{
    const uint64_t state = h->of[TA_CATEGORY_OPTIMIZER_STATE],
                   gradients = h->of[TA_CATEGORY_GRADIENT],
                   activations = h->of[TA_CATEGORY_ACTIVATION],
                   least = c->when[TA_USAGE_OOM].bytes / 100;
    amount found[REMEDIES] = {
        {"torch.no_grad() in evaluation, whose graphs never run backward",
         c->unused_bytes},
        {"checkpointing the repeated blocks", h->forward},
        {"torcharena.offload_optimizer, with enable(spill=)", state},
        {"half the batch, two steps accumulated", activations / 2},
        {"sharding over two GPUs",
         (h->of[TA_CATEGORY_PARAMETER] + gradients + state) / 2},
        {"an optimizer with 8-bit state", state / 4 * 3},
        {"training adapters only", state + gradients},
    };
    qsort(found, REMEDIES, sizeof *found, more_first);
    const char *before = " What would save most, at most: ";
    for (int i = 0; i < SHOWN && found[i].bytes && found[i].bytes >= least; i++) {
        add(l, "%s%s ", before, found[i].what);
        add_size(l, found[i].bytes);
        before = "; ";
    }
    if (*before == ';') add(l, ".");
}

/* The path of a phase, outermost first. */
static void add_path(line *l, const ta_usage_phase *phases, size_t count, uint32_t phase)
{
    if (!phase || phase >= count) return;
    if (phases[phase].around) {
        add_path(l, phases, count, phases[phase].around);
        add(l, "/");
    }
    add(l, "%s", phases[phase].name);
}

int ta_usage_oom_text(ta_usage *u, int device, char *text, size_t capacity)
{
    line l = {text, capacity, 0};
    held h = {0};
    ta_usage_counts c;
    if (capacity) *text = 0;
    ta_usage_look(u, device, &c);
    const ta_usage_when *when = &c.when[TA_USAGE_OOM];
    size_t room = ta_usage_blocks(u, device, TA_USAGE_OOM, NULL, 0);
    if (!when->requested || !room) return 0;
    ta_usage_block *blocks = malloc(room * sizeof *blocks);
    ta_usage_phase *phases = malloc(TA_USAGE_PHASES * sizeof *phases);
    if (blocks && phases) {
        size_t count = ta_usage_blocks(u, device, TA_USAGE_OOM, blocks, room);
        size_t named = ta_usage_phases(u, device, phases, TA_USAGE_PHASES);
        sum_up(blocks, count < room ? count : room, phases, named, when->step, &h);
        if (h.of[TA_CATEGORY_PARAMETER]) { /* else nobody has told categories */
            add_held(&l, &h);
            if (when->phase) add(&l, "; in ");
            add_path(&l, phases, named, when->phase);
            add(&l, ".");
            add_remedies(&l, &h, &c);
        }
    }
    free(blocks);
    free(phases);
    return (int)l.length;
}
