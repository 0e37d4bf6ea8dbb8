"""What test_hooks_simulated.py runs in processes on the simulated GPU, without torch: the
hooks are called as torch would call them.

    python hooks_simulated.py NAME"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
from collections.abc import Callable
from ctypes import c_bool, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

import torcharena._core as core

MIB = 1 << 20
hooks = ctypes.CDLL(core.library_path())
gpu = ctypes.CDLL(None)  # the preloaded library


class Id(ctypes.Structure):
    _fields_ = [("a", c_uint64), ("b", c_uint64)]


hooks.ta_torch_alloc.restype = c_void_p
hooks.ta_torch_alloc.argtypes = [c_size_t, c_int, c_void_p]
hooks.ta_torch_free.argtypes = [c_void_p, c_size_t, c_int, c_void_p]
hooks.ta_torch_free.restype = None
hooks.ta_torch_base_address.restype = c_void_p
hooks.ta_torch_base_address.argtypes = [c_void_p, c_void_p]
hooks.ta_torch_record_stream.argtypes = [c_void_p, c_void_p]
hooks.ta_torch_memory_fraction.argtypes = [ctypes.c_double, c_int]
hooks.ta_torch_pool_begin.argtypes = [c_int, Id, c_void_p]
hooks.ta_torch_pool_end.argtypes = [c_int, Id]
hooks.ta_torch_pool_release.argtypes = [c_int, Id]
gpu.ta_simcuda_violation.restype = c_char_p
gpu.ta_simcuda_fail.argtypes = [c_char_p, c_uint64, c_uint64, c_int]
gpu.ta_simcuda_used.restype = c_uint64


def alloc(size: int, stream: int = 0, device: int = 0) -> int:
    return hooks.ta_torch_alloc(size, device, stream) or 0


def free(address: int | None, size: int = 0, stream: int = 0, device: int = 0) -> None:
    hooks.ta_torch_free(address, size, device, stream)


def live(device: int = 0) -> tuple[int, int]:
    """Live blocks, and their bytes as asked for."""
    stats = core.stats(device)
    return stats["allocations"][0][0], stats["requested"][0][0]


def sound() -> None:
    assert core.check() is None, core.check()
    broken = gpu.ta_simcuda_violation(None)
    assert broken is None, broken.decode()


def sizes() -> None:
    """Every size from 1 byte to 1 MB: aligned, disjoint, counted; all returned at the end."""
    blocks = []
    for size in range(1, 1_000_000, 997):
        address = alloc(size)
        assert address and address % 512 == 0
        blocks.append((address, size))
    blocks.sort()
    for (one, size), (other, _) in itertools.pairwise(blocks):
        assert one + size <= other
    assert live() == (len(blocks), sum(size for _, size in blocks))
    for address, size in blocks:
        free(address, size)
    assert live() == (0, 0)
    assert core.trim() > 0
    assert core.stats(0)["reserved"][0] == 0
    sound()


def odd_frees() -> None:
    """NULL, strangers, twice, a stale size and stream: nothing happens. Size 0 is NULL."""
    assert alloc(0) == 0
    free(None)
    kept = alloc(5000)
    for address in (8, kept + 512, kept + (64 << 20), 1 << 46):
        free(address, 5000)
    other = alloc(5000)
    free(other, 999999999, stream=12345)
    free(other, 5000)
    assert live() == (1, 5000)
    assert core.messages() == []
    free(kept, 0, device=7)
    assert live() == (0, 0)
    sound()


def base_address() -> None:
    kept = alloc(10_000)
    size = c_size_t(0)
    for offset in (0, 1, 9_999):
        base = hooks.ta_torch_base_address(kept + offset, ctypes.byref(size))
        assert base == kept and size.value >= 10_000
    assert hooks.ta_torch_base_address(kept, None) == kept
    assert hooks.ta_torch_base_address(64, ctypes.byref(size)) == 64
    hooks.ta_torch_record_stream(64, None)  # a stranger's: nothing
    hooks.ta_torch_record_stream(None, None)
    sound()


def refusals() -> None:
    """Without torch a refusal is NULL; afterwards all is as before."""
    refused = 0
    for call in (b"create", b"map", b"set_access", b"reserve", b"enter"):
        for status in (1, 7):  # out of memory; another failure
            for k in range(1, 5):
                before = live(), core.stats(0)["reserved"][0]
                assert gpu.ta_simcuda_fail(call, k, 1000, status) == 0
                address = alloc(64 * MIB)
                assert gpu.ta_simcuda_fail(call, 0, 0, 0) == 0
                refused += address == 0
                free(address)
                assert core.check() is None
                core.trim()  # pages already made may stay as idle ones
                assert (live(), core.stats(0)["reserved"][0]) == before, (call, k)
                address = alloc(64 * MIB)
                assert address
                free(address)
                core.trim()
                sound()
    assert refused >= 20, refused
    assert alloc(1 << 45) == 0
    assert core.stats(0)["oom_count"] > 0


def fraction() -> None:
    _, total = core.device_memory(0)
    hooks.ta_torch_memory_fraction(0.5, 0)
    limit, source = core.limit(0)
    assert source == "fraction" and limit and total // 2 - 64 * MIB < limit <= total // 2
    assert alloc(total // 2 + MIB) == 0
    hooks.ta_torch_memory_fraction(1.0, 0)
    assert core.limit(0) == (None, "none")
    address = alloc(total // 2 + MIB)
    assert address
    free(address)
    hooks.ta_torch_empty_cache()
    assert core.stats(0)["reserved"][0] == 0
    sound()


MANAGER = ctypes.CFUNCTYPE(c_bool, c_void_p, c_void_p, c_int)
INVOKER = ctypes.CFUNCTYPE(c_bool, c_void_p, ctypes.POINTER(c_void_p))


class Function(ctypes.Structure):
    """A std::function<bool(cudaStream_t)> as libstdc++ lays it out."""

    _fields_ = [("data", c_void_p * 2), ("manager", MANAGER), ("invoker", INVOKER)]


def pool_filter() -> None:
    """The filter is cloned at begin, asked at each allocation, destroyed once at end."""
    operations: list[int] = []
    asked: list[int] = []

    def manage(to: int, from_: int, operation: int) -> bool:
        operations.append(operation)
        if operation == 2:
            ctypes.memmove(to, from_, 16)
        return False

    def invoke(data: int, stream: Any) -> bool:
        assert c_uint64.from_address(data).value == 4711
        asked.append(stream[0] or 0)
        return (stream[0] or 0) == 0

    manager, invoker = MANAGER(manage), INVOKER(invoke)
    for number in range(3):
        operations.clear()
        asked.clear()
        function = Function((c_void_p * 2)(4711, 0), manager, invoker)
        pool = Id(0, number + 1)
        hooks.ta_torch_pool_begin(0, pool, ctypes.addressof(function))
        assert operations == [2]
        ctypes.memset(ctypes.addressof(function), 0, ctypes.sizeof(function))
        inside = alloc(3 * MIB)
        outside = alloc(3 * MIB, stream=2)
        assert inside and outside and asked == [0, 2]
        hooks.ta_torch_pool_end(0, pool)
        assert operations == [2, 3]
        after = alloc(3 * MIB)
        assert asked == [0, 2]
        owners = {
            block["address"]: segment["pool"]
            for segment in core.snapshot(0)
            for block in segment["blocks"]
            if block["state"] == "live"
        }
        assert owners[inside] == (0, number + 1)
        assert owners[outside] == owners[after] == (0, 0)
        for address in (inside, outside, after):
            free(address)
        hooks.ta_torch_pool_release(0, pool)
        sound()
    hooks.ta_torch_pool_end(0, Id(0, 99))  # never begun: refused, no crash
    hooks.ta_torch_pool_release(0, Id(0, 99))
    assert live() == (0, 0)


def child_of_fork(function: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            function()
        except BaseException as error:
            print(error, file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def fork() -> None:
    """A child's free does nothing to the parent; its alloc fails; neither hangs."""
    kept = [alloc(3 * MIB) for _ in range(8)]

    def child() -> None:
        assert core.forked()
        for address in kept:
            free(address)
        assert alloc(MIB) == 0
        hooks.ta_torch_empty_cache()
        hooks.ta_torch_record_stream(kept[0], None)
        core.history_stop()
        core.record_stop()
        try:
            core.create()
        except core.Error as error:
            assert "forked" in str(error), error
        else:
            raise AssertionError("created in a child")

    core.history_start(100)
    assert child_of_fork(child) == 0
    assert not core.forked()
    assert live() == (8, 8 * 3 * MIB)
    for address in kept:
        free(address)
    sound()


