/* share.c - growth of a device's physical memory, charged to the ledger.
 *
 * Called by pages.c, plain.c and alloc.c with the device's `pages` held, and from outside
 * by the public functions at the end. The ledger is asked with `pages` dropped. Invariant:
 *     ta_ledger_held = stats.reserved.current + charged,  while `charging` is 0
 *     charged = 0 whenever `pages` is free
 * So the books are never below what the driver gave: a charge comes before the driver's call,
 * a release after it. */
#include "share.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "device.h"
#include "ledger.h"
#include "file.h"
#include "pages/pages.h"

#define ANSWER_US 1e5 /* how long those are waited for who hold memory unused */
#define LOOK_US 2e3   /* between two looks meanwhile */
#define YIELD_US 5e6  /* how long room that was made for others is left to them */

struct ta_share {
    char *directory;
    char gpu[TA_SHARE_TEXT];
    ta_ledger_who who;
    ta_share_caps caps;
    ta_ledger *ledger; /* from the first growth on */
    int charging;      /* calls to the ledger under way, with `pages` dropped */
    uint64_t charged;
    uint64_t owed; /* asked for by others and not idle then */
    double owed_until, yields_until;
    bool
        left; /* it could not be used, and only observes: growth is not counted any more */
    char problem[TA_SHARE_WHY];
};

static ta_ledger_terms terms_of(const ta_device *d)
{
    ta_limit_source source;
    uint64_t limit = ta_limit_of(d, &source);
    return (ta_ledger_terms){d->share->caps, limit, (int)source};
}

/* The last to use a ledger that was left closes it. */
static void leave_if_over(ta_share *s)
{
    if (s->charging || !s->left || !s->ledger) return;
    ta_ledger_leave(s->ledger);
    s->ledger = NULL;
}

/* Calls that use the ledger with `pages` dropped stand between these two. */
static void begin_charging(ta_device *d)
{
    d->share->charging++;
    ta_lock_drop(&d->pages);
}
static void end_charging(ta_device *d)
{
    ta_lock_take(&d->pages);
    d->share->charging--;
    leave_if_over(d->share);
}

/* The ledger cannot be used. */
static ta_status trouble(ta_share *s, ta_status status, const char *why, ta_lack *lack)
{
    snprintf(s->problem, sizeof s->problem, "%s", why);
    if (s->caps.observe) {
        s->left = true;
        s->charged = 0;
        leave_if_over(s);
        return TA_OK;
    }
    lack->refusal = (ta_refusal){.scope = TA_SCOPE_LEDGER};
    snprintf(lack->refusal.why, sizeof lack->refusal.why, "%s", why);
    return status == TA_NO_HOST_MEMORY ? status : TA_OUT_OF_MEMORY;
}

/* A slot of our own, taken at the first growth. */
static ta_status join(ta_device *d, ta_lack *lack)
{
    ta_share *s = d->share;
    char why[TA_SHARE_WHY];
    ta_ledger *ledger;
    begin_charging(d);
    ta_status status = ta_ledger_join(s->directory, s->gpu, &s->who, &ledger, why);
    ta_ledger *spare = ledger;
    ta_lock_take(&d->pages);
    if (!s->ledger && !s->left) {
        s->ledger = ledger;
        spare = NULL;
    }
    ta_lock_drop(&d->pages);
    ta_ledger_leave(spare); /* another thread was first */
    end_charging(d);
    return s->ledger || s->left ? TA_OK : trouble(s, status, why, lack);
}

/* A ledger was left while it only observed, and is to be enforced now: a slot anew, with all
 * that is held, over the caps or not. Until that succeeds growth is refused. */
static ta_status rejoin(ta_device *d, ta_lack *lack)
{
    ta_share *s = d->share;
    char why[TA_SHARE_WHY];
    const uint64_t held = ta_reserved(d);
    const ta_ledger_want want = {held, held, d->page_bytes, false};
    ta_ledger_terms terms = terms_of(d);
    terms.caps.observe = true;
    ta_ledger *ledger;
    ta_refusal no = {0};
    uint64_t got = 0;
    begin_charging(d);
    ta_status status = ta_ledger_join(s->directory, s->gpu, &s->who, &ledger, why);
    if (!status && (status = ta_ledger_reserve(ledger, &want, &terms, &got, &no)))
        memcpy(why, no.why, sizeof why);
    end_charging(d);
    const uint64_t now = ta_reserved(d);
    if (!status && s->left && !s->ledger && now <= held) { /* else others were first */
        ta_ledger_release(ledger, held - now);
        s->ledger = ledger;
        s->left = false;
        return TA_OK;
    }
    if (ledger) ta_ledger_release(ledger, got);
    ta_ledger_leave(ledger);
    if (!s->left) return TA_OK;
    return trouble(s, status ? status : TA_NOT_READY,
                   status ? why : "it was left and is not joined again yet", lack);
}

