/* recording.c - recordings to a file, the memory history, and replays of recordings.
 *
 * One recording and one history a process; the lock guards both. It is taken without the
 * GIL, and Python is not called while it is held. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert.h"
#include "../core/records/history.h"
#include "../core/records/record.h"
#include "../driver/replay.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ta_recorder *recorder;
static ta_history *history;

static ta_status start_recording(ta_allocator *allocator, const char *path,
                                 uint64_t page_bytes, char *error)
{
    ta_record_options options = {.page_bytes = page_bytes};
    pthread_mutex_lock(&lock);
    ta_status status = TA_INVALID;
    if (recorder != NULL)
        snprintf(error, TA_RECORD_ERROR, "a recording is under way");
    else
        status = ta_record_start(allocator, path, &options, &recorder, error);
    if (status != TA_OK && status != TA_INVALID) recorder = NULL;
    pthread_mutex_unlock(&lock);
    return status;
}

PyObject *ta_py_record_start(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *path = NULL;
    if (!PyArg_ParseTuple(args, "O&:record_start", PyUnicode_FSConverter, &path))
        return NULL;
    ta_allocator *allocator = ta_need_allocator();
    const char *name = PyBytes_AsString(path);
    if (allocator == NULL || name == NULL) {
        Py_DECREF(path);
        return NULL;
    }
    char error[TA_RECORD_ERROR] = "";
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    ta_stats stats;
    ta_get_stats(allocator, 0, &stats);
    status = start_recording(allocator, name, stats.page_bytes, error);
    Py_END_ALLOW_THREADS
    Py_DECREF(path);
    if (status != TA_OK) return ta_raise(status, error);
    Py_RETURN_NONE;
}

PyObject *ta_py_record_stop(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    ta_record_result result;
    memset(&result, 0, sizeof result);
    ta_status status = TA_OK;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&lock);
    ta_recorder *running = recorder;
    recorder = NULL;
    pthread_mutex_unlock(&lock);
    if (running != NULL) status = ta_record_stop(running, &result);
    Py_END_ALLOW_THREADS
    if (status != TA_OK && status != TA_FORKED) return ta_raise(status, result.error);
    return Py_BuildValue("{s:K,s:K}", "lines", (unsigned long long)result.lines, "bytes",
                         (unsigned long long)result.bytes);
}

/* --- the memory history -------------------------------------------------------------- */
PyObject *ta_py_history_start(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned long long limit = 0;
    if (!PyArg_ParseTuple(args, "K:history_start", &limit)) return NULL;
    ta_allocator *allocator = ta_need_allocator();
    if (allocator == NULL) return NULL;
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&lock);
    if (history != NULL)
        status = ta_history_set_limit(history, limit);
    else
        status = ta_history_start(allocator, limit, &history);
    pthread_mutex_unlock(&lock);
    Py_END_ALLOW_THREADS
    return ta_none_or_raise(status);
}

PyObject *ta_py_history_stop(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    ta_status status = TA_OK;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&lock);
    if (history != NULL) status = ta_history_stop(history);
    history = NULL;
    pthread_mutex_unlock(&lock);
    Py_END_ALLOW_THREADS
    return ta_none_or_raise(status == TA_FORKED ? TA_OK : status);
}

static const char *const kinds[] = {
    [TA_EVENT_ALLOC] = "alloc",
    [TA_EVENT_FREE] = "free",
    [TA_EVENT_FREE_DONE] = "free_done",
    [TA_EVENT_RECORD_STREAM] = "record_stream",
    [TA_EVENT_MAP] = "map",
    [TA_EVENT_UNMAP] = "unmap",
    [TA_EVENT_OOM] = "oom",
    [TA_EVENT_MARK] = "mark",
};

static PyObject *event_object(const ta_history_entry *e)
{
    const char *kind =
        e->kind < sizeof kinds / sizeof kinds[0] ? kinds[e->kind] : "unknown";
    /* For a refusal the address is the number of bytes that were free. */
    return Py_BuildValue("{s:s,s:i,s:K,s:K,s:K,s:K,s:K,s:L,s:i}", "kind", kind, "device",
                         (int)e->device, "address", (unsigned long long)e->addr, "size",
                         (unsigned long long)e->size, "serial",
                         (unsigned long long)e->serial, "stream",
                         (unsigned long long)(uintptr_t)e->stream, "free",
                         (unsigned long long)(e->kind == TA_EVENT_OOM ? e->addr : 0),
                         "time_us", (long long)e->time_us, "stack", (int)e->stack);
}

/* The events, in memory of our own; *count of them. NULL with *count > 0: no memory. */
static ta_history_entry *copy_history(size_t *count)
{
    ta_history_entry *entries = NULL;
    pthread_mutex_lock(&lock);
    ta_history_counts counts;
    memset(&counts, 0, sizeof counts);
    if (history != NULL) ta_history_look(history, &counts);
    *count = (size_t)counts.kept;
    if (*count > 0) entries = malloc(*count * sizeof *entries);
    if (entries != NULL) *count = ta_history_copy(history, entries, *count);
    pthread_mutex_unlock(&lock);
    return entries;
}

