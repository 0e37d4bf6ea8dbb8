/* types.h - the structures of the allocator, and the words for them.
 *
 *   allocator   all devices of a process
 *   device      one GPU: its arenas, its streams, the pages it holds
 *   stream      a queue of work; remembers up to which tick the GPU has passed
 *   arena       the blocks of one (device, stream, kind)
 *   chunk       a range of addresses of one arena, cut into page slots
 *   page        physical memory of one size, mapped into a slot or kept ready
 *   host page   the same in host memory (host.c); mapped at an address of its own, too
 *   block       a piece of a chunk: live, pending, held or free
 *   hole        a maximal run of free blocks, the unit of best fit
 *   tick        a count of points in time; a free bears the tick it happened at, an event
 *               the tick it was recorded at. What was freed at t may be unmapped once the
 *               stream has passed an event of a tick above t.
 *
 * Locks, outermost first: a device's `pages`, its `leveling`, one arena's `lock`, a device's
 * `counting`. Under `leveling` alone several arenas' may be held.
 * What each guards is written beside the fields. */
#ifndef TA_TYPES_H
#define TA_TYPES_H

#include <stdatomic.h>

#include "driver.h"
#include "lock.h"

#define TA_LINE 64 /* bytes that processors pass between them at a time */

typedef struct ta_block ta_block;
typedef struct ta_hole ta_hole;
typedef struct ta_chunk ta_chunk;
typedef struct ta_arena ta_arena;
typedef struct ta_device ta_device;
typedef struct ta_stream_state ta_stream_state;
typedef struct ta_pool ta_pool;
typedef struct ta_share ta_share;
typedef struct ta_region ta_region;
typedef struct ta_plan ta_plan;

/* A stream that `record_stream` named for a block. Passed when  stream->passed > tick,  the
 * tick of the block's free. */
typedef struct ta_use {
    struct ta_use *next;
    ta_stream_state *stream;
    uint64_t tick;
} ta_use;

typedef enum ta_state {
    TA_FREE = 0,    /* part of a hole */
    TA_LIVE = 1,    /* the user's */
    TA_PENDING = 2, /* freed by the user, used by a recorded stream */
    TA_HELD = 3     /* ours, while its pages are being brought or its free is under way */
} ta_state;

/* Blocks of a chunk tile it:  block.addr + block.size = block.next->addr.
 * A free block owns the idle pages that its freeing made idle, [own_first, own_end):
 *     every idle page of a hole is owned by exactly one of its free blocks
 *     own_mapped = mapped pages in [own_first, own_end);  listed = own_mapped > 0
 * and a hole of several blocks has none that owns nothing. */
struct ta_block {
    uint64_t addr, size;
    ta_chunk *chunk;
    union {
        uint64_t changes; /* live: the arena's when it was cut out */
        uint64_t tick;    /* free: when the owned pages became idle */
    };
    /* What neighbours look at lies in one line of the processor's (arena.c): */
    ta_block *prev, *next; /* by address, within the chunk */
    ta_state state;
    bool listed; /* free: in the arena's list of idle memory */
    bool broken; /* held: pages under it that the driver neither lets us use nor unmaps */
    union {
        struct { /* live, pending, held */
            uint64_t requested;
            ta_use *uses;
            uint64_t serial;
            ta_block *pending_prev, *pending_next;
        };
        struct {           /* free */
            ta_hole *hole; /* right on the first and the last block of the hole */
            uint32_t own_first, own_end; /* page slots of the chunk */
            ta_block *older, *newer;     /* the arena's list of idle memory */
            uint32_t own_mapped;
        };
    };
};

/* addr = first->addr;  addr + size = last->addr + last->size;
 * unmapped = slots without a page that lie wholly inside, and no slot without a page lies
 * anywhere else. */
struct ta_hole {
    uint64_t addr, size;
    union {
        ta_block *first;
        ta_hole *spare; /* the next: it may stand in a tree still (bins.c) */
    };
    ta_block *last;
    ta_hole *left, *right; /* tree of its bin, by (size, addr) */
    uint32_t priority, unmapped, bin;
};