static ta_status charge(ta_device *d, uint64_t least, uint64_t most, bool last,
                        ta_lack *lack)
{
    ta_share *s = d->share;
    ta_status status = TA_OK;
    if (!s || (s->left && s->caps.observe)) return TA_OK;
    if (s->left)
        status = rejoin(d, lack);
    else if (!s->ledger)
        status = join(d, lack);
    if (status || s->left) return status;
    const ta_ledger_terms terms = terms_of(d);
    const ta_ledger_want want = {least, most, d->page_bytes, last};
    ta_ledger *ledger = s->ledger;
    ta_refusal no;
    uint64_t got;
    ta_share_settle(d);
    ta_ledger_say_unused(ledger, ta_unused(d));
    begin_charging(d);
    status = ta_ledger_reserve(ledger, &want, &terms, &got, &no);
    end_charging(d);
    if (!status) {
        if (!s->left) s->charged += got;
        s->problem[0] = 0;
        return TA_OK;
    }
    if (no.scope == TA_SCOPE_LEDGER) return trouble(s, status, no.why, lack);
    lack->refusal = no;
    return status;
}

ta_status ta_share_charge(ta_device *d, uint64_t least, uint64_t most, ta_lack *lack)
{
    return charge(d, least, most, false, lack);
}

uint64_t ta_share_charged(const ta_device *d)
{
    const ta_share *s = d->share;
    if (!s || (s->left && s->caps.observe)) return TA_NO_LIMIT;
    return s->left ? 0 : s->charged;
}

void ta_share_spend(ta_device *d, uint64_t bytes)
{
    if (d->share && !d->share->left) d->share->charged -= bytes;
}

void ta_share_return(ta_device *d, uint64_t bytes)
{
    ta_share *s = d->share;
    if (!s || !s->ledger || s->left) return;
    ta_ledger_say_unused(s->ledger, ta_unused(d));
    ta_share_say_spilled(d);
    ta_ledger_release(s->ledger, bytes);
}

void ta_share_say_spilled(ta_device *d)
{
    const ta_share *s = d->share;
    if (!s || !s->ledger || s->left) return;
    ta_spin_take(&d->counting);
    const uint64_t bytes = d->stats.spilled.current;
    ta_spin_drop(&d->counting);
    ta_ledger_say_spilled(s->ledger, bytes);
}

void ta_share_settle(ta_device *d)
{
    ta_share *s = d->share;
    if (!s || !s->charged) return;
    uint64_t bytes = s->charged;
    s->charged = 0;
    ta_share_return(d, bytes);
}

static void sleep_us(double us)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)(us * 1e3)}, NULL);
}

/* The driver refused what the ledger granted. */
static bool await_driver(ta_device *d, ta_lack *lack)
{
    ta_ledger *ledger = d->share->ledger;
    const double now = ta_now_us();
    if (lack->drained_until == 0) lack->drained_until = now + TA_LEDGER_DRAIN_US;
    if (now > lack->drained_until) return false;
    begin_charging(d);
    double left = ta_ledger_draining(ledger);
    if (left > 0) sleep_us(LOOK_US);
    end_charging(d);
    return left > 0;
}

/* The ledger refused for what others hold. */
static bool await_others(ta_device *d, uint64_t bytes, ta_lack *lack)
{
    const bool first = lack->until == 0;
    if (charge(d, bytes, bytes, first, lack) == TA_OK) return true;
    if (first) lack->until = ta_now_us() + (lack->refusal.unused ? ANSWER_US : 0);
    while (ta_now_us() < lack->until) {
        begin_charging(d);
        sleep_us(LOOK_US);
        end_charging(d);
        if (charge(d, bytes, bytes, false, lack) == TA_OK) return true;
    }
    return false;
}