PyObject *ta_py_history(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    size_t count = 0;
    ta_history_entry *entries;
    Py_BEGIN_ALLOW_THREADS
    entries = copy_history(&count);
    Py_END_ALLOW_THREADS
    if (entries == NULL && count > 0) return PyErr_NoMemory();
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *event = event_object(&entries[i]);
        if (event == NULL || PyList_SetItem(list, (Py_ssize_t)i, event) < 0)
            Py_CLEAR(list);
    }
    free(entries);
    return list;
}

/* history_seen() -> int: events since it began or was cleared */
PyObject *ta_py_history_seen(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    ta_history_counts counts;
    memset(&counts, 0, sizeof counts);
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&lock);
    if (history != NULL) ta_history_look(history, &counts);
    pthread_mutex_unlock(&lock);
    Py_END_ALLOW_THREADS
    return PyLong_FromUnsignedLongLong(counts.seen);
}

/* --- replays --------------------------------------------------------------------------- */
static PyObject *step_object(const ta_replay_step *s)
{
    return Py_BuildValue("{s:K,s:K,s:K,s:d}", "page_moves",
                         (unsigned long long)s->page_moves, "waits",
                         (unsigned long long)s->waits, "driver_calls",
                         (unsigned long long)s->driver_calls, "driver_us", s->driver_us);
}

static PyObject *figures(const ta_replay_result *r)
{
    PyObject *dict = PyDict_New();
    if (dict == NULL) return NULL;
    if (ta_put_u64(dict, "events", r->events) &&
        ta_put_u64(dict, "peak_requested", r->peak_requested) &&
        ta_put_u64(dict, "peak_reserved", r->peak_reserved) &&
        ta_put(dict, "ratio", PyFloat_FromDouble(r->ratio)) &&
        ta_put(dict, "oom", PyBool_FromLong(r->ooms > 0)) &&
        ta_put_u64(dict, "page_moves", r->page_moves) &&
        ta_put_u64(dict, "driver_calls", r->driver_calls) &&
        ta_put(dict, "driver_us", PyFloat_FromDouble(r->driver_us)) &&
        ta_put(dict, "seconds", PyFloat_FromDouble(r->seconds)) &&
        ta_put(dict, "events_per_second", PyFloat_FromDouble(r->events_per_second)) &&
        ta_put_u64(dict, "waits", r->waits) &&
        ta_put_u64(dict, "slow_allocs", r->slow_allocs) &&
        ta_put(dict, "limit", ta_bytes_or_none(r->limit)) &&
        ta_put_u64(dict, "oom_event", r->oom_event) &&
        ta_put(dict, "oom_text",
               PyUnicode_DecodeUTF8(r->oom_text, (Py_ssize_t)strlen(r->oom_text),
                                    "replace")) &&
        ta_put_u64(dict, "steps", r->steps) &&
        ta_put_u64(dict, "steps_measured", r->steps_measured) &&
        ta_put(dict, "step_median", step_object(&r->median)) &&
        ta_put(dict, "step_max", step_object(&r->highest)))
        return dict;
    Py_DECREF(dict);
    return NULL;
}

/* ValueError(line, reason) for a malformed text. */
static PyObject *malformed(const ta_trace_error *error)
{
    PyObject *arguments =
        Py_BuildValue("(Ks)", (unsigned long long)error->line, error->reason);
    if (arguments != NULL) PyErr_SetObject(PyExc_ValueError, arguments);
    Py_XDECREF(arguments);
    return NULL;
}

PyObject *ta_py_replay(PyObject *self, PyObject *args, PyObject *names)
{
    (void)self;
    static char *keywords[] = {"text",        "limit", "limit_ratio",   "page_bytes",
                               "null_driver", "check", "device_memory", "pass_after",
                               "slack",       NULL};
    ta_replay_options options = TA_REPLAY_DEFAULTS;
    const char *text = NULL;
    Py_ssize_t length = 0;
    PyObject *limit = Py_None;
    unsigned long long page_bytes = 0;
    unsigned long long memory = 0;
    unsigned long long pass_after = options.pass_after;
    int null_driver = 0;
    int check = 0;
    if (!PyArg_ParseTupleAndKeywords(args, names, "y#|OdKppKKd:replay", keywords, &text,
                                     &length, &limit, &options.limit_ratio, &page_bytes,
                                     &null_driver, &check, &memory, &pass_after,
                                     &options.slack) ||
        !ta_bytes_of(limit, &options.limit))
        return NULL;
    options.page_bytes = page_bytes;
    options.device_memory = memory;
    options.pass_after = pass_after;
    options.null_driver = null_driver != 0;
    options.check = check != 0;
    ta_replay_result *result = calloc(1, sizeof *result);
    if (result == NULL) return PyErr_NoMemory();
    ta_trace_error error;
    memset(&error, 0, sizeof error);
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ta_replay_text(text, (size_t)length, &options, result, &error);
    Py_END_ALLOW_THREADS
    PyObject *answer;
    if (status == TA_OK)
        answer = figures(result);
    else if (status == TA_INVALID && error.reason[0] != '\0')
        answer = malformed(&error);
    else
        answer = ta_raise(status, result->failure);
    free(result);
    return answer;
}
