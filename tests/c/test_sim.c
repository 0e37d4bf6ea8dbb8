/* test_sim.c - the simulated machine keeps the driver's contract. */
#define _GNU_SOURCE
#include <pthread.h>

#include "sim_machine.h"

TEST(map_access_unmap)
{
    ta_sim *sim = machine((ta_sim_config){0});
    const ta_driver *d = ta_sim_driver(sim);
    uint64_t at;
    ta_handle h;
    const int zero = 0;
    CHECK_EQ(d->reserve(sim, 16 * MIB, 8 * MIB, &at), TA_OK);
    CHECK_EQ(at % (8 * MIB), 0);
    CHECK(!touchable(at));
    CHECK_EQ(d->create(sim, 0, TA_TIER_DEVICE, 4 * MIB, &h), TA_OK);
    CHECK_EQ(ta_sim_used(sim, 0, false), 4 * MIB);
    CHECK_EQ(d->map(sim, at, 4 * MIB, h), TA_OK);
    CHECK(!touchable(at));
    CHECK_EQ(d->set_access(sim, at, 4 * MIB, &zero, 1), TA_OK);
    CHECK(touchable(at) && touchable(at + 4 * MIB - 1) && !touchable(at + 4 * MIB));
    *(int *)(uintptr_t)at = 1234;

    /* The same page at a second address. */
    CHECK_EQ(d->map(sim, at + 8 * MIB, 4 * MIB, h), TA_OK);
    CHECK_EQ(d->set_access(sim, at + 8 * MIB, 4 * MIB, &zero, 1), TA_OK);
    CHECK_EQ(*(int *)(uintptr_t)(at + 8 * MIB), 1234);
    CHECK_EQ(d->unmap(sim, at, 4 * MIB), TA_OK);
    CHECK(!touchable(at));
    CHECK_EQ(*(int *)(uintptr_t)(at + 8 * MIB), 1234);

    /* Released while mapped: goes with its last mapping. */
    CHECK_EQ(d->release(sim, h, 4 * MIB), TA_OK);
    CHECK_EQ(ta_sim_used(sim, 0, false), 4 * MIB);
    CHECK_EQ(*(int *)(uintptr_t)(at + 8 * MIB), 1234);
    CHECK_EQ(d->unmap(sim, at + 8 * MIB, 4 * MIB), TA_OK);
    CHECK_EQ(ta_sim_used(sim, 0, false), 0);
    CHECK_EQ(d->unreserve(sim, at, 16 * MIB), TA_OK);
    CHECK_EQ(ta_sim_reserved_addresses(sim), 0);
    CHECK_EQ(violations(sim), 0);
    ta_sim_destroy(sim);
}

/* Who prefers low addresses gets the same places in every run, and with no memory behind. A
 * thread sanitizer has the kernel choose. */
#ifdef __SANITIZE_THREAD__
#define FIRST_WISHED 1
#else
#define FIRST_WISHED 0
#endif

TEST(addresses_rise)
{
    for (int bare = FIRST_WISHED; bare < 2; bare++) {
        ta_sim *sim = machine((ta_sim_config){.no_backing = bare});
        const ta_driver *d = ta_sim_driver(sim);
        uint64_t at[4], plain, again;
        for (int i = 0; i < 4; i++) {
            CHECK_EQ(d->reserve(sim, (i == 1 ? 64 : 8) * MIB, 8 * MIB, &at[i]), TA_OK);
            CHECK(i == 0 || at[i] > at[i - 1]);
        }
        CHECK_EQ(d->plain_alloc(sim, 0, 8 * MIB, &plain), TA_OK);
        CHECK(plain > at[3]);
        /* What was given back is used again, the lowest first; what does not fit is not. */
        CHECK_EQ(d->unreserve(sim, at[0], 8 * MIB), TA_OK);
        CHECK_EQ(d->unreserve(sim, at[1], 64 * MIB), TA_OK);
        CHECK_EQ(d->reserve(sim, 128 * MIB, 8 * MIB, &again), TA_OK);
        CHECK(again > plain);
        CHECK_EQ(d->reserve(sim, 8 * MIB, 8 * MIB, &again), TA_OK);
        CHECK_EQ(again, at[0]);
        CHECK_EQ(d->reserve(sim, 64 * MIB, 8 * MIB, &again), TA_OK);
        CHECK(again > at[0] && again < at[2]);
        CHECK_EQ(violations(sim), 0);
        ta_sim_destroy(sim);
    }
}

TEST(contents_move_with_the_page)
{
    ta_sim *sim = machine((ta_sim_config){0});
    const ta_driver *d = ta_sim_driver(sim);
    const int zero = 0;
    ta_handle h[8];
    uint64_t at = pages(sim, 8, h), other;
    for (int i = 0; i < 8; i++) *(int *)(uintptr_t)(at + (uint64_t)i * P2) = i;
    CHECK_EQ(d->unmap(sim, at, 8 * P2), TA_OK);
    CHECK_EQ(d->reserve(sim, 8 * P2, 0, &other), TA_OK);
    for (int i = 0; i < 8; i++) /* in reverse */
        CHECK_EQ(d->map(sim, other + (uint64_t)(7 - i) * P2, P2, h[i]), TA_OK);
    CHECK_EQ(d->set_access(sim, other, 8 * P2, &zero, 1), TA_OK);
    for (int i = 0; i < 8; i++)
        CHECK_EQ(*(int *)(uintptr_t)(other + (uint64_t)(7 - i) * P2), i);
    /* A new page holds zeros, whatever lay there. */
    CHECK_EQ(d->unmap(sim, other, P2), TA_OK);
    CHECK_EQ(d->release(sim, h[7], P2), TA_OK);
    CHECK_EQ(d->create(sim, 0, TA_TIER_DEVICE, P2, &h[7]), TA_OK);
    CHECK_EQ(d->map(sim, other, P2, h[7]), TA_OK);
    CHECK_EQ(d->set_access(sim, other, P2, &zero, 1), TA_OK);
    CHECK_EQ(*(int *)(uintptr_t)other, 0);
    CHECK_EQ(violations(sim), 0);
    ta_sim_destroy(sim);
}

