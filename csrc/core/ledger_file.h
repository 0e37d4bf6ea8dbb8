/* ledger_file.h - the ledger's file: its layout, and when it is to be trusted. */
#ifndef TA_LEDGER_FILE_H
#define TA_LEDGER_FILE_H

#include <sys/types.h>

#include "byte_lock.h"
#include "ledger.h"

#define TA_LEDGER_MAGIC 0x31474c4152434154u /* "TACRALG1" in memory */
#define TA_LEDGER_LAYOUT 1u

typedef struct ta_ledger_head {
    uint64_t magic;
    uint32_t layout, slots;
    char gpu[TA_LEDGER_TEXT];
} ta_ledger_head;

/* All that a reservation reads, together. Written by the slot's owner alone, but `bytes` are
 * zeroed by whoever finds the owner dead. `tenant` is a hash of the name; 0: none. */
typedef struct ta_ledger_word {
    uint64_t bytes, tenant;
} ta_ledger_word;

typedef struct ta_ledger_info {
    uint64_t peak, refused, started_us;
    int32_t pid;
    uint32_t uid;
    ta_ledger_who who;
    char spare[256 - 32 - sizeof(ta_ledger_who)];
} ta_ledger_info;

typedef struct ta_ledger_file {
    ta_ledger_head head;
    char spare[4096 - sizeof(ta_ledger_head)];
    ta_ledger_word words[TA_LEDGER_SLOTS];
    ta_ledger_info infos[TA_LEDGER_SLOTS];
} ta_ledger_file;

/* Locks lie beyond the contents: one byte for growth, one that those who wait for it share,
 * one a slot. */
#define TA_LEDGER_GROWTH ((off_t)1 << 30)
#define TA_LEDGER_WAITING (TA_LEDGER_GROWTH + 1)
#define TA_LEDGER_SLOT(i) (TA_LEDGER_GROWTH + 2 + (off_t)(i))

/* The file opened and found sound; made first where `make` and there is none. *fd is -1 and
 * the status TA_OK where there is none and none was to be made. */
ta_status ta_ledger_open(const char *directory, const char *gpu, bool make, int *fd,
                         char why[TA_LEDGER_WHY]);
/* Another open file holds a lock on the byte, or that cannot be known. */
bool ta_ledger_locked(int fd, off_t byte);
/* The whole of it, or false. Interrupted calls go on. */
bool ta_ledger_pread(int fd, void *to, size_t size, off_t at);
bool ta_ledger_pwrite(int fd, const void *from, size_t size, off_t at);

#endif
