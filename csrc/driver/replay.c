/* replay.c - runs a parsed trace through the allocator; see replay.h.
 *
 * Called by `torcharena replay` (through the Python binding), by replay_core.c, and by the
 * tests. The layers: this loop calls torcharena.h as the hooks would; the allocator calls
 * a clock (time in allocations), which passes memory calls on to a machine without memory
 * behind it. One thread; no global state. */
#define _POSIX_C_SOURCE 200809L
#include "replay.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "replay_clock.h"
#include "sim.h"
#include "nulldriver.h"

#define LEAST_MEMORY ((uint64_t)140 << 30) /* bytes: an H200 */

typedef struct replay {
    const ta_trace *trace;
    const ta_replay_options *options;
    ta_replay_result *result;
    ta_sim *sim; /* one of the two */
    ta_null *null;
    ta_clock *clock;
    ta_allocator *allocator;
    void **blocks;      /* by slot; NULL: none, refused, or of size 0 */
    ta_stream *streams; /* by number */
    ta_replay_step *steps, before;
    size_t step_count;
} replay;

__attribute__((format(printf, 3, 4))) static ta_status fail(replay *r, ta_status status,
                                                            const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(r->result->failure, sizeof r->result->failure, format, arguments);
    va_end(arguments);
    return status;
}

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double driver_us(const replay *r)
{
    double memory_us =
        r->sim != NULL ? ta_sim_driver_us(r->sim) : ta_null_driver_us(r->null);
    return ta_clock_read(r->clock).event_us + memory_us;
}

/* --- numbers ------------------------------------------------------------------------- */

static ta_replay_step so_far(const replay *r)
{
    ta_clock_counts counts = ta_clock_read(r->clock);
    ta_replay_step sum = {.driver_calls = counts.map_calls, .driver_us = driver_us(r)};
    for (uint32_t d = 0; d < r->trace->devices; d++) {
        ta_stats stats;
        if (ta_get_stats(r->allocator, (int)d, &stats) != TA_OK) continue;
        sum.page_moves += stats.page_moves;
        sum.waits += stats.waits;
    }
    return sum;
}

static void end_step(replay *r)
{
    ta_replay_step now = so_far(r);
    ta_replay_step *step = &r->steps[r->step_count++];
    step->page_moves = now.page_moves - r->before.page_moves;
    step->waits = now.waits - r->before.waits;
    step->driver_calls = now.driver_calls - r->before.driver_calls;
    step->driver_us = now.driver_us - r->before.driver_us;
    r->before = now;
    if (r->options->on_step != NULL)
        r->options->on_step(r->options->context, r->step_count, step);
}