/* The kernel's mappings of pages. */
static size_t kernel_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    size_t count = 0;
    while (maps && fgets(line, sizeof line, maps))
        count += strstr(line, "memfd:torcharena-sim") != NULL;
    if (maps) fclose(maps);
    return count;
}

TEST(pages_in_a_row_share_a_kernel_mapping)
{
    ta_sim *sim = machine((ta_sim_config){0});
    static ta_handle h[400];
    CHECK_EQ(kernel_mappings(), 0);
    pages(sim, 400, h);
    CHECK_EQ(kernel_mappings(), 1);
    ta_sim_destroy(sim);
    CHECK_EQ(kernel_mappings(), 0);
}

TEST(misuse_is_refused_and_told)
{
    ta_sim *sim = machine((ta_sim_config){0});
    const ta_driver *d = ta_sim_driver(sim);
    ta_handle h[4], big;
    uint64_t at = pages(sim, 4, h), x, wrong = 0;
    const int zero = 0, nine = 9;
#define REFUSED(CALL)                                                                    \
    CHECK_EQ(CALL, TA_INVALID);                                                          \
    CHECK_EQ(violations(sim), ++wrong)
    REFUSED(d->reserve(sim, 4096, 0, &x));
    REFUSED(d->reserve(sim, P2, 3 * P2, &x));
    REFUSED(d->create(sim, 0, TA_TIER_DEVICE, P2 + 1, &big));
    REFUSED(d->create(sim, 0, TA_TIER_DEVICE, 0, &big));
    CHECK_EQ(d->create(sim, 0, TA_TIER_DEVICE, 2 * P2, &big), TA_OK);
    REFUSED(d->map(sim, at, 2 * P2, big)); /* over a mapping */
    CHECK_EQ(d->reserve(sim, 4 * P2, 0, &x), TA_OK);
    REFUSED(d->map(sim, x, P2, big));              /* not whole */
    REFUSED(d->map(sim, x + 3 * P2, 2 * P2, big)); /* over the end */
    REFUSED(d->map(sim, x + 4096, 2 * P2, big));   /* not aligned */
    REFUSED(d->map(sim, x, 2 * P2, big + 77));     /* no handle */
    CHECK_EQ(d->map(sim, x, 2 * P2, big), TA_OK);
    REFUSED(d->unmap(sim, x, P2)); /* half a mapping */
    REFUSED(d->unmap(sim, x + P2, P2));
    REFUSED(d->unmap(sim, x, 3 * P2)); /* and what is not mapped */
    REFUSED(d->set_access(sim, x, P2, &zero, 1));
    REFUSED(d->set_access(sim, x, 4 * P2, &zero, 1));
    REFUSED(d->set_access(sim, x, 2 * P2, &nine, 1));
    REFUSED(d->unreserve(sim, x, 4 * P2)); /* while mapped */
    CHECK_EQ(d->unmap(sim, x, 2 * P2), TA_OK);
    REFUSED(d->unreserve(sim, x, 2 * P2)); /* a part */
    CHECK_EQ(d->unreserve(sim, x, 4 * P2), TA_OK);
    REFUSED(d->unreserve(sim, x, 4 * P2));
    REFUSED(d->release(sim, big, P2));
    CHECK_EQ(d->release(sim, big, 2 * P2), TA_OK);
    REFUSED(d->release(sim, big, 2 * P2)); /* twice */
    ta_handle again;                       /* the same slot, another handle */
    CHECK_EQ(d->create(sim, 0, TA_TIER_DEVICE, 2 * P2, &again), TA_OK);
    CHECK(again != big);
    REFUSED(d->release(sim, big, 2 * P2));
    CHECK_EQ(d->release(sim, again, 2 * P2), TA_OK);
    REFUSED(d->plain_free(sim, 0, at));
    CHECK(strstr(ta_sim_first_violation(sim, NULL), "reserve of 4096") != NULL);
    CHECK_EQ(ta_sim_used(sim, 0, false), 4 * P2); /* nothing changed */
    CHECK(touchable(at + 3 * P2));
    ta_sim_destroy(sim);
}

