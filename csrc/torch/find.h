/* find.h - symbols of the libraries that the process has loaded. Private to csrc/torch. */
#ifndef TA_FIND_H
#define TA_FIND_H

#include <stddef.h>

/* Puts the symbol's address into a pointer of any type: first what the whole process sees,
 * so that a preloaded library comes first, then the library of that name if it is loaded
 * (Python loads torch's privately). Returns 0, with NULL in the slot, where there is none.
 * Never loads anything. */
int ta_find(const char *library, const char *symbol, void *slot);

#endif
