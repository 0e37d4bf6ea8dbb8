/* cuda.h - the CUDA driver as the allocator's table, and what it says about a device.
 *
 * The driver is found at run time: functions that a preloaded library defines come first,
 * then libcuda.so.1. There is one driver in a process; it is never unloaded. */
#ifndef TA_CUDA_H
#define TA_CUDA_H

#include "../core/driver.h"

/* Never NULL, and calls nothing yet. Where there is no driver every call of the table gives
 * TA_UNSUPPORTED. */
const ta_driver *ta_cuda_driver(void);
/* "" if nothing is known against the driver; else what was tried and what was missing.
 * Looks for the driver, without starting it. */
const char *ta_cuda_problem(void);
/* The CUresult of the last call that failed for an unforeseen reason; 0 is none. */
int ta_cuda_last_error(void);

/* What `doctor` reports of a device. Asking makes no context. */
typedef struct ta_cuda_facts {
    int driver_version; /* 13000 is CUDA 13.0 */
    int devices;        /* in the process's view */
    char name[256];
    char uuid[48];    /* "GPU-...", or "MIG-..." */
    int major, minor; /* compute capability */
    int multiprocessors;
    uint64_t total;       /* bytes of the card */
    uint64_t granularity; /* of device pages; 0 without VMM */
    uint64_t peers;       /* bit i: can reach device i */
    int numa_node;        /* host node nearest to the device; -1: unknown */
    bool vmm;
    bool host_pages; /* VMM pages in host memory */
    bool rdma;       /* GPUDirect RDMA works on VMM pages */
    bool wsl2, mig;
    bool context; /* the primary context exists already */
} ta_cuda_facts;
ta_status ta_cuda_probe(int device, ta_cuda_facts *facts);

#endif
