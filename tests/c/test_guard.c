/* test_guard.c - guarded blocks: what is written out of bounds is found, what was freed is gone,
 * and a program that does no wrong notices nothing. */
#include "world.h"

#define PAGE (2 * MiB)

static void open_guarded(world *w, int devices, uint64_t memory)
{
    const ta_sim_config config = {.devices = devices, .memory = memory, .seed = 5};
    const ta_config policy = {.guard = true};
    world_open_with(w, &config, 3, &policy);
}

static bool found(world *w, ta_guard_finding *f)
{
    return ta_guard_next(w->allocator, f);
}

static bool touch(world *w, uint64_t addr, uint64_t size)
{
    const ta_sim_range range = {addr, size, false};
    uint64_t before = 0, after = 0;
    ta_sim_first_violation(w->sim, &before);
    ta_sim_launch(w->sim, 0, w->stream[0][1], &range, 1, 1);
    ta_sim_first_violation(w->sim, &after);
    return before == after;
}

/* After violations that were meant. */
static void close_violated(world *w)
{
    ta_oracle_end(w->sim);
    ta_allocator_destroy(w->allocator);
    CHECK_EQ(ta_sim_used(w->sim, 0, false), 0);
    CHECK_EQ(ta_sim_reserved_addresses(w->sim), 0);
    ta_sim_destroy(w->sim);
}

TEST(a_block_ends_where_its_mapping_does)
{
    const uint64_t sizes[] = {1, 512, 513, 4096, MiB, PAGE - 1, PAGE, PAGE + 1, 9 * MiB};
    world w;
    held h;
    open_guarded(&w, 1, GiB);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        CHECK_EQ(world_alloc(&w, &h, sizes[i], 0, w.stream[0][1]), TA_OK);
        const uint64_t at = (uintptr_t)h.at, end = at + world_round(sizes[i], TA_GRANULE);
        CHECK_EQ(at % TA_GRANULE, 0);
        CHECK_EQ(end % PAGE, 0);
        CHECK_EQ(ta_sim_used(w.sim, 0, false), world_round(sizes[i], PAGE));
        CHECK(touch(&w, at, sizes[i]));
        CHECK(!touch(&w, end, 1)); /* nothing is mapped behind it */
        CHECK(!touch(&w, at, end - at + 1));
        CHECK(!touch(&w, end - world_round(sizes[i], PAGE) - 1, 1)); /* nor before */
        CHECK_EQ(ta_free(w.allocator, h.at), TA_OK);
    }
    close_violated(&w);
}

TEST(what_was_freed_is_gone_at_once)
{
    world w;
    held a, b;
    open_guarded(&w, 1, GiB);
    CHECK_EQ(world_alloc(&w, &a, 3 * MiB, 0, w.stream[0][1]), TA_OK);
    world_use(&w, &a, a.stream, true, 4000);
    const double since = ta_sim_now_us(w.sim);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    CHECK(ta_sim_now_us(w.sim) - since >=
          3900); /* but not before its stream has passed */
    CHECK_EQ(ta_sim_used(w.sim, 0, false), 0);
    CHECK_EQ(world_stats(&w, 0).reserved.current, 0);
    world_check(&w);
    for (int i = 0; i < 100; i++) { /* and its addresses are nobody's */
        CHECK_EQ(world_alloc(&w, &b, 3 * MiB, 0, w.stream[0][1]), TA_OK);
        CHECK(b.at != a.at);
        CHECK_EQ(ta_free(w.allocator, b.at), TA_OK);
    }
    world_check(&w);
    CHECK(!touch(&w, (uintptr_t)a.at, 1));
    close_violated(&w);
}

/* As torch's default stream and those of its pool: marked when their memory is wanted. */
TEST(of_streams_that_last_too)
{
    world w;
    held h;
    open_guarded(&w, 1, GiB);
    CHECK_EQ(ta_set_stream_life(w.allocator, world_lasting, NULL), TA_OK);
    for (int i = 0; i < 6; i++) {
        CHECK_EQ(world_alloc(&w, &h, MiB, 0, w.stream[0][i % 3]), TA_OK);
        world_use(&w, &h, h.stream, true, 100 * (double)i);
        CHECK_EQ(ta_free(w.allocator, h.at), TA_OK);
        CHECK_EQ(ta_sim_used(w.sim, 0, false), 0);
    }
    world_close(&w);
}

