/* sim_graph.c - stream captures and graphs of the simulated machine.
 *
 * A capture begins on one stream and spreads to others by events recorded in it; each of
 * its streams has a lane, a queue of the oracle's that stands for its captured work. A
 * graph is the list of captured work in the order of capture: launching it does that
 * work's copies and fills again and touches its ranges again, as one item of the stream.
 * All but the public functions expect the machine's lock held. */
#include <stdlib.h>
#include <string.h>

#include "sim_internal.h"

_Thread_local int ta_sim_mode;

int ta_sim_thread_capture_mode(int mode)
{
    int old = ta_sim_mode;
    ta_sim_mode = mode;
    return old;
}

/* --- what breaks a capture ---------------------------------------------------------- */
void ta_sim_capture_break(ta_sim *sim, ta_sim_capture *capture, const char *why)
{
    if (!capture->broken)
        ta_sim_violate(sim, "capture %llu was broken: %s",
                       (unsigned long long)capture->id, why);
    capture->broken = true;
}

bool ta_sim_capture_allows(ta_sim *sim, const char *what)
{
    bool allowed = true;
    if (!sim->captures || ta_sim_mode == 2) return true;
    for (ta_sim_capture *c = sim->captures; c; c = c->next) {
        const bool mine = c->thread == &ta_sim_mode;
        if (c->mode == 2 || (!mine && (c->mode == 1 || ta_sim_mode == 1))) continue;
        ta_sim_capture_break(sim, c, what);
        allowed = false;
    }
    return allowed;
}

bool ta_sim_capture_legacy(ta_sim *sim, ta_sim_stream *stream, const char *what)
{
    if (!sim->captures || stream != sim->devices[stream->device].legacy) return true;
    bool allowed = true;
    for (uint32_t i = 0; i < sim->stream_count; i++) {
        const ta_sim_stream *other = sim->streams[i];
        if (!other->capture || !other->blocking || other->device != stream->device)
            continue;
        ta_sim_capture_break(sim, other->capture, what);
        allowed = false;
    }
    return allowed;
}

bool ta_sim_capture_device(ta_sim *sim, int device, const char *what)
{
    bool allowed = true;
    for (uint32_t i = 0; sim->captures && i < sim->stream_count; i++) {
        const ta_sim_stream *stream = sim->streams[i];
        if (!stream->capture || stream->device != device) continue;
        ta_sim_capture_break(sim, stream->capture, what);
        allowed = false;
    }
    return allowed;
}

/* --- capturing ---------------------------------------------------------------------- */
static void free_graph(ta_sim *sim, ta_sim_graph *graph)
{
    if (!graph) return;
    for (uint32_t i = 0; i < graph->count; i++)
        free((void *)(uintptr_t)graph->nodes[i].ranges);
    free(graph->nodes);
    free(graph->end.seen);
    ta_oracle_graph_destroy(sim->oracle, graph->judged);
    free(graph);
}

static bool join_capture(ta_sim *sim, ta_sim_capture *capture, ta_sim_stream *stream)
{
    const uint32_t lane = ta_oracle_open(sim->oracle);
    if (lane == TA_NO_QUEUE) return false;
    stream->capture = capture;
    stream->lane = lane;
    return true;
}

static void free_capture(ta_sim *sim, ta_sim_capture *capture)
{
    for (ta_sim_capture **link = &sim->captures; *link; link = &(*link)->next)
        if (*link == capture) {
            *link = capture->next;
            break;
        }
    for (uint32_t i = 0; i < sim->stream_count; i++) {
        ta_sim_stream *stream = sim->streams[i];
        if (stream->capture != capture) continue;
        /* Its work has become the graph's. */
        ta_oracle_seen_lane(sim->oracle, stream->lane);
        ta_oracle_close(sim->oracle, stream->lane);
        stream->capture = NULL;
    }
    ta_oracle_space_destroy(capture->space);
    free_graph(sim, capture->graph);
    free(capture);
}

static ta_status begin_capture(ta_sim *sim, int device, ta_stream handle, int mode)
{
    ta_sim_stream *stream = ta_sim_find_stream(sim, device, handle);
    if (!stream || stream->capture || stream == sim->devices[device].legacy)
        return TA_INVALID;
    ta_sim_capture *capture = calloc(1, sizeof *capture);
    if (!capture) return TA_NO_HOST_MEMORY;
    capture->graph = calloc(1, sizeof *capture->graph);
    capture->space = ta_oracle_space_create();
    if (capture->graph) capture->graph->judged = ta_oracle_graph_create(sim->oracle);
    capture->next = sim->captures;
    sim->captures = capture;
    if (!capture->graph || !capture->space || !capture->graph->judged ||
        !join_capture(sim, capture, stream)) {
        free_capture(sim, capture);
        return TA_NO_HOST_MEMORY;
    }
    capture->id = ++sim->capture_ids;
    capture->origin = stream;
    capture->mode = mode;
    capture->thread = &ta_sim_mode;
    /* The graph will be launched after what its stream holds by now. */
    ta_oracle_order(sim->oracle, stream->lane, stream->queue);
    return TA_OK;
}

