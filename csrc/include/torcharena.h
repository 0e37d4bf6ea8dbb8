/* torcharena.h - the allocator's C interface.
 *
 * Simple use: create an allocator over a driver, ta_alloc, ta_free, destroy.
 *
 *     ta_allocator *a;
 *     ta_allocator_create(driver, NULL, &a);
 *     void *p;
 *     ta_oom oom;
 *     if (ta_alloc(a, 1 << 20, 0, stream, &p, &oom) == TA_OK) ta_free(a, p);
 *     ta_allocator_destroy(a);
 *
 * Sizes are bytes. Devices are CUDA ordinals. A stream is a cudaStream_t; streams of other
 * devices are other streams even where the handle is the same. Every function is thread-safe
 * unless it says otherwise; none prints, takes the GIL, or ends the process. In a forked
 * child they do nothing and return TA_FORKED, but for those that return no status: ta_limit
 * gives TA_NO_LIMIT, ta_device_used and ta_check false, ta_is_forked true; the texts are as
 * ever, and ta_free of NULL is TA_OK. */
#ifndef TORCHARENA_H
#define TORCHARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TA_API __attribute__((visibility("default")))
#else
#define TA_API
#endif

/* Values are pinned: they appear in logs and traces. */
typedef enum ta_status {
    TA_OK = 0,
    TA_OUT_OF_MEMORY = 1,  /* no memory within the cap, or the driver has none */
    TA_NOT_READY = 2,      /* an event that the stream has not passed */
    TA_INVALID = 3,        /* an argument makes no sense */
    TA_UNSUPPORTED = 4,    /* this driver or device cannot */
    TA_FORKED = 5,         /* called in a forked child */
    TA_GONE = 6,           /* the driver has shut down: the process is exiting */
    TA_DRIVER = 7,         /* the driver failed otherwise */
    TA_NO_HOST_MEMORY = 8, /* malloc failed */
    TA_BUSY = 9,           /* in use already */
    TA_ASLEEP = 10,        /* a region sleeps: it must be woken first */
    TA_GUARDED = 11        /* ta_guard_next has something to tell first */
} ta_status;

TA_API const char *ta_status_text(ta_status status);

typedef void *ta_stream;
typedef struct ta_allocator ta_allocator;
struct ta_driver;

#define TA_GRANULE 512u                /* every block is a multiple, and so aligned */
#define TA_SMALL_MAX ((size_t)1 << 20) /* requests up to this go to `small` arenas */
#define TA_DEFAULT_PAGE ((uint64_t)4 << 20) /* bytes of a page */
#define TA_NO_LIMIT UINT64_MAX
#define TA_MAX_DEVICES 64

/* --- creating ---------------------------------------------------------------------- */
typedef struct ta_config {
    uint64_t page_bytes; /* 0: TA_DEFAULT_PAGE. A multiple of the driver's granularity. */
    /* Reserved over live peak, up to which new pages are made before idle ones are taken
     * and waited for. 0: the default. */
    double slack;
    bool fallback; /* without VMM take plain driver allocations instead of failing */
    bool guard;    /* every block apart and watched, to find what writes out of bounds */
} ta_config;

/* Calls nothing of the driver yet: a device is looked at when it is first used. The driver
 * must outlive the allocator. `config` may be NULL. */
TA_API ta_status ta_allocator_create(const struct ta_driver *driver,
                                     const ta_config *config, ta_allocator **allocator);
/* Releases everything, blocks that are still live included. Not thread-safe: no other call
 * may be under way. */
TA_API void ta_allocator_destroy(ta_allocator *allocator);
/* This process was forked from the one whose memory the allocator manages. */
TA_API bool ta_is_forked(const ta_allocator *allocator);

