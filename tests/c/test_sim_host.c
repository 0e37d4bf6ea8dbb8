/* test_sim_host.c - pages on the host and copies of the simulated machine. */
#define _GNU_SOURCE
#include "sim_machine.h"

/* A page of the tier, mapped and touchable. */
static uint64_t page_of(ta_sim *sim, ta_tier tier, ta_handle *handle)
{
    const ta_driver *d = ta_sim_driver(sim);
    const int zero = 0;
    uint64_t at = 0;
    if (d->reserve(sim, P2, 0, &at) != TA_OK ||
        d->create(sim, 0, tier, P2, handle) != TA_OK ||
        d->map(sim, at, P2, *handle) != TA_OK ||
        d->set_access(sim, at, P2, &zero, 1) != TA_OK)
        return 0;
    return at;
}

static void drop(ta_sim *sim, uint64_t at, ta_handle handle)
{
    const ta_driver *d = ta_sim_driver(sim);
    d->unmap(sim, at, P2);
    d->release(sim, handle, P2);
    d->unreserve(sim, at, P2);
}

TEST(pages_of_the_host_are_counted)
{
    ta_sim *sim = machine((ta_sim_config){.host_memory = 2 * P2});
    const ta_driver *d = ta_sim_driver(sim);
    uint64_t left = 0;
    ta_handle one, two, three;
    CHECK_EQ(d->host_memory(sim, &left), TA_OK);
    CHECK_EQ(left, 2 * P2);
    uint64_t at = page_of(sim, TA_TIER_HOST, &one);
    CHECK(at != 0);
    CHECK_EQ(ta_sim_used(sim, 0, false), 0);
    CHECK_EQ(ta_sim_pinned(sim), P2);
    CHECK_EQ(d->create(sim, 0, TA_TIER_HOST, P2, &two), TA_OK);
    CHECK_EQ(d->create(sim, 0, TA_TIER_HOST, P2, &three), TA_OUT_OF_MEMORY);
    CHECK_EQ(d->host_memory(sim, &left), TA_OK);
    CHECK_EQ(left, 0);
    CHECK_EQ(d->release(sim, two, P2), TA_OK);
    CHECK_EQ(d->release(sim, one, P2), TA_OK); /* mapped: it stays */
    CHECK_EQ(ta_sim_pinned(sim), P2);
    CHECK_EQ(d->unmap(sim, at, P2), TA_OK);
    CHECK_EQ(ta_sim_pinned(sim), 0);
    ta_sim_set_host_memory(sim, 0);
    CHECK_EQ(d->create(sim, 0, TA_TIER_HOST, P2, &two), TA_OUT_OF_MEMORY);
    CHECK_EQ(violations(sim), 0);
    ta_sim_destroy(sim);
}

TEST(without_pages_of_the_host)
{
    ta_sim *sim = machine((ta_sim_config){.no_host_pages = true});
    const ta_driver *d = ta_sim_driver(sim);
    uint64_t bytes;
    ta_handle h;
    CHECK_EQ(d->granularity(sim, 0, TA_TIER_HOST, &bytes), TA_UNSUPPORTED);
    CHECK_EQ(d->create(sim, 0, TA_TIER_HOST, P2, &h), TA_UNSUPPORTED);
    CHECK_EQ(d->granularity(sim, 0, TA_TIER_DEVICE, &bytes), TA_OK);
    ta_sim_destroy(sim);
}

TEST(copies_are_work_on_two_streams)
{
    ta_sim *sim = machine((ta_sim_config){.seed = 3});
    const ta_driver *d = ta_sim_driver(sim);
    ta_stream out, back, again;
    ta_handle handles[3];
    ta_event event;
    CHECK_EQ(d->copy_stream(sim, 0, 0, &out), TA_OK);
    CHECK_EQ(d->copy_stream(sim, 0, 1, &back), TA_OK);
    CHECK_EQ(d->copy_stream(sim, 0, 0, &again), TA_OK);
    CHECK(out == again && out != back);
    CHECK_EQ(d->copy_stream(sim, 0, 2, &again), TA_INVALID);
    uint64_t from = page_of(sim, TA_TIER_DEVICE, &handles[0]);
    uint64_t host = page_of(sim, TA_TIER_HOST, &handles[1]);
    uint64_t to = page_of(sim, TA_TIER_DEVICE, &handles[2]);
    memset((void *)(uintptr_t)from, 0x5a, P2);
    CHECK_EQ(d->copy(sim, 0, out, host, from, P2), TA_OK);
    CHECK_EQ(d->event_create(sim, 0, &event), TA_OK);
    CHECK_EQ(d->event_record(sim, event, 0, out), TA_OK);
    CHECK_EQ(d->event_query(sim, event), TA_NOT_READY); /* it takes time */
    CHECK_EQ(d->event_wait(sim, event, TA_FOREVER_US), TA_OK);
    CHECK_EQ(d->copy(sim, 0, back, to, host, P2), TA_OK);
    CHECK_EQ(d->device_wait(sim, 0), TA_OK);
    CHECK(memcmp((void *)(uintptr_t)to, (void *)(uintptr_t)from, P2) == 0);
    CHECK_EQ(ta_sim_calls(sim, TA_SIM_CALL_copy), 2);
    for (int i = 0; i < 3; i++) drop(sim, i == 0 ? from : i == 1 ? host : to, handles[i]);
    CHECK_EQ(violations(sim), 0);
    ta_sim_destroy(sim);
}

