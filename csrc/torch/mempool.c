/* mempool.c - what torch's own allocator calls for a MemPool over the arena.
 *
 * torch's allocator stays in charge: it asks for segments (2 MiB, 20 MiB, or more), splits and
 * caches them, and gives a segment back when it lies in its cache whole. Both calls come with a
 * lock of torch's held, with or without the GIL. Each region has an alloc function of its own:
 * so a segment goes where it belongs whatever thread asks, also during a capture into the pool.
 *
 * torch uses a segment by its own rules, on streams that it does not name here, and gives it
 * back as it would to cudaFree, which waits for the device: so does ta_mempool_free. While a
 * graph is captured nothing can be waited for: the segment is parked until the next call.
 *
 * It cannot wait longer than cudaFree would at the same place, and torch holds its allocator's
 * lock there, with which the GIL may not be given up: a thread that took it could come to
 * wait for that lock, and with the GIL in hand.
 *
 * Thread-safe. held[region][device] = bytes of its segments that torch holds there. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "../core/epoch.h"
#include "mempool.h"
#include "process.h"
#include "torch.h"

#define TEXT 4096

static _Atomic uint64_t held[TA_REGIONS + 1][TA_MAX_DEVICES];
static _Atomic uint64_t limits[TA_REGIONS + 1][TA_MAX_DEVICES]; /* 0: none */
static _Thread_local struct {
    char text[TEXT];
    size_t size;
    int device;
} refusal;

static bool is_there(ta_region_id id, int device)
{
    return id <= TA_REGIONS && device >= 0 && device < TA_MAX_DEVICES;
}

void ta_mempool_limit(ta_region_id id, int device, uint64_t bytes)
{
    if (is_there(id, device))
        atomic_store(&limits[id][device], bytes == TA_NO_LIMIT ? 0 : bytes);
}

uint64_t ta_mempool_held(ta_region_id id, int device)
{
    return is_there(id, device) ? atomic_load(&held[id][device]) : 0;
}

const char *ta_mempool_refusal(int *device, size_t *size)
{
    *device = refusal.device;
    *size = refusal.size;
    return refusal.text;
}
void ta_mempool_forget(void) { refusal.text[0] = '\0'; }

/* --- segments that wait for the end of a capture ---------------------------------------- */
typedef struct parked {
    struct parked *next;
    void *ptr;
} parked;
static _Atomic(parked *) waiting;

static void park(parked *p)
{
    p->next = atomic_load(&waiting);
    while (!atomic_compare_exchange_weak(&waiting, &p->next, p))
        ;
}

/* False: it cannot be waited for now. */
static bool give_back(ta_allocator *a, void *ptr)
{
    ta_block_place place;
    const ta_status status = ta_mempool_capturing() ? TA_NOT_READY : ta_devices_wait(a);
    if (status == TA_GONE || status == TA_FORKED) return true;
    if (status) return false;
    if (ta_block_where(a, ptr, &place)) return true; /* none of ours */
    if (ta_free(a, ptr) == TA_OK && place.region <= TA_REGIONS)
        atomic_fetch_sub(&held[place.region][place.device], place.size);
    uint64_t released = 0;
    ta_trim(a, place.device, &released); /* cudaFree would give it back at once */
    return true;
}

void ta_mempool_settle(void)
{
    ta_allocator *a = ta_process_allocator();
    if (a == NULL || atomic_load(&waiting) == NULL || ta_is_forked(a)) return;
    parked *p = atomic_exchange(&waiting, NULL);
    while (p != NULL) {
        parked *next = p->next;
        if (give_back(a, p->ptr))
            free(p);
        else
            park(p);
        p = next;
    }
}

void ta_mempool_free(void *ptr, size_t size, int device, ta_stream stream)
{
    (void)size;
    (void)device;
    (void)stream;
    ta_allocator *a = ta_process_allocator();
    if (ptr == NULL || a == NULL || ta_is_forked(a)) return;
    ta_mempool_settle();
    if (give_back(a, ptr)) return;
    parked *p = malloc(sizeof *p);
    if (p == NULL) {
        ta_say("memory of a pool was freed during a capture and stays taken: %s",
               ta_status_text(TA_NO_HOST_MEMORY));
        return;
    }
    p->ptr = ptr;
    park(p);
}

