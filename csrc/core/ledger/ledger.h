/* ledger.h - the file by which processes that share a GPU keep one cap.
 *
 *     char why[TA_SHARE_WHY];
 *     ta_ledger *ledger;
 *     if (ta_ledger_join("/run/torcharena", gpu, &who, &ledger, why)) ... why says it
 *     if (ta_ledger_reserve(ledger, &want, &terms, &got, &no) == TA_OK) ... ask the driver
 *     ta_ledger_release(ledger, got);      after the driver took it back
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

#include "../../include/torcharena.h"

#define TA_LEDGER_SLOTS 512
/* How long one may keep the lock before the others give up; in a crowd where it goes from
 * hand to hand they wait longer, but not above the second. */
#define TA_LEDGER_PATIENCE_US 2e6
#define TA_LEDGER_CROWD_US 30e6
/* How long the driver may take to get a dead process's memory back. */
#define TA_LEDGER_DRAIN_US 10e6

typedef struct ta_ledger ta_ledger;

/* What a process says of itself. Longer texts are cut. */
typedef struct ta_ledger_who {
    char label[TA_SHARE_TEXT];
    char tenant[TA_SHARE_TEXT]; /* "": none; those of one name share the tenant's cap */
    bool claimed;
} ta_ledger_who;

/* Under which caps it grows; onlookers see them all, but `limit` is kept by others. */
typedef struct ta_ledger_terms {
    ta_share_caps caps;
    uint64_t limit;
    int limit_source;
} ta_ledger_terms;

typedef struct ta_ledger_want {
    uint64_t least, most; /* bytes */
    uint64_t unit;        /* what is granted above `least` is a multiple; not 0 */
    bool last; /* our own idle memory is gone: a refusal is counted, and others are asked
                  to give theirs back */
} ta_ledger_want;

/* A slot of the ledger of `gpu` (its UUID as the driver writes it, or a MIG instance's) in
 * `directory`, which must exist, belong to root or to us, and be writable by nobody else
 * (root's may be by its group). The ledger is made where there is none. TA_INVALID: a file or
 * directory that is not to be trusted or understood; TA_OUT_OF_MEMORY: no slot is left;
 * TA_NOT_READY: another process kept the lock. `why` says it in words. */
ta_status ta_ledger_join(const char *directory, const char *gpu, const ta_ledger_who *who,
                         ta_ledger **ledger, char why[TA_SHARE_WHY]);
/* Gives the slot up. What was not released counts as a dead process's does. No other call
 * may be under way. */
void ta_ledger_leave(ta_ledger *ledger);

/* Adds *got bytes to ours, as many of `most` as fit but no fewer than `least`, unless the sum
 * over all living processes would exceed caps.device, or over those of our tenant
 * caps.tenant: then TA_OUT_OF_MEMORY. Dead owners' bytes are taken off before anyone is
 * refused. TA_NOT_READY as above. On any failure nothing is added and *no says why. Call it
 * before the driver gives. Nothing wanted is refused where more is held than the caps
 * allow. */
ta_status ta_ledger_reserve(ta_ledger *ledger, const ta_ledger_want *want,
                            const ta_ledger_terms *terms, uint64_t *got, ta_refusal *no);
/* Takes bytes off ours; no more than they are. Waits for no other process. */
void ta_ledger_release(ta_ledger *ledger, uint64_t bytes);
uint64_t ta_ledger_held(ta_ledger *ledger);
int ta_ledger_slot(const ta_ledger *ledger);
/* What the next growth or release tells onlookers: bytes of ours with nothing on them. */
void ta_ledger_say_unused(ta_ledger *ledger, uint64_t bytes);
/* Tells onlookers of bytes that are on the host, at once where it is another number. */
void ta_ledger_say_spilled(ta_ledger *ledger, uint64_t bytes);
/* What is held beyond the caps by all that they count; *part: the equal part of the tightest
 * that is ours; *room: bytes below the caps. Reads alone. */
uint64_t ta_ledger_beyond(ta_ledger *ledger, const ta_share_caps *caps, uint64_t *part,
                          uint64_t *room);
/* Bytes that others asked us to give back since the last call, and when; 0: nobody did, or so
 * long ago (TA_LEDGER_ASK_US) that it was given up since. */
#define TA_LEDGER_ASK_US 1e7
uint64_t ta_ledger_asked(ta_ledger *ledger, double *when_us);
/* How long the memory of a dead process may still be on its way back, in microseconds; 0:
 * none is. Takes the dead's bytes off. */
double ta_ledger_draining(ta_ledger *ledger);

/* Tests: called with the name of each step that a process may die at. NULL: nobody. */
extern void (*ta_ledger_step)(const char *name);

#endif
