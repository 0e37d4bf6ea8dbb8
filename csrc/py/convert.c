/* convert.c - errors and conversions for the other files of csrc/py. Needs the GIL. */
#include "convert.h"

#include <string.h>

#include "../torch/process.h"

PyObject *ta_error_class(void)
{
    static PyObject *error;
    if (error == NULL)
        error = PyErr_NewExceptionWithDoc("torcharena._core.Error",
                                          "The allocator or the driver refused a call.",
                                          PyExc_RuntimeError, NULL);
    return error;
}

PyObject *ta_raise(ta_status status, const char *detail)
{
    if (detail != NULL && detail[0] != '\0')
        PyErr_Format(ta_error_class(), "%s: %s", ta_status_text(status), detail);
    else
        PyErr_SetString(ta_error_class(), ta_status_text(status));
    return NULL;
}

PyObject *ta_none_or_raise(ta_status status)
{
    if (status != TA_OK) return ta_raise(status, NULL);
    Py_RETURN_NONE;
}

ta_allocator *ta_need_allocator(void)
{
    ta_allocator *allocator = ta_process_allocator();
    if (allocator == NULL)
        PyErr_SetString(ta_error_class(),
                        "the allocator is not created: call torcharena.enable() first");
    return allocator;
}

bool ta_put(PyObject *dict, const char *key, PyObject *value)
{
    if (value == NULL) return false;
    int failed = PyDict_SetItemString(dict, key, value);
    Py_DECREF(value);
    return failed == 0;
}

bool ta_put_u64(PyObject *dict, const char *key, uint64_t value)
{
    return ta_put(dict, key, PyLong_FromUnsignedLongLong(value));
}

bool ta_bytes_of(PyObject *object, uint64_t *bytes)
{
    if (object == Py_None) {
        *bytes = TA_NO_LIMIT;
        return true;
    }
    *bytes = PyLong_AsUnsignedLongLong(object);
    return !(*bytes == UINT64_MAX && PyErr_Occurred() != NULL);
}

PyObject *ta_bytes_or_none(uint64_t bytes)
{
    if (bytes == TA_NO_LIMIT) Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(bytes);
}

static const char *const sources[TA_LIMIT_SOURCES] = {
    [TA_LIMIT_NONE] = "none",
    [TA_LIMIT_API] = "api",
    [TA_LIMIT_ENVIRONMENT] = "environment",
    [TA_LIMIT_FRACTION] = "fraction",
    [TA_LIMIT_ADMIN] = "admin",
};

const char *ta_source_name(int source)
{
    return source >= 0 && source < TA_LIMIT_SOURCES ? sources[source] : "none";
}

bool ta_source_of(const char *name, ta_limit_source *source)
{
    for (int i = TA_LIMIT_API; i < TA_LIMIT_SOURCES; i++) {
        if (strcmp(name, sources[i]) != 0) continue;
        *source = (ta_limit_source)i;
        return true;
    }
    PyErr_Format(PyExc_ValueError,
                 "no limit source '%s': api, environment, fraction or admin", name);
    return false;
}
