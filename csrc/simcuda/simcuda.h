/* simcuda.h - what the files of simcuda share. Not installed.
 *
 * simcuda is a library that takes the place of the CUDA runtime, driver and maths libraries
 * in a process that preloads it, over the simulated GPU of csrc/driver/sim.h. Each library
 * has files of its own, which define its functions under their real names; what two of them
 * need stands here.
 *
 * Words: a *card* is a GPU's description; the *machine* is one simulator with some devices,
 * all of one card; a *range* is memory that we handed out, by address.
 * Results are CUDA's own numbers: cudaError and CUresult agree where we use them. */
#ifndef TA_SIMCUDA_H
#define TA_SIMCUDA_H

#include "../driver/sim.h"

#define TA_EXPORT __attribute__((visibility("default")))
/* Overridden by a definition without it: the generated list uses it (missing.c). */
#define TA_WEAK __attribute__((visibility("default"), weak))

enum { /* results, shared by runtime and driver */
       TA_CU_OK = 0,
       TA_CU_INVALID = 1,
       TA_CU_NO_MEMORY = 2,
       TA_CU_NOT_INITIALIZED = 3,
       TA_CU_GONE = 4,
       TA_CU_NO_DEVICE = 100,
       TA_CU_BAD_DEVICE = 101,
       TA_CU_BAD_CONTEXT = 201,
       TA_CU_NO_BINARY_FOR_GPU = 209,
       TA_CU_NO_PEER = 217,
       TA_CU_BAD_HANDLE = 400,
       TA_CU_NOT_FOUND = 500,
       TA_CU_NOT_READY = 600,
       TA_CU_PEER_ON = 704,
       TA_CU_REGISTERED = 712,
       TA_CU_NOT_REGISTERED = 713,
       TA_CU_UNSUPPORTED = 801,
       TA_CU_CAPTURE_UNSUPPORTED = 900,
       TA_CU_CAPTURE_INVALID = 901,
       TA_CU_CAPTURE_WRONG_THREAD = 908,
       TA_CU_UNKNOWN = 999
};

/* --- cards (cards.c) --------------------------------------------------------------- */
typedef struct ta_sc_card {
    const char *key, *name;
    uint64_t memory; /* bytes, as the driver reports them */
    int major, minor, sms;
    int shared_sm, shared_block; /* KiB of shared memory: an SM, a block that opts in */
    int l2_kib, threads_sm, blocks_sm;
    int clock_mhz, memory_mhz, bus_bits;
    int context_mib; /* what a process's context takes */
} ta_sc_card;
/* `text` is a card's key, a size such as 16GiB (an H100 with that memory), or a key with other
 * memory, rtx4090:20GiB. False where it is none of them. */
bool ta_sc_find_card(const char *text, ta_sc_card *card);

/* --- the machine (machine.c) ------------------------------------------------------- */
typedef struct ta_sc_machine {
    ta_sim *sim;
    const ta_driver *driver;
    int devices;
    bool host_pages; /* VMM makes pages of host memory */
    ta_sc_card card;
    int runtime_version, driver_version; /* 13000 is CUDA 13.0 */
} ta_sc_machine;
/* Made at the first call. NULL in a process forked from one that had made it: there every
 * call fails with TA_CU_NOT_INITIALIZED. */
const ta_sc_machine *ta_sc_machine_get(void);
/* Devices that the process sees; 0 in a forked child. */
int ta_sc_device_count(void);
int ta_sc_status(ta_status status);
/* The CUDA version PyTorch was built with, by the libcudart that is loaded. */
int ta_sc_runtime_version(void);
/* The real library's function, for versions and other facts that need no device. */
void *ta_sc_real(const char *const *libraries, const char *symbol);

