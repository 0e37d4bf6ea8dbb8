/* test_random.c - random sequences of calls against a simple model.
 *
 * Several threads each hold blocks of their own on shared streams of several devices, and
 * alloc, use, record, free, trim, cap, capture graphs and replay them, as a generator seeded
 * by a number draws. What must hold, whatever the order:
 *   - live ranges are disjoint, multiples of 512, and keep what was written in them;
 *   - an address is handed out again only after the event that says its bytes are free;
 *   - counters equal sums over what is live; what is reserved is what the device holds, and
 *     within the cap; a refusal is true;
 *   - the oracle sees no reuse and no unmapping of what queued work may touch.
 * TA_TEST_SEED=n runs one seed; TA_TEST_LONG runs many. A failure prints seed and step. */
#include <pthread.h>
#include <stdatomic.h>

#include "world.h"

#if defined(__SANITIZE_THREAD__)
#define STEPS 800
#elif defined(__SANITIZE_ADDRESS__)
#define STEPS 1500
#else
#define STEPS 4000
#endif

enum { HELD = 96, THREADS = 3, RANGES = 4096, CAPTURE_BLOCKS = 6 };

/* The model that threads share: which ranges are live (the test's view), and which are not
 * yet free again (the events' view). */
typedef struct range {
    uint64_t addr, size, serial;
} range;
typedef struct ranges {
    pthread_mutex_t lock;
    range at[RANGES];
    int count;
} ranges;

typedef struct model {
    world w;
    uint64_t seed;
    int devices, streams;
    int steps;
    bool alone; /* one thread: counters can be compared at any time */
    bool mixed; /* some streams are of others, who may destroy them */
    ranges live, occupied;
    pthread_mutex_t capturing; /* one capture at a time */
    atomic_int failed;
    _Atomic uint64_t serial;
} model;

typedef struct worker {
    model *m;
    int number, step;
    uint64_t random;
    held slot[HELD];
    unsigned recorded[HELD]; /* streams that used it, by number, as bits */
    int graphs, refused;
    bool capturing;
} worker;

#define WRONG(WORKER, ...)                                                               \
    do {                                                                                 \
        if (!atomic_exchange(&(WORKER)->m->failed, 1)) {                                 \
            printf("seed %llu, thread %d, step %d: ",                                    \
                   (unsigned long long)(WORKER)->m->seed, (WORKER)->number,              \
                   (WORKER)->step);                                                      \
            printf(__VA_ARGS__);                                                         \
            printf("\n");                                                                \
        }                                                                                \
        return;                                                                          \
    } while (0)

/* Adds a range; false where it meets one that is there, or the table is full. */
static bool ranges_add(ranges *r, uint64_t addr, uint64_t size, uint64_t serial)
{
    bool free = true;
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < r->count && free; i++)
        free = r->at[i].addr >= addr + size || addr >= r->at[i].addr + r->at[i].size;
    if (r->count == RANGES) free = false;
    if (free) r->at[r->count++] = (range){addr, size, serial};
    pthread_mutex_unlock(&r->lock);
    return free;
}
static bool ranges_remove(ranges *r, uint64_t addr)
{
    bool found = false;
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < r->count && !found; i++) {
        found = r->at[i].addr == addr;
        if (found) r->at[i] = r->at[--r->count];
    }
    pthread_mutex_unlock(&r->lock);
    return found;
}

/* The events' view: from ALLOC to FREE_DONE a range belongs to one block. */
static void observe(void *context, const ta_event_info *e)
{
    model *m = context;
    const char *wrong = NULL;
    if (e->kind == TA_EVENT_ALLOC) {
        if (!ranges_add(&m->occupied, e->addr, world_round(e->size, TA_GRANULE),
                        e->serial))
            wrong = "handed out before its bytes were free";
    } else if (e->kind == TA_EVENT_FREE_DONE) {
        if (!ranges_remove(&m->occupied, e->addr)) wrong = "free twice";
    }
    if (wrong && !atomic_exchange(&m->failed, 1))
        printf("seed %llu: event %d of %llx: %s\n", (unsigned long long)m->seed,
               (int)e->kind, (unsigned long long)e->addr, wrong);
}