/* What a slot holds that has no page of the device.
 *     TA_SLOT_HOST  <=>  the host page is mapped at the slot
 * The bytes of a HOST, an AWAY and a COMING slot are in `page`; a VOID one has neither: its
 * region sleeps and was not kept. A VOID slot on its way is COMING without a page. */
typedef enum ta_slot_state {
    TA_SLOT_DEVICE = 0, /* a page of the device, or nothing */
    TA_SLOT_HOST = 1,
    TA_SLOT_AWAY = 2, /* nothing is mapped there */
    TA_SLOT_VOID = 3,
    TA_SLOT_COMING = 4 /* a page of the device is mapped, the bytes are not there yet */
} ta_slot_state;
typedef struct ta_host_page ta_host_page;
typedef struct ta_spilled {
    ta_host_page *page;
    ta_slot_state state;
} ta_spilled;

/* pages[i]: what is mapped at slot i, 0: nothing. A slot whose bit of `mapped` is set serves
 * blocks; one of another state than DEVICE does only while blocks lie on it:
 *     bit i  <=>  DEVICE: pages[i] != 0;  else: it does not lie wholly in a hole
 *     mapped_count = set bits;  spilled_count = slots of another state than DEVICE */
struct ta_chunk {
    uint64_t addr, size, page_bytes;
    _Atomic(ta_arena *) arena; /* NULL while spare; stray frees read it with no lock */
    ta_chunk *prev, *next;
    ta_block *first;
    ta_handle *pages;
    uint64_t *mapped;
    ta_spilled *spilled; /* by slot; NULL: all are DEVICE */
    uint64_t *handed;    /* bits: pages that other processes were given; NULL: none */
    uint32_t slots, mapped_count, spilled_count;
    unsigned shift;             /* page_bytes = 1 << shift */
    struct ta_guarded *guarded; /* of a guarded device: its one block */
};

#define TA_BIN_EXACT 64u /* holes of fewer granules have a bin a size */
#define TA_BIN_SPLIT 32u /* above, bins a power of two */
#define TA_BINS (TA_BIN_EXACT + 34u * TA_BIN_SPLIT)
#define TA_BIN_WORDS ((TA_BINS + 63u) / 64u)

/* A hole stands in the bin of its size, but `moved` where (was_size, was_addr) belongs, and is
 * no hole at all if it is gone; word bits: a bin has a tree; top bits: a word has bits.
 *     count = holes in the trees - (1 if moved and gone) */
typedef struct ta_bins {
    uint64_t top;
    ta_hole *moved; /* NULL: all stand where they belong */
    uint64_t was_size, was_addr;
    uint32_t random;
    bool gone;
    size_t count;
    uint64_t words[TA_BIN_WORDS];
    ta_hole *root[TA_BINS];
} ta_bins;

/* Live and pending blocks by address: open addressing, a power of two, at most 3/4 full. */
typedef struct ta_table {
    ta_block **slots;
    size_t mask, count;
} ta_table;

/* Counts of one arena; its part of the device's. `freed`: of all that ever were. */
typedef struct ta_counts {
    uint64_t live_blocks, live_requested;
    _Atomic uint64_t live_bytes; /* ta_unused reads it with no lock */
    uint64_t freed_blocks, freed_bytes, freed_requested;
    uint64_t pending_blocks, pending_bytes;
} ta_counts;

/* The gauges whose peaks are of a whole device (count.h). */
typedef enum ta_of {
    TA_OF_BLOCKS = 0,
    TA_OF_BYTES = 1,
    TA_OF_REQUESTED = 2,
    TA_OF_ACTIVE_BLOCKS = 3,
    TA_OF_ACTIVE = 4,
    TA_GAUGES = 5
} ta_of;

/* Fields are guarded by `lock` unless they never change. What every request touches comes
 * first.
 *     counts = sums over live and pending blocks
 *     live + pending + (1 if one is warm) = table.count
 *     idle = mapped pages that lie wholly inside holes
 *     spilled = slots of its chunks of another state than DEVICE
 *     stray = of those, COMING ones with no block: pages of the device for nobody */
