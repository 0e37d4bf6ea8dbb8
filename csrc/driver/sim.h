/* sim.h - a simulated machine with GPUs, in host memory.
 *
 * Keeps the driver's contract: pages are real memory, taken only when touched; addresses are
 * real ranges; an unmapped page faults when touched; streams are queues, events complete in
 * order; any call can be made to fail at its k-th time. Time is virtual: every call costs
 * the host what it did on an H200 (ta_sim_cost_us), every piece of queued work takes a
 * while drawn from the seed, and waiting moves the clock. So a run is repeatable to the bit,
 * and nothing here sleeps.
 *
 * Data moves at once; whether it was allowed to is what the oracle judges (oracle.h).
 * Thread-safe. Several processes can share one machine (config.dir). */
#ifndef TA_SIM_H
#define TA_SIM_H

#include "../core/driver.h"

typedef struct ta_sim ta_sim;

typedef struct ta_sim_config {
    int devices;            /* number of GPUs, at least 1 */
    uint64_t memory;        /* bytes of each */
    uint64_t context_bytes; /* taken by a process's first use of a device */
    uint64_t seed;          /* of the time that work takes */
    bool no_backing; /* addresses are numbers only, nothing can be touched (replay) */
    bool no_vmm;     /* has_vmm says no, VMM calls fail with TA_UNSUPPORTED */
    bool no_peers;   /* can_access_peer says no */
    bool free_calls; /* calls take no virtual time (benchmarks) */
    uint64_t host_memory; /* bytes that can be pinned; 0: 1 TiB */
    double
        link_gbs; /* 10^9 bytes a second: what copies of the allocator's take, and nothing
                        else; 0: a random while on top */
    unsigned
        openers; /* threads by which opening pages of the host is so much faster: 0: 1 */
    bool no_host_pages; /* pages of the host's tier fail with TA_UNSUPPORTED */
    const char *dir;    /* shared state of the machine; NULL: private to this ta_sim */
} ta_sim_config;

ta_status ta_sim_create(const ta_sim_config *config, ta_sim **sim);
void ta_sim_destroy(ta_sim *sim);
/* The allocator's view of it. Lives as long as the machine. */
const ta_driver *ta_sim_driver(ta_sim *sim);

/* --- streams and work ------------------------------------------------------------- */
/* Streams 0 and 1 are the legacy default stream (its work waits for all blocking streams and
 * they for it), 2 the per-thread default. Others are made here. */
ta_status ta_sim_stream_create(ta_sim *sim, int device, bool blocking, ta_stream *stream);
ta_status ta_sim_stream_destroy(ta_sim *sim, ta_stream stream);
/* Queued work goes on. */
typedef struct ta_sim_range {
    uint64_t addr, size;
    bool write;
} ta_sim_range;
/* Queues work that touches the ranges; takes `us` of virtual time, or a random while if
 * `us` is negative. Into the graph if the stream is being captured. */
ta_status ta_sim_launch(ta_sim *sim, int device, ta_stream stream,
                        const ta_sim_range *ranges, int count, double us);
ta_status ta_sim_copy(ta_sim *sim, int device, ta_stream stream, uint64_t dst,
                      uint64_t src, uint64_t size);
ta_status ta_sim_fill(ta_sim *sim, int device, ta_stream stream, uint64_t dst, int value,
                      uint64_t size);
ta_status ta_sim_stream_wait(ta_sim *sim, int device, ta_stream stream); /* host waits */
ta_status ta_sim_stream_query(ta_sim *sim, int device, ta_stream stream);
/* The stream's later work waits for the event. */
ta_status ta_sim_stream_wait_event(ta_sim *sim, int device, ta_stream stream,
                                   ta_event event);
/* The host waits for all work of the device without breaking captures, as cudaFree does
 * before it frees (plain_free itself waits for nothing). */
ta_status ta_sim_settle(ta_sim *sim, int device);
/* Milliseconds of virtual time between two recorded events. */
ta_status ta_sim_event_elapsed(ta_sim *sim, ta_event start, ta_event end, float *ms);

