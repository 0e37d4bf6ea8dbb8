/* usage.c - who used what, for torcharena.phase, track and report.
 *
 * One usage a process, made at the first need and kept. Every function holds the GIL from
 * beginning to end, so none runs beside another; none of them waits for a GPU. */
#include <stdlib.h>
#include <string.h>

#include "convert.h"
#include "../core/usage/usage.h"
#include "../torch/process.h"
#include "../torch/workspaces.h"

static ta_usage *usage;
static bool watching;

/* The usage; NULL with an exception where it could not be made. */
static ta_usage *needed(void)
{
    ta_status status = usage == NULL ? ta_usage_create(&usage) : TA_OK;
    if (status != TA_OK) ta_raise(status, NULL);
    return usage;
}

PyObject *ta_py_usage_watch(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    ta_allocator *allocator = ta_need_allocator();
    if (allocator == NULL || needed() == NULL) return NULL;
    if (watching) Py_RETURN_NONE;
    ta_status status = ta_usage_watch(usage, allocator);
    watching = status == TA_OK;
    if (watching) ta_process_count(usage);
    return ta_none_or_raise(status == TA_FORKED ? TA_OK : status);
}

PyObject *ta_py_usage_unwatch(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    if (usage != NULL && watching) {
        watching = false;
        ta_process_count(NULL);
        ta_usage_unwatch(usage);
    }
    Py_RETURN_NONE;
}

PyObject *ta_py_usage_enter(PyObject *self, PyObject *args)
{
    (void)self;
    const char *name = NULL;
    ta_usage_span span;
    if (!PyArg_ParseTuple(args, "s:usage_enter", &name) || needed() == NULL) return NULL;
    ta_usage_enter(usage, name, &span);
    return PyBytes_FromStringAndSize((const char *)&span, sizeof span);
}

/* usage_enter_anew(name) -> bytes, or None where nothing is counted yet, or in a child */
PyObject *ta_py_usage_enter_anew(PyObject *self, PyObject *args)
{
    (void)self;
    const char *name = NULL;
    ta_usage_span span;
    if (!PyArg_ParseTuple(args, "s:usage_enter_anew", &name)) return NULL;
    if (!watching || ta_process_forked()) Py_RETURN_NONE;
    ta_usage_enter_anew(usage, name, &span);
    return PyBytes_FromStringAndSize((const char *)&span, sizeof span);
}

/* usage_leave(bytes of usage_enter, between=None, backward=False) -> bool: whether all is to
 * be told now. */
PyObject *ta_py_usage_leave(PyObject *self, PyObject *args)
{
    (void)self;
    const char *bytes = NULL, *between = NULL;
    Py_ssize_t length = 0;
    int backward = 0;
    ta_usage_span span;
    if (!PyArg_ParseTuple(args, "y#|zp:usage_leave", &bytes, &length, &between,
                          &backward))
        return NULL;
    if (usage == NULL || length != (Py_ssize_t)sizeof span) {
        PyErr_SetString(PyExc_ValueError, "a span that usage_enter did not give");
        return NULL;
    }
    memcpy(&span, bytes, sizeof span);
    ta_usage_leave_to(usage, &span, between);
    return PyBool_FromLong(backward ? ta_usage_backward_ends(usage, &span)
                                    : ta_usage_due(usage));
}

PyObject *ta_py_usage_between(PyObject *self, PyObject *args)
{
    (void)self;
    const char *name = NULL;
    if (!PyArg_ParseTuple(args, "z:usage_between", &name) || needed() == NULL)
        return NULL;
    ta_usage_between(usage, name);
    Py_RETURN_NONE;
}

/* usage_step() -> bool: whether `messages` may have something to say */
PyObject *ta_py_usage_step(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    if (needed() == NULL) return NULL;
    const bool spilled = ta_usage_step(usage);
    return PyBool_FromLong(spilled || ta_message_waits());
}

