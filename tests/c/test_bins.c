/* test_bins.c - best fit against a list that is looked through: whatever came, went and
 * changed, the bins find the same hole. */

#include "../../csrc/core/bins.h"
#include "testing.h"

enum { HOLES = 300, STEPS = 60000 };

static uint64_t draw(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

/* Many of few sizes, so that addresses decide, and some of any. */
static uint64_t some_size(uint64_t *random)
{
    const uint64_t most = draw(random) % 2 ? 8 : draw(random) % 2 ? 100 : 1 << 20;
    return (1 + draw(random) % most) * TA_GRANULE;
}

static bool before(const ta_hole *a, uint64_t size, uint64_t addr)
{
    return a->size != size ? a->size < size : a->addr < addr;
}

static ta_hole *expected(ta_hole *holes, const bool *in, uint64_t size, uint64_t addr)
{
    ta_hole *best = NULL;
    for (int i = 0; i < HOLES; i++)
        if (in[i] && !before(&holes[i], size, addr) &&
            (!best || before(&holes[i], best->size, best->addr)))
            best = &holes[i];
    return best;
}

TEST(they_find_what_a_list_finds)
{
    static ta_bins bins;
    static ta_hole holes[HOLES];
    static bool in[HOLES];
    char text[200];
    uint64_t random = 88172645463325252u;
    size_t count = 0;
    ta_bins_init(&bins);
    for (int step = 0; step < STEPS; step++) {
        const size_t at = draw(&random) % (step / 3000 % 2 ? HOLES : 4);
        ta_hole *h = &holes[at];
        const uint64_t addr = (draw(&random) % HOLES * HOLES + at) * TA_GRANULE;
        const uint64_t size = some_size(&random), was = h->size, lay = h->addr;
        if (!in[at]) {
            if (draw(&random) % 2 || !h->size) h->size = size, h->addr = addr;
            ta_bins_insert(&bins, h); /* it comes back, or is another one */
            in[at] = true;
            count++;
        } else if (draw(&random) % 3 == 0) {
            ta_bins_remove(&bins, h);
            in[at] = false;
            count--;
            h->spare = NULL; /* as who keeps it for later does */
        } else {
            ta_bins_move(&bins, h, addr, size);
            if (draw(&random) % 2) ta_bins_move(&bins, h, lay, was);
        }
        CHECK_EQ(bins.count, count);
        const uint64_t asked = draw(&random) % 2 ? size : was ? was : TA_GRANULE;
        ta_hole *found = ta_bins_fit(&bins, asked);
        CHECK(found == expected(holes, in, asked, 0));
        if (found)
            CHECK(ta_bins_next(&bins, found) ==
                  expected(holes, in, found->size, found->addr + 1));
        if (step % 64 == 0 && !ta_bins_check(&bins, text, sizeof text))
            TA_TEST_FAIL("%s", text);
    }
}

TEST_MAIN()
