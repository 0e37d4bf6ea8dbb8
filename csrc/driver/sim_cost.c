/* sim_cost.c - what each driver call takes of the host, as measured on an H200.
 *
 * Pure. Create, set access, unmap and release were measured for single handles of 2 MiB,
 * 128 MiB and 2 GiB and for 512 handles of 2 MiB in one call; between sizes the table is
 * read as straight lines. Calls marked "guess" were never measured alone. */
#include "sim_internal.h"

typedef struct cost_points {
    double at_2m, at_128m, at_2g; /* us */
} cost_points;

static double interpolate(cost_points p, uint64_t size)
{
    const double mib = (double)size / (1 << 20);
    if (mib <= 2) return p.at_2m;
    if (mib <= 128) return p.at_2m + (p.at_128m - p.at_2m) * (mib - 2) / 126;
    return p.at_128m + (p.at_2g - p.at_128m) * (mib - 128) / 1920;
}

double ta_sim_cost_us(ta_sim_call call, ta_tier tier, uint64_t size, uint64_t handles)
{
    const double gib = (double)size / (1 << 30), n = (double)handles;
    switch (call) {
    case TA_SIM_CALL_reserve:
        return 13;
    case TA_SIM_CALL_unreserve:
        return 13;           /* guess */
    case TA_SIM_CALL_create: /* host pages are pinned: 195 to 250 ms a GiB */
        if (tier == TA_TIER_HOST) return 7.6 + 220e3 * gib;
        return n * interpolate((cost_points){7.6, 7.7, 108}, size);
    case TA_SIM_CALL_map:
        return 0.9 * n;
    case TA_SIM_CALL_set_access:
        if (tier == TA_TIER_HOST) return n * (22 + 26e3 * gib);
        return n * interpolate((cost_points){22, 21, 76}, size);
    case TA_SIM_CALL_unmap:
        return n * interpolate((cost_points){14, 14, 35}, size);
    case TA_SIM_CALL_release:
        return n * interpolate((cost_points){9, 43, 507}, size);
    case TA_SIM_CALL_export_page:
    case TA_SIM_CALL_import_page:
        return 10; /* guess */
    case TA_SIM_CALL_plain_alloc:
        return 10 + 127 * gib;
    case TA_SIM_CALL_plain_free:
        return 10 + 405 * gib;
    case TA_SIM_CALL_event_create:
        return 0.48;
    case TA_SIM_CALL_event_destroy:
        return 0.48; /* guess */
    case TA_SIM_CALL_event_record:
        return 0.28;
    case TA_SIM_CALL_event_query:
    case TA_SIM_CALL_event_wait:
        return 0.18; /* what is waited for comes on top */
    case TA_SIM_CALL_copy:
        return 3; /* guess */
    case TA_SIM_CALL_fill:
    case TA_SIM_CALL_read:
        return 12; /* guess: it is waited for */
    case TA_SIM_CALL_copy_stream:
        return 0.2; /* guess: it is made once */
    case TA_SIM_CALL_host_memory:
        return 30; /* guess: a few files are read */
    case TA_SIM_CALL_mem_info:
    case TA_SIM_CALL_device_wait:
        return 5; /* guess */
    case TA_SIM_CALL_enter:
    case TA_SIM_CALL_is_capturing:
        return 0.1; /* guess */
    case TA_SIM_CALL_device_count:
    case TA_SIM_CALL_has_vmm:
    case TA_SIM_CALL_granularity:
    case TA_SIM_CALL_can_access_peer:
        return 0.2; /* guess */
    case TA_SIM_CALL_COUNT:
        break;
    }
    return 0;
}