struct ta_arena {
    _Alignas(TA_LINE) ta_quick lock;
    bool small;
    bool asleep; /* with its region. Written under device.pages and `lock` */
    bool moving; /* its pages are being exchanged: none is stolen. Under device.pages */
    bool orphan; /* its pool is over: it takes no requests any more */
    bool restoring; /* no free begins that needs device.pages. Under that and `lock` */
    ta_device *device;
    ta_stream_state *stream;
    ta_region *region; /* NULL: none */
    ta_block *warm; /* freed last, held: the next request of its size gets it (block.c) */
    uint64_t changes;    /* of what is free, and of its pages */
    uint64_t warm_tick;  /* of its free */
    uint64_t last_freed; /* the highest tick of a free here: passing it passes them all */
    ta_counts counts;
    uint64_t room[TA_GAUGES]; /* see count.h */
    uint64_t serial, serials; /* the last given, and the last that may be */
    ta_table table;
    ta_block *spare_blocks;
    ta_hole *spare_holes;
    uint32_t spares, chunk_count, idle;
    uint32_t spilled, stray;
    ta_block *oldest,
        *newest; /* free blocks that own mapped pages, as they became free */
    ta_bins bins;
    uint64_t page_bytes;
    _Atomic(ta_pool *) pool; /* the graph pool that owns its memory; NULL: nobody */
    ta_chunk *chunks;
    uint64_t next_chunk_bytes;
    ta_block *pending_first, *pending_last;
    ta_block *broken;      /* linked by pending_next */
    bool incoming;         /* moving, and pages come: those that are idle can be stolen */
    struct ta_slab *slabs; /* what spare blocks and holes were cut from */
    struct ta_slab *slab_next;   /* of those allocated together, the first not in use */
    size_t slab_count, slab_run; /* in use; from slab_next on */
    ta_arena *prev,
        *next; /* the device's arenas; guarded by device.pages and `leveling` */
};

#define TA_NEVER UINT64_MAX

/* A point recorded in a stream. Guarded by device.pages. */
typedef struct ta_mark_event {
    struct ta_mark_event *next;
    ta_event event;
    uint64_t tick;
    int waiters; /* threads waiting for it with no lock held */
    bool popped;
} ta_mark_event;

/* marks: in the order of their ticks, all above `passed`. A handle that does not last may
 * stand for another stream later, whose marks say nothing of what the first one was given: so
 *     passed <= unmarked, the oldest free that no mark was recorded at
 * until the device was waited for. Guarded by device.pages. */
struct ta_stream_state {
    ta_stream_state *next;
    ta_stream handle;
    uintptr_t key;   /* ta_stream_key(handle), of the thread that it is of */
    bool lasts;      /* nobody destroys it while the process runs */
    bool capturing;  /* it was when last marked, for no pool of ours */
    bool foreign;    /* it could not be marked: perhaps it is another device's */
    uint64_t passed; /* what was freed at a lower tick is no longer used here */
    uint64_t unmarked, unmarked_last; /* ticks of such frees; TA_NEVER: there are none */
    uint64_t slow; /* while passed is lower, waiting for it was in vain once */
    ta_mark_event *first, *last;
    int marks;
};

/* Begun as often as released:  begins - releases = captures that may still replay. Guarded
 * by device.pages. */
struct ta_pool {
    ta_pool *next;
    ta_pool_id id;
    uint64_t begins, releases;
    uint64_t released_at; /* tick of the last release */
    int users;            /* requests under way for it */
};

typedef struct ta_open_pool {
    struct ta_open_pool *next;
    ta_pool *pool;
    ta_pool_filter *filter;
    void *context;
    int calls; /* to the filter, under way */
} ta_open_pool;

/* Ordinary arenas by (stream, small, region): read without a lock, written under
 * device.pages. A search that comes by a stranger's arena does not touch it: its lines are
 * written by another thread all the time. */
typedef struct ta_arena_slot {
    _Atomic(ta_arena *) arena; /* written last, once */
    uintptr_t key;             /* of its stream */
    const ta_region *region;
    bool small;
} ta_arena_slot;
typedef struct ta_arena_map {
    size_t mask, count;
    struct ta_arena_map *outgrown;
    ta_arena_slot slots[];
} ta_arena_map;

