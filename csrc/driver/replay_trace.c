/* replay_trace.c - reads the text of a trace into a compact array of events.
 *
 * Called by replay (replay_core, the Python binding, tests). Ids are replaced by slots,
 * handed out again after a free, so that a replay keeps its addresses in a small table.
 * Strict: a trace that says anything odd is refused with its line and the reason, since a
 * replay of half-understood lines would print figures that look right. No shared state:
 * several texts may be parsed at once. */
#include "replay_trace.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOT_FREED UINT32_MAX

/* Every id ever seen, by open addressing: used <= (mask + 1) / 2. */
typedef struct id_entry {
    uint64_t id;
    uint64_t size;
    uint32_t slot;
    uint8_t device;
    bool taken;
} id_entry;

typedef struct parser {
    ta_trace *trace;
    ta_trace_error *error;
    const char *at, *end; /* within the current line */
    uint64_t line;
    id_entry *ids;
    size_t mask, used;
    uint32_t *spare; /* slots to use again */
    size_t spare_count, spare_room;
    size_t events_room, text_used, text_room;
    uint64_t live[TA_MAX_DEVICES];
    int16_t *stream_device; /* by stream number; -1: not seen */
} parser;

__attribute__((format(printf, 2, 3))) static void note(const parser *p,
                                                       const char *format, ...)
{
    if (p->error == NULL) return;
    va_list arguments;
    va_start(arguments, format);
    p->error->line = p->line;
    vsnprintf(p->error->reason, sizeof p->error->reason, format, arguments);
    va_end(arguments);
}

/* Its value is TA_INVALID. */
#define REFUSE(...) (note(__VA_ARGS__), TA_INVALID)

/* Room for one more of `size` bytes in an array that doubles. */
static bool grow(void **array, size_t count, size_t *room, size_t size)
{
    if (count < *room) return true;
    size_t wanted = *room == 0 ? 1024 : *room * 2;
    void *bigger = realloc(*array, wanted * size);
    if (bigger == NULL) return false;
    *array = bigger;
    *room = wanted;
    return true;
}

static size_t hash_id(uint64_t id)
{
    id *= 0x9E3779B97F4A7C15u;
    return (size_t)(id ^ (id >> 29));
}

static id_entry *find_id(const parser *p, uint64_t id)
{
    size_t i = hash_id(id) & p->mask;
    while (p->ids[i].taken && p->ids[i].id != id) i = (i + 1) & p->mask;
    return &p->ids[i];
}

static ta_status grow_ids(parser *p)
{
    if (p->ids != NULL && p->used < (p->mask + 1) / 2) return TA_OK;
    size_t room = p->ids == NULL ? 4096 : (p->mask + 1) * 2, old_room = p->mask + 1;
    id_entry *old = p->ids;
    id_entry *ids = calloc(room, sizeof *ids);
    if (ids == NULL) return TA_NO_HOST_MEMORY;
    p->ids = ids;
    p->mask = room - 1;
    for (size_t i = 0; old != NULL && i < old_room; i++)
        if (old[i].taken) *find_id(p, old[i].id) = old[i];
    free(old);
    return TA_OK;
}

/* " NUMBER" at p->at. */
static ta_status number(parser *p, const char *name, uint64_t highest, uint64_t *value)
{
    if (p->at == p->end) return REFUSE(p, "%s is missing", name);
    if (*p->at != ' ') return REFUSE(p, "expected a space before %s", name);
    p->at++;
    const char *start = p->at;
    while (p->at < p->end && *p->at != ' ') p->at++;
    int shown = p->at - start > 40 ? 40 : (int)(p->at - start);
    if (p->at == start) return REFUSE(p, "%s is missing", name);
    if (*start == '-') return REFUSE(p, "%s is negative: %.*s", name, shown, start);
    uint64_t sum = 0;
    for (const char *c = start; c < p->at; c++) {
        if (*c < '0' || *c > '9')
            return REFUSE(p, "%s is not a number: %.*s", name, shown, start);
        uint64_t digit = (uint64_t)(*c - '0');
        if (sum > (UINT64_MAX - digit) / 10)
            return REFUSE(p, "%s is too large: %.*s", name, shown, start);
        sum = sum * 10 + digit;
    }
    if (sum > highest)
        return REFUSE(p, "%s is too large: %.*s, at most %llu", name, shown, start,
                      (unsigned long long)highest);
    *value = sum;
    return TA_OK;
}

static ta_status line_end(parser *p)
{
    if (p->at == p->end) return TA_OK;
    int shown = p->end - p->at > 40 ? 40 : (int)(p->end - p->at);
    return REFUSE(p, "more than the line should have: %.*s", shown, p->at);
}

static ta_status add_event(parser *p, ta_trace_event event)
{
    ta_trace *t = p->trace;
    if (!grow((void **)&t->events, t->count, &p->events_room, sizeof event))
        return TA_NO_HOST_MEMORY;
    t->events[t->count++] = event;
    return TA_OK;
}

