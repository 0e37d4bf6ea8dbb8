/* ledger_read.c - what others see of a ledger: reads alone, no lock is taken.
 *
 * Called from Python. Needs no lock and keeps nothing; any number of readers, none of whom
 * holds up an owner. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ledger_file.h"

static ta_ledger_row row_of(int slot, const ta_ledger_file *file, bool alive)
{
    const ta_ledger_info *info = &file->infos[slot];
    ta_ledger_row row = {.slot = slot,
                         .alive = alive,
                         .bytes = file->words[slot].bytes,
                         .peak = info->peak,
                         .refused = info->refused,
                         .started_us = info->started_us,
                         .pid = info->pid,
                         .uid = info->uid,
                         .who = info->who};
    row.who.label[TA_LEDGER_TEXT - 1] = row.who.tenant[TA_LEDGER_TEXT - 1] = 0;
    return row;
}

ta_status ta_ledger_read(const char *directory, const char *gpu, ta_ledger_row *rows,
                         size_t capacity, size_t *count, char why[TA_LEDGER_WHY])
{
    int fd;
    *count = 0;
    ta_status status = ta_ledger_open(directory, gpu, false, &fd, why);
    if (status || fd < 0) return status;
    ta_ledger_file *file = malloc(sizeof *file);
    if (!file)
        status = TA_NO_HOST_MEMORY;
    else if (!ta_ledger_pread(fd, file, sizeof *file, 0))
        status = TA_INVALID; /* truncated since it was found sound */
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
