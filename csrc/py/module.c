/* module.c - torcharena._core: the method table, nothing else.
 *
 * Called by Python with the GIL held. The functions are in the other files of this folder,
 * by topic; _core.pyi says what each takes and gives. */
#include "convert.h"

#define NONE(name, text)                                                                 \
    {                                                                                    \
#name, ta_py_##name, METH_NOARGS, text                                           \
    }
#define SOME(name, text)                                                                 \
    {                                                                                    \
#name, ta_py_##name, METH_VARARGS, text                                          \
    }
static PyMethodDef methods[] = {
    /* setup.c */
    NONE(hooks, "hooks() -> dict: addresses of the functions for torch, by hook."),
    NONE(library_path, "library_path() -> str: this library's file."),
    {"create", (PyCFunction)(void (*)(void))ta_py_create, METH_VARARGS | METH_KEYWORDS,
     "create(fallback=False, page_bytes=0, slack=0.0, guard=False)"},
    NONE(created, "created() -> bool: whether the process has its allocator."),
    NONE(forked, "forked() -> bool: whether this is a child of the creating process."),
    SOME(probe, "probe(device) -> dict: what the driver says of a device."),
    NONE(driver_problem, "driver_problem() -> str | None: why there is no driver."),
    NONE(torch_install, "torch_install(): complete the allocator object of torch."),
    SOME(keep, "keep(object): it lives as long as the process"),
    NONE(torch_status, "torch_status() -> dict: what was found of torch, by item."),
    NONE(messages,
         "messages() -> list[str]: what C code had to say since the last call."),
    /* numbers.c */
    SOME(set_limit, "set_limit(device, source, bytes | None)"),
    SOME(limit, "limit(device) -> (bytes | None, source)"),
    SOME(stats, "stats(device) -> dict"),
    SOME(reset_peaks, "reset_peaks(device)"),
    SOME(reset_accumulated, "reset_accumulated(device)"),
    SOME(device_memory, "device_memory(device) -> (free, total), in bytes"),
    SOME(device_used, "device_used(device) -> bool"),
    SOME(trim, "trim(device=-1) -> int: bytes given back to the driver"),
    NONE(check, "check() -> str | None: the first invariant that does not hold"),
    SOME(mark, "mark(text): a mark for recordings and histories"),
    /* ledger.c */
    SOME(ledger_open, "ledger_open(device, directory, uuid, label, tenant, claimed, "
                      "device_cap, tenant_cap, mode) -> dict"),
    SOME(ledger_caps, "ledger_caps(device, device_cap, tenant_cap, mode) -> int: bytes "
                      "given back"),
    SOME(ledger_heed, "ledger_heed(device) -> int: bytes given back"),
    SOME(ledger_state, "ledger_state(device) -> dict"),
    SOME(ledger_read, "ledger_read(directory, uuid) -> list of dicts, one a process"),
    /* spill.c */
    SOME(set_spill, "set_spill(host_bytes | None, net=True)"),
    NONE(host_memory, "host_memory() -> int | None: bytes that could still be pinned"),
    NONE(host_trim, "host_trim() -> int: bytes of pinned memory given back"),
    SOME(step, "step(device=-1) -> dict: a step's mark"),
    SOME(
        room,
        "room(device) -> (allocated, its highest since, reserved less idle, cap | None)"),
    SOME(region_open, "region_open(name, page_bytes, on_host, touch_host) -> int"),
    SOME(region_enter, "region_enter(id) -> int: what this thread was in"),
    SOME(region_sleep, "region_sleep(id, keep) -> dict"),
    SOME(region_wake, "region_wake(id) -> dict"),
    SOME(region_get, "region_get(id) -> dict | None"),
    SOME(region_of, "region_of(address) -> (id, asleep)"),
    /* mempool.c */
    SOME(mempool_limit, "mempool_limit(region, device, bytes | None)"),
    SOME(mempool_held, "mempool_held(region, device) -> int: bytes of segments"),
    NONE(mempool_refusal,
         "mempool_refusal() -> (str, device, bytes) | None: this thread's last, once"),
    NONE(mempool_settle, "mempool_settle(): what was freed during a capture goes"),
    NONE(mempool_capturing, "mempool_capturing() -> bool: a stream of torch's is"),
    /* snapshot.c */
    SOME(snapshot, "snapshot(device=-1) -> list of segments with their blocks"),
    /* pools.c */
    SOME(pool_blocks, "pool_blocks(device, a, b) -> list of (address, bytes, requested, "
                      "stream): what lives in the graph pool (a, b)"),
    SOME(profile, "profile(begins): a profiler of torch begins, or ends"),
    SOME(pool_restoring, "pool_restoring(a, b, blocks, call): calls it while torch's "
                         "setCheckpointPoolState makes these live"),
    /* usage.c */
    NONE(usage_watch, "usage_watch(): count who uses what from now on"),
    NONE(usage_unwatch, "usage_unwatch(): count nothing until usage_watch()"),
    SOME(usage_enter, "usage_enter(name) -> bytes for usage_leave"),
    SOME(usage_enter_anew,
         "usage_enter_anew(name): usage_between(None), then usage_enter"),
    SOME(usage_leave, "usage_leave(bytes, between=None, backward=False) -> bool"),
    SOME(usage_between, "usage_between(name | None): the phase outside all phases"),
    NONE(usage_step, "usage_step() -> bool: whether messages() may say something"),
    NONE(usage_due, "usage_due() -> bool: whether all categories are to be told"),
    NONE(usage_told, "usage_told(): all categories were"),
    SOME(usage_unused, "usage_unused(bytes): of graphs that will not run backward"),
    SOME(usage_set_category,
         "usage_set_category(device, addresses, category) -> int: blocks found"),
    SOME(usage_look, "usage_look(device) -> dict"),
    SOME(usage_phases, "usage_phases(device) -> list of dicts"),
    SOME(usage_timeline, "usage_timeline(device) -> (us of an interval, samples)"),
    SOME(usage_blocks, "usage_blocks(device, moment) -> list of tuples"),
    NONE(usage_check, "usage_check() -> str | None: the first invariant that fails"),
    SOME(usage_set_modules,
         "usage_set_modules(device, addresses, modules) -> int: blocks found"),
    SOME(usage_modules, "usage_modules(device) -> {module: (allocations, bytes)}"),
    SOME(usage_tell_workspaces,
         "usage_tell_workspaces(locked) -> int: blocks of cuBLAS that were found"),
    /* place.c */
    SOME(place_enter, "place_enter(module, outermost=False): this thread is in it"),
    SOME(place_leave, "place_leave(module)"),
    SOME(place_at, "place_at(stack): this thread is at these lines"),
    NONE(place_begin, "place_begin(): allocations remember where they were made"),
    NONE(place_end, "place_end(): as often as begun"),
    NONE(place_now, "place_now() -> (module, stack)"),
    SOME(place_runs, "place_runs(module, stack): a node of autograd's runs, made there"),
    NONE(place_over, "place_over(): another forward or backward pass begins"),
    SOME(guard_name, "guard_name(stack, place): what findings call the lines"),
    NONE(guard_look, "guard_look(): look at all guarded blocks, for messages()"),
    /* recording.c */
    SOME(record_start, "record_start(path): write every event to a file"),
    NONE(record_stop, "record_stop() -> dict of lines and bytes written"),
    SOME(history_start, "history_start(n): keep the newest n events"),
    NONE(history_stop, "history_stop()"),
    NONE(history, "history() -> list of events, the oldest first"),
    NONE(history_seen, "history_seen() -> int: events since it began"),
    {"replay", (PyCFunction)(void (*)(void))ta_py_replay, METH_VARARGS | METH_KEYWORDS,
     "replay(text, limit=None, limit_ratio=0.0, page_bytes=0, null_driver=False, ...) -> "
     "dict of figures"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "torcharena._core",
    "The allocator's C core. Internal: use torcharena.",
    -1,
    methods,
    NULL,
    NULL,
    NULL,
    NULL,
};

PyMODINIT_FUNC PyInit__core(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    PyObject *error = ta_error_class();
    Py_XINCREF(error);
    if (error == NULL || PyModule_AddObject(module, "Error", error) < 0) {
        Py_XDECREF(error);
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