/* A primary context. CUcontext points to one. */
typedef struct ta_sc_context {
    int device;
    bool active;
    int retained;
} ta_sc_context;
ta_sc_context *ta_sc_context_of(int device);
ta_sc_context *ta_sc_current(void); /* NULL: none */
int ta_sc_set_current(ta_sc_context *context);
int ta_sc_push(ta_sc_context *context);
int ta_sc_pop(ta_sc_context **context);
/* The primary context lives from now on; its memory is taken once. */
int ta_sc_activate(ta_sc_context *context);
/* The device of the current context; 0 where there is none. */
int ta_sc_device(void);
int ta_sc_set_device(int device);
/* The runtime's lazy start: the device's primary context lives, and is the thread's current
 * one where it had none. */
void ta_sc_use(int device);
/* Says once on stderr that a function is not simulated. */
void ta_sc_report(const char *function);

/* --- hash table of addresses (map.c) ------------------------------------------------ */
typedef struct ta_sc_slot {
    uint64_t key; /* 0: empty, 1: deleted */
    void *value;
} ta_sc_slot;
typedef struct ta_sc_map {
    ta_sc_slot *slots;
    size_t capacity, used, live;
} ta_sc_map;
/* Not thread-safe. Keys above 1. */
void *ta_sc_map_get(const ta_sc_map *map, uint64_t key);
bool ta_sc_map_put(ta_sc_map *map, uint64_t key, void *value);
void *ta_sc_map_take(ta_sc_map *map, uint64_t key);

/* --- memory (memory.c, ranges.c) ---------------------------------------------------- */
typedef enum ta_sc_kind {
    TA_SC_DEVICE,
    TA_SC_HOST,       /* pinned, ours */
    TA_SC_REGISTERED, /* pinned, theirs */
    TA_SC_MANAGED,
    TA_SC_RESERVED /* addresses for VMM; `device` is the last one mapped there */
} ta_sc_kind;
typedef struct ta_sc_range {
    uint64_t addr, size;
    ta_sc_kind kind;
    int device;
    uint64_t id;
} ta_sc_range;
/* Thread-safe. */
bool ta_sc_range_add(uint64_t addr, uint64_t size, ta_sc_kind kind, int device);
bool ta_sc_range_find(uint64_t addr, ta_sc_range *range);
bool ta_sc_range_remove(uint64_t addr, ta_sc_range *range);
void ta_sc_range_set_device(uint64_t addr, int device);

int ta_sc_malloc(int device, size_t size, void **ptr);
int ta_sc_free(void *ptr);
int ta_sc_host_alloc(size_t size, ta_sc_kind kind, void **ptr);
int ta_sc_host_free(void *ptr);
int ta_sc_register(void *ptr, size_t size);
int ta_sc_unregister(void *ptr);
int ta_sc_mem_info(int device, size_t *free_bytes, size_t *total);
/* Copies at once and queues it. `wait`: the call is synchronous. */
int ta_sc_copy(void *dst, const void *src, size_t size, ta_stream stream, bool wait);
int ta_sc_copy_2d(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                  size_t width, size_t height, ta_stream stream, bool wait);
/* The same, and of whatever size the bytes are copied: the allocator moves its pages. */
int ta_sc_copy_whole(void *dst, const void *src, size_t size, ta_stream stream);
/* `unit` 1, 2 or 4 bytes of value, `count` of them. */
int ta_sc_fill(void *dst, unsigned value, int unit, size_t count, ta_stream stream,
               bool wait);

/* --- streams, events, graphs (stream.c, graph.c) ------------------------------------ */
/* The device a stream belongs to; the current one for the default streams. False where the
 * stream is unknown. */
