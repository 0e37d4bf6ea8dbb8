/* replay_json.c - a replay's figures as one JSON object.
 *
 * Called by the Python binding and by replay_core.c, so that both print the same. Pure. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "replay.h"

typedef struct writer {
    char *text;
    size_t capacity;
    size_t used; /* as if there were room */
} writer;

__attribute__((format(printf, 2, 3))) static void put(writer *w, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    bool room = w->used < w->capacity;
    int length = vsnprintf(room ? w->text + w->used : NULL,
                           room ? w->capacity - w->used : 0, format, arguments);
    va_end(arguments);
    if (length > 0) w->used += (size_t)length;
}

/* What is not printable ASCII is escaped: the text may hold a path's bytes. */
static void put_string(writer *w, const char *text)
{
    put(w, "\"");
    for (; *text != 0; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            put(w, "\\%c", c);
        else if (c < 0x20 || c > 0x7e)
            put(w, "\\u%04x", c);
        else
            put(w, "%c", c);
    }
    put(w, "\"");
}

static void put_step(writer *w, const char *name, const ta_replay_step *s)
{
    put(w,
        ", \"%s\": {\"page_moves\": %" PRIu64 ", \"waits\": %" PRIu64
        ", \"driver_calls\": %" PRIu64 ", \"driver_us\": %.1f}",
        name, s->page_moves, s->waits, s->driver_calls, s->driver_us);
}

int ta_replay_json(const ta_replay_result *r, char *text, size_t capacity)
{
    writer w = {.text = text, .capacity = capacity};
    put(&w,
        "{\"events\": %" PRIu64 ", \"peak_requested\": %" PRIu64
        ", \"peak_reserved\": %" PRIu64 ", \"ratio\": %.17g, \"oom\": %s",
        r->events, r->peak_requested, r->peak_reserved, r->ratio,
        r->ooms > 0 ? "true" : "false");
    put(&w,
        ", \"page_moves\": %" PRIu64 ", \"driver_calls\": %" PRIu64
        ", \"driver_us\": %.1f, \"seconds\": %.6f, \"events_per_second\": %.0f",
        r->page_moves, r->driver_calls, r->driver_us, r->seconds, r->events_per_second);
    put(&w, ", \"waits\": %" PRIu64 ", \"steps\": %" PRIu64, r->waits, r->steps);
    put_step(&w, "step_median", &r->median);
    put_step(&w, "step_max", &r->highest);
    if (r->ooms > 0) {
        put(&w, ", \"oom_event\": %" PRIu64 ", \"oom_text\": ", r->oom_event);
        put_string(&w, r->oom_text);
    }
    put(&w, "}");
    return (int)w.used;
}