/* S20: each way in which copies and work can miss each other. */
static uint64_t flagged(int how)
{
    ta_sim *sim = machine((ta_sim_config){.seed = 11});
    const ta_driver *d = ta_sim_driver(sim);
    ta_stream out, back, work;
    ta_handle h, g;
    uint64_t at = page_of(sim, TA_TIER_DEVICE, &h);
    uint64_t host = page_of(sim, TA_TIER_HOST, &g), found = 0;
    d->copy_stream(sim, 0, 0, &out);
    d->copy_stream(sim, 0, 1, &back);
    ta_sim_stream_create(sim, 0, false, &work);
    const ta_sim_range reads = {at, P2, false}, writes = {at, P2, true};
    switch (how) {
    case 0: /* copied out while it is still being written */
        ta_sim_launch(sim, 0, work, &writes, 1, 500);
        d->copy(sim, 0, out, host, at, P2);
        break;
    case 1: /* its bytes used anew before they are out */
        d->copy(sim, 0, out, host, at, P2);
        ta_sim_launch(sim, 0, work, &writes, 1, 5);
        break;
    case 2: /* copied in before the copy out is done */
        d->copy(sim, 0, out, host, at, P2);
        d->copy(sim, 0, back, at, host, P2);
        break;
    case 3: /* used without waiting for the copy in */
        d->copy(sim, 0, back, at, host, P2);
        ta_sim_launch(sim, 0, work, &reads, 1, 5);
        break;
    case 4: /* unmapped before it is out */
        d->copy(sim, 0, out, host, at, P2);
        d->unmap(sim, at, P2);
        break;
    default: /* with a wait between all of them: right */
        ta_sim_launch(sim, 0, work, &writes, 1, 500);
        d->device_wait(sim, 0);
        d->copy(sim, 0, out, host, at, P2);
        d->device_wait(sim, 0);
        d->copy(sim, 0, back, at, host, P2);
        d->device_wait(sim, 0);
        ta_sim_launch(sim, 0, work, &reads, 1, 5);
        break;
    }
    ta_sim_first_violation(sim, &found);
    ta_sim_destroy(sim);
    return found;
}

TEST(what_misses_each_other_is_flagged)
{
    for (int how = 0; how < 5; how++) CHECK(flagged(how) > 0);
    CHECK_EQ(flagged(5), 0);
}

TEST(a_copy_fails_when_told_to)
{
    ta_sim *sim = machine((ta_sim_config){0});
    const ta_driver *d = ta_sim_driver(sim);
    ta_stream out;
    ta_handle h, g;
    uint64_t at = page_of(sim, TA_TIER_DEVICE, &h), host = page_of(sim, TA_TIER_HOST, &g);
    d->copy_stream(sim, 0, 0, &out);
    *(int *)(uintptr_t)at = 7;
    ta_sim_fail(sim, TA_SIM_CALL_copy, 1, 0, TA_DRIVER);
    CHECK_EQ(d->copy(sim, 0, out, host, at, P2), TA_DRIVER);
    CHECK_EQ(*(int *)(uintptr_t)host, 0);
    CHECK_EQ(d->copy(sim, 0, out, host, at, P2), TA_OK);
    CHECK_EQ(*(int *)(uintptr_t)host, 7);
    CHECK_EQ(violations(sim), 0);
    /* Bytes of the program are none of the allocator's to copy. */
    int mine = 0;
    CHECK_EQ(d->copy(sim, 0, out, (uint64_t)(uintptr_t)&mine, at, 4), TA_INVALID);
    CHECK_EQ(violations(sim), 1);
    ta_sim_destroy(sim);
}

TEST_MAIN()