/* " STREAM [DEVICE]" */
static ta_status place(parser *p, uint64_t *stream, uint64_t *device, bool *said_device)
{
    ta_status status = number(p, "the stream", TA_TRACE_MAX_STREAMS - 1, stream);
    if (status != TA_OK) return status;
    *said_device = p->at != p->end;
    if (*said_device) {
        status = number(p, "the device", TA_MAX_DEVICES - 1, device);
        if (status != TA_OK) return status;
    }
    return line_end(p);
}

static ta_status check_stream(parser *p, uint64_t stream, uint64_t device)
{
    int16_t *known = &p->stream_device[stream];
    if (*known >= 0 && (uint64_t)*known != device)
        return REFUSE(p, "stream %llu is of device %d and now of device %llu",
                      (unsigned long long)stream, *known, (unsigned long long)device);
    *known = (int16_t)device;
    if (stream >= p->trace->streams) p->trace->streams = (uint32_t)stream + 1;
    if (device >= p->trace->devices) p->trace->devices = (uint32_t)device + 1;
    return TA_OK;
}

static ta_status read_alloc(parser *p)
{
    ta_trace *t = p->trace;
    uint64_t id, size, stream, device = 0;
    bool said;
    ta_status status = number(p, "the id", UINT64_MAX, &id);
    if (status == TA_OK) status = number(p, "the size", TA_TRACE_MAX_SIZE, &size);
    if (status == TA_OK) status = place(p, &stream, &device, &said);
    if (status == TA_OK) status = check_stream(p, stream, device);
    if (status == TA_OK) status = grow_ids(p);
    if (status != TA_OK) return status;
    id_entry *entry = find_id(p, id);
    if (entry->taken)
        return REFUSE(p, "id %llu was allocated before", (unsigned long long)id);
    uint32_t slot = p->spare_count > 0 ? p->spare[--p->spare_count] : t->slots++;
    *entry = (id_entry){.id = id, .size = size, .slot = slot, .taken = true};
    entry->device = (uint8_t)device;
    p->used++;
    if (p->live[device] > UINT64_MAX / 4)
        return REFUSE(p, "the sizes add up to too much");
    p->live[device] += size;
    if (p->live[device] > t->peak_requested[device])
        t->peak_requested[device] = p->live[device];
    t->allocations++;
    return add_event(p, (ta_trace_event){.value = size,
                                         .slot = slot,
                                         .stream = (uint16_t)stream,
                                         .kind = TA_TRACE_ALLOC,
                                         .device = (uint8_t)device});
}

/* The live block of the id on the line. */
static ta_status live_block(parser *p, id_entry **entry)
{
    uint64_t id;
    ta_status status = number(p, "the id", UINT64_MAX, &id);
    if (status != TA_OK) return status;
    *entry = p->ids == NULL ? NULL : find_id(p, id);
    if (*entry == NULL || !(*entry)->taken)
        return REFUSE(p, "id %llu was never allocated", (unsigned long long)id);
    if ((*entry)->slot == SLOT_FREED)
        return REFUSE(p, "id %llu was freed before", (unsigned long long)id);
    return TA_OK;
}

static ta_status read_free(parser *p)
{
    id_entry *entry;
    ta_status status = live_block(p, &entry);
    if (status == TA_OK) status = line_end(p);
    if (status != TA_OK) return status;
    if (!grow((void **)&p->spare, p->spare_count, &p->spare_room, sizeof *p->spare))
        return TA_NO_HOST_MEMORY;
    uint32_t slot = entry->slot;
    p->spare[p->spare_count++] = slot;
    entry->slot = SLOT_FREED;
    p->live[entry->device] -= entry->size;
    return add_event(
        p,
        (ta_trace_event){.slot = slot, .kind = TA_TRACE_FREE, .device = entry->device});
}

static ta_status read_record_stream(parser *p)
{
    id_entry *entry;
    uint64_t stream, device = 0;
    bool said;
    ta_status status = live_block(p, &entry);
    if (status == TA_OK) status = place(p, &stream, &device, &said);
    if (status != TA_OK) return status;
    if (said && device != entry->device)
        return REFUSE(p, "the block is on device %d, not %llu", entry->device,
                      (unsigned long long)device);
    status = check_stream(p, stream, entry->device);
    if (status != TA_OK) return status;
    return add_event(p, (ta_trace_event){.slot = entry->slot,
                                         .stream = (uint16_t)stream,
                                         .kind = TA_TRACE_RECORD_STREAM,
                                         .device = entry->device});
}

