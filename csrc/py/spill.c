/* spill.c - host memory, steps and regions of the process's allocator.
 *
 * Called from Python; the GIL is given up while the allocator works. Refusals of sleep and
 * wake come back as a status with the reason, since Python raises different errors. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "convert.h"
#include "../driver/cuda.h"
#include "../torch/process.h"

/* set_spill(host_bytes | None, net) */
PyObject *ta_py_set_spill(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *object = NULL;
    int net = 1;
    uint64_t bytes = 0;
    if (!PyArg_ParseTuple(args, "O|p:set_spill", &object, &net)) return NULL;
    if (!ta_bytes_of(object, &bytes)) return NULL;
    ta_allocator *allocator = ta_need_allocator();
    if (allocator == NULL) return NULL;
    const ta_spill_config config = {.host_bytes = bytes, .net = net != 0};
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ta_set_spill(allocator, bytes == TA_NO_LIMIT ? NULL : &config);
    Py_END_ALLOW_THREADS
    return ta_none_or_raise(status);
}

/* host_memory() -> int | None */
PyObject *ta_py_host_memory(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    const ta_driver *driver = ta_cuda_driver();
    uint64_t available = 0;
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    status = driver->host_memory(driver->self, &available);
    Py_END_ALLOW_THREADS
    if (status != TA_OK) Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(available);
}

/* host_trim() -> int */
PyObject *ta_py_host_trim(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    ta_allocator *allocator = ta_need_allocator();
    if (allocator == NULL) return NULL;
    uint64_t released = 0;
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ta_host_trim(allocator, &released);
    Py_END_ALLOW_THREADS
    if (status != TA_OK) return ta_raise(status, NULL);
    return PyLong_FromUnsignedLongLong(released);
}

/* step(device=-1) -> dict */
PyObject *ta_py_step(PyObject *self, PyObject *args)
{
    (void)self;
    int device = -1;
    if (!PyArg_ParseTuple(args, "|i:step", &device)) return NULL;
    ta_allocator *allocator = ta_need_allocator();
    if (allocator == NULL) return NULL;
    ta_step_info info = {0};
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ta_step(allocator, device, &info);
    Py_END_ALLOW_THREADS
    return Py_BuildValue(
        "{s:i,s:s,s:K,s:K,s:K,s:d,s:d}", "status", (int)status, "text",
        ta_status_text(status), "brought_back", (unsigned long long)info.brought_back,
        "still_on_host", (unsigned long long)info.still_on_host, "sent_out",
        (unsigned long long)info.sent_out, "us", info.us, "copy_us", info.copy_us);
}

/* The highest of the live bytes since a plan last looked, whoever resets torch's peaks. An
 * observer, from the first look on. live = asked for in blocks that were allocated and not
 * freed since, and in those that were there before. */
static struct {
    _Atomic int64_t live, peak;
} watched[TA_MAX_DEVICES];

static void watch(void *context, const ta_event_info *event)
{
    (void)context;
    const int64_t size = (int64_t)event->size;
    if (event->kind == TA_EVENT_FREE)
        atomic_fetch_sub_explicit(&watched[event->device].live, size,
                                  memory_order_relaxed);
    if (event->kind != TA_EVENT_ALLOC) return;
    int64_t now = size + atomic_fetch_add_explicit(&watched[event->device].live, size,
                                                   memory_order_relaxed);
    int64_t peak =
        atomic_load_explicit(&watched[event->device].peak, memory_order_relaxed);
    while (peak < now &&
           !atomic_compare_exchange_weak(&watched[event->device].peak, &peak, now))
        ;
}

/* False where there is no place for another observer: then torch's own peak has to do. */
static bool watching(ta_allocator *allocator)
{
    static bool begun, good; /* the GIL guards them */
    if (begun) return good;
    begun = true;
    good = ta_add_observer(allocator, watch, NULL) == TA_OK;
    for (int device = 0; good && device < TA_MAX_DEVICES; device++) {
        ta_stats stats;
        if (ta_get_stats(allocator, device, &stats) == TA_OK)
            atomic_fetch_add(&watched[device].live,
                             (int64_t)stats.requested[TA_POOL_ALL].current);
    }
    return good;
}

/* room(device): what a plan looks at, many times a step. */
PyObject *ta_py_room(PyObject *self, PyObject *args)
{
    (void)self;
    int device = 0;
    if (!PyArg_ParseTuple(args, "i:room", &device)) return NULL;
    ta_allocator *allocator = ta_need_allocator();
    if (allocator == NULL) return NULL;
    if (device < 0 || device >= TA_MAX_DEVICES) return ta_raise(TA_INVALID, "room");
    const bool good = watching(allocator);
    ta_stats stats;
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ta_get_stats(allocator, device, &stats);
    Py_END_ALLOW_THREADS
    uint64_t peak = stats.allocated[TA_POOL_ALL].peak;
    if (good)
        peak = (uint64_t)atomic_exchange(&watched[device].peak,
                                         atomic_load(&watched[device].live));
    ta_limit_source source;
    if (status == TA_INVALID) stats.limit = ta_limit(allocator, device, &source);
    PyObject *cap = ta_bytes_or_none(stats.limit);
    if (cap == NULL) return NULL;
    return Py_BuildValue("(KKKN)",
                         (unsigned long long)stats.allocated[TA_POOL_ALL].current,
                         (unsigned long long)peak,
                         (unsigned long long)(stats.reserved.current - stats.idle), cap);
}

