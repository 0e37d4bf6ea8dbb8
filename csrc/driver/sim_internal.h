/* sim_internal.h - what the files of the simulated machine share.
 *
 *   sim.c         the machine, its calls' bookkeeping, faults, time
 *   sim_cost.c    what each driver call costs the host
 *   sim_ranges.c, sim_handles.c, sim_maps.c, sim_plain.c  memory (sim_memory.h)
 *   sim_pages.c   real memory behind them
 *   sim_stream.c  streams and work
 *   sim_event.c   events
 *   sim_graph.c   captures and graphs
 *   sim_shared.c  memory that several processes count together
 *   sim_observe.c  an allocator's events, told to the oracle
 *
 * Everything is guarded by ta_sim.lock, taken by ta_sim_begin and by each public
 * function; functions below expect it held unless they say otherwise. */
#ifndef TA_SIM_INTERNAL_H
#define TA_SIM_INTERNAL_H

#include <pthread.h>

#include "oracle.h"
#include "sim.h"

#define TA_SIM_GRANULARITY ((uint64_t)2 << 20)
#define TA_SIM_LAUNCH_US 2.0 /* host time of a launch */

/* --- memory ------------------------------------------------------------------ */
/* A handle's value is generation << 32 | index + 1, so that a stale one is noticed. */
typedef struct ta_sim_handle {
    uint64_t size, offset; /* offset in the memfd, never used twice */
    int device;
    ta_tier tier;
    uint32_t generation;
    uint32_t maps;  /* addresses it is mapped at */
    bool live;      /* not released */
    bool touchable; /* access was set once: the memfd may hold pages of it */
    bool exported;  /* others may have it: its bytes stay */
    int foreign;    /* 1 + descriptor of another process's memfd; 0: ours */
} ta_sim_handle;

/* One a granule of a reserved range. */
typedef struct ta_sim_slot {
    uint32_t handle; /* index + 1; 0: nothing mapped */
    uint32_t part;   /* which granule of the handle */
    uint64_t access; /* devices that may touch it; kept where part = 0 */
} ta_sim_slot;

typedef struct ta_sim_reservation {
    uint64_t addr, size;
    ta_sim_slot *slots; /* size / TA_SIM_GRANULARITY of them */
    uint64_t mapped;    /* bytes; sum over its mappings */
    ta_handle plain;    /* of plain_alloc; 0: a reserved range */
} ta_sim_reservation;

/* --- streams ----------------------------------------------------------------- */
typedef struct ta_sim_capture ta_sim_capture;
typedef struct ta_sim_stream {
    int device;
    bool live, blocking;
    uint32_t index, generation;
    uint32_t queue;          /* the oracle's */
    double end_us;           /* when its last work ends */
    uint64_t joined;         /* implicit order is known up to here (see sim_stream.c) */
    ta_sim_capture *capture; /* NULL: not being captured */
    uint32_t lane;           /* the oracle's queue for what is captured of it */
} ta_sim_stream;

struct ta_event_ {
    uint64_t magic;
    ta_sim *sim;
    int device;
    bool recorded;
    double at_us; /* when the stream passes it */
    ta_clock clock;
    uint64_t capture;       /* id of the capture it was recorded in; 0: none */
    struct ta_event_ *next; /* of the free ones */
    struct ta_event_ *all;
};
#define TA_EVENT_MAGIC 0x74616576656e7431u
#define TA_EVENT_DEAD 0x7461646561643031u

typedef struct ta_sim_device {
    bool context;           /* in use: context_bytes are taken */
    uint64_t used;          /* bytes of this process, context included */
    ta_sim_stream *legacy;  /* streams 0 and 1 */
    ta_sim_stream **thread; /* stream 2, by the thread's number */
    uint32_t thread_count;
    uint64_t legacy_ops, blocking_ops;
    ta_stream copy[2]; /* streams for the allocator's copies; NULL: not made yet */
    struct ta_sim_shared *shared; /* NULL: nobody else counts */
} ta_sim_device;

typedef struct ta_sim_fault {
    uint64_t skip, times; /* calls that still pass; that fail after them */
    ta_status status;
} ta_sim_fault;

struct ta_sim {
    ta_driver driver;
    ta_sim_config config;
    pthread_mutex_t lock;
    unsigned generation; /* of the process: a forked child has another */
    struct ta_sim *next_sim;

