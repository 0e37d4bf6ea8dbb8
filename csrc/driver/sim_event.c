/* sim_event.c - events of the simulated machine: points in streams.
 *
 * The driver table's event calls, under the machine's lock. An event that is destroyed
 * goes to a list of free ones; its memory stays until the machine goes, so that a stale
 * handle is noticed. */
#include <stdlib.h>

#include "sim_internal.h"

bool ta_sim_event_valid(ta_sim *sim, ta_event event)
{
    if (event && event->magic == TA_EVENT_MAGIC && event->sim == sim) return true;
    if (event) ta_sim_violate(sim, "an event was used that is destroyed or never was");
    return false;
}

static ta_status sim_event_create(void *self, int device, ta_event *event)
{
    ta_sim *sim = self;
    double us = ta_sim_cost_us(TA_SIM_CALL_event_create, TA_TIER_DEVICE, 0, 1);
    ta_status status = ta_sim_begin(sim, TA_SIM_CALL_event_create, us);
    if (status != TA_OK) return status;
    status = ta_sim_use_device(sim, device);
    ta_event made = status == TA_OK ? sim->free_events : NULL;
    if (made)
        sim->free_events = made->next;
    else if (status == TA_OK && (made = calloc(1, sizeof *made))) {
        made->sim = sim;
        made->all = sim->events;
        sim->events = made;
    }
    if (made) {
        made->magic = TA_EVENT_MAGIC;
        made->device = device;
        made->recorded = false;
        made->capture = 0;
        *event = made;
    } else if (status == TA_OK)
        status = TA_NO_HOST_MEMORY;
    ta_sim_end(sim);
    return status;
}

static ta_status sim_event_destroy(void *self, ta_event event)
{
    ta_sim *sim = self;
    double us = ta_sim_cost_us(TA_SIM_CALL_event_destroy, TA_TIER_DEVICE, 0, 1);
    ta_status status = ta_sim_begin(sim, TA_SIM_CALL_event_destroy, us);
    if (status != TA_OK) return status;
    if (ta_sim_event_valid(sim, event)) {
        event->magic = TA_EVENT_DEAD;
        event->next = sim->free_events;
        sim->free_events = event;
    } else
        status = TA_INVALID;
    ta_sim_end(sim);
    return status;
}

static ta_status do_record(ta_sim *sim, ta_event event, int device, ta_stream handle)
{
    ta_sim_stream *stream = ta_sim_find_stream(sim, device, handle);
    if (!stream || !ta_sim_event_valid(sim, event) || event->device != device)
        return TA_INVALID;
    if (stream->capture) return ta_sim_capture_record(sim, stream, event);
    if (!ta_sim_capture_legacy(sim, stream, "an event on the legacy stream"))
        return TA_DRIVER;
    ta_sim_stream_touch(sim, stream, false);
    event->recorded = true;
    event->capture = 0;
    event->at_us = stream->end_us > sim->now_us ? stream->end_us : sim->now_us;
    ta_oracle_mark(sim->oracle, stream->queue, &event->clock);
    return TA_OK;
}

static ta_status sim_event_record(void *self, ta_event event, int device,
                                  ta_stream stream)
{
    ta_sim *sim = self;
    double us = ta_sim_cost_us(TA_SIM_CALL_event_record, TA_TIER_DEVICE, 0, 1);
    ta_status status = ta_sim_begin(sim, TA_SIM_CALL_event_record, us);
    if (status != TA_OK) return status;
    status = do_record(sim, event, device, stream);
    ta_sim_end(sim);
    return status;
}

/* Waits so long at most, or asks, for an event. One never recorded has passed. */
static ta_status reach(ta_sim *sim, ta_sim_call call, ta_event event, double most_us,
                       const char *what)
{
    ta_status status =
        ta_sim_begin(sim, call, ta_sim_cost_us(call, TA_TIER_DEVICE, 0, 1));
    if (status != TA_OK) return status;
    if (!ta_sim_event_valid(sim, event))
        status = TA_INVALID;
    else if (event->capture) /* it stands for no moment in time */
        status = TA_INVALID;
    else if (!ta_sim_capture_allows(sim, what))
        status = TA_DRIVER;
    else if (event->recorded) {
        const double latest = sim->now_us + most_us;
        if (sim->now_us < event->at_us)
            sim->now_us = event->at_us < latest ? event->at_us : latest;
        if (sim->now_us < event->at_us)
            status = TA_NOT_READY;
        else
            ta_oracle_seen(sim->oracle, &event->clock);
    }
    ta_sim_end(sim);
    return status;
}

static ta_status sim_event_query(void *self, ta_event event)
{
    return reach(self, TA_SIM_CALL_event_query, event, 0, "a query of an event");
}

static ta_status sim_event_wait(void *self, ta_event event, double most_us)
{
    return reach(self, TA_SIM_CALL_event_wait, event, most_us, "a wait for an event");
}

ta_status ta_sim_event_elapsed(ta_sim *sim, ta_event start, ta_event end, float *ms)
{
    ta_status status = ta_sim_begin_other(sim, 0.5);
    if (status != TA_OK) return status;
    if (!ta_sim_event_valid(sim, start) || !ta_sim_event_valid(sim, end) ||
        !start->recorded || !end->recorded || start->capture || end->capture)
        status = TA_INVALID;
    else if (start->at_us > sim->now_us || end->at_us > sim->now_us)
        status = TA_NOT_READY;
    else
        *ms = (float)((end->at_us - start->at_us) / 1000);
    ta_sim_end(sim);
    return status;
}

void ta_sim_event_table(ta_driver *driver)
{
    driver->event_create = sim_event_create;
    driver->event_destroy = sim_event_destroy;
    driver->event_record = sim_event_record;
    driver->event_query = sim_event_query;
    driver->event_wait = sim_event_wait;
}

void ta_sim_events_destroy(ta_sim *sim)
{
    while (sim->events) {
        ta_event next = sim->events->all;
        free(sim->events->clock.seen);
        free(sim->events);
        sim->events = next;
    }
}
