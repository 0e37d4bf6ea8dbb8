/* numbers.c - limits, statistics and other numbers of the process's allocator, and giving
 * memory back. Called from Python; the GIL is given up while the allocator works. */
#include "convert.h"

/* Parses one device, finds the allocator. */
static ta_allocator *device_argument(PyObject *args, const char *format, int *device)
{
    if (!PyArg_ParseTuple(args, format, device)) return NULL;
    return ta_need_allocator();
}

PyObject *ta_py_set_limit(PyObject *self, PyObject *args)
{
    (void)self;
    int device = 0;
    const char *name = NULL;
    PyObject *object = NULL;
    uint64_t bytes = 0;
    ta_limit_source source = TA_LIMIT_NONE;
    if (!PyArg_ParseTuple(args, "isO:set_limit", &device, &name, &object)) return NULL;
    if (!ta_source_of(name, &source) || !ta_bytes_of(object, &bytes)) return NULL;
    ta_allocator *allocator = ta_need_allocator();
    if (allocator == NULL) return NULL;
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ta_set_limit(allocator, device, source, bytes);
    Py_END_ALLOW_THREADS
    return ta_none_or_raise(status);
}

PyObject *ta_py_limit(PyObject *self, PyObject *args)
{
    (void)self;
    int device = 0;
    ta_allocator *allocator = device_argument(args, "i:limit", &device);
    if (allocator == NULL) return NULL;
    ta_limit_source source = TA_LIMIT_NONE;
    uint64_t bytes;
    Py_BEGIN_ALLOW_THREADS
    bytes = ta_limit(allocator, device, &source);
    Py_END_ALLOW_THREADS
    PyObject *value = ta_bytes_or_none(bytes);
    if (value == NULL) return NULL;
    return Py_BuildValue("(Ns)", value, ta_source_name((int)source));
}

static PyObject *gauge(const ta_gauge *g)
{
    return Py_BuildValue("(KKKK)", (unsigned long long)g->current,
                         (unsigned long long)g->peak, (unsigned long long)g->increased,
                         (unsigned long long)g->decreased);
}

/* (all, small, large), as ta_pool_kind counts. */
static PyObject *by_kind(const ta_gauge gauges[3])
{
    return Py_BuildValue("(NNN)", gauge(&gauges[TA_POOL_ALL]),
                         gauge(&gauges[TA_POOL_SMALL]), gauge(&gauges[TA_POOL_LARGE]));
}

static bool put_stats(PyObject *dict, const ta_stats *s)
{
#define KINDS(name) ta_put(dict, #name, by_kind(s->name))
#define GAUGE(name) ta_put(dict, #name, gauge(&s->name))
#define COUNT(name) ta_put_u64(dict, #name, s->name)
    return KINDS(allocations) && KINDS(allocated) && KINDS(requested) &&
           KINDS(active_blocks) && KINDS(active) && KINDS(mapped) && GAUGE(reserved) &&
           GAUGE(host) && GAUGE(spilled) && GAUGE(dropped) && COUNT(spill_allocs) &&
           COUNT(spill_bytes) && COUNT(to_host) && COUNT(to_device) &&
           ta_put(dict, "spill_wait_us", PyFloat_FromDouble(s->spill_wait_us)) &&
           COUNT(host_budget) && COUNT(host_held) && GAUGE(pages) && GAUGE(pending) &&
           GAUGE(addresses) && COUNT(idle) && COUNT(partly_used) &&
           COUNT(largest_idle_partly_used) &&
           ta_put(dict, "limit", ta_bytes_or_none(s->limit)) &&
           ta_put(dict, "limit_source",
                  PyUnicode_FromString(ta_source_name(s->limit_source))) &&
           COUNT(page_bytes) && COUNT(oom_count) && COUNT(retry_count) &&
           COUNT(page_moves) && COUNT(waits) &&
           ta_put(dict, "wait_us", PyFloat_FromDouble(s->wait_us)) &&
           ta_put(dict, "slow_us", PyFloat_FromDouble(s->slow_us)) &&
           COUNT(slow_allocs) && COUNT(calls_reserve) && COUNT(calls_create) &&
           COUNT(calls_release) && COUNT(calls_map) && COUNT(calls_unmap) &&
           COUNT(calls_access) && COUNT(calls_event) && COUNT(arenas) && COUNT(streams) &&
           COUNT(pool_arenas) &&
           ta_put(dict, "holes",
                  Py_BuildValue("(KKK)", (unsigned long long)s->holes[TA_POOL_ALL],
                                (unsigned long long)s->holes[TA_POOL_SMALL],
                                (unsigned long long)s->holes[TA_POOL_LARGE]));
#undef KINDS
#undef GAUGE
#undef COUNT
}

