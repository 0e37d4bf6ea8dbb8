/* cudart_stream.c - the runtime's functions on streams, events, captures and graphs.
 *
 * Called by PyTorch in place of libcudart's; the work is that of stream.c and graph.c. Where
 * CUDA 12 and 13 give one name two signatures, the runtime's version decides. Thread-safe. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cudart.h"

#define NOTE(call) return ta_sc_note(call)

/* --- streams ---------------------------------------------------------------------------- */
TA_EXPORT int cudaStreamCreate(ta_stream *s) { NOTE(ta_sc_stream_create(0, 0, s)); }
TA_EXPORT int cudaStreamCreateWithFlags(ta_stream *s, unsigned flags)
{
    NOTE(ta_sc_stream_create(flags, 0, s));
}
TA_EXPORT int cudaStreamCreateWithPriority(ta_stream *s, unsigned flags, int priority)
{
    NOTE(ta_sc_stream_create(flags, priority, s));
}
TA_EXPORT int cudaStreamDestroy(ta_stream s) { NOTE(ta_sc_stream_destroy(s)); }
TA_EXPORT int cudaStreamQuery(ta_stream s) { NOTE(ta_sc_stream_query(s)); }
TA_EXPORT int cudaStreamSynchronize(ta_stream s) { NOTE(ta_sc_stream_wait(s)); }
TA_EXPORT int cudaStreamWaitEvent(ta_stream s, ta_event e, unsigned flags)
{
    (void)flags;
    NOTE(ta_sc_stream_wait_event(s, e));
}
TA_EXPORT int cudaStreamGetPriority(ta_stream s, int *priority)
{
    NOTE(ta_sc_stream_priority(s, priority));
}
TA_EXPORT int cudaStreamGetFlags(ta_stream s, unsigned *flags)
{
    NOTE(ta_sc_stream_flags(s, flags));
}
TA_EXPORT int cudaStreamGetId(ta_stream s, uint64_t *id)
{
    *id = (uintptr_t)s;
    return TA_CU_OK;
}
TA_EXPORT int cudaStreamGetDevice(ta_stream s, int *device)
{
    NOTE(ta_sc_stream_device(s, device) ? TA_CU_OK : TA_CU_BAD_HANDLE);
}
TA_EXPORT int cudaStreamAttachMemAsync(void) { return TA_CU_OK; }
TA_EXPORT int cudaStreamSetAttribute(void) { return TA_CU_OK; }
TA_EXPORT int cudaCtxResetPersistingL2Cache(void) { return TA_CU_OK; }

TA_EXPORT int cudaLaunchHostFunc(ta_stream s, void (*fn)(void *), void *data)
{
    NOTE(ta_sc_host_func(s, fn, data));
}
TA_EXPORT int cudaStreamAddCallback(ta_stream s, void (*fn)(ta_stream, int, void *),
                                    void *data, unsigned flags)
{
    (void)flags;
    int result = ta_sc_launch(s);
    if (result == TA_CU_OK) fn(s, 0, data);
    NOTE(result);
}

/* --- events ------------------------------------------------------------------------------ */
TA_EXPORT int cudaEventCreate(ta_event *e) { NOTE(ta_sc_event_create(e)); }
TA_EXPORT int cudaEventCreateWithFlags(ta_event *e, unsigned flags)
{
    (void)flags;
    NOTE(ta_sc_event_create(e));
}
TA_EXPORT int cudaEventDestroy(ta_event e) { NOTE(ta_sc_event_destroy(e)); }
TA_EXPORT int cudaEventRecord(ta_event e, ta_stream s) { NOTE(ta_sc_event_record(e, s)); }
TA_EXPORT int cudaEventRecordWithFlags(ta_event e, ta_stream s, unsigned flags)
{
    (void)flags;
    NOTE(ta_sc_event_record(e, s));
}
TA_EXPORT int cudaEventQuery(ta_event e) { NOTE(ta_sc_event_query(e)); }
TA_EXPORT int cudaEventSynchronize(ta_event e) { NOTE(ta_sc_event_wait(e)); }
TA_EXPORT int cudaEventElapsedTime(float *ms, ta_event start, ta_event end)
{
    NOTE(ta_sc_event_elapsed(ms, start, end));
}
TA_EXPORT int cudaEventElapsedTime_v2(float *ms, ta_event start, ta_event end)
{
    NOTE(ta_sc_event_elapsed(ms, start, end));
}

