/* lines.h - records of events, and their turning into the lines of a trace.
 *
 * Between record.c, whose observer makes the records, and the file. */
#ifndef TA_RECORD_LINES_H
#define TA_RECORD_LINES_H

#include "record.h"

#define TA_RECORD_MARK_MAX 240u /* bytes kept of a mark's text */

typedef struct ta_record {
    uint64_t serial;
    uint64_t size; /* mark: bytes of its text, which fills the records that follow */
    ta_stream stream;
    uint16_t kind; /* ta_event_kind */
    uint16_t device;
} ta_record;

/* Records that follow this one and hold its text. */
static inline uint32_t ta_record_extra(const ta_record *record)
{
    if (record->kind != TA_EVENT_MARK) return 0;
    return (uint32_t)((record->size + sizeof *record - 1) / sizeof *record);
}

typedef struct ta_lines_entry {
    uint64_t serial; /* 0: empty */
    uint64_t id;
} ta_lines_entry;

typedef struct ta_lines_stream {
    ta_stream stream;
    int device;
} ta_lines_stream;

/* One thread at a time. */
typedef struct ta_lines {
    int fd;
    uint64_t lines, bytes;
    char error[TA_RECORD_ERROR]; /* "" while all is well; nothing is written after */
    char *buffer;
    size_t buffered;
    /* Live blocks by serial, open addressing: live <= (mask + 1) / 2. */
    ta_lines_entry *table;
    size_t mask, live;
    uint64_t next_id;
    /* Streams by number. */
    ta_lines_stream *streams;
    uint32_t stream_count, stream_room, last_stream;
} ta_lines;

/* Makes the file and writes the header. False, with an error text: it did not work; close
 * is then still due. */
bool ta_lines_open(ta_lines *lines, const char *path, uint64_t page_bytes);
void ta_lines_write(ta_lines *lines, const ta_record *records, uint32_t count);
/* Everything written so far is in the file. */
void ta_lines_flush(ta_lines *lines);
void ta_lines_close(ta_lines *lines);

#endif
