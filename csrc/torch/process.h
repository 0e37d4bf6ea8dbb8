/* process.h - the one allocator of this process, on which torch's hooks work.
 *
 * Made once, on Python's request, and never destroyed: torch may free until the process
 * ends, and the driver may be gone by then. Thread-safe. */
#ifndef TA_PROCESS_H
#define TA_PROCESS_H

#include "../include/torcharena.h"

/* TA_INVALID if there is one already. Starts no driver. */
ta_status ta_process_create(const ta_config *config);
/* NULL before ta_process_create. */
TA_API ta_allocator *ta_process_allocator(void);
/* What counts who uses what, for the text of refusals; it lives as long as the process. */
struct ta_usage;
void ta_process_count(struct ta_usage *usage);
struct ta_usage *ta_process_usage(void); /* NULL: nothing counts */
/* True in a child that was forked from the process whose memory the allocator manages. */
bool ta_process_forked(void);

/* What C code has to tell the user waits here for the next call from Python: nothing is
 * printed. Each text is kept once; those beyond the room are counted. */
void ta_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Takes the oldest message out: its length, or -1 when there is none. */
int ta_next_message(char *text, size_t capacity);
bool ta_message_waits(void);

#endif
