/* alive.c - a page that the kernel wipes in a child, however it was forked, with no handler
 * of ours; see alive.h. Thread-safe. */
#include "alive.h"

#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

ta_alive *ta_alive_make(void)
{
    ta_alive *page = mmap(NULL, page_bytes(), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return NULL;
    if (madvise((void *)page, page_bytes(), MADV_WIPEONFORK)) {
        munmap((void *)page, page_bytes());
        return NULL;
    }
    return page;
}

void ta_alive_end(ta_alive *alive)
{
    if (alive) munmap((void *)alive, page_bytes());
}
