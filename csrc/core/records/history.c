/* history.c - the last events of an allocator; see history.h.
 *
 * Called by the Python binding; the observer by any thread under an allocator lock, where
 * the history's own mutex is innermost. Entries lie in a list of chunks: the newest chunk is
 * filled, the oldest is emptied from its front and, when empty, used again as the newest.
 *
 * Invariant, under the mutex:
 *     kept = sum of (end - begin) over chunks <= limit
 *     chunks <= limit / CHUNK_ENTRIES + 2 */
#define _POSIX_C_SOURCE 200809L
#include "history.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "place.h"

#define CHUNK_ENTRIES 1024u

typedef struct chunk chunk;
struct chunk {
    chunk *next; /* newer */
    uint32_t begin, end;
    ta_history_entry entries[CHUNK_ENTRIES];
};

struct ta_history {
    ta_allocator *allocator;
    pid_t owner;
    pthread_mutex_t mutex;
    chunk *oldest, *newest;
    uint64_t chunks, seen, kept, limit;
};

/* Takes the oldest chunk out of the list. */
static chunk *unlink_oldest(ta_history *h)
{
    chunk *c = h->oldest;
    h->oldest = c->next;
    if (h->oldest == NULL) h->newest = NULL;
    return c;
}

static void drop_oldest(ta_history *h, uint64_t count)
{
    h->kept -= count;
    while (count > 0) {
        uint32_t held = h->oldest->end - h->oldest->begin;
        if (count < held) {
            h->oldest->begin += (uint32_t)count;
            return;
        }
        count -= held;
        free(unlink_oldest(h));
        h->chunks--;
    }
}

/* An empty chunk as the newest. */
static bool add_chunk(ta_history *h)
{
    chunk *fresh = NULL;
    /* The oldest has one entry left, which would go now: use its memory again. */
    bool emptied = h->kept == h->limit && h->oldest != NULL &&
                   h->oldest->begin + 1 == h->oldest->end;
    if (!emptied) fresh = malloc(sizeof *fresh);
    if (fresh != NULL) {
        h->chunks++;
    } else {
        if (h->oldest == NULL) return false;
        h->kept -= h->oldest->end - h->oldest->begin;
        fresh = unlink_oldest(h);
    }
    fresh->next = NULL;
    fresh->begin = fresh->end = 0;
    if (h->newest != NULL)
        h->newest->next = fresh;
    else
        h->oldest = fresh;
    h->newest = fresh;
    return true;
}

static void observe(void *context, const ta_event_info *event)
{
    ta_history *h = context;
    if (event->kind == TA_EVENT_MARK) return;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    ta_history_entry entry = {
        .time_us = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000,
        .addr = event->addr,
        .size = event->size,
        .serial = event->serial,
        .stream = event->stream,
        .kind = (uint16_t)event->kind,
        .device = (uint16_t)event->device,
        .stack = event->kind == TA_EVENT_ALLOC ? ta_place_now().stack : 0,
    };
    pthread_mutex_lock(&h->mutex);
    h->seen++;
    if ((h->newest != NULL && h->newest->end < CHUNK_ENTRIES) || add_chunk(h)) {
        h->newest->entries[h->newest->end++] = entry;
        h->kept++;
        if (h->kept > h->limit) drop_oldest(h, h->kept - h->limit);
    }
    pthread_mutex_unlock(&h->mutex);
}

ta_status ta_history_start(ta_allocator *allocator, uint64_t limit, ta_history **history)
{
    *history = NULL;
    if (limit == 0) return TA_INVALID;
    ta_history *h = calloc(1, sizeof *h);
    if (h == NULL) return TA_NO_HOST_MEMORY;
    h->allocator = allocator;
    h->owner = getpid();
    h->limit = limit;
    pthread_mutex_init(&h->mutex, NULL);
    ta_status status = ta_add_observer(allocator, observe, h);
    if (status != TA_OK) {
        pthread_mutex_destroy(&h->mutex);
        free(h);
        return status;
    }
    *history = h;
    return TA_OK;
}

ta_status ta_history_stop(ta_history *h)
{
    if (getpid() != h->owner) return TA_FORKED;
    ta_remove_observer(h->allocator, observe, h);
    drop_oldest(h, h->kept);
    pthread_mutex_destroy(&h->mutex);
    free(h);
    return TA_OK;
}

ta_status ta_history_set_limit(ta_history *h, uint64_t limit)
{
    if (limit == 0) return TA_INVALID;
    if (getpid() != h->owner) return TA_FORKED;
    pthread_mutex_lock(&h->mutex);
    h->limit = limit;
    if (h->kept > limit) drop_oldest(h, h->kept - limit);
    pthread_mutex_unlock(&h->mutex);
    return TA_OK;
}

ta_status ta_history_clear(ta_history *h)
{
    if (getpid() != h->owner) return TA_FORKED;
    pthread_mutex_lock(&h->mutex);
    drop_oldest(h, h->kept);
    h->seen = 0;
    pthread_mutex_unlock(&h->mutex);
    return TA_OK;
}

size_t ta_history_copy(ta_history *h, ta_history_entry *entries, size_t capacity)
{
    if (getpid() != h->owner) return 0;
    pthread_mutex_lock(&h->mutex);
    size_t wanted = h->kept < capacity ? (size_t)h->kept : capacity, copied = 0;
    uint64_t skip = h->kept - wanted;
    for (const chunk *c = h->oldest; c != NULL; c = c->next) {
        size_t held = c->end - c->begin;
        if (skip >= held) {
            skip -= held;
            continue;
        }
        size_t from = c->begin + (size_t)skip, count = c->end - from;
        memcpy(entries + copied, c->entries + from, count * sizeof *entries);
        copied += count;
        skip = 0;
    }
    pthread_mutex_unlock(&h->mutex);
    return copied;
}

void ta_history_look(ta_history *h, ta_history_counts *counts)
{
    memset(counts, 0, sizeof *counts);
    if (getpid() != h->owner) return;
    pthread_mutex_lock(&h->mutex);
    *counts = (ta_history_counts){.seen = h->seen,
                                  .kept = h->kept,
                                  .limit = h->limit,
                                  .bytes = h->chunks * sizeof(chunk)};
    pthread_mutex_unlock(&h->mutex);
}