TEST(memory_runs_out)
{
    ta_sim *sim = machine(
        (ta_sim_config){.devices = 2, .memory = 16 * P2, .context_bytes = 3 * P2});
    const ta_driver *d = ta_sim_driver(sim);
    ta_handle h, last = 0;
    uint64_t free_bytes, total, at;
    CHECK_EQ(d->mem_info(sim, 0, &free_bytes, &total), TA_OK);
    CHECK_EQ(total, 16 * P2);
    CHECK_EQ(free_bytes, 13 * P2); /* asking uses the device */
    CHECK_EQ(d->create(sim, 0, TA_TIER_DEVICE, 14 * P2, &h), TA_OUT_OF_MEMORY);
    for (int i = 0; i < 13; i++)
        CHECK_EQ(d->create(sim, 0, TA_TIER_DEVICE, P2, &last), TA_OK);
    CHECK_EQ(d->create(sim, 0, TA_TIER_DEVICE, P2, &h), TA_OUT_OF_MEMORY);
    CHECK_EQ(d->plain_alloc(sim, 0, 1, &at), TA_OUT_OF_MEMORY);
    CHECK_EQ(d->create(sim, 0, TA_TIER_HOST, P2, &h), TA_OK);
    CHECK_EQ(d->mem_info(sim, 0, &free_bytes, &total), TA_OK);
    CHECK_EQ(free_bytes, 0);
    CHECK_EQ(d->release(sim, last, P2), TA_OK);
    CHECK_EQ(d->create(sim, 0, TA_TIER_DEVICE, P2, &last), TA_OK);
    CHECK_EQ(ta_sim_used(sim, 0, true), 16 * P2);
    CHECK_EQ(ta_sim_used(sim, 1, true), 0);
    CHECK_EQ(violations(sim), 0);
    CHECK_EQ(d->create(sim, 2, TA_TIER_DEVICE, P2, &h), TA_INVALID);
    ta_sim_destroy(sim);
    /* A context that does not fit. */
    sim = machine((ta_sim_config){.memory = P2, .context_bytes = 2 * P2});
    uintptr_t saved[2];
    CHECK_EQ(ta_sim_driver(sim)->enter(sim, 0, saved), TA_OUT_OF_MEMORY);
    ta_sim_destroy(sim);
}

TEST(plain_memory)
{
    ta_sim *sim = machine((ta_sim_config){.no_vmm = true});
    const ta_driver *d = ta_sim_driver(sim);
    uint64_t at, other;
    ta_handle h;
    bool yes = true;
    CHECK_EQ(d->has_vmm(sim, 0, &yes), TA_OK);
    CHECK(!yes);
    CHECK_EQ(d->reserve(sim, P2, 0, &at), TA_UNSUPPORTED);
    CHECK_EQ(d->create(sim, 0, TA_TIER_DEVICE, P2, &h), TA_UNSUPPORTED);
    CHECK_EQ(d->plain_alloc(sim, 0, 3 * MIB, &at), TA_OK);
    CHECK_EQ(d->plain_alloc(sim, 0, 1, &other), TA_OK);
    CHECK_EQ(at % 512, 0);
    memset((void *)(uintptr_t)at, 7, 3 * MIB);
    CHECK(touchable(other));
    CHECK_EQ(ta_sim_used(sim, 0, false), 6 * MIB);
    CHECK_EQ(d->plain_free(sim, 0, at), TA_OK);
    CHECK(!touchable(at));
    CHECK_EQ(d->plain_free(sim, 0, other), TA_OK);
    CHECK_EQ(ta_sim_used(sim, 0, false), 0);
    CHECK_EQ(ta_sim_reserved_addresses(sim), 0);
    CHECK_EQ(violations(sim), 0);
    CHECK_EQ(d->plain_free(sim, 0, at), TA_INVALID);
    CHECK_EQ(violations(sim), 1);
    ta_sim_destroy(sim);
}

TEST(peers)
{
    ta_sim *sim = machine((ta_sim_config){.devices = 2});
    const ta_driver *d = ta_sim_driver(sim);
    ta_handle h;
    const int both[] = {0, 1};
    uint64_t at = pages(sim, 1, &h), src = at;
    bool yes = false;
    CHECK_EQ(d->can_access_peer(sim, 0, 1, &yes), TA_OK);
    CHECK(yes);
    /* A copy by the other device needs access for it. */
    int host = 5;
    CHECK_EQ(ta_sim_copy(sim, 1, 0, (uint64_t)(uintptr_t)&host, src, 4), TA_INVALID);
    CHECK_EQ(violations(sim), 1);
    CHECK_EQ(d->set_access(sim, at, P2, both, 2), TA_OK);
    CHECK_EQ(ta_sim_copy(sim, 1, 0, (uint64_t)(uintptr_t)&host, src, 4), TA_OK);
    CHECK_EQ(host, 0);
    CHECK_EQ(violations(sim), 1);
    ta_sim_destroy(sim);

    sim = machine((ta_sim_config){.devices = 2, .no_peers = true});
    d = ta_sim_driver(sim);
    at = pages(sim, 1, &h);
    CHECK_EQ(d->can_access_peer(sim, 0, 1, &yes), TA_OK);
    CHECK(!yes);
    CHECK_EQ(d->set_access(sim, at, P2, both, 2), TA_INVALID);
    ta_sim_destroy(sim);
}

