/* file.h - the ledger's file: its layout, and when it is to be trusted. */
#ifndef TA_LEDGER_FILE_H
#define TA_LEDGER_FILE_H

#include <stddef.h>
#include <sys/types.h>

#include "byte_lock.h"
#include "ledger.h"

#define TA_LEDGER_MAGIC 0x31474c4152434154u /* "TACRALG1" in memory */
#define TA_LEDGER_LAYOUT 2u

typedef struct ta_ledger_head {
    uint64_t magic;
    uint32_t layout, slots;
    char gpu[TA_SHARE_TEXT];
} ta_ledger_head;

/* What processes leave for each other; written under growth. Times are CLOCK_MONOTONIC's,
 * in microseconds. */
typedef struct ta_ledger_board {
    uint64_t turn;  /* another whenever growth passes on while some wait for it */
    uint64_t asked; /* how often one was refused for what others hold */
    uint64_t asked_bytes,
        asked_tenant;  /* the last time: how much, of whom; 0: of anyone */
    uint64_t died_us;  /* when a dead owner's bytes were last taken off */
    uint64_t asked_us; /* when; 0: by one that does not say */
    uint64_t spare[2];
} ta_ledger_board;

/* All that a reservation reads of a process, together. Written by the slot's owner alone, but
 * zeroed by whoever finds the owner dead. `tenant` is a hash of the name; 0: none. */
typedef struct ta_ledger_word {
    uint64_t bytes, tenant;
    uint64_t unused, spilled; /* for onlookers */
} ta_ledger_word;

typedef struct ta_ledger_info {
    uint64_t peak, refused;
    uint64_t limit, device_cap, tenant_cap;
    uint32_t limit_source, observe; /* up to here what changes */
    uint64_t started_us;
    int32_t pid;
    uint32_t uid, claimed, spare;
    char label[TA_SHARE_TEXT], tenant[TA_SHARE_TEXT];
    char more[256 - 72 - 2 * TA_SHARE_TEXT];
} ta_ledger_info;

typedef struct ta_ledger_file {
    ta_ledger_head head;
    char spare[4096 - sizeof(ta_ledger_head) - sizeof(ta_ledger_board)];
    ta_ledger_board board; /* just before the words: they are read together */
    ta_ledger_word words[TA_LEDGER_SLOTS];
    ta_ledger_info infos[TA_LEDGER_SLOTS];
} ta_ledger_file;
_Static_assert(sizeof(ta_ledger_info) == 256, "a slot's text");
_Static_assert(offsetof(ta_ledger_file, words) == 4096, "words lie within pages");

/* Locks lie beyond the contents: one byte for growth, one that those who wait for it share,
 * one a slot. */
#define TA_LEDGER_GROWTH ((off_t)1 << 30)
#define TA_LEDGER_WAITING (TA_LEDGER_GROWTH + 1)
#define TA_LEDGER_SLOT(i) (TA_LEDGER_GROWTH + 2 + (off_t)(i))

/* The file opened and found sound; made first where `make` and there is none. *fd is -1 and
 * the status TA_OK where there is none and none was to be made. *shared (may be NULL): users
 * other than us may use it. */
ta_status ta_ledger_open(const char *directory, const char *gpu, bool make, int *fd,
                         bool *shared, char why[TA_SHARE_WHY]);
/* Another open file holds a lock on the byte, or that cannot be known. */
bool ta_ledger_locked(int fd, off_t byte);
/* The whole of it, or false. Interrupted calls go on. */
bool ta_ledger_pread(int fd, void *to, size_t size, off_t at);
bool ta_ledger_pwrite(int fd, const void *from, size_t size, off_t at);

#endif
