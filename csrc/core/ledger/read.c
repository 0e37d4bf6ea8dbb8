/* read.c - what others see of a ledger: reads alone, no lock is taken.
 *
 * Called from Python. Needs no lock and keeps nothing; any number of readers, none of whom
 * holds up an owner. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "file.h"

static ta_share_row row_of(int slot, const ta_ledger_file *file, bool alive)
{
    const ta_ledger_word *word = &file->words[slot];
    const ta_ledger_info *info = &file->infos[slot];
    ta_share_row row = {.slot = slot,
                        .alive = alive,
                        .bytes = word->bytes,
                        .unused = word->unused < word->bytes ? word->unused : word->bytes,
                        .spilled = word->spilled,
                        .peak = info->peak,
                        .refused = info->refused,
                        .started_us = info->started_us,
                        .pid = info->pid,
                        .uid = info->uid,
                        .limit = info->limit,
                        .limit_source = (int)info->limit_source,
                        .caps = {info->device_cap, info->tenant_cap, info->observe != 0},
                        .claimed = info->claimed != 0};
    memcpy(row.label, info->label, sizeof row.label - 1);
    memcpy(row.tenant, info->tenant, sizeof row.tenant - 1);
    return row;
}

ta_status ta_share_read(const char *directory, const char *gpu, ta_share_row *rows,
                        size_t capacity, size_t *count, char why[TA_SHARE_WHY])
{
    int fd;
    *count = 0;
    ta_status status = ta_ledger_open(directory, gpu, false, &fd, NULL, why);
    if (status || fd < 0) return status;
    ta_ledger_file *file = malloc(sizeof *file);
    if (!file)
        status = TA_NO_HOST_MEMORY;
    else if (!ta_ledger_pread(fd, file, sizeof *file, 0)) {
        status = TA_INVALID;
        snprintf(why, TA_SHARE_WHY, "the ledger was truncated");
    }
    for (int i = 0; !status && i < TA_LEDGER_SLOTS; i++) {
        bool alive = ta_ledger_locked(fd, TA_LEDGER_SLOT(i));
        if (!alive && !file->words[i].bytes) continue;
        if (*count < capacity) rows[*count] = row_of(i, file, alive);
        ++*count;
    }
    free(file);
    close(fd);
    return status;
}
