/* lines.c - turns records of events into the lines of a trace, and writes them.
 *
 * Called by the recording thread alone (record.c). Serials become ids that count from 1,
 * (device, stream) pairs become numbers that count from 0. What the recording has not seen
 * begin is left out: the free of an unknown serial, a second alloc of a live one. After an
 * error nothing is written any more; the file then ends with a whole line, where the disk
 * allowed it. */
#define _POSIX_C_SOURCE 200809L
#include "lines.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUFFER_BYTES ((size_t)64 << 10)
#define LINE_MAX_BYTES ((size_t)TA_RECORD_MARK_MAX + 128)
#define MOST_STREAMS 65536u /* what a trace can name */

__attribute__((format(printf, 2, 3))) static void fail(ta_lines *l, const char *format,
                                                       ...)
{
    if (l->error[0] != 0) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(l->error, sizeof l->error, format, arguments);
    va_end(arguments);
}

static void fail_errno(ta_lines *l, const char *what)
{
    fail(l, "%s: %s", what, strerror(errno));
}

/* --- the file ------------------------------------------------------------------------- */

/* A write that is cut short by a full disk leaves half a line: the file is cut back to the
 * last whole one, so that it stays a trace. */
static void cut_back(ta_lines *l, size_t written)
{
    while (written > 0 && l->buffer[written - 1] != '\n') written--;
    l->bytes += written;
    if (ftruncate(l->fd, (off_t)l->bytes) != 0) return; /* a pipe: nothing to be done */
}

void ta_lines_flush(ta_lines *l)
{
    size_t done = 0;
    while (done < l->buffered && l->error[0] == 0) {
        ssize_t wrote = write(l->fd, l->buffer + done, l->buffered - done);
        if (wrote > 0) {
            done += (size_t)wrote;
        } else if (wrote < 0 && errno != EINTR) {
            fail_errno(l, "the trace cannot be written");
            cut_back(l, done);
            done = 0;
        }
    }
    l->bytes += done;
    l->buffered = 0;
}

/* Room for one line at the buffer's end. */
static char *line_room(ta_lines *l)
{
    if (l->buffered + LINE_MAX_BYTES > BUFFER_BYTES) ta_lines_flush(l);
    return l->buffer + l->buffered;
}

static char *put_number(char *at, uint64_t value)
{
    char digits[20];
    int count = 0;
    do digits[count++] = (char)('0' + value % 10);
    while ((value /= 10) != 0);
    *at++ = ' ';
    while (count > 0) *at++ = digits[--count];
    return at;
}

static void end_line(ta_lines *l, char *at, bool counts)
{
    *at++ = '\n';
    l->buffered = (size_t)(at - l->buffer);
    l->lines += counts;
}

bool ta_lines_open(ta_lines *l, const char *path, uint64_t page_bytes)
{
    memset(l, 0, sizeof *l);
    l->fd = -1;
    l->mask = 4095;
    l->table = calloc(l->mask + 1, sizeof *l->table);
    l->buffer = malloc(BUFFER_BYTES);
    if (l->table == NULL || l->buffer == NULL) {
        fail(l, "no host memory for a recording");
        return false;
    }
    l->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (l->fd < 0) {
        fail_errno(l, path);
        return false;
    }
    int length = snprintf(l->buffer, BUFFER_BYTES, "# torcharena trace 1 page %llu\n",
                          (unsigned long long)page_bytes);
    l->buffered = (size_t)length;
    ta_lines_flush(l);
    return l->error[0] == 0;
}

void ta_lines_close(ta_lines *l)
{
    if (l->fd >= 0) close(l->fd);
    l->fd = -1;
    free(l->buffer);
    free(l->table);
    free(l->streams);
    l->buffer = NULL;
    l->table = NULL;
    l->streams = NULL;
}

/* --- serials -------------------------------------------------------------------------- */

static size_t home(const ta_lines *l, uint64_t serial)
{
    uint64_t h = serial * 0x9E3779B97F4A7C15u;
    return (size_t)(h ^ (h >> 29)) & l->mask;
}

static ta_lines_entry *find(const ta_lines *l, uint64_t serial)
{
    size_t i = home(l, serial);
    while (l->table[i].serial != 0 && l->table[i].serial != serial) i = (i + 1) & l->mask;
    return &l->table[i];
}

static bool make_room(ta_lines *l)
{
    if (l->live < (l->mask + 1) / 2) return true;
    ta_lines_entry *old = l->table, *fresh = calloc((l->mask + 1) * 2, sizeof *fresh);
    if (fresh == NULL) {
        fail(l, "no host memory for a recording");
        return false;
    }
    size_t old_count = l->mask + 1;
    l->table = fresh;
    l->mask = old_count * 2 - 1;
    for (size_t i = 0; i < old_count; i++)
        if (old[i].serial != 0) *find(l, old[i].serial) = old[i];
    free(old);
    return true;
}

