/* nulldriver.c - the driver that does nothing; see nulldriver.h.
 *
 * Called by replay for its speed figure, and by the benchmarks of the core. Addresses only
 * ever rise, so none is handed out twice. The counters are atomics without order: threads
 * may share it, and one thread pays next to nothing for them. */
#include "nulldriver.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Microseconds of a call on one handle, and for each MiB of it. Linear through what was
 * measured at 2 MiB and 2 GiB; the driver charges per handle, hardly per byte. */
#define RESERVE_US 13.0
#define CREATE_US 7.6
#define CREATE_MIB_US 0.049
#define PIN_MIB_US 215.0 /* of the host's */
#define COPY_US 5.0
#define RELEASE_US 9.0
#define RELEASE_MIB_US 0.243
#define MAP_US 0.9
#define UNMAP_US 14.0
#define UNMAP_MIB_US 0.010
#define ACCESS_US 22.0
#define ACCESS_MIB_US 0.026
#define PLAIN_ALLOC_US 137.0
#define PLAIN_FREE_US 415.0

#define FIRST_ADDRESS ((uint64_t)1 << 44)
#define GRANULARITY ((uint64_t)2 << 20)

struct ta_null {
    ta_driver driver;
    ta_null_config config;
    _Atomic uint64_t next_address, next_handle, nanoseconds;
    _Atomic uint64_t used[TA_MAX_DEVICES]; /* bytes created and not released */
};

/* A handle carries its device, or the host, so that release finds it:
 * handle = count * (64 + 1) + owner. */
#define HANDLE_OWNERS ((uint64_t)TA_MAX_DEVICES + 1)
#define HOST ((uint64_t)TA_MAX_DEVICES)

static void charge(ta_null *null, double us)
{
    atomic_fetch_add_explicit(&null->nanoseconds, (uint64_t)(us * 1000.0),
                              memory_order_relaxed);
}

static double mib(uint64_t bytes) { return (double)bytes / (1 << 20); }

static double handles(const ta_null *null, uint64_t size)
{
    return size <= null->config.page_bytes
               ? 1.0
               : (double)size / (double)null->config.page_bytes;
}

static ta_status device_count(void *self, int *count)
{
    *count = ((ta_null *)self)->config.devices;
    return TA_OK;
}

static ta_status enter(void *self, int device, uintptr_t saved[2])
{
    (void)saved;
    return device < ((ta_null *)self)->config.devices ? TA_OK : TA_INVALID;
}

static void leave(void *self, int device, const uintptr_t saved[2])
{
    (void)self, (void)device, (void)saved;
}

static ta_status mem_info(void *self, int device, uint64_t *free_bytes, uint64_t *total)
{
    ta_null *null = self;
    *total = null->config.memory;
    *free_bytes = *total - atomic_load(&null->used[device]);
    return TA_OK;
}

static ta_status has_vmm(void *self, int device, bool *yes)
{
    (void)self, (void)device;
    *yes = true;
    return TA_OK;
}

static ta_status granularity(void *self, int device, ta_tier tier, uint64_t *bytes)
{
    (void)self, (void)device, (void)tier;
    *bytes = GRANULARITY;
    return TA_OK;
}

static ta_status can_access_peer(void *self, int device, int peer, bool *yes)
{
    (void)self, (void)device, (void)peer;
    *yes = true;
    return TA_OK;
}

static ta_status reserve(void *self, uint64_t size, uint64_t align, uint64_t *addr)
{
    ta_null *null = self;
    if (align < GRANULARITY) align = GRANULARITY;
    uint64_t base = atomic_fetch_add(&null->next_address, size + align);
    *addr = (base + align - 1) & ~(align - 1);
    charge(null, RESERVE_US);
    return TA_OK;
}

static ta_status unreserve(void *self, uint64_t addr, uint64_t size)
{
    (void)addr, (void)size;
    charge(self, RESERVE_US);
    return TA_OK;
}

static ta_status take(ta_null *null, int device, uint64_t size)
{
    uint64_t before = atomic_fetch_add(&null->used[device], size);
    if (before + size <= null->config.memory) return TA_OK;
    atomic_fetch_sub(&null->used[device], size);
    return TA_OUT_OF_MEMORY;
}

static ta_status create(void *self, int device, ta_tier tier, uint64_t size,
                        ta_handle *handle)
{
    ta_null *null = self;
    uint64_t count = atomic_fetch_add(&null->next_handle, 1) + 1;
    if (tier == TA_TIER_HOST) {
        charge(null, CREATE_US + PIN_MIB_US * mib(size));
        *handle = count * HANDLE_OWNERS + HOST;
        return TA_OK;
    }
    charge(null, CREATE_US + CREATE_MIB_US * mib(size));
    if (take(null, device, size) != TA_OK) return TA_OUT_OF_MEMORY;
    *handle = count * HANDLE_OWNERS + (uint64_t)device;
    return TA_OK;
}

static ta_status release(void *self, ta_handle handle, uint64_t size)
{
    ta_null *null = self;
    const uint64_t owner = handle % HANDLE_OWNERS;
    if (owner != HOST) atomic_fetch_sub(&null->used[owner], size);
    charge(null, RELEASE_US + RELEASE_MIB_US * mib(size));
    return TA_OK;
}

