/* Traces: what the parser refuses, and the figures of a replay. */
#include "driver/nulldriver.h"
#include "driver/replay.h"
#include "driver/replay_clock.h"
#include "testing.h"

static ta_trace_error parse_error(const char *text)
{
    ta_trace *trace = NULL;
    ta_trace_error error;
    ta_status status = ta_trace_parse(text, strlen(text), &trace, &error);
    if (status == TA_OK) {
        error = (ta_trace_error){.reason = "accepted"};
        ta_trace_free(trace);
    }
    return error;
}

TEST(malformed_traces_name_line_and_reason)
{
    static const struct {
        const char *text;
        uint64_t line;
        const char *reason;
    } cases[] = {
        {"", 0, "the file is empty"},
        {"a 1 5 0\na 1 5 0\n", 2, "id 1 was allocated before"},
        {"a 1 5 0\nf 1\na 1 5 0\n", 3, "id 1 was allocated before"},
        {"f 3\n", 1, "id 3 was never allocated"},
        {"a 1 5 0\nr 2 0\n", 2, "id 2 was never allocated"},
        {"a 1 5 0\nf 1\nf 1\n", 3, "id 1 was freed before"},
        {"a 1 5 0\nf 1\nr 1 0\n", 3, "id 1 was freed before"},
        {"a 1 -5 0\n", 1, "the size is negative: -5"},
        {"a -1 5 0\n", 1, "the id is negative: -1"},
        {"a 1 5x 0\n", 1, "the size is not a number: 5x"},
        {"a 1 0x5 0\n", 1, "the size is not a number: 0x5"},
        {"a 1 +5 0\n", 1, "the size is not a number: +5"},
        {"a 1 5.0 0\n", 1, "the size is not a number: 5.0"},
        {"a 18446744073709551616 5 0\n", 1, "the id is too large: 18446744073709551616"},
        {"a 1 1125899906842625 0\n", 1,
         "the size is too large: 1125899906842625, at most 1125899906842624"},
        {"a 1 5 65536\n", 1, "the stream is too large: 65536, at most 65535"},
        {"a 1 5 0 64\n", 1, "the device is too large: 64, at most 63"},
        {"a 1 5 0 1\na 2 5 0\n", 2, "stream 0 is of device 1 and now of device 0"},
        {"a 1 5 0 1\nr 1 2 0\n", 2, "the block is on device 1, not 0"},
        {"a\n", 1, "the id is missing"},
        {"a 1\n", 1, "the size is missing"},
        {"a 1 5\n", 1, "the stream is missing"},
        {"a 1 5 \n", 1, "the stream is missing"},
        {"a  1 5 0\n", 1, "the id is missing"},
        {"a 1 5 0 0 7\n", 1, "more than the line should have:  7"},
        {"a 1 5 0\nf 1 0\n", 2, "more than the line should have:  0"},
        {"a 1 5 0\r\n", 1, "the stream is not a number: 0\r"},
        {"m\n", 1, "the mark has no text"},
        {"m \n", 1, "the mark has no text"},
        {"a 1 5 0\n\nf 1\n", 2, "an empty line"},
        {"x 1\n", 1, "not a line of a trace: it begins with none of a, f, r, m, #"},
        {"alloc 1 5 0\n", 1,
         "not a line of a trace: it begins with none of a, f, r, m, #"},
        {"a 1 5 0\nf 1", 2, "the last line is not ended: cut short?"},
        {"# torcharena trace\n", 1, "the version is missing"},
        {"# torcharena trace 2\n", 1, "version 2 of the format; this reads version 1"},
        {"# torcharena trace 1 page 5000000\n", 1,
         "the page size is no power of two up to 4 GiB: 5000000"},
        {"# torcharena trace 1 page\n", 1, "the page size is missing"},
        {"a 1 5 0\n# torcharena trace 1\n", 2,
         "a header after the first line: two traces in one?"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ta_trace_error error = parse_error(cases[i].text);
        CHECK_STR(error.reason, cases[i].reason);
        CHECK_EQ(error.line, cases[i].line);
    }
}

TEST(what_a_trace_says)
{
    static const char text[] = "# torcharena trace 1 page 2097152 later 7\n"
                               "# a comment\n"
                               "a 18446744073709551615 100 0\n"
                               "a 7 50 1\n"
                               "r 7 0\n"
                               "m one two\n"
                               "f 18446744073709551615\n"
                               "a 8 40 1\n"
                               "m step\n"
                               "a 9 1000 2 3\n"
                               "a 10 0 0\n"
                               "f 7\n";
    ta_trace *t;
    CHECK_EQ(ta_trace_parse(text, sizeof text - 1, &t, NULL), TA_OK);
    CHECK_EQ(t->count, 10);
    CHECK_EQ(t->slots, 4);
    CHECK_EQ(t->streams, 3);
    CHECK_EQ(t->devices, 4);
    CHECK_EQ(t->steps, 1);
    CHECK_EQ(t->allocations, 5);
    CHECK_EQ(t->page_bytes, 2097152);
    CHECK_EQ(t->peak_requested[0], 150);
    CHECK_EQ(t->peak_requested[3], 1000);
    CHECK_EQ(t->peak_total, 1150);
    CHECK_STR(t->text + t->events[3].value, "one two");
    CHECK_EQ(t->events[3].kind, TA_TRACE_MARK);
    CHECK_EQ(t->events[6].kind, TA_TRACE_STEP);
    CHECK_EQ(t->events[5].slot, t->events[0].slot);
    CHECK_EQ(t->events[2].slot, t->events[1].slot);
    ta_trace_free(t);
}

/* Any bytes are a trace or an error with a line; sanitizers watch. What is accepted can be
 * replayed. */
TEST(changed_bytes)
{
    static const char text[] = "# torcharena trace 1 page 4194304\n"
                               "a 1 70000 0\n"
                               "a 2 3000000 1\n"
                               "r 2 0 0\n"
                               "m forward\n"
                               "f 1\n"
                               "a 3 512 0 0\n"
                               "m step\n"
                               "f 2\n";
    static const char letters[] = "afrm# 0123456789-\n\0\377";
    uint64_t random = 88172645463325252u;
    int accepted = 0;
    for (int i = 0; i < 20000; i++) {
        char changed[sizeof text];
        memcpy(changed, text, sizeof text);
        for (int k = 0; k < 2; k++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            changed[(random >> 8) % (sizeof text - 1)] =
                letters[(random >> 40) % (sizeof letters - 1)];
        }
        ta_trace *t = NULL;
        ta_trace_error error;
        if (ta_trace_parse(changed, sizeof text - 1 - (random >> 60), &t, &error) !=
            TA_OK) {
            CHECK(t == NULL);
            CHECK(error.line >= 1 && error.line <= 20);
            CHECK(error.reason[0] != 0);
            continue;
        }
        if (++accepted % 50 == 0) {
            ta_replay_options options = TA_REPLAY_DEFAULTS;
            options.skip_oom = options.check = options.null_driver = true;
            options.page_bytes = 4 << 20;
            ta_replay_result result;
            ta_status status = ta_replay(t, &options, &result);
            if (status != TA_OK) printf("%s\n%s\n", changed, result.failure);
            CHECK_EQ(status, TA_OK);
        }
        ta_trace_free(t);
    }
    CHECK(accepted > 100);
}

/* --- the clock ----------------------------------------------------------------------- */

TEST(a_stream_passes_after_so_many_allocations)
{
    ta_null *null;
    ta_null_config config = {.devices = 1, .memory = (uint64_t)1 << 30};
    CHECK_EQ(ta_null_create(&config, &null), TA_OK);
    ta_clock *clock;
    CHECK_EQ(ta_clock_create(ta_null_driver(null), 3, 10, &clock), TA_OK);
    const ta_driver *d = ta_clock_driver(clock);
    ta_event e[4];
    for (int i = 0; i < 4; i++) CHECK_EQ(d->event_create(d->self, 0, &e[i]), TA_OK);
    d->event_record(d->self, e[0], 0, ta_clock_stream(1));
    for (int i = 0; i < 5; i++) ta_clock_advance(clock);
    d->event_record(d->self, e[1], 0, ta_clock_stream(1));
    d->event_record(d->self, e[2], 0, ta_clock_stream(2));
    d->event_record(d->self, e[3], 0, NULL);
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(d->event_query(d->self, e[0]), TA_NOT_READY);
        ta_clock_advance(clock);
    }
    ta_clock_advance(clock);
    CHECK_EQ(d->event_query(d->self, e[0]), TA_OK);
    CHECK_EQ(d->event_query(d->self, e[1]), TA_NOT_READY);
    /* Waiting for a point passes it and what was before it, on that stream alone. */
    CHECK_EQ(d->event_wait(d->self, e[1], TA_FOREVER_US), TA_OK);
    CHECK_EQ(d->event_query(d->self, e[1]), TA_OK);
    CHECK_EQ(d->event_query(d->self, e[2]), TA_NOT_READY);
    CHECK_EQ(ta_clock_read(clock).event_waits, 1);
    CHECK_EQ(d->event_wait(d->self, e[1], TA_FOREVER_US), TA_OK);
    CHECK_EQ(ta_clock_read(clock).event_waits, 1);
    /* The whole device. */
    CHECK_EQ(d->device_wait(d->self, 0), TA_OK);
    CHECK_EQ(d->event_query(d->self, e[2]), TA_OK);
    CHECK_EQ(d->event_query(d->self, e[3]), TA_OK);
    for (int i = 0; i < 4; i++) d->event_destroy(d->self, e[i]);
    ta_clock_destroy(clock);
    ta_null_destroy(null);
}

