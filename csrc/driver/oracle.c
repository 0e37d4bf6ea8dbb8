/* oracle.c - queues, clocks, and the order among their items.
 *
 * Called by the simulated machine with its lock held. What the host has seen finished is
 * one clock for all its threads: it is a fact about the past, whoever saw it. An edge
 * counts as an item of the later queue, so that a position taken after it implies the
 * edge. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_internal.h"

ta_oracle *ta_oracle_create(ta_oracle_report *report, void *context)
{
    ta_oracle *oracle = calloc(1, sizeof *oracle);
    if (!oracle) return NULL;
    oracle->report = report;
    oracle->context = context;
    return oracle;
}

void ta_oracle_destroy(ta_oracle *oracle)
{
    if (!oracle) return;
    ta_oracle_blocks_clear(oracle);
    while (oracle->graphs) ta_oracle_graph_destroy(oracle, oracle->graphs);
    ta_space_clear(&oracle->ranges);
    ta_space_clear(&oracle->freed);
    for (uint32_t i = 0; i < oracle->queue_count; i++) free(oracle->queues[i].clock.seen);
    free(oracle->queues);
    free(oracle->found);
    free(oracle);
}

void ta_oracle_violation(ta_oracle *oracle, const char *format, ...)
{
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    oracle->report(oracle->context, text);
}

/* --- clocks ------------------------------------------------------------------------- */
static uint64_t clock_at(const ta_clock *clock, uint32_t queue)
{
    return queue < clock->count ? clock->seen[queue] : 0;
}

/* Without memory for it an edge is lost, and the judgement too strict: never too mild. */
static bool clock_fit(ta_clock *clock, uint32_t count)
{
    if (count > clock->capacity) {
        uint32_t capacity = (count + 7) & ~7u;
        uint64_t *seen = realloc(clock->seen, capacity * sizeof *seen);
        if (!seen) return false;
        clock->seen = seen;
        clock->capacity = capacity;
    }
    for (; clock->count < count; clock->count++) clock->seen[clock->count] = 0;
    return true;
}

static void clock_raise(ta_clock *clock, uint32_t queue, uint64_t number)
{
    if (clock_fit(clock, queue + 1) && clock->seen[queue] < number)
        clock->seen[queue] = number;
}

static void clock_join(ta_clock *clock, const ta_clock *other)
{
    if (!clock_fit(clock, other->count)) return;
    for (uint32_t i = 0; i < other->count; i++)
        if (clock->seen[i] < other->seen[i]) clock->seen[i] = other->seen[i];
}

/* --- queues ------------------------------------------------------------------------- */
uint32_t ta_oracle_open(ta_oracle *oracle)
{
    for (uint32_t i = 0; i < oracle->queue_count; i++) {
        ta_oracle_queue *q = &oracle->queues[i];
        if (q->closed && q->host == q->items && !q->pins) {
            q->closed = false;
            q->clock.count = 0;
            return i;
        }
    }
    if (oracle->queue_count == oracle->queue_capacity) {
        uint32_t capacity = oracle->queue_capacity ? oracle->queue_capacity * 2 : 16;
        ta_oracle_queue *queues = realloc(oracle->queues, capacity * sizeof *queues);
        if (!queues) return TA_NO_QUEUE;
        oracle->queues = queues;
        oracle->queue_capacity = capacity;
    }
    memset(&oracle->queues[oracle->queue_count], 0, sizeof *oracle->queues);
    return oracle->queue_count++;
}

void ta_oracle_close(ta_oracle *oracle, uint32_t queue)
{
    oracle->queues[queue].closed = true;
}

uint64_t ta_oracle_work(ta_oracle *oracle, uint32_t queue)
{
    return ++oracle->queues[queue].items;
}

void ta_oracle_order(ta_oracle *oracle, uint32_t later, uint32_t earlier)
{
    if (later == earlier) return;
    const ta_oracle_queue *e = &oracle->queues[earlier];
    ta_oracle_queue *l = &oracle->queues[later];
    if (e->items == 0 && e->clock.count == 0) return;
    clock_join(&l->clock, &e->clock);
    clock_raise(&l->clock, earlier, e->items);
    l->items++;
}

bool ta_oracle_joined(const ta_oracle *oracle, uint32_t later, uint32_t earlier)
{
    const ta_position end = {earlier, oracle->queues[earlier].items};
    return ta_oracle_is_ordered(oracle, end, later);
}

void ta_oracle_mark(ta_oracle *oracle, uint32_t queue, ta_clock *clock)
{
    const ta_oracle_queue *q = &oracle->queues[queue];
    clock->count = 0;
    clock_join(clock, &q->clock);
    clock_raise(clock, queue, q->items);
}

void ta_oracle_after(ta_oracle *oracle, uint32_t queue, const ta_clock *clock)
{
    clock_join(&oracle->queues[queue].clock, clock);
    oracle->queues[queue].items++;
}

void ta_oracle_seen(ta_oracle *oracle, const ta_clock *clock)
{
    for (uint32_t i = 0; i < clock->count; i++)
        if (oracle->queues[i].host < clock->seen[i])
            oracle->queues[i].host = clock->seen[i];
}

void ta_oracle_seen_queue(ta_oracle *oracle, uint32_t queue)
{
    if (queue >= oracle->queue_count) return;
    ta_oracle_queue *q = &oracle->queues[queue];
    ta_oracle_seen(oracle, &q->clock);
    q->host = q->items;
}

void ta_oracle_seen_lane(ta_oracle *oracle, uint32_t lane)
{
    oracle->queues[lane].host = oracle->queues[lane].items;
}

bool ta_oracle_idle(const ta_oracle *oracle, uint32_t queue)
{
    return queue >= oracle->queue_count ||
           oracle->queues[queue].host == oracle->queues[queue].items;
}

bool ta_oracle_is_seen(const ta_oracle *oracle, ta_position at)
{
    return at.number <= oracle->queues[at.queue].host;
}

bool ta_oracle_is_ordered(const ta_oracle *oracle, ta_position at, uint32_t queue)
{
    return at.queue == queue || at.number <= oracle->queues[at.queue].host ||
           at.number <= clock_at(&oracle->queues[queue].clock, at.queue);
}
