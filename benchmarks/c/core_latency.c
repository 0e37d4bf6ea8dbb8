/* core_latency.c - what an alloc and a free of mapped memory take in the core alone.
 *
 *     gcc -O2 -std=c11 -D_GNU_SOURCE= -fexceptions -pthread -Icsrc/core \
 *         benchmarks/c/core_latency.c $(find csrc/core -name "*.c") \
 *         csrc/driver/nulldriver.c -lm -o core_latency
 *     ./core_latency [--json] [--rounds N] [--threads N...] [LIVE...]
 *
 * For each number of live blocks (100 and 100000 unless told): blocks of random sizes live
 * among as many holes, and one of a random size is allocated and freed (`pair`), or a random
 * one of the live is freed and one of its size allocated (`churn`, which mostly waits for the
 * processor's caches where there are many). Each is timed; the timer's own time, measured in
 * the same run, is taken off. The C library's malloc and free with as many live blocks, 4096
 * times smaller, stand beside it. Driver calls do nothing. Nanoseconds, medians of rounds.
 *
 * --threads: pairs a second of so many threads, each on a stream of its own, all together, and
 * the C library's with as many. */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../csrc/driver/nulldriver.h"
#include "../../csrc/include/torcharena.h"

#define PAIRS 200000
#define MIB ((size_t)1 << 20)

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static uint64_t state = 88172645463325252u;
static uint64_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

/* Half of 512 B to 1 MiB; half larger, up to 16 MiB, or 2 MiB where there are many. */
static size_t some_size(size_t live)
{
    size_t small = 512 * (1 + next_random() % 2048);
    size_t large = MIB + next_random() % (live > 10000 ? MIB : 15 * MIB);
    return next_random() % 2 ? small : large;
}

typedef struct found {
    double p50, p99, p999;
} found;

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static found summary(double *times, double timer)
{
    qsort(times, PAIRS, sizeof *times, compare);
    return (found){times[PAIRS / 2] - timer, times[PAIRS - PAIRS / 100] - timer,
                   times[PAIRS - PAIRS / 1000] - timer};
}

static double timer_ns(double *times)
{
    for (int i = 0; i < PAIRS; i++) {
        double start = now_ns();
        times[i] = now_ns() - start;
    }
    qsort(times, PAIRS, sizeof *times, compare);
    return times[PAIRS / 2];
}

typedef struct memory {
    bool library; /* malloc and free, of blocks 4096 times smaller */
    ta_allocator *arena;
} memory;

static inline void *take(const memory *m, size_t size)
{
    void *ptr = NULL;
    if (m->library) return malloc(size / 4096);
    ta_alloc(m->arena, size, 0, NULL, &ptr, NULL);
    return ptr;
}
static inline void give(const memory *m, void *ptr)
{
    if (m->library)
        free(ptr);
    else
        ta_free(m->arena, ptr);
}

static bool run(const memory *m, size_t live, bool churn, double *times)
{
    void **blocks = calloc(2 * live, sizeof *blocks);
    size_t *sizes = calloc(2 * live, sizeof *sizes);
    bool ok = blocks && sizes;
    for (size_t i = 0; ok && i < 2 * live; i++)
        ok = (blocks[i] = take(m, sizes[i] = some_size(live))) != NULL;
    for (size_t i = 0; ok && i < live; i++) give(m, blocks[live + i]); /* a large hole */
    for (size_t i = 0; ok && i < live; i++) { /* holes among the live, in random places */
        size_t at = next_random() % live;
        give(m, blocks[at]);
        ok = (blocks[at] = take(m, sizes[at] = some_size(live))) != NULL;
    }
    for (size_t i = 0; ok && i < 2 * PAIRS; i++) { /* the first half warms it up */
        size_t at = next_random() % live, size = churn ? sizes[at] : some_size(live);
        void *old = blocks[at]; /* the program has it at hand */
        double start = now_ns();
        if (churn) give(m, old);
        void *ptr = take(m, size);
        if (!churn) give(m, ptr);
        times[i % PAIRS] = now_ns() - start;
        ok = ptr != NULL;
        if (churn) blocks[at] = ptr;
    }
    for (size_t i = 0; ok && i < live; i++) give(m, blocks[i]);
    free(blocks);
    free(sizes);
    return ok;
}