ta_status ta_sim_capture_begin_mode(ta_sim *sim, int device, ta_stream stream, int mode)
{
    ta_status status = ta_sim_begin_other(sim, TA_SIM_LAUNCH_US);
    if (status != TA_OK) return status;
    status = ta_sim_use_device(sim, device);
    if (status == TA_OK) status = begin_capture(sim, device, stream, mode);
    ta_sim_end(sim);
    return status;
}

ta_status ta_sim_capture_begin(ta_sim *sim, int device, ta_stream stream)
{
    return ta_sim_capture_begin_mode(sim, device, stream, 0);
}

/* Every other stream of the capture has been waited for by its first. */
static bool all_joined(ta_sim *sim, const ta_sim_capture *capture)
{
    for (uint32_t i = 0; i < sim->stream_count; i++) {
        const ta_sim_stream *s = sim->streams[i];
        if (s->capture == capture && s != capture->origin &&
            !ta_oracle_joined(sim->oracle, capture->origin->lane, s->lane))
            return false;
    }
    return true;
}

ta_status ta_sim_capture_end(ta_sim *sim, int device, ta_stream handle,
                             ta_sim_graph **graph)
{
    *graph = NULL;
    ta_status status = ta_sim_begin_other(sim, TA_SIM_LAUNCH_US);
    if (status != TA_OK) return status;
    const ta_sim_stream *stream = ta_sim_find_stream(sim, device, handle);
    ta_sim_capture *capture = stream ? stream->capture : NULL;
    if (!capture || capture->origin != stream) {
        if (capture) ta_sim_capture_break(sim, capture, "ended on a stream it spread to");
        ta_sim_end(sim);
        return TA_INVALID;
    }
    if (!capture->broken && !all_joined(sim, capture))
        ta_sim_capture_break(sim, capture, "a stream it spread to was not joined");
    if (capture->broken)
        status = TA_DRIVER;
    else {
        *graph = capture->graph;
        capture->graph->next = sim->graphs;
        sim->graphs = capture->graph;
        capture->graph = NULL;
    }
    free_capture(sim, capture);
    ta_sim_end(sim);
    return status;
}

uint64_t ta_sim_capture_id(ta_sim *sim, int device, ta_stream handle)
{
    if (ta_sim_begin_other(sim, 0.1) != TA_OK) return 0;
    const ta_sim_stream *stream = ta_sim_find_stream(sim, device, handle);
    const uint64_t id = stream && stream->capture ? stream->capture->id : 0;
    ta_sim_end(sim);
    return id;
}

int ta_sim_capture_status(ta_sim *sim, int device, ta_stream handle)
{
    if (ta_sim_begin_other(sim, 0.1) != TA_OK) return 0;
    const ta_sim_stream *stream = ta_sim_find_stream(sim, device, handle);
    const int status = !stream || !stream->capture ? 0 : stream->capture->broken ? 2 : 1;
    ta_sim_end(sim);
    return status;
}

ta_status ta_sim_capture_node(ta_sim *sim, ta_sim_stream *stream, const ta_sim_node *node)
{
    ta_sim_capture *capture = stream->capture;
    ta_sim_graph *graph = capture->graph;
    if (capture->broken) return TA_DRIVER;
    if (graph->count == graph->capacity) {
        const uint32_t capacity = graph->capacity ? graph->capacity * 2 : 32;
        ta_sim_node *nodes = realloc(graph->nodes, capacity * sizeof *nodes);
        if (!nodes) return TA_NO_HOST_MEMORY;
        graph->nodes = nodes;
        graph->capacity = capacity;
    }
    ta_sim_range *ranges = NULL;
    if (node->count) {
        ranges = malloc((size_t)node->count * sizeof *ranges);
        if (!ranges) return TA_NO_HOST_MEMORY;
        memcpy(ranges, node->ranges, (size_t)node->count * sizeof *ranges);
    }
    graph->nodes[graph->count] = *node;
    graph->nodes[graph->count++].ranges = ranges;
    ta_oracle_work(sim->oracle, stream->lane);
    for (int i = 0; i < node->count; i++) {
        const ta_sim_range *r = &ranges[i];
        ta_oracle_access(sim->oracle, capture->space, stream->lane, r->addr, r->size,
                         r->write);
        ta_oracle_graph_range(graph->judged, r->addr, r->size, r->write);
    }
    return TA_OK;
}

ta_status ta_sim_capture_record(ta_sim *sim, ta_sim_stream *stream, ta_event event)
{
    if (stream->capture->broken) return TA_DRIVER;
    event->recorded = true;
    event->capture = stream->capture->id;
    ta_oracle_mark(sim->oracle, stream->lane, &event->clock);
    return TA_OK;
}

