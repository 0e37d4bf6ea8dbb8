/* replay_trace.h - a recorded allocation trace, read from its text.
 *
 * The text is lines, each ended by a newline:
 *
 *     # torcharena trace 1 page 4194304    header: version, then pairs of name and number;
 *                                          optional, and only as the first line
 *     a ID SIZE STREAM [DEVICE]            allocate SIZE bytes; ID is new
 *     f ID                                 free it
 *     r ID STREAM [DEVICE]                 record_stream: STREAM uses it too
 *     m TEXT                               a mark; `m step` ends a step
 *     # ...                                a comment
 *
 * Numbers are decimal. STREAM counts from 0, the first seen; streams of two devices never
 * share a number. DEVICE is a CUDA ordinal, 0 where it is missing. What is never freed
 * lives to the end. Names in the header that a reader does not know are skipped. */
#ifndef TA_REPLAY_TRACE_H
#define TA_REPLAY_TRACE_H

#include "../include/torcharena.h"

#define TA_TRACE_VERSION 1
#define TA_TRACE_MAX_STREAMS 65536u
#define TA_TRACE_MAX_SIZE ((uint64_t)1 << 50) /* bytes of one block */

typedef enum ta_trace_kind {
    TA_TRACE_ALLOC = 0,
    TA_TRACE_FREE = 1,
    TA_TRACE_RECORD_STREAM = 2,
    TA_TRACE_MARK = 3,
    TA_TRACE_STEP = 4 /* the mark `step` */
} ta_trace_kind;

typedef struct ta_trace_event {
    uint64_t value;  /* alloc: bytes; mark: offset of its text in ta_trace.text */
    uint32_t slot;   /* which block: below ta_trace.slots, used again after the free */
    uint16_t stream; /* alloc, record_stream */
    uint8_t kind;    /* ta_trace_kind */
    uint8_t device;
} ta_trace_event;

typedef struct ta_trace {
    ta_trace_event *events;
    size_t count;
    uint32_t slots;            /* most blocks alive at once */
    uint32_t streams, devices; /* one more than the highest number seen */
    uint64_t allocations, steps;
    uint64_t page_bytes;                     /* of the header; 0: it says none */
    uint64_t peak_requested[TA_MAX_DEVICES]; /* highest sum of live sizes, by device */
    uint64_t peak_total;                     /* their sum */
    char *text;                              /* marks, each ended by 0 */
} ta_trace;

typedef struct ta_trace_error {
    uint64_t line; /* from 1; 0: not about a line */
    char reason[160];
} ta_trace_error;

/* TA_INVALID: malformed, and *error (may be NULL) says where and why. */
ta_status ta_trace_parse(const char *text, size_t length, ta_trace **trace,
                         ta_trace_error *error);
void ta_trace_free(ta_trace *trace);

#endif