    double now_us, driver_us;
    uint64_t random;
    uint64_t calls[TA_SIM_CALL_COUNT];
    ta_sim_fault faults[TA_SIM_CALL_COUNT + 1];
    bool faulty; /* some fault is set */

    uint64_t violations;
    char violation[512]; /* the first */

    ta_sim_device *devices;

    ta_sim_reservation *reservations; /* by address */
    size_t reservation_count, reservation_capacity;
    uint64_t reserved; /* bytes of addresses */
    ta_sim_handle *handles;
    uint32_t handle_count, handle_capacity;
    uint32_t *free_handles;
    uint32_t free_handle_count;
    int memfd;
    uint64_t next_offset;
    uint64_t pinned; /* bytes of handles on the host that are live or mapped */

    ta_sim_stream **streams;
    uint32_t stream_count;
    struct ta_event_ *events, *free_events;
    ta_sim_capture *captures;
    ta_sim_graph *graphs;
    uint64_t capture_ids;
    ta_oracle *oracle;
};

/* --- sim.c ------------------------------------------------------------------- */
/* Locks, counts, charges and perhaps fails a driver call; locked only if TA_OK. */
ta_status ta_sim_begin(ta_sim *sim, ta_sim_call call, double us);
/* The same for calls that are not the allocator's: no count, no fault. */
ta_status ta_sim_begin_other(ta_sim *sim, double us);
void ta_sim_end(ta_sim *sim);
/* More cost of a driver call, known only once it is under way. */
void ta_sim_charge(ta_sim *sim, double us);
__attribute__((format(printf, 2, 3))) void ta_sim_violate(ta_sim *sim, const char *format,
                                                          ...);
/* The process's first use of the device takes its context_bytes. */
ta_status ta_sim_use_device(ta_sim *sim, int device);
/* Uniform in [0, 1). */
double ta_sim_random(ta_sim *sim);

/* --- sim_cost.c -------------------------------------------------------------- */
/* Microseconds of the host for `handles` handles of `size` bytes each. */
double ta_sim_cost_us(ta_sim_call call, ta_tier tier, uint64_t size, uint64_t handles);

/* --- memory's files ------------------------------------------------------------ */
void ta_sim_memory_destroy(ta_sim *sim);
ta_sim_reservation *ta_sim_find_reservation(ta_sim *sim, uint64_t addr);
/* Whether the device can touch all of the range. False also where it is partly outside.
 * */
bool ta_sim_accessible(ta_sim *sim, int device, uint64_t addr, uint64_t size);
/* The bytes of a copy of whole granules, all of them mapped. */
void ta_sim_copy_granules(ta_sim *sim, uint64_t to, uint64_t from, uint64_t size);

/* --- sim_pages.c: real memory. False: the system has none --------------------- */
bool ta_sim_pages_create(ta_sim *sim);
void ta_sim_pages_destroy(ta_sim *sim);
/* At `wish`, an aligned address, unless something else is there; 0: none. */
uint64_t ta_sim_pages_reserve(ta_sim *sim, uint64_t wish, uint64_t size, uint64_t align);
void ta_sim_pages_unreserve(ta_sim *sim, uint64_t addr, uint64_t size);
/* `fd`: the memfd, -1: ours. */
bool ta_sim_pages_open(ta_sim *sim, uint64_t addr, uint64_t size, int fd,
                       uint64_t offset);
/* A descriptor of the memfd whose place says which bytes are meant; -1: none to be had. And
 * what such a place says. */
int ta_sim_pages_export(ta_sim *sim, uint64_t offset, uint64_t size);
bool ta_sim_pages_exported(int fd, uint64_t *offset, uint64_t *size);
bool ta_sim_pages_shut(ta_sim *sim, uint64_t addr, uint64_t size);
void ta_sim_pages_drop(ta_sim *sim, uint64_t offset, uint64_t size);
/* Of `size` bytes at two addresses and their offsets: what was never touched stays so. */
void ta_sim_pages_copy(ta_sim *sim, uint64_t to, uint64_t to_offset, uint64_t from,
                       uint64_t from_offset, uint64_t size);