/* --- asking ------------------------------------------------------------------------------ */
static void refuse(ta_allocator *a, ta_region_id id, int device, size_t size,
                   const ta_oom *oom)
{
    ta_region_info info;
    const char *name = ta_region_get(a, id, &info) == TA_OK ? info.name : "?";
    char *text = refusal.text;
    refusal.device = device;
    refusal.size = size;
    if (oom != NULL) {
        int length = snprintf(text, TEXT, "torcharena's pool \"%s\": ", name);
        ta_oom_text(oom, text + length, TEXT - (size_t)length);
        return;
    }
    const double mib = 1 << 20;
    snprintf(
        text, TEXT,
        "torcharena's pool \"%s\" may hold %.0f MiB on a GPU (limit=) and holds %.0f "
        "MiB on GPU %d; torch asked for a segment of %.0f MiB more",
        name, (double)atomic_load(&limits[id][device]) / mib,
        (double)ta_mempool_held(id, device) / mib, device, (double)size / mib);
}

__attribute__((noinline, cold)) static void fail(ta_allocator *a, ta_region_id id,
                                                 int device, ta_status status)
{
    char text[512];
    ta_region_info info;
    const char *name = ta_region_get(a, id, &info) == TA_OK ? info.name : "?";
    const char *remedy = status == TA_ASLEEP ? ": wake it first"
                         : status == TA_FORKED
                             ? ": start the process with the spawn or forkserver method"
                             : "";
    snprintf(text, sizeof text,
             "torcharena's pool \"%s\" on GPU %d: allocating failed: %s%s", name, device,
             ta_status_text(status), remedy);
    ta_throw_error(text);
}

static void *alloc_in(ta_region_id id, size_t size, int device, ta_stream stream)
{
    ta_allocator *a = ta_process_allocator();
    if (size == 0 || a == NULL || device < 0 || device >= TA_MAX_DEVICES) return NULL;
    ta_mempool_settle();
    const uint64_t bytes = (size + TA_GRANULE - 1) / TA_GRANULE * TA_GRANULE;
    const uint64_t limit = atomic_load(&limits[id][device]);
    const uint64_t before = atomic_fetch_add(&held[id][device], bytes);
    ta_status status = TA_OUT_OF_MEMORY;
    ta_oom oom;
    void *ptr = NULL;
    if (limit != 0 && before + bytes > limit) {
        atomic_fetch_sub(&held[id][device], bytes);
        refuse(a, id, device, size, NULL);
        return NULL; /* torch's allocator looks into its cache and says it */
    }
    ta_region_id outside = 0;
    status = ta_region_enter(a, id, &outside);
    if (status == TA_OK) {
        status = ta_alloc(a, size, device, stream, &ptr, &oom);
        ta_region_enter(a, outside, NULL);
    }
    if (status == TA_OK) return ptr;
    atomic_fetch_sub(&held[id][device], bytes);
    if (status == TA_OUT_OF_MEMORY)
        refuse(a, id, device, size, &oom);
    else
        fail(a, id, device, status);
    return NULL;
}

#define POOL(n)                                                                          \
    TA_API void *ta_mempool_alloc_##n(size_t size, int device, ta_stream stream);        \
    void *ta_mempool_alloc_##n(size_t size, int device, ta_stream stream)                \
    {                                                                                    \
        return alloc_in(n, size, device, stream);                                        \
    }
_Static_assert(TA_REGIONS == 64, "one for each region");
/* clang-format off */
POOL(1) POOL(2) POOL(3) POOL(4) POOL(5) POOL(6) POOL(7) POOL(8)
POOL(9) POOL(10) POOL(11) POOL(12) POOL(13) POOL(14) POOL(15) POOL(16)
POOL(17) POOL(18) POOL(19) POOL(20) POOL(21) POOL(22) POOL(23) POOL(24)
POOL(25) POOL(26) POOL(27) POOL(28) POOL(29) POOL(30) POOL(31) POOL(32)
POOL(33) POOL(34) POOL(35) POOL(36) POOL(37) POOL(38) POOL(39) POOL(40)
POOL(41) POOL(42) POOL(43) POOL(44) POOL(45) POOL(46) POOL(47) POOL(48)
POOL(49) POOL(50) POOL(51) POOL(52) POOL(53) POOL(54) POOL(55) POOL(56)
POOL(57) POOL(58) POOL(59) POOL(60) POOL(61) POOL(62) POOL(63) POOL(64)
    /* clang-format on */
