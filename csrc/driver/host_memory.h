/* host_memory.h - how much more of the machine's memory this process may take. */
#ifndef TA_HOST_MEMORY_H
#define TA_HOST_MEMORY_H

#include "../include/torcharena.h"

/* The least of what the system has available and what each control group above the process
 * leaves, in bytes. `root` comes before every path: "" is the machine itself. A group's limit
 * that cannot be read counts as none; TA_UNSUPPORTED where not even the system's memory can
 * be. */
ta_status ta_host_memory(const char *root, uint64_t *bytes);

#endif
