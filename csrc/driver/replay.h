/* replay.h - runs a trace through the allocator on a simulated device.
 *
 *     ta_trace *trace;
 *     ta_replay_options options = TA_REPLAY_DEFAULTS;
 *     options.limit_ratio = 1.02;
 *     ta_replay_result result;
 *     if (ta_trace_parse(text, length, &trace, &error) == TA_OK)
 *         ta_replay(trace, &options, &result);
 *
 * A replay has no GPU clock: a stream passes what was recorded there `pass_after`
 * allocations ago (replay_clock.h). Replays of several threads do not disturb each other. */
#ifndef TA_REPLAY_H
#define TA_REPLAY_H

#include "replay_trace.h"

/* What one step, from mark to mark, took. */
typedef struct ta_replay_step {
    uint64_t page_moves, waits;
    uint64_t driver_calls; /* that create, release, map, unmap, set access, reserve */
    double driver_us;
} ta_replay_step;

typedef struct ta_replay_options {
    uint64_t page_bytes;    /* 0: the trace's own, else the allocator's default */
    uint64_t limit;         /* bytes on each device; TA_NO_LIMIT: none */
    double limit_ratio;     /* of the trace's peak requested on the device; 0: none. The
                               lesser of the two limits holds */
    uint64_t device_memory; /* bytes of the simulated card; 0: enough */
    uint64_t pass_after;    /* allocations */
    double slack;           /* ta_config; 0: the allocator's default */
    bool null_driver;       /* calls that do nothing instead of the simulated machine */
    bool skip_oom; /* go on without the block that was refused; else stop there */
    bool check; /* ta_check at every step; at the end free all and see that usage is 0 */
    void (*on_step)(void *context, uint64_t number, const ta_replay_step *step);
    void *context; /* of on_step */
} ta_replay_options;
#define TA_REPLAY_DEFAULTS                                                               \
    {                                                                                    \
        .limit = TA_NO_LIMIT, .pass_after = 1000                                         \
    }

typedef struct ta_replay_result {
    uint64_t events; /* done */
    uint64_t peak_requested,
        peak_reserved;  /* over the whole trace; summed over devices */
    double ratio;       /* reserved over requested */
    uint64_t limit;     /* that held on device 0 */
    uint64_t ooms;      /* requests refused */
    uint64_t oom_event; /* the first: its number, from 1; 0 none */
    char oom_text[2048];
    uint64_t page_moves, waits, slow_allocs;
    uint64_t driver_calls; /* of every kind */
    double driver_us;      /* what the driver would have taken for them */
    uint64_t steps;
    ta_replay_step median, highest, total; /* of the steps in the second half */
    uint64_t steps_measured;
    double seconds, events_per_second; /* of the loop alone */
    char failure[512]; /* why ta_replay returned something other than TA_OK */
} ta_replay_result;

/* TA_OK also when memory ran out: result->ooms says. TA_DRIVER: a rule was broken (a check,
 * the simulated machine's contract). TA_INVALID: an option or the trace makes no sense. */
ta_status ta_replay(const ta_trace *trace, const ta_replay_options *options,
                    ta_replay_result *result);
/* Both steps at once, for the Python binding. TA_INVALID with error->reason set: the text is
 * malformed; otherwise result->failure says why. */
ta_status ta_replay_text(const char *text, size_t length,
                         const ta_replay_options *options, ta_replay_result *result,
                         ta_trace_error *error);

#endif
