/* Where blocks were allocated: modules and lines of threads, and of autograd's nodes. */
#include <pthread.h>

#include "core/records/history.h"
#include "core/records/place.h"
#include "usage_world.h"

/* With places told. */
static fixture begin(void)
{
    fixture f = set_up();
    ta_place_begin();
    return f;
}

static void end(fixture *f)
{
    ta_place_end();
    tear_down(f);
}

static uint64_t bytes_of(const fixture *f, uint16_t module, ta_usage_moment when)
{
    static ta_usage_block blocks[256];
    size_t count = ta_usage_blocks(f->u, 0, when, blocks, 256);
    uint64_t bytes = 0;
    for (size_t i = 0; i < count && i < 256; i++)
        if (blocks[i].module == module) bytes += blocks[i].size;
    return bytes;
}

static ta_usage_module counts_of(const fixture *f, uint16_t module)
{
    static ta_usage_module all[TA_USAGE_MODULES];
    memset(all, 0, sizeof all);
    ta_usage_modules(f->u, 0, all, TA_USAGE_MODULES);
    return all[module];
}

static int is_at(uint16_t module, uint16_t stack)
{
    ta_place now = ta_place_now();
    return now.module == module && now.stack == stack;
}

TEST(modules_nest_and_errors_leave_them)
{
    fixture f = begin();
    void *none = one(&f, 512);
    CHECK_EQ(ta_usage_modules(f.u, 0, NULL, 0), 0); /* no module allocated yet */
    ta_place_enter(1, true);
    ta_place_enter(2, false);
    void *inner = one(&f, 2 * KIB);
    ta_place_leave(2);
    void *outer = one(&f, KIB);
    ta_place_enter(3, false);
    ta_place_enter(2, false);
    ta_place_leave(3); /* an error passed through 2 */
    CHECK(is_at(1, 0));
    ta_place_leave(7); /* was in none such */
    CHECK(is_at(1, 0));
    ta_place_enter(4, false);
    ta_place_enter(1, true); /* an error left 1 and 4 behind */
    ta_place_enter(5, true); /* another model in it */
    ta_place_leave(5);
    CHECK(is_at(1, 0));
    ta_place_leave(1);
    CHECK(is_at(0, 0));
    ta_free(f.a, inner);
    CHECK_EQ(bytes_of(&f, 2, TA_USAGE_NOW), 0);
    CHECK_EQ(bytes_of(&f, 2, TA_USAGE_PEAK), 2 * KIB);
    CHECK_EQ(bytes_of(&f, 1, TA_USAGE_NOW), KIB);
    CHECK_EQ(counts_of(&f, 2).bytes, 2 * KIB);
    CHECK_EQ(counts_of(&f, 2).allocs, 1);
    ta_free(f.a, outer);
    ta_free(f.a, none);
    end(&f);
}

TEST(deeper_than_can_be_remembered)
{
    fixture f = begin();
    for (uint16_t i = 1; i <= TA_PLACE_DEPTH + 10; i++) ta_place_enter(i, i == 1);
    CHECK(is_at(TA_PLACE_DEPTH, 0));
    for (uint16_t i = TA_PLACE_DEPTH + 10; i > 10; i--) ta_place_leave(i);
    CHECK(is_at(10, 0));
    for (uint16_t i = 10; i > 0; i--) ta_place_leave(i);
    CHECK(is_at(0, 0));
    end(&f);
}

typedef struct backward {
    const fixture *f;
    void *gradient;
    bool back, over; /* at the node's place again; at none */
} backward;

static void *node(void *context)
{
    backward *b = context;
    const fixture *f = b->f;
    ta_place_runs((ta_place){.module = 5, .stack = 9});
    b->gradient = one(f, 4 * KIB);
    ta_place_enter(6, false); /* computed again */
    void *again = one(f, 8 * KIB);
    ta_place_leave(6);
    b->back = is_at(5, 9);
    ta_place_over();
    b->over = is_at(0, 0);
    ta_free(f->a, again);
    return NULL;
}

TEST(nodes_of_the_graph_count_to_where_they_were_made)
{
    fixture f = begin();
    pthread_t thread;
    backward b = {.f = &f};
    ta_place_at(3);
    ta_place_enter(1, true);
    CHECK(is_at(1, 3));
    pthread_create(&thread, NULL, node, &b);
    pthread_join(thread, NULL);
    CHECK(b.back && b.over);
    CHECK(is_at(1, 3)); /* of this thread as before */
    ta_place_leave(1);
    ta_place_at(0);
    CHECK_EQ(counts_of(&f, 5).bytes, 4 * KIB);
    CHECK_EQ(counts_of(&f, 6).bytes, 8 * KIB);
    static ta_usage_block blocks[8];
    CHECK_EQ(ta_usage_blocks(f.u, 0, TA_USAGE_NOW, blocks, 8), 1);
    CHECK_EQ(blocks[0].stack, 9);
    uint64_t addr = (uintptr_t)b.gradient;
    CHECK_EQ(ta_usage_set_modules(f.u, 0, &addr, &(uint16_t){11}, 1), 1);
    CHECK_EQ(bytes_of(&f, 11, TA_USAGE_PEAK), 4 * KIB); /* its own for the past too */
    CHECK_EQ(ta_usage_set_modules(f.u, 0, &addr, &(uint16_t){TA_USAGE_MODULES}, 1), 0);
    ta_free(f.a, b.gradient);
    end(&f);
}

TEST(a_number_too_large_is_no_module)
{
    fixture f = begin();
    ta_place_enter(TA_USAGE_MODULES, true);
    ta_free(f.a, one(&f, KIB));
    ta_place_leave(TA_USAGE_MODULES);
    CHECK_EQ(counts_of(&f, 0).bytes, 0);
    CHECK_EQ(ta_usage_modules(f.u, 0, NULL, 0), 0);
    end(&f);
}

TEST(off_nothing_is_told)
{
    fixture f = begin();
    ta_history *history = NULL;
    CHECK_EQ(ta_history_start(f.a, 16, &history), TA_OK);
    ta_place_enter(1, true);
    ta_place_at(2);
    ta_free(f.a, one(&f, KIB));
    ta_place_end();
    CHECK(is_at(0, 0));
    ta_free(f.a, one(&f, KIB));
    ta_place_begin();
    ta_place_leave(1);
    ta_place_at(0);
    CHECK_EQ(counts_of(&f, 1).allocs, 1);
    ta_history_entry entries[16];
    size_t count = ta_history_copy(history, entries, 16), allocs = 0;
    for (size_t i = 0; i < count; i++) {
        if (entries[i].kind != TA_EVENT_ALLOC) continue;
        CHECK_EQ(entries[i].stack, allocs ? 0 : 2);
        allocs++;
    }
    CHECK_EQ(allocs, 2);
    CHECK_EQ(ta_history_stop(history), TA_OK);
    end(&f);
}

TEST_MAIN()
