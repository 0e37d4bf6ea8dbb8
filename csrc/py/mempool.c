/* mempool.c - pools of torch's own allocator over the arena: their caps and refusals.
 *
 * Called from Python; the GIL is given up where devices are waited for or the driver asked. */
#include "convert.h"
#include "../torch/mempool.h"

/* mempool_limit(region, device, bytes | None) */
PyObject *ta_py_mempool_limit(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned int id = 0;
    int device = 0;
    PyObject *object = NULL;
    uint64_t bytes = 0;
    if (!PyArg_ParseTuple(args, "IiO:mempool_limit", &id, &device, &object)) return NULL;
    if (!ta_bytes_of(object, &bytes)) return NULL;
    ta_mempool_limit(id, device, bytes);
    Py_RETURN_NONE;
}

/* mempool_held(region, device) -> int */
PyObject *ta_py_mempool_held(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned int id = 0;
    int device = 0;
    if (!PyArg_ParseTuple(args, "Ii:mempool_held", &id, &device)) return NULL;
    return PyLong_FromUnsignedLongLong(ta_mempool_held(id, device));
}

/* mempool_refusal() -> (str, device, bytes) | None */
PyObject *ta_py_mempool_refusal(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    int device = 0;
    size_t size = 0;
    const char *text = ta_mempool_refusal(&device, &size);
    if (text[0] == '\0') Py_RETURN_NONE;
    PyObject *said = Py_BuildValue("siK", text, device, (unsigned long long)size);
    ta_mempool_forget();
    return said;
}

/* mempool_settle() */
PyObject *ta_py_mempool_settle(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    Py_BEGIN_ALLOW_THREADS
    ta_mempool_settle();
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* mempool_capturing() -> bool */
PyObject *ta_py_mempool_capturing(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    bool yes;
    Py_BEGIN_ALLOW_THREADS
    yes = ta_mempool_capturing();
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(yes);
}