TEST(addresses_are_given_back_after_a_long_while)
{
    world w;
    held h;
    open_guarded(&w, 1, GiB);
    for (int i = 0; i < 4200; i++) {
        CHECK_EQ(world_alloc(&w, &h, 100, 0, NULL), TA_OK);
        CHECK_EQ(ta_free(w.allocator, h.at), TA_OK);
    }
    CHECK_EQ(ta_sim_reserved_addresses(w.sim), 4096 * 3 * PAGE);
    world_close(&w);
}

static void damage(world *w, uint64_t size, int64_t at, int count, ta_guard_finding *f)
{
    held h;
    CHECK_EQ(world_alloc(w, &h, size, 0, w->stream[0][1]), TA_OK);
    h.serial = 7;
    world_write(&h); /* right up to its last byte */
    for (int i = 0; i < count; i++) h.at[at + i] = 0x11;
    CHECK_EQ(ta_free(w->allocator, h.at), TA_OK);
    memset(f, 0, sizeof *f);
    CHECK(found(w, f));
    CHECK_EQ(f->kind, TA_GUARD_WRITTEN);
    CHECK_EQ(f->addr, (uintptr_t)h.at);
    CHECK_EQ(f->size, size);
    CHECK_EQ(f->at, at);
    CHECK_EQ(f->bytes, count);
    CHECK_EQ(f->found, 0x11);
    CHECK(f->stream == h.stream);
}

TEST(writes_out_of_bounds_are_found)
{
    world w;
    held h;
    ta_guard_finding f;
    char text[600];
    open_guarded(&w, 1, GiB);
    damage(&w, 1000, 1000, 1, &f);
    CHECK(f.serial != 0);
    ta_guard_text(&f, "train.py:12 step", text, sizeof text);
    CHECK(strstr(text,
                 "1 byte outside of a block were written, the nearest right behind its "
                 "end (byte 1000, 0x11 in place of 0xa5)"));
    CHECK(strstr(text, "1000 bytes at 0x"));
    CHECK(strstr(text, ", made at train.py:12 step)"));
    damage(&w, 1000, 1003, 4, &f);
    ta_guard_text(&f, NULL, text, sizeof text);
    CHECK(strstr(text,
                 "4 bytes outside of a block were written, the nearest 3 bytes past"));
    CHECK(!strstr(text, "made at"));
    damage(&w, 1000, -1, 1, &f);
    ta_guard_text(&f, NULL, text, sizeof text);
    CHECK(strstr(text, "1 byte before its start (byte -1,"));
    damage(&w, 1000, -2, 1, &f);
    damage(&w, 1, 511, 1, &f);
    damage(&w, PAGE - 3, PAGE - 1, 1, &f);
    damage(&w, 5 * MiB + 1, 5 * MiB + 1, 511, &f);
    /* Nothing was written around these. */
    const uint64_t sizes[] = {1, 512, 1000, PAGE, PAGE - 512, 7 * MiB + 99};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        CHECK_EQ(world_alloc(&w, &h, sizes[i], 0, NULL), TA_OK);
        h.serial = i + 1;
        world_write(&h);
        CHECK_EQ(ta_free(w.allocator, h.at), TA_OK);
        CHECK(!found(&w, &f));
    }
    world_close(&w);
}