static uint64_t draw(worker *k, uint64_t low, uint64_t high)
{
    return world_between(&k->random, low, high);
}

static uint64_t draw_size(worker *k)
{
    switch (draw(k, 0, 9)) {
    case 0:
        return draw(k, 1, 2048);
    case 1:
    case 2:
    case 3:
        return draw(k, 1, MiB);
    case 4:
        return MiB - 512 + draw(k, 0, 1024); /* about the border of the kinds */
    case 5:
        return draw(k, 1, 4) * 4 * MiB; /* whole pages */
    case 6:
        return draw(k, 8 * MiB, 24 * MiB);
    default:
        return draw(k, MiB, 6 * MiB);
    }
}

/* A refusal is true: with every idle page of ours given up the request would not have fit,
 * and nothing would have come of waiting longer. Another thread may have freed since, so only
 * a lone one is held to it. */
static void judge_refusal(worker *k, const ta_oom *oom, const held *h)
{
    const uint64_t page = TA_DEFAULT_PAGE, size = h->size;
    if (oom->status != TA_OUT_OF_MEMORY)
        WRONG(k, "refused with status %d", (int)oom->status);
    if (oom->requested != size) WRONG(k, "the refusal speaks of another size");
    if (!k->m->alone) return;
    const uint64_t limit =
        oom->limit < oom->device_total ? oom->limit / page * page : oom->device_total;
    const uint64_t kept = oom->reserved - (oom->idle - oom->idle_in_graphs);
    /* While a graph is captured strange streams cannot be waited for. */
    if (!(k->m->mixed && k->capturing) && kept + world_round(size, page) + page <= limit)
        WRONG(k, "refused %llu with %llu of %llu in use", (unsigned long long)size,
              (unsigned long long)kept, (unsigned long long)limit);
    if (oom->short_by == 0) WRONG(k, "refused, and short by nothing");
    if (k->capturing) return; /* there it could not wait */
    void *at = NULL;
    ta_sim_advance_us(k->m->w.sim, 1e9);
    if (ta_alloc(k->m->w.allocator, size, h->device, h->stream, &at, NULL) == TA_OK)
        WRONG(k, "refused %llu, though waiting was all it took (%llu were pending)",
              (unsigned long long)size, (unsigned long long)oom->pending);
}

/* Above a cap that was lowered nothing idle is kept. */
static void judge_cap(worker *k, int device)
{
    const ta_stats s = world_stats(&k->m->w, device);
    if (s.reserved.current > s.limit && s.idle && !s.pool_arenas)
        WRONG(k, "%llu reserved and %llu idle under a cap of %llu",
              (unsigned long long)s.reserved.current, (unsigned long long)s.idle,
              (unsigned long long)s.limit);
}

/* Brings a block into `h`; leaves h->at NULL where it was refused. */
static void bring(worker *k, held *h, uint64_t size, int device, ta_stream stream)
{
    model *m = k->m;
    ta_oom oom;
    void *at = &oom;
    const ta_status status = ta_alloc(m->w.allocator, size, device, stream, &at, &oom);
    *h = (held){.at = at, .size = size, .device = device, .stream = stream};
    if (status != TA_OK) {
        k->refused++;
        if (at) WRONG(k, "refused, and an address given");
        judge_refusal(k, &oom, h);
        return;
    }
    const uint64_t addr = (uint64_t)(uintptr_t)at;
    if (!at || addr % TA_GRANULE) WRONG(k, "address %llx", (unsigned long long)addr);
    h->serial = ++m->serial;
    if (!ranges_add(&m->live, addr, world_round(size, TA_GRANULE), h->serial))
        WRONG(k, "%llx is live already", (unsigned long long)addr);
    world_write(h);
    world_use(&m->w, h, stream, true, -1);
    if (m->alone && !k->capturing) judge_cap(k, device);
}