bool ta_share_await(ta_device *d, uint64_t bytes, ta_lack *lack)
{
    ta_share *s = d->share;
    if (!s || s->left || !s->ledger) return false;
    switch (lack->refusal.scope) {
    case TA_SCOPE_NONE:
        ta_share_settle(d);
        return await_driver(d, lack);
    case TA_SCOPE_TENANT:
    case TA_SCOPE_DEVICE:
        return await_others(d, bytes, lack);
    default:
        return false;
    }
}

/* At most so many bytes of idle pages. */
static ta_status give(ta_device *d, uint64_t bytes, bool wait, uint64_t *released)
{
    uint64_t held = ta_reserved(d);
    return ta_pages_give_back(d, held > bytes ? held - bytes : 0, wait, released);
}

/* The rest of what was asked for then is of live pages, at the next mark. */
static void owe(ta_share *s, uint64_t bytes, uint64_t released, double asked_us)
{
    s->owed = bytes > released ? bytes - released : 0;
    s->owed_until = asked_us + TA_LEDGER_ASK_US;
}

void ta_share_answer(ta_device *d)
{
    ta_share *s = d->share;
    double asked_us = 0;
    uint64_t released = 0,
             bytes = s && s->ledger ? ta_ledger_asked(s->ledger, &asked_us) : 0;
    if (!bytes) return;
    give(d, bytes, false, &released);
    owe(s, bytes, released, asked_us);
}

uint64_t ta_share_excess(ta_device *d)
{
    ta_share *s = d->share;
    uint64_t part, room;
    if (!s || !s->ledger || s->left || s->caps.observe) return 0;
    double asked_us = 0;
    const uint64_t asked = ta_ledger_asked(s->ledger, &asked_us);
    if (asked) owe(s, asked, 0, asked_us);
    if (s->owed && ta_now_us() > s->owed_until) s->owed = 0;
    uint64_t excess = ta_ledger_beyond(s->ledger, &s->caps, &part, &room);
    if (excess < s->owed) excess = s->owed;
    const uint64_t held = ta_reserved(d), most = held > part ? held - part : 0;
    return excess < most ? excess : most;
}

void ta_share_yield(ta_device *d, bool left)
{
    if (!d->share) return;
    d->share->owed = 0;
    if (left) d->share->yields_until = ta_now_us() + YIELD_US;
}

uint64_t ta_share_room(ta_device *d)
{
    const ta_share *s = d->share;
    uint64_t part, room;
    if (!s || !s->ledger || s->left || s->caps.observe) return TA_NO_LIMIT;
    ta_ledger_beyond(s->ledger, &s->caps, &part, &room);
    return room;
}

bool ta_share_yields(const ta_device *d)
{
    return d->share && d->share->yields_until > 0 && ta_now_us() < d->share->yields_until;
}

bool ta_share_check(ta_device *d, char *text, size_t capacity)
{
    const ta_share *s = d->share;
    if (!s || s->left || s->charging) return true;
    const uint64_t held = s->ledger ? ta_ledger_held(s->ledger) : 0;
    const uint64_t reserved = ta_reserved(d);
    if (held == reserved + s->charged && !s->charged) return true;
    snprintf(text, capacity, "charged: ledger held = %llu, reserved = %llu + %llu",
             (unsigned long long)held, (unsigned long long)reserved,
             (unsigned long long)s->charged);
    return false;
}

void ta_share_destroy(ta_device *d)
{
    if (!d->share) return;
    ta_ledger_leave(d->share->ledger);
    free(d->share->directory);
    free(d->share);
    d->share = NULL;
}

/* --- the public functions ----------------------------------------------------------------- */
static ta_share *new_share(const ta_share_config *config)
{
    ta_share *s = calloc(1, sizeof *s);
    if (!s || !(s->directory = strdup(config->directory))) {
        free(s);
        return NULL;
    }
    snprintf(s->gpu, sizeof s->gpu, "%s", config->gpu);
    snprintf(s->who.label, sizeof s->who.label, "%s", config->label);
    snprintf(s->who.tenant, sizeof s->who.tenant, "%s", config->tenant);
    s->who.claimed = config->claimed;
    s->caps = config->caps;
    return s;
}

