/* record.c - the recording of an allocator's events: the queue and its thread.
 *
 * lines.c turns records into lines. The observer is called by any thread under an
 * allocator lock; it appends one record of 32 bytes under the recorder's own mutex, which is
 * innermost: nothing is locked or called under it, save malloc for a chunk every 2,048
 * records. The thread of ours takes whole chunks, and what a chunk holds so far four times a
 * second.
 *
 * Invariant, under the mutex:
 *     queued chunks + spare chunks + the thread's own <= chunk_limit
 *     an event that was not lost is in a queued chunk, in the thread's, or in the file */
#define _POSIX_C_SOURCE 200809L
#include "record.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lines.h"

#define CHUNK_RECORDS 2048u
#define LOOK_NS 250000000L /* the thread looks at half-full chunks this often */
#define STACK_BYTES ((size_t)256 << 10)

typedef struct chunk chunk;
struct chunk {
    chunk *next;
    uint32_t used;
    ta_record records[CHUNK_RECORDS];
};

struct ta_recorder {
    ta_allocator *allocator;
    pid_t owner;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    /* Under the mutex: */
    chunk *first, *last, *spare;
    uint64_t chunks, chunks_peak, chunk_limit;
    bool stopping;
    ta_record_result seen; /* what ta_record_look shows */
    /* Once set, the observer counts and returns without the lock. */
    atomic_bool failed;
    _Atomic uint64_t lost;
    /* The thread's: */
    ta_lines lines;
};

/* --- the allocator's side -------------------------------------------------------------- */

/* Under the mutex. */
static void end_early(ta_recorder *r, const char *why)
{
    if (r->seen.error[0] == 0) snprintf(r->seen.error, sizeof r->seen.error, "%s", why);
    atomic_store_explicit(&r->failed, true, memory_order_relaxed);
}

/* `count` free records at the end of the queue; NULL when it is full. Under the mutex. */
static ta_record *room_for(ta_recorder *r, uint32_t count)
{
    if (r->last != NULL && r->last->used + count <= CHUNK_RECORDS) {
        r->last->used += count;
        return &r->last->records[r->last->used - count];
    }
    chunk *fresh = r->spare;
    if (fresh != NULL) {
        r->spare = fresh->next;
    } else {
        if (r->chunks >= r->chunk_limit) return NULL;
        fresh = malloc(sizeof *fresh);
        if (fresh == NULL) return NULL;
        r->chunks++;
        if (r->chunks > r->chunks_peak) r->chunks_peak = r->chunks;
    }
    fresh->next = NULL;
    fresh->used = count;
    if (r->last != NULL) {
        r->last->next = fresh;
        pthread_cond_signal(&r->wake); /* a whole chunk is there */
    } else {
        r->first = fresh;
    }
    r->last = fresh;
    return fresh->records;
}

static void append(ta_recorder *r, const ta_record *record, const char *text)
{
    uint32_t count = 1 + ta_record_extra(record);
    ta_record *place = NULL;
    if (!atomic_load_explicit(&r->failed, memory_order_relaxed)) {
        pthread_mutex_lock(&r->mutex);
        place = atomic_load(&r->failed) ? NULL : room_for(r, count);
        if (place != NULL) {
            *place = *record;
            if (count > 1) memcpy(place + 1, text, record->size);
        } else {
            end_early(r, "the writing of the trace fell behind: its queue was full");
        }
        pthread_mutex_unlock(&r->mutex);
    }
    if (place == NULL) atomic_fetch_add_explicit(&r->lost, 1, memory_order_relaxed);
}

/* The bytes of a mark that are kept: whole characters of UTF-8. */
static uint64_t mark_size(const char *text)
{
    size_t size = strnlen(text, TA_RECORD_MARK_MAX + 1);
    if (size <= TA_RECORD_MARK_MAX) return size;
    size = TA_RECORD_MARK_MAX;
    while (size > 0 && (text[size] & 0xC0) == 0x80) size--;
    return size;
}

static void observe(void *context, const ta_event_info *event)
{
    ta_record record = {.kind = (uint16_t)event->kind,
                        .device = (uint16_t)event->device,
                        .stream = event->stream,
                        .size = event->size,
                        .serial = event->serial};
    switch (event->kind) {
    case TA_EVENT_ALLOC:
    case TA_EVENT_FREE:
    case TA_EVENT_RECORD_STREAM:
    case TA_EVENT_OOM:
        break;
    case TA_EVENT_MARK:
        if (event->text == NULL) return;
        record.size = mark_size(event->text);
        break;
    default:
        return;
    }
    append(context, &record, event->text);
}

/* What is alive when the recording starts. The observer is there already: a block may come
 * twice, which the thread sees by its serial. */
typedef struct snapshot {
    ta_recorder *recorder;
    int device;
    ta_stream stream;
} snapshot;

static void see_segment(void *context, const ta_segment_info *segment)
{
    snapshot *s = context;
    s->device = segment->device;
    s->stream = segment->stream;
}

static void see_block(void *context, const ta_block_info *block)
{
    snapshot *s = context;
    if (block->state != TA_BLOCK_LIVE) return;
    ta_record record = {.kind = TA_EVENT_ALLOC,
                        .device = (uint16_t)s->device,
                        .stream = s->stream,
                        .size = block->requested,
                        .serial = block->serial};
    append(s->recorder, &record, NULL);
}

/* --- the thread -------------------------------------------------------------------------- */