/* Every call of the table, with a fault at its k-th time. */
TEST(faults)
{
    ta_sim *sim = machine((ta_sim_config){0});
    const ta_driver *d = ta_sim_driver(sim);
    ta_handle h[3];
    ta_sim_fail(sim, TA_SIM_CALL_create, 2, 0, TA_OUT_OF_MEMORY);
    CHECK_EQ(d->create(sim, 0, TA_TIER_DEVICE, P2, &h[0]), TA_OK);
    CHECK_EQ(d->create(sim, 0, TA_TIER_DEVICE, P2, &h[1]), TA_OUT_OF_MEMORY);
    CHECK_EQ(ta_sim_used(sim, 0, false), P2);
    CHECK_EQ(d->create(sim, 0, TA_TIER_DEVICE, P2, &h[1]), TA_OK);
    CHECK_EQ(ta_sim_calls(sim, TA_SIM_CALL_create), 3);

    ta_sim_fail(sim, TA_SIM_CALL_create, 1, 1, TA_DRIVER); /* and one more */
    CHECK_EQ(d->create(sim, 0, TA_TIER_DEVICE, P2, &h[2]), TA_DRIVER);
    CHECK_EQ(d->create(sim, 0, TA_TIER_DEVICE, P2, &h[2]), TA_DRIVER);
    CHECK_EQ(d->create(sim, 0, TA_TIER_DEVICE, P2, &h[2]), TA_OK);

    ta_sim_fail(sim, TA_SIM_CALL_create, 1, UINT64_MAX, TA_GONE);
    ta_sim_fail(sim, TA_SIM_CALL_create, 0, 0, TA_OK);
    CHECK_EQ(d->release(sim, h[2], P2), TA_OK);
    CHECK_EQ(d->create(sim, 0, TA_TIER_DEVICE, P2, &h[2]), TA_OK);

    /* Of any kind: each call once more, all of them failing. */
    ta_event e, f;
    uint64_t at, u, v;
    bool yes;
    int n;
    const int zero = 0;
    uintptr_t saved[2];
    ta_stream stream;
    CHECK_EQ(d->event_create(sim, 0, &e), TA_OK);
    CHECK_EQ(d->reserve(sim, 4 * P2, 0, &at), TA_OK);
    CHECK_EQ(d->map(sim, at, P2, h[0]), TA_OK);
    uint64_t before = ta_sim_calls(sim, TA_SIM_CALL_COUNT);
    ta_sim_fail(sim, TA_SIM_CALL_COUNT, 1, UINT64_MAX, TA_GONE);
    CHECK_EQ(d->device_count(sim, &n), TA_GONE);
    CHECK_EQ(d->enter(sim, 0, saved), TA_GONE);
    CHECK_EQ(d->mem_info(sim, 0, &u, &v), TA_GONE);
    CHECK_EQ(d->has_vmm(sim, 0, &yes), TA_GONE);
    CHECK_EQ(d->granularity(sim, 0, TA_TIER_DEVICE, &u), TA_GONE);
    CHECK_EQ(d->can_access_peer(sim, 0, 0, &yes), TA_GONE);
    CHECK_EQ(d->reserve(sim, P2, 0, &u), TA_GONE);
    CHECK_EQ(d->unreserve(sim, at, 4 * P2), TA_GONE);
    CHECK_EQ(d->create(sim, 0, TA_TIER_DEVICE, P2, &h[1]), TA_GONE);
    CHECK_EQ(d->release(sim, h[0], P2), TA_GONE);
    CHECK_EQ(d->map(sim, at + P2, P2, h[1]), TA_GONE);
    CHECK_EQ(d->set_access(sim, at, P2, &zero, 1), TA_GONE);
    CHECK_EQ(d->unmap(sim, at, P2), TA_GONE);
    CHECK_EQ(d->export_page(sim, h[0], &n), TA_GONE);
    CHECK_EQ(d->import_page(sim, 0, 0, P2, &h[1]), TA_GONE);
    CHECK_EQ(d->host_memory(sim, &u), TA_GONE);
    CHECK_EQ(d->copy_stream(sim, 0, 0, &stream), TA_GONE);
    CHECK_EQ(d->copy(sim, 0, 0, at, at, P2), TA_GONE);
    CHECK_EQ(d->fill(sim, 0, at, 0, 1), TA_GONE);
    CHECK_EQ(d->read(sim, 0, &n, at, 1), TA_GONE);
    CHECK_EQ(d->plain_alloc(sim, 0, P2, &u), TA_GONE);
    CHECK_EQ(d->plain_free(sim, 0, at), TA_GONE);
    CHECK_EQ(d->event_create(sim, 0, &f), TA_GONE);
    CHECK_EQ(d->event_destroy(sim, e), TA_GONE);
    CHECK_EQ(d->event_record(sim, e, 0, 0), TA_GONE);
    CHECK_EQ(d->event_query(sim, e), TA_GONE);
    CHECK_EQ(d->event_wait(sim, e, TA_FOREVER_US), TA_GONE);
    CHECK_EQ(d->is_capturing(sim, 0, 0, &yes), TA_GONE);
    CHECK_EQ(d->device_wait(sim, 0), TA_GONE);
    CHECK_EQ(ta_sim_calls(sim, TA_SIM_CALL_COUNT), before + TA_SIM_CALL_COUNT);
    ta_sim_fail(sim, TA_SIM_CALL_COUNT, 0, 0, TA_OK);
    CHECK_EQ(ta_sim_used(sim, 0, false), 3 * P2);
    CHECK(!touchable(at));
    CHECK_EQ(d->set_access(sim, at, P2, &zero, 1), TA_OK);
    CHECK_EQ(d->event_destroy(sim, e), TA_OK);
    CHECK_EQ(violations(sim), 0);
    CHECK_EQ(d->event_query(sim, e), TA_INVALID); /* destroyed */
    CHECK_EQ(violations(sim), 1);
    ta_sim_destroy(sim);
}

