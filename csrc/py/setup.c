/* setup.c - creating the allocator, what torch needs to know of it, and what is found of
 * the driver and of torch. Called from Python; gives the GIL up where the driver is asked. */
#include <dlfcn.h>
#include <string.h>

#include "convert.h"
#include "../driver/cuda.h"
#include "../torch/guard.h"
#include "../torch/process.h"
#include "../torch/torch.h"

/* Any function's address as a Python int. */
static bool put_address(PyObject *dict, const char *key, const void *slot)
{
    void *address;
    memcpy(&address, slot, sizeof address);
    return ta_put(dict, key, PyLong_FromVoidPtr(address));
}

PyObject *ta_py_hooks(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    PyObject *dict = PyDict_New();
    if (dict == NULL) return NULL;
    bool good = true;
#define HOOK(key, function)                                                              \
    {                                                                                    \
        __typeof__(&(function)) pointer = (function);                                    \
        good = good && put_address(dict, key, &pointer);                                 \
    }
    HOOK("alloc", ta_torch_alloc)
    HOOK("free", ta_torch_free)
    HOOK("init", ta_torch_init)
    HOOK("empty_cache", ta_torch_empty_cache)
    HOOK("memory_fraction", ta_torch_memory_fraction)
    HOOK("base_address", ta_torch_base_address)
    HOOK("record_stream", ta_torch_record_stream)
    HOOK("pool_begin", ta_torch_pool_begin)
    HOOK("pool_end", ta_torch_pool_end)
    HOOK("pool_release", ta_torch_pool_release)
#undef HOOK
    if (good) return dict;
    Py_DECREF(dict);
    return NULL;
}

PyObject *ta_py_library_path(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    static const char here = 0;
    Dl_info info;
    if (dladdr(&here, &info) == 0 || info.dli_fname == NULL)
        return ta_raise(TA_DRIVER, "this library's file is not known");
    return PyUnicode_DecodeFSDefault(info.dli_fname);
}

PyObject *ta_py_create(PyObject *self, PyObject *args, PyObject *names)
{
    (void)self;
    static char *keywords[] = {"fallback", "page_bytes", "slack", "guard", NULL};
    int fallback = 0, guard = 0;
    unsigned long long page_bytes = 0;
    ta_config config = {0};
    if (!PyArg_ParseTupleAndKeywords(args, names, "|pKdp:create", keywords, &fallback,
                                     &page_bytes, &config.slack, &guard))
        return NULL;
    config.fallback = fallback != 0;
    config.guard = guard != 0;
    config.page_bytes = page_bytes;
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ta_process_create(&config);
    Py_END_ALLOW_THREADS
    if (status == TA_INVALID && ta_process_allocator() != NULL)
        return ta_raise(status, "the process has its "
                                "allocator already");
    return ta_none_or_raise(status);
}

PyObject *ta_py_created(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    return PyBool_FromLong(ta_process_allocator() != NULL);
}

PyObject *ta_py_forked(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    return PyBool_FromLong(ta_process_forked());
}

PyObject *ta_py_driver_problem(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    const char *problem;
    Py_BEGIN_ALLOW_THREADS
    problem = ta_cuda_problem();
    Py_END_ALLOW_THREADS
    if (problem[0] == '\0') Py_RETURN_NONE;
    return PyUnicode_FromString(problem);
}

static PyObject *peers_of(const ta_cuda_facts *facts)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < 64; i++) {
        if ((facts->peers >> i & 1) == 0) continue;
        PyObject *peer = PyLong_FromLong(i);
        if (peer == NULL || PyList_Append(list, peer) < 0) {
            Py_XDECREF(peer);
            Py_DECREF(list);
            return NULL;
        }
        Py_DECREF(peer);
    }
    return list;
}

PyObject *ta_py_probe(PyObject *self, PyObject *args)
{
    (void)self;
    int device = 0;
    if (!PyArg_ParseTuple(args, "i:probe", &device)) return NULL;
    ta_cuda_facts facts;
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ta_cuda_probe(device, &facts);
    Py_END_ALLOW_THREADS
    PyObject *dict = PyDict_New();
    if (dict == NULL) return NULL;
    const char *reason = ta_cuda_problem();
    if (status != TA_OK && reason[0] == '\0') reason = ta_status_text(status);
    if (ta_put(dict, "reason",
               status == TA_OK ? PyUnicode_FromString("")
                               : PyUnicode_FromString(reason)) &&
        ta_put(dict, "driver_version", PyLong_FromLong(facts.driver_version)) &&
        ta_put(dict, "devices", PyLong_FromLong(facts.devices)) &&
        ta_put(dict, "name", PyUnicode_FromString(facts.name)) &&
        ta_put(dict, "uuid", PyUnicode_FromString(facts.uuid)) &&
        ta_put(dict, "compute_capability",
               Py_BuildValue("(ii)", facts.major, facts.minor)) &&
        ta_put(dict, "multiprocessors", PyLong_FromLong(facts.multiprocessors)) &&
        ta_put_u64(dict, "total", facts.total) &&
        ta_put_u64(dict, "granularity", facts.granularity) &&
        ta_put(dict, "peers", peers_of(&facts)) &&
        ta_put(dict, "numa_node", PyLong_FromLong(facts.numa_node)) &&
        ta_put(dict, "vmm", PyBool_FromLong(facts.vmm)) &&
        ta_put(dict, "host_pages", PyBool_FromLong(facts.host_pages)) &&
        ta_put(dict, "rdma", PyBool_FromLong(facts.rdma)) &&
        ta_put(dict, "wsl2", PyBool_FromLong(facts.wsl2)) &&
        ta_put(dict, "mig", PyBool_FromLong(facts.mig)) &&
        ta_put(dict, "context", PyBool_FromLong(facts.context)))
        return dict;
    Py_DECREF(dict);
    return NULL;
}

PyObject *ta_py_torch_install(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    Py_BEGIN_ALLOW_THREADS
    ta_vtable_install();
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyObject *ta_py_torch_status(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    PyObject *dict = PyDict_New();
    if (dict == NULL) return NULL;
    for (int i = 0; i < TA_TORCH_ITEMS; i++) {
        const char *text = ta_torch_status((ta_torch_item)i);
        if (ta_put(dict, ta_torch_item_name((ta_torch_item)i),
                   PyUnicode_FromString(text)))
            continue;
        Py_DECREF(dict);
        return NULL;
    }
    return dict;
}

PyObject *ta_py_messages(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    PyObject *list = PyList_New(0);
    char text[TA_GUARD_TEXT];
    ta_py_notice_spill();
    while (list != NULL && (ta_next_message(text, sizeof text) >= 0 ||
                            ta_guard_tell_next(text, sizeof text) >= 0)) {
        PyObject *message =
            PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
        if (message == NULL || PyList_Append(list, message) < 0) {
            Py_XDECREF(message);
            Py_DECREF(list);
            return NULL;
        }
        Py_DECREF(message);
    }
    return list;
}

/* torch's libraries may free until their last destructor has run, long after Python. */
PyObject *ta_py_keep(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *object = NULL;
    if (!PyArg_ParseTuple(args, "O:keep", &object)) return NULL;
    Py_INCREF(object);
    Py_RETURN_NONE;
}
