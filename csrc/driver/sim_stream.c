/* sim_stream.c - streams, events and work of the simulated machine.
 *
 * Work is not run: each stream has the time at which its last work ends, and the time
 * that new work takes is drawn when it is queued, so an event knows at once when it will
 * pass. What comes before what is told to the oracle alongside.
 *
 * Implicit order, as in CUDA: an operation on a device's legacy default stream comes
 * after everything in its blocking streams, and an operation on a blocking stream after
 * everything in the legacy stream. ta_sim_stream.joined remembers how many operations of
 * the other side were already waited for, so that nothing is done where nothing is new.
 * */
#include <stdatomic.h>
#include <stdlib.h>

#include "sim_internal.h"

/* --- finding ------------------------------------------------------------------------ */
/* A handle is (generation << 20 | index + 1) << 8: never one of CUDA's 0, 1, 2, and not
 * used again for a later stream. */
static ta_stream stream_handle(const ta_sim_stream *stream)
{
    uint64_t value = ((uint64_t)stream->generation << 20 | (stream->index + 1)) << 8;
    return (ta_stream)(uintptr_t)value;
}

static uint32_t thread_number(void)
{
    static atomic_uint threads;
    static _Thread_local uint32_t number;
    if (number == 0) number = atomic_fetch_add(&threads, 1) + 1;
    return number - 1;
}

static ta_sim_stream *new_stream(ta_sim *sim, int device, bool blocking)
{
    uint32_t i = 0;
    while (
        i < sim->stream_count &&
        (sim->streams[i]->live || !ta_oracle_idle(sim->oracle, sim->streams[i]->queue)))
        i++;
    if (i == sim->stream_count) {
        if (i >= (1u << 20) - 1) return NULL;
        if ((i & (i - 1)) == 0) { /* a power of two: full */
            ta_sim_stream **streams =
                realloc(sim->streams, (i ? i * 2 : 1) * sizeof(void *));
            if (!streams) return NULL;
            sim->streams = streams;
        }
        if (!(sim->streams[i] = calloc(1, sizeof **sim->streams))) return NULL;
        sim->streams[i]->queue = TA_NO_QUEUE;
        sim->stream_count++;
    }
    ta_sim_stream *stream = sim->streams[i];
    uint32_t queue = ta_oracle_open(sim->oracle);
    if (queue == TA_NO_QUEUE) return NULL;
    *stream = (ta_sim_stream){.device = device,
                              .live = true,
                              .blocking = blocking,
                              .index = i,
                              .generation = stream->generation + 1,
                              .queue = queue};
    return stream;
}

static ta_sim_stream *thread_stream(ta_sim *sim, int device)
{
    ta_sim_device *d = &sim->devices[device];
    const uint32_t number = thread_number();
    if (number >= d->thread_count) {
        uint32_t count = number + 8;
        ta_sim_stream **grown = realloc(d->thread, count * sizeof(void *));
        if (!grown) return NULL;
        for (uint32_t i = d->thread_count; i < count; i++) grown[i] = NULL;
        d->thread = grown;
        d->thread_count = count;
    }
    if (!d->thread[number]) d->thread[number] = new_stream(sim, device, true);
    return d->thread[number];
}

ta_sim_stream *ta_sim_find_stream(ta_sim *sim, int device, ta_stream stream)
{
    const uint64_t value = (uint64_t)(uintptr_t)stream;
    if (device < 0 || device >= sim->config.devices) return NULL;
    if (value <= 1) {
        ta_sim_device *d = &sim->devices[device];
        if (!d->legacy) d->legacy = new_stream(sim, device, true);
        return d->legacy;
    }
    if (value == 2) return thread_stream(sim, device);
    const uint64_t index = (value >> 8 & ((1u << 20) - 1)) - 1;
    if (value & 0xff || index >= sim->stream_count) return NULL;
    ta_sim_stream *found = sim->streams[index];
    return found->live && found->device == device && stream_handle(found) == stream
               ? found
               : NULL;
}

/* --- queued work -------------------------------------------------------------------- */
double ta_sim_while_us(ta_sim *sim)
{
    const double kind = ta_sim_random(sim), x = ta_sim_random(sim);
    if (kind < 0.9) return 2 + 20 * x;
    if (kind < 0.99) return 20 + 300 * x;
    return 300 + 5000 * x;
}