/* What the calls cost on an H200. */
TEST(costs)
{
    ta_sim *sim = machine((ta_sim_config){.memory = 64 * GIB, .no_backing = true});
    const ta_driver *d = ta_sim_driver(sim);
    static ta_handle h[512];
    const int zero = 0;
    uint64_t at;
    double start = ta_sim_driver_us(sim);
#define TOOK(FROM, TO)                                                                   \
    do {                                                                                 \
        double us_ = ta_sim_driver_us(sim) - start;                                      \
        if (us_ < (FROM) || us_ > (TO)) TA_TEST_FAIL("took %g us", us_);                 \
        start += us_;                                                                    \
    } while (0)
    CHECK_EQ(d->reserve(sim, 1024 * GIB, 0, &at), TA_OK);
    TOOK(12, 14);
    for (int i = 0; i < 512; i++) d->create(sim, 0, TA_TIER_DEVICE, P2, &h[i]);
    TOOK(3800, 5000);
    for (int i = 0; i < 512; i++) d->map(sim, at + (uint64_t)i * P2, P2, h[i]);
    TOOK(400, 600);
    CHECK_EQ(d->set_access(sim, at, 512 * P2, &zero, 1),
             TA_OK); /* one call, 512 handles */
    TOOK(11000, 13500);
    CHECK_EQ(d->unmap(sim, at, 512 * P2), TA_OK);
    TOOK(7000, 8300);
    for (int i = 0; i < 512; i++) d->release(sim, h[i], P2);
    TOOK(4500, 8700);
    CHECK_EQ(d->create(sim, 0, TA_TIER_DEVICE, 2 * GIB, &h[0]), TA_OK);
    TOOK(107, 109);
    CHECK_EQ(d->map(sim, at, 2 * GIB, h[0]), TA_OK);
    TOOK(0.5, 1);
    CHECK_EQ(d->set_access(sim, at, 2 * GIB, &zero, 1), TA_OK);
    TOOK(75, 77);
    CHECK_EQ(d->unmap(sim, at, 2 * GIB), TA_OK);
    TOOK(34, 36);
    CHECK_EQ(d->release(sim, h[0], 2 * GIB), TA_OK);
    TOOK(500, 510);
    CHECK_EQ(d->create(sim, 0, TA_TIER_HOST, GIB, &h[0]), TA_OK); /* pinned */
    TOOK(195e3, 250e3);
    CHECK(ta_sim_now_us(sim) == ta_sim_driver_us(sim));
    ta_sim_destroy(sim);

    sim = machine((ta_sim_config){.free_calls = true});
    CHECK_EQ(ta_sim_driver(sim)->create(sim, 0, TA_TIER_DEVICE, P2, &h[0]), TA_OK);
    CHECK(ta_sim_now_us(sim) == 0 && ta_sim_driver_us(sim) > 7);
    ta_sim_destroy(sim);
}

TEST(events_pass_in_order)
{
    ta_sim *sim = machine((ta_sim_config){0});
    const ta_driver *d = ta_sim_driver(sim);
    ta_stream s, other;
    ta_event a, b, c;
    float ms = 0;
    CHECK_EQ(ta_sim_stream_create(sim, 0, false, &s), TA_OK);
    CHECK_EQ(ta_sim_stream_create(sim, 0, false, &other), TA_OK);
    CHECK_EQ(d->event_create(sim, 0, &a), TA_OK);
    CHECK_EQ(d->event_create(sim, 0, &b), TA_OK);
    CHECK_EQ(d->event_create(sim, 0, &c), TA_OK);
    CHECK_EQ(d->event_query(sim, a), TA_OK); /* never recorded */
    CHECK_EQ(ta_sim_launch(sim, 0, s, NULL, 0, 1000), TA_OK);
    CHECK_EQ(d->event_record(sim, a, 0, s), TA_OK);
    CHECK_EQ(ta_sim_launch(sim, 0, s, NULL, 0, 1000), TA_OK);
    CHECK_EQ(d->event_record(sim, b, 0, s), TA_OK);
    CHECK_EQ(d->event_query(sim, a), TA_NOT_READY);
    CHECK_EQ(ta_sim_stream_query(sim, 0, other), TA_OK);
    CHECK_EQ(ta_sim_stream_wait_event(sim, 0, other, a), TA_OK);
    CHECK_EQ(ta_sim_stream_query(sim, 0, other), TA_NOT_READY);
    CHECK_EQ(ta_sim_launch(sim, 0, other, NULL, 0, 5000), TA_OK);
    CHECK_EQ(d->event_record(sim, c, 0, other), TA_OK);
    CHECK_EQ(d->event_wait(sim, a, TA_FOREVER_US), TA_OK);
    CHECK_EQ(d->event_query(sim, a), TA_OK);
    CHECK_EQ(d->event_query(sim, b), TA_NOT_READY);
    CHECK_EQ(ta_sim_event_elapsed(sim, a, b, &ms), TA_NOT_READY);
    CHECK_EQ(ta_sim_stream_wait(sim, 0, s), TA_OK);
    CHECK_EQ(d->event_query(sim, b), TA_OK);
    CHECK_EQ(ta_sim_event_elapsed(sim, a, b, &ms), TA_OK);
    CHECK(ms > 0.999f && ms < 1.001f);
    CHECK_EQ(d->event_query(sim, c), TA_NOT_READY);
    ta_sim_advance_us(sim, 10000);
    CHECK_EQ(d->event_query(sim, c), TA_OK);
    CHECK_EQ(ta_sim_event_elapsed(sim, a, c, &ms), TA_OK);
    CHECK(ms > 4.999f && ms < 5.001f);
    CHECK_EQ(ta_sim_launch(sim, 0, other, NULL, 0, 500), TA_OK);
    CHECK_EQ(ta_sim_stream_destroy(sim, other), TA_OK); /* its work goes on */
    double now = ta_sim_now_us(sim);
    CHECK_EQ(d->device_wait(sim, 0), TA_OK);
    CHECK(ta_sim_now_us(sim) >= now + 490);
    CHECK_EQ(d->event_record(sim, c, 0, other), TA_INVALID);
    CHECK_EQ(ta_sim_stream_destroy(sim, other), TA_INVALID);
    ta_stream next;
    CHECK_EQ(ta_sim_stream_create(sim, 0, false, &next), TA_OK);
    CHECK(next != other);
    CHECK_EQ(violations(sim), 0);
    ta_sim_destroy(sim);
}