/* --- memory ------------------------------------------------------------------------ */
#define TA_SHARE_WHY 256 /* bytes of an error text */
/* Whose bytes a cap counts. */
typedef enum ta_scope {
    TA_SCOPE_NONE = 0,    /* no cap refused: the device has no more */
    TA_SCOPE_PROCESS = 1, /* the process's own cap */
    TA_SCOPE_TENANT = 2,  /* that of all processes of one tenant on the GPU */
    TA_SCOPE_DEVICE = 3,  /* that of all processes on the GPU */
    TA_SCOPE_LEDGER = 4   /* the ledger cannot be used: `why` says it */
} ta_scope;
/* The cap that refused growth. For a tenant's and a device's: who else holds what of it. */
typedef struct ta_refusal {
    int scope; /* ta_scope */
    int processes;
    uint64_t cap, ours, others;
    uint64_t unused;        /* of the others' bytes, by what they last said */
    uint64_t short_by;      /* bytes that the cap lacks */
    char why[TA_SHARE_WHY]; /* the ledger's own trouble, or the tenant's name */
} ta_refusal;

/* What was true when a request failed. */
typedef struct ta_oom {
    ta_status status;
    int device;
    ta_stream stream;
    uint64_t requested; /* bytes asked for */
    uint64_t short_by;  /* bytes of pages that could not be had */
    uint64_t page_bytes;
    uint64_t limit;          /* TA_NO_LIMIT: none */
    int limit_source;        /* ta_limit_source */
    uint64_t device_total;   /* bytes of the card */
    uint64_t device_free;    /* bytes nobody holds */
    uint64_t reserved;       /* bytes of pages we hold */
    uint64_t live;           /* bytes of live blocks, in granules */
    uint64_t pending;        /* bytes freed but still used by a recorded stream */
    uint64_t idle;           /* bytes of our idle pages that could not be taken */
    uint64_t idle_in_graphs; /* of those: held by CUDA graph pools */
    uint64_t partly_used; /* free bytes in pages that also hold live or pending blocks */
    uint64_t spilled;     /* bytes on the host */
    uint64_t host_budget, host_held; /* the process's; 0: spill is off */
    bool can_spill;                  /* the device could, on or off */
    uint64_t largest[8]; /* sizes of the largest live blocks, falling; 0 ends */
    ta_stream largest_stream[8];
    bool largest_pooled[8]; /* it belongs to a graph pool */
    ta_refusal refusal;     /* the cap that the request failed at */
} ta_oom;

/* A block of `size` bytes, 512-aligned, for work on `stream`. Size 0 gives NULL. On failure
 * *ptr is NULL and *oom (may be NULL) says why. */
TA_API ta_status ta_alloc(ta_allocator *allocator, size_t size, int device,
                          ta_stream stream, void **ptr, ta_oom *oom);
/* NULL does nothing. TA_INVALID for an address that is not a live block. */
TA_API ta_status ta_free(ta_allocator *allocator, void *ptr);
/* `stream` uses the block too: after its free the bytes wait for what is then queued there.
 * Any address inside a block will do. `stream` is taken as one of the block's device; one of
 * another device is waited for by way of that whole device. But the handles 0, 1 and 2 always
 * name the block's device's: for work on the default stream of another device, wait for it
 * before the free. */
TA_API ta_status ta_record_stream(ta_allocator *allocator, void *ptr, ta_stream stream);
/* Start and size of the block that holds `ptr`. */
TA_API ta_status ta_base_address(ta_allocator *allocator, const void *ptr, void **base,
                                 size_t *size);
typedef struct ta_block_place {
    int device;
    uint32_t region; /* ta_region_id; 0: none */
    uint64_t size;   /* bytes, in granules */
} ta_block_place;
/* Where the live block that begins at `ptr` is. TA_INVALID: there is none. */
TA_API ta_status ta_block_where(ta_allocator *allocator, const void *ptr,
                                ta_block_place *place);
/* The out-of-memory text, torch's standard opening first. Returns the length that snprintf
 * would. Pure: takes no lock. */
TA_API int ta_oom_text(const ta_oom *oom, char *text, size_t capacity);

/* Gives idle pages of the device (-1: of all) back to the driver, after waiting for the
 * streams that used them. Graph pools keep theirs. */