static int order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median and highest of one field over the steps measured, as doubles. */
static double median_of(double *values, size_t count, double *highest)
{
    qsort(values, count, sizeof *values, order);
    *highest = values[count - 1];
    return count % 2 == 1 ? values[count / 2]
                          : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* Over the second half of the steps: warm-up, where the peak still rises, is left out. */
static ta_status sum_up_steps(replay *r)
{
    ta_replay_result *result = r->result;
    size_t first = r->step_count / 2, count = r->step_count - first;
    result->steps = r->step_count;
    result->steps_measured = count;
    if (count == 0) return TA_OK;
    double *values = malloc(count * sizeof *values);
    if (values == NULL) return fail(r, TA_NO_HOST_MEMORY, "no host memory");
    double high;
    const ta_replay_step *steps = r->steps + first;
#define SUM_UP(field, type)                                                              \
    for (size_t i = 0; i < count; i++) {                                                 \
        values[i] = (double)steps[i].field;                                              \
        result->total.field += steps[i].field;                                           \
    }                                                                                    \
    result->median.field = (type)median_of(values, count, &high);                        \
    result->highest.field = (type)high;
    SUM_UP(page_moves, uint64_t)
    SUM_UP(waits, uint64_t)
    SUM_UP(driver_calls, uint64_t)
    SUM_UP(driver_us, double)
#undef SUM_UP
    free(values);
    return TA_OK;
}

static void sum_up(replay *r)
{
    ta_replay_result *result = r->result;
    result->peak_requested = r->trace->peak_total;
    for (uint32_t d = 0; d < r->trace->devices; d++) {
        ta_stats stats;
        if (ta_get_stats(r->allocator, (int)d, &stats) != TA_OK) continue;
        result->peak_reserved += stats.reserved.peak;
        result->page_moves += stats.page_moves;
        result->waits += stats.waits;
        result->slow_allocs += stats.slow_allocs;
    }
    if (result->peak_requested > 0)
        result->ratio = (double)result->peak_reserved / (double)result->peak_requested;
    result->limit = ta_limit(r->allocator, 0, NULL);
    result->driver_calls = ta_clock_read(r->clock).calls;
    result->driver_us = driver_us(r);
    if (result->seconds > 0)
        result->events_per_second = (double)result->events / result->seconds;
}

/* --- the loop ------------------------------------------------------------------------ */

static ta_status check(replay *r, uint64_t event)
{
    char text[400];
    if (!r->options->check || ta_check(r->allocator, text, sizeof text)) return TA_OK;
    return fail(r, TA_DRIVER, "event %llu: %s", (unsigned long long)event, text);
}

/* A request was refused. */
static ta_status refused(replay *r, uint64_t event, ta_status status, const ta_oom *oom)
{
    ta_replay_result *result = r->result;
    if (status != TA_OUT_OF_MEMORY)
        return fail(r, status, "event %llu: alloc: %s", (unsigned long long)event,
                    ta_status_text(status));
    if (result->ooms++ == 0) {
        result->oom_event = event;
        ta_oom_text(oom, result->oom_text, sizeof result->oom_text);
    }
    return TA_OK;
}

static ta_status run_events(replay *r)
{
    const ta_trace *trace = r->trace;
    ta_allocator *allocator = r->allocator;
    for (size_t i = 0; i < trace->count; i++) {
        const ta_trace_event *e = &trace->events[i];
        ta_status status = TA_OK;
        void **block = &r->blocks[e->slot];
        switch (e->kind) {
        case TA_TRACE_ALLOC: {
            ta_oom oom;
            ta_clock_advance(r->clock);
            status = ta_alloc(allocator, e->value, e->device, r->streams[e->stream],
                              block, &oom);
            if (status != TA_OK) {
                *block = NULL;
                status = refused(r, i + 1, status, &oom);
                if (status != TA_OK) return status;
                if (!r->options->skip_oom) return TA_OK;
            }
            break;
        }
        case TA_TRACE_FREE:
            status = ta_free(allocator, *block);
            *block = NULL;
            break;
        case TA_TRACE_RECORD_STREAM:
            if (*block != NULL)
                status = ta_record_stream(allocator, *block, r->streams[e->stream]);
            break;
        case TA_TRACE_STEP:
            end_step(r);
            status = check(r, i + 1);
            if (status != TA_OK) return status;
            /* fallthrough */
        default:
            status = ta_mark(allocator, trace->text + e->value);
        }
        if (status != TA_OK)
            return fail(r, status, "event %zu: %s", i + 1, ta_status_text(status));
        r->result->events = i + 1;
    }
    return TA_OK;
}

/* The simulated machine keeps the driver's contract in mind. */
static ta_status look_for_violations(replay *r)
{
    if (r->sim == NULL) return TA_OK;
    uint64_t count;
    const char *first = ta_sim_first_violation(r->sim, &count);
    if (first == NULL) return TA_OK;
    return fail(r, TA_DRIVER, "the driver's contract was broken %llu times, first: %s",
                (unsigned long long)count, first);
}

/* Frees what the trace left alive: nothing may be in use then. */
static ta_status free_all(replay *r)
{
    if (!r->options->check) return TA_OK;
    for (uint32_t i = 0; i < r->trace->slots; i++)
        if (r->blocks[i] != NULL && ta_free(r->allocator, r->blocks[i]) != TA_OK)
            return fail(r, TA_DRIVER, "at the end: a live block could not be freed");
    /* What other streams still used is passed by then. */
    for (uint64_t i = 0; i <= r->options->pass_after; i++) ta_clock_advance(r->clock);
    uint64_t released;
    ta_status status = ta_trim(r->allocator, -1, &released);
    if (status != TA_OK)
        return fail(r, status, "at the end: trim: %s", ta_status_text(status));
    for (uint32_t d = 0; d < r->trace->devices; d++) {
        ta_stats stats;
        if (ta_get_stats(r->allocator, (int)d, &stats) != TA_OK) continue;
        uint64_t left = stats.active[TA_POOL_ALL].current + stats.reserved.current;
        if (left != 0 || stats.requested[TA_POOL_ALL].current != 0)
            return fail(
                r, TA_DRIVER,
                "at the end: active + reserved = %llu, requested = %llu, both must "
                "be 0",
                (unsigned long long)left,
                (unsigned long long)stats.requested[TA_POOL_ALL].current);
    }
    return check(r, r->trace->count);
}

/* --- set-up -------------------------------------------------------------------------- */

static ta_status set_limits(replay *r)
{
    const ta_replay_options *o = r->options;
    for (uint32_t d = 0; d < r->trace->devices; d++) {
        uint64_t limit = o->limit;
        double wanted = o->limit_ratio * (double)r->trace->peak_requested[d];
        if (o->limit_ratio > 0 && wanted < (double)limit) limit = (uint64_t)wanted;
        if (limit == TA_NO_LIMIT) continue;
        ta_status status = ta_set_limit(r->allocator, (int)d, TA_LIMIT_API, limit);
        if (status != TA_OK)
            return fail(r, status, "the limit: %s", ta_status_text(status));
    }
    return TA_OK;
}

static ta_status make_machine(replay *r, uint64_t memory, uint64_t page)
{
    int devices = r->trace->devices > 0 ? (int)r->trace->devices : 1;
    if (r->options->null_driver) {
        ta_null_config null = {.devices = devices, .memory = memory, .page_bytes = page};
        return ta_null_create(&null, &r->null);
    }
    ta_sim_config sim = {
        .devices = devices, .memory = memory, .seed = 1, .no_backing = true};
    return ta_sim_create(&sim, &r->sim);
}

static ta_status set_up(replay *r)
{
    const ta_trace *trace = r->trace;
    const ta_replay_options *o = r->options;
    if (!(o->limit_ratio >= 0)) return fail(r, TA_INVALID, "the limit ratio is negative");
    uint64_t page = o->page_bytes != 0 ? o->page_bytes : trace->page_bytes;
    uint64_t memory = o->device_memory;
    if (memory == 0) {
        memory = LEAST_MEMORY;
        for (uint32_t d = 0; d < trace->devices; d++)
            if (trace->peak_requested[d] > memory / 2)
                memory = trace->peak_requested[d] * 2;
    }
    r->blocks = calloc(trace->slots + 1u, sizeof *r->blocks);
    r->streams = calloc(trace->streams + 1u, sizeof *r->streams);
    r->steps = calloc(trace->steps + 1u, sizeof *r->steps);
    if (r->blocks == NULL || r->streams == NULL || r->steps == NULL)
        return fail(r, TA_NO_HOST_MEMORY, "no host memory");
    for (uint32_t i = 0; i < trace->streams; i++) r->streams[i] = ta_clock_stream(i);
    ta_status status = make_machine(r, memory, page);
    if (status == TA_OK) {
        const ta_driver *under =
            r->sim != NULL ? ta_sim_driver(r->sim) : ta_null_driver(r->null);
        status = ta_clock_create(under, trace->streams, o->pass_after, &r->clock);
    }
    ta_config config = {.page_bytes = page, .slack = o->slack};
    if (status == TA_OK)
        status = ta_allocator_create(ta_clock_driver(r->clock), &config, &r->allocator);
    if (status != TA_OK) return fail(r, status, "set-up: %s", ta_status_text(status));
    return set_limits(r);
}

static void tear_down(replay *r)
{
    if (r->allocator != NULL) ta_allocator_destroy(r->allocator);
    ta_clock_destroy(r->clock);
    if (r->sim != NULL) ta_sim_destroy(r->sim);
    ta_null_destroy(r->null);
    free(r->blocks);
    free(r->streams);
    free(r->steps);
}

ta_status ta_replay(const ta_trace *trace, const ta_replay_options *options,
                    ta_replay_result *result)
{
    memset(result, 0, sizeof *result);
    replay r = {.trace = trace, .options = options, .result = result};
    ta_status status = set_up(&r);
    if (status == TA_OK) {
        double start = now_seconds();
        status = run_events(&r);
        result->seconds = now_seconds() - start;
        sum_up(&r);
    }
    if (status == TA_OK) status = sum_up_steps(&r);
    if (status == TA_OK) status = free_all(&r);
    if (status == TA_OK) status = look_for_violations(&r);
    tear_down(&r);
    return status;
}

ta_status ta_replay_text(const char *text, size_t length,
                         const ta_replay_options *options, ta_replay_result *result,
                         ta_trace_error *error)
{
    memset(result, 0, sizeof *result);
    ta_trace *trace;
    ta_status status = ta_trace_parse(text, length, &trace, error);
    if (status != TA_OK) return status;
    status = ta_replay(trace, options, result);
    ta_trace_free(trace);
    return status;
}