/* What is queued, or NULL at the end. Waits for a whole chunk, for a while, or for stop. */
static chunk *take(ta_recorder *r)
{
    pthread_mutex_lock(&r->mutex);
    if (r->first == r->last && !r->stopping) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += LOOK_NS;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        while (r->first == r->last && !r->stopping)
            if (pthread_cond_timedwait(&r->wake, &r->mutex, &until) != 0) break;
    }
    chunk *all = r->first;
    r->first = r->last = NULL;
    pthread_mutex_unlock(&r->mutex);
    return all;
}

static void give_back(ta_recorder *r, chunk *all)
{
    pthread_mutex_lock(&r->mutex);
    while (all != NULL) {
        chunk *next = all->next;
        all->next = r->spare;
        r->spare = all;
        all = next;
    }
    r->seen.lines = r->lines.lines;
    r->seen.bytes = r->lines.bytes;
    if (r->lines.error[0] != 0) end_early(r, r->lines.error);
    pthread_mutex_unlock(&r->mutex);
}

static bool stopped(ta_recorder *r)
{
    pthread_mutex_lock(&r->mutex);
    bool yes = r->stopping && r->first == NULL;
    pthread_mutex_unlock(&r->mutex);
    return yes;
}

static void *run(void *context)
{
    ta_recorder *r = context;
    while (!stopped(r)) {
        chunk *all = take(r);
        for (chunk *c = all; c != NULL; c = c->next)
            ta_lines_write(&r->lines, c->records, c->used);
        ta_lines_flush(&r->lines);
        give_back(r, all);
    }
    return NULL;
}

/* With every signal blocked: the program's handlers are not run on a thread of ours, and a
 * broken pipe is an error of write, not the end of the process. */
static int start_thread(ta_recorder *r)
{
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error != 0) return error;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&r->thread, &attributes, run, r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

/* --- start and stop ---------------------------------------------------------------------- */

static void free_chunks(chunk *all)
{
    while (all != NULL) {
        chunk *next = all->next;
        free(all);
        all = next;
    }
}

static void dispose(ta_recorder *r)
{
    free_chunks(r->first);
    free_chunks(r->spare);
    ta_lines_close(&r->lines);
    pthread_cond_destroy(&r->wake);
    pthread_mutex_destroy(&r->mutex);
    free(r);
}

static ta_recorder *make(ta_allocator *allocator, const ta_record_options *options)
{
    ta_recorder *r = calloc(1, sizeof *r);
    if (r == NULL) return NULL;
    uint64_t bytes = options != NULL ? options->queue_bytes : 0;
    if (bytes == 0) bytes = TA_RECORD_QUEUE;
    r->chunk_limit = bytes / sizeof(chunk);
    if (r->chunk_limit < 2) r->chunk_limit = 2;
    r->allocator = allocator;
    r->owner = getpid();
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&r->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&r->mutex, NULL);
    return r;
}

ta_status ta_record_start(ta_allocator *allocator, const char *path,
                          const ta_record_options *options, ta_recorder **recorder,
                          char error[TA_RECORD_ERROR])
{
    *recorder = NULL;
    error[0] = 0;
    ta_recorder *r = make(allocator, options);
    if (r == NULL) {
        snprintf(error, TA_RECORD_ERROR, "no host memory for a recording");
        return TA_NO_HOST_MEMORY;
    }
    uint64_t page = options != NULL ? options->page_bytes : 0;
    if (!ta_lines_open(&r->lines, path, page != 0 ? page : TA_DEFAULT_PAGE)) {
        snprintf(error, TA_RECORD_ERROR, "%s", r->lines.error);
        dispose(r);
        return TA_INVALID;
    }
    int code = start_thread(r);
    if (code != 0) {
        snprintf(error, TA_RECORD_ERROR, "no thread for a recording: %s", strerror(code));
        dispose(r);
        return TA_NO_HOST_MEMORY;
    }
    ta_status status = ta_add_observer(allocator, observe, r);
    if (status != TA_OK) {
        snprintf(error, TA_RECORD_ERROR, "the allocator's events cannot be watched: %s",
                 ta_status_text(status));
        r->allocator = NULL;
        ta_record_stop(r, NULL);
        return status;
    }
    snapshot s = {.recorder = r};
    ta_visitor visitor = {.context = &s, .segment = see_segment, .block = see_block};
    ta_visit(allocator, -1, &visitor);
    *recorder = r;
    return TA_OK;
}

void ta_record_look(ta_recorder *r, ta_record_result *result)
{
    memset(result, 0, sizeof *result);
    if (getpid() != r->owner) return;
    pthread_mutex_lock(&r->mutex);
    *result = r->seen;
    result->lost = atomic_load(&r->lost);
    result->queue_peak = r->chunks_peak * sizeof(chunk);
    pthread_mutex_unlock(&r->mutex);
}

ta_status ta_record_stop(ta_recorder *r, ta_record_result *result)
{
    if (getpid() != r->owner) return TA_FORKED;
    if (r->allocator != NULL) ta_remove_observer(r->allocator, observe, r);
    pthread_mutex_lock(&r->mutex);
    r->stopping = true;
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->mutex);
    pthread_join(r->thread, NULL);
    ta_record_result last;
    ta_record_look(r, &last);
    if (result != NULL) *result = last;
    dispose(r);
    return last.error[0] == 0 ? TA_OK : TA_DRIVER;
}
