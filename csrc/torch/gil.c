/* gil.c - lets other Python threads run while a hook may wait.
 *
 * torch calls some hooks with the GIL and some without. Python's functions are found at run
 * time, in the process that it runs in, as torch's are. No lock of ours may be held. Not for
 * alloc and free, which never touch the GIL. */
#include "gil.h"

#include <pthread.h>
#include <stddef.h>

#include "find.h"

static struct {
    int (*held)(void);
    void *(*this_thread)(void);
    void *(*drop)(void);
    void (*take)(void *thread);
} python;

static void find_all(void)
{
    ta_find(NULL, "PyGILState_Check", &python.held);
    ta_find(NULL, "PyGILState_GetThisThreadState", &python.this_thread);
    ta_find(NULL, "PyEval_SaveThread", &python.drop);
    ta_find(NULL, "PyEval_RestoreThread", &python.take);
}

void *ta_gil_drop(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_all);
    if (python.held == NULL || python.this_thread == NULL || python.drop == NULL ||
        python.take == NULL)
        return NULL;
    /* The check alone says yes in any thread where Python has switched it off. */
    return python.this_thread() != NULL && python.held() ? python.drop() : NULL;
}

void ta_gil_take(void *thread)
{
    if (thread != NULL) python.take(thread);
}
