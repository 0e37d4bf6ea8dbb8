/* place.h - what each thread is at: a module of the model, and lines of the program.
 *
 * Numbers alone; what they stand for the caller knows. A thread enters and leaves modules
 * and says which stack of lines it is at. In backward it says, before a node of the graph runs,
 * which place of the forward pass has made it: that counts while the thread is in no module
 * of its own, as it is where a checkpointed one is computed again.
 *
 * One for the process, off at first: then ta_place_now is a load and a branch. Thread-safe,
 * takes no lock, and does nothing that a forked child could not. */
#ifndef TA_PLACE_H
#define TA_PLACE_H

#include <stdbool.h>
#include <stdint.h>

/* 0: none, or not known. */
typedef struct ta_place {
    uint16_t module, stack;
} ta_place;

#define TA_PLACE_DEPTH 64u /* modules inside modules; deeper ones count to the last */

/* On, until it is ended as often. */
void ta_place_begin(void);
void ta_place_end(void);

/* This thread is in the module until it leaves it. `outermost`: it is not called from
 * within itself; where it seems to be, an error has left it and those inside behind.
 * Leaving leaves those inside too; one that it is not in does nothing. */
void ta_place_enter(uint16_t module, bool outermost);
void ta_place_leave(uint16_t module);
/* This thread is at these lines; 0: at none that are known. */
void ta_place_at(uint16_t stack);
/* A node runs on this thread that was made there, and then those that nobody speaks of. */
void ta_place_runs(ta_place made);
/* Another backward or forward pass begins: nothing runs any more, on any thread. */
void ta_place_over(void);

ta_place ta_place_now(void);

#endif