TA_API ta_status ta_trim(ta_allocator *allocator, int device, uint64_t *released);

/* --- CUDA graph pools ---------------------------------------------------------------- */
/* From begin to end, blocks on the device whose stream the filter accepts belong to the pool
 * `id`. The filter is called from ta_alloc with no lock held; of several the newest pool's
 * is asked first. An id is open at most once on a device, else TA_BUSY; and at most
 * TA_OPEN_POOLS are, else TA_INVALID. */
#define TA_OPEN_POOLS 16
typedef struct ta_pool_id {
    uint64_t a, b;
} ta_pool_id;
typedef bool ta_pool_filter(void *context, ta_stream stream);
TA_API ta_status ta_pool_begin(ta_allocator *allocator, int device, ta_pool_id id,
                               ta_pool_filter *filter, void *context);
/* *context gets the filter's context back, for its owner to destroy; no call to the filter
 * is under way any more; NULL where one has not come back in a second, as one that threw. */
TA_API ta_status ta_pool_end(ta_allocator *allocator, int device, ta_pool_id id,
                             void **context);
/* Once for every begin. After the last, the pool's memory becomes ordinary idle memory when
 * its blocks are freed and the device has passed this moment. */
TA_API ta_status ta_pool_release(ta_allocator *allocator, int device, ta_pool_id id);

/* A live block of a pool. */
typedef struct ta_pool_block {
    uint64_t addr, size; /* size: in granules */
    uint64_t requested;
    ta_stream stream;
} ta_pool_block;
/* The pool's live blocks on the device: at most `capacity`; *count is how many there are.
 * TA_BUSY while a request for the pool is under way. */
TA_API ta_status ta_pool_blocks(ta_allocator *allocator, int device, ta_pool_id id,
                                ta_pool_block *blocks, size_t capacity, size_t *count);
/* Makes exactly these the pool's live blocks, as they were when ta_pool_blocks told them:
 * others are freed, those that are gone live again at their addresses. Contents stay. The
 * pool must have been held (begun more often than released) ever since. Refused, with nothing
 * changed: TA_INVALID, they do not lie in memory that the pool has; TA_BUSY, a block that
 * would be freed or is in the way is used by a recorded stream, or a request is under way. */
TA_API ta_status ta_pool_restore(ta_allocator *allocator, int device, ta_pool_id id,
                                 const ta_pool_block *blocks, size_t count);
/* The calling thread's next request of `size` bytes on the device gets this live block, and
 * nothing new. NULL, or another, takes a promise back. */
TA_API void ta_pool_promise(ta_allocator *allocator, int device, void *ptr, size_t size);

/* --- streams ------------------------------------------------------------------------- */
/* How long a stream can be named. Naming one that was destroyed is undefined in CUDA. */
typedef enum ta_stream_life {
    TA_STREAM_STRANGE = 0, /* others may have destroyed it: it is not named */
    TA_STREAM_EXISTS = 1,  /* it is there now, but others may destroy it */
    TA_STREAM_LASTS = 2    /* it is there until the process ends */
} ta_stream_life;
/* Asked by ta_alloc and ta_record_stream for a stream first seen, and by ta_free for the
 * block's stream where that does not last, with no lock held: it may throw. A point in a
 * stream that exists is recorded at every free; what was freed on a strange one has passed
 * when the whole device was waited for. Until set, the default streams 0 and 1 last, others
 * exist whenever a block of theirs is freed. The per-thread default stream, handle 2, lasts
 * as long as its thread: it is another stream in each, with memory of its own. */
typedef ta_stream_life ta_stream_asked(void *context, int device, ta_stream stream);
TA_API ta_status ta_set_stream_life(ta_allocator *allocator, ta_stream_asked *asked,
                                    void *context);