PyObject *ta_py_usage_due(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    return PyBool_FromLong(usage != NULL && ta_usage_due(usage));
}

PyObject *ta_py_usage_told(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    if (usage != NULL) ta_usage_told(usage);
    Py_RETURN_NONE;
}

/* usage_unused(bytes) */
PyObject *ta_py_usage_unused(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned long long bytes = 0;
    if (!PyArg_ParseTuple(args, "K:usage_unused", &bytes) || needed() == NULL)
        return NULL;
    ta_usage_unused(usage, bytes);
    Py_RETURN_NONE;
}

/* usage_set_category(device, addresses, category) */
PyObject *ta_py_usage_set_category(PyObject *self, PyObject *args)
{
    (void)self;
    int device = 0, category = 0;
    PyObject *list = NULL;
    if (!PyArg_ParseTuple(args, "iO!i:usage_set_category", &device, &PyList_Type, &list,
                          &category) ||
        needed() == NULL)
        return NULL;
    if (category < 0 || category >= TA_CATEGORIES) {
        PyErr_Format(PyExc_ValueError, "usage_set_category: no category %d", category);
        return NULL;
    }
    size_t count = (size_t)PyList_Size(list), found = 0;
    uint64_t *addrs = malloc((count ? count : 1) * sizeof *addrs);
    if (addrs == NULL) return PyErr_NoMemory();
    for (size_t i = 0; i < count; i++)
        addrs[i] = PyLong_AsUnsignedLongLong(PyList_GetItem(list, (Py_ssize_t)i));
    if (PyErr_Occurred() == NULL)
        found = ta_usage_set_category(usage, device, addrs, count, (ta_category)category);
    free(addrs);
    return PyErr_Occurred() ? NULL : PyLong_FromSize_t(found);
}

/* usage_set_modules(device, addresses, modules) */
PyObject *ta_py_usage_set_modules(PyObject *self, PyObject *args)
{
    (void)self;
    int device = 0;
    PyObject *list = NULL, *numbers = NULL;
    if (!PyArg_ParseTuple(args, "iO!O!:usage_set_modules", &device, &PyList_Type, &list,
                          &PyList_Type, &numbers) ||
        needed() == NULL)
        return NULL;
    size_t count = (size_t)PyList_Size(list), found = 0;
    if (count != (size_t)PyList_Size(numbers)) {
        PyErr_SetString(PyExc_ValueError, "usage_set_modules: two lengths");
        return NULL;
    }
    uint64_t *addrs = malloc((count ? count : 1) * sizeof *addrs);
    uint16_t *modules = malloc((count ? count : 1) * sizeof *modules);
    for (size_t i = 0; addrs != NULL && modules != NULL && i < count; i++) {
        addrs[i] = PyLong_AsUnsignedLongLong(PyList_GetItem(list, (Py_ssize_t)i));
        modules[i] =
            (uint16_t)PyLong_AsUnsignedLong(PyList_GetItem(numbers, (Py_ssize_t)i));
    }
    if (addrs == NULL || modules == NULL)
        PyErr_NoMemory();
    else if (PyErr_Occurred() == NULL)
        found = ta_usage_set_modules(usage, device, addrs, modules, count);
    free(addrs);
    free(modules);
    return PyErr_Occurred() ? NULL : PyLong_FromSize_t(found);
}

/* usage_modules(device) -> {module: (allocations, bytes)} of those that allocated */
PyObject *ta_py_usage_modules(PyObject *self, PyObject *args)
{
    (void)self;
    int device = 0;
    if (!PyArg_ParseTuple(args, "i:usage_modules", &device) || needed() == NULL)
        return NULL;
    ta_usage_module *modules = malloc(TA_USAGE_MODULES * sizeof *modules);
    if (modules == NULL) return PyErr_NoMemory();
    size_t count = ta_usage_modules(usage, device, modules, TA_USAGE_MODULES);
    PyObject *found = PyDict_New();
    for (size_t i = 0; found != NULL && i < count; i++) {
        if (!modules[i].allocs) continue;
        PyObject *key = PyLong_FromSize_t(i);
        PyObject *pair = Py_BuildValue("(KK)", (unsigned long long)modules[i].allocs,
                                       (unsigned long long)modules[i].bytes);
        if (key == NULL || pair == NULL || PyDict_SetItem(found, key, pair) < 0)
            Py_CLEAR(found);
        Py_XDECREF(key);
        Py_XDECREF(pair);
    }
    free(modules);
    return found;
}