static bool core(size_t live, bool churn, double *times, double timer, found *out)
{
    ta_null *null = NULL;
    memory m = {0};
    ta_null_config machine = {1, (uint64_t)1 << 40, (uint64_t)4 << 20};
    bool ok = !ta_null_create(&machine, &null) &&
              !ta_allocator_create(ta_null_driver(null), NULL, &m.arena) &&
              run(&m, live, churn, times);
    *out = summary(times, timer);
    if (m.arena) ta_allocator_destroy(m.arena);
    if (null) ta_null_destroy(null);
    return ok;
}

static bool library(size_t live, bool churn, double *times, double timer, found *out)
{
    bool ok = run(&(memory){.library = true}, live, churn, times);
    *out = summary(times, timer);
    return ok;
}

static double middle(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}

static bool measure(size_t live, bool churn, int rounds, bool json)
{
    static double times[PAIRS];
    double own[3][100], theirs[2][100];
    for (int r = 0; r < rounds; r++) {
        found mine, other;
        double timer = timer_ns(times);
        if (!core(live, churn, times, timer, &mine) ||
            !library(live, churn, times, timer, &other))
            return false;
        own[0][r] = mine.p50, own[1][r] = mine.p99, own[2][r] = mine.p999;
        theirs[0][r] = other.p50, theirs[1][r] = other.p99;
    }
    printf(json ? "{\"live\": %zu, \"way\": \"%s\", \"p50_ns\": %.0f, \"p99_ns\": %.0f, "
                  "\"p999_ns\": %.0f, "
                  "\"malloc_p50_ns\": %.0f, \"malloc_p99_ns\": %.0f}\n"
                : "%7zu live, %s: p50 %4.0f ns, p99 %5.0f ns, p99.9 %6.0f ns; malloc and "
                  "free: "
                  "p50 %4.0f ns, p99 %5.0f ns\n",
           live, churn ? "churn" : "pair", middle(own[0], rounds), middle(own[1], rounds),
           middle(own[2], rounds), middle(theirs[0], rounds), middle(theirs[1], rounds));
    return true;
}

/* --- threads ----------------------------------------------------------------------------- */
#define MOST_THREADS 64
#define THREAD_LIVE 100

typedef struct crowd {
    memory m;
    pthread_barrier_t ready;
} crowd;

typedef struct one {
    crowd *of;
    ta_stream stream;
    uint64_t state;
    double start, end;
    bool ok;
} one;

static uint64_t draw(one *o)
{
    o->state ^= o->state << 13;
    o->state ^= o->state >> 7;
    return o->state ^= o->state << 17;
}

static void *take_on(const memory *m, size_t size, ta_stream stream)
{
    void *ptr = NULL;
    if (m->library) return malloc(size / 4096);
    ta_alloc(m->arena, size, 0, stream, &ptr, NULL);
    return ptr;
}

static void *work(void *argument)
{
    one *o = argument;
    const memory *m = &o->of->m;
    void *blocks[2 * THREAD_LIVE];
    o->ok = true;
    for (int i = 0; i < 2 * THREAD_LIVE; i++) {
        blocks[i] = take_on(m, 8192 + draw(o) % (4 * MIB), o->stream);
        o->ok &= blocks[i] != NULL;
    }
    for (int i = 0; i < THREAD_LIVE; i++) give(m, blocks[THREAD_LIVE + i]);
    for (int half = 0; half < 2; half++) { /* the first warms it up */
        pthread_barrier_wait(&o->of->ready);
        o->start = now_ns();
        for (int i = 0; i < PAIRS; i++) {
            void *ptr = take_on(m, 8192 + draw(o) % (4 * MIB), o->stream);
            o->ok &= ptr != NULL;
            give(m, ptr);
        }
        o->end = now_ns();
    }
    for (int i = 0; i < THREAD_LIVE; i++) give(m, blocks[i]);
    return NULL;
}

