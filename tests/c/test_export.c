/* test_export.c - pages handed to another machine's process: the same bytes at other
 * addresses, whoever writes; what may move or is gone is refused; nothing is left behind. */
#include <fcntl.h>
#include <unistd.h>

#include "export.h"
#include "world.h"

static void machine(world *w, uint64_t seed)
{
    world_open(w, &(ta_sim_config){.devices = 2, .memory = 2 * GiB, .seed = seed}, 2);
}

/* What the receiving process does with descriptors. */
static ta_status take(world *from, world *to, const ta_export_info *info,
                      ta_import **import, void **base)
{
    ta_status status = ta_import_open(to->allocator, info->device, info->page_bytes,
                                      info->pages, import);
    for (uint32_t i = 0; i < info->pages && !status; i++) {
        int fd;
        status = ta_export_pages(from->allocator, info->base, info->serial, i, 1, &fd);
        if (status) break;
        status = ta_import_page(*import, fd);
        close(fd);
    }
    return status ? status : ta_import_ready(*import, base);
}

TEST(the_same_bytes)
{
    world a, b;
    held small, large;
    ta_export_info info;
    ta_import *import = NULL;
    void *base = NULL;
    const char *why;
    machine(&a, 1);
    machine(&b, 2);
    CHECK_EQ(world_alloc(&a, &small, 700, 0, a.stream[0][1]), TA_OK);
    CHECK_EQ(world_alloc(&a, &large, 13 * MiB, 0, a.stream[0][1]), TA_OK);
    for (int i = 0; i < 2; i++) {
        held *h = i ? &large : &small;
        world_write(h);
        CHECK_EQ(ta_export_look(a.allocator, h->at + 5, &info, &why), TA_OK);
        CHECK_EQ(info.base, (uintptr_t)h->at);
        CHECK(info.first_page <= info.base);
        CHECK(info.first_page + info.pages * info.page_bytes >= info.base + h->size);
        CHECK_EQ(take(&a, &b, &info, &import, &base), TA_OK);
        held there = *h;
        there.at = (unsigned char *)base + (info.base - info.first_page);
        CHECK(there.at != h->at);
        CHECK(world_kept(&there));
        there.serial = 77; /* written there, read here */
        world_write(&there);
        h->serial = 77;
        CHECK(world_kept(h));
        /* Not charged to the one who was given it. */
        CHECK_EQ(world_stats(&b, 0).reserved.current, 0);
        ta_import_close(import);
    }
    CHECK_EQ(ta_sim_reserved_addresses(b.sim), 0);
    CHECK_EQ(ta_free(a.allocator, small.at), TA_OK);
    CHECK_EQ(ta_free(a.allocator, large.at), TA_OK);
    world_close(&b);
    world_close(&a);
}

/* The giver's memory may end first: the bytes stay with whoever has them. */
TEST(it_outlives_the_giver)
{
    world a, b;
    held h;
    ta_export_info info;
    ta_import *import = NULL;
    void *base = NULL;
    const char *why;
    machine(&a, 1);
    machine(&b, 2);
    CHECK_EQ(world_alloc(&a, &h, 5 * MiB, 0, a.stream[0][1]), TA_OK);
    world_write(&h);
    CHECK_EQ(ta_export_look(a.allocator, h.at, &info, &why), TA_OK);
    CHECK_EQ(take(&a, &b, &info, &import, &base), TA_OK);
    held there = h;
    there.at = (unsigned char *)base + (info.base - info.first_page);
    CHECK_EQ(ta_free(a.allocator, h.at), TA_OK);
    world_close(&a);
    CHECK(world_kept(&there));
    ta_import_close(import);
    world_close(&b);
}