static void after_stream(ta_sim *sim, ta_sim_stream *later, const ta_sim_stream *earlier)
{
    if (later->end_us < earlier->end_us) later->end_us = earlier->end_us;
    ta_oracle_order(sim->oracle, later->queue, earlier->queue);
}

void ta_sim_stream_touch(ta_sim *sim, ta_sim_stream *stream, bool adds)
{
    if (!stream->blocking) return;
    ta_sim_device *d = &sim->devices[stream->device];
    if (stream == d->legacy) {
        if (stream->joined != d->blocking_ops)
            for (uint32_t i = 0; i < sim->stream_count; i++) {
                ta_sim_stream *other = sim->streams[i];
                if (other->blocking && other->device == stream->device && other != stream)
                    after_stream(sim, stream, other);
            }
        stream->joined = d->blocking_ops;
        d->legacy_ops += adds;
    } else {
        if (stream->joined != d->legacy_ops) after_stream(sim, stream, d->legacy);
        stream->joined = d->legacy_ops;
        d->blocking_ops += adds;
    }
}

void ta_sim_stream_push(ta_sim *sim, ta_sim_stream *stream, double us)
{
    if (stream->end_us < sim->now_us) stream->end_us = sim->now_us;
    stream->end_us += us;
    ta_oracle_work(sim->oracle, stream->queue);
}

static bool outside(ta_sim *sim, uint64_t addr)
{
    return !ta_sim_find_reservation(sim, addr); /* host memory of the program */
}

static void check_range(ta_sim *sim, int device, uint64_t addr, uint64_t size)
{
    if (!ta_sim_accessible(sim, device, addr, size))
        ta_sim_violate(
            sim,
            "work on device %d touches %#llx + %llu, which is not mapped or has "
            "no access set there",
            device, (unsigned long long)addr, (unsigned long long)size);
}

/* Into the graph, or into the stream's queue. */
static ta_status queue_node(ta_sim *sim, ta_stream handle, const ta_sim_node *node)
{
    ta_status status = ta_sim_use_device(sim, node->device);
    if (status != TA_OK) return status;
    ta_sim_stream *stream = ta_sim_find_stream(sim, node->device, handle);
    if (!stream) return TA_INVALID;
    for (int i = 0; i < node->count; i++)
        check_range(sim, node->device, node->ranges[i].addr, node->ranges[i].size);
    if (stream->capture) return ta_sim_capture_node(sim, stream, node);
    if (!ta_sim_capture_legacy(sim, stream, "work on the legacy stream"))
        return TA_DRIVER;
    ta_sim_stream_touch(sim, stream, true);
    ta_sim_stream_push(sim, stream, node->us);
    for (int i = 0; i < node->count; i++) {
        const ta_sim_range *r = &node->ranges[i];
        ta_oracle_access(sim->oracle, NULL, stream->queue, r->addr, r->size, r->write);
    }
    ta_sim_node_run(sim, node);
    return TA_OK;
}

ta_status ta_sim_launch(ta_sim *sim, int device, ta_stream stream,
                        const ta_sim_range *ranges, int count, double us)
{
    ta_status status = ta_sim_begin_other(sim, TA_SIM_LAUNCH_US);
    if (status != TA_OK) return status;
    const ta_sim_node node = {.kind = TA_SIM_LAUNCH,
                              .device = device,
                              .us = us < 0 ? ta_sim_while_us(sim) : us,
                              .ranges = ranges,
                              .count = count};
    status = queue_node(sim, stream, &node);
    ta_sim_end(sim);
    return status;
}

/* A copy or a fill. Addresses outside every reserved range are the program's own memory;
 * inside, what cannot be touched is refused, since the bytes move at once. */
