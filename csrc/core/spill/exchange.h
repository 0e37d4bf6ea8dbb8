/* exchange.h - the backing of slots exchanged under live blocks: device, host, nothing. The
 * device's `pages` lock is held, and dropped while copies are waited for; the arenas are
 * `moving`, the device has passed all its work, and the user launches none. */
#ifndef TA_EXCHANGE_H
#define TA_EXCHANGE_H

#include "pages/gather.h"
#include "host.h"

/* A slot to be exchanged. `page`: the host page that its bytes come from or go to. */
typedef struct ta_move {
    ta_arena *arena;
    ta_chunk *chunk;
    uint32_t slot;
    ta_host_page *page;
    uint64_t born; /* serial of the oldest block on it */
} ta_move;
typedef struct ta_moves {
    ta_move *at;
    size_t count, capacity;
    bool apart;   /* whatever is idle in its arenas leaves, too */
    bool release; /* pages that leave the device go to the driver, not to the ready */
    uint64_t copied, dropped, came; /* bytes, once done; came: to the device */
    double copy_us;
} ta_moves;

/* Slots of the arena with blocks on them that are on the device, or that are not; false: no
 * host memory. Without those whose page another process has. */
bool ta_moves_find(ta_moves *moves, ta_arena *arena, bool on_device);
void ta_moves_free(ta_moves *moves);
/* By the blocks on them, oldest first; or the youngest first, those of small blocks last. */
void ta_moves_order(ta_moves *moves, bool oldest_first);
/* A host page for each of the first `count`. Pinning takes long: with `pages` dropped. */
ta_status ta_moves_take(ta_device *device, ta_moves *moves, size_t count,
                        uint64_t *pinned);
/* Everything comes to the device; to the modest, as far as pages can be had with no wait. While
 * some is copied, pages for the next are found. What was freed meanwhile is left out. On
 * failure all is where it was, pages that were made are released, and with `touch` it is
 * mapped there, as far as the driver lets us. There is something, of one page size. */
ta_status ta_moves_to_device(ta_device *device, ta_moves *moves, bool modest, bool touch,
                             ta_lack *lack);
/* Bytes leave the device: to the move's page, or, without `keep`, nowhere. `touch`: the host
 * page takes the place. On failure some have left and some have not; every byte that is kept
 * is in its slot or its page. What follows a copy is done while later ones run. */
ta_status ta_moves_to_host(ta_device *device, ta_moves *moves, bool keep, bool touch);
/* Some slots are as a failure left them: not readable, or not certain to be whole. */
bool ta_moves_amiss(const ta_moves *moves);
/* Slots with their bytes in a host page get it mapped. */
ta_status ta_moves_touch(ta_device *device, ta_moves *moves);

#endif