static void give_back(worker *k, held *h)
{
    model *m = k->m;
    void *at = h->at;
    if (!world_kept(h))
        WRONG(k, "%p of %llu bytes changed", at, (unsigned long long)h->size);
    if (!ranges_remove(&m->live, (uint64_t)(uintptr_t)at))
        WRONG(k, "the model lost %p", at);
    h->at = NULL;
    const ta_status status = ta_free(m->w.allocator, at);
    if (status != TA_OK) WRONG(k, "free gives %d", (int)status);
}

/* Another stream reads the block, after what its own has queued. */
static void share(worker *k, int i)
{
    model *m = k->m;
    held *h = &k->slot[i];
    const int s = (int)draw(k, 0, (uint64_t)m->streams - 1);
    ta_stream other = m->w.stream[h->device][s];
    if (other == h->stream) return;
    world_order(&m->w, h->device, h->stream, other);
    const uint64_t inside = draw(k, 0, h->size - 1);
    if (ta_record_stream(m->w.allocator, h->at + inside, other) != TA_OK)
        WRONG(k, "record_stream refused");
    world_use(&m->w, h, other, false, -1);
    k->recorded[i] |= 1u << s;
}

static void ask_base(worker *k, const held *h)
{
    void *base = NULL;
    size_t size = 0;
    const ta_status status =
        ta_base_address(k->m->w.allocator, h->at + draw(k, 0, h->size - 1), &base, &size);
    if (status != TA_OK || base != h->at || size < h->size ||
        size > world_round(h->size, TA_GRANULE))
        WRONG(k, "base of %p (%llu) is %p (%llu), status %d", (void *)h->at,
              (unsigned long long)h->size, base, (unsigned long long)size, (int)status);
}

static bool same_stream(void *context, ta_stream stream) { return context == stream; }

/* Captures a graph on a stream of its own in a pool of its own, replays it while others
 * allocate, and releases the pool with the last replay still queued. */
static void capture(worker *k)
{
    model *m = k->m;
    world *w = &m->w;
    held block[CAPTURE_BLOCKS] = {0};
    const int device = (int)draw(k, 0, (uint64_t)m->devices - 1);
    const ta_pool_id id = {(uint64_t)k->number + 1, (uint64_t)++k->graphs};
    ta_stream stream = NULL;
    ta_sim_graph *graph = NULL;
    void *context = NULL;
    if (ta_sim_stream_create(w->sim, device, false, &stream) != TA_OK)
        WRONG(k, "no stream for a capture");
    if (ta_pool_begin(w->allocator, device, id, same_stream, stream) != TA_OK)
        WRONG(k, "pool begin refused");
    if (ta_sim_capture_begin(w->sim, device, stream) != TA_OK) WRONG(k, "no capture");
    k->capturing = true;
    for (int i = 0; i < CAPTURE_BLOCKS && !m->failed; i++) {
        bring(k, &block[i], draw(k, 1, 5 * MiB), device, stream);
        /* Freed inside the capture: the same capture may use the bytes again, in order. */
        if (i % 3 == 2 && block[i].at) give_back(k, &block[i]);
    }
    if (m->failed) return;
    k->capturing = false;
    if (ta_sim_capture_end(w->sim, device, stream, &graph) != TA_OK)
        WRONG(k, "the capture was broken");
    if (ta_pool_end(w->allocator, device, id, &context) != TA_OK || context != stream)
        WRONG(k, "pool end refused");
    const int replays = (int)draw(k, 1, 4);
    for (int r = 0; r < replays && !m->failed; r++) {
        held other;
        if (ta_sim_graph_launch(w->sim, graph, device, stream) != TA_OK)
            WRONG(k, "no replay");
        bring(k, &other, draw_size(k), device, w->stream[device][0]);
        if (!m->failed && other.at) give_back(k, &other);
    }
    for (int i = 0; i < CAPTURE_BLOCKS && !m->failed; i++)
        if (block[i].at) give_back(k, &block[i]);
    if (m->failed) return;
    if (ta_pool_release(w->allocator, device, id) != TA_OK) WRONG(k, "release refused");
    ta_sim_graph_destroy(w->sim, graph);
}