/* --- limits -------------------------------------------------------------------------- */
typedef enum ta_limit_source {
    TA_LIMIT_NONE = 0,
    TA_LIMIT_API = 1,         /* enable(limit=), set_limit() */
    TA_LIMIT_ENVIRONMENT = 2, /* TORCHARENA_LIMIT */
    TA_LIMIT_FRACTION = 3,    /* torch's set_per_process_memory_fraction */
    TA_LIMIT_ADMIN = 4,       /* the admin's file */
    TA_LIMIT_SOURCES = 5
} ta_limit_source;
/* Sets one source's limit for a device (-1: every device, those not yet used too). The least
 * of all sources holds, rounded down to a page. What is over a lowered limit is given back as
 * far as idle pages go. TA_NO_LIMIT takes the source's limit away. */
TA_API ta_status ta_set_limit(ta_allocator *allocator, int device, ta_limit_source source,
                              uint64_t bytes);
/* The limit that holds and whose it is. */
TA_API uint64_t ta_limit(ta_allocator *allocator, int device, ta_limit_source *source);

/* --- a cap shared by processes --------------------------------------------------------- */
/* Processes on a GPU keep their sum under one cap by a ledger, a file `DIRECTORY/GPU.ledger`
 * (docs/design/ledger.md): growth is charged there before the driver gives, and taken off
 * after it took back. Who does not take part is not counted. */
#define TA_SHARE_TEXT 64 /* bytes of a name, its 0 included; longer ones are cut */
#define TA_SHARE_PATH 512
typedef struct ta_share_caps {
    uint64_t device; /* of all processes; TA_NO_LIMIT: none */
    uint64_t tenant; /* of those of our tenant */
    bool observe;    /* growth is counted, and never refused */
} ta_share_caps;
typedef struct ta_share_config {
    const char *directory; /* root's or our own, and nobody else may write there */
    const char *gpu; /* the UUID of the GPU or MIG instance, as the driver writes it */
    const char *label, *tenant; /* tenant "": none */
    bool claimed;               /* the tenant is what the process says of itself */
    ta_share_caps caps;
} ta_share_config;
/* Growth on the device is charged from now on. The file is made where there is none, and
 * judged; the process takes its place in it when it first grows, so that a child forked
 * before that takes its own. TA_INVALID, and `why`: it is not to be trusted; the device holds
 * memory already; other settings hold and are in use. *shared: other users may take part. */
TA_API ta_status ta_share_open(ta_allocator *allocator, int device,
                               const ta_share_config *config, bool *shared,
                               char why[TA_SHARE_WHY]);
/* Other caps, from the next growth on. What is over them is given back now as far as idle
 * pages go, and other holders are asked for theirs. TA_INVALID where no share is open. */
TA_API ta_status ta_share_set_caps(ta_allocator *allocator, int device,
                                   const ta_share_caps *caps, uint64_t *released);
/* Gives idle pages back if another process was refused since, and asked for them. So does
 * every request that needs a page: this is for processes that make none. Cheap. */
TA_API ta_status ta_share_heed(ta_allocator *allocator, int device, uint64_t *released);
typedef struct ta_share_state {
    bool open, joined; /* joined: has a slot in the file */
    int slot;
    uint64_t held; /* bytes charged: those of the pages held */
    ta_share_caps caps;
    char path[TA_SHARE_PATH], tenant[TA_SHARE_TEXT];
    char problem[TA_SHARE_WHY]; /* why it cannot be used any more; then growth is refused,
                                   or, where it only observes, goes on uncounted */
} ta_share_state;
TA_API ta_status ta_share_get(ta_allocator *allocator, int device, ta_share_state *state);

typedef struct ta_share_row { /* a process's */
    int slot;
    bool alive; /* else its owner died: its bytes count until one who needs them looks */
    uint64_t bytes;   /* charged */
    uint64_t unused;  /* of them not in use, when it last grew or gave back */
    uint64_t spilled; /* on the host */
    uint64_t peak, refused;
    uint64_t started_us; /* since 1970 */
    int pid;             /* as its own pid namespace has it */
    unsigned uid;
    uint64_t limit; /* its own cap there, and whose that is */
    int limit_source;
    ta_share_caps caps; /* as it knows them */
    bool claimed;
    char label[TA_SHARE_TEXT], tenant[TA_SHARE_TEXT];
} ta_share_row;
/* What the ledger says, by reading alone: takes no lock and holds up nobody. At most
 * `capacity` rows; *count is how many there are. A ledger that nobody made has none.
 * TA_INVALID, and `why`: it is not to be trusted. */