bool ta_sc_stream_device(ta_stream stream, int *device);
int ta_sc_stream_create(unsigned flags, int priority, ta_stream *stream);
int ta_sc_stream_destroy(ta_stream stream);
int ta_sc_stream_query(ta_stream stream);
int ta_sc_stream_wait(ta_stream stream);
int ta_sc_stream_wait_event(ta_stream stream, ta_event event);
int ta_sc_stream_priority(ta_stream stream, int *priority);
int ta_sc_stream_flags(ta_stream stream, unsigned *flags);
int ta_sc_device_wait(int device);
int ta_sc_event_create(ta_event *event);
int ta_sc_event_destroy(ta_event event);
int ta_sc_event_record(ta_event event, ta_stream stream);
int ta_sc_event_query(ta_event event);
int ta_sc_event_wait(ta_event event);
int ta_sc_event_elapsed(float *ms, ta_event start, ta_event end);
int ta_sc_host_func(ta_stream stream, void (*fn)(void *), void *data);
/* Queued work that may touch anything. */
int ta_sc_launch(ta_stream stream);

typedef struct ta_sc_graph ta_sc_graph;
int ta_sc_capture_begin(ta_stream stream, int mode);
int ta_sc_capture_end(ta_stream stream, ta_sc_graph **graph);
int ta_sc_capture_info(ta_stream stream, int *status, uint64_t *id);
/* What GetCaptureInfo gives as the graph: valid until the capture ends. */
ta_sc_graph *ta_sc_capture_graph(void);
int ta_sc_capture_mode(int *mode); /* exchanges the thread's */
/* TA_CU_CAPTURE_UNSUPPORTED, breaking the capture, where one forbids an unsafe call. */
int ta_sc_unsafe(void);
ta_sc_graph *ta_sc_graph_new(void);
int ta_sc_graph_hold(ta_sc_graph *graph);
int ta_sc_graph_drop(ta_sc_graph *graph);
int ta_sc_graph_launch(ta_sc_graph *graph, ta_stream stream);

/* --- driver entry points (driver_entry.c) -------------------------------------------- */
/* Our own function for a driver symbol and CUDA version; NULL where there is none. */
void *ta_sc_entry(const char *symbol, int version);

/* --- device attributes (device.c) ----------------------------------------------------- */
int ta_sc_attribute(int *value, int attribute, int device);
void ta_sc_uuid(int device, unsigned char uuid[16]);
/* Blocks of a kernel that fit on an SM, registers left out of account. */
int ta_sc_occupancy(int *blocks, int block_size, size_t shared);
/* fatbin.c: a kernel is of the fat binary `from`, under the address of its stub. */
void ta_sc_kernel_add(const void *stub, const void *from);
/* The architectures (86) of the machine code and of the PTX that a card of `card` would run;
 * false: the library has neither. A kernel never registered counts as compiled for the card. */
bool ta_sc_kernel_versions(const void *stub, int card, int *code, int *ptx);

/* --- stand-ins for handles ------------------------------------------------------------ */
/* What every library's handle points to: cuBLAS, cuDNN, cuSOLVER, cuSPARSE, cuFFT. */
typedef struct ta_sc_handle {
    ta_stream stream;
    int device;
    int math_mode, pointer_mode;
} ta_sc_handle;
ta_sc_handle *ta_sc_handle_new(void);
/* Queues work on the handle's stream. */
int ta_sc_handle_launch(const void *handle);
/* Every size that a library is asked for, and every status that it would leave behind, is
 * written, by the functions that compute nothing too: else the caller reads what its memory
 * held before. These write `count` numbers, and do nothing where `to` is NULL: that nothing
 * went wrong, and the pivots (from 1) of rows that stay where they are. */
void ta_sc_no_error(int *to, int64_t count);
void ta_sc_no_pivoting(int *to, int64_t count);

/* Where the size of a workspace comes from (cudnn_real.c counts them for the report). */
typedef enum ta_sc_space {
    TA_SC_TOLD,     /* the real libcudnn, about the card */
    TA_SC_MEASURED, /* a formula that meets what a library was seen to ask for */
    TA_SC_DEFAULT,  /* a size of the right order, stated where it is made */
    TA_SC_SPACE_KINDS
} ta_sc_space;
void ta_sc_workspace(ta_sc_space kind, uint64_t bytes);

#endif