TEST(what_may_not_be_is_refused)
{
    world w;
    held h, inside, later;
    ta_export_info info;
    ta_region_id region, before;
    const char *why;
    int fd, local = 0;
    machine(&w, 1);
    CHECK_EQ(ta_export_look(w.allocator, &local, &info, &why), TA_INVALID);
    CHECK_EQ(world_alloc(&w, &h, 5 * MiB, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(ta_export_look(w.allocator, h.at, &info, &why), TA_OK);
    CHECK_EQ(ta_export_pages(w.allocator, info.base, info.serial, info.pages, 1, &fd),
             TA_INVALID);
    CHECK_EQ(ta_export_pages(w.allocator, info.base + TA_GRANULE, info.serial, 0, 1, &fd),
             TA_INVALID);
    CHECK_EQ(ta_free(w.allocator, h.at), TA_OK);
    CHECK_EQ(ta_export_pages(w.allocator, info.base, info.serial, 0, 1, &fd), TA_INVALID);
    /* Another block at the same address is another block. */
    CHECK_EQ(world_alloc(&w, &later, 5 * MiB, 0, w.stream[0][1]), TA_OK);
    CHECK(later.at == h.at);
    CHECK_EQ(ta_export_pages(w.allocator, info.base, info.serial, 0, 1, &fd), TA_INVALID);

    CHECK_EQ(ta_region_open(w.allocator, "kv", NULL, &region), TA_OK);
    CHECK_EQ(ta_region_enter(w.allocator, region, &before), TA_OK);
    CHECK_EQ(world_alloc(&w, &inside, 5 * MiB, 0, w.stream[0][1]), TA_OK);
    CHECK_EQ(ta_region_enter(w.allocator, before, &region), TA_OK);
    CHECK_EQ(ta_export_look(w.allocator, inside.at, &info, &why), TA_UNSUPPORTED);
    CHECK(strstr(why, "region") != NULL);
    CHECK_EQ(ta_free(w.allocator, inside.at), TA_OK);
    CHECK_EQ(ta_free(w.allocator, later.at), TA_OK);
    world_close(&w);
}

static bool everything(void *context, ta_stream stream)
{
    (void)context, (void)stream;
    return true;
}

/* The wait before it is unmapped would break a capture: it comes after. */
TEST(not_unmapped_in_a_capture)
{
    world a, b;
    held h, mine;
    ta_export_info info;
    ta_import *import = NULL;
    void *base = NULL, *context;
    const char *why;
    const ta_pool_id id = {3, 4};
    machine(&a, 1);
    machine(&b, 2);
    CHECK_EQ(world_alloc(&a, &h, 5 * MiB, 0, a.stream[0][1]), TA_OK);
    CHECK_EQ(ta_export_look(a.allocator, h.at, &info, &why), TA_OK);
    CHECK_EQ(take(&a, &b, &info, &import, &base), TA_OK);
    CHECK_EQ(ta_pool_begin(b.allocator, 0, id, everything, NULL), TA_OK);
    CHECK_EQ(world_alloc(&b, &mine, MiB, 0, b.stream[0][1]), TA_OK);
    ta_import_close(import);
    *(volatile unsigned char *)base = 1; /* still there */
    CHECK_EQ(ta_pool_end(b.allocator, 0, id, &context), TA_OK);
    CHECK_EQ(ta_pool_release(b.allocator, 0, id), TA_OK);
    CHECK_EQ(ta_free(b.allocator, mine.at), TA_OK);
    CHECK_EQ(take(&a, &b, &info, &import, &base), TA_OK); /* settles what lingered */
    ta_import_close(import);
    CHECK_EQ(ta_free(a.allocator, h.at), TA_OK);
    world_close(&b);
    world_close(&a);
}

/* A cap that is lowered sends live blocks to the host, but none that others look at. */
TEST(what_was_handed_out_stays_on_the_device)
{
    world a, b;
    held mine, other;
    ta_export_info info;
    ta_import *import = NULL;
    void *base = NULL;
    const char *why;
    ta_step_info step;
    machine(&a, 1);
    machine(&b, 2);
    ta_oracle_allow_moves(a.sim, true);
    const ta_spill_config spill = {.host_bytes = 256 * MiB, .net = true};
    CHECK_EQ(ta_set_spill(a.allocator, &spill), TA_OK);
    CHECK_EQ(world_alloc(&a, &mine, 16 * MiB, 0, a.stream[0][0]), TA_OK);
    CHECK_EQ(world_alloc(&a, &other, 16 * MiB, 0, a.stream[0][0]), TA_OK);
    world_write(&mine);
    CHECK_EQ(ta_export_look(a.allocator, mine.at, &info, &why), TA_OK);
    CHECK_EQ(take(&a, &b, &info, &import, &base), TA_OK);
    CHECK_EQ(ta_set_limit(a.allocator, 0, TA_LIMIT_API, 8 * MiB), TA_OK);
    CHECK_EQ(ta_step(a.allocator, 0, &step), TA_OK);
    CHECK_EQ(step.sent_out, 16 * MiB); /* the other block */
    held there = mine;
    there.at = (unsigned char *)base + (info.base - info.first_page);
    there.serial = 77;
    world_write(&there);
    mine.serial = 77;
    CHECK(world_kept(&mine));
    ta_import_close(import);
    CHECK_EQ(ta_free(a.allocator, mine.at), TA_OK);
    CHECK_EQ(ta_free(a.allocator, other.at), TA_OK);
    world_close(&b);
    world_close(&a);
}

/* A driver that fails at its k-th call of a kind: one refusal, and nothing is left. */
TEST(failures_roll_back)
{
    static const ta_sim_call kinds[] = {TA_SIM_CALL_reserve, TA_SIM_CALL_import_page,
                                        TA_SIM_CALL_map, TA_SIM_CALL_set_access,
                                        TA_SIM_CALL_export_page};
    world a, b;
    held h, own;
    ta_export_info info;
    ta_import *import = NULL;
    void *base = NULL;
    const char *why;
    machine(&a, 1);
    machine(&b, 2);
    CHECK_EQ(world_alloc(&a, &h, 13 * MiB, 0, a.stream[0][1]), TA_OK);
    CHECK_EQ(world_alloc(&b, &own, MiB, 0, b.stream[0][1]), TA_OK);
    CHECK_EQ(ta_export_look(a.allocator, h.at, &info, &why), TA_OK);
    const uint64_t addresses = ta_sim_reserved_addresses(b.sim),
                   used = ta_sim_used(b.sim, 0, false);
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
        for (uint64_t k = 1; k <= 2; k++) {
            ta_sim *failing = kinds[kind] == TA_SIM_CALL_export_page ? a.sim : b.sim;
            ta_sim_fail(failing, kinds[kind], k, 1, TA_DRIVER);
            const ta_status status = take(&a, &b, &info, &import, &base);
            ta_sim_fail(failing, kinds[kind], 0, 0, TA_OK);
            CHECK(status == TA_DRIVER || k == 2);
            ta_import_close(import);
            CHECK_EQ(ta_sim_reserved_addresses(b.sim), addresses);
            CHECK_EQ(ta_sim_used(b.sim, 0, false), used);
        }
    CHECK_EQ(ta_free(b.allocator, own.at), TA_OK);
    CHECK_EQ(ta_free(a.allocator, h.at), TA_OK);
    world_close(&b);
    world_close(&a);
}

TEST_MAIN()