/* --- regions ------------------------------------------------------------------------- */
/* region_open(name, page_bytes, on_host, touch_host) -> int */
PyObject *ta_py_region_open(PyObject *self, PyObject *args)
{
    (void)self;
    const char *name = NULL;
    unsigned long long page = 0;
    int on_host = 0, touch_host = 0;
    if (!PyArg_ParseTuple(args, "sKpp:region_open", &name, &page, &on_host, &touch_host))
        return NULL;
    ta_allocator *allocator = ta_need_allocator();
    if (allocator == NULL) return NULL;
    const ta_region_config config = {.page_bytes = page,
                                     .home = on_host ? TA_ON_HOST : TA_ON_DEVICE,
                                     .touch_host = touch_host != 0};
    ta_region_id id = 0;
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ta_region_open(allocator, name, &config, &id);
    Py_END_ALLOW_THREADS
    if (status != TA_OK) return ta_raise(status, name);
    return PyLong_FromUnsignedLong(id);
}

/* region_enter(id) -> int */
PyObject *ta_py_region_enter(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned int id = 0;
    if (!PyArg_ParseTuple(args, "I:region_enter", &id)) return NULL;
    ta_allocator *allocator = ta_need_allocator();
    if (allocator == NULL) return NULL;
    ta_region_id before = 0;
    ta_status status = ta_region_enter(allocator, id, &before);
    if (status != TA_OK) return ta_raise(status, NULL);
    return PyLong_FromUnsignedLong(before);
}

static PyObject *moved(ta_status status, const ta_sleep_info *info)
{
    return Py_BuildValue("{s:i,s:s,s:s,s:K,s:K,s:K,s:K,s:d,s:d,s:d}", "status",
                         (int)status, "text", ta_status_text(status), "why", info->why,
                         "copied", (unsigned long long)info->copied, "dropped",
                         (unsigned long long)info->dropped, "device",
                         (unsigned long long)info->device, "pinned",
                         (unsigned long long)info->pinned, "us", info->us, "pin_us",
                         info->pin_us, "copy_us", info->copy_us);
}

/* region_sleep(id, keep) -> dict */
PyObject *ta_py_region_sleep(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned int id = 0;
    int keep = 1;
    if (!PyArg_ParseTuple(args, "Ip:region_sleep", &id, &keep)) return NULL;
    ta_allocator *allocator = ta_need_allocator();
    if (allocator == NULL) return NULL;
    ta_sleep_info info = {0};
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ta_region_sleep(allocator, id, keep != 0, &info);
    Py_END_ALLOW_THREADS
    return moved(status, &info);
}

/* region_wake(id) -> dict */
PyObject *ta_py_region_wake(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned int id = 0;
    if (!PyArg_ParseTuple(args, "I:region_wake", &id)) return NULL;
    ta_allocator *allocator = ta_need_allocator();
    if (allocator == NULL) return NULL;
    ta_sleep_info info = {0};
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ta_region_wake(allocator, id, &info);
    Py_END_ALLOW_THREADS
    return moved(status, &info);
}

/* region_get(id) -> dict | None */
PyObject *ta_py_region_get(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned int id = 0;
    if (!PyArg_ParseTuple(args, "I:region_get", &id)) return NULL;
    ta_allocator *allocator = ta_need_allocator();
    if (allocator == NULL) return NULL;
    ta_region_info info;
    ta_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ta_region_get(allocator, id, &info);
    Py_END_ALLOW_THREADS
    if (status == TA_INVALID || status == TA_FORKED) Py_RETURN_NONE;
    if (status != TA_OK) return ta_raise(status, NULL);
    return Py_BuildValue(
        "{s:s,s:K,s:N,s:N,s:N,s:K,s:K,s:K,s:K,s:K}", "name", info.name, "page_bytes",
        (unsigned long long)info.config.page_bytes, "on_host",
        PyBool_FromLong(info.config.home == TA_ON_HOST), "touch_host",
        PyBool_FromLong(info.config.touch_host), "asleep", PyBool_FromLong(info.asleep),
        "blocks", (unsigned long long)info.blocks, "allocated",
        (unsigned long long)info.allocated, "device", (unsigned long long)info.device,
        "host", (unsigned long long)info.host, "dropped",
        (unsigned long long)info.dropped);
}

/* region_of(address) -> (id, asleep) */
PyObject *ta_py_region_of(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned long long address = 0;
    if (!PyArg_ParseTuple(args, "K:region_of", &address)) return NULL;
    ta_allocator *allocator = ta_need_allocator();
    if (allocator == NULL) return NULL;
    ta_region_id id = 0;
    bool asleep = false;
    ta_status status =
        ta_region_of(allocator, (const void *)(uintptr_t)address, &id, &asleep);
    if (status != TA_OK) id = 0;
    return Py_BuildValue("(IO)", (unsigned int)id, id && asleep ? Py_True : Py_False);
}

/* --- that spilling has begun ------------------------------------------------------------ */
void ta_py_notice_spill(void)
{
    static bool told; /* the GIL guards it */
    ta_allocator *allocator = ta_process_allocator();
    if (told || allocator == NULL || ta_is_forked(allocator)) return;
    for (int device = 0; device < TA_MAX_DEVICES && !told; device++) {
        ta_stats stats;
        if (!ta_device_used(allocator, device)) continue;
        if (ta_get_stats(allocator, device, &stats) != TA_OK || !stats.spill_allocs)
            continue;
        told = true;
        ta_say("torcharena: GPU %d has no room left: %.2f GiB were allocated in host "
               "memory, which the GPU reads and writes over its link, slowly and right. "
               "torcharena.memory_summary() says what it costs; torcharena.step() at the "
               "end of each step brings back what fits",
               device, (double)stats.spill_bytes / (double)(1 << 30));
    }
}