/* Physical pages of one size that are mapped nowhere. */
typedef struct ta_ready {
    ta_handle *pages;
    size_t count, capacity;
} ta_ready;
#define TA_PAGE_SIZES 20u /* from a granule to TA_LOOKUP_BYTES, by powers of two */

/* Of all devices; its blocks are in the arenas that point here. Never changes but for `asleep`,
 * which its sleep sets before it takes the devices' `pages`, and `busy`, under `setup`: who sets
 * that alone sends it to sleep or wakes it, and writes the rest. */
struct ta_region {
    char name[TA_REGION_TEXT];
    ta_region_config config;
    ta_region_id id;
    atomic_bool asleep;
    bool busy, kept;
    bool partial; /* asleep, as a failure left it: some of it may be on a device */
};

/* Pinned memory of one device's host pages (host.c); guarded by `lock`. */
typedef struct ta_host_pool {
    ta_lock lock;
    struct ta_host_slab *slabs;
    ta_host_page *idle[TA_PAGE_SIZES], *vacant[TA_PAGE_SIZES];
    ta_host_page *unsure; /* a copy may still be under way: the wait for it failed */
} ta_host_pool;

/* Guarded by `pages` unless said otherwise.
 *     stats.reserved.current = bytes of mapped, ready and gathered pages <= limit */
struct ta_device {
    /* What every request reads, and hardly one writes: */
    _Alignas(TA_LINE) ta_allocator *allocator;
    int ordinal;
    atomic_bool used;
    atomic_bool planned; /* some requests of the step go to the host (plan.c) */
    atomic_bool over;    /* more is reserved than a cap that was lowered: no fast path */
    atomic_int open_count;
    uint64_t total;
    _Atomic(ta_arena_map *) map;
    _Atomic uint64_t tick;
    _Atomic(ta_plan *) plan; /* NULL: nothing went to the host yet */
    _Alignas(TA_LINE) ta_lock pages;
    pthread_cond_t pool_idle; /* a filter, a plain free or a device wait is over */
    int device_waits;         /* under way: captures begin after them, they would break */
    bool plain;               /* memory comes in whole ranges: no VMM, or guarded */
    bool guard;               /* a block a range (guard/guard.c); never changes */
    int plain_frees; /* under way with `pages` dropped; pool_idle tells their end */
    uint64_t page_bytes, address_bound, addresses;
    ta_arena *arenas; /* written under `leveling`, too */
    ta_stream_state *streams;
    ta_pool *pools;
    ta_open_pool *open;
    ta_open_pool *lost;     /* ended, with a call to the filter that never returned */
    uint64_t device_passed; /* what was released before this tick no replay uses */
    ta_ready ready[TA_PAGE_SIZES];
    uint32_t sizes; /* bits: of the arenas' pages, as `ready` is ordered */
    ta_host_pool host;
    bool adrift;    /* copies of ours may be under way: the wait for them failed */
    uint64_t moves; /* of pages, since ta_trim */
    ta_mark_event *spare_marks;
    int access[TA_MAX_DEVICES]; /* devices that may touch our pages, ourselves first */
    atomic_int access_count;    /* grows under `pages`; threads of ours read it without */
    uint64_t limits[TA_LIMIT_SOURCES];
    ta_share *share; /* of a cap that processes share (ledger/share.c); NULL: none */
    ta_chunk *spare_chunks;
    ta_arena *spare_arenas;
    /* Guarded by `leveling` (count.h): */
    ta_lock leveling;
    uint64_t granted[TA_GAUGES][3];
    uint64_t live_peak;     /* of allocated bytes since ta_trim; no user resets it */
    ta_counts gone[3];      /* by kind: of arenas that are no more */
    ta_counts forgotten[3]; /* what had been freed when that was last reset */
    /* Guarded by `counting`; but the peaks of TA_GAUGES by `leveling`, and what else those
     * hold is added up when it is asked for. */
    ta_spin counting;
    ta_stats stats;
    _Atomic uint64_t serial; /* the last that an arena was given */
};

