/* test_sleep_faults.c - a region sleeps and wakes under a cap that it shares, and every call of
 * the driver fails: once, three times in a row, or until the user's call has ended; in the long
 * test among the calls of its kind, too.
 *
 * A neighbour in the ledger either keeps what it has, or takes whatever there is room for as soon
 * as a page is unmapped, released or mapped, so that a sleep finds no way back and a wake runs out
 * half way. Whatever fails: ta_check holds, the ledger says what the driver gave, the two
 * together never have more than the cap, and once the neighbour has given back what it took the
 * same call succeeds, and every byte is there. */
#include <pthread.h>

#include "ledger_people.h"
#include "spill_world.h"

#define CAPPED (24 * MiB)
#define PAGE (2 * MiB)
enum { FEW = 5 };

/* The machine's driver, with the neighbour at every call that gives or takes memory. */
static struct {
    ta_driver driver;
    const ta_driver *real;
    ta_sim *sim;
    ta_ledger *ledger;
    uint64_t has; /* bytes of the neighbour's */
    bool greedy;
    uint64_t took; /* times that it did */
} beside;

static pthread_mutex_t one_by_one =
    PTHREAD_MUTEX_INITIALIZER; /* threads of ours map, too */

static void grab(void)
{
    pthread_mutex_lock(&one_by_one);
    const uint64_t both = ta_sim_used(beside.sim, 0, false) + beside.has;
    while (beside.greedy && !reserve(beside.ledger, PAGE, CAPPED)) {
        beside.has += PAGE;
        beside.took++;
    }
    pthread_mutex_unlock(&one_by_one);
    if (both > CAPPED) TA_TEST_FAIL("%llu bytes, over the cap", (unsigned long long)both);
}
static void give_back(uint64_t keep)
{
    beside.greedy = false;
    if (beside.has > keep) ta_ledger_release(beside.ledger, beside.has - keep);
    beside.has = keep;
}

static ta_status create(void *self, int device, ta_tier tier, uint64_t size,
                        ta_handle *handle)
{
    ta_status status = beside.real->create(self, device, tier, size, handle);
    grab();
    return status;
}
static ta_status map(void *self, uint64_t addr, uint64_t size, ta_handle handle)
{
    grab();
    return beside.real->map(self, addr, size, handle);
}
static ta_status unmap(void *self, uint64_t addr, uint64_t size)
{
    ta_status status = beside.real->unmap(self, addr, size);
    grab();
    return status;
}
static ta_status release(void *self, ta_handle handle, uint64_t size)
{
    ta_status status = beside.real->release(self, handle, size);
    grab();
    return status;
}

typedef struct scene {
    world w;
    ta_region_id id;
    held in[FEW], out;
} scene;

static void fill(scene *s, int i)
{
    ta_region_enter(s->w.allocator, s->id, NULL);
    bring(&s->w, &s->in[i], 1500 * KiB);
    ta_region_enter(s->w.allocator, 0, NULL);
}

static void begin(scene *s, bool touch)
{
    const ta_sim_config config = {.devices = 1, .memory = 64 * MiB, .seed = 9};
    const ta_config pages = {.page_bytes = PAGE};
    const ta_region_config region = {.page_bytes = PAGE, .touch_host = touch};
    const ta_spill_config spill = {.host_bytes = 64 * MiB};
    const ta_share_config share = {.directory = directory,
                                   .gpu = GPU,
                                   .label = "",
                                   .tenant = "",
                                   .caps = {CAPPED, TA_NO_LIMIT, false}};
    bool others;
    memset(s, 0, sizeof *s);
    memset(&beside, 0, sizeof beside);
    s->w.devices = 1;
    s->w.streams = 1;
    CHECK_EQ(ta_sim_create(&config, &s->w.sim), TA_OK);
    beside.sim = s->w.sim;
    beside.real = s->w.driver = ta_sim_driver(s->w.sim);
    beside.driver = *beside.real;
    beside.driver.create = create;
    beside.driver.map = map;
    beside.driver.unmap = unmap;
    beside.driver.release = release;
    CHECK_EQ(ta_allocator_create(&beside.driver, &pages, &s->w.allocator), TA_OK);
    CHECK_EQ(ta_add_observer(s->w.allocator, ta_oracle_observe, s->w.sim), TA_OK);
    ta_oracle_allow_moves(s->w.sim, true);
    CHECK_EQ(ta_share_open(s->w.allocator, 0, &share, &others, why), TA_OK);
    CHECK_EQ(ta_set_spill(s->w.allocator, &spill), TA_OK);
    beside.ledger = join(&nobody);
    CHECK(beside.ledger != NULL);
    CHECK_EQ(reserve(beside.ledger, 2 * PAGE, CAPPED), TA_OK);
    beside.has = 2 * PAGE;
    CHECK_EQ(ta_region_open(s->w.allocator, "weights", &region, &s->id), TA_OK);
    for (int i = 0; i < FEW; i++) fill(s, i);
    bring(&s->w, &s->out, 3 * MiB);
}