static void move_cap(worker *k)
{
    model *m = k->m;
    const int device = (int)draw(k, 0, (uint64_t)m->devices - 1);
    const uint64_t cap = draw(k, 0, 2) ? draw(k, 60 * MiB, 400 * MiB) : TA_NO_LIMIT;
    if (ta_set_limit(m->w.allocator, device, TA_LIMIT_API, cap) != TA_OK)
        WRONG(k, "set_limit refused");
    if (!m->alone) return;
    ta_limit_source source = TA_LIMIT_SOURCES;
    const uint64_t holds = ta_limit(m->w.allocator, device, &source);
    const uint64_t page = TA_DEFAULT_PAGE;
    if (holds != (cap == TA_NO_LIMIT ? TA_NO_LIMIT : cap / page * page))
        WRONG(k, "a limit of %llu became %llu", (unsigned long long)cap,
              (unsigned long long)holds);
}

static bool balanced(const ta_gauge *g)
{
    return g->current == g->increased - g->decreased && g->peak >= g->current;
}

/* With one thread: the counters are what the model adds up to. */
static void compare(worker *k)
{
    model *m = k->m;
    char text[512] = "";
    if (!ta_check(m->w.allocator, text, sizeof text)) WRONG(k, "%s", text);
    for (int d = 0; d < m->devices; d++) {
        uint64_t count[3] = {0}, bytes[3] = {0}, asked[3] = {0};
        for (int i = 0; i < HELD; i++) {
            const held *h = &k->slot[i];
            if (!h->at || h->device != d) continue;
            const int kind = h->size <= TA_SMALL_MAX ? TA_POOL_SMALL : TA_POOL_LARGE;
            for (int p = 0; p < 3; p++) {
                if (p != TA_POOL_ALL && p != kind) continue;
                count[p]++;
                bytes[p] += world_round(h->size, TA_GRANULE);
                asked[p] += h->size;
            }
        }
        const ta_stats s = world_stats(&m->w, d);
        for (int p = 0; p < 3; p++) {
            if (s.allocations[p].current != count[p] ||
                s.allocated[p].current != bytes[p] || s.requested[p].current != asked[p])
                WRONG(k,
                      "device %d, kind %d: %llu blocks of %llu bytes (%llu asked) are "
                      "counted, %llu of %llu (%llu) are live",
                      d, p, (unsigned long long)s.allocations[p].current,
                      (unsigned long long)s.allocated[p].current,
                      (unsigned long long)s.requested[p].current,
                      (unsigned long long)count[p], (unsigned long long)bytes[p],
                      (unsigned long long)asked[p]);
            if (!balanced(&s.allocations[p]) || !balanced(&s.allocated[p]) ||
                !balanced(&s.requested[p]) || !balanced(&s.active[p]) ||
                !balanced(&s.active_blocks[p]))
                WRONG(k, "device %d, kind %d: a gauge does not add up", d, p);
        }
        if (s.active[0].current != s.allocated[0].current + s.pending.current)
            WRONG(k, "device %d: active is not allocated and pending", d);
        if (s.active[0].current > s.reserved.current)
            WRONG(k, "device %d: more active than reserved", d);
        if (s.reserved.current != s.active[0].current + s.idle + s.partly_used)
            WRONG(
                k,
                "device %d: reserved %llu is not active %llu, idle %llu and partly used "
                "%llu",
                d, (unsigned long long)s.reserved.current,
                (unsigned long long)s.active[0].current, (unsigned long long)s.idle,
                (unsigned long long)s.partly_used);
        if (!balanced(&s.reserved) || !balanced(&s.pages) || !balanced(&s.addresses))
            WRONG(k, "device %d: a gauge of pages does not add up", d);
        if (s.reserved.current != ta_sim_used(m->w.sim, d, false))
            WRONG(k, "device %d: reserved is not what the device holds", d);
    }
}