/* --- sim_stream.c ------------------------------------------------------------ */
void ta_sim_stream_table(ta_driver *driver);
void ta_sim_stream_finish(ta_sim *sim);
/* NULL: no such stream of the device. */
ta_sim_stream *ta_sim_find_stream(ta_sim *sim, int device, ta_stream stream);
/* Implicit order among the legacy default stream and blocking streams, before an
 * operation on the stream; `adds` if the operation is something others wait for. */
void ta_sim_stream_touch(ta_sim *sim, ta_sim_stream *stream, bool adds);
/* Puts work of so many microseconds at the stream's end. */
void ta_sim_stream_push(ta_sim *sim, ta_sim_stream *stream, double us);
/* The host waits for all of the device's work. */
void ta_sim_drain(ta_sim *sim, int device);
/* A random while: mostly short, now and then long. */
double ta_sim_while_us(ta_sim *sim);

/* --- sim_event.c ------------------------------------------------------------- */
void ta_sim_event_table(ta_driver *driver);
void ta_sim_events_destroy(ta_sim *sim);
/* False for NULL; false and a violation for a destroyed one. */
bool ta_sim_event_valid(ta_sim *sim, ta_event event);

/* --- sim_graph.c ------------------------------------------------------------- */
struct ta_sim_capture {
    uint64_t id;
    ta_sim_stream *origin;
    int mode;           /* as ta_sim_mode */
    const void *thread; /* that began it */
    bool broken;
    ta_sim_graph *graph;
    ta_oracle_space *space; /* order within the capture */
    ta_sim_capture *next;
};
struct ta_sim_graph {
    struct ta_sim_node *nodes;
    uint32_t count, capacity;
    double end_us; /* of its last launch: launches of one graph come one after another */
    ta_clock end;  /* the same for the oracle */
    ta_oracle_graph *judged;
    ta_sim_graph *next;
};
typedef enum ta_sim_node_kind {
    TA_SIM_LAUNCH,
    TA_SIM_COPY,
    TA_SIM_FILL
} ta_sim_node_kind;
typedef struct ta_sim_node {
    ta_sim_node_kind kind;
    int device;
    uint64_t dst, src, size;
    int value;
    double us;
    const ta_sim_range *ranges; /* of a launch */
    int count;
    bool whole; /* a copy of whole granules from handle to handle */
} ta_sim_node;
/* Does a copy's or a fill's bytes. */
void ta_sim_node_run(ta_sim *sim, const ta_sim_node *node);
ta_status ta_sim_capture_node(ta_sim *sim, ta_sim_stream *stream,
                              const ta_sim_node *node);
void ta_sim_capture_break(ta_sim *sim, ta_sim_capture *capture, const char *why);
/* A call that is illegal while some capture is open and the thread is not in relaxed
 * mode: breaks those captures. False: the call must fail. */
bool ta_sim_capture_allows(ta_sim *sim, const char *what);
/* An event was recorded on a captured stream; a stream waits for an event of a capture.
 * */
ta_status ta_sim_capture_record(ta_sim *sim, ta_sim_stream *stream, ta_event event);
ta_status ta_sim_capture_wait(ta_sim *sim, ta_sim_stream *stream, ta_event event);
/* The legacy stream, or the whole device, is used while a capture is open that this
 * breaks. False: the call must fail. */
bool ta_sim_capture_legacy(ta_sim *sim, ta_sim_stream *stream, const char *what);
bool ta_sim_capture_device(ta_sim *sim, int device, const char *what);
void ta_sim_graphs_destroy(ta_sim *sim);
/* The calling thread's capture mode: 0 global, 1 thread-local, 2 relaxed. */
extern _Thread_local int ta_sim_mode;

/* --- sim_shared.c ------------------------------------------------------------ */
ta_status ta_sim_shared_open(const char *dir, int device, uint64_t memory,
                             struct ta_sim_shared **shared);
void ta_sim_shared_close(struct ta_sim_shared *shared);
/* In a forked child: gives up the descriptors, and nothing else. */
void ta_sim_shared_forked(struct ta_sim_shared *shared);
/* Raises what this process holds to `mine` bytes; false if all would exceed `memory`. */
bool ta_sim_shared_raise(struct ta_sim_shared *shared, uint64_t mine);
void ta_sim_shared_lower(struct ta_sim_shared *shared, uint64_t mine);
uint64_t ta_sim_shared_total(struct ta_sim_shared *shared);

#endif
