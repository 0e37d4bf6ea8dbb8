/* record.h - writes what an allocator does to a trace file while the program runs.
 *
 *     ta_recorder *recorder;
 *     char error[TA_RECORD_ERROR];
 *     if (ta_record_start(allocator, "x.trace", NULL, &recorder, error) == TA_OK) ...
 *     ta_record_result result;
 *     ta_record_stop(recorder, &result);
 *
 * The format is that of driver/replay_trace.h, as plain text. What is alive at the start comes
 * first, so that a recording may begin at any time. Marks are ta_mark's. A recording never
 * makes an allocation wait for the disk: events go into a queue bounded in memory, a thread
 * of ours writes them; where the disk fails or the queue is full, the recording ends there
 * and the result says so. What was written up to then is a whole trace. */
#ifndef TA_RECORD_H
#define TA_RECORD_H

#include "../../include/torcharena.h"

#define TA_RECORD_ERROR 256 /* bytes of an error text */
#define TA_RECORD_QUEUE ((uint64_t)64 << 20)

typedef struct ta_recorder ta_recorder;

typedef struct ta_record_options {
    uint64_t page_bytes;  /* for the header; 0: TA_DEFAULT_PAGE */
    uint64_t queue_bytes; /* the queue's bound; 0: TA_RECORD_QUEUE */
} ta_record_options;

typedef struct ta_record_result {
    uint64_t lines;              /* written, comments and header not counted */
    uint64_t bytes;              /* written */
    uint64_t lost;               /* events that came after the recording had failed */
    uint64_t queue_peak;         /* bytes that the queue held at most */
    char error[TA_RECORD_ERROR]; /* why the recording ended early; "" where it did not */
} ta_record_result;

/* Makes the file anew. `options` may be NULL. On failure `error` says why, and nothing is
 * left behind but, perhaps, an empty file. */
ta_status ta_record_start(ta_allocator *allocator, const char *path,
                          const ta_record_options *options, ta_recorder **recorder,
                          char error[TA_RECORD_ERROR]);
/* How it goes; from any thread. */
void ta_record_look(ta_recorder *recorder, ta_record_result *result);
/* Writes what is queued, joins the thread, frees the recorder. Once, before the allocator is
 * destroyed and before the process exits. TA_DRIVER: the recording had ended early. In a
 * forked child it does nothing and returns TA_FORKED: the parent's file is the parent's. */
ta_status ta_record_stop(ta_recorder *recorder, ta_record_result *result);

#endif