static ta_status read_mark(parser *p)
{
    ta_trace *t = p->trace;
    if (p->at == p->end || *p->at != ' ' || p->at + 1 == p->end)
        return REFUSE(p, "the mark has no text");
    const char *start = p->at + 1;
    size_t length = (size_t)(p->end - start);
    if (memchr(start, 0, length) != NULL) return REFUSE(p, "a zero byte in a mark");
    while (t->text == NULL || p->text_used + length + 1 > p->text_room)
        if (!grow((void **)&t->text, p->text_room, &p->text_room, 1))
            return TA_NO_HOST_MEMORY;
    size_t offset = p->text_used;
    memcpy(t->text + offset, start, length);
    t->text[offset + length] = 0;
    p->text_used += length + 1;
    bool step = strcmp(t->text + offset, "step") == 0;
    t->steps += step;
    uint8_t kind = step ? TA_TRACE_STEP : TA_TRACE_MARK;
    return add_event(p, (ta_trace_event){.value = offset, .kind = kind});
}

/* "# torcharena trace VERSION [NAME NUMBER]..."; other lines that begin with # say nothing. */
static ta_status read_header(parser *p, const char *line)
{
    static const char opening[] = "# torcharena trace";
    size_t length = sizeof opening - 1;
    if ((size_t)(p->end - line) < length || memcmp(line, opening, length) != 0)
        return TA_OK;
    if (p->line != 1)
        return REFUSE(p, "a header after the first line: two traces in one?");
    p->at = line + length;
    uint64_t version;
    ta_status status = number(p, "the version", UINT64_MAX, &version);
    if (status != TA_OK) return status;
    if (version != TA_TRACE_VERSION)
        return REFUSE(p, "version %llu of the format; this reads version %d",
                      (unsigned long long)version, TA_TRACE_VERSION);
    while (p->at < p->end) {
        if (*p->at++ != ' ') return REFUSE(p, "expected a space in the header");
        const char *name = p->at;
        while (p->at < p->end && *p->at != ' ') p->at++;
        bool page = p->at - name == 4 && memcmp(name, "page", 4) == 0;
        uint64_t value;
        status = number(p, page ? "the page size" : "a number of the header", UINT64_MAX,
                        &value);
        if (status != TA_OK) return status;
        if (!page) continue;
        if (value == 0 || (value & (value - 1)) != 0 || value > (uint64_t)1 << 32)
            return REFUSE(p, "the page size is no power of two up to 4 GiB: %llu",
                          (unsigned long long)value);
        p->trace->page_bytes = value;
    }
    return TA_OK;
}

static ta_status read_line(parser *p)
{
    const char *line = p->at;
    if (line == p->end) return REFUSE(p, "an empty line");
    if (*line == '#') return read_header(p, line);
    if (line + 1 < p->end && line[1] != ' ')
        return REFUSE(p, "not a line of a trace: it begins with none of a, f, r, m, #");
    p->at++;
    switch (*line) {
    case 'a':
        return read_alloc(p);
    case 'f':
        return read_free(p);
    case 'r':
        return read_record_stream(p);
    case 'm':
        return read_mark(p);
    default:
        return REFUSE(p, "not a line of a trace: it begins with none of a, f, r, m, #");
    }
}

static ta_status read_lines(parser *p, const char *text, size_t length)
{
    const char *end = text + length;
    if (length == 0) return REFUSE(p, "the file is empty");
    while (text < end) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        p->line++;
        if (stop == NULL) return REFUSE(p, "the last line is not ended: cut short?");
        p->at = text;
        p->end = stop;
        ta_status status = read_line(p);
        if (status != TA_OK) return status;
        text = stop + 1;
    }
    return TA_OK;
}

ta_status ta_trace_parse(const char *text, size_t length, ta_trace **trace,
                         ta_trace_error *error)
{
    *trace = NULL;
    if (error != NULL) *error = (ta_trace_error){0};
    parser p = {.error = error, .trace = calloc(1, sizeof **trace)};
    p.stream_device = malloc(TA_TRACE_MAX_STREAMS * sizeof *p.stream_device);
    ta_status status = TA_NO_HOST_MEMORY;
    if (p.trace != NULL && p.stream_device != NULL) {
        memset(p.stream_device, 0xff, TA_TRACE_MAX_STREAMS * sizeof *p.stream_device);
        status = read_lines(&p, text, length);
    }
    if (status == TA_NO_HOST_MEMORY && error != NULL)
        snprintf(error->reason, sizeof error->reason, "no host memory to hold the trace");
    free(p.ids);
    free(p.spare);
    free(p.stream_device);
    if (status != TA_OK) {
        ta_trace_free(p.trace);
        return status;
    }
    for (int i = 0; i < TA_MAX_DEVICES; i++)
        p.trace->peak_total += p.trace->peak_requested[i];
    *trace = p.trace;
    return TA_OK;
}

void ta_trace_free(ta_trace *trace)
{
    if (trace == NULL) return;
    free(trace->events);
    free(trace->text);
    free(trace);
}