TA_API ta_status ta_share_read(const char *directory, const char *gpu, ta_share_row *rows,
                               size_t capacity, size_t *count, char why[TA_SHARE_WHY]);

/* --- host memory: spill ------------------------------------------------------------------ */
/* Where bytes on the device are lacking, pages of host memory take their place under the same
 * addresses: pinned once, kept for the next time, and counted to the byte. */
typedef struct ta_spill_config {
    uint64_t host_bytes; /* the most that the process pins, of all devices; 0: none */
    bool net; /* ta_alloc puts a new block on the host where nothing else is left */
} ta_spill_config;
/* From now on. What is pinned beyond a lowered budget is given back as far as it is unused;
 * the rest when it is. NULL: off. TA_UNSUPPORTED where the driver cannot. */
TA_API ta_status ta_set_spill(ta_allocator *allocator, const ta_spill_config *config);
/* Gives pinned pages that hold nothing back to the machine. */
TA_API ta_status ta_host_trim(ta_allocator *allocator, uint64_t *released);

typedef struct ta_step_info {
    uint64_t brought_back;  /* bytes of live pages that came to the device */
    uint64_t still_on_host; /* bytes of live pages for which there was no room */
    double us, copy_us;     /* the call's time; of it, waiting for copies */
    uint64_t sent_out;      /* bytes of live pages that left the device */
} ta_step_info;
/* A step's mark. Live pages on the host come back where the device has room, after all of the
 * device's work; the caller promises that no other thread launches any meanwhile. The oldest
 * blocks come first. With the net on, live pages leave where more is held than a cap that was
 * lowered allows, or where another process asked for memory under a shared cap and we hold
 * more than an equal part of it; the youngest blocks go first, and reach the host. Without
 * such pages it does nothing, and makes no driver call. TA_BUSY while a capture is open, which
 * a wait would break: nothing moves. A failure leaves every byte where it can be read, and
 * the next mark tries again. Device -1: all. `info` may be NULL. */
TA_API ta_status ta_step(ta_allocator *allocator, int device, ta_step_info *info);

/* Regions. What is allocated in one has arenas of its own, with pages of its own size, so it
 * can sleep: its bytes go to the host, or are dropped, and come back at the same addresses. */
typedef uint32_t ta_region_id; /* 0: none */
#define TA_REGIONS 64          /* names, at most */
#define TA_REGION_TEXT 64
#define TA_REGION_PAGE ((uint64_t)32 << 20)
typedef enum ta_where { TA_ON_DEVICE = 0, TA_ON_HOST = 1 } ta_where;
typedef struct ta_region_config {
    uint64_t
        page_bytes;  /* a power of two, at least the device's page; 0: TA_REGION_PAGE */
    ta_where home;   /* TA_ON_HOST: its blocks are in host memory from birth on */
    bool touch_host; /* asleep, its addresses reach the host: slow, but right */
} ta_region_config;
/* The region of that name, made if there is none. `config` may be NULL. TA_INVALID where the
 * name is taken with another config, is too long, or there are too many. */
TA_API ta_status ta_region_open(ta_allocator *allocator, const char *name,
                                const ta_region_config *config, ta_region_id *id);
/* This thread's allocations belong to the region from now on; *before is what held, for the
 * way back. The thread that enters one while none leads, leads until it is in none again:
 * threads in no region of their own, autograd's above all, allocate in the leader's. One at
 * home on the host is entered for a tensor at a time: nobody follows there. A graph pool that
 * is open goes before. */
TA_API ta_status ta_region_enter(ta_allocator *allocator, ta_region_id id,
                                 ta_region_id *before);