static PyObject *when_object(const ta_usage_when *w)
{
    return Py_BuildValue("{s:K,s:d,s:K,s:K,s:I}", "bytes", (unsigned long long)w->bytes,
                         "us", w->us, "step", (unsigned long long)w->step, "requested",
                         (unsigned long long)w->requested, "phase",
                         (unsigned int)w->phase);
}

PyObject *ta_py_usage_look(PyObject *self, PyObject *args)
{
    (void)self;
    int device = 0;
    ta_usage_counts c;
    if (!PyArg_ParseTuple(args, "i:usage_look", &device) || needed() == NULL) return NULL;
    ta_usage_look(usage, device, &c);
    return Py_BuildValue(
        "{s:K,s:K,s:d,s:K,s:K,s:K,s:N,s:N}", "live", (unsigned long long)c.live, "blocks",
        (unsigned long long)c.blocks, "now_us", c.now_us, "step",
        (unsigned long long)c.step, "lost", (unsigned long long)c.lost, "bytes",
        (unsigned long long)c.bytes, "peak", when_object(&c.when[TA_USAGE_PEAK]),
        "out_of_memory", when_object(&c.when[TA_USAGE_OOM]));
}

static PyObject *phase_object(const ta_usage_phase *p)
{
    PyObject *name =
        PyUnicode_DecodeUTF8(p->name, (Py_ssize_t)strlen(p->name), "replace");
    if (name == NULL) return NULL;
    return Py_BuildValue(
        "{s:N,s:I,s:K,s:d,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:d,s:d,s:O}", "name", name,
        "around", (unsigned int)p->around, "entries", (unsigned long long)p->entries,
        "us", p->us, "allocs", (unsigned long long)p->allocs, "bytes",
        (unsigned long long)p->bytes, "live", (unsigned long long)p->live, "peak",
        (unsigned long long)p->peak, "kept", (unsigned long long)p->kept, "page_moves",
        (unsigned long long)p->page_moves, "spilled", (unsigned long long)p->spilled,
        "waits", (unsigned long long)p->waits, "wait_us", p->wait_us, "late", p->late,
        "activations", p->activations ? Py_True : Py_False);
}

PyObject *ta_py_usage_phases(PyObject *self, PyObject *args)
{
    (void)self;
    int device = 0;
    if (!PyArg_ParseTuple(args, "i:usage_phases", &device) || needed() == NULL)
        return NULL;
    ta_usage_phase *phases = malloc(TA_USAGE_PHASES * sizeof *phases);
    if (phases == NULL) return PyErr_NoMemory();
    size_t count = ta_usage_phases(usage, device, phases, TA_USAGE_PHASES);
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *phase = phase_object(&phases[i]);
        if (phase == NULL || PyList_SetItem(list, (Py_ssize_t)i, phase) < 0)
            Py_CLEAR(list);
    }
    free(phases);
    return list;
}

