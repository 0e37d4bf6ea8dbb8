/* fatbin.c - for which architectures a kernel was compiled.
 *
 * Called by the functions that nvcc's code calls when a library is loaded, and when a kernel
 * is asked about. CUB chooses its parameters by the architecture of the code that would run,
 * and fails where that is one it was not compiled for: so a card of 8.9 has to answer 8.6
 * where the library has no code of its own for it, as a GPU does.
 *
 * A binary is a header and entries: 2, machine code for one architecture; 1, PTX. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#include "simcuda.h"

#define WRAPPER_MAGIC 0x466243b1u
#define BINARY_MAGIC 0xba55ed50u

typedef struct wrapper {
    uint32_t magic, version;
    const void *binary;
    const void *files;
} wrapper;

typedef struct binary_header {
    uint32_t magic;
    uint16_t version, header_size;
    uint64_t size; /* of all entries */
} binary_header;

typedef struct entry {
    uint16_t kind, flags;
    uint32_t header_size;
    uint64_t size;
    uint32_t compressed, options;
    uint16_t minor_version, major_version;
    uint32_t architecture; /* 86 */
} entry;

/* By the address of the host's stub: open addressing, at most 3/4 full. */
typedef struct kernel {
    const void *stub;
    const wrapper *from;
} kernel;
static kernel *table;
static size_t room, count;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static size_t place_of(const void *stub)
{
    size_t i = (size_t)((uintptr_t)stub * 0x9e3779b97f4a7c15u >> 20) & (room - 1);
    while (table[i].stub && table[i].stub != stub) i = (i + 1) & (room - 1);
    return i;
}

static bool grow(void)
{
    size_t old_room = room, wanted = room ? room * 2 : 4096;
    kernel *old = table, *larger = calloc(wanted, sizeof *larger);
    if (!larger) return false;
    table = larger;
    room = wanted;
    for (size_t i = 0; i < old_room; i++)
        if (old[i].stub) table[place_of(old[i].stub)] = old[i];
    free(old);
    return true;
}

void ta_sc_kernel_add(const void *stub, const void *from)
{
    pthread_mutex_lock(&mutex);
    if ((count + 1) * 4 <= room * 3 || grow()) {
        size_t i = place_of(stub);
        if (!table[i].stub) count++;
        table[i].stub = stub;
        table[i].from = from;
    }
    pthread_mutex_unlock(&mutex);
}

static const wrapper *find(const void *stub)
{
    const wrapper *from = NULL;
    pthread_mutex_lock(&mutex);
    if (room) from = table[place_of(stub)].from;
    pthread_mutex_unlock(&mutex);
    return from && from->magic == WRAPPER_MAGIC ? from : NULL;
}

bool ta_sc_kernel_versions(const void *stub, int card, int *code, int *ptx)
{
    const wrapper *from = find(stub);
    const binary_header *header = from ? from->binary : NULL;
    *code = *ptx = card;
    if (!header || header->magic != BINARY_MAGIC) return true; /* of another kind */
    const char *at = (const char *)header + header->header_size;
    const char *end = at + header->size;
    int machine = 0, virtual = 0;
    while (at + sizeof(entry) <= end) {
        const entry *e = (const entry *)(const void *)at;
        int of = (int)e->architecture;
        if (e->kind == 2 && of / 10 == card / 10 && of <= card && of > machine)
            machine = of;
        if (e->kind == 1 && of <= card && of > virtual) virtual = of;
        if (e->header_size == 0) break;
        at += e->header_size + e->size;
    }
    if (machine)
        *code = *ptx = machine;
    else if (virtual)
        *ptx = virtual;
    return machine || virtual;
}
