/* ledger.c - the cap that processes share, as Python sees it: taking part, other caps, what
 * the ledger says. Called from Python; the GIL is given up where files or locks are waited
 * for. */
#include <string.h>

#include "convert.h"

#define ROWS 512 /* slots of a ledger */

/* "off" where none is open. */
static const char *mode_name(bool open, const ta_share_caps *caps)
{
    if (!open) return "off";
    return caps->observe ? "observe" : "enforce";
}

static bool mode_of(const char *name, bool *observe)
{
    *observe = strcmp(name, "observe") == 0;
    if (*observe || strcmp(name, "enforce") == 0) return true;
    PyErr_Format(PyExc_ValueError, "no mode '%s': observe or enforce", name);
    return false;
}

/* The reason alone: it names file, owner and mode where they matter. */
static PyObject *raise_why(ta_status status, const char *why)
{
    if (why[0] == '\0') return ta_raise(status, NULL);
    PyErr_SetString(ta_error_class(), why);
    return NULL;
}

/* Bytes of a name, maybe cut within a letter. */
static PyObject *text_of(const char *text)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "ignore");
}

PyObject *ta_py_ledger_open(PyObject *self, PyObject *args)
{
    (void)self;
    int device = 0, claimed = 0;
    ta_share_config config = {0};
    const char *mode = NULL;
    PyObject *device_cap = NULL, *tenant_cap = NULL;
    if (!PyArg_ParseTuple(args, "isssspOOs:ledger_open", &device, &config.directory,
                          &config.gpu, &config.label, &config.tenant, &claimed,
                          &device_cap, &tenant_cap, &mode))
        return NULL;
    config.claimed = claimed != 0;
    if (!ta_bytes_of(device_cap, &config.caps.device) ||
        !ta_bytes_of(tenant_cap, &config.caps.tenant) ||
        !mode_of(mode, &config.caps.observe))
        return NULL;
    ta_allocator *allocator = ta_need_allocator();
    if (allocator == NULL) return NULL;
    char why[TA_SHARE_WHY];
    bool shared;
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ta_share_open(allocator, device, &config, &shared, why);
    Py_END_ALLOW_THREADS
    if (status != TA_OK) return raise_why(status, why);
    PyObject *path = PyUnicode_FromFormat("%s/%s.ledger", config.directory, config.gpu);
    if (path == NULL) return NULL;
    return Py_BuildValue("{sNsN}", "path", path, "shared", PyBool_FromLong(shared));
}

PyObject *ta_py_ledger_caps(PyObject *self, PyObject *args)
{
    (void)self;
    int device = 0;
    const char *mode = NULL;
    PyObject *device_cap = NULL, *tenant_cap = NULL;
    ta_share_caps caps = {0};
    if (!PyArg_ParseTuple(args, "iOOs:ledger_caps", &device, &device_cap, &tenant_cap,
                          &mode) ||
        !ta_bytes_of(device_cap, &caps.device) ||
        !ta_bytes_of(tenant_cap, &caps.tenant) || !mode_of(mode, &caps.observe))
        return NULL;
    ta_allocator *allocator = ta_need_allocator();
    if (allocator == NULL) return NULL;
    uint64_t released = 0;
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ta_share_set_caps(allocator, device, &caps, &released);
    Py_END_ALLOW_THREADS
    if (status == TA_INVALID)
        return ta_raise(status, "no ledger is open for this device");
    if (status != TA_OK) return ta_raise(status, NULL);
    return PyLong_FromUnsignedLongLong(released);
}

PyObject *ta_py_ledger_heed(PyObject *self, PyObject *args)
{
    (void)self;
    int device = 0;
    if (!PyArg_ParseTuple(args, "i:ledger_heed", &device)) return NULL;
    ta_allocator *allocator = ta_need_allocator();
    if (allocator == NULL) return NULL;
    uint64_t released = 0;
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ta_share_heed(allocator, device, &released);
    Py_END_ALLOW_THREADS
    if (status != TA_OK) return ta_raise(status, NULL);
    return PyLong_FromUnsignedLongLong(released);
}