struct ta_allocator {
    const ta_driver *driver;
    ta_config config;
    /* 1 from just before the first device's use on, but 0 in a forked child */
    _Atomic unsigned char *alive; /* alive.h */
    atomic_bool started;          /* a device's use began: here, or before a fork */
    _Atomic(ta_chunk *) *lookup;  /* by address / TA_LOOKUP_BYTES */
    struct ta_guard *guard;       /* what guarded blocks showed; NULL: there are none */
    atomic_bool any_plain;        /* some device is plain */
    ta_lock plain_lock;           /* guards the next three */
    ta_chunk **plain;             /* chunks of such devices, by address */
    size_t plain_count, plain_capacity;
    atomic_uint heard;       /* a bit for each kind of event that an observer hears */
    atomic_int observer_end; /* the last place with one, plus 1 */
    /* Read under an arena's lock: after one is removed, all those are taken in turn. */
    struct {
        _Atomic(ta_observer *) observer;
        void *context;
        atomic_uint kinds; /* that it hears */
    } observer[TA_OBSERVERS];
    ta_lock setup;   /* a device's first use */
    atomic_bool net; /* new blocks may go to the host */
    _Atomic uint64_t host_budget,
        host_held;            /* bytes pinned: held <= budget, once lowered */
    atomic_int entered;       /* threads that are in a region */
    _Atomic ta_region_id led; /* the leader's region */
    _Atomic uintptr_t leader; /* its ta_thread_key; 0: nobody leads */
    atomic_uint region_count;
    ta_region region[TA_REGIONS]; /* by id - 1 */
    ta_stream_asked *asked;       /* guarded by setup, with its context */
    void *asked_context;
    ta_device device[TA_MAX_DEVICES];
};

/* Chunks start and end on multiples of this. */
#define TA_LOOKUP_SHIFT 28
#define TA_LOOKUP_BYTES ((uint64_t)1 << TA_LOOKUP_SHIFT)
#define TA_LOOKUP_SLOTS ((size_t)1 << (49 - TA_LOOKUP_SHIFT))

void ta_block_cool(ta_arena *arena);
/* For whoever looks at more than the block of a request: none is warm. */
static inline void ta_arena_lock(ta_arena *arena)
{
    ta_quick_take(&arena->lock, TA_RANK_ARENA);
    arena->changes++;
    if (arena->warm) ta_block_cool(arena);
}
static inline void ta_arena_unlock(ta_arena *arena)
{
    ta_quick_drop(&arena->lock, TA_RANK_ARENA);
}

/* A child forked before any device was used is as good as its parent. */
static inline bool ta_forked(const ta_allocator *a)
{
    /* `started` first: it is set after `alive`, so who sees the one sees the other. */
    return atomic_load_explicit(&a->started, memory_order_acquire) &&
           atomic_load_explicit(a->alive, memory_order_relaxed) == 0;
}
static inline uint64_t ta_round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}
static inline ta_ready *ta_ready_of(ta_device *d, uint64_t page_bytes)
{
    return &d->ready[__builtin_ctzll(page_bytes / TA_GRANULE)];
}
static inline uint64_t ta_ready_bytes(const ta_device *d, const ta_ready *ready)
{
    return (uint64_t)TA_GRANULE << (ready - d->ready);
}
static inline uint64_t ta_slot_addr(const ta_chunk *c, uint32_t slot)
{
    return c->addr + ((uint64_t)slot << c->shift);
}
static inline ta_slot_state ta_slot_is(const ta_chunk *c, uint32_t slot)
{
    return c->spilled ? c->spilled[slot].state : TA_SLOT_DEVICE;
}
static inline uint32_t ta_slot_below(const ta_chunk *c, uint64_t addr)
{
    return (uint32_t)((addr - c->addr) >> c->shift);
}
static inline uint32_t ta_slot_above(const ta_chunk *c, uint64_t addr)
{
    return (uint32_t)((addr - c->addr + c->page_bytes - 1) >> c->shift);
}

#endif