static ta_status queue_bytes(ta_sim *sim, ta_stream stream, ta_sim_node node)
{
    ta_sim_range ranges[2];
    if (node.size == 0) return TA_OK;
    if (!outside(sim, node.dst))
        ranges[node.count++] = (ta_sim_range){node.dst, node.size, true};
    if (node.kind == TA_SIM_COPY && !outside(sim, node.src))
        ranges[node.count++] = (ta_sim_range){node.src, node.size, false};
    node.ranges = ranges;
    for (int i = 0; i < node.count; i++)
        if (!ta_sim_accessible(sim, node.device, ranges[i].addr, node.size)) {
            check_range(sim, node.device, ranges[i].addr, node.size);
            return TA_INVALID;
        }
    if (node.us <= 0)
        node.us = ta_sim_while_us(sim) + (double)node.size / 50e3; /* 50 GB/s */
    return queue_node(sim, stream, &node);
}

ta_status ta_sim_copy(ta_sim *sim, int device, ta_stream stream, uint64_t dst,
                      uint64_t src, uint64_t size)
{
    ta_status status = ta_sim_begin_other(sim, TA_SIM_LAUNCH_US);
    if (status != TA_OK) return status;
    const ta_sim_node node = {
        .kind = TA_SIM_COPY, .device = device, .dst = dst, .src = src, .size = size};
    status = queue_bytes(sim, stream, node);
    ta_sim_end(sim);
    return status;
}

ta_status ta_sim_fill(ta_sim *sim, int device, ta_stream stream, uint64_t dst, int value,
                      uint64_t size)
{
    ta_status status = ta_sim_begin_other(sim, TA_SIM_LAUNCH_US);
    if (status != TA_OK) return status;
    const ta_sim_node node = {
        .kind = TA_SIM_FILL, .device = device, .dst = dst, .size = size, .value = value};
    status = queue_bytes(sim, stream, node);
    ta_sim_end(sim);
    return status;
}

/* --- streams ------------------------------------------------------------------------ */
ta_status ta_sim_stream_create(ta_sim *sim, int device, bool blocking, ta_stream *stream)
{
    ta_status status = ta_sim_begin_other(sim, TA_SIM_LAUNCH_US);
    if (status != TA_OK) return status;
    status = ta_sim_use_device(sim, device);
    if (status == TA_OK) {
        ta_sim_stream *made = new_stream(sim, device, blocking);
        if (made)
            *stream = stream_handle(made);
        else
            status = TA_NO_HOST_MEMORY;
    }
    ta_sim_end(sim);
    return status;
}

/* The stream of whatever device. */
static ta_sim_stream *find_anywhere(ta_sim *sim, ta_stream stream)
{
    if ((uintptr_t)stream <= 2) return NULL;
    for (int device = 0; device < sim->config.devices; device++) {
        ta_sim_stream *found = ta_sim_find_stream(sim, device, stream);
        if (found) return found;
    }
    return NULL;
}

ta_status ta_sim_stream_destroy(ta_sim *sim, ta_stream handle)
{
    ta_status status = ta_sim_begin_other(sim, TA_SIM_LAUNCH_US);
    if (status != TA_OK) return status;
    ta_sim_stream *stream = find_anywhere(sim, handle);
    if (!stream)
        status = TA_INVALID;
    else {
        if (stream->capture)
            ta_sim_capture_break(sim, stream->capture,
                                 "one of its streams was destroyed");
        stream->live = false;
        ta_oracle_close(sim->oracle, stream->queue);
    }
    ta_sim_end(sim);
    return status;
}

/* Waits, or asks, for all that is in the stream. */
static ta_status reach_end(ta_sim *sim, int device, ta_stream handle, bool wait,
                           const char *what)
{
    ta_status status = ta_sim_begin_other(sim, 1);
    if (status != TA_OK) return status;
    ta_sim_stream *stream = ta_sim_find_stream(sim, device, handle);
    if (!stream)
        status = TA_INVALID;
    else if (stream->capture) {
        ta_sim_capture_break(sim, stream->capture, what);
        status = TA_DRIVER;
    } else if (!ta_sim_capture_allows(sim, what) ||
               !ta_sim_capture_legacy(sim, stream, what))
        status = TA_DRIVER;
    else {
        if (wait && sim->now_us < stream->end_us) sim->now_us = stream->end_us;
        if (sim->now_us < stream->end_us)
            status = TA_NOT_READY;
        else
            ta_oracle_seen_queue(sim->oracle, stream->queue);
    }
    ta_sim_end(sim);
    return status;
}