/* usage_blocks(device, moment): allocations may come and go between the two looks. */
PyObject *ta_py_usage_blocks(PyObject *self, PyObject *args)
{
    (void)self;
    int device = 0, moment = 0;
    if (!PyArg_ParseTuple(args, "ii:usage_blocks", &device, &moment) || needed() == NULL)
        return NULL;
    if (moment < 0 || moment > TA_USAGE_NOW) {
        PyErr_Format(PyExc_ValueError, "usage_blocks: no moment %d", moment);
        return NULL;
    }
    ta_usage_moment when = (ta_usage_moment)moment;
    size_t room = ta_usage_blocks(usage, device, when, NULL, 0) + 256, count;
    ta_usage_block *blocks = malloc(room * sizeof *blocks);
    if (blocks == NULL) return PyErr_NoMemory();
    count = ta_usage_blocks(usage, device, when, blocks, room);
    if (count > room) count = room;
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        const ta_usage_block *b = &blocks[i];
        PyObject *block = Py_BuildValue(
            "(KKKIiii)", (unsigned long long)b->addr, (unsigned long long)b->size,
            (unsigned long long)b->step, (unsigned int)b->phase, (int)b->category,
            (int)b->module, (int)b->stack);
        if (block == NULL || PyList_SetItem(list, (Py_ssize_t)i, block) < 0)
            Py_CLEAR(list);
    }
    free(blocks);
    return list;
}

/* (live, reserved, phase, step, bytes of each category) */
static PyObject *sample_object(const ta_usage_sample *s)
{
    PyObject *of = PyTuple_New(TA_CATEGORIES);
    for (int c = 0; of != NULL && c < TA_CATEGORIES; c++) {
        PyObject *bytes = PyLong_FromUnsignedLongLong(s->of[c]);
        if (bytes == NULL || PyTuple_SetItem(of, c, bytes) < 0) Py_CLEAR(of);
    }
    if (of == NULL) return NULL;
    return Py_BuildValue("(KKIIN)", (unsigned long long)s->live,
                         (unsigned long long)s->reserved, (unsigned int)s->phase,
                         (unsigned int)s->step, of);
}

/* usage_timeline(device) -> (microseconds of an interval, list of samples) */
PyObject *ta_py_usage_timeline(PyObject *self, PyObject *args)
{
    (void)self;
    int device = 0;
    double interval_us = 0;
    if (!PyArg_ParseTuple(args, "i:usage_timeline", &device) || needed() == NULL)
        return NULL;
    if (ta_process_forked()) return ta_none_or_raise(TA_FORKED);
    ta_usage_sample *samples = malloc(TA_USAGE_SAMPLES * sizeof *samples);
    if (samples == NULL) return PyErr_NoMemory();
    size_t count =
        ta_usage_timeline(usage, device, samples, TA_USAGE_SAMPLES, &interval_us);
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *sample = sample_object(&samples[i]);
        if (sample == NULL || PyList_SetItem(list, (Py_ssize_t)i, sample) < 0)
            Py_CLEAR(list);
    }
    free(samples);
    return list == NULL ? NULL : Py_BuildValue("(dN)", interval_us, list);
}

/* usage_tell_workspaces(locked) -> int: those of cuBLAS that are live blocks here */
PyObject *ta_py_usage_tell_workspaces(PyObject *self, PyObject *args)
{
    (void)self;
    enum { MOST = 256 };
    int locked = 0;
    const void *addrs[MOST];
    size_t told = 0;
    if (!PyArg_ParseTuple(args, "p:usage_tell_workspaces", &locked)) return NULL;
    if (usage == NULL || !watching || ta_process_forked()) return PyLong_FromLong(0);
    size_t count = ta_torch_workspaces(locked != 0, addrs, MOST);
    for (size_t i = 0; i < count && i < MOST; i++) {
        ta_block_place place;
        const uint64_t addr = (uintptr_t)addrs[i];
        if (ta_block_where(ta_process_allocator(), addrs[i], &place) == TA_OK)
            told += ta_usage_set_category(usage, place.device, &addr, 1,
                                          TA_CATEGORY_WORKSPACE);
    }
    return PyLong_FromSize_t(told);
}

/* usage_check() -> str | None */
PyObject *ta_py_usage_check(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    char text[256] = "";
    if (usage == NULL || ta_usage_check(usage, text, sizeof text)) Py_RETURN_NONE;
    return PyUnicode_FromString(text);
}
