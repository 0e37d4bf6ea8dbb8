/* process.c - the process's allocator, and messages that wait for Python.
 *
 * Called by the hooks (the pointer alone, on every allocation) and by csrc/py. All of it is
 * thread-safe; the message lock is never held while anything else is called. */
#include "process.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "../driver/cuda.h"
#include "torch.h"

static pthread_mutex_t create_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(ta_allocator *) current;

ta_allocator *ta_process_allocator(void)
{
    return atomic_load_explicit(&current, memory_order_acquire);
}

static _Atomic(struct ta_usage *) counting;

void ta_process_count(struct ta_usage *usage) { atomic_store(&counting, usage); }
struct ta_usage *ta_process_usage(void) { return atomic_load(&counting); }

bool ta_process_forked(void)
{
    ta_allocator *allocator = ta_process_allocator();
    return allocator != NULL && ta_is_forked(allocator);
}

ta_status ta_process_create(const ta_config *config)
{
    if (ta_process_forked()) return TA_FORKED;
    pthread_mutex_lock(&create_lock);
    ta_status status = TA_INVALID;
    ta_allocator *made = NULL;
    if (ta_process_allocator() == NULL)
        status = ta_allocator_create(ta_cuda_driver(), config, &made);
    if (status == TA_OK) {
        ta_set_stream_life(made, ta_torch_stream_life, NULL);
        atomic_store_explicit(&current, made, memory_order_release);
    }
    pthread_mutex_unlock(&create_lock);
    return status;
}

/* A ring of short texts. taken <= said <= taken + ROOM. */
#define ROOM 64
#define LENGTH 512
static pthread_mutex_t say_lock = PTHREAD_MUTEX_INITIALIZER;
static char texts[ROOM][LENGTH];
static unsigned said, taken, lost;

void ta_say(const char *format, ...)
{
    char text[LENGTH];
    va_list arguments;
    if (ta_process_forked()) return; /* the lock may have been taken when it was made */
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&say_lock);
    bool known = false;
    for (unsigned i = taken; i != said && !known; i++)
        known = strcmp(texts[i % ROOM], text) == 0;
    if (!known && said - taken == ROOM)
        lost++;
    else if (!known)
        memcpy(texts[said++ % ROOM], text, sizeof text);
    pthread_mutex_unlock(&say_lock);
}

bool ta_message_waits(void)
{
    if (ta_process_forked()) return false;
    pthread_mutex_lock(&say_lock);
    const bool waits = taken != said || lost > 0;
    pthread_mutex_unlock(&say_lock);
    return waits;
}

int ta_next_message(char *text, size_t capacity)
{
    int length = -1;
    if (ta_process_forked()) return length;
    pthread_mutex_lock(&say_lock);
    if (taken != said) {
        length = snprintf(text, capacity, "%s", texts[taken++ % ROOM]);
    } else if (lost > 0) {
        length = snprintf(text, capacity, "%u more messages were lost", lost);
        lost = 0;
    }
    pthread_mutex_unlock(&say_lock);
    return length;
}
