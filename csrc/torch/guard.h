/* guard.h - texts of what guarded blocks showed. */
#ifndef TA_TORCH_GUARD_H
#define TA_TORCH_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TA_GUARD_TEXT 1024 /* bytes of one */

/* What a stack of lines is called, by its number (place.h); once. False: no host memory. */
bool ta_guard_name(uint16_t stack, const char *place);
/* The next that nobody was told of: its length, or -1 when there is none. */
int ta_guard_tell_next(char *text, size_t capacity);
/* As many as there is room for, a line each; the others wait. */
void ta_guard_tell_all(char *text, size_t capacity);

#endif
