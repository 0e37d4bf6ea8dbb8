/* convert.h - shared by the files of csrc/py: errors, and C numbers as Python objects.
 *
 * The module keeps to the limited API of Python 3.10. Every function here needs the GIL. */
#ifndef TA_CONVERT_H
#define TA_CONVERT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#include "../include/torcharena.h"

/* The module's Error class; borrowed. */
PyObject *ta_error_class(void);
/* Raises Error with the status's text and `detail` (may be NULL); returns NULL. */
PyObject *ta_raise(ta_status status, const char *detail);
/* None for TA_OK, else raises. */
PyObject *ta_none_or_raise(ta_status status);
/* The process's allocator; NULL with an Error raised where there is none yet. */
ta_allocator *ta_need_allocator(void);

/* Adds a value to a dict and takes over the reference; false, with an exception, where it
 * could not be made (NULL) or added. */
bool ta_put(PyObject *dict, const char *key, PyObject *value);
bool ta_put_u64(PyObject *dict, const char *key, uint64_t value);
/* An int of Python's in bytes; None is TA_NO_LIMIT. False with an exception. */
bool ta_bytes_of(PyObject *object, uint64_t *bytes);
PyObject *ta_bytes_or_none(uint64_t bytes);
/* "api", "environment", "fraction", "admin", "none". */
const char *ta_source_name(int source);
bool ta_source_of(const char *name, ta_limit_source *source);

/* Leaves a message, once, where memory on the host has come to be used. */
void ta_py_notice_spill(void);