TEST(legacy_stream_waits_for_blocking_ones)
{
    ta_sim *sim = machine((ta_sim_config){.free_calls = true});
    const ta_driver *d = ta_sim_driver(sim);
    ta_stream blocking, second, aside;
    ta_event e;
    CHECK_EQ(ta_sim_stream_create(sim, 0, true, &blocking), TA_OK);
    CHECK_EQ(ta_sim_stream_create(sim, 0, true, &second), TA_OK);
    CHECK_EQ(ta_sim_stream_create(sim, 0, false, &aside), TA_OK);
    CHECK_EQ(d->event_create(sim, 0, &e), TA_OK);
    ta_sim_launch(sim, 0, blocking, NULL, 0, 100);
    ta_sim_launch(sim, 0, aside, NULL, 0, 1e6);
    ta_sim_launch(sim, 0, NULL, NULL, 0, 100);   /* after blocking */
    ta_sim_launch(sim, 0, second, NULL, 0, 100); /* after that */
    CHECK_EQ(d->event_record(sim, e, 0, second), TA_OK);
    CHECK_EQ(d->event_wait(sim, e, TA_FOREVER_US), TA_OK);
    CHECK(ta_sim_now_us(sim) > 299 && ta_sim_now_us(sim) < 301);
    /* The per-thread stream is a blocking one. */
    ta_sim_launch(sim, 0, NULL, NULL, 0, 100);
    ta_sim_launch(sim, 0, (ta_stream)2, NULL, 0, 100);
    CHECK_EQ(ta_sim_stream_wait(sim, 0, (ta_stream)2), TA_OK);
    CHECK(ta_sim_now_us(sim) > 499 && ta_sim_now_us(sim) < 501);
    ta_sim_destroy(sim);
}

TEST(random_whiles_follow_the_seed)
{
    double ends[3];
    for (int i = 0; i < 3; i++) {
        ta_sim *sim = machine((ta_sim_config){.seed = i == 2 ? 8 : 7});
        for (int k = 0; k < 100; k++) ta_sim_launch(sim, 0, NULL, NULL, 0, -1);
        CHECK_EQ(ta_sim_stream_wait(sim, 0, NULL), TA_OK);
        ends[i] = ta_sim_now_us(sim);
        ta_sim_destroy(sim);
    }
    CHECK(ends[0] == ends[1] && ends[0] != ends[2]);
}

TEST(no_backing)
{
    ta_sim *sim = machine((ta_sim_config){.memory = 140 * GIB, .no_backing = true});
    const ta_driver *d = ta_sim_driver(sim);
    ta_handle h;
    const int zero = 0;
    uint64_t at, other;
    CHECK_EQ(d->reserve(sim, 1100 * GIB, GIB, &at), TA_OK);
    CHECK_EQ(d->reserve(sim, GIB, GIB, &other), TA_OK);
    CHECK(at % GIB == 0 && other >= at + 1100 * GIB);
    CHECK_EQ(d->create(sim, 0, TA_TIER_DEVICE, GIB, &h), TA_OK);
    CHECK_EQ(d->map(sim, at + GIB, GIB, h), TA_OK);
    CHECK_EQ(d->set_access(sim, at + GIB, GIB, &zero, 1), TA_OK);
    CHECK_EQ(ta_sim_fill(sim, 0, NULL, at + GIB, 1, GIB), TA_OK);
    CHECK_EQ(ta_sim_fill(sim, 0, NULL, at, 1, GIB), TA_INVALID); /* not mapped */
    CHECK_EQ(violations(sim), 1);
    ta_sim_destroy(sim);
}

