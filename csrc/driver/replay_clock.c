/* replay_clock.c - time counted in allocations, over another driver; see replay_clock.h.
 *
 * Called by replay. For one thread at a time: a replay has one.
 *
 * Invariant of a stream: what was recorded there at sequence s is passed when
 *     s <= passed[stream]  or  recorded at allocation n and n + pass_after <= now. */
#include "replay_clock.h"

#include <stdlib.h>

#define CREATE_US 0.48
#define RECORD_US 0.28
#define QUERY_US 0.18

/* Handles 0 to 2 mean default streams to CUDA; others begin here. */
#define FIRST_HANDLE ((uintptr_t)0x1000)
#define HANDLE_STEP ((uintptr_t)0x10)

struct ta_event_ {
    uint32_t stream;
    uint64_t sequence, at; /* sequence 0: never recorded, passed */
};

struct ta_clock {
    ta_driver driver;
    const ta_driver *under;
    uint64_t now, sequence, pass_after;
    uint32_t streams;
    uint64_t *passed;
    ta_clock_counts counts;
};

ta_stream ta_clock_stream(uint32_t number)
{
    if (number == 0) return NULL;
    return (ta_stream)(FIRST_HANDLE + HANDLE_STEP * number);
}

static uint32_t stream_number(const ta_clock *clock, ta_stream stream)
{
    uintptr_t handle = (uintptr_t)stream;
    if (handle < FIRST_HANDLE) return 0;
    uintptr_t number = (handle - FIRST_HANDLE) / HANDLE_STEP;
    return number < clock->streams ? (uint32_t)number : 0;
}

void ta_clock_advance(ta_clock *clock) { clock->now++; }

ta_clock_counts ta_clock_read(const ta_clock *clock) { return clock->counts; }

/* --- calls that go on ------------------------------------------------------------------ */

static const ta_driver *pass_on(void *self, bool maps)
{
    ta_clock *clock = self;
    clock->counts.calls++;
    clock->counts.map_calls += maps;
    return clock->under;
}

static ta_status device_count(void *self, int *count)
{
    const ta_driver *d = pass_on(self, false);
    return d->device_count(d->self, count);
}

static ta_status enter(void *self, int device, uintptr_t saved[2])
{
    const ta_driver *d = ((ta_clock *)self)->under;
    return d->enter(d->self, device, saved);
}

static void leave(void *self, int device, const uintptr_t saved[2])
{
    const ta_driver *d = ((ta_clock *)self)->under;
    d->leave(d->self, device, saved);
}

static ta_status mem_info(void *self, int device, uint64_t *free_bytes, uint64_t *total)
{
    const ta_driver *d = pass_on(self, false);
    return d->mem_info(d->self, device, free_bytes, total);
}

static ta_status has_vmm(void *self, int device, bool *yes)
{
    const ta_driver *d = pass_on(self, false);
    return d->has_vmm(d->self, device, yes);
}

static ta_status granularity(void *self, int device, ta_tier tier, uint64_t *bytes)
{
    const ta_driver *d = pass_on(self, false);
    return d->granularity(d->self, device, tier, bytes);
}

static ta_status can_access_peer(void *self, int device, int peer, bool *yes)
{
    const ta_driver *d = pass_on(self, false);
    return d->can_access_peer(d->self, device, peer, yes);
}

static ta_status reserve(void *self, uint64_t size, uint64_t align, uint64_t *addr)
{
    const ta_driver *d = pass_on(self, true);
    return d->reserve(d->self, size, align, addr);
}

static ta_status unreserve(void *self, uint64_t addr, uint64_t size)
{
    const ta_driver *d = pass_on(self, true);
    return d->unreserve(d->self, addr, size);
}

static ta_status create(void *self, int device, ta_tier tier, uint64_t size,
                        ta_handle *handle)
{
    const ta_driver *d = pass_on(self, true);
    return d->create(d->self, device, tier, size, handle);
}

static ta_status release(void *self, ta_handle handle, uint64_t size)
{
    const ta_driver *d = pass_on(self, true);
    return d->release(d->self, handle, size);
}

static ta_status map(void *self, uint64_t addr, uint64_t size, ta_handle handle)
{
    const ta_driver *d = pass_on(self, true);
    return d->map(d->self, addr, size, handle);
}