/* --- graphs ------------------------------------------------------------------------ */
typedef struct ta_sim_graph ta_sim_graph;
ta_status ta_sim_capture_begin(ta_sim *sim, int device, ta_stream stream);
/* The same in one of CUDA's capture modes: 0 global (as above), 1 thread-local, 2 relaxed.
 * The calling thread's own mode is exchanged by the second function; enter() makes it
 * relaxed, leave() puts it back. */
ta_status ta_sim_capture_begin_mode(ta_sim *sim, int device, ta_stream stream, int mode);
int ta_sim_thread_capture_mode(int mode);
/* Fails, with no graph, where the capture was broken. */
ta_status ta_sim_capture_end(ta_sim *sim, int device, ta_stream stream,
                             ta_sim_graph **graph);
/* 0 when not capturing; else the capture's id. */
uint64_t ta_sim_capture_id(ta_sim *sim, int device, ta_stream stream);
/* As CUDA counts: 0 not capturing, 1 capturing, 2 capturing and broken. */
int ta_sim_capture_status(ta_sim *sim, int device, ta_stream stream);
ta_status ta_sim_graph_launch(ta_sim *sim, ta_sim_graph *graph, int device,
                              ta_stream stream);
void ta_sim_graph_destroy(ta_sim *sim, ta_sim_graph *graph);

/* --- time, cost, faults ------------------------------------------------------------ */
/* clang-format off */
#define TA_SIM_CALLS(X)                                                                     \
    X(device_count) X(enter) X(mem_info) X(has_vmm) X(granularity) X(can_access_peer)        \
    X(reserve) X(unreserve) X(create) X(release) X(map) X(unmap) X(set_access)               \
    X(export_page) X(import_page)                                                           \
    X(host_memory) X(copy_stream) X(copy) X(fill) X(read)                                   \
    X(plain_alloc) X(plain_free) X(event_create) X(event_destroy) X(event_record)            \
    X(event_query) X(event_wait) X(is_capturing) X(device_wait)
/* clang-format on */
typedef enum ta_sim_call {
#define X(name) TA_SIM_CALL_##name,
    TA_SIM_CALLS(X)
#undef X
        TA_SIM_CALL_COUNT
} ta_sim_call;
const char *ta_sim_call_name(ta_sim_call call);
/* Calls made so far, failed ones included. */
uint64_t ta_sim_calls(const ta_sim *sim, ta_sim_call call);
/* The k-th next call (1 is the very next) of this kind fails with `status`, and the `times`
 * after it too. call TA_SIM_CALL_COUNT: of any kind that can fail. k 0: nothing fails. */
void ta_sim_fail(ta_sim *sim, ta_sim_call call, uint64_t k, uint64_t times,
                 ta_status status);
/* What the driver would have taken for the calls so far, in microseconds. */
double ta_sim_driver_us(const ta_sim *sim);
double ta_sim_now_us(const ta_sim *sim);
void ta_sim_advance_us(ta_sim *sim, double us);
/* Bytes of physical memory held on the device: by this process, by all. */
uint64_t ta_sim_used(ta_sim *sim, int device, bool all_processes);
/* Bytes of a live handle, which one that was imported (as of 0 bytes) knows; 0: no such. */
uint64_t ta_sim_handle_size(ta_sim *sim, ta_handle handle);
/* Bytes of the host that this process has pinned by pages. */
uint64_t ta_sim_pinned(ta_sim *sim);
/* What the machine could still give: less than was configured, as where others take it. */
void ta_sim_set_host_memory(ta_sim *sim, uint64_t bytes);
/* Bytes of addresses reserved, and of handles not released, by this process. */
uint64_t ta_sim_reserved_addresses(ta_sim *sim);

/* A broken rule of streams and events, or of the driver's contract (unmapping what queued
 * work touches, mapping over a mapping, a handle released twice): the first is kept as text
 * and counted; the call goes on as a driver would. NULL if there was none. */
const char *ta_sim_first_violation(const ta_sim *sim, uint64_t *count);

#endif