TEST(the_next_allocation_fails_until_it_was_told)
{
    world w;
    held a, b;
    ta_guard_finding f;
    ta_oom oom;
    void *at;
    open_guarded(&w, 1, GiB);
    CHECK_EQ(world_alloc(&w, &a, 100, 0, NULL), TA_OK);
    a.at[100] = 0;
    CHECK_EQ(world_alloc(&w, &b, 100, 0, NULL), TA_OK); /* nobody has looked yet */
    CHECK_EQ(ta_guard_look(w.allocator), TA_OK);
    CHECK_EQ(ta_alloc(w.allocator, 100, 0, NULL, &at, &oom), TA_GUARDED);
    CHECK_EQ(oom.status, TA_GUARDED);
    CHECK(at == NULL);
    CHECK(found(&w, &f));
    CHECK_EQ(f.at, 100);
    CHECK(!found(&w, &f));
    CHECK_EQ(world_alloc(&w, &b, 100, 0, NULL), TA_OK);
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK); /* told once */
    CHECK(!found(&w, &f));
    for (int i = 0; i < 100; i++) { /* more than are kept: the first are */
        CHECK_EQ(world_alloc(&w, &b, 100 + (uint64_t)i, 0, NULL), TA_OK);
        if (i == 0) a = b;
        b.at[100 + i] = 0;
    }
    CHECK_EQ(ta_guard_look(w.allocator), TA_OK);
    int told = 0;
    while (found(&w, &f)) told++;
    CHECK_EQ(told, 64);
    world_close(&w);
}

TEST(a_free_of_no_block_is_found)
{
    world w;
    held h;
    ta_guard_finding f;
    char text[600];
    int local;
    open_guarded(&w, 1, GiB);
    CHECK_EQ(world_alloc(&w, &h, 700, 0, NULL), TA_OK);
    CHECK_EQ(ta_free(w.allocator, h.at), TA_OK);
    CHECK_EQ(ta_free(w.allocator, h.at), TA_INVALID);
    ta_guard_bad_free(w.allocator, h.at);
    CHECK(found(&w, &f));
    CHECK_EQ(f.kind, TA_GUARD_BAD_FREE);
    CHECK_EQ(f.size, 700);
    CHECK(f.serial != 0);
    ta_guard_text(&f, NULL, text, sizeof text);
    CHECK(strstr(text, "where no block lives; there was one of 700 bytes"));
    ta_guard_bad_free(w.allocator, &local);
    CHECK(found(&w, &f));
    CHECK_EQ(f.serial, 0);
    ta_guard_text(&f, NULL, text, sizeof text);
    CHECK(strstr(text, "where no block begins"));
    world_close(&w);
}

TEST(streams_that_were_recorded_are_waited_for)
{
    world w;
    held h;
    open_guarded(&w, 1, GiB);
    CHECK_EQ(world_alloc(&w, &h, MiB, 0, w.stream[0][1]), TA_OK);
    world_use(&w, &h, w.stream[0][2], false, 8000);
    CHECK_EQ(ta_record_stream(w.allocator, h.at, w.stream[0][2]), TA_OK);
    CHECK_EQ(ta_free(w.allocator, h.at), TA_OK);
    CHECK_EQ(ta_sim_used(w.sim, 0, false), 0);
    world_close(&w); /* the oracle saw no mapping go too early */
}

