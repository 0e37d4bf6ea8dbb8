/* test_addresses.c - ranges of addresses that go from one device to another. */
#include <pthread.h>

#include "world.h"

/* A driver that, right after a range has gone, lets another thread take memory on device 1:
 * it is likely to get the very same addresses. */
typedef struct handover {
    ta_driver driver;
    const ta_driver *real;
    world *w;
    held taken;
    ta_status status;
    bool armed;
} handover;
static handover it;

static void *take_on_other(void *context)
{
    (void)context;
    it.status = world_alloc(it.w, &it.taken, 8 * MiB, 1, NULL);
    return NULL;
}

static ta_status unreserve(void *self, uint64_t addr, uint64_t size)
{
    ta_status status = it.real->unreserve(self, addr, size);
    pthread_t thread;
    if (!it.armed || status) return status;
    it.armed = false;
    if (pthread_create(&thread, NULL, take_on_other, NULL)) return status;
    pthread_join(thread, NULL);
    return status;
}

/* Says whether the addresses were the same: it is for the system to choose. */
static void hand_over(bool *met)
{
    world w;
    held first, other;
    ta_sim_config config = {.devices = 2, .memory = GiB, .seed = 1};
    memset(&w, 0, sizeof w);
    w.devices = 2;
    CHECK_EQ(ta_sim_create(&config, &w.sim), TA_OK);
    it = (handover){.real = ta_sim_driver(w.sim), .w = &w, .status = TA_INVALID};
    it.driver = *it.real;
    it.driver.unreserve = unreserve;
    w.driver = &it.driver;
    CHECK_EQ(ta_allocator_create(w.driver, NULL, &w.allocator), TA_OK);
    CHECK_EQ(world_alloc(&w, &other, 8 * MiB, 1, NULL), TA_OK); /* both devices are met */
    CHECK_EQ(ta_free(w.allocator, other.at), TA_OK);
    CHECK_EQ(ta_trim(w.allocator, 1, NULL), TA_OK);
    CHECK_EQ(world_alloc(&w, &first, 8 * MiB, 0, NULL), TA_OK);
    char *was = (char *)first.at;
    CHECK_EQ(ta_free(w.allocator, first.at), TA_OK);
    it.armed = true;
    CHECK_EQ(ta_trim(w.allocator, 0, NULL), TA_OK);
    CHECK(!it.armed);
    CHECK_EQ(it.status, TA_OK);
    *met = (char *)it.taken.at == was;
    void *base;
    size_t size;
    CHECK_EQ(ta_base_address(w.allocator, it.taken.at, &base, &size), TA_OK);
    CHECK_EQ(ta_free(w.allocator, it.taken.at), TA_OK);
    CHECK_EQ(ta_trim(w.allocator, -1, NULL), TA_OK);
    world_close(&w);
}

TEST(a_range_that_another_device_gets_at_once)
{
    bool met = false;
    for (int i = 0; i < 40 && !met && !ta_test_failed; i++) hand_over(&met);
    CHECK(met);
}

TEST_MAIN()
