/* sim_shared.c - the memory of one simulated device, counted by several processes.
 *
 * A file a device: a header, then a word a slot with the bytes that the slot's owner
 * holds. A slot is owned by whoever holds the lock on its byte (locks of open file
 * descriptions: they go with the process, however it ends). Only the owner writes its
 * word; a word whose byte nobody holds counts for nothing. Raising one's word happens
 * under the commit byte's lock, after adding up the others, so
 *
 *   sum of owned words <= memory
 *
 * holds at every moment. Lowering needs no lock. Called with the machine's lock held. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../core/ledger/byte_lock.h"
#include "sim_internal.h"

#define SLOTS 1024
#define MAGIC 0x7461636172643031u
#define COMMIT_BYTE ((off_t)1 << 20)
#define SLOT_BYTE(i) (COMMIT_BYTE + 1 + (off_t)(i))

typedef struct card {
    _Atomic uint64_t magic, memory;
    _Atomic uint64_t used[SLOTS];
} card;

struct ta_sim_shared {
    int fd;
    int slot;
    card *card;
};

static bool is_owned(const struct ta_sim_shared *shared, int slot)
{
    if (slot == shared->slot) return true;
    return ta_byte_locked(shared->fd, SLOT_BYTE(slot)) == 1;
}

/* Exact, or too high by what was lowered meanwhile. Under the commit lock. */
static uint64_t sum_owned(struct ta_sim_shared *shared)
{
    uint64_t total = 0;
    for (int i = 0; i < SLOTS; i++) {
        const uint64_t used = atomic_load(&shared->card->used[i]);
        if (used && is_owned(shared, i)) total += used;
    }
    return total;
}

uint64_t ta_sim_shared_total(struct ta_sim_shared *shared)
{
    /* Without the lock, words read one after another could add up to what never was. */
    const bool locked = ta_byte_lock(shared->fd, COMMIT_BYTE, F_WRLCK, true);
    const uint64_t total = sum_owned(shared);
    if (locked) ta_byte_lock(shared->fd, COMMIT_BYTE, F_UNLCK, true);
    return total;
}

/* The header, then a slot. Under the commit lock. */
static ta_status join_card(struct ta_sim_shared *shared, uint64_t memory)
{
    card *c = shared->card;
    if (atomic_load(&c->magic) != MAGIC) {
        atomic_store(&c->memory, memory);
        atomic_store(&c->magic, MAGIC);
    }
    if (atomic_load(&c->memory) != memory) return TA_INVALID;
    for (int i = 0; i < SLOTS; i++)
        if (ta_byte_lock(shared->fd, SLOT_BYTE(i), F_WRLCK, false)) {
            atomic_store(&c->used[i], 0);
            shared->slot = i;
            return TA_OK;
        }
    return TA_OUT_OF_MEMORY;
}

static ta_status open_card(struct ta_sim_shared *shared, const char *path,
                           uint64_t memory)
{
    shared->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (shared->fd < 0 || !ta_byte_lock(shared->fd, COMMIT_BYTE, F_WRLCK, true))
        return TA_DRIVER;
    struct stat status;
    if (fstat(shared->fd, &status) != 0 ||
        (status.st_size < (off_t)sizeof(card) &&
         ftruncate(shared->fd, (off_t)sizeof(card)) != 0))
        return TA_DRIVER;
    card *c = mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED, shared->fd, 0);
    if (c == MAP_FAILED) return TA_DRIVER;
    madvise(c, sizeof *c, MADV_DONTFORK);
    shared->card = c;
    ta_status joined = join_card(shared, memory);
    ta_byte_lock(shared->fd, COMMIT_BYTE, F_UNLCK, true);
    return joined;
}

ta_status ta_sim_shared_open(const char *dir, int device, uint64_t memory,
                             struct ta_sim_shared **out)
{
    char path[4096];
    const int length = snprintf(path, sizeof path, "%s/device%d", dir, device);
    if (length < 0 || (size_t)length >= sizeof path) return TA_INVALID;
    if (mkdir(dir, 0777) != 0 && errno != EEXIST) return TA_DRIVER;
    struct ta_sim_shared *shared = calloc(1, sizeof *shared);
    if (!shared) return TA_NO_HOST_MEMORY;
    shared->slot = -1;
    ta_status status = open_card(shared, path, memory);
    if (status != TA_OK) {
        ta_sim_shared_close(shared);
        return status;
    }
    *out = shared;
    return TA_OK;
}

void ta_sim_shared_close(struct ta_sim_shared *shared)
{
    if (shared->slot >= 0) atomic_store(&shared->card->used[shared->slot], 0);
    if (shared->card) munmap(shared->card, sizeof *shared->card);
    if (shared->fd >= 0) close(shared->fd);
    free(shared);
}

void ta_sim_shared_forked(struct ta_sim_shared *shared)
{
    if (shared->fd >= 0) close(shared->fd);
    shared->fd = -1;
}

bool ta_sim_shared_raise(struct ta_sim_shared *shared, uint64_t mine)
{
    card *c = shared->card;
    if (!ta_byte_lock(shared->fd, COMMIT_BYTE, F_WRLCK, true)) return false;
    const uint64_t memory = atomic_load(&c->memory);
    /* Words of the dead are asked about only where they would stand in the way. */
    uint64_t others = 0;
    for (int i = 0; i < SLOTS; i++)
        if (i != shared->slot) others += atomic_load(&c->used[i]);
    if (mine > memory || others > memory - mine)
        others = sum_owned(shared) - atomic_load(&c->used[shared->slot]);
    const bool fits = mine <= memory && others <= memory - mine;
    if (fits) atomic_store(&c->used[shared->slot], mine);
    ta_byte_lock(shared->fd, COMMIT_BYTE, F_UNLCK, true);
    return fits;
}

void ta_sim_shared_lower(struct ta_sim_shared *shared, uint64_t mine)
{
    atomic_store(&shared->card->used[shared->slot], mine);
}