ta_status ta_sim_stream_wait(ta_sim *sim, int device, ta_stream stream)
{
    return reach_end(sim, device, stream, true, "a wait for a stream");
}

ta_status ta_sim_stream_query(ta_sim *sim, int device, ta_stream stream)
{
    return reach_end(sim, device, stream, false, "a query of a stream");
}

ta_status ta_sim_stream_wait_event(ta_sim *sim, int device, ta_stream handle,
                                   ta_event event)
{
    ta_status status = ta_sim_begin_other(sim, 0.5);
    if (status != TA_OK) return status;
    ta_sim_stream *stream = ta_sim_find_stream(sim, device, handle);
    if (!stream || !ta_sim_event_valid(sim, event))
        status = TA_INVALID;
    else if (stream->capture || event->capture)
        status = ta_sim_capture_wait(sim, stream, event);
    else if (event->recorded) {
        ta_sim_stream_touch(sim, stream, true);
        if (stream->end_us < event->at_us) stream->end_us = event->at_us;
        ta_oracle_after(sim->oracle, stream->queue, &event->clock);
    }
    ta_sim_end(sim);
    return status;
}

/* --- the allocator's own copies ----------------------------------------------------- */
static ta_status sim_copy_stream(void *self, int device, int which, ta_stream *stream)
{
    ta_sim *sim = self;
    double us = ta_sim_cost_us(TA_SIM_CALL_copy_stream, TA_TIER_HOST, 0, 1);
    ta_status status = ta_sim_begin(sim, TA_SIM_CALL_copy_stream, us);
    if (status != TA_OK) return status;
    status = which < 0 || which > 1 ? TA_INVALID : ta_sim_use_device(sim, device);
    if (status == TA_OK && !sim->devices[device].copy[which]) {
        ta_sim_stream *made = new_stream(sim, device, false);
        if (made)
            sim->devices[device].copy[which] = stream_handle(made);
        else
            status = TA_NO_HOST_MEMORY;
    }
    if (status == TA_OK) *stream = sim->devices[device].copy[which];
    ta_sim_end(sim);
    return status;
}

static ta_status sim_copy(void *self, int device, ta_stream stream, uint64_t to,
                          uint64_t from, uint64_t bytes)
{
    ta_sim *sim = self;
    double us = ta_sim_cost_us(TA_SIM_CALL_copy, TA_TIER_HOST, bytes, 1);
    ta_status status = ta_sim_begin(sim, TA_SIM_CALL_copy, us);
    if (status != TA_OK) return status;
    if (outside(sim, to) || outside(sim, from)) {
        ta_sim_violate(sim, "a copy of the allocator's touches memory outside of it");
        status = TA_INVALID;
    } else {
        const double link = sim->config.link_gbs;
        const ta_sim_node node = {.kind = TA_SIM_COPY,
                                  .device = device,
                                  .us = link > 0 ? (double)bytes / (link * 1e3) : 0,
                                  .dst = to,
                                  .src = from,
                                  .size = bytes,
                                  .whole = (to | from | bytes) % TA_SIM_GRANULARITY == 0};
        status = queue_bytes(sim, stream, node);
    }
    ta_sim_end(sim);
    return status;
}

/* Bytes that the allocator sets or reads itself, and waits for. */
static ta_status bytes_done(ta_sim *sim, int device, ta_sim_node node)
{
    const uint64_t ours = node.kind == TA_SIM_FILL ? node.dst : node.src;
    if (outside(sim, ours)) {
        ta_sim_violate(sim, "the allocator touches bytes that are not mapped");
        return TA_INVALID;
    }
    ta_sim_stream *stream = NULL;
    ta_status status = ta_sim_use_device(sim, device);
    if (status == TA_OK && !sim->devices[device].copy[1]) {
        stream = new_stream(sim, device, false);
        if (!stream) return TA_NO_HOST_MEMORY;
        sim->devices[device].copy[1] = stream_handle(stream);
    }
    if (status == TA_OK) status = queue_bytes(sim, sim->devices[device].copy[1], node);
    if (status != TA_OK) return status;
    stream = ta_sim_find_stream(sim, device, sim->devices[device].copy[1]);
    if (sim->now_us < stream->end_us) sim->now_us = stream->end_us;
    ta_oracle_seen_queue(sim->oracle, stream->queue);
    return TA_OK;
}