ta_status ta_sim_capture_wait(ta_sim *sim, ta_sim_stream *stream, ta_event event)
{
    ta_sim_capture *capture = NULL;
    for (ta_sim_capture *c = sim->captures; c && event->capture; c = c->next)
        if (c->id == event->capture) capture = c;
    if (!event->recorded) return TA_OK;
    if (stream->capture && stream->capture != capture) {
        ta_sim_capture_break(sim, stream->capture, "it waits for work outside of it");
        return TA_INVALID;
    }
    if (!capture) return TA_INVALID; /* that capture has ended */
    if (capture->broken) return TA_DRIVER;
    if (!stream->capture) {
        if (stream == sim->devices[stream->device].legacy) {
            ta_sim_capture_break(sim, capture, "the legacy stream waits for its work");
            return TA_DRIVER;
        }
        if (!join_capture(sim, capture, stream)) return TA_NO_HOST_MEMORY;
    }
    ta_oracle_after(sim->oracle, stream->lane, &event->clock);
    return TA_OK;
}

/* --- graphs ------------------------------------------------------------------------- */
void ta_sim_node_run(ta_sim *sim, const ta_sim_node *node)
{
    if (sim->config.no_backing) return;
    void *dst = (void *)(uintptr_t)node->dst;
    if (node->kind == TA_SIM_COPY && node->whole)
        ta_sim_copy_granules(sim, node->dst, node->src, node->size);
    else if (node->kind == TA_SIM_COPY)
        memmove(dst, (const void *)(uintptr_t)node->src, node->size);
    else if (node->kind == TA_SIM_FILL)
        memset(dst, node->value, node->size);
}

/* Its bytes may have gone since the capture: then nothing is done, and the oracle says
 * so. */
static void run_again(ta_sim *sim, const ta_sim_node *node)
{
    for (int i = 0; i < node->count; i++) {
        const ta_sim_range *r = &node->ranges[i];
        if (ta_sim_accessible(sim, node->device, r->addr, r->size)) continue;
        ta_sim_violate(sim, "a graph's launch touches %#llx + %llu, which is not mapped",
                       (unsigned long long)r->addr, (unsigned long long)r->size);
        return;
    }
    ta_sim_node_run(sim, node);
}

static ta_status launch(ta_sim *sim, ta_sim_graph *graph, ta_sim_stream *stream)
{
    if (stream->capture) { /* a graph inside a graph */
        for (uint32_t i = 0; i < graph->count; i++) {
            ta_status status = ta_sim_capture_node(sim, stream, &graph->nodes[i]);
            if (status != TA_OK) return status;
        }
        return TA_OK;
    }
    if (!ta_sim_capture_legacy(sim, stream, "a graph launched on the legacy stream"))
        return TA_DRIVER;
    double us = ta_sim_while_us(sim);
    for (uint32_t i = 0; i < graph->count; i++) us += graph->nodes[i].us;
    ta_sim_stream_touch(sim, stream, true);
    if (stream->end_us < graph->end_us) stream->end_us = graph->end_us;
    if (graph->end.count) ta_oracle_after(sim->oracle, stream->queue, &graph->end);
    ta_sim_stream_push(sim, stream, us);
    graph->end_us = stream->end_us;
    ta_oracle_mark(sim->oracle, stream->queue, &graph->end);
    ta_oracle_graph_launch(sim->oracle, graph->judged, stream->queue);
    for (uint32_t i = 0; i < graph->count; i++) run_again(sim, &graph->nodes[i]);
    return TA_OK;
}

ta_status ta_sim_graph_launch(ta_sim *sim, ta_sim_graph *graph, int device,
                              ta_stream handle)
{
    ta_status status = ta_sim_begin_other(sim, TA_SIM_LAUNCH_US);
    if (status != TA_OK) return status;
    ta_sim_stream *stream = ta_sim_find_stream(sim, device, handle);
    status = stream ? launch(sim, graph, stream) : TA_INVALID;
    ta_sim_end(sim);
    return status;
}

void ta_sim_graph_destroy(ta_sim *sim, ta_sim_graph *graph)
{
    if (!graph || ta_sim_begin_other(sim, TA_SIM_LAUNCH_US) != TA_OK) return;
    for (ta_sim_graph **link = &sim->graphs; *link; link = &(*link)->next)
        if (*link == graph) {
            *link = graph->next;
            free_graph(sim, graph);
            break;
        }
    ta_sim_end(sim);
}

void ta_sim_graphs_destroy(ta_sim *sim)
{
    while (sim->captures) free_capture(sim, sim->captures);
    while (sim->graphs) {
        ta_sim_graph *next = sim->graphs->next;
        free_graph(sim, sim->graphs);
        sim->graphs = next;
    }
}