static void end(scene *s)
{
    for (int i = 0; i < FEW; i++) drop(&s->w, &s->in[i]);
    drop(&s->w, &s->out);
    good(&s->w);
    world_close(&s->w);
    ta_ledger_leave(beside.ledger);
}

/* The ledger says what the driver gave, to the byte, and nobody is over the cap. */
static void exact(scene *s)
{
    ta_share_state share;
    CHECK_EQ(ta_share_get(s->w.allocator, 0, &share), TA_OK);
    CHECK_EQ(share.held, ta_sim_used(s->w.sim, 0, false));
    CHECK_EQ(share.held, world_stats(&s->w, 0).reserved.current);
    CHECK(share.held + beside.has <= CAPPED);
    world_check(&s->w);
    kept(&s->out, 1);
}

static ta_status pass(scene *s, bool sleeping)
{
    return sleeping ? ta_region_sleep(s->w.allocator, s->id, true, NULL)
                    : ta_region_wake(s->w.allocator, s->id, NULL);
}

static uint64_t calls_made(const scene *s, ta_sim_call call)
{
    uint64_t sum = 0;
    for (int c = 0; c < TA_SIM_CALL_COUNT; c++)
        if (call == TA_SIM_CALL_COUNT || c == (int)call)
            sum += ta_sim_calls(s->w.sim, (ta_sim_call)c);
    return sum;
}

/* The k-th call of a kind fails in a sleep or a wake; not *reached: there is none. */
static void fail_at(scene *s, bool sleeping, bool greedy, ta_sim_call call, uint64_t k,
                    uint64_t times, bool *reached, int *refused)
{
    ta_region_info state;
    if (!sleeping) CHECK_EQ(pass(s, true), TA_OK);
    CHECK_EQ(ta_host_trim(s->w.allocator, NULL), TA_OK); /* it pins anew */
    const uint64_t first = calls_made(s, call) + k;
    beside.greedy = greedy;
    ta_sim_fail(s->w.sim, call, k, times,
                call == TA_SIM_CALL_create || (times && k % 2) ? TA_OUT_OF_MEMORY
                                                               : TA_DRIVER);
    const ta_status status = pass(s, sleeping);
    ta_sim_fail(s->w.sim, call, 0, 0, TA_OK);
    *reached = calls_made(s, call) >= first;
    *refused += status != TA_OK;
    exact(s);
    CHECK_EQ(living(), ta_sim_used(s->w.sim, 0, false) + beside.has);
    CHECK_EQ(ta_region_get(s->w.allocator, s->id, &state), TA_OK);
    if (!status) CHECK_EQ(state.asleep, sleeping);
    if (!state.asleep) kept(s->in, FEW);
    if (status && !greedy && !*reached) TA_TEST_FAIL("status %d unprovoked", (int)status);
    if (state.asleep && k % 2) drop(&s->w, &s->in[1]);
    give_back(2 * PAGE);
    CHECK_EQ(pass(s, sleeping), TA_OK); /* again, if it failed */
    exact(s);
    CHECK_EQ(pass(s, false), TA_OK);
    exact(s);
    kept(s->in, FEW);
    if (!s->in[1].at) fill(s, 1);
    good(&s->w);
}

static void walk(bool sleeping, bool touch, bool greedy)
{
    static const uint64_t times[] = {0, 2, UINT64_MAX / 2};
    const bool all = getenv("TA_TEST_LONG") != NULL;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    const uint64_t every = all ? 1 : 4;
#else
    const uint64_t every = 1;
#endif
    scene s;
    int refused = 0;
    open_directory();
    begin(&s, touch);
    for (int c = all ? 0 : TA_SIM_CALL_COUNT; c <= TA_SIM_CALL_COUNT; c++)
        for (size_t t = 0; t < 3 && !ta_test_failed; t++) {
            bool reached = all || (t == 1) == greedy; /* each manner where it does most */
            for (uint64_t k = 1; reached && !ta_test_failed; k += every) {
                fail_at(&s, sleeping, greedy, (ta_sim_call)c, k, times[t], &reached,
                        &refused);
                if (ta_test_failed)
                    printf("  call %d, k %d, times %d\n", c, (int)k, (int)t);
            }
        }
    CHECK(refused > 0);
    CHECK(beside.took > 0 || !greedy);
    end(&s);
    close_directory();
}

TEST(a_sleep) { walk(true, false, false); }
TEST(a_sleep_with_touch) { walk(true, true, false); }
TEST(a_sleep_beside_a_greedy_neighbour) { walk(true, false, true); }
TEST(a_sleep_with_touch_beside_a_greedy_neighbour) { walk(true, true, true); }
TEST(a_wake) { walk(false, false, false); }
TEST(a_wake_with_touch) { walk(false, true, false); }
TEST(a_wake_beside_a_greedy_neighbour) { walk(false, false, true); }
TEST(a_wake_with_touch_beside_a_greedy_neighbour) { walk(false, true, true); }

TEST_MAIN()
