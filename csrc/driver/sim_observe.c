/* sim_observe.c - an allocator's events, as the oracle wants them: streams become queues.
 *
 * ta_oracle_observe is called by the allocator with a lock of its own held; it takes the
 * machine's lock after that one and calls nothing back. */
#include "sim_internal.h"

static void observe(ta_sim *sim, const ta_event_info *event)
{
    ta_oracle *oracle = sim->oracle;
    const ta_sim_stream *stream;
    switch (event->kind) {
    case TA_EVENT_ALLOC: {
        stream = ta_sim_find_stream(sim, event->device, event->stream);
        const uint64_t size = (event->size + TA_GRANULE - 1) / TA_GRANULE * TA_GRANULE;
        if (!stream || size == 0) return;
        const ta_sim_capture *capture = stream->capture;
        ta_oracle_block_alloc(oracle, event->addr, size, stream->queue,
                              capture ? stream->lane : TA_NO_QUEUE,
                              capture ? capture->graph->judged : NULL, event->pooled);
        return;
    }
    case TA_EVENT_RECORD_STREAM:
        stream = ta_sim_find_stream(sim, event->device, event->stream);
        if (!stream) return;
        ta_oracle_block_record(oracle, event->addr, stream->queue);
        if (stream->capture) ta_oracle_block_record(oracle, event->addr, stream->lane);
        return;
    case TA_EVENT_FREE:
        ta_oracle_block_free(oracle, event->addr);
        return;
    case TA_EVENT_FREE_DONE:
        ta_oracle_block_done(oracle, event->addr);
        return;
    case TA_EVENT_MAP:
    case TA_EVENT_UNMAP: /* the driver's calls tell */
    case TA_EVENT_OOM:
    case TA_EVENT_MARK:
        return;
    }
}

void ta_oracle_observe(void *context, const ta_event_info *event)
{
    ta_sim *sim = context;
    if (ta_sim_begin_other(sim, 0) != TA_OK) return;
    observe(sim, event);
    ta_sim_end(sim);
}

void ta_oracle_end(ta_sim *sim)
{
    if (ta_sim_begin_other(sim, 0) != TA_OK) return;
    ta_oracle_blocks_end(sim->oracle);
    ta_sim_end(sim);
}

void ta_oracle_allow_moves(ta_sim *sim, bool allow)
{
    if (ta_sim_begin_other(sim, 0) != TA_OK) return;
    ta_oracle_moves(sim->oracle, allow);
    ta_sim_end(sim);
}