TEST(the_null_driver_counts_bytes)
{
    ta_null *null;
    ta_null_config config = {.devices = 2, .memory = (uint64_t)8 << 20};
    CHECK_EQ(ta_null_create(&config, &null), TA_OK);
    const ta_driver *d = ta_null_driver(null);
    ta_handle a, b, c;
    CHECK_EQ(d->create(d->self, 1, TA_TIER_DEVICE, 6 << 20, &a), TA_OK);
    CHECK_EQ(d->create(d->self, 1, TA_TIER_DEVICE, 4 << 20, &b), TA_OUT_OF_MEMORY);
    CHECK_EQ(d->create(d->self, 0, TA_TIER_DEVICE, 8 << 20, &b), TA_OK);
    uint64_t left, total;
    CHECK_EQ(d->mem_info(d->self, 1, &left, &total), TA_OK);
    CHECK_EQ(left, 2 << 20);
    CHECK_EQ(total, 8 << 20);
    CHECK_EQ(d->release(d->self, a, 6 << 20), TA_OK);
    CHECK_EQ(d->create(d->self, 1, TA_TIER_DEVICE, 8 << 20, &c), TA_OK);
    uint64_t first, second;
    CHECK_EQ(d->reserve(d->self, 1 << 20, (uint64_t)1 << 30, &first), TA_OK);
    CHECK_EQ(d->reserve(d->self, 1 << 20, (uint64_t)1 << 30, &second), TA_OK);
    CHECK_EQ(first % ((uint64_t)1 << 30), 0);
    CHECK(second >= first + (1 << 20));
    CHECK(ta_null_driver_us(null) > 40);
    ta_null_destroy(null);
}