PyObject *ta_py_ledger_state(PyObject *self, PyObject *args)
{
    (void)self;
    int device = 0;
    if (!PyArg_ParseTuple(args, "i:ledger_state", &device)) return NULL;
    ta_allocator *allocator = ta_need_allocator();
    if (allocator == NULL) return NULL;
    ta_share_state state;
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ta_share_get(allocator, device, &state);
    Py_END_ALLOW_THREADS
    if (status != TA_OK) return ta_raise(status, NULL);
    PyObject *dict = PyDict_New();
    if (dict == NULL) return NULL;
    if (ta_put(dict, "open", PyBool_FromLong(state.open)) &&
        ta_put(dict, "path", text_of(state.path)) &&
        ta_put(dict, "mode", PyUnicode_FromString(mode_name(state.open, &state.caps))) &&
        ta_put(dict, "claimed_slot",
               state.joined ? PyLong_FromLong(state.slot) : Py_NewRef(Py_None)) &&
        ta_put_u64(dict, "held", state.held) &&
        ta_put(dict, "device_cap", ta_bytes_or_none(state.caps.device)) &&
        ta_put(dict, "tenant_cap", ta_bytes_or_none(state.caps.tenant)) &&
        ta_put(dict, "tenant", text_of(state.tenant)) &&
        ta_put(dict, "problem", text_of(state.problem)))
        return dict;
    Py_DECREF(dict);
    return NULL;
}

static PyObject *row_of(const ta_share_row *row)
{
    PyObject *dict = PyDict_New();
    if (dict == NULL) return NULL;
    if (ta_put(dict, "slot", PyLong_FromLong(row->slot)) &&
        ta_put(dict, "alive", PyBool_FromLong(row->alive)) &&
        ta_put_u64(dict, "bytes", row->bytes) &&
        ta_put_u64(dict, "unused", row->unused) &&
        ta_put_u64(dict, "spilled", row->spilled) &&
        ta_put_u64(dict, "peak", row->peak) &&
        ta_put_u64(dict, "refused", row->refused) &&
        ta_put(dict, "started", PyFloat_FromDouble((double)row->started_us / 1e6)) &&
        ta_put(dict, "pid", PyLong_FromLong(row->pid)) &&
        ta_put(dict, "uid", PyLong_FromUnsignedLong(row->uid)) &&
        ta_put(dict, "label", text_of(row->label)) &&
        ta_put(dict, "tenant", text_of(row->tenant)) &&
        ta_put(dict, "claimed", PyBool_FromLong(row->claimed)) &&
        ta_put(dict, "mode", PyUnicode_FromString(mode_name(true, &row->caps))) &&
        ta_put(dict, "limit", ta_bytes_or_none(row->limit)) &&
        ta_put(dict, "limit_source",
               PyUnicode_FromString(ta_source_name(row->limit_source))) &&
        ta_put(dict, "device_cap", ta_bytes_or_none(row->caps.device)) &&
        ta_put(dict, "tenant_cap", ta_bytes_or_none(row->caps.tenant)))
        return dict;
    Py_DECREF(dict);
    return NULL;
}

PyObject *ta_py_ledger_read(PyObject *self, PyObject *args)
{
    (void)self;
    const char *directory = NULL, *gpu = NULL;
    if (!PyArg_ParseTuple(args, "ss:ledger_read", &directory, &gpu)) return NULL;
    ta_share_row *rows = PyMem_Calloc(ROWS, sizeof *rows);
    if (rows == NULL) return PyErr_NoMemory();
    char why[TA_SHARE_WHY];
    size_t count = 0;
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ta_share_read(directory, gpu, rows, ROWS, &count, why);
    Py_END_ALLOW_THREADS
    PyObject *list = status == TA_OK ? PyList_New(0) : raise_why(status, why);
    for (size_t i = 0; list != NULL && i < count && i < ROWS; i++) {
        PyObject *row = row_of(&rows[i]);
        if (row == NULL || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    PyMem_Free(rows);
    return list;
}
