/* ledger.h - the file by which processes that share a GPU keep one cap.
 *
 *     char why[TA_LEDGER_WHY];
 *     ta_ledger *ledger;
 *     if (ta_ledger_join("/run/torcharena", gpu, &who, &ledger, why)) ... why says it
 *     if (ta_ledger_reserve(ledger, bytes, cap, TA_NO_LIMIT, why) == TA_OK) ... ask the driver
 *     ta_ledger_release(ledger, bytes);      after the driver took it back
 *
 * A slot a process, which lives exactly as long as its owner holds the lock on the slot's
 * byte: the kernel lets go of it when the process dies, however it dies. A slot's bytes are
 * one word that only its owner writes; the total is computed, never stored. So a process may
 * die between any two instructions and leave nothing to repair. docs/design/ledger.md has
 * the proof.
 *
 * Every function but ta_ledger_leave may be called from several threads. A child of fork
 * holds nothing and gets TA_FORKED. Waits are bounded (TA_LEDGER_PATIENCE_US). Nothing is
 * mapped, so a file that is truncated or overwritten under us is an error, not a crash. */
#ifndef TA_LEDGER_H
#define TA_LEDGER_H

#include "../include/torcharena.h"

#define TA_LEDGER_SLOTS 512
#define TA_LEDGER_WHY 256 /* bytes of an error text */
#define TA_LEDGER_TEXT                                                                   \
    64 /* bytes of a label, a tenant's name, a GPU's name, each with its 0 */
#define TA_LEDGER_PATIENCE_US 2e6

typedef struct ta_ledger ta_ledger;

/* What a process says of itself. Longer texts are cut. */
typedef struct ta_ledger_who {
    char label[TA_LEDGER_TEXT];
    char tenant[TA_LEDGER_TEXT]; /* "": none; those of one name share the tenant's cap */
} ta_ledger_who;

/* A slot of the ledger of `gpu` (its UUID as the driver writes it, or a MIG instance's) in
 * `directory`, which must exist, belong to root or to us, and be writable by nobody else
 * (root's may be by its group). The ledger is made where there is none. TA_INVALID: a file or
 * directory that is not to be trusted or understood; TA_OUT_OF_MEMORY: no slot is left;
 * TA_NOT_READY: another process kept the lock. `why` says it in words. */
ta_status ta_ledger_join(const char *directory, const char *gpu, const ta_ledger_who *who,
                         ta_ledger **ledger, char why[TA_LEDGER_WHY]);
/* Gives the slot up. No other call may be under way. */
void ta_ledger_leave(ta_ledger *ledger);

/* Adds bytes to ours, unless the sum over all living processes would exceed `cap`, or over
 * those of our tenant `tenant_cap`: then TA_OUT_OF_MEMORY, counted as refused. Dead owners'
 * bytes are taken off before anyone is refused. TA_NOT_READY as above. On any failure nothing
 * is added. Call it before the driver gives. */
ta_status ta_ledger_reserve(ta_ledger *ledger, uint64_t bytes, uint64_t cap,
                            uint64_t tenant_cap, char why[TA_LEDGER_WHY]);
/* Takes bytes off ours; no more than they are. Waits for nobody. */
void ta_ledger_release(ta_ledger *ledger, uint64_t bytes);
uint64_t ta_ledger_held(ta_ledger *ledger);

typedef struct ta_ledger_row {
    int slot;
    bool alive; /* else its owner died, and its bytes count no more */
    uint64_t bytes, peak, refused;
    uint64_t started_us; /* since 1970 */
    int pid;             /* as its own pid namespace has it */
    unsigned uid;
    ta_ledger_who who;
} ta_ledger_row;

/* What the ledger says, by reading alone: takes no lock and holds up nobody. At most
 * `capacity` rows; *count is how many there are. TA_INVALID as in ta_ledger_join; a ledger
 * that nobody made has no rows. */
ta_status ta_ledger_read(const char *directory, const char *gpu, ta_ledger_row *rows,
                         size_t capacity, size_t *count, char why[TA_LEDGER_WHY]);

/* Tests: called with the name of each step that a process may die at. NULL: nobody. */
extern void (*ta_ledger_step)(const char *name);

#endif