static ta_stream_life lasts(void *context, int device, ta_stream stream)
{
    (void)context, (void)device, (void)stream;
    return TA_STREAM_LASTS;
}

/* Pairs a second of all threads. */
static bool rate_of(const memory *m, int threads, double *rate)
{
    crowd c = {.m = *m};
    one each[MOST_THREADS];
    pthread_t ids[MOST_THREADS];
    pthread_barrier_init(&c.ready, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++) {
        each[i] = (one){&c,
                        (ta_stream)(uintptr_t)(4096 + 64 * i),
                        88172645463325252u + (uint64_t)i,
                        0,
                        0,
                        false};
        if (pthread_create(&ids[i], NULL, work, &each[i])) exit(1);
    }
    for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    pthread_barrier_destroy(&c.ready);
    bool ok = true;
    double start = each[0].start, end = each[0].end;
    for (int i = 0; i < threads; i++) {
        ok &= each[i].ok;
        if (each[i].start < start) start = each[i].start;
        if (each[i].end > end) end = each[i].end;
    }
    *rate = threads * (double)PAIRS / (end - start) * 1e9;
    return ok;
}

static bool together(int threads, int rounds, bool json)
{
    double own[100], theirs[100];
    ta_null_config machine = {1, (uint64_t)1 << 40, (uint64_t)4 << 20};
    for (int r = 0; r < rounds; r++) {
        ta_null *null = NULL;
        memory m = {0};
        bool ok = !ta_null_create(&machine, &null) &&
                  !ta_allocator_create(ta_null_driver(null), NULL, &m.arena) &&
                  !ta_set_stream_life(m.arena, lasts, NULL) &&
                  rate_of(&m, threads, &own[r]) &&
                  rate_of(&(memory){.library = true}, threads, &theirs[r]);
        if (m.arena) ta_allocator_destroy(m.arena);
        if (null) ta_null_destroy(null);
        if (!ok) return false;
    }
    printf(json ? "{\"threads\": %d, \"pairs_per_second\": %.0f, "
                  "\"malloc_pairs_per_second\": %.0f}\n"
                : "%7d threads: %.1f M pairs/s; malloc and free: %.1f M pairs/s\n",
           threads, middle(own, rounds) / (json ? 1 : 1e6),
           middle(theirs, rounds) / (json ? 1 : 1e6));
    return true;
}

int main(int argc, char **argv)
{
    size_t lives[16] = {100, 100000};
    int count = 0, rounds = 5, crowds[16], crowd_count = 0;
    bool json = false, threads = false;
    for (int i = 1; i < argc; i++) {
        size_t number = strtoull(argv[i], NULL, 10);
        if (strcmp(argv[i], "--json") == 0)
            json = true;
        else if (strcmp(argv[i], "--threads") == 0)
            threads = true;
        else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc)
            rounds = atoi(argv[++i]);
        else if (threads && crowd_count < 16 && number > 0 && number <= MOST_THREADS)
            crowds[crowd_count++] = (int)number;
        else if (!threads && count < 16 && number > 0)
            lives[count++] = number;
        else
            rounds = 0;
    }
    if (rounds < 1 || rounds > 100) {
        fputs("usage: core_latency [--json] [--rounds 1..100] [LIVE...] "
              "[--threads 1..64...]\n",
              stderr);
        return 2;
    }
    bool ok = true;
    for (int l = 0; l < 2 * (count ? count : 2) && ok; l++)
        ok = measure(lives[l / 2], l % 2, rounds, json);
    for (int t = 0; t < crowd_count && ok; t++) ok = together(crowds[t], rounds, json);
    if (!ok) fputs("core_latency: out of memory\n", stderr);
    return !ok;
}