/* Takes an entry out and moves those behind it up, so that no search meets a gap. */
static void take_out(ta_lines *l, ta_lines_entry *entry)
{
    size_t gap = (size_t)(entry - l->table), i = gap;
    for (;;) {
        i = (i + 1) & l->mask;
        if (l->table[i].serial == 0) break;
        size_t wanted = home(l, l->table[i].serial);
        if (((i - wanted) & l->mask) < ((i - gap) & l->mask)) continue;
        l->table[gap] = l->table[i];
        gap = i;
    }
    l->table[gap].serial = 0;
    l->live--;
}

/* --- streams --------------------------------------------------------------------------- */

static bool stream_is(const ta_lines *l, uint32_t i, const ta_record *record)
{
    return l->streams[i].stream == record->stream &&
           l->streams[i].device == record->device;
}

static bool stream_number(ta_lines *l, const ta_record *record, uint64_t *number)
{
    uint32_t i = l->last_stream;
    if (i >= l->stream_count || !stream_is(l, i, record))
        for (i = 0; i < l->stream_count && !stream_is(l, i, record); i++) continue;
    if (i == l->stream_count) {
        if (i == MOST_STREAMS) {
            fail(l, "more than %u streams: the trace ends there", MOST_STREAMS);
            return false;
        }
        if (i == l->stream_room) {
            uint32_t room = i == 0 ? 64 : i * 2;
            void *bigger = realloc(l->streams, room * sizeof *l->streams);
            if (bigger == NULL) {
                fail(l, "no host memory for a recording");
                return false;
            }
            l->streams = bigger;
            l->stream_room = room;
        }
        l->streams[l->stream_count++] =
            (ta_lines_stream){.stream = record->stream, .device = record->device};
    }
    l->last_stream = i;
    *number = i;
    return true;
}

/* --- lines ---------------------------------------------------------------------------- */

/* " STREAM [DEVICE]" and the end. */
static void put_place(ta_lines *l, char *at, const ta_record *record, uint64_t number)
{
    at = put_number(at, number);
    if (record->device != 0) at = put_number(at, record->device);
    end_line(l, at, true);
}

static void write_alloc(ta_lines *l, const ta_record *record)
{
    uint64_t number;
    if (!make_room(l) || !stream_number(l, record, &number)) return;
    ta_lines_entry *entry = find(l, record->serial);
    if (entry->serial != 0) return;
    *entry = (ta_lines_entry){.serial = record->serial, .id = ++l->next_id};
    l->live++;
    char *at = line_room(l);
    *at++ = 'a';
    at = put_number(at, entry->id);
    put_place(l, put_number(at, record->size), record, number);
}

static void write_free(ta_lines *l, const ta_record *record)
{
    ta_lines_entry *entry = find(l, record->serial);
    if (entry->serial == 0) return;
    char *at = line_room(l);
    *at++ = 'f';
    end_line(l, put_number(at, entry->id), true);
    take_out(l, entry);
}

static void write_record_stream(ta_lines *l, const ta_record *record)
{
    uint64_t number;
    ta_lines_entry *entry = find(l, record->serial);
    if (entry->serial == 0 || !stream_number(l, record, &number)) return;
    char *at = line_room(l);
    *at++ = 'r';
    put_place(l, put_number(at, entry->id), record, number);
}

/* A refusal changes nothing that is alive: a comment. */
static void write_oom(ta_lines *l, const ta_record *record)
{
    char *at = line_room(l);
    int length = snprintf(at, LINE_MAX_BYTES, "# out of memory: %llu bytes on device %d",
                          (unsigned long long)record->size, record->device);
    end_line(l, at + length, false);
}

static void write_mark(ta_lines *l, const ta_record *record)
{
    if (record->size == 0) return;
    char *at = line_room(l);
    *at++ = 'm';
    *at++ = ' ';
    memcpy(at, record + 1, record->size);
    for (uint64_t i = 0; i < record->size; i++)
        if (at[i] == '\n' || at[i] == '\r') at[i] = ' ';
    end_line(l, at + record->size, true);
}

void ta_lines_write(ta_lines *l, const ta_record *records, uint32_t count)
{
    for (uint32_t i = 0; i < count && l->error[0] == 0;
         i += 1 + ta_record_extra(&records[i])) {
        const ta_record *record = &records[i];
        switch (record->kind) {
        case TA_EVENT_ALLOC:
            write_alloc(l, record);
            break;
        case TA_EVENT_FREE:
            write_free(l, record);
            break;
        case TA_EVENT_RECORD_STREAM:
            write_record_stream(l, record);
            break;
        case TA_EVENT_OOM:
            write_oom(l, record);
            break;
        case TA_EVENT_MARK:
            write_mark(l, record);
            break;
        default:
            break;
        }
    }
}