static ta_status sim_fill(void *self, int device, uint64_t addr, int value,
                          uint64_t bytes)
{
    ta_sim *sim = self;
    double us = ta_sim_cost_us(TA_SIM_CALL_fill, TA_TIER_DEVICE, bytes, 1);
    ta_status status = ta_sim_begin(sim, TA_SIM_CALL_fill, us);
    if (status != TA_OK) return status;
    const ta_sim_node node = {.kind = TA_SIM_FILL,
                              .device = device,
                              .dst = addr,
                              .size = bytes,
                              .value = value};
    status = bytes_done(sim, device, node);
    ta_sim_end(sim);
    return status;
}

static ta_status sim_read(void *self, int device, void *to, uint64_t from, uint64_t bytes)
{
    ta_sim *sim = self;
    double us = ta_sim_cost_us(TA_SIM_CALL_read, TA_TIER_DEVICE, bytes, 1);
    ta_status status = ta_sim_begin(sim, TA_SIM_CALL_read, us);
    if (status != TA_OK) return status;
    const ta_sim_node node = {.kind = TA_SIM_COPY,
                              .device = device,
                              .dst = (uint64_t)(uintptr_t)to,
                              .src = from,
                              .size = bytes};
    status = bytes_done(sim, device, node);
    ta_sim_end(sim);
    return status;
}

static ta_status sim_device_wait(void *self, int device)
{
    ta_sim *sim = self;
    double us = ta_sim_cost_us(TA_SIM_CALL_device_wait, TA_TIER_DEVICE, 0, 1);
    ta_status status = ta_sim_begin(sim, TA_SIM_CALL_device_wait, us);
    if (status != TA_OK) return status;
    status = ta_sim_use_device(sim, device);
    if (status == TA_OK && !ta_sim_capture_device(sim, device, "a wait for the device"))
        status = TA_DRIVER;
    if (status == TA_OK) ta_sim_drain(sim, device);
    ta_sim_end(sim);
    return status;
}

void ta_sim_drain(ta_sim *sim, int device)
{
    for (uint32_t i = 0; i < sim->stream_count; i++) {
        const ta_sim_stream *stream = sim->streams[i];
        if (stream->device != device) continue;
        if (sim->now_us < stream->end_us) sim->now_us = stream->end_us;
        ta_oracle_seen_queue(sim->oracle, stream->queue);
    }
}

ta_status ta_sim_settle(ta_sim *sim, int device)
{
    ta_status status = ta_sim_begin_other(sim, 0);
    if (status != TA_OK) return status;
    status = ta_sim_use_device(sim, device);
    if (status == TA_OK) ta_sim_drain(sim, device);
    ta_sim_end(sim);
    return status;
}

static ta_status sim_is_capturing(void *self, int device, ta_stream handle, bool *yes)
{
    ta_sim *sim = self;
    double us = ta_sim_cost_us(TA_SIM_CALL_is_capturing, TA_TIER_DEVICE, 0, 1);
    ta_status status = ta_sim_begin(sim, TA_SIM_CALL_is_capturing, us);
    if (status != TA_OK) return status;
    const ta_sim_stream *stream = ta_sim_find_stream(sim, device, handle);
    if (!stream)
        status = TA_INVALID;
    else
        *yes = stream->capture != NULL;
    ta_sim_end(sim);
    return status;
}

void ta_sim_stream_table(ta_driver *driver)
{
    driver->is_capturing = sim_is_capturing;
    driver->device_wait = sim_device_wait;
    driver->copy_stream = sim_copy_stream;
    driver->copy = sim_copy;
    driver->fill = sim_fill;
    driver->read = sim_read;
    ta_sim_event_table(driver);
}

void ta_sim_stream_finish(ta_sim *sim)
{
    ta_sim_graphs_destroy(sim);
    ta_sim_events_destroy(sim);
    for (uint32_t i = 0; i < sim->stream_count; i++) free(sim->streams[i]);
    free(sim->streams);
    for (int i = 0; sim->devices && i < sim->config.devices; i++)
        free(sim->devices[i].thread);
}
