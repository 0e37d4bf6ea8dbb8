/* guard.c - what guarded blocks showed, as text for torch's exceptions and for Python.
 *
 * Called by the hooks and by csrc/py. Names of places are told once and kept, so that an
 * allocation on any thread can name one with no lock and no GIL. Thread-safe. */
#include "guard.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "process.h"

static _Atomic(char *) names[UINT16_MAX + 1];

bool ta_guard_name(uint16_t stack, const char *place)
{
    char *copy = strdup(place), *none = NULL;
    if (copy == NULL) return false;
    if (!atomic_compare_exchange_strong(&names[stack], &none, copy)) free(copy);
    return true;
}

int ta_guard_tell_next(char *text, size_t capacity)
{
    ta_allocator *allocator = ta_process_allocator();
    ta_guard_finding finding;
    if (allocator == NULL || !ta_guard_next(allocator, &finding)) return -1;
    return ta_guard_text(&finding, atomic_load(&names[finding.stack]), text, capacity);
}

void ta_guard_tell_all(char *text, size_t capacity)
{
    size_t length = 0;
    text[0] = '\0';
    while (capacity - length > (size_t)2 * TA_GUARD_TEXT) {
        size_t at = length + (length > 0);
        const int more = ta_guard_tell_next(text + at, capacity - at);
        if (more < 0) break;
        if (length > 0) text[length] = '\n';
        length = at + strlen(text + at);
    }
}