#define TA_SLEEP_WHY 256
typedef struct ta_sleep_info {
    uint64_t copied;            /* bytes moved between device and host */
    uint64_t dropped;           /* bytes whose contents were given up */
    uint64_t device;            /* bytes of device memory given back, or taken */
    uint64_t pinned;            /* bytes of host memory that had to be pinned first */
    double us, pin_us, copy_us; /* the call's time; pinning; waiting for copies */
    char why[TA_SLEEP_WHY];     /* of a refusal */
} ta_sleep_info;
/* All of the region's memory, on all devices, leaves them; with `keep` its bytes go to the
 * host, else they are undefined after waking. After all work of its devices: the caller
 * promises that no other thread launches any meanwhile. Blocks can be freed while it sleeps;
 * allocating in it is TA_ASLEEP. Refused, with nothing changed and the reason in `why`:
 * TA_BUSY during a capture and while blocks of it are freed but still in use;
 * TA_OUT_OF_MEMORY beyond the host's budget, TA_NO_HOST_MEMORY where the machine has no more.
 * A region that sleeps already is TA_OK. `info` may be NULL. */
TA_API ta_status ta_region_sleep(ta_allocator *allocator, ta_region_id id, bool keep,
                                 ta_sleep_info *info);
/* Everything back at the same addresses. TA_OUT_OF_MEMORY: all of it still sleeps. Captured
 * graphs may be replayed right after. */
TA_API ta_status ta_region_wake(ta_allocator *allocator, ta_region_id id,
                                ta_sleep_info *info);
typedef struct ta_region_info {
    char name[TA_REGION_TEXT];
    ta_region_config config; /* page_bytes: as it is */
    bool asleep;
    uint64_t blocks, allocated;     /* live ones, on all devices */
    uint64_t device, host, dropped; /* bytes of pages there; dropped: nowhere */
} ta_region_info;
/* TA_INVALID for an id that no region has: ids go up from 1. */
TA_API ta_status ta_region_get(ta_allocator *allocator, ta_region_id id,
                               ta_region_info *info);
/* The region that holds the address (0: none does), and whether it sleeps. */
TA_API ta_status ta_region_of(ta_allocator *allocator, const void *ptr, ta_region_id *id,
                              bool *asleep);

/* --- numbers ------------------------------------------------------------------------- */
typedef struct ta_gauge {
    uint64_t current, peak, increased, decreased; /* current = increased - decreased */
} ta_gauge;
typedef enum ta_pool_kind {
    TA_POOL_ALL = 0,
    TA_POOL_SMALL = 1,
    TA_POOL_LARGE = 2
} ta_pool_kind;
typedef struct ta_stats {
    /* Of live blocks: count, bytes in granules, bytes asked for. By ta_pool_kind; peaks of
     * each are its own. */
    ta_gauge allocations[3], allocated[3], requested[3];
    /* Live and pending blocks. */
    ta_gauge active_blocks[3], active[3];
    ta_gauge reserved;  /* bytes of pages held, mapped or kept ready */
    ta_gauge pages;     /* the same, counted */
    ta_gauge pending;   /* bytes freed but still used by a recorded stream */
    ta_gauge addresses; /* bytes of address ranges reserved */
    ta_gauge mapped[3]; /* bytes of pages mapped, by kind: reserved less the ready ones */
    uint64_t idle;      /* bytes of pages that hold no block, those kept ready included */
    uint64_t partly_used; /* free bytes in pages that also hold live or pending blocks */
    uint64_t largest_idle_partly_used; /* the highest partly_used seen at a slow path */
    uint64_t limit;
    int limit_source;
    uint64_t page_bytes;
    uint64_t oom_count; /* requests refused for want of memory */
    /* Requests served by idle memory from elsewhere, since no page could be made: at the
     * cap, or where the driver had none. Each counts once; a refused one is none of them. */
    uint64_t retry_count;
    uint64_t page_moves; /* idle pages taken from one place to another */
    uint64_t waits;      /* times the host waited for a stream */
    double wait_us;      /* how long */
    /* Requests for which no hole with all its pages was there, and the time in them, waits
     * included; those that were refused in the end are among them. */
    double slow_us;
    uint64_t slow_allocs;
    uint64_t calls_reserve, calls_create, calls_release, calls_map, calls_unmap,
        calls_access, calls_event; /* driver calls, by kind; a range counts once */
    uint64_t arenas, streams;
    uint64_t pool_arenas; /* of the arenas: those of graph pools */
    uint64_t holes[3];    /* free pieces between blocks, by kind, with or without pages */
    /* Host memory:  reserved + spilled + dropped = active + idle + partly_used. */
    ta_gauge host;    /* bytes pinned for this device, in use or kept */
    ta_gauge spilled; /* of them, those of pages with blocks on them */
    ta_gauge dropped; /* bytes of pages of sleeping regions that were not kept */
    uint64_t spill_allocs,
        spill_bytes;             /* requests that went to the host, for want of room */
    uint64_t to_host, to_device; /* bytes copied */
    double spill_wait_us;        /* waiting for the copies */
    uint64_t host_budget, host_held; /* the process's, of all devices */
} ta_stats;
/* TA_INVALID for a device never used: *stats is then all zero, limits included. */
TA_API ta_status ta_get_stats(ta_allocator *allocator, int device, ta_stats *stats);
TA_API ta_status ta_reset_peaks(ta_allocator *allocator, int device);
TA_API ta_status ta_reset_accumulated(ta_allocator *allocator, int device);
/* The device's own numbers, whoever holds the bytes. */
TA_API ta_status ta_device_memory(ta_allocator *allocator, int device,
                                  uint64_t *free_bytes, uint64_t *total);