static ta_status unmap(void *self, uint64_t addr, uint64_t size)
{
    const ta_driver *d = pass_on(self, true);
    return d->unmap(d->self, addr, size);
}

static ta_status set_access(void *self, uint64_t addr, uint64_t size, const int *devices,
                            int count)
{
    const ta_driver *d = pass_on(self, true);
    return d->set_access(d->self, addr, size, devices, count);
}

static ta_status plain_alloc(void *self, int device, uint64_t size, uint64_t *addr)
{
    const ta_driver *d = pass_on(self, true);
    return d->plain_alloc(d->self, device, size, addr);
}

static ta_status plain_free(void *self, int device, uint64_t addr)
{
    const ta_driver *d = pass_on(self, true);
    return d->plain_free(d->self, device, addr);
}

/* --- time ---------------------------------------------------------------------------- */

static ta_clock *timed(void *self, double us)
{
    ta_clock *clock = self;
    clock->counts.calls++;
    clock->counts.event_us += us;
    return clock;
}

static ta_status event_create(void *self, int device, ta_event *event)
{
    (void)device;
    timed(self, CREATE_US);
    *event = calloc(1, sizeof **event);
    return *event == NULL ? TA_NO_HOST_MEMORY : TA_OK;
}

static ta_status event_destroy(void *self, ta_event event)
{
    timed(self, QUERY_US);
    free(event);
    return TA_OK;
}

static ta_status event_record(void *self, ta_event event, int device, ta_stream stream)
{
    (void)device;
    ta_clock *clock = timed(self, RECORD_US);
    event->stream = stream_number(clock, stream);
    event->sequence = ++clock->sequence;
    event->at = clock->now;
    return TA_OK;
}

static bool passed(const ta_clock *clock, ta_event event)
{
    return event->sequence <= clock->passed[event->stream] ||
           event->at + clock->pass_after <= clock->now;
}

static ta_status event_query(void *self, ta_event event)
{
    return passed(timed(self, QUERY_US), event) ? TA_OK : TA_NOT_READY;
}

static ta_status event_wait(void *self, ta_event event, double most_us)
{
    (void)most_us; /* there is no time: a wait is always long enough */
    ta_clock *clock = timed(self, QUERY_US);
    if (passed(clock, event)) return TA_OK;
    clock->counts.event_waits++;
    clock->passed[event->stream] = event->sequence;
    return TA_OK;
}

static ta_status is_capturing(void *self, int device, ta_stream stream, bool *yes)
{
    (void)device, (void)stream;
    timed(self, 0);
    *yes = false;
    return TA_OK;
}

static ta_status device_wait(void *self, int device)
{
    (void)device;
    ta_clock *clock = timed(self, QUERY_US);
    clock->counts.device_waits++;
    for (uint32_t i = 0; i < clock->streams; i++) clock->passed[i] = clock->sequence;
    return TA_OK;
}

ta_status ta_clock_create(const ta_driver *under, uint32_t streams, uint64_t pass_after,
                          ta_clock **out)
{
    if (streams == 0) streams = 1;
    ta_clock *clock = calloc(1, sizeof *clock);
    uint64_t *passed_to = calloc(streams, sizeof *passed_to);
    if (clock == NULL || passed_to == NULL) {
        free(clock);
        free(passed_to);
        return TA_NO_HOST_MEMORY;
    }
    clock->under = under;
    clock->streams = streams;
    clock->passed = passed_to;
    clock->pass_after = pass_after;
    clock->driver = (ta_driver){
        .self = clock,
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
        .plain_alloc = plain_alloc,
        .plain_free = plain_free,
        .event_create = event_create,
        .event_destroy = event_destroy,
        .event_record = event_record,
        .event_query = event_query,
        .event_wait = event_wait,
        .is_capturing = is_capturing,
        .device_wait = device_wait,
    };
    *out = clock;
    return TA_OK;
}

void ta_clock_destroy(ta_clock *clock)
{
    if (clock == NULL) return;
    free(clock->passed);
    free(clock);
}

const ta_driver *ta_clock_driver(ta_clock *clock) { return &clock->driver; }