ta_status ta_share_open(ta_allocator *a, int device, const ta_share_config *config,
                        bool *shared, char why[TA_SHARE_WHY])
{
    int fd;
    *why = 0;
    *shared = false;
    if (ta_forked(a)) return TA_FORKED;
    if (device < 0 || device >= TA_MAX_DEVICES) return TA_INVALID;
    ta_status status =
        ta_ledger_open(config->directory, config->gpu, true, &fd, shared, why);
    if (status) return status;
    close(fd); /* a slot is taken when it is needed */
    ta_device *d = &a->device[device];
    ta_share *fresh = new_share(config), *old = NULL;
    if (!fresh) return TA_NO_HOST_MEMORY;
    ta_lock_take(&d->pages);
    if (ta_reserved(d) || (d->share && (d->share->ledger || d->share->charging))) {
        status = TA_INVALID;
        snprintf(why, TA_SHARE_WHY, "the device holds memory already");
        old = fresh;
    } else {
        old = d->share;
        d->share = fresh;
    }
    ta_lock_drop(&d->pages);
    if (old) free(old->directory);
    free(old);
    return status;
}

ta_status ta_share_set_caps(ta_allocator *a, int device, const ta_share_caps *caps,
                            uint64_t *released)
{
    uint64_t unused = 0;
    if (!released) released = &unused;
    *released = 0;
    if (ta_forked(a)) return TA_FORKED;
    if (device < 0 || device >= TA_MAX_DEVICES) return TA_INVALID;
    ta_device *d = &a->device[device];
    uintptr_t saved[2];
    ta_lack lack = {0};
    ta_status status = TA_OK;
    ta_lock_take(&d->pages);
    bool open = d->share != NULL;
    if (open) d->share->caps = *caps;
    bool joined = open && (d->share->left ? !caps->observe : d->share->ledger != NULL);
    ta_lock_drop(&d->pages);
    if (!open) return TA_INVALID;
    if (!joined) return TA_OK;
    if ((status = ta_enter(d, saved))) return status;
    ta_lock_take(&d->pages);
    /* Nothing more is wanted: refused where more is held than the caps allow. */
    if (charge(d, 0, 0, true, &lack) && lack.refusal.scope != TA_SCOPE_LEDGER)
        status = give(d, lack.refusal.short_by, true, released);
    ta_lock_drop(&d->pages);
    ta_leave(d, saved);
    return status;
}

ta_status ta_share_heed(ta_allocator *a, int device, uint64_t *released)
{
    uint64_t unused = 0;
    if (!released) released = &unused;
    *released = 0;
    if (ta_forked(a)) return TA_FORKED;
    ta_device *d = ta_device_if_used(a, device);
    if (!d) return TA_OK;
    uintptr_t saved[2];
    ta_status status = TA_OK;
    ta_lock_take(&d->pages);
    ta_share *s = d->share;
    double asked_us = 0;
    uint64_t bytes = s && s->ledger ? ta_ledger_asked(s->ledger, &asked_us) : 0;
    ta_lock_drop(&d->pages);
    if (!bytes || (status = ta_enter(d, saved))) return status;
    ta_lock_take(&d->pages);
    status = give(d, bytes, true, released);
    if (d->share == s) owe(s, bytes, *released, asked_us);
    ta_lock_drop(&d->pages);
    ta_leave(d, saved);
    return status;
}

ta_status ta_share_get(ta_allocator *a, int device, ta_share_state *state)
{
    memset(state, 0, sizeof *state);
    state->slot = -1;
    state->caps = (ta_share_caps){TA_NO_LIMIT, TA_NO_LIMIT, false};
    if (ta_forked(a)) return TA_FORKED;
    if (device < 0 || device >= TA_MAX_DEVICES) return TA_INVALID;
    ta_device *d = &a->device[device];
    ta_lock_take(&d->pages);
    const ta_share *s = d->share;
    if (s) {
        state->open = true;
        state->caps = s->caps;
        state->joined = s->ledger != NULL;
        if (s->ledger) {
            state->slot = ta_ledger_slot(s->ledger);
            state->held = ta_ledger_held(s->ledger);
        }
        snprintf(state->path, sizeof state->path, "%s/%s.ledger", s->directory, s->gpu);
        memcpy(state->tenant, s->who.tenant, sizeof state->tenant);
        memcpy(state->problem, s->problem, sizeof state->problem);
    }
    ta_lock_drop(&d->pages);
    return TA_OK;
}