PyObject *ta_py_stats(PyObject *self, PyObject *args)
{
    (void)self;
    int device = 0;
    ta_allocator *allocator = device_argument(args, "i:stats", &device);
    if (allocator == NULL) return NULL;
    ta_stats stats;
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ta_get_stats(allocator, device, &stats);
    Py_END_ALLOW_THREADS
    /* A device never used has all zeros, and the limit that will hold. */
    if (status == TA_INVALID) {
        ta_limit_source source = TA_LIMIT_NONE;
        stats.limit = ta_limit(allocator, device, &source);
        stats.limit_source = (int)source;
    } else if (status != TA_OK) {
        return ta_raise(status, NULL);
    }
    PyObject *dict = PyDict_New();
    if (dict != NULL && !put_stats(dict, &stats)) Py_CLEAR(dict);
    return dict;
}

/* A function of the allocator that takes a device and gives a status. */
static PyObject *call_device(PyObject *args, const char *format,
                             ta_status (*function)(ta_allocator *, int))
{
    int device = 0;
    ta_allocator *allocator = device_argument(args, format, &device);
    if (allocator == NULL) return NULL;
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    status = function(allocator, device);
    Py_END_ALLOW_THREADS
    /* Nothing to reset on a device never used. */
    return ta_none_or_raise(status == TA_INVALID ? TA_OK : status);
}

PyObject *ta_py_reset_peaks(PyObject *self, PyObject *args)
{
    (void)self;
    return call_device(args, "i:reset_peaks", ta_reset_peaks);
}

PyObject *ta_py_reset_accumulated(PyObject *self, PyObject *args)
{
    (void)self;
    return call_device(args, "i:reset_accumulated", ta_reset_accumulated);
}

PyObject *ta_py_device_memory(PyObject *self, PyObject *args)
{
    (void)self;
    int device = 0;
    ta_allocator *allocator = device_argument(args, "i:device_memory", &device);
    if (allocator == NULL) return NULL;
    uint64_t free_bytes = 0;
    uint64_t total = 0;
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ta_device_memory(allocator, device, &free_bytes, &total);
    Py_END_ALLOW_THREADS
    if (status != TA_OK) return ta_raise(status, NULL);
    return Py_BuildValue("(KK)", (unsigned long long)free_bytes,
                         (unsigned long long)total);
}

PyObject *ta_py_device_used(PyObject *self, PyObject *args)
{
    (void)self;
    int device = 0;
    ta_allocator *allocator = device_argument(args, "i:device_used", &device);
    if (allocator == NULL) return NULL;
    return PyBool_FromLong(ta_device_used(allocator, device));
}

PyObject *ta_py_trim(PyObject *self, PyObject *args)
{
    (void)self;
    int device = -1;
    ta_allocator *allocator = device_argument(args, "|i:trim", &device);
    if (allocator == NULL) return NULL;
    uint64_t released = 0;
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ta_trim(allocator, device, &released);
    Py_END_ALLOW_THREADS
    if (status != TA_OK) return ta_raise(status, NULL);
    return PyLong_FromUnsignedLongLong(released);
}

PyObject *ta_py_check(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    ta_allocator *allocator = ta_need_allocator();
    if (allocator == NULL) return NULL;
    char text[1024] = "";
    bool good;
    Py_BEGIN_ALLOW_THREADS
    good = ta_check(allocator, text, sizeof text);
    Py_END_ALLOW_THREADS
    if (good) Py_RETURN_NONE;
    return PyUnicode_FromString(text);
}

PyObject *ta_py_mark(PyObject *self, PyObject *args)
{
    (void)self;
    const char *text = NULL;
    if (!PyArg_ParseTuple(args, "s:mark", &text)) return NULL;
    ta_allocator *allocator = ta_need_allocator();
    if (allocator == NULL) return NULL;
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ta_mark(allocator, text);
    Py_END_ALLOW_THREADS
    return ta_none_or_raise(status);
}