/* What the other files define; the method table is in module.c. */
PyObject *ta_py_hooks(PyObject *self, PyObject *args);
PyObject *ta_py_library_path(PyObject *self, PyObject *args);
PyObject *ta_py_created(PyObject *self, PyObject *args);
PyObject *ta_py_forked(PyObject *self, PyObject *args);
PyObject *ta_py_probe(PyObject *self, PyObject *args);
PyObject *ta_py_driver_problem(PyObject *self, PyObject *args);
PyObject *ta_py_torch_install(PyObject *self, PyObject *args);
PyObject *ta_py_torch_status(PyObject *self, PyObject *args);
PyObject *ta_py_messages(PyObject *self, PyObject *args);
PyObject *ta_py_set_limit(PyObject *self, PyObject *args);
PyObject *ta_py_limit(PyObject *self, PyObject *args);
PyObject *ta_py_stats(PyObject *self, PyObject *args);
PyObject *ta_py_reset_peaks(PyObject *self, PyObject *args);
PyObject *ta_py_reset_accumulated(PyObject *self, PyObject *args);
PyObject *ta_py_device_memory(PyObject *self, PyObject *args);
PyObject *ta_py_device_used(PyObject *self, PyObject *args);
PyObject *ta_py_snapshot(PyObject *self, PyObject *args);
PyObject *ta_py_trim(PyObject *self, PyObject *args);
PyObject *ta_py_check(PyObject *self, PyObject *args);
PyObject *ta_py_mark(PyObject *self, PyObject *args);
PyObject *ta_py_record_start(PyObject *self, PyObject *args);
PyObject *ta_py_record_stop(PyObject *self, PyObject *args);
PyObject *ta_py_history_start(PyObject *self, PyObject *args);
PyObject *ta_py_history_stop(PyObject *self, PyObject *args);
PyObject *ta_py_history(PyObject *self, PyObject *args);
PyObject *ta_py_history_seen(PyObject *self, PyObject *args);
PyObject *ta_py_ledger_open(PyObject *self, PyObject *args);
PyObject *ta_py_ledger_caps(PyObject *self, PyObject *args);
PyObject *ta_py_ledger_heed(PyObject *self, PyObject *args);
PyObject *ta_py_ledger_state(PyObject *self, PyObject *args);
PyObject *ta_py_ledger_read(PyObject *self, PyObject *args);
PyObject *ta_py_usage_watch(PyObject *self, PyObject *args);
PyObject *ta_py_usage_unused(PyObject *self, PyObject *args);
PyObject *ta_py_usage_unwatch(PyObject *self, PyObject *args);
PyObject *ta_py_usage_enter(PyObject *self, PyObject *args);
PyObject *ta_py_usage_leave(PyObject *self, PyObject *args);
PyObject *ta_py_usage_between(PyObject *self, PyObject *args);
PyObject *ta_py_usage_step(PyObject *self, PyObject *args);
PyObject *ta_py_usage_enter_anew(PyObject *self, PyObject *args);
PyObject *ta_py_usage_due(PyObject *self, PyObject *args);
PyObject *ta_py_usage_told(PyObject *self, PyObject *args);
PyObject *ta_py_usage_set_category(PyObject *self, PyObject *args);
PyObject *ta_py_usage_look(PyObject *self, PyObject *args);
PyObject *ta_py_usage_phases(PyObject *self, PyObject *args);
PyObject *ta_py_usage_blocks(PyObject *self, PyObject *args);
PyObject *ta_py_usage_timeline(PyObject *self, PyObject *args);
PyObject *ta_py_usage_check(PyObject *self, PyObject *args);
PyObject *ta_py_usage_set_modules(PyObject *self, PyObject *args);
PyObject *ta_py_usage_tell_workspaces(PyObject *self, PyObject *args);
PyObject *ta_py_usage_modules(PyObject *self, PyObject *args);
PyObject *ta_py_place_enter(PyObject *self, PyObject *args);
PyObject *ta_py_place_leave(PyObject *self, PyObject *args);
PyObject *ta_py_place_at(PyObject *self, PyObject *args);
PyObject *ta_py_place_begin(PyObject *self, PyObject *args);
PyObject *ta_py_place_end(PyObject *self, PyObject *args);
PyObject *ta_py_place_now(PyObject *self, PyObject *args);
PyObject *ta_py_place_runs(PyObject *self, PyObject *args);
PyObject *ta_py_place_over(PyObject *self, PyObject *args);
PyObject *ta_py_guard_name(PyObject *self, PyObject *args);
PyObject *ta_py_guard_look(PyObject *self, PyObject *args);
PyObject *ta_py_set_spill(PyObject *self, PyObject *args);
PyObject *ta_py_host_memory(PyObject *self, PyObject *args);
PyObject *ta_py_host_trim(PyObject *self, PyObject *args);
PyObject *ta_py_step(PyObject *self, PyObject *args);
PyObject *ta_py_room(PyObject *self, PyObject *args);
PyObject *ta_py_region_open(PyObject *self, PyObject *args);
PyObject *ta_py_region_enter(PyObject *self, PyObject *args);
PyObject *ta_py_region_sleep(PyObject *self, PyObject *args);
PyObject *ta_py_region_wake(PyObject *self, PyObject *args);
PyObject *ta_py_region_get(PyObject *self, PyObject *args);
PyObject *ta_py_region_of(PyObject *self, PyObject *args);
PyObject *ta_py_pool_blocks(PyObject *self, PyObject *args);
PyObject *ta_py_keep(PyObject *self, PyObject *args);
PyObject *ta_py_profile(PyObject *self, PyObject *args);
PyObject *ta_py_pool_restoring(PyObject *self, PyObject *args);
PyObject *ta_py_mempool_limit(PyObject *self, PyObject *args);
PyObject *ta_py_mempool_held(PyObject *self, PyObject *args);
PyObject *ta_py_mempool_refusal(PyObject *self, PyObject *args);
PyObject *ta_py_mempool_settle(PyObject *self, PyObject *args);
PyObject *ta_py_mempool_capturing(PyObject *self, PyObject *args);
PyObject *ta_py_create(PyObject *self, PyObject *args, PyObject *names);
PyObject *ta_py_replay(PyObject *self, PyObject *args, PyObject *names);

#endif
