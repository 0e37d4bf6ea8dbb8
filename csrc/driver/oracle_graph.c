/* oracle_graph.c - what a graph's work touches, at every launch of it.
 *
 * Ranges are those its captured work named; blocks are those allocated while it was
 * captured, which any of its work may touch. Called with the machine's lock held. */
#include <stdlib.h>

#include "oracle_internal.h"

/* --- sets of spans ------------------------------------------------------------------ */
static void span_add(ta_spans *spans, uint64_t low, uint64_t high)
{
    for (uint32_t i = spans->count; i > 0 && i + 8 > spans->count; i--)
        if (spans->list[i - 1].low <= low && high <= spans->list[i - 1].high) return;
    if (spans->count == spans->capacity) {
        uint32_t capacity = spans->capacity ? spans->capacity * 2 : 16;
        ta_span *list = realloc(spans->list, capacity * sizeof *list);
        if (!list) return;
        spans->list = list;
        spans->capacity = capacity;
    }
    spans->list[spans->count++] = (ta_span){low, high};
    spans->merged = false;
}

static int by_low(const void *a, const void *b)
{
    const ta_span *x = a, *y = b;
    return (x->low > y->low) - (x->low < y->low);
}

/* Sorted, and no two touch. */
static void merge(ta_spans *spans)
{
    if (spans->merged || spans->count == 0) return;
    qsort(spans->list, spans->count, sizeof *spans->list, by_low);
    uint32_t kept = 0;
    for (uint32_t i = 1; i < spans->count; i++) {
        ta_span *last = &spans->list[kept], *next = &spans->list[i];
        if (next->low > last->high)
            spans->list[++kept] = *next;
        else if (next->high > last->high)
            last->high = next->high;
    }
    spans->count = kept + 1;
    spans->merged = true;
}

static bool overlaps(ta_spans *spans, uint64_t low, uint64_t high)
{
    merge(spans);
    uint32_t from = 0, to = spans->count; /* the first span that ends above low */
    while (from < to) {
        uint32_t middle = from + (to - from) / 2;
        if (spans->list[middle].high <= low)
            from = middle + 1;
        else
            to = middle;
    }
    return from < spans->count && spans->list[from].low < high;
}

/* --- graphs ------------------------------------------------------------------------- */
ta_oracle_graph *ta_oracle_graph_create(ta_oracle *oracle)
{
    ta_oracle_graph *graph = calloc(1, sizeof *graph);
    if (!graph) return NULL;
    graph->next = oracle->graphs;
    oracle->graphs = graph;
    return graph;
}

/* What is launched goes on: its touches stay. */
void ta_oracle_graph_destroy(ta_oracle *oracle, ta_oracle_graph *graph)
{
    if (!graph) return;
    ta_oracle_graph **link = &oracle->graphs;
    while (*link != graph) link = &(*link)->next;
    *link = graph->next;
    free(graph->reads.list);
    free(graph->writes.list);
    free(graph->blocks.list);
    free(graph);
}

void ta_oracle_graph_range(ta_oracle_graph *graph, uint64_t addr, uint64_t size,
                           bool write)
{
    if (size) span_add(write ? &graph->writes : &graph->reads, addr, addr + size);
}

void ta_oracle_graph_block(ta_oracle_graph *graph, uint64_t addr, uint64_t size)
{
    if (size) span_add(&graph->blocks, addr, addr + size);
}

/* What blocks of graph pools left here is no matter, those that were warmed up outside of
 * captures among them: the bytes were nobody else's since, and
 * whoever uses a graph's output on one stream and launches on another orders the two. It is
 * a matter for unmapping and for blocks of others. */
static void launch_blocks(ta_oracle *oracle, ta_oracle_graph *graph, uint32_t queue)
{
    const ta_position at = {queue, oracle->queues[queue].items};
    merge(&graph->blocks);
    for (uint32_t i = 0; i < graph->blocks.count; i++) {
        const ta_span span = graph->blocks.list[i];
        ta_space_find(oracle, &oracle->freed, span.low, span.high);
        for (uint32_t k = 0; k < oracle->found_count; k++) {
            const ta_position x = oracle->found[k]->at;
            if (!oracle->found[k]->captured && !ta_oracle_is_ordered(oracle, x, queue))
                ta_oracle_violation(oracle,
                                    "a graph launched on queue %u touches %#llx + %llu, "
                                    "not ordered after "
                                    "item %llu of queue %u, which does too",
                                    queue, (unsigned long long)span.low,
                                    (unsigned long long)(span.high - span.low),
                                    (unsigned long long)x.number, x.queue);
        }
        ta_space_touch(oracle, &oracle->freed, at, span.low, span.high, false);
    }
}

void ta_oracle_graph_launch(ta_oracle *oracle, ta_oracle_graph *graph, uint32_t queue)
{
    if (graph->gone)
        ta_oracle_violation(oracle,
                            "launch of a graph whose memory at %#llx was unmapped",
                            (unsigned long long)graph->gone);
    if (graph->intruders)
        ta_oracle_violation(
            oracle, "launch of a graph while %u blocks of others lie on its memory",
            graph->intruders);
    merge(&graph->reads);
    merge(&graph->writes);
    for (int write = 0; write < 2; write++) {
        const ta_spans *spans = write ? &graph->writes : &graph->reads;
        for (uint32_t i = 0; i < spans->count; i++)
            ta_oracle_access(oracle, NULL, queue, spans->list[i].low,
                             spans->list[i].high - spans->list[i].low, write);
    }
    launch_blocks(oracle, graph, queue);
}

void ta_oracle_graphs_gone(ta_oracle *oracle, uint64_t low, uint64_t high)
{
    if (oracle->allow_moves) return;
    for (ta_oracle_graph *g = oracle->graphs; g; g = g->next)
        if (overlaps(&g->reads, low, high) || overlaps(&g->writes, low, high) ||
            overlaps(&g->blocks, low, high))
            g->gone = low;
}

void ta_oracle_graphs_intrude(ta_oracle *oracle, uint64_t low, uint64_t high, int change)
{
    for (ta_oracle_graph *g = oracle->graphs; g; g = g->next)
        if (overlaps(&g->blocks, low, high)) {
            if (change > 0)
                g->intruders++;
            else if (g->intruders)
                g->intruders--;
        }
}
