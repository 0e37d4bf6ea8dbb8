/* The timeline alone, with times of our own, against a list of all states. */
#include "core/usage/timeline.h"
#include "testing.h"

typedef struct state {
    double us;
    uint64_t live;
} state;

static void good(const ta_timeline *t)
{
    char text[256] = "";
    if (!ta_timeline_check(t, t->now.live, text, sizeof text)) CHECK_STR(text, "");
}

TEST(samples_cover_all_time)
{
    ta_timeline t = {0};
    CHECK(ta_timeline_begin(&t) && ta_timeline_begin(&t));
    ta_timeline_pass(&t, 250);
    CHECK_EQ(t.count, 3);
    ta_timeline_change(&t, TA_CATEGORY_OTHER, 1000, 1);
    ta_timeline_change(&t, TA_CATEGORY_OTHER, -1000, 2);
    ta_timeline_pass(&t, 450);
    CHECK_EQ(t.count, 5);
    CHECK_EQ(t.samples[1].live, 0);
    CHECK_EQ(t.samples[2].live, 1000); /* highest in it, though freed before its end */
    CHECK_EQ(t.samples[3].live, 0);
    ta_timeline_reserve(&t, 4096);
    ta_timeline_reserve(&t, 0);
    CHECK_EQ(t.samples[4].reserved, 4096);
    ta_timeline_pass(&t, 1e12); /* eleven days and more: at once */
    CHECK(t.count > TA_USAGE_SAMPLES / 2 && t.count <= TA_USAGE_SAMPLES);
    CHECK_EQ(t.samples[0].live, 1000);
    CHECK_EQ(t.samples[0].reserved, 4096);
    CHECK_EQ(t.samples[1].live, 0);
    good(&t);
    ta_timeline_pass(&t, 5); /* a clock that fell back: nothing */
    good(&t);
    ta_timeline_end(&t);
    CHECK_EQ(ta_timeline_bytes(&t), 0);
}

/* Every sample is the highest of the states in its interval, however often merged. */
TEST(random_runs_are_the_models)
{
    enum { STATES = 20000 };
    static state states[STATES];
    unsigned seed = 3;
    ta_timeline t = {0};
    CHECK(ta_timeline_begin(&t));
    double us = 0;
    for (int i = 0; i < STATES; i++) {
        int way = rand_r(&seed) % 100;
        us += way < 80 ? way : way * 300.0;
        int64_t bytes = 512 * (1 + rand_r(&seed) % 64);
        if (t.now.live >= (uint64_t)bytes && rand_r(&seed) % 2) bytes = -bytes;
        ta_category category = TA_CATEGORY_OTHER;
        ta_timeline_pass(&t, us);
        ta_timeline_change(&t, category, bytes, (uint64_t)i + 1);
        states[i] = (state){us, t.now.live};
        if (i % 1000 == 0) good(&t);
    }
    good(&t);
    CHECK(t.interval_us > 100);
    int at = 0;
    uint64_t level = 0;
    for (uint32_t i = 0; i < t.count; i++) {
        uint64_t high = level; /* of the state that reached into it */
        for (; at < STATES && states[at].us < (i + 1) * t.interval_us; at++) {
            level = states[at].live;
            if (level > high) high = level;
        }
        CHECK_EQ(t.samples[i].live, high);
    }
    CHECK_EQ(at, STATES);
    ta_timeline_end(&t);
}

/* Blocks that never die: told later, they are of the other category in every sample that
 * has them, and in none that has not. */
TEST(categories_told_later_hold_from_birth)
{
    enum { BLOCKS = 300 };
    uint64_t born[BLOCKS], size[BLOCKS];
    bool told[BLOCKS] = {false};
    unsigned seed = 5;
    ta_timeline t = {0};
    CHECK(ta_timeline_begin(&t));
    for (int i = 0; i < BLOCKS; i++) {
        ta_timeline_pass(&t, i * 1500.0);
        born[i] = (uint64_t)i + 1;
        size[i] = 512 * (1 + (uint64_t)rand_r(&seed) % 64);
        ta_timeline_change(&t, TA_CATEGORY_ACTIVATION, (int64_t)size[i], born[i]);
        for (int k = 0; k < 2; k++) {
            int which = rand_r(&seed) % (i + 1);
            if (told[which]) continue;
            told[which] = true;
            ta_timeline_tell(&t, born[which], size[which], TA_CATEGORY_ACTIVATION,
                             TA_CATEGORY_GRADIENT);
        }
        ta_timeline_settle(&t);
        good(&t);
    }
    CHECK(t.interval_us > 100);
    for (uint32_t i = 0; i < t.count; i++) {
        uint64_t sum = 0;
        for (int k = 0; k < BLOCKS; k++)
            if (told[k] && born[k] <= t.samples[i].event) sum += size[k];
        CHECK_EQ(t.samples[i].of[TA_CATEGORY_GRADIENT], sum);
    }
    ta_timeline_end(&t);
}

TEST(a_broken_one_is_told)
{
    char text[256] = "";
    ta_timeline t = {0};
    CHECK(ta_timeline_begin(&t));
    ta_timeline_change(&t, TA_CATEGORY_OTHER, 512, 1);
    CHECK(ta_timeline_check(&t, 512, text, sizeof text));
    CHECK(!ta_timeline_check(&t, 1024, text, sizeof text));
    CHECK_STR(text, "timeline: highest 512, of the samples 512; now 512, live 1024");
    t.samples[0].of[TA_CATEGORY_OTHER] = 0;
    CHECK(!ta_timeline_check(&t, 512, text, sizeof text));
    ta_timeline_end(&t);
}

TEST_MAIN()
