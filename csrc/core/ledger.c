/* ledger.c - a process's share of a GPU's memory, kept in the ledger that all share.
 *
 * Called by the allocator before pages are made and after they are gone, from any thread,
 * with none of its locks held. Invariant, whenever the growth lock is free:
 *     sum of words[i].bytes over slots whose owners live <= the cap that each grew under
 * Only an owner raises its word, and only under the growth lock, having read the sum after it
 * took it; anyone's word may fall at any time. What the dead left is taken off by the next
 * who would be refused for it, who holds the dead one's slot meanwhile.
 *
 * Two locks stand for one: the kernel's locks belong to the open file, which our threads
 * share, so threads keep each other out by `busy`. */
#include "ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "count.h"
#include "ledger_file.h"

struct ta_ledger {
    ta_ledger *next; /* of all that this process has; guarded by `all_lock` */
    int fd;          /* -1 in a forked child */
    int slot;
    atomic_flag busy;
    /* guarded by `busy`:  held = words[slot].bytes, save while it is being written */
    uint64_t tenant;
    ta_ledger_info info;
    _Atomic uint64_t held;
};

void (*ta_ledger_step)(const char *name);
static void step(const char *name)
{
    if (ta_ledger_step) ta_ledger_step(name);
}

/* --- fork --------------------------------------------------------------------------------
 * A child shares its parent's open files and with them the locks: it closes them before
 * anything else runs there, so that they end with the parent. */
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static ta_ledger *all;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before_fork(void) { pthread_mutex_lock(&all_lock); }
static void after_fork_parent(void) { pthread_mutex_unlock(&all_lock); }
static void after_fork_child(void)
{
    for (ta_ledger *l = all; l; l = l->next) {
        if (l->fd >= 0) close(l->fd);
        l->fd = -1;
    }
    pthread_mutex_unlock(&all_lock);
}
static void install_fork_handlers(void)
{
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

/* --- locking -------------------------------------------------------------------------------- */
static off_t word_at(int slot)
{
    return (off_t)offsetof(ta_ledger_file, words) + slot * (off_t)sizeof(ta_ledger_word);
}
static off_t info_at(int slot)
{
    return (off_t)offsetof(ta_ledger_file, infos) + slot * (off_t)sizeof(ta_ledger_info);
}

#define LONGEST_PAUSE_US 256L

static void sleep_us(long us)
{
    nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}
static void pause_a_little(int tries)
{
    sleep_us(tries < 8 ? 1L << tries : LONGEST_PAUSE_US);
}

static ta_status fail(char *why, ta_status status, const char *what)
{
    snprintf(why, TA_LEDGER_WHY, "%s", what);
    return status;
}

/* Who comes while others wait lets them try first: else one that grows all the time would
 * have the lock again before any sleeper woke. */
static ta_status take(ta_ledger *l, char *why)
{
    const double until = ta_now_us() + TA_LEDGER_PATIENCE_US;
    bool waiting = false;
    if (ta_ledger_locked(l->fd, TA_LEDGER_WAITING)) sleep_us(2 * LONGEST_PAUSE_US);
    for (int tries = 0;; tries++) {
        if (!atomic_flag_test_and_set_explicit(&l->busy, memory_order_acquire)) {
            if (ta_byte_lock(l->fd, TA_LEDGER_GROWTH, F_WRLCK, false)) break;
            atomic_flag_clear_explicit(&l->busy, memory_order_release); /* for releases */
        }
        if (!waiting) waiting = ta_byte_lock(l->fd, TA_LEDGER_WAITING, F_RDLCK, false);
        if (ta_now_us() > until) {
            if (waiting) ta_byte_lock(l->fd, TA_LEDGER_WAITING, F_UNLCK, false);
            return fail(why, TA_NOT_READY,
                        "the ledger's lock was kept by another process for 2 seconds: is "
                        "one stopped?");
        }
        pause_a_little(tries);
    }
    if (waiting) ta_byte_lock(l->fd, TA_LEDGER_WAITING, F_UNLCK, false);
    step("locked");
    return TA_OK;
}

static void drop(ta_ledger *l)
{
    step("before unlock");
    ta_byte_lock(l->fd, TA_LEDGER_GROWTH, F_UNLCK, false);
    atomic_flag_clear_explicit(&l->busy, memory_order_release);
}

/* --- joining ---------------------------------------------------------------------------------- */
/* FNV-1a; never 0, which is nobody's. */
static uint64_t tenant_of(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    if (!*name) return 0;
    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash ? hash : 1;
}

/* Closing lets the kernel drop the slot's lock. */
static void discard(ta_ledger *l)
{
    pthread_mutex_lock(&all_lock);
    ta_ledger **at = &all;
    while (*at != l) at = &(*at)->next;
    *at = l->next;
    if (l->fd >= 0) close(l->fd);
    pthread_mutex_unlock(&all_lock);
    free(l);
}

/* The slot is ours when its lock is; what a dead owner left there must be gone before the
 * growth lock is, since from then on it would count as ours. */
static ta_status claim(ta_ledger *l, char *why)
{
    ta_status status = take(l, why);
    if (status) return status;
    l->slot = -1;
    for (int i = 0; i < TA_LEDGER_SLOTS && l->slot < 0; i++)
        if (ta_byte_lock(l->fd, TA_LEDGER_SLOT(i), F_WRLCK, false)) l->slot = i;
    step("slot locked");
    ta_ledger_word word = {0, l->tenant};
    if (l->slot < 0)
        status = fail(why, TA_OUT_OF_MEMORY, "every slot of the ledger is taken");
    else if (!ta_ledger_pwrite(l->fd, &word, sizeof word, word_at(l->slot)) ||
             !ta_ledger_pwrite(l->fd, &l->info, sizeof l->info, info_at(l->slot)))
        status = fail(why, TA_DRIVER, "the ledger cannot be written");
    step("slot written");
    drop(l);
    return status;
}

ta_status ta_ledger_join(const char *directory, const char *gpu, const ta_ledger_who *who,
                         ta_ledger **ledger, char why[TA_LEDGER_WHY])
{
    *ledger = NULL;
    ta_ledger *l = calloc(1, sizeof *l);
    if (!l) return fail(why, TA_NO_HOST_MEMORY, "no host memory");
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    atomic_flag_clear(&l->busy);
    l->info.started_us = (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
    l->info.pid = getpid();
    l->info.uid = geteuid();
    snprintf(l->info.who.label, TA_LEDGER_TEXT, "%s", who->label);
    snprintf(l->info.who.tenant, TA_LEDGER_TEXT, "%s", who->tenant);
    l->tenant = tenant_of(l->info.who.tenant);
    pthread_once(&once, install_fork_handlers);
    /* Opened and listed in one: a child forked in between would keep the file, and with it
     * the locks that are taken later. */
    pthread_mutex_lock(&all_lock);
    ta_status status = ta_ledger_open(directory, gpu, true, &l->fd, why);
    l->next = all;
    all = l;
    pthread_mutex_unlock(&all_lock);
    if (!status) status = claim(l, why);
    if (status)
        discard(l);
    else
        *ledger = l;
    return status;
}

void ta_ledger_leave(ta_ledger *l)
{
    if (!l) return;
    if (l->fd >= 0) {
        ta_ledger_word nothing = {0, 0};
        ta_ledger_pwrite(l->fd, &nothing, sizeof nothing, word_at(l->slot));
        step("emptied");
    }
    discard(l);
}

/* --- growing ------------------------------------------------------------------------------------ */
static uint64_t add(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }

typedef struct sums {
    uint64_t all, tenant;
} sums;

static sums sum_up(const ta_ledger *l, const ta_ledger_word *words)
{
    sums s = {0, 0};
    for (int i = 0; i < TA_LEDGER_SLOTS; i++) {
        s.all = add(s.all, words[i].bytes);
        if (l->tenant && words[i].tenant == l->tenant)
            s.tenant = add(s.tenant, words[i].bytes);
    }
    return s;
}

/* Takes the dead's bytes off. Under the growth lock nobody claims a slot, so one that can be
 * locked is nobody's. */
static void sweep(ta_ledger *l, ta_ledger_word *words)
{
    const ta_ledger_word nothing = {0, 0};
    for (int i = 0; i < TA_LEDGER_SLOTS; i++) {
        if (!words[i].bytes || i == l->slot) continue;
        if (ta_ledger_locked(l->fd, TA_LEDGER_SLOT(i))) continue;
        if (!ta_byte_lock(l->fd, TA_LEDGER_SLOT(i), F_WRLCK, false)) continue;
        step("sweeping");
        if (ta_ledger_pwrite(l->fd, &nothing, sizeof nothing, word_at(i)))
            words[i] = nothing;
        step("swept");
        ta_byte_lock(l->fd, TA_LEDGER_SLOT(i), F_UNLCK, false);
    }
}

static bool write_own(ta_ledger *l, uint64_t bytes)
{
    const ta_ledger_word word = {bytes, l->tenant};
    return ta_ledger_pwrite(l->fd, &word, sizeof word, word_at(l->slot));
}

static bool fits(sums s, uint64_t bytes, uint64_t cap, uint64_t tenant_cap)
{
    return add(s.all, bytes) <= cap && add(s.tenant, bytes) <= tenant_cap;
}

static ta_status grow(ta_ledger *l, uint64_t bytes, uint64_t cap, uint64_t tenant_cap,
                      char *why)
{
    ta_ledger_word words[TA_LEDGER_SLOTS];
    uint64_t held = atomic_load(&l->held);
    if (!ta_ledger_pread(l->fd, words, sizeof words, word_at(0)))
        return fail(why, TA_INVALID, "the ledger was truncated");
    step("read");
    if (words[l->slot].tenant != l->tenant || words[l->slot].bytes < held)
        return fail(why, TA_INVALID, "the ledger was overwritten");
    sums s = sum_up(l, words);
    if (!fits(s, bytes, cap, tenant_cap)) {
        sweep(l, words);
        s = sum_up(l, words);
    }
    if (!fits(s, bytes, cap, tenant_cap)) {
        l->info.refused++;
        ta_ledger_pwrite(l->fd, &l->info, offsetof(ta_ledger_info, started_us),
                         info_at(l->slot));
        bool whole = add(s.all, bytes) > cap;
        snprintf(why, TA_LEDGER_WHY, "%llu of %llu bytes of the %s are taken, %llu by us",
                 (unsigned long long)(whole ? s.all : s.tenant),
                 (unsigned long long)(whole ? cap : tenant_cap),
                 whole ? "GPU's shared cap" : "tenant's cap", (unsigned long long)held);
        return TA_OUT_OF_MEMORY;
    }
    step("before growth");
    if (!write_own(l, held + bytes))
        return fail(why, TA_DRIVER, "the ledger cannot be written");
    step("grown");
    atomic_store(&l->held, held + bytes);
    if (held + bytes > l->info.peak) {
        l->info.peak = held + bytes;
        ta_ledger_pwrite(l->fd, &l->info.peak, sizeof l->info.peak, info_at(l->slot));
    }
    return TA_OK;
}

ta_status ta_ledger_reserve(ta_ledger *l, uint64_t bytes, uint64_t cap,
                            uint64_t tenant_cap, char why[TA_LEDGER_WHY])
{
    *why = 0;
    if (l->fd < 0) return fail(why, TA_FORKED, "a child of fork holds nothing");
    ta_status status = take(l, why);
    if (status) return status;
    status = grow(l, bytes, cap, tenant_cap, why);
    drop(l);
    return status;
}

void ta_ledger_release(ta_ledger *l, uint64_t bytes)
{
    if (l->fd < 0) return;
    /* Our own threads alone write the word: they wait for each other, for no process. */
    for (int tries = 0; atomic_flag_test_and_set_explicit(&l->busy, memory_order_acquire);
         tries++)
        pause_a_little(tries);
    uint64_t held = atomic_load(&l->held);
    held -= bytes < held ? bytes : held;
    atomic_store(&l->held, held);
    step("before release");
    write_own(l,
              held); /* where it fails we count for more than we have: never for less */
    step("released");
    atomic_flag_clear_explicit(&l->busy, memory_order_release);
}

uint64_t ta_ledger_held(ta_ledger *l) { return l->fd < 0 ? 0 : atomic_load(&l->held); }
