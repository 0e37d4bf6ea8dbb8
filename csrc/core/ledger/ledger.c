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
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "count.h"
#include "file.h"

struct ta_ledger {
    ta_ledger *next; /* of all that this process has; guarded by `all_lock` */
    int fd;          /* -1 in a forked child */
    int slot;
    char *path;
    dev_t device; /* of the file that fd was opened on */
    ino_t inode;
    atomic_flag busy;
    atomic_int waiters;           /* our threads that wait for growth */
    _Atomic uint64_t turns;       /* times that a thread of ours had it */
    _Atomic uint64_t asks_heeded; /* the board's `asked`, when last looked at */
    _Atomic uint64_t unused, spilled;
    uint64_t tenant;
    /* guarded by `busy`:  held = words[slot].bytes, save while it is being written */
    ta_ledger_info info; /* as it is in the file */
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

/* fd is still what was opened: programs that close what they did not open, and then open files
 * of their own, must not find our words in them. *names: how many the ledger has. */
static bool is_ours(const ta_ledger *l, nlink_t *names)
{
    struct stat about;
    if (l->fd < 0 || fstat(l->fd, &about) != 0) return false;
    *names = about.st_nlink;
    return about.st_dev == l->device && about.st_ino == l->inode;
}
static void close_it(ta_ledger *l)
{
    nlink_t names;
    if (is_ours(l, &names)) close(l->fd);
    l->fd = -1;
}

static void before_fork(void) { pthread_mutex_lock(&all_lock); }
static void after_fork_parent(void) { pthread_mutex_unlock(&all_lock); }
static void after_fork_child(void)
{
    for (ta_ledger *l = all; l; l = l->next) close_it(l);
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

#define BOARD(field)                                                                     \
    ((off_t)(offsetof(ta_ledger_file, board) + offsetof(ta_ledger_board, field)))
#define TURN_AT BOARD(turn)
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
    snprintf(why, TA_SHARE_WHY, "%s", what);
    return status;
}

/* Something that changes whenever growth passes on in a crowd. */
static uint64_t turn_of(ta_ledger *l)
{
    uint64_t turn = 0;
    ta_ledger_pread(l->fd, &turn, sizeof turn, TURN_AT);
    return turn + atomic_load(&l->turns);
}

static void wait_openly(ta_ledger *l)
{
    if (!atomic_fetch_add(&l->waiters, 1))
        ta_byte_lock(l->fd, TA_LEDGER_WAITING, F_RDLCK, false);
}
static void wait_no_more(ta_ledger *l)
{
    if (atomic_fetch_sub(&l->waiters, 1) == 1)
        ta_byte_lock(l->fd, TA_LEDGER_WAITING, F_UNLCK, false);
}

/* NULL: all is well. A ledger that was removed does not count for those who come later. */
static const char *amiss(const ta_ledger *l)
{
    nlink_t names;
    if (!is_ours(l, &names)) return "the ledger's file was closed by this program";
    return names ? NULL : "the ledger was removed";
}

/* The same, and whether those who come later would open another: one that was moved aside
 * would let two crowds have the cap each. */
static const char *astray(const ta_ledger *l)
{
    struct stat there;
    const char *wrong = amiss(l);
    if (wrong) return wrong;
    const bool found = stat(l->path, &there) == 0;
    if (found ? there.st_dev == l->device && there.st_ino == l->inode
              : errno != ENOENT && errno != ENOTDIR)
        return NULL;
    return "the ledger was moved, or another took its place";
}

static bool try_to_take(ta_ledger *l)
{
    if (atomic_flag_test_and_set_explicit(&l->busy, memory_order_acquire)) return false;
    if (ta_byte_lock(l->fd, TA_LEDGER_GROWTH, F_WRLCK, false)) return true;
    atomic_flag_clear_explicit(&l->busy, memory_order_release); /* for releases */
    return false;
}

static void drop(ta_ledger *l)
{
    step("before unlock");
    ta_byte_lock(l->fd, TA_LEDGER_GROWTH, F_UNLCK, false);
    atomic_flag_clear_explicit(&l->busy, memory_order_release);
}

/* Who comes while others wait lets them try first: else one that grows all the time would
 * have the lock again before any sleeper woke. Patience is with one holder: it begins anew
 * when growth has passed on. */
static ta_status take(ta_ledger *l, char *why, size_t size)
{
    const double start = ta_now_us();
    const bool crowd = ta_ledger_locked(l->fd, TA_LEDGER_WAITING);
    bool waiting = false;
    double since = start;
    uint64_t turn = 0;
    if (crowd) sleep_us(2 * LONGEST_PAUSE_US);
    const char *wrong = NULL;
    for (int tries = 0; !try_to_take(l); tries++) {
        if ((wrong = amiss(l))) { /* no lock will ever be had: not a matter of patience */
            if (waiting) wait_no_more(l);
            snprintf(why, size, "%s", wrong);
            return TA_INVALID;
        }
        const double now = ta_now_us();
        const uint64_t now_turn = turn_of(l);
        if (now_turn != turn) since = now;
        turn = now_turn;
        if (!waiting) wait_openly(l);
        waiting = true;
        const bool kept = now - since > TA_LEDGER_PATIENCE_US;
        if (kept || now - start > TA_LEDGER_CROWD_US) {
            wait_no_more(l);
            snprintf(why, size, "%s",
                     kept ? "the ledger's lock was kept by another process for 2 "
                            "seconds: is one stopped?"
                          : "so many processes grow at once that the ledger's lock was "
                            "not had in 30 seconds");
            return TA_NOT_READY;
        }
        pause_a_little(tries);
    }
    if (waiting) wait_no_more(l);
    if ((wrong = astray(l))) {
        snprintf(why, size, "%s", wrong);
        drop(l);
        return TA_INVALID;
    }
    atomic_fetch_add(&l->turns, 1);
    if (waiting || crowd) {
        uint64_t next = 0;
        if (ta_ledger_pread(l->fd, &next, sizeof next, TURN_AT) && ++next)
            ta_ledger_pwrite(l->fd, &next, sizeof next, TURN_AT);
    }
    step("locked");
    return TA_OK;
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
    close_it(l);
    pthread_mutex_unlock(&all_lock);
    free(l->path);
    free(l);
}

/* A dead owner's memory may be on its way back for a while. Written before its word is
 * zeroed: who dies in between has the next one say it again. */
static void note_death(ta_ledger *l)
{
    const uint64_t now = (uint64_t)ta_now_us();
    ta_ledger_pwrite(l->fd, &now, sizeof now, BOARD(died_us));
}

/* The slot is ours when its lock is; what a dead owner left there must be gone before the
 * growth lock is, since from then on it would count as ours. */
static ta_status claim(ta_ledger *l, char *why)
{
    ta_status status = take(l, why, TA_SHARE_WHY);
    if (status) return status;
    l->slot = -1;
    for (int i = 0; i < TA_LEDGER_SLOTS && l->slot < 0; i++)
        if (ta_byte_lock(l->fd, TA_LEDGER_SLOT(i), F_WRLCK, false)) l->slot = i;
    step("slot locked");
    ta_ledger_word word = {.tenant = l->tenant}, left = {0};
    uint64_t asked = 0;
    if (l->slot < 0)
        status = fail(why, TA_OUT_OF_MEMORY, "every slot of the ledger is taken");
    else if (!ta_ledger_pread(l->fd, &left, sizeof left, word_at(l->slot)) ||
             !ta_ledger_pread(l->fd, &asked, sizeof asked, BOARD(asked)))
        status = fail(why, TA_INVALID, "the ledger was truncated");
    if (!status && left.bytes) note_death(l);
    if (!status && (!ta_ledger_pwrite(l->fd, &word, sizeof word, word_at(l->slot)) ||
                    !ta_ledger_pwrite(l->fd, &l->info, sizeof l->info, info_at(l->slot))))
        status = fail(why, TA_DRIVER, "the ledger cannot be written");
    atomic_store(&l->asks_heeded, asked); /* older ones are not ours to heed */
    step("slot written");
    drop(l);
    return status;
}

ta_status ta_ledger_join(const char *directory, const char *gpu, const ta_ledger_who *who,
                         ta_ledger **ledger, char why[TA_SHARE_WHY])
{
    *ledger = NULL;
    ta_ledger *l = calloc(1, sizeof *l);
    const size_t room = strlen(directory) + strlen(gpu) + sizeof "/.ledger";
    if (!l || !(l->path = malloc(room))) {
        free(l);
        return fail(why, TA_NO_HOST_MEMORY, "no host memory");
    }
    snprintf(l->path, room, "%s/%s.ledger", directory, gpu);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    atomic_flag_clear(&l->busy);
    l->info.started_us = (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
    l->info.pid = getpid();
    l->info.uid = geteuid();
    l->info.claimed = who->claimed;
    l->info.limit = l->info.device_cap = l->info.tenant_cap = TA_NO_LIMIT;
    snprintf(l->info.label, TA_SHARE_TEXT, "%s", who->label);
    snprintf(l->info.tenant, TA_SHARE_TEXT, "%s", who->tenant);
    l->tenant = tenant_of(l->info.tenant);
    pthread_once(&once, install_fork_handlers);
    /* Opened and listed in one: a child forked in between would keep the file, and with it
     * the locks that are taken later. */
    pthread_mutex_lock(&all_lock);
    ta_status status = ta_ledger_open(directory, gpu, true, &l->fd, NULL, why);
    struct stat about = {0};
    if (!status && fstat(l->fd, &about) != 0)
        status = fail(why, TA_DRIVER, "the ledger cannot be looked at");
    l->device = about.st_dev;
    l->inode = about.st_ino;
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

/* What is still held there counts until the driver is seen to have it back, as the dead's
 * does; what was released was written. */
void ta_ledger_leave(ta_ledger *l)
{
    if (l) discard(l);
}

/* --- growing ------------------------------------------------------------------------------------ */
typedef struct contents { /* as they lie in the file */
    ta_ledger_board board;
    ta_ledger_word words[TA_LEDGER_SLOTS];
} contents;

static uint64_t add(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }
static uint64_t beyond(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

/* Of all processes, or of those of one tenant, that hold anything. */
typedef struct sum {
    uint64_t bytes, unused; /* unused: without ours */
    int others;
} sum;

static void count_in(sum *s, const ta_ledger_word *word, bool ours)
{
    s->bytes = add(s->bytes, word->bytes);
    if (ours || !word->bytes) return;
    s->unused = add(s->unused, word->unused < word->bytes ? word->unused : word->bytes);
    s->others++;
}

static void count_all(const ta_ledger *l, const ta_ledger_word *words, sum *gpu,
                      sum *tenant)
{
    for (int i = 0; i < TA_LEDGER_SLOTS; i++) {
        count_in(gpu, &words[i], i == l->slot);
        if (l->tenant && words[i].tenant == l->tenant)
            count_in(tenant, &words[i], i == l->slot);
    }
}

/* How many bytes `least` is above the caps; *room: how many there are below. *no tells of the
 * cap that lacks more. */
static uint64_t lacking(const ta_ledger *l, const ta_ledger_word *words, uint64_t least,
                        const ta_share_caps *caps, uint64_t *room, ta_refusal *no)
{
    sum gpu = {0}, tenant = {0};
    count_all(l, words, &gpu, &tenant);
    const uint64_t tenant_cap = l->tenant ? caps->tenant : TA_NO_LIMIT;
    const uint64_t over = beyond(add(gpu.bytes, least), caps->device),
                   tenant_over = beyond(add(tenant.bytes, least), tenant_cap);
    const uint64_t left = beyond(caps->device, gpu.bytes),
                   tenant_left = beyond(tenant_cap, tenant.bytes);
    const bool whole = over >= tenant_over;
    const sum *s = whole ? &gpu : &tenant;
    *room = left < tenant_left ? left : tenant_left;
    *no = (ta_refusal){.scope = whole ? TA_SCOPE_DEVICE : TA_SCOPE_TENANT,
                       .processes = s->others,
                       .cap = whole ? caps->device : tenant_cap,
                       .ours = words[l->slot].bytes,
                       .others = beyond(s->bytes, words[l->slot].bytes),
                       .unused = s->unused,
                       .short_by = whole ? over : tenant_over};
    if (!whole) snprintf(no->why, sizeof no->why, "%s", l->info.tenant);
    return no->short_by;
}

/* Takes the dead's bytes off. Under the growth lock nobody claims a slot, so one that can be
 * locked is nobody's. */
static void sweep(ta_ledger *l, ta_ledger_word *words)
{
    const ta_ledger_word nothing = {0};
    for (int i = 0; i < TA_LEDGER_SLOTS; i++) {
        if (!words[i].bytes || i == l->slot) continue;
        if (ta_ledger_locked(l->fd, TA_LEDGER_SLOT(i))) continue;
        if (!ta_byte_lock(l->fd, TA_LEDGER_SLOT(i), F_WRLCK, false)) continue;
        step("sweeping");
        note_death(l);
        if (ta_ledger_pwrite(l->fd, &nothing, sizeof nothing, word_at(i)))
            words[i] = nothing;
        step("swept");
        ta_byte_lock(l->fd, TA_LEDGER_SLOT(i), F_UNLCK, false);
    }
}

static bool write_own(ta_ledger *l, uint64_t bytes)
{
    const uint64_t unused = atomic_load(&l->unused);
    const ta_ledger_word word = {.bytes = bytes,
                                 .tenant = l->tenant,
                                 .unused = unused < bytes ? unused : bytes,
                                 .spilled = atomic_load(&l->spilled)};
    return ta_ledger_pwrite(l->fd, &word, sizeof word, word_at(l->slot));
}

/* The part of our text that changes, where it did. */
static void write_info(ta_ledger *l, const ta_ledger_info *now)
{
    const size_t size = offsetof(ta_ledger_info, started_us);
    if (!memcmp(&l->info, now, size)) return;
    memcpy(&l->info, now, size);
    ta_ledger_pwrite(l->fd, &l->info, size, info_at(l->slot));
}

/* So that who holds memory idle sees that it is wanted. */
static void ask_others(ta_ledger *l, ta_ledger_board *board, const ta_refusal *no)
{
    board->asked++;
    board->asked_bytes = no->short_by;
    board->asked_tenant = no->scope == TA_SCOPE_TENANT ? l->tenant : 0;
    board->asked_us = (uint64_t)ta_now_us();
    const size_t size =
        sizeof board->asked + sizeof board->asked_bytes + sizeof board->asked_tenant;
    atomic_store(&l->asks_heeded, board->asked); /* our own is not ours to heed */
    ta_ledger_pwrite(l->fd, &board->asked_us, sizeof board->asked_us, BOARD(asked_us));
    ta_ledger_pwrite(l->fd, &board->asked, size, BOARD(asked));
}

/* The ledger itself cannot be used. */
static ta_status refuse(ta_refusal *no, ta_status status, const char *why)
{
    *no = (ta_refusal){.scope = TA_SCOPE_LEDGER};
    snprintf(no->why, sizeof no->why, "%s", why);
    return status;
}

static ta_status grow(ta_ledger *l, const ta_ledger_want *want,
                      const ta_ledger_terms *terms, uint64_t *got, ta_refusal *no)
{
    contents seen;
    uint64_t held = atomic_load(&l->held), room;
    if (!ta_ledger_pread(l->fd, &seen, sizeof seen, BOARD(turn)))
        return refuse(no, TA_INVALID, "the ledger was truncated");
    step("read");
    if (seen.words[l->slot].tenant != l->tenant || seen.words[l->slot].bytes < held)
        return refuse(no, TA_INVALID, "the ledger was overwritten");
    const ta_share_caps *caps = &terms->caps;
    uint64_t lack = lacking(l, seen.words, want->least, caps, &room, no);
    if (lack) {
        sweep(l, seen.words);
        lack = lacking(l, seen.words, want->least, caps, &room, no);
    }
    ta_ledger_info info = l->info;
    info.limit = terms->limit;
    info.limit_source = (uint32_t)terms->limit_source;
    info.device_cap = caps->device;
    info.tenant_cap = caps->tenant;
    info.observe = caps->observe;
    info.refused += lack && want->least && (want->last || caps->observe);
    if (lack && !caps->observe) {
        if (want->last && no->others) ask_others(l, &seen.board, no);
        write_info(l, &info);
        return TA_OUT_OF_MEMORY;
    }
    uint64_t more = want->most;
    if (more > room && !caps->observe) {
        more = room - room % want->unit;
        if (more < want->least) more = want->least;
    }
    step("before growth");
    if (more && !write_own(l, held + more))
        return refuse(no, TA_DRIVER, "the ledger cannot be written");
    step("grown");
    atomic_store(&l->held, held + more);
    if (held + more > info.peak) info.peak = held + more;
    write_info(l, &info);
    *got = more;
    return TA_OK;
}

ta_status ta_ledger_reserve(ta_ledger *l, const ta_ledger_want *want,
                            const ta_ledger_terms *terms, uint64_t *got, ta_refusal *no)
{
    *got = 0;
    if (l->fd < 0) return refuse(no, TA_FORKED, "a child of fork holds nothing");
    *no = (ta_refusal){.scope = TA_SCOPE_LEDGER};
    ta_status status = take(l, no->why, sizeof no->why);
    if (status) return status;
    status = grow(l, want, terms, got, no);
    drop(l);
    if (!status) *no = (ta_refusal){0};
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
    /* Where it fails we count for more than we have: never for less. */
    if (!amiss(l)) write_own(l, held);
    step("released");
    atomic_flag_clear_explicit(&l->busy, memory_order_release);
}

uint64_t ta_ledger_held(ta_ledger *l) { return l->fd < 0 ? 0 : atomic_load(&l->held); }
int ta_ledger_slot(const ta_ledger *l) { return l->slot; }
void ta_ledger_say_unused(ta_ledger *l, uint64_t bytes)
{
    atomic_store_explicit(&l->unused, bytes, memory_order_relaxed);
}

void ta_ledger_say_spilled(ta_ledger *l, uint64_t bytes)
{
    if (atomic_exchange(&l->spilled, bytes) == bytes || l->fd < 0) return;
    /* The word's last field, which nobody counts by. */
    ta_ledger_pwrite(l->fd, &bytes, sizeof bytes,
                     word_at(l->slot) + (off_t)offsetof(ta_ledger_word, spilled));
}

uint64_t ta_ledger_beyond(ta_ledger *l, const ta_share_caps *caps, uint64_t *part,
                          uint64_t *room)
{
    contents seen;
    sum gpu = {0}, tenant = {0};
    *part = TA_NO_LIMIT;
    *room = 0;
    if (l->fd < 0 || !ta_ledger_pread(l->fd, &seen, sizeof seen, BOARD(turn))) return 0;
    for (int i = 0; i < TA_LEDGER_SLOTS; i++) /* the dead hold nothing */
        if (seen.words[i].bytes && i != l->slot &&
            !ta_ledger_locked(l->fd, TA_LEDGER_SLOT(i)))
            seen.words[i].bytes = 0;
    count_all(l, seen.words, &gpu, &tenant);
    const uint64_t tenant_cap = l->tenant ? caps->tenant : TA_NO_LIMIT;
    if (caps->device != TA_NO_LIMIT) *part = caps->device / ((uint64_t)gpu.others + 1);
    if (tenant_cap / ((uint64_t)tenant.others + 1) < *part)
        *part = tenant_cap / ((uint64_t)tenant.others + 1);
    const uint64_t over = beyond(gpu.bytes, caps->device),
                   tenant_over = beyond(tenant.bytes, tenant_cap);
    *room = beyond(caps->device, gpu.bytes);
    if (beyond(tenant_cap, tenant.bytes) < *room)
        *room = beyond(tenant_cap, tenant.bytes);
    return over > tenant_over ? over : tenant_over;
}

uint64_t ta_ledger_asked(ta_ledger *l, double *when_us)
{
    ta_ledger_board board;
    if (l->fd < 0 || !ta_ledger_pread(l->fd, &board, sizeof board, BOARD(turn))) return 0;
    if (atomic_exchange(&l->asks_heeded, board.asked) == board.asked) return 0;
    bool ours = !board.asked_tenant || board.asked_tenant == l->tenant;
    *when_us = board.asked_us ? (double)board.asked_us : ta_now_us();
    return ours && ta_now_us() - *when_us < TA_LEDGER_ASK_US ? board.asked_bytes : 0;
}

double ta_ledger_draining(ta_ledger *l)
{
    contents seen;
    char why[TA_SHARE_WHY];
    if (l->fd < 0 || take(l, why, sizeof why)) return 0;
    bool read = ta_ledger_pread(l->fd, &seen, sizeof seen, BOARD(turn));
    if (read) sweep(l, seen.words);
    read = read && ta_ledger_pread(l->fd, &seen.board, sizeof seen.board, BOARD(turn));
    drop(l);
    const double since = read ? ta_now_us() - (double)seen.board.died_us : -1;
    return since >= 0 && since < TA_LEDGER_DRAIN_US ? TA_LEDGER_DRAIN_US - since : 0;
}