/* --- captures ---------------------------------------------------------------------------- */
TA_EXPORT int cudaThreadExchangeStreamCaptureMode(int *mode)
{
    NOTE(ta_sc_capture_mode(mode));
}
TA_EXPORT int cudaStreamBeginCapture(ta_stream s, int mode)
{
    NOTE(ta_sc_capture_begin(s, mode));
}
TA_EXPORT int cudaStreamBeginCaptureToGraph(ta_stream s, void *graph, const void *needs,
                                            const void *edges, size_t count, int mode)
{
    (void)graph, (void)needs, (void)edges, (void)count;
    NOTE(ta_sc_capture_begin(s, mode));
}
TA_EXPORT int cudaStreamEndCapture(ta_stream s, ta_sc_graph **graph)
{
    ta_sc_graph *made;
    int result = ta_sc_capture_end(s, &made);
    if (graph) *graph = made;
    NOTE(result);
}
TA_EXPORT int cudaStreamIsCapturing(ta_stream s, int *status)
{
    uint64_t id;
    NOTE(ta_sc_capture_info(s, status, &id));
}
/* What every version's arguments begin with. */
static int capture_info(ta_stream s, int *status, uint64_t *id, void **graph)
{
    int state = 0;
    uint64_t number = 0;
    int result = ta_sc_capture_info(s, &state, &number);
    if (result) return ta_sc_note(result);
    if (status) *status = state;
    if (id) *id = number;
    if (graph) *graph = state ? ta_sc_capture_graph() : NULL;
    return TA_CU_OK;
}
TA_EXPORT int cudaStreamGetCaptureInfo_v2(ta_stream s, int *status, uint64_t *id,
                                          void **graph, const void **needs, size_t *count)
{
    if (needs) *needs = NULL;
    if (count) *count = 0;
    return capture_info(s, status, id, graph);
}
TA_EXPORT int cudaStreamGetCaptureInfo_v3(ta_stream s, int *status, uint64_t *id,
                                          void **graph, const void **needs,
                                          const void **edges, size_t *count)
{
    if (needs) *needs = NULL;
    if (edges) *edges = NULL;
    if (count) *count = 0;
    return capture_info(s, status, id, graph);
}
/* CUDA 13: as _v3. CUDA 12: the first three arguments. */
TA_EXPORT int cudaStreamGetCaptureInfo(ta_stream s, int *status, uint64_t *id,
                                       void **graph, const void **needs,
                                       const void **edges, size_t *count)
{
    if (ta_sc_runtime_version() < 13000) return capture_info(s, status, id, NULL);
    return cudaStreamGetCaptureInfo_v3(s, status, id, graph, needs, edges, count);
}
TA_EXPORT int cudaStreamUpdateCaptureDependencies(void) { return TA_CU_OK; }

/* --- graphs ------------------------------------------------------------------------------- */
TA_EXPORT int cudaGraphCreate(ta_sc_graph **graph, unsigned flags)
{
    (void)flags;
    *graph = ta_sc_graph_new();
    NOTE(*graph ? TA_CU_OK : TA_CU_NO_MEMORY);
}
TA_EXPORT int cudaGraphDestroy(ta_sc_graph *graph) { NOTE(ta_sc_graph_drop(graph)); }
TA_EXPORT int cudaGraphExecDestroy(ta_sc_graph *exec) { NOTE(ta_sc_graph_drop(exec)); }
TA_EXPORT int cudaGraphInstantiateWithFlags(ta_sc_graph **exec, ta_sc_graph *graph,
                                            unsigned long long flags)
{
    (void)flags;
    *exec = graph;
    NOTE(ta_sc_graph_hold(graph));
}
TA_EXPORT int cudaGraphInstantiate(ta_sc_graph **exec, ta_sc_graph *graph,
                                   unsigned long long flags)
{
    return cudaGraphInstantiateWithFlags(exec, graph, flags);
}
TA_EXPORT int cudaGraphLaunch(ta_sc_graph *exec, ta_stream s)
{
    NOTE(ta_sc_graph_launch(exec, s));
}
TA_EXPORT int cudaGraphUpload(ta_sc_graph *exec, ta_stream s)
{
    (void)exec, (void)s;
    return TA_CU_OK;
}
/* One node stands for all of a graph's work. */
TA_EXPORT int cudaGraphGetNodes(ta_sc_graph *graph, void **nodes, size_t *count)
{
    if (!graph || !count) NOTE(TA_CU_INVALID);
    if (nodes && *count) nodes[0] = graph;
    *count = 1;
    return TA_CU_OK;
}
TA_EXPORT int cudaGraphGetRootNodes(ta_sc_graph *graph, void **nodes, size_t *count)
{
    return cudaGraphGetNodes(graph, nodes, count);
}
TA_EXPORT int cudaGraphNodeGetDependencies(void *node, void **needs, void *third,
                                           size_t *fourth)
{
    (void)node, (void)needs;
    size_t *count = ta_sc_runtime_version() < 13000 ? third : fourth;
    if (count) *count = 0;
    return TA_CU_OK;
}
TA_EXPORT int cudaGraphNodeGetType(void *node, int *type)
{
    (void)node;
    *type = 0; /* a kernel */
    return TA_CU_OK;
}
TA_EXPORT int cudaGraphDebugDotPrint(ta_sc_graph *graph, const char *path, unsigned flags)
{
    (void)flags;
    FILE *file = fopen(path, "w");
    if (!file) NOTE(TA_CU_UNKNOWN);
    fprintf(file, "digraph dot {\n\"graph_%p\" [label=\"simulated\"];\n}\n",
            (void *)graph);
    fclose(file);
    return TA_CU_OK;
}

typedef struct user_object {
    void *data;
    void (*destroy)(void *);
    long count;
} user_object;
TA_EXPORT int cudaUserObjectCreate(user_object **object, void *data,
                                   void (*destroy)(void *), unsigned count,
                                   unsigned flags)
{
    (void)flags;
    *object = malloc(sizeof **object);
    if (!*object) NOTE(TA_CU_NO_MEMORY);
    **object = (user_object){data, destroy, (long)count};
    return TA_CU_OK;
}
TA_EXPORT int cudaUserObjectRetain(user_object *object, unsigned count)
{
    __atomic_add_fetch(&object->count, (long)count, __ATOMIC_RELAXED);
    return TA_CU_OK;
}
TA_EXPORT int cudaUserObjectRelease(user_object *object, unsigned count)
{
    if (__atomic_sub_fetch(&object->count, (long)count, __ATOMIC_ACQ_REL) > 0)
        return TA_CU_OK;
    if (object->destroy) object->destroy(object->data);
    free(object);
    return TA_CU_OK;
}
/* A graph that holds an object here never lets go of it: the process's end does. */
TA_EXPORT int cudaGraphRetainUserObject(ta_sc_graph *graph, user_object *object,
                                        unsigned count, unsigned flags)
{
    (void)graph;
    if (!(flags & 1)) return cudaUserObjectRetain(object, count); /* 1: move */
    return TA_CU_OK;
}