static ta_status map(void *self, uint64_t addr, uint64_t size, ta_handle handle)
{
    (void)addr, (void)size, (void)handle;
    charge(self, MAP_US);
    return TA_OK;
}

static ta_status unmap(void *self, uint64_t addr, uint64_t size)
{
    (void)addr;
    charge(self, UNMAP_US * handles(self, size) + UNMAP_MIB_US * mib(size));
    return TA_OK;
}

static ta_status set_access(void *self, uint64_t addr, uint64_t size, const int *devices,
                            int count)
{
    (void)addr, (void)devices, (void)count;
    charge(self, ACCESS_US * handles(self, size) + ACCESS_MIB_US * mib(size));
    return TA_OK;
}

static ta_status host_memory(void *self, uint64_t *available)
{
    (void)self;
    *available = (uint64_t)1 << 40;
    return TA_OK;
}

/* Any two numbers that are no default stream's. */
static ta_status copy_stream(void *self, int device, int which, ta_stream *stream)
{
    (void)self, (void)device;
    if (which < 0 || which > 1) return TA_INVALID;
    *stream = (ta_stream)(uintptr_t)(0x1000 + which);
    return TA_OK;
}

static ta_status copy(void *self, int device, ta_stream stream, uint64_t to,
                      uint64_t from, uint64_t bytes)
{
    (void)device, (void)stream, (void)to, (void)from, (void)bytes;
    charge(self, COPY_US);
    return TA_OK;
}

/* Sizes of plain allocations are not kept, so their bytes count as used to the end. */
static ta_status plain_alloc(void *self, int device, uint64_t size, uint64_t *addr)
{
    ta_null *null = self;
    charge(null, PLAIN_ALLOC_US);
    if (take(null, device, size) != TA_OK) return TA_OUT_OF_MEMORY;
    *addr =
        atomic_fetch_add(&null->next_address, (size + GRANULARITY) & ~(GRANULARITY - 1));
    return TA_OK;
}

static ta_status plain_free(void *self, int device, uint64_t addr)
{
    (void)device, (void)addr;
    charge(self, PLAIN_FREE_US);
    return TA_OK;
}

/* Events have no state: any address other than NULL stands for all of them. */
static ta_status event_create(void *self, int device, ta_event *event)
{
    (void)device;
    *event = self;
    return TA_OK;
}

static ta_status event_nothing(void *self, ta_event event)
{
    (void)self, (void)event;
    return TA_OK;
}

static ta_status event_wait(void *self, ta_event event, double most_us)
{
    (void)self, (void)event, (void)most_us;
    return TA_OK;
}

static ta_status event_record(void *self, ta_event event, int device, ta_stream stream)
{
    (void)self, (void)event, (void)device, (void)stream;
    return TA_OK;
}

static ta_status is_capturing(void *self, int device, ta_stream stream, bool *yes)
{
    (void)self, (void)device, (void)stream;
    *yes = false;
    return TA_OK;
}

static ta_status device_wait(void *self, int device)
{
    (void)self, (void)device;
    return TA_OK;
}

static ta_status fill(void *self, int device, uint64_t addr, int value, uint64_t bytes)
{
    (void)device, (void)addr, (void)value, (void)bytes;
    charge(self, COPY_US);
    return TA_OK;
}

/* There are no bytes. */
static ta_status read_bytes(void *self, int device, void *to, uint64_t from,
                            uint64_t bytes)
{
    (void)self, (void)device, (void)to, (void)from, (void)bytes;
    return TA_UNSUPPORTED;
}

ta_status ta_null_create(const ta_null_config *config, ta_null **out)
{
    if (config->devices < 1 || config->devices > TA_MAX_DEVICES) return TA_INVALID;
    ta_null *null = calloc(1, sizeof *null);
    if (null == NULL) return TA_NO_HOST_MEMORY;
    null->config = *config;
    if (null->config.page_bytes == 0) null->config.page_bytes = TA_DEFAULT_PAGE;
    null->next_address = FIRST_ADDRESS;
    null->driver = (ta_driver){
        .self = null,
        .device_count = device_count,
        .enter = enter,
        .leave = leave,
        .mem_info = mem_info,
        .has_vmm = has_vmm,
        .granularity = granularity,
        .can_access_peer = can_access_peer,
        .reserve = reserve,
        .unreserve = unreserve,
        .create = create,
        .release = release,
        .map = map,
        .unmap = unmap,
        .set_access = set_access,
        .host_memory = host_memory,
        .copy_stream = copy_stream,
        .copy = copy,
        .fill = fill,
        .read = read_bytes,
        .plain_alloc = plain_alloc,
        .plain_free = plain_free,
        .event_create = event_create,
        .event_destroy = event_nothing,
        .event_record = event_record,
        .event_query = event_nothing,
        .event_wait = event_wait,
        .is_capturing = is_capturing,
        .device_wait = device_wait,
    };
    *out = null;
    return TA_OK;
}

void ta_null_destroy(ta_null *null) { free(null); }

const ta_driver *ta_null_driver(ta_null *null) { return &null->driver; }

double ta_null_driver_us(const ta_null *null)
{
    return (double)atomic_load(&null->nanoseconds) / 1000.0;
}
