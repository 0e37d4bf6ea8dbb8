/* graph.c - captures of streams into graphs, and their replay.
 *
 * One object stands for cudaGraph_t and for cudaGraphExec_t: it is counted. Which calls a
 * capture forbids follows the driver: a thread in relaxed mode may do anything; otherwise a
 * call that waits or queries breaks its own thread's capture, and any global one.
 * Thread-safe. */
#include <pthread.h>
#include <stdlib.h>

#include "simcuda.h"

struct ta_sc_graph {
    ta_sim_graph *sim;
    int holders;
};

typedef struct capture {
    struct capture *next;
    ta_stream stream;
    int device, mode; /* 0 global, 1 thread-local, 2 relaxed */
    pthread_t thread;
    bool broken;
} capture;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static capture *captures;
static int open_captures;      /* = length of captures; read without the lock */
static ta_sc_graph being_made; /* what a capture in progress shows as its graph */
static _Thread_local int thread_mode;

int ta_sc_capture_mode(int *mode)
{
    if (*mode < 0 || *mode > 2) return TA_CU_INVALID;
    int old = thread_mode;
    thread_mode = *mode;
    ta_sim_thread_capture_mode(*mode); /* the machine judges by it too */
    *mode = old;
    return TA_CU_OK;
}

int ta_sc_unsafe(void)
{
    if (thread_mode == 2 || !__atomic_load_n(&open_captures, __ATOMIC_ACQUIRE))
        return TA_CU_OK;
    bool forbidden = false;
    pthread_mutex_lock(&lock);
    for (capture *c = captures; c; c = c->next) {
        bool own = pthread_equal(c->thread, pthread_self()) != 0;
        if (c->mode == 2 || (!own && (c->mode == 1 || thread_mode == 1))) continue;
        c->broken = true;
        forbidden = true;
    }
    pthread_mutex_unlock(&lock);
    return forbidden ? TA_CU_CAPTURE_UNSUPPORTED : TA_CU_OK;
}

int ta_sc_capture_begin(ta_stream stream, int mode)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return TA_CU_NOT_INITIALIZED;
    if ((uintptr_t)stream <= 1) return TA_CU_CAPTURE_UNSUPPORTED;
    int device;
    if (!ta_sc_stream_device(stream, &device)) return TA_CU_BAD_HANDLE;
    capture *c = malloc(sizeof *c);
    if (!c) return TA_CU_NO_MEMORY;
    ta_status status = ta_sim_capture_begin(m->sim, device, stream);
    if (status != TA_OK) {
        free(c);
        return ta_sc_status(status);
    }
    pthread_mutex_lock(&lock);
    *c = (capture){captures, stream, device, mode, pthread_self(), false};
    captures = c;
    __atomic_add_fetch(&open_captures, 1, __ATOMIC_ACQ_REL);
    pthread_mutex_unlock(&lock);
    return TA_CU_OK;
}

int ta_sc_capture_end(ta_stream stream, ta_sc_graph **graph)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    *graph = NULL;
    if (!m) return TA_CU_NOT_INITIALIZED;
    pthread_mutex_lock(&lock);
    capture **at = &captures;
    while (*at && (*at)->stream != stream) at = &(*at)->next;
    capture *c = *at;
    if (c) {
        *at = c->next;
        __atomic_sub_fetch(&open_captures, 1, __ATOMIC_ACQ_REL);
    }
    pthread_mutex_unlock(&lock);
    if (!c) return TA_CU_INVALID;
    bool broken = c->broken;
    ta_sim_graph *made = NULL;
    ta_status status = ta_sim_capture_end(m->sim, c->device, stream, &made);
    free(c);
    if (status != TA_OK || broken) {
        if (made) ta_sim_graph_destroy(m->sim, made);
        return TA_CU_CAPTURE_INVALID;
    }
    ta_sc_graph *g = malloc(sizeof *g);
    if (!g) {
        ta_sim_graph_destroy(m->sim, made);
        return TA_CU_NO_MEMORY;
    }
    *g = (ta_sc_graph){made, 1};
    *graph = g;
    return TA_CU_OK;
}

int ta_sc_capture_info(ta_stream stream, int *status, uint64_t *id)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return TA_CU_NOT_INITIALIZED;
    int device;
    if (!ta_sc_stream_device(stream, &device)) return TA_CU_BAD_HANDLE;
    *id = 0;
    *status = 0;
    if (!__atomic_load_n(&open_captures, __ATOMIC_ACQUIRE)) return TA_CU_OK;
    *id = ta_sim_capture_id(m->sim, device, stream);
    if (!*id) return TA_CU_OK;
    *status = 1;
    pthread_mutex_lock(&lock);
    for (const capture *c = captures; c; c = c->next)
        if (c->stream == stream && c->broken) *status = 2;
    pthread_mutex_unlock(&lock);
    return TA_CU_OK;
}

ta_sc_graph *ta_sc_capture_graph(void) { return &being_made; }

ta_sc_graph *ta_sc_graph_new(void)
{
    ta_sc_graph *graph = calloc(1, sizeof *graph);
    if (graph) graph->holders = 1;
    return graph;
}

int ta_sc_graph_hold(ta_sc_graph *graph)
{
    if (!graph || graph == &being_made) return TA_CU_BAD_HANDLE;
    __atomic_add_fetch(&graph->holders, 1, __ATOMIC_RELAXED);
    return TA_CU_OK;
}

int ta_sc_graph_drop(ta_sc_graph *graph)
{
    if (!graph || graph == &being_made) return TA_CU_BAD_HANDLE;
    if (__atomic_sub_fetch(&graph->holders, 1, __ATOMIC_ACQ_REL)) return TA_CU_OK;
    const ta_sc_machine *m = ta_sc_machine_get();
    if (m && graph->sim) ta_sim_graph_destroy(m->sim, graph->sim);
    free(graph);
    return TA_CU_OK;
}

int ta_sc_graph_launch(ta_sc_graph *graph, ta_stream stream)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    if (!m) return TA_CU_NOT_INITIALIZED;
    int device;
    if (!graph) return TA_CU_BAD_HANDLE;
    if (!ta_sc_stream_device(stream, &device)) return TA_CU_BAD_HANDLE;
    if (!graph->sim) return TA_CU_OK;
    return ta_sc_status(ta_sim_graph_launch(m->sim, graph->sim, device, stream));
}
