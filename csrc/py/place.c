/* place.c - modules and lines that allocate, for torcharena.track and torcharena.stacks.
 *
 * Hooks of the program's modules call the first three, many times a step; every function
 * holds the GIL from beginning to end. */
#include "convert.h"
#include "../core/records/place.h"
#include "../torch/guard.h"
#include "../torch/process.h"

PyObject *ta_py_place_enter(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned short module = 0;
    int outermost = 0;
    if (!PyArg_ParseTuple(args, "H|p:place_enter", &module, &outermost)) return NULL;
    ta_place_enter(module, outermost != 0);
    Py_RETURN_NONE;
}

PyObject *ta_py_place_leave(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned short module = 0;
    if (!PyArg_ParseTuple(args, "H:place_leave", &module)) return NULL;
    ta_place_leave(module);
    Py_RETURN_NONE;
}

PyObject *ta_py_place_at(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned short stack = 0;
    if (!PyArg_ParseTuple(args, "H:place_at", &stack)) return NULL;
    ta_place_at(stack);
    Py_RETURN_NONE;
}

PyObject *ta_py_place_begin(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    ta_place_begin();
    Py_RETURN_NONE;
}

PyObject *ta_py_place_end(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    ta_place_end();
    Py_RETURN_NONE;
}

/* place_now() -> (module, stack) */
PyObject *ta_py_place_now(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    const ta_place place = ta_place_now();
    return Py_BuildValue("(ii)", (int)place.module, (int)place.stack);
}

/* place_runs(module, stack, ...): what autograd's hooks give besides is of no interest. */
PyObject *ta_py_place_runs(PyObject *self, PyObject *args)
{
    (void)self;
    ta_place made = {0, 0};
    PyObject *grads = NULL;
    if (!PyArg_ParseTuple(args, "HH|O:place_runs", &made.module, &made.stack, &grads))
        return NULL;
    ta_place_runs(made);
    Py_RETURN_NONE;
}

PyObject *ta_py_place_over(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    ta_place_over();
    Py_RETURN_NONE;
}

PyObject *ta_py_guard_name(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned short stack = 0;
    const char *place = NULL;
    if (!PyArg_ParseTuple(args, "Hs:guard_name", &stack, &place)) return NULL;
    if (!ta_guard_name(stack, place)) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyObject *ta_py_guard_look(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    ta_allocator *allocator = ta_process_allocator();
    if (allocator == NULL) Py_RETURN_NONE;
    Py_BEGIN_ALLOW_THREADS
    ta_guard_look(allocator);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}