typedef struct tiles {
    uint64_t end, at, live,
        live_bytes; /* `at`: where the next block of a segment starts */
    bool good;
} tiles;
static void see_segment(void *context, const ta_segment_info *s)
{
    tiles *t = context;
    if (t->at != t->end) t->good = false;
    t->at = s->addr;
    t->end = s->addr + s->size;
}
static void see_block(void *context, const ta_block_info *b)
{
    tiles *t = context;
    if (b->addr != t->at || b->size == 0 || b->addr + b->size > t->end) t->good = false;
    t->at = b->addr + b->size;
    if (b->state == TA_BLOCK_LIVE) {
        t->live++;
        t->live_bytes += b->size;
    } else if (b->state == TA_BLOCK_FREE && b->requested) {
        t->good = false;
    }
}
static void visit(worker *k)
{
    tiles t = {.good = true};
    const ta_visitor visitor = {&t, see_segment, see_block, NULL};
    if (ta_visit(k->m->w.allocator, -1, &visitor) != TA_OK) WRONG(k, "visit refused");
    if (!t.good || t.at != t.end) WRONG(k, "blocks do not tile their segments");
    if (!k->m->alone) return;
    uint64_t live = 0, bytes = 0;
    for (int i = 0; i < HELD; i++) {
        if (!k->slot[i].at) continue;
        live++;
        bytes += world_round(k->slot[i].size, TA_GRANULE);
    }
    if (t.live != live || t.live_bytes != bytes)
        WRONG(k, "visited another number of blocks");
}

static void one_step(worker *k)
{
    model *m = k->m;
    const int i = (int)draw(k, 0, HELD - 1);
    held *h = &k->slot[i];
    const uint64_t what = draw(k, 0, 999);
    if (what < 4) {
        pthread_mutex_lock(&m->capturing);
        capture(k);
        pthread_mutex_unlock(&m->capturing);
    } else if (what < 8) {
        uint64_t released = 0;
        const int device = (int)draw(k, 0, (uint64_t)m->devices) - 1;
        if (ta_trim(m->w.allocator, device, &released) != TA_OK) WRONG(k, "trim refused");
    } else if (what < 12) {
        move_cap(k);
    } else if (what < 20) {
        visit(k);
    } else if (what < 60) {
        ta_sim_advance_us(m->w.sim, (double)draw(k, 1, 2000));
    } else if (!h->at) {
        const int device = (int)draw(k, 0, (uint64_t)m->devices - 1);
        const int s = (int)draw(k, 0, (uint64_t)m->streams - 1);
        bring(k, h, draw_size(k), device, m->w.stream[device][s]);
        k->recorded[i] = 0;
    } else if (what < 300) {
        share(k, i);
    } else if (what < 400) {
        world_use(&m->w, h, h->stream, false, -1);
    } else if (what < 450) {
        ask_base(k, h);
    } else {
        give_back(k, h);
    }
}

static void *work(void *context)
{
    worker *k = context;
    for (k->step = 0; k->step < k->m->steps && !k->m->failed; k->step++) {
        one_step(k);
        if (ta_test_failed) k->m->failed = 1;
        if (k->m->alone && k->step % 16 == 0 && !k->m->failed) compare(k);
    }
    for (int i = 0; i < HELD && !k->m->failed; i++)
        if (k->slot[i].at) give_back(k, &k->slot[i]);
    return NULL;
}

