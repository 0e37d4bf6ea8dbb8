/* export.h - pages handed to other processes, and pages of theirs. */
#ifndef TA_EXPORT_H
#define TA_EXPORT_H

#include "driver.h"

typedef struct ta_export_info {
    uint64_t base, size, serial; /* of the live block */
    uint64_t first_page;         /* address of its first page */
    uint64_t page_bytes;
    uint32_t pages;
    int device;
} ta_export_info;
/* The block that holds `ptr`, if it can be shared. TA_INVALID: no live block of ours;
 * TA_UNSUPPORTED, and *why: it cannot. */
ta_status ta_export_look(ta_allocator *allocator, const void *ptr, ta_export_info *info,
                         const char **why);
/* Descriptors of the block's pages [first, first + count), the caller's to close. TA_INVALID:
 * the block with that serial is gone. */
ta_status ta_export_pages(ta_allocator *allocator, uint64_t base, uint64_t serial,
                          uint32_t first, uint32_t count, int *fds);

/* Pages of another process, at addresses of our own: opened, given each page's descriptor in
 * order, made ready. They count against no cap of ours. */
typedef struct ta_import ta_import;
ta_status ta_import_open(ta_allocator *allocator, int device, uint64_t page_bytes,
                         uint32_t pages, ta_import **import);
ta_status ta_import_page(ta_import *import, int fd); /* does not close it */
ta_status ta_import_ready(ta_import *import, void **base);
/* Ready or not. After all work of our devices; while a capture is open, at a later call. */
void ta_import_close(ta_import *import);

#endif
