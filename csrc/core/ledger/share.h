/* share.h - what a device's growth costs in the ledger that processes share.
 *
 * The device's `pages` is held unless a line says otherwise, and dropped meanwhile where the
 * ledger or others are waited for. Without a share all of it grants and does nothing. */
#ifndef TA_SHARE_H
#define TA_SHARE_H

#include "types.h"

/* What a request lacked. */
typedef struct ta_lack {
    uint64_t bytes;     /* of pages that could not be had */
    ta_refusal refusal; /* the cap that refused them; scope NONE: the driver did */
    /* Ends of the waits for what others give back, and the driver; 0: not begun. */
    double until, drained_until;
} ta_lack;

/* Charges from `least` to `most` bytes more, whole pages, before the driver is asked.
 * TA_OUT_OF_MEMORY with lack->refusal where the ledger does not grant them. */
ta_status ta_share_charge(ta_device *device, uint64_t least, uint64_t most,
                          ta_lack *lack);
/* Bytes charged that the driver was not asked for yet; TA_NO_LIMIT without a share. */
uint64_t ta_share_charged(const ta_device *device);
/* The driver gave so much of what was charged. */
void ta_share_spend(ta_device *device, uint64_t bytes);
/* It took so much back. */
void ta_share_return(ta_device *device, uint64_t bytes);
/* For onlookers: how much is on the host now. */
void ta_share_say_spilled(ta_device *device);
/* What was charged and not spent is given back: before `pages` is dropped. */
void ta_share_settle(ta_device *device);
/* Idle memory of ours is gone: true where others gave some back, or are about to, so that it
 * is worth trying again for `bytes`, which may be charged then. Those who hold memory unused
 * are asked for it and waited for a little; a dead process's memory until the driver has
 * it. */
bool ta_share_await(ta_device *device, uint64_t bytes, ta_lack *lack);
/* Gives idle pages back that others asked for. */
void ta_share_answer(ta_device *device);
/* At a step's mark: bytes that live pages should leave to others. They were asked for and
 * were not idle, or are held beyond caps that were lowered; an equal part of the cap is left to
 * us. */
uint64_t ta_share_excess(ta_device *device);
/* The asking was heeded; `left`: live pages left for others, who may take the room before we
 * ask for it again. */
void ta_share_yield(ta_device *device, bool left);
bool ta_share_yields(const ta_device *device);
/* Bytes below the caps that nobody holds. */
uint64_t ta_share_room(ta_device *device);
/* Every invariant; both sides of the first that fails in `text`. */
bool ta_share_check(ta_device *device, char *text, size_t capacity);
/* No lock is needed, and no call under way. */
void ta_share_destroy(ta_device *device);

#endif