/* Initialised: something was ever asked for there. */
TA_API bool ta_device_used(ta_allocator *allocator, int device);

/* --- what is where --------------------------------------------------------------------- */
typedef enum ta_block_state {
    TA_BLOCK_FREE = 0, /* mapped, nothing on it */
    TA_BLOCK_LIVE = 1,
    TA_BLOCK_PENDING = 2
} ta_block_state;
typedef struct ta_segment_info { /* a run of mapped pages */
    int device;
    ta_stream stream;
    bool small;      /* the arena's kind */
    ta_pool_id pool; /* 0,0: none */
    uint64_t addr, size, allocated, active, requested;
    uint64_t page_bytes;
    ta_region_id region; /* 0: none */
    uint64_t on_host;    /* of `size`: bytes of pages on the host */
    uint64_t away;       /* of `size`: bytes that sleep, where nothing is mapped */
} ta_segment_info;
typedef struct ta_block_info {
    uint64_t addr, size, requested; /* free: requested 0 */
    ta_block_state state;
    uint64_t serial; /* of the allocation: unique in the process, rises on each stream */
} ta_block_info;
/* Calls back for each run of mapped pages and then for its blocks in address order: they
 * tile it. The callbacks run with a lock held: they must not call the allocator. Device -1:
 * all of them. */
typedef struct ta_visitor {
    void *context;
    void (*segment)(void *context, const ta_segment_info *segment);
    void (*block)(void *context, const ta_block_info *block);
    /* NULL, or: pages of the segment just told that are not on the device, run by run. */
    void (*elsewhere)(void *context, uint64_t addr, uint64_t size);
} ta_visitor;
TA_API ta_status ta_visit(ta_allocator *allocator, int device, const ta_visitor *visitor);

/* --- events ---------------------------------------------------------------------------- */
typedef enum ta_event_kind {
    TA_EVENT_ALLOC = 0,
    TA_EVENT_FREE = 1,      /* the user's free */
    TA_EVENT_FREE_DONE = 2, /* its bytes can be used again */
    TA_EVENT_RECORD_STREAM = 3,
    TA_EVENT_MAP = 4, /* a run of pages: addr, size */
    TA_EVENT_UNMAP = 5,
    TA_EVENT_OOM = 6,
    TA_EVENT_MARK = 7 /* ta_mark: `text` */
} ta_event_kind;
#define TA_EVENTS_ALL 0xffu
typedef struct ta_event_info {
    ta_event_kind kind;
    int device;
    ta_stream stream;
    uint64_t addr, size; /* size: as asked for */
    uint64_t serial;     /* of the block's allocation */
    const char *text;    /* valid during the call */
    bool pooled;         /* of a block: it is a graph pool's, captured or not */
} ta_event_info;
/* Called for every event with a lock of the allocator held: events of one block come in
 * order, and an address is reused only after its FREE_DONE. It must be quick and call
 * nothing of the allocator. At most TA_OBSERVERS at once; TA_INVALID when full. Costs nothing
 * while there are none. */