static ta_stream_life any_life(void *context, int device, ta_stream stream)
{
    static _Atomic uint64_t asked;
    uint64_t state = ((model *)context)->seed * 977 + (uint64_t)(uintptr_t)stream;
    (void)device;
    if (world_random(&state) % 3 == 0) return TA_STREAM_LASTS;
    state = atomic_fetch_add(&asked, 1);
    return world_random(&state) % 3 ? TA_STREAM_STRANGE : TA_STREAM_EXISTS;
}

static void run(uint64_t seed, int threads, int devices, bool mixed)
{
    static model m;
    static worker workers[THREADS];
    memset(&m, 0, sizeof m);
    memset(workers, 0, sizeof workers);
    m.seed = seed;
    m.devices = devices;
    m.streams = 5;
    m.alone = threads == 1;
    m.mixed = mixed;
    m.steps = STEPS / threads;
    pthread_mutex_init(&m.live.lock, NULL);
    pthread_mutex_init(&m.occupied.lock, NULL);
    pthread_mutex_init(&m.capturing, NULL);
    ta_sim_config config = {.devices = devices, .memory = 512 * MiB, .seed = seed};
    world_open(&m.w, &config, m.streams);
    CHECK(!ta_test_failed);
    CHECK_EQ(ta_add_observer(m.w.allocator, observe, &m), TA_OK);
    if (mixed) CHECK_EQ(ta_set_stream_life(m.w.allocator, any_life, &m), TA_OK);
    pthread_t thread[THREADS];
    for (int t = 0; t < threads; t++) {
        workers[t].m = &m;
        workers[t].number = t;
        workers[t].random = seed * 1000 + (uint64_t)t;
        if (t) CHECK_EQ(pthread_create(&thread[t], NULL, work, &workers[t]), 0);
    }
    work(&workers[0]);
    for (int t = 1; t < threads; t++) CHECK_EQ(pthread_join(thread[t], NULL), 0);
    if (m.failed) TA_TEST_FAIL("seed %llu failed", (unsigned long long)seed);
    for (int d = 0; d < devices; d++) {
        CHECK_EQ(world_stats(&m.w, d).allocated[TA_POOL_ALL].current, 0);
        CHECK_EQ(ta_set_limit(m.w.allocator, d, TA_LIMIT_API, TA_NO_LIMIT), TA_OK);
    }
    CHECK_EQ(m.live.count, 0);
    /* Once all work is done nothing is left to wait for, and all of it can be had back. */
    ta_sim_advance_us(m.w.sim, 1e9);
    CHECK_EQ(ta_trim(m.w.allocator, -1, NULL), TA_OK);
    for (int d = 0; d < devices; d++) {
        CHECK_EQ(world_stats(&m.w, d).reserved.current, 0);
        CHECK_EQ(world_stats(&m.w, d).active[TA_POOL_ALL].current, 0);
        CHECK_EQ(ta_sim_used(m.w.sim, d, false), 0);
    }
    CHECK_EQ(m.occupied.count, 0);
    CHECK_EQ(ta_remove_observer(m.w.allocator, observe, &m), TA_OK);
    world_close(&m.w);
}

static void seeds(int count, int threads, int devices, bool mixed)
{
    const char *one = getenv("TA_TEST_SEED");
    if (one) {
        run(strtoull(one, NULL, 10), threads, devices, mixed);
        return;
    }
    if (getenv("TA_TEST_LONG")) count *= 25;
    for (int i = 1; i <= count && !ta_test_failed; i++)
        run((uint64_t)i, threads, devices, mixed);
}

TEST(one_thread_one_device) { seeds(6, 1, 1, false); }
TEST(one_thread_two_devices) { seeds(6, 1, 2, false); }
TEST(one_thread_streams_of_others) { seeds(6, 1, 2, true); }
TEST(threads_one_device) { seeds(4, THREADS, 1, false); }
TEST(threads_two_devices) { seeds(4, THREADS, 2, false); }
TEST(threads_streams_of_others) { seeds(3, THREADS, 2, true); }

TEST_MAIN()