/* --- replays -------------------------------------------------------------------------- */

static ta_status run(const char *text, ta_replay_options options,
                     ta_replay_result *result)
{
    options.check = true;
    ta_trace_error error;
    ta_status status = ta_replay_text(text, strlen(text), &options, result, &error);
    if (status != TA_OK) printf("%s%s\n", error.reason, result->failure);
    return status;
}

#define DEFAULTS ((ta_replay_options)TA_REPLAY_DEFAULTS)

static const char small_trace[] = "a 1 8388608 0\n"
                                  "a 2 4194304 0\n"
                                  "m step\n"
                                  "f 1\n"
                                  "a 3 8388608 0\n"
                                  "r 3 1\n"
                                  "m step\n"
                                  "f 3\n"
                                  "f 2\n"
                                  "a 4 0 0\n"
                                  "f 4\n"
                                  "m step\n";

TEST(figures_of_a_small_trace)
{
    for (int null = 0; null < 2; null++) {
        ta_replay_options options = DEFAULTS;
        options.null_driver = null;
        ta_replay_result r;
        CHECK_EQ(run(small_trace, options, &r), TA_OK);
        CHECK_EQ(r.events, 12);
        CHECK_EQ(r.peak_requested, 12 << 20);
        CHECK_EQ(r.peak_reserved, 12 << 20);
        CHECK(r.ratio == 1.0);
        CHECK_EQ(r.ooms, 0);
        CHECK_EQ(r.steps, 3);
        CHECK_EQ(r.steps_measured, 2);
        CHECK(r.driver_us > 3 * 30);
        CHECK(r.driver_calls > 6);
        CHECK_EQ(r.total.page_moves, 0);
        CHECK_EQ(r.limit, TA_NO_LIMIT);
        CHECK(r.seconds > 0);
        CHECK(r.events_per_second > 0);
    }
}

