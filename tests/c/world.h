/* world.h - a simulated machine with an allocator on it, for tests of the allocator.
 *
 * Written from torcharena.h and sim.h alone: it keeps books of its own of what is live, and
 * a test compares the two; the oracle watches every block. All of it is thread-safe as the
 * two are; a `held` belongs to one thread. Helpers that can fail set ta_test_failed and return; look at it. */
#ifndef TA_WORLD_H
#define TA_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "../../csrc/driver/oracle.h"
#include "testing.h"

#define KiB ((uint64_t)1 << 10)
#define MiB ((uint64_t)1 << 20)
#define GiB ((uint64_t)1 << 30)

#define WORLD_DEVICES 4
#define WORLD_STREAMS 64

typedef struct world {
    ta_sim *sim;
    const ta_driver *driver;
    ta_allocator *allocator;
    int devices, streams;
    ta_stream stream[WORLD_DEVICES][WORLD_STREAMS];
} world;

/* A block as the test knows it. */
typedef struct held {
    unsigned char *at;
    uint64_t size, serial;
    int device;
    ta_stream stream;
} held;

/* For ta_set_stream_life: the streams are torch's own. */
static inline ta_stream_life world_lasting(void *context, int device, ta_stream stream)
{
    (void)context;
    (void)device;
    (void)stream;
    return TA_STREAM_LASTS;
}

static inline uint64_t world_round(uint64_t size, uint64_t to)
{
    return (size + to - 1) / to * to;
}

static inline uint64_t world_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
/* From low to high, both included. */
static inline uint64_t world_between(uint64_t *state, uint64_t low, uint64_t high)
{
    return low + world_random(state) % (high - low + 1);
}

/* Streams are the default one first, then made ones. */
static inline void world_open_with(world *w, const ta_sim_config *config, int streams,
                                   const ta_config *policy)
{
    memset(w, 0, sizeof *w);
    w->devices = config->devices;
    w->streams = streams;
    CHECK_EQ(ta_sim_create(config, &w->sim), TA_OK);
    w->driver = ta_sim_driver(w->sim);
    for (int d = 0; d < w->devices; d++)
        for (int s = 1; s < streams; s++)
            CHECK_EQ(ta_sim_stream_create(w->sim, d, false, &w->stream[d][s]), TA_OK);
    CHECK_EQ(ta_allocator_create(w->driver, policy, &w->allocator), TA_OK);
    CHECK_EQ(ta_add_observer(w->allocator, ta_oracle_observe, w->sim), TA_OK);
}
static inline void world_open(world *w, const ta_sim_config *config, int streams)
{
    world_open_with(w, config, streams, NULL);
}

/* The oracle saw nothing, and every invariant holds. */
static inline void world_check(world *w)
{
    char text[512] = "";
    uint64_t count = 0;
    const char *violation = ta_sim_first_violation(w->sim, &count);
    if (violation)
        TA_TEST_FAIL("%llu violations: %s", (unsigned long long)count, violation);
    if (!ta_check(w->allocator, text, sizeof text)) TA_TEST_FAIL("ta_check: %s", text);
}

/* Ends the allocator, and finds that it leaves nothing behind. */
static inline void world_close(world *w)
{
    world_check(w);
    ta_oracle_end(w->sim);
    ta_allocator_destroy(w->allocator);
    uint64_t count = 0;
    const char *violation = ta_sim_first_violation(w->sim, &count);
    if (violation) TA_TEST_FAIL("after destroy: %s", violation);
    for (int d = 0; d < w->devices; d++) CHECK_EQ(ta_sim_used(w->sim, d, false), 0);
    CHECK_EQ(ta_sim_reserved_addresses(w->sim), 0);
    ta_sim_destroy(w->sim);
}

/* Queues work on a stream that reads or writes the whole block. */
static inline void world_use(world *w, const held *h, ta_stream stream, bool write,
                             double us)
{
    ta_sim_range range = {(uint64_t)(uintptr_t)h->at, h->size, write};
    CHECK_EQ(ta_sim_launch(w->sim, h->device, stream, &range, 1, us), TA_OK);
}

/* What a block should hold: 64 bytes at the start of every 16 KiB (of every 256 KiB beyond
 * the first MiB), and its last bytes, told apart by the serial. Needs a machine with
 * backing, which is taken where it is touched. */
static inline uint64_t world_word(const held *h, uint64_t offset)
{
    uint64_t state = h->serial * 1000003u + offset;
    return world_random(&state);
}
static inline void world_pattern(const held *h, bool write, bool *same)
{
    *same = true;
    for (uint64_t start = 0; start < h->size;
         start += start < MiB ? 16 * KiB : 256 * KiB) {
        for (uint64_t at = start; at < start + 64 && at + 8 < h->size; at += 8) {
            uint64_t word = world_word(h, at), *p = (uint64_t *)(void *)(h->at + at);
            if (write)
                *p = word;
            else if (*p != word)
                *same = false;
        }
    }
    unsigned char last = (unsigned char)world_word(h, h->size);
    if (write)
        h->at[h->size - 1] = last;
    else if (h->at[h->size - 1] != last)
        *same = false;
}
static inline void world_write(const held *h)
{
    bool same;
    world_pattern(h, true, &same);
}
static inline bool world_kept(const held *h)
{
    bool same;
    world_pattern(h, false, &same);
    return same;
}

static inline ta_status world_alloc(world *w, held *h, uint64_t size, int device,
                                    ta_stream stream)
{
    void *at = NULL;
    ta_status status = ta_alloc(w->allocator, size, device, stream, &at, NULL);
    *h = (held){.at = at, .size = size, .device = device, .stream = stream};
    return status;
}

/* Orders `later` on the device after what is queued on `first`. */
static inline void world_order(world *w, int device, ta_stream first, ta_stream later)
{
    const ta_driver *d = w->driver;
    uintptr_t saved[2];
    ta_event event = NULL;
    CHECK_EQ(d->enter(d->self, device, saved), TA_OK);
    CHECK_EQ(d->event_create(d->self, device, &event), TA_OK);
    CHECK_EQ(d->event_record(d->self, event, device, first), TA_OK);
    CHECK_EQ(ta_sim_stream_wait_event(w->sim, device, later, event), TA_OK);
    CHECK_EQ(d->event_destroy(d->self, event), TA_OK);
    d->leave(d->self, device, saved);
}

static inline ta_stats world_stats(world *w, int device)
{
    ta_stats stats;
    if (ta_get_stats(w->allocator, device, &stats) != TA_OK)
        memset(&stats, 0, sizeof stats);
    return stats;
}

#endif