/* --- captures ------------------------------------------------------------------------ */
TEST(capture_and_replay)
{
    ta_sim *sim = machine((ta_sim_config){0});
    const ta_driver *d = ta_sim_driver(sim);
    ta_stream s, side;
    ta_event fork_event, join_event;
    ta_handle h;
    ta_sim_graph *graph, *outer;
    bool yes = true;
    uint64_t at = pages(sim, 1, &h);
    uint8_t *bytes = (uint8_t *)(uintptr_t)at;
    ta_sim_stream_create(sim, 0, false, &s);
    ta_sim_stream_create(sim, 0, false, &side);
    d->event_create(sim, 0, &fork_event);
    d->event_create(sim, 0, &join_event);
    CHECK_EQ(ta_sim_capture_begin(sim, 0, NULL), TA_INVALID); /* not the legacy stream */
    CHECK_EQ(ta_sim_capture_begin(sim, 0, s), TA_OK);
    CHECK_EQ(ta_sim_capture_begin(sim, 0, s), TA_INVALID);
    CHECK_EQ(ta_sim_capture_status(sim, 0, s), 1);
    CHECK(ta_sim_capture_id(sim, 0, s) != 0 && ta_sim_capture_id(sim, 0, side) == 0);
    CHECK_EQ(ta_sim_fill(sim, 0, s, at, 1, 100), TA_OK);
    CHECK_EQ(d->event_record(sim, fork_event, 0, s), TA_OK);
    CHECK_EQ(ta_sim_stream_wait_event(sim, 0, side, fork_event), TA_OK);
    CHECK_EQ(d->is_capturing(sim, 0, side, &yes), TA_OK);
    CHECK(yes);
    CHECK_EQ(ta_sim_capture_id(sim, 0, side), ta_sim_capture_id(sim, 0, s));
    CHECK_EQ(ta_sim_copy(sim, 0, side, at + 200, at, 100), TA_OK);
    CHECK_EQ(d->event_record(sim, join_event, 0, side), TA_OK);
    CHECK_EQ(ta_sim_stream_wait_event(sim, 0, s, join_event), TA_OK);
    CHECK_EQ(ta_sim_capture_end(sim, 0, side, &graph), TA_INVALID); /* not the first */
    CHECK_EQ(violations(sim), 1);
    CHECK_EQ(ta_sim_capture_status(sim, 0, s), 2);
    CHECK_EQ(ta_sim_capture_end(sim, 0, s, &graph), TA_DRIVER);
    CHECK(graph == NULL);
    CHECK_EQ(ta_sim_capture_status(sim, 0, side), 0);
    CHECK_EQ(bytes[0], 0); /* captured work does not run */

    CHECK_EQ(ta_sim_capture_begin(sim, 0, s), TA_OK);
    CHECK_EQ(ta_sim_fill(sim, 0, s, at, 1, 100), TA_OK);
    CHECK_EQ(d->event_record(sim, fork_event, 0, s), TA_OK);
    CHECK_EQ(ta_sim_stream_wait_event(sim, 0, side, fork_event), TA_OK);
    CHECK_EQ(ta_sim_copy(sim, 0, side, at + 200, at, 100), TA_OK);
    CHECK_EQ(d->event_record(sim, join_event, 0, side), TA_OK);
    CHECK_EQ(ta_sim_stream_wait_event(sim, 0, s, join_event), TA_OK);
    CHECK_EQ(ta_sim_capture_end(sim, 0, s, &graph), TA_OK);
    CHECK_EQ(bytes[0] + bytes[200], 0);
    CHECK_EQ(d->is_capturing(sim, 0, side, &yes), TA_OK);
    CHECK(!yes);
    CHECK_EQ(ta_sim_graph_launch(sim, graph, 0, side), TA_OK);
    CHECK_EQ(bytes[0] + bytes[299], 2);
    memset(bytes, 9, 300);
    CHECK_EQ(ta_sim_graph_launch(sim, graph, 0, side), TA_OK);
    CHECK_EQ(bytes[0] + bytes[299], 2);
    CHECK_EQ(d->event_query(sim, join_event), TA_INVALID); /* of no moment */
    /* A graph inside a graph. */
    CHECK_EQ(ta_sim_capture_begin(sim, 0, s), TA_OK);
    CHECK_EQ(ta_sim_graph_launch(sim, graph, 0, s), TA_OK);
    CHECK_EQ(ta_sim_capture_end(sim, 0, s, &outer), TA_OK);
    ta_sim_graph_destroy(sim, graph);
    memset(bytes, 9, 300);
    CHECK_EQ(ta_sim_graph_launch(sim, outer, 0, side), TA_OK);
    CHECK_EQ(bytes[0] + bytes[299], 2);
    ta_sim_graph_destroy(sim, outer);
    CHECK_EQ(violations(sim), 1);
    ta_sim_destroy(sim);
}