/* A stream may itself wait for what this thread has yet to launch. */
TEST(a_slow_stream_is_left_to_a_later_call)
{
    world w;
    held slow, h;
    open_guarded(&w, 1, GiB);
    CHECK_EQ(world_alloc(&w, &slow, MiB, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(world_alloc(&w, &h, MiB, 0, w.stream[0][2]), TA_OK);
    world_use(&w, &slow, slow.stream, true, 9e6);
    CHECK_EQ(ta_free(w.allocator, slow.at), TA_OK);
    CHECK_EQ(ta_sim_used(w.sim, 0, false), 2 * PAGE);
    ta_sim_advance_us(w.sim, 9e6);
    CHECK_EQ(ta_free(w.allocator, h.at), TA_OK);
    CHECK_EQ(ta_sim_used(w.sim, 0, false), 0);
    world_close(&w);
}

TEST(a_captured_stream_is_left_alone)
{
    world w;
    held h;
    ta_sim_graph *graph = NULL;
    open_guarded(&w, 1, GiB);
    CHECK_EQ(ta_set_stream_life(w.allocator, world_lasting, NULL), TA_OK);
    CHECK_EQ(world_alloc(&w, &h, MiB, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(ta_sim_capture_begin(w.sim, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(ta_free(w.allocator, h.at), TA_OK);
    CHECK_EQ(ta_sim_used(w.sim, 0, false), PAGE);
    CHECK_EQ(world_alloc(&w, &h, MiB, 0, w.stream[0][2]), TA_OK); /* legal meanwhile */
    CHECK_EQ(ta_sim_capture_end(w.sim, 0, w.stream[0][1], &graph), TA_OK);
    CHECK_EQ(ta_free(w.allocator, h.at), TA_OK);
    CHECK_EQ(ta_sim_used(w.sim, 0, false), 0);
    ta_sim_graph_destroy(w.sim, graph);
    world_close(&w);
}

static bool accepts(void *context, ta_stream stream) { return stream == context; }

TEST(a_graph_pool_keeps_what_it_had)
{
    const ta_pool_id id = {0, 9};
    world w;
    held h, other;
    void *context;
    ta_sim_graph *graph = NULL;
    open_guarded(&w, 1, GiB);
    ta_stream stream = w.stream[0][1];
    CHECK_EQ(ta_pool_begin(w.allocator, 0, id, accepts, stream), TA_OK);
    CHECK_EQ(ta_sim_capture_begin(w.sim, 0, stream), TA_OK);
    CHECK_EQ(world_alloc(&w, &h, MiB, 0, stream), TA_OK);
    world_use(&w, &h, stream, true, 10);
    CHECK_EQ(ta_free(w.allocator, h.at), TA_OK);
    CHECK_EQ(ta_sim_capture_end(w.sim, 0, stream, &graph), TA_OK);
    CHECK_EQ(ta_pool_end(w.allocator, 0, id, &context), TA_OK);
    CHECK_EQ(world_alloc(&w, &other, MiB, 0, NULL), TA_OK);
    CHECK_EQ(ta_free(w.allocator, other.at), TA_OK);
    CHECK_EQ(ta_sim_used(w.sim, 0, false), PAGE);
    CHECK_EQ(ta_sim_graph_launch(w.sim, graph, 0, stream), TA_OK);
    world_check(&w);
    ta_sim_graph_destroy(w.sim, graph);
    CHECK_EQ(ta_pool_release(w.allocator, 0, id), TA_OK);
    CHECK_EQ(ta_trim(w.allocator, 0, NULL), TA_OK);
    CHECK_EQ(ta_sim_used(w.sim, 0, false), 0);
    world_close(&w);
}

TEST(caps_hold)
{
    world w;
    held h[4];
    open_guarded(&w, 1, GiB);
    CHECK_EQ(ta_set_limit(w.allocator, 0, TA_LIMIT_API, 3 * PAGE), TA_OK);
    for (int i = 0; i < 3; i++) CHECK_EQ(world_alloc(&w, &h[i], 1, 0, NULL), TA_OK);
    CHECK_EQ(world_alloc(&w, &h[3], 1, 0, NULL), TA_OUT_OF_MEMORY);
    CHECK_EQ(ta_free(w.allocator, h[0].at), TA_OK);
    CHECK_EQ(world_alloc(&w, &h[3], 1, 0, NULL), TA_OK);
    CHECK_EQ(world_stats(&w, 0).reserved.peak, 3 * PAGE);
    world_close(&w);
}

TEST(another_device_may_touch_it)
{
    world w;
    held a, b, c;
    open_guarded(&w, 2, GiB);
    CHECK_EQ(world_alloc(&w, &a, MiB, 0, NULL), TA_OK);
    CHECK_EQ(world_alloc(&w, &b, MiB, 1, NULL), TA_OK);
    CHECK_EQ(world_alloc(&w, &c, MiB, 0, NULL), TA_OK);
    const ta_sim_range ranges[] = {{(uintptr_t)a.at, MiB, false},
                                   {(uintptr_t)c.at, MiB, false},
                                   {(uintptr_t)b.at, MiB, true}};
    CHECK_EQ(ta_sim_launch(w.sim, 1, w.stream[1][1], ranges, 3, 5), TA_OK);
    world_check(&w);
    CHECK_EQ(ta_sim_stream_wait(w.sim, 1, w.stream[1][1]), TA_OK);
    world_close(&w);
}

TEST(regions_do_not_go_to_the_host)
{
    world w;
    ta_region_config config = {.page_bytes = 0};
    ta_region_id id, before;
    ta_sleep_info moved;
    open_guarded(&w, 1, GiB);
    CHECK_EQ(ta_region_open(w.allocator, "weights", &config, &id), TA_OK);
    held h;
    CHECK_EQ(ta_region_enter(w.allocator, id, &before), TA_OK);
    CHECK_EQ(world_alloc(&w, &h, MiB, 0, NULL), TA_OK);
    CHECK_EQ(ta_region_enter(w.allocator, before, &before), TA_OK);
    CHECK_EQ(ta_region_sleep(w.allocator, id, true, &moved), TA_UNSUPPORTED);
    world_close(&w);
}

TEST(without_vmm_it_is_refused)
{
    const ta_sim_config config = {.devices = 1, .memory = GiB, .no_vmm = true};
    const ta_config policy = {.guard = true, .fallback = true};
    world w;
    held h;
    world_open_with(&w, &config, 1, &policy);
    CHECK_EQ(world_alloc(&w, &h, MiB, 0, NULL), TA_UNSUPPORTED);
    world_close(&w);
}

/* Whatever call fails at whichever time: one refusal, nothing left behind, and it works then. */
TEST(every_failure_rolls_back)
{
    const ta_sim_call calls[] = {TA_SIM_CALL_reserve, TA_SIM_CALL_create,
                                 TA_SIM_CALL_map,     TA_SIM_CALL_set_access,
                                 TA_SIM_CALL_fill,    TA_SIM_CALL_release};
    world w;
    held h;
    ta_guard_finding f;
    open_guarded(&w, 1, GiB);
    CHECK_EQ(world_alloc(&w, &h, 1000, 0, NULL), TA_OK);
    CHECK_EQ(ta_free(w.allocator, h.at), TA_OK);
    const uint64_t addresses = ta_sim_reserved_addresses(w.sim);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (uint64_t k = 1; k <= 2; k++) {
            if (k == 2 && calls[i] != TA_SIM_CALL_fill) continue;
            ta_sim_fail(w.sim, calls[i], k, 0, TA_DRIVER);
            CHECK(world_alloc(&w, &h, 1000, 0, NULL) != TA_OK);
            ta_sim_fail(w.sim, TA_SIM_CALL_COUNT, 0, 0, TA_OK);
            CHECK_EQ(ta_sim_used(w.sim, 0, false), 0);
            CHECK_EQ(ta_sim_reserved_addresses(w.sim), addresses);
            world_check(&w);
        }
    /* A free whose unmapping fails, or whose looking does. */
    CHECK_EQ(world_alloc(&w, &h, 1000, 0, NULL), TA_OK);
    h.at[1000] = 0;
    ta_sim_fail(w.sim, TA_SIM_CALL_unmap, 1, 0, TA_DRIVER);
    CHECK_EQ(ta_free(w.allocator, h.at), TA_OK);
    ta_sim_fail(w.sim, TA_SIM_CALL_COUNT, 0, 0, TA_OK);
    CHECK_EQ(ta_sim_used(w.sim, 0, false), PAGE);
    world_check(&w);
    CHECK(found(&w, &f));
    CHECK_EQ(world_alloc(&w, &h, 1000, 0, NULL), TA_OK);
    ta_sim_fail(w.sim, TA_SIM_CALL_read, 1, 1, TA_DRIVER);
    CHECK_EQ(ta_free(w.allocator, h.at), TA_OK);
    CHECK_EQ(ta_sim_used(w.sim, 0, false), 0);
    CHECK(!found(&w, &f));
    world_close(&w);
}

TEST(random_with_failures)
{
    enum { SLOTS = 48, STEPS = 4000 };
    static held slot[SLOTS];
    world w;
    uint64_t random = 3, refused = 0;
    ta_guard_finding f;
    memset(slot, 0, sizeof slot);
    open_guarded(&w, 1, 512 * MiB);
    for (int i = 0; i < STEPS && !ta_test_failed; i++) {
        held *h = &slot[world_random(&random) % SLOTS];
        if (world_random(&random) % 16 == 0)
            ta_sim_fail(w.sim, TA_SIM_CALL_COUNT, world_between(&random, 1, 8), 0,
                        TA_DRIVER);
        if (h->at) {
            CHECK(world_kept(h));
            if (world_random(&random) % 4 == 0) {
                ta_sim_stream_wait(w.sim, 0, h->stream); /* the two are ordered */
                world_use(&w, h, w.stream[0][2], false, -1);
                CHECK_EQ(ta_record_stream(w.allocator, h->at, w.stream[0][2]), TA_OK);
            }
            CHECK_EQ(ta_free(w.allocator, h->at), TA_OK);
            h->at = NULL;
        } else {
            const uint64_t size = 1 + world_random(&random) % (8 * MiB);
            const ta_stream stream = w.stream[0][world_random(&random) % 3];
            if (world_alloc(&w, h, size, 0, stream) != TA_OK) {
                refused++;
                continue;
            }
            h->serial = (uint64_t)i + 1;
            world_write(h);
            world_use(&w, h, stream, true, -1);
        }
        if (i % 32 == 0) world_check(&w);
    }
    ta_sim_fail(w.sim, TA_SIM_CALL_COUNT, 0, 0, TA_OK);
    CHECK(refused > 0);
    CHECK(refused < STEPS / 4);
    for (int s = 0; s < SLOTS; s++)
        if (slot[s].at) CHECK_EQ(ta_free(w.allocator, slot[s].at), TA_OK);
    CHECK_EQ(ta_trim(w.allocator, -1, NULL), TA_OK);
    CHECK_EQ(ta_sim_used(w.sim, 0, false), 0);
    CHECK(!found(&w, &f));
    world_close(&w);
}

/* Another thread looks at all blocks while one is given back: never at what is unmapped. */
static struct {
    ta_driver driver;
    const ta_driver *real;
    ta_allocator *allocator;
    uint64_t failed;
} watched;

static ta_status unmap_and_look(void *self, uint64_t addr, uint64_t size)
{
    const ta_status status = watched.real->unmap(self, addr, size);
    if (watched.allocator) watched.failed += ta_guard_look(watched.allocator) != TA_OK;
    return status;
}

static ta_status read_and_count(void *self, int device, void *to, uint64_t from,
                                uint64_t bytes)
{
    const ta_status status = watched.real->read(self, device, to, from, bytes);
    watched.failed += status != TA_OK;
    return status;
}

TEST(what_is_being_unmapped_is_not_looked_at)
{
    const ta_sim_config config = {.devices = 1, .memory = GiB, .seed = 5};
    const ta_config policy = {.guard = true};
    uint64_t violations = 0;
    world w = {.devices = 1};
    held a, b;
    CHECK_EQ(ta_sim_create(&config, &w.sim), TA_OK);
    watched.real = ta_sim_driver(w.sim);
    watched.driver = *watched.real;
    watched.driver.unmap = unmap_and_look;
    watched.driver.read = read_and_count;
    CHECK_EQ(ta_allocator_create(&watched.driver, &policy, &w.allocator), TA_OK);
    CHECK_EQ(ta_add_observer(w.allocator, ta_oracle_observe, w.sim), TA_OK);
    CHECK_EQ(world_alloc(&w, &a, 1000, 0, NULL), TA_OK);
    CHECK_EQ(world_alloc(&w, &b, 3 * MiB, 0, NULL), TA_OK);
    watched.allocator = w.allocator;
    CHECK_EQ(ta_free(w.allocator, a.at), TA_OK);
    CHECK_EQ(ta_free(w.allocator, b.at), TA_OK);
    watched.allocator = NULL;
    CHECK_EQ(watched.failed, 0);
    ta_sim_first_violation(w.sim, &violations);
    CHECK_EQ(violations, 0);
    world_close(&w);
}

TEST_MAIN()