TEST(a_limit_is_kept_and_a_refusal_reported)
{
    ta_replay_options options = DEFAULTS;
    ta_replay_result r;
    options.limit_ratio = 1.0;
    CHECK_EQ(run(small_trace, options, &r), TA_OK);
    CHECK_EQ(r.ooms, 0);
    CHECK_EQ(r.limit, 12 << 20);
    options.limit = 8 << 20; /* the lesser holds */
    CHECK_EQ(run(small_trace, options, &r), TA_OK);
    CHECK_EQ(r.limit, 8 << 20);
    CHECK_EQ(r.ooms, 1);
    CHECK_EQ(r.oom_event, 2);
    CHECK_EQ(r.events, 1);
    CHECK(strstr(r.oom_text, "out of memory") != NULL);
    options.skip_oom = true;
    CHECK_EQ(run(small_trace, options, &r), TA_OK);
    CHECK_EQ(r.ooms, 1);
    CHECK_EQ(r.events, 12);
    CHECK_EQ(r.peak_reserved, 8 << 20);
    options.limit = 0;
    CHECK_EQ(run(small_trace, options, &r), TA_OK);
    CHECK_EQ(r.ooms, 3);
    CHECK_EQ(r.peak_reserved, 0);
    options.limit_ratio = -1;
    CHECK_EQ(run(small_trace, options, &r), TA_INVALID);
    CHECK_STR(r.failure, "the limit ratio is negative");
}

TEST(devices_add_up)
{
    ta_replay_result r;
    CHECK_EQ(run("a 1 4194304 0\na 2 8388608 1 1\nf 1\nf 2\n", DEFAULTS, &r), TA_OK);
    CHECK_EQ(r.peak_requested, 12 << 20);
    CHECK_EQ(r.peak_reserved, 12 << 20);
}

TEST(the_page_size_of_the_header_or_the_option)
{
    ta_replay_options options = DEFAULTS;
    ta_replay_result r;
    CHECK_EQ(run("# torcharena trace 1 page 33554432\na 1 4194304 0\n", options, &r),
             TA_OK);
    CHECK_EQ(r.peak_reserved, 32 << 20);
    options.page_bytes = 2 << 20;
    CHECK_EQ(run("# torcharena trace 1 page 33554432\na 1 4194304 0\n", options, &r),
             TA_OK);
    CHECK_EQ(r.peak_reserved, 4 << 20);
}

typedef struct seen {
    uint64_t steps, moves;
} seen;

static void on_step(void *context, uint64_t number, const ta_replay_step *step)
{
    seen *s = context;
    s->steps += number == s->steps + 1;
    s->moves += step->page_moves;
}

/* At a cap of exactly the peak, pages must move from one shape of blocks to the next, from
 * another stream as well, and nothing is refused. */
TEST(a_tight_cap_moves_pages)
{
    char text[40000];
    size_t at = 0;
    int id = 0;
    for (int step = 0; step < 10; step++) {
        int count = step % 2 ? 16 : 64, first = id;
        for (int i = 0; i < count; i++)
            at += (size_t)snprintf(text + at, sizeof text - at, "a %d %d %d\n", ++id,
                                   (64 << 20) / count * 4, step % 3);
        for (int i = 0; i < count; i++)
            at += (size_t)snprintf(text + at, sizeof text - at, "f %d\n", ++first);
        at += (size_t)snprintf(text + at, sizeof text - at, "m step\n");
    }
    seen s = {0};
    ta_replay_options options = DEFAULTS;
    options.limit_ratio = 1.0;
    options.on_step = on_step;
    options.context = &s;
    ta_replay_result r;
    CHECK_EQ(run(text, options, &r), TA_OK);
    CHECK_EQ(r.ooms, 0);
    CHECK_EQ(r.peak_reserved, r.peak_requested);
    CHECK(r.page_moves > 0);
    CHECK(r.waits > 0);
    CHECK_EQ(s.steps, 10);
    CHECK_EQ(s.moves, r.page_moves);
    CHECK(r.median.page_moves <= r.highest.page_moves);
    CHECK(r.total.page_moves <= r.page_moves);
}

TEST_MAIN()