/* A capture, one call inside it, and whether it lives on. */
static bool survives(int mode, int call)
{
    ta_sim *sim = machine((ta_sim_config){.devices = 2});
    const ta_driver *d = ta_sim_driver(sim);
    ta_stream s, blocking, other;
    ta_event e, mine;
    ta_sim_graph *graph;
    ta_handle h;
    uintptr_t saved[2];
    uint64_t at = pages(sim, 1, &h), plain;
    ta_sim_stream_create(sim, 0, call == 5, &s);
    ta_sim_stream_create(sim, 0, true, &blocking);
    ta_sim_stream_create(sim, 0, false, &other);
    d->event_create(sim, 0, &e);
    d->event_create(sim, 0, &mine);
    ta_sim_launch(sim, 0, other, NULL, 0, 10);
    d->event_record(sim, e, 0, other);
    ta_sim_capture_begin_mode(sim, 0, s, mode);
    ta_sim_launch(sim, 0, s, NULL, 0, 10);
    ta_status status = TA_OK;
    switch (call) {
    case 0:
        status = d->event_query(sim, e);
        break;
    case 1:
        d->enter(sim, 0, saved);
        status = d->event_query(sim, e);
        if (status == TA_NOT_READY) status = d->event_wait(sim, e, TA_FOREVER_US);
        d->leave(sim, 0, saved);
        break;
    case 2:
        status = d->device_wait(sim, 0);
        break;
    case 3:
        status = ta_sim_stream_wait(sim, 0, other);
        break;
    case 4:
        status = ta_sim_stream_wait(sim, 0, s);
        break;
    case 5:
        status = ta_sim_launch(sim, 0, NULL, NULL, 0, 1);
        break; /* s is blocking */
    case 6:
        status = ta_sim_launch(sim, 0, NULL, NULL, 0, 1);
        break;
    case 7: /* legal in every mode */
        status = d->event_create(sim, 0, &e) || d->event_record(sim, e, 0, other) ||
                 d->unmap(sim, at, P2) || d->map(sim, at, P2, h) ||
                 ta_sim_launch(sim, 0, other, NULL, 0, 1);
        break;
    case 8:
        status = ta_sim_stream_wait_event(sim, 0, s, e);
        break; /* outside work */
    case 9:
        status = d->plain_alloc(sim, 0, P2, &plain);
        break;
    case 10: /* a stream that is not joined */
        d->event_record(sim, mine, 0, s);
        ta_sim_stream_wait_event(sim, 0, other, mine);
        break;
    case 11:
        status = d->device_wait(sim, 1);
        break;
    case 12:
        status = ta_sim_settle(sim, 0);
        break;
    default:
        break;
    }
    uint64_t before = violations(sim);
    ta_status ended = ta_sim_capture_end(sim, 0, s, &graph);
    bool lives = ended == TA_OK && before == 0 && status == TA_OK;
    bool died = ended == TA_DRIVER && graph == NULL && violations(sim) > 0;
    if (lives == died)
        printf("capture neither alive nor dead: mode %d call %d\n", mode, call);
    if (lives == died) ta_test_failed = 1;
    ta_sim_destroy(sim);
    return lives;
}

TEST(what_breaks_a_capture)
{
    CHECK(!survives(0, 0));
    CHECK(survives(0, 1));
    CHECK(!survives(0, 2));
    CHECK(!survives(2, 2));
    CHECK(!survives(0, 3));
    CHECK(survives(2, 3));
    CHECK(!survives(0, 4));
    CHECK(!survives(2, 4));
    CHECK(!survives(0, 5));
    CHECK(survives(0, 6));
    CHECK(survives(0, 7));
    CHECK(!survives(0, 8));
    CHECK(!survives(0, 9));
    CHECK(survives(2, 9));
    CHECK(!survives(0, 10));
    CHECK(survives(0, 11));
    CHECK(survives(0, 12));
}

/* --- threads --------------------------------------------------------------------------- */
typedef struct worker {
    ta_sim *sim;
    int number;
    int wrong;
} worker;

static void *work(void *context)
{
    worker *w = context;
    const ta_driver *d = ta_sim_driver(w->sim);
    const int zero = 0;
    uint64_t at;
    ta_event e;
    ta_stream s;
    w->wrong += d->reserve(w->sim, 8 * P2, 0, &at) != TA_OK;
    w->wrong += d->event_create(w->sim, 0, &e) != TA_OK;
    w->wrong += ta_sim_stream_create(w->sim, 0, w->number % 2, &s) != TA_OK;
    for (int i = 0; i < 200; i++) {
        uintptr_t saved[2];
        ta_handle h;
        ta_stream mine = i % 3 ? s : (ta_stream)2;
        uint64_t addr = at + (uint64_t)(i % 8) * P2;
        w->wrong += d->enter(w->sim, 0, saved) != TA_OK;
        w->wrong += d->create(w->sim, 0, TA_TIER_DEVICE, P2, &h) != TA_OK;
        w->wrong += d->map(w->sim, addr, P2, h) != TA_OK;
        w->wrong += d->set_access(w->sim, addr, P2, &zero, 1) != TA_OK;
        w->wrong += ta_sim_fill(w->sim, 0, mine, addr, w->number, 4096) != TA_OK;
        w->wrong += d->event_record(w->sim, e, 0, mine) != TA_OK;
        w->wrong += d->event_wait(w->sim, e, TA_FOREVER_US) != TA_OK;
        w->wrong += *(uint8_t *)(uintptr_t)(addr + 4095) != w->number;
        w->wrong += d->unmap(w->sim, addr, P2) != TA_OK;
        w->wrong += d->release(w->sim, h, P2) != TA_OK;
        d->leave(w->sim, 0, saved);
    }
    w->wrong += d->event_destroy(w->sim, e) != TA_OK;
    w->wrong += d->unreserve(w->sim, at, 8 * P2) != TA_OK;
    w->wrong += ta_sim_stream_destroy(w->sim, s) != TA_OK;
    return NULL;
}

TEST(threads)
{
    ta_sim *sim = machine((ta_sim_config){.devices = 1});
    pthread_t threads[6];
    worker workers[6];
    for (int i = 0; i < 6; i++) {
        workers[i] = (worker){sim, i + 1, 0};
        CHECK_EQ(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < 6; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 6; i++) CHECK_EQ(workers[i].wrong, 0);
    CHECK_EQ(ta_sim_used(sim, 0, false), 0);
    CHECK_EQ(ta_sim_reserved_addresses(sim), 0);
    if (violations(sim)) TA_TEST_FAIL("%s", ta_sim_first_violation(sim, NULL));
    ta_sim_destroy(sim);
}

TEST_MAIN()
