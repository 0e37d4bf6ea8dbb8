/* gil.h - lets other Python threads run while a hook may wait. */
#ifndef TA_GIL_H
#define TA_GIL_H

/* Drops the GIL if this thread holds it. Give what it returns to ta_gil_take. */
void *ta_gil_drop(void);
void ta_gil_take(void *thread);

#endif
