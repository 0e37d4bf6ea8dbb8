/* An allocator over a driver that does nothing, and a usage that watches it: for the tests of
 * who used what. */
#ifndef USAGE_WORLD_H
#define USAGE_WORLD_H

#include "core/usage/usage.h"
#include "driver/nulldriver.h"
#include "testing.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

typedef struct fixture {
    ta_null *null;
    ta_allocator *a;
    ta_usage *u;
} fixture;

static inline fixture set_up(void)
{
    fixture f = {0};
    ta_null_config config = {.devices = 2, .memory = (uint64_t)8 << 30};
    if (ta_null_create(&config, &f.null) != TA_OK) abort();
    if (ta_allocator_create(ta_null_driver(f.null), NULL, &f.a) != TA_OK) abort();
    if (ta_usage_create(&f.u) != TA_OK || ta_usage_watch(f.u, f.a) != TA_OK) abort();
    return f;
}

/* The invariants hold at the end, whatever a test did. */
static inline void tear_down(fixture *f)
{
    char text[256] = "";
    bool good = ta_usage_check(f->u, text, sizeof text);
    ta_usage_destroy(f->u);
    ta_allocator_destroy(f->a);
    ta_null_destroy(f->null);
    CHECK_STR(good ? "" : text, "");
}

/* A block of device 0, on its default stream. */
static inline void *one(const fixture *f, size_t size)
{
    void *p = NULL;
    ta_alloc(f->a, size, 0, NULL, &p, NULL);
    return p;
}

#endif