#define TA_OBSERVERS 4
typedef void ta_observer(void *context, const ta_event_info *event);
TA_API ta_status ta_add_observer(ta_allocator *allocator, ta_observer *observer,
                                 void *context);
/* The same for some kinds alone: the sum of 1u << kind. The others cost nothing. */
TA_API ta_status ta_add_observer_of(ta_allocator *allocator, ta_observer *observer,
                                    void *context, unsigned kinds);
/* Returns when no call to it is under way. */
TA_API ta_status ta_remove_observer(ta_allocator *allocator, ta_observer *observer,
                                    void *context);
TA_API ta_status ta_mark(ta_allocator *allocator, const char *text);

/* --- guarded blocks --------------------------------------------------------------------- */
/* With `guard` in its configuration every block has a mapping of its own, between pages where
 * nothing is mapped, and ends where its last page ends, but for what TA_GRANULE demands. What
 * is left of its pages, the bytes right before the block and right after what was asked for,
 * holds TA_GUARD_BYTE, and is looked at when the block goes. A free waits, two seconds at
 * most, until the streams of the block have passed; then nothing is mapped at its addresses,
 * and they are given to no block for a long while. Where a stream is slower, or is being
 * captured, a later free does it. A graph pool keeps what it had until ta_trim after its
 * release.
 *
 * What was found is told by ta_guard_next; until it has been, ta_alloc fails with TA_GUARDED.
 * Nothing goes to the host, and each block takes pages of the driver's least size. */
#define TA_GUARD_BYTE 0xa5
#define TA_GUARD_BEFORE 4096u /* bytes watched before a block, where there are so many */
typedef enum ta_guard_kind {
    TA_GUARD_WRITTEN = 0, /* bytes outside of a block */
    TA_GUARD_BAD_FREE = 1 /* of an address that is no live block's; it did nothing */
} ta_guard_kind;
/* Of a bad free, the block is the one that was there last; serial 0: none is known. */
typedef struct ta_guard_finding {
    ta_guard_kind kind;
    int device;
    ta_stream stream;
    uint64_t addr;   /* of the block; of a bad free: what was given */
    uint64_t size;   /* as asked for */
    uint64_t serial; /* of its allocation */
    int64_t at;      /* the nearest byte written, from the block's start */
    uint64_t bytes;  /* how many were, of those that are watched */
    int found;       /* its value */
    /* Where it was allocated, as ta_place_at was told; 0: unknown. */
    uint16_t module, stack;
} ta_guard_finding;
/* The oldest that nobody was told of; false: there is none. */
TA_API bool ta_guard_next(ta_allocator *allocator, ta_guard_finding *finding);
/* Looks at all live blocks too, now. Work that is queued may still write. */
TA_API ta_status ta_guard_look(ta_allocator *allocator);
/* A free of this address was refused with TA_INVALID: to be told. */
TA_API void ta_guard_bad_free(ta_allocator *allocator, const void *ptr);
/* As a sentence; `place`: where the block was allocated, NULL: not known. Returns the length
 * that snprintf would. Pure. */
TA_API int ta_guard_text(const ta_guard_finding *finding, const char *place, char *text,
                         size_t capacity);

/* --- tests --------------------------------------------------------------------------- */
/* Checks every invariant; prints both sides of the first that fails to `text` and returns
 * false. Takes every lock in turn. */
TA_API bool ta_check(ta_allocator *allocator, char *text, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
