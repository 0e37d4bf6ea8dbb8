/* pools.c - the live blocks of graph pools, for CUDA graph trees; torch's profilers. */
#include <stdlib.h>

#include "convert.h"
#include "../torch/checkpoint.h"
#include "../torch/profile.h"

static PyObject *told(const ta_pool_block *block)
{
    return Py_BuildValue("(KKKK)", (unsigned long long)block->addr,
                         (unsigned long long)block->size,
                         (unsigned long long)block->requested,
                         (unsigned long long)(uintptr_t)block->stream);
}

PyObject *ta_py_pool_blocks(PyObject *self, PyObject *args)
{
    (void)self;
    int device = 0;
    unsigned long long a = 0;
    unsigned long long b = 0;
    if (!PyArg_ParseTuple(args, "iKK:pool_blocks", &device, &a, &b)) return NULL;
    ta_allocator *allocator = ta_need_allocator();
    if (allocator == NULL) return NULL;
    ta_pool_block *blocks = NULL;
    size_t room = 64;
    size_t count = 0;
    ta_status status;
    do {
        room = count > room ? count + 64 : room;
        free(blocks);
        blocks = malloc(room * sizeof *blocks);
        if (blocks == NULL) return PyErr_NoMemory();
        Py_BEGIN_ALLOW_THREADS
        status =
            ta_pool_blocks(allocator, device, (ta_pool_id){a, b}, blocks, room, &count);
        Py_END_ALLOW_THREADS
    } while (status == TA_OK && count > room);
    PyObject *list = status == TA_OK ? PyList_New(0) : ta_raise(status, NULL);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *one = told(&blocks[i]);
        if (one == NULL || PyList_Append(list, one) < 0) {
            Py_DECREF(list);
            list = NULL;
        }
        Py_XDECREF(one);
    }
    free(blocks);
    return list;
}

static bool read_block(PyObject *tuple, ta_pool_block *block)
{
    unsigned long long addr = 0;
    unsigned long long size = 0;
    unsigned long long requested = 0;
    unsigned long long stream = 0;
    if (tuple == NULL || !PyTuple_Check(tuple) ||
        !PyArg_ParseTuple(tuple, "KKKK:block", &addr, &size, &requested, &stream))
        return false;
    *block = (ta_pool_block){addr, size, requested, (void *)(uintptr_t)stream};
    return true;
}

/* Calls `call` while the blocks stand ready for the thread's setCheckpointPoolState. */
PyObject *ta_py_pool_restoring(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned long long a = 0;
    unsigned long long b = 0;
    PyObject *list = NULL;
    PyObject *call = NULL;
    if (!PyArg_ParseTuple(args, "KKOO:pool_restoring", &a, &b, &list, &call)) return NULL;
    const Py_ssize_t count = PySequence_Size(list);
    if (count < 0) return NULL;
    ta_pool_block *blocks = calloc((size_t)count + 1, sizeof *blocks);
    if (blocks == NULL) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *one = PySequence_GetItem(list, i);
        const bool good = read_block(one, &blocks[i]);
        Py_XDECREF(one);
        if (good) continue;
        free(blocks);
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a block is four ints");
        return NULL;
    }
    ta_torch_checkpoint_next((ta_pool_id){a, b}, blocks, (size_t)count);
    PyObject *result = PyObject_CallObject(call, NULL);
    ta_torch_checkpoint_next((ta_pool_id){0, 0}, NULL, 0);
    free(blocks);
    return result;
}

PyObject *ta_py_profile(PyObject *self, PyObject *args)
{
    (void)self;
    int begins = 0;
    ta_status status;
    if (!PyArg_ParseTuple(args, "p:profile", &begins)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = ta_torch_profile(begins != 0);
    Py_END_ALLOW_THREADS
    return ta_none_or_raise(status);
}