def numbers() -> None:
    """Snapshots tile, the history tells, peaks are reset."""
    core.history_start(1000)
    blocks = [alloc((i + 1) * 700_000) for i in range(6)]
    free(blocks[2])
    for segment in core.snapshot():
        place = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == place
            place += block["size"]
        assert place == segment["address"] + segment["size"]
    kinds = [event["kind"] for event in core.history()]
    assert kinds.count("alloc") == 6 and kinds.count("free") == 1
    assert kinds.count("free_done") == 1 and kinds.count("map") >= 1
    times = [event["time_us"] for event in core.history()]
    assert times == sorted(times)
    core.history_stop()
    assert core.history() == []
    peak = core.stats(0)["requested"][0][1]
    assert peak == 700_000 * 21
    core.reset_peaks(0)
    now = core.stats(0)["requested"][0]
    assert now[0] == now[1] == 700_000 * 18
    core.reset_accumulated(0)
    assert core.stats(0)["requested"][0][3] == 0
    facts = core.probe(0)
    assert facts["reason"] == "" and facts["vmm"] and facts["total"] > 0
    assert facts["uuid"].startswith("GPU-")
    used = core.stats(0)["reserved"][0]
    free_bytes, total = core.device_memory(0)
    assert total == facts["total"] and free_bytes <= total - used
    sound()


def recording(folder: str) -> None:
    path = os.path.join(folder, "x.trace")
    core.record_start(path)
    try:
        core.record_start(path)
    except core.Error as error:
        assert "under way" in str(error), error
    block = alloc(4 * MIB)
    core.mark("step")
    free(block)
    written = core.record_stop()
    assert written["lines"] == 3
    with open(path, "rb") as file:
        figures = core.replay(file.read())
    assert figures["events"] == 3 and figures["peak_requested"] == 4 * MIB
    try:
        core.record_start(os.path.join(folder, "none", "x"))
    except core.Error as error:
        assert "none/x" in str(error), error
    else:
        raise AssertionError("recording to a folder that is not there")


if __name__ == "__main__":
    core.create()
    globals()[sys.argv[1]](*sys.argv[2:])
