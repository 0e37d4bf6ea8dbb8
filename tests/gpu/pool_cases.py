"""Pools of the arena beside torch's own allocator: one function a case.

    python pool_cases.py NAME [ARGUMENT...]

On the simulated GPU copies are done and kernels are not, so patterns come from the host there
too; the oracle watches what is unmapped while work may touch it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torcharena
from cases import MIB, REAL, assert_sound, libraries, watch
from torcharena import _core
from torcharena.integrations.torch_memory_saver import torch_memory_saver
from torcharena.pools import pools
from torcharena.pools.pools import outside

CAPTURES = not hasattr(torch._C, "_MemPoolContext")  # torch 2.7 captures beside a pool
COUNT, SIZE = (100, 500_000) if REAL else (40, 60_000)


def start(tag: str, **options: Any) -> torcharena.Pool:
    """A pool that has been used, and the oracle awake."""
    pool = torcharena.pool(tag, **options)
    with pool:
        pass
    watch()
    if not REAL:
        libraries()[1].ta_simcuda_allow_moves(1)
    return pool


def together(*cases: str) -> None:
    """Several cases in one process, each as though alone: loading torch is most of one."""
    for case in cases:
        name, _, argument = case.partition(":")
        globals()[name](*([argument] if argument else []))
        gc.collect()
        torch.cuda.empty_cache()
        assert_sound()


def region(tensor: torch.Tensor) -> int:
    """The number of the region that holds it; 0: none."""
    return int(_core.region_of(tensor.data_ptr())[0])


def free() -> int:
    return int(torch.cuda.mem_get_info()[0])


@contextmanager
def raises(kind: type[BaseException], *texts: str) -> Iterator[list[str]]:
    """Gives the list that the error's text comes to stand in."""
    said: list[str] = []
    try:
        yield said
    except kind as error:
        said.append(str(error))
        assert all(text in str(error) for text in texts), error
    else:
        raise AssertionError(f"no {kind.__name__} with {texts}")


def pattern(count: int, size: int, seed: int = 0) -> list[torch.Tensor]:
    """On the host, of several types and sizes."""
    torch.manual_seed(seed)
    types = [torch.float32, torch.bfloat16, torch.int8, torch.int64]
    return [
        torch.randint(-100, 100, (size // 4 * (1 + i % 9),)).to(types[i % 4])
        for i in range(count)
    ]


def same(there: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for one, other in zip(there, wanted, strict=True):
        assert torch.equal(one.cpu(), other)


# --- sleeping and waking ---------------------------------------------------------------------
def values(touch: str = "") -> None:
    """Tensors and views of them sleep while others fill their room, and wake to the bit."""
    pool = start(f"values{touch}", touch=touch or None)
    wanted = pattern(COUNT, SIZE)
    with pool:
        held = [one.cuda() for one in wanted]
        views = [one[3 : len(one) // 2] for one in held]
    addresses = [one.data_ptr() for one in held]
    assert {region(one) for one in held} == {pool._number}
    for turn in range(2):
        had, before = pool.stats(), free()
        freed = pool.sleep()
        assert freed == had["device_bytes"] > 0 and pool.asleep
        assert REAL or free() - before == freed
        assert pool.sleep() == 0
        assert pool.stats()["host_bytes"] == freed and pool.stats()["device_bytes"] == 0
        if touch:
            same(held, wanted)
        else:
            with raises(RuntimeError, "sleeps", f"values{touch}"):
                held[0] + 1
        others = [torch.full((freed // 8,), turn, dtype=torch.uint8, device="cuda")]
        assert region(others[0]) == 0
        del others
        with raises(RuntimeError, "wake_up()"), pool:
            pass
        assert pool.wake_up() == freed and pool.wake_up() == 0 and not pool.asleep
        assert addresses == [one.data_ptr() for one in held]
        same(held, wanted)
        same(views, [one[3 : len(one) // 2] for one in wanted])
        held[1].copy_(wanted[1].flip(0))  # and what changes stays changed
        wanted[1] = wanted[1].flip(0)
    assert torcharena.sleep([pool.tag], keep=False) == freed
    assert pool.stats()["dropped_bytes"] == freed and pool.stats()["host_bytes"] == 0
    assert torcharena.wake_up(pool.tag) == freed
    held[0].copy_(wanted[0])
    same(held[:1], wanted[:1])


def no_room() -> None:
    """Waking without room is out of memory, and it sleeps on; torch's idle cache goes first."""
    pool = start("no_room")
    with pool:
        held = torch.arange(24 * MIB // 4, dtype=torch.int32).cuda()
    with pool:
        more = torch.zeros(40 * MIB, dtype=torch.uint8, device="cuda")
    wanted = held.cpu()
    freed = pool.sleep()
    torch.cuda.empty_cache()
    filler = torch.empty(free() - freed // 2, dtype=torch.uint8, device="cuda")
    with raises(torch.OutOfMemoryError, "still sleeps", "no_room"):
        pool.wake_up()
    assert pool.asleep and pool.stats()["host_bytes"] == freed
    del filler  # torch keeps it, for nobody
    assert pool.wake_up() == freed
    same([held], [wanted])
    del more


def refused() -> None:
    """What cannot be is an error that names the pool and the remedy, and nothing changes."""
    pool = start("refused", limit="48MiB")
    assert torcharena.pool("refused") is pool
    with raises(ValueError, "limit=48MiB"):
        torcharena.pool("refused", limit="1GiB")
    with raises(ValueError):
        torcharena.pool("")
    with raises(ValueError, "touch"):
        torcharena.pool("x", touch="device")
    with raises(ValueError, "limit"):
        torcharena.pool("x", limit=0)
    with raises(ValueError, "there is no such region"):
        torcharena.sleep("nobody")
    with pool:
        held = torch.zeros(30 * MIB, dtype=torch.uint8, device="cuda")
        with raises(RuntimeError, "inside `with", "refused"):
            pool.sleep()
    with raises(torch.OutOfMemoryError, "CUDA out of memory.", "limit=", "refused"), pool:
        torch.zeros(30 * MIB, dtype=torch.uint8, device="cuda")
    assert pool.stats()["reserved_bytes"] == 30 * MIB
    # What another error says is not the pool's: one that was caught left nothing behind.
    for outer, size in ((False, 1 << 50), (True, 30 * MIB)):
        with raises(torch.OutOfMemoryError) as caught, pool:
            with contextlib.suppress(torch.OutOfMemoryError):
                torch.zeros(30 * MIB, dtype=torch.uint8, device="cuda")
            if outer:
                raise torch.OutOfMemoryError("CUDA out of memory. It is somebody else's.")
            torch.empty(size, dtype=torch.uint8, device="cuda")
        assert not outer or "limit=" not in caught[0], caught
        assert "30 MiB more" not in caught[0], caught
    del held
    gc.collect()
    assert pool.empty_cache() > 0 or not CAPTURES
    with pool:
        held = torch.zeros(
            40 * MIB if CAPTURES else MIB, dtype=torch.uint8, device="cuda"
        )
    assert region(held) == pool._number
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    out = torch.zeros_like(held)
    with torch.cuda.graph(graph):
        out.copy_(held)
        with raises(RuntimeError, "captured", "refused"):
            pool.sleep()
        with torch.cuda.stream(stream), raises(RuntimeError, "captured"):
            pool.sleep()  # the stream that is current now captures nothing
    assert not pool.asleep
    graph.replay()
    pool.sleep()
    assert pool.asleep
    pool.wake_up()


# --- graphs ---------------------------------------------------------------------------------
def graphs() -> None:
    """Graphs over a pool's tensors, and captured into the pool, replay after waking."""
    pool = start("graphs")
    wanted = torch.arange(3 * MIB, dtype=torch.int32)
    with pool:
        source = wanted.cuda()
    beside = torch.zeros_like(source)
    graph, inner = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        beside.copy_(source)
    if CAPTURES:
        with torch.cuda.graph(inner, pool=pool.id):
            captured = torch.empty_like(source)
            captured.copy_(source)
        assert region(captured) == pool._number
    else:
        with raises(RuntimeError, "2.9"):
            assert pool.id
    for turn in range(2):
        pool.sleep()
        pool.wake_up()
        source.copy_(wanted + turn)
        graph.replay()
        torch.cuda.synchronize()
        same([beside], [wanted + turn])
        if CAPTURES:
            captured.zero_()
            inner.replay()
            torch.cuda.synchronize()
            same([captured], [wanted + turn])
    if CAPTURES:
        del captured  # the graph keeps its memory
        pool.sleep()
        pool.wake_up()
        inner.replay()
        torch.cuda.synchronize()
        inner.reset()
    graph.reset()


# --- lifetimes ------------------------------------------------------------------------------
def lifetimes() -> None:
    """What torch caches of a pool goes when it sleeps; what lives stays; rounds do not grow."""
    pool = start("lifetimes")
    keeper = torch.arange(6 * MIB // 4, dtype=torch.int32)
    with pool:
        kept = keeper.cuda()
        dead = torch.zeros(60 * MIB, dtype=torch.uint8, device="cuda")
    big = pool.stats()
    assert big["live_bytes"] == 66 * MIB and big["reserved_bytes"] == 80 * MIB
    del dead
    torch.cuda.empty_cache()  # leaves a pool's alone
    assert pool.stats()["reserved_bytes"] == 80 * MIB
    if CAPTURES:
        pool.sleep()
        assert pool.stats()["reserved_bytes"] == 20 * MIB
        assert pool.stats()["host_bytes"] == 32 * MIB
        pool.wake_up()
    held = []
    seen = []
    for turn in range(6):
        with pool:
            held = [torch.full((9 * MIB,), turn, dtype=torch.uint8, device="cuda")]
            held.append(torch.full((30 * MIB,), turn, dtype=torch.uint8, device="cuda"))
        pool.sleep()
        held.pop()  # freed while it sleeps
        torch.cuda.empty_cache()
        pool.wake_up()
        same([kept], [keeper])
        seen.append(pool.stats()["device_bytes"])
    assert seen[-1] <= max(seen[:3]), seen
    del kept, held
    gc.collect()
    pool.sleep()
    torch.cuda.empty_cache()  # its last segments, while it sleeps
    pool.wake_up()
    pool.empty_cache()
    if not CAPTURES:
        return
    assert pool.stats()["reserved_bytes"] == pool.stats()["device_bytes"] == 0
    assert "nothing held" in repr(pool)
    with pool:
        kept = keeper.cuda()
        dead = torch.zeros(60 * MIB, dtype=torch.uint8, device="cuda")
    del dead
    with start("another"):  # a pool's end inside another one
        pool.sleep()
        assert pool.stats()["reserved_bytes"] == 20 * MIB
        del kept
        torch.cuda.empty_cache()  # a segment whose bytes are on the host
        gone = pool.stats()
        pool.wake_up()
    assert gone["reserved_bytes"] == pool.stats()["device_bytes"] == 0
    assert gone["host_bytes"] == 0


def busy() -> None:
    """A segment that work on several streams still uses is given back after it."""
    if not CAPTURES:
        return
    pool = start("busy")
    side = torch.cuda.Stream()
    size = (256 if REAL else 4) * MIB
    for _ in range(3):
        with pool:
            held = torch.zeros(size, dtype=torch.uint8, device="cuda")
            with torch.cuda.stream(side):
                there = torch.zeros(size, dtype=torch.uint8, device="cuda")
        result = torch.empty_like(held)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(20):
                result.copy_(held)
                there.copy_(held)
        held.record_stream(side)
        del held, there
        pool.empty_cache()
        assert pool.stats()["device_bytes"] == 0
        side.synchronize()


def parked() -> None:
    """Freed during a capture, which cannot be waited for: it goes when that has ended."""
    pool = start("parked")
    hooks = libraries()[0]
    alloc = getattr(hooks, f"ta_mempool_alloc_{pool._number}")
    alloc.restype, alloc.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p],
    )
    hooks.ta_mempool_free.restype = None
    hooks.ta_mempool_free.argtypes = [ctypes.c_void_p, *alloc.argtypes]
    graph = torch.cuda.CUDAGraph()
    source = torch.zeros(10, device="cuda")
    with torch.cuda.graph(graph):
        stream = torch.cuda.current_stream().cuda_stream
        address = alloc(2 * MIB, 0, stream)
        assert address and _core.mempool_held(pool._number, 0) == 2 * MIB
        torch.empty_like(source).copy_(source)
        stranger = torch.cuda.Stream()  # of which the arena knows nothing
        stranger.wait_stream(torch.cuda.current_stream())
        hooks.ta_mempool_free(address, 2 * MIB, 0, stream)
        torch.cuda.current_stream().wait_stream(stranger)
        assert _core.mempool_held(pool._number, 0) == 2 * MIB
    graph.replay()
    _core.mempool_settle()
    assert _core.mempool_held(pool._number, 0) == pool.stats()["device_bytes"] == 0
    hooks.ta_mempool_free(None, 0, 0, None)
    hooks.ta_mempool_free(0x1000, 0, 0, None)  # a stranger's
    assert not alloc(0, 0, None)


# --- threads --------------------------------------------------------------------------------
def threads() -> None:
    """A pool is the thread's that entered it; pools nest; a thread inside holds off sleep."""
    one, two = start("one"), start("two")
    found: dict[str, Any] = {}

    @one
    def inside() -> torch.Tensor:
        return torch.zeros(MIB, device="cuda")

    def elsewhere() -> None:
        found["thread"] = torch.zeros(MIB, device="cuda")
        with two:
            found["own"] = torch.zeros(MIB, device="cuda")
            with one:
                found["nested"] = torch.zeros(MIB, device="cuda")
                with outside():
                    found["outside"] = torch.zeros(MIB, device="cuda")
            found["again"] = torch.zeros(MIB, device="cuda")
            ready.set()
            go_on.wait(60)

    ready, go_on = threading.Event(), threading.Event()
    other = threading.Thread(target=elsewhere)
    if not CAPTURES:  # torch 2.7 routes by device: one thread at a time
        other.start()
        assert ready.wait(60)
    else:
        with one:
            other.start()
            assert ready.wait(60)
            found["mine"] = inside()
    with raises(RuntimeError, "inside `with"):
        two.sleep()
    go_on.set()
    other.join()
    where = {name: region(tensor) for name, tensor in found.items()}
    expected = {
        "thread": 0,
        "own": two._number,
        "nested": one._number,
        "outside": 0,
        "again": two._number,
    }
    assert where == expected | ({"mine": one._number} if CAPTURES else {}), where
    assert torcharena.sleep(["one", "two"]) > 0 and one.asleep and two.asleep
    assert torcharena.wake_up() > 0
    with raises(ZeroDivisionError), one:  # leaves it as it was
        assert 1 // 0
    assert region(torch.zeros(MIB, device="cuda")) == 0
    found.clear()


def out_of_order() -> None:
    """Left in another order than entered, the innermost of those still entered counts; one
    that this thread is not in cannot be left by it."""
    one, two = start("first"), start("second")

    def now() -> int:
        return region(torch.zeros(MIB, device="cuda"))

    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    assert now() == two._number
    one.sleep()  # nobody is inside, and nothing is given what sleeps
    assert now() == two._number
    one.wake_up()
    with outside():
        two.__exit__(None, None, None)
        assert now() == 0
    assert now() == 0
    one.__enter__()
    wrong: list[str] = []

    def leaves() -> None:
        try:
            one.__exit__(None, None, None)
        except RuntimeError as error:
            wrong.append(str(error))

    other = threading.Thread(target=leaves)
    other.start()
    other.join()
    assert len(wrong) == 1 and "'first'" in wrong[0] and "thread" in wrong[0], wrong
    assert now() == one._number
    with raises(RuntimeError, "inside `with"):
        one.sleep()
    one.__exit__(None, None, None)
    with raises(RuntimeError, "'first'"):
        one.__exit__(None, None, None)
    assert now() == 0
    assert one.sleep() == one.wake_up()


# --- failures -------------------------------------------------------------------------------
def driver_fails() -> None:
    """Every driver call of allocating, sleeping and waking fails once: whole or not at all."""
    if REAL:
        return
    gpu = libraries()[1]
    gpu.ta_simcuda_fail.argtypes = [
        ctypes.c_char_p,
        ctypes.c_uint64,
        ctypes.c_uint64,
        ctypes.c_int,
    ]
    pool = start("driver_fails")
    wanted = pattern(6, 3 * MIB)

    def fails(call: str, code: int, what: Callable[[], Any]) -> None:
        assert gpu.ta_simcuda_fail(call.encode(), 1, 1, code) == 0
        try:
            what()
        except (torch.OutOfMemoryError, RuntimeError):
            failed.append(call)
        finally:
            gpu.ta_simcuda_fail(call.encode(), 0, 0, 0)

    failed: list[str] = []
    held: list[torch.Tensor] = []

    def fill() -> None:
        with pool:
            held.extend(one.cuda() for one in wanted)

    for call in ("reserve", "create", "map", "set_access"):
        for status in (1, 7):  # out of memory; another failure
            held.clear()
            pool.empty_cache()
            fails(call, status, fill)
            assert_sound()
    held.clear()
    fill()
    for call in ("create", "unmap", "map", "set_access", "copy"):
        for move in (pool.sleep, pool.wake_up):
            fails(call, 7, move)
            assert_sound()
            move()
        same(held, wanted)
    assert len(failed) >= 4, failed


def host_full() -> None:
    """More than host memory may hold: refused, nothing has changed; dropping needs none."""
    pool = start("host_full", spill="64MiB")
    with raises(ValueError, "one budget"):
        start("another", spill="1GiB")
    wanted = torch.arange(80 * MIB // 4, dtype=torch.int32)
    with pool:
        held = wanted.cuda()
    before = pool.stats()
    with raises(RuntimeError, "budget of host memory"):
        pool.sleep()
    assert pool.stats() == before and not pool.asleep
    same([held], [wanted])
    assert pool.sleep(keep=False) == before["device_bytes"]
    pool.wake_up()


def no_host_pages() -> None:
    """Where the driver makes no pages of host memory."""
    with raises(RuntimeError, "no pages of host memory"):
        start("asked", spill="1GiB")
    pool = start("not asked")
    with pool:
        held = torch.zeros(MIB, device="cuda")
    with raises(RuntimeError, "no pages of host memory"):
        pool.sleep()
    assert not pool.asleep and pool.sleep(keep=False) > 0
    pool.wake_up()
    held.zero_()
    assert_sound()


# --- several devices, the arena, the process's life -----------------------------------------
def two_devices() -> None:
    """Entered where both are in use it is of both, and both sleep."""
    pool = torcharena.pool("both")
    wanted = torch.arange(3 * MIB, dtype=torch.int32)
    plain = wanted.to("cuda:1")
    with torch.cuda.device(1), pool:
        assert region(torch.zeros(1, device="cuda")) == pool._number
    watch()
    if not REAL:
        libraries()[1].ta_simcuda_allow_moves(1)
    with pool:
        first, second = wanted.cuda(), wanted.to("cuda:1")
    assert region(first) == pool._number
    assert region(second) == (pool._number if CAPTURES else 0)
    before = [torch.cuda.mem_get_info(i)[0] for i in range(2)]
    pool.sleep()
    after = [torch.cuda.mem_get_info(i)[0] for i in range(2)]
    assert all(b > a for a, b in zip(before, after, strict=True)), (before, after)
    pool.wake_up()
    same([first, second, plain], [wanted] * 3)
    # A share of a device is of each one's own memory.
    totals = [_core.device_memory(i)[1] for i in range(2)]
    tell, core = _core.device_memory, pools.core()

    def smaller(device: int) -> tuple[int, ...]:
        return (tell(device)[0], totals[device] // (1 + device), *tell(device)[2:])

    core.device_memory = smaller
    half = torcharena.pool("half", limit="0.4%")
    with torch.cuda.device(1):
        said = half.stats()["limit_bytes"]
    core.device_memory = tell
    assert said == totals[1] // 2 * 4 // 1000, (said, totals)
    size = totals[0] * 3 // 1000  # more than 0.4% of half of it
    with half:
        torch.zeros(size, dtype=torch.uint8, device="cuda:0")
    if CAPTURES:
        with raises(torch.OutOfMemoryError, "limit=", "half", "on GPU 1"), half:
            torch.zeros(size, dtype=torch.uint8, device="cuda:1")
    assert_sound()


def enabled() -> None:
    """Where the arena is the process's allocator, a pool is a region of it."""
    pool = torcharena.pool("weights")  # made before: it looks at CUDA when it is used
    torcharena.enable(spill="1GiB")
    wanted = torch.arange(MIB, dtype=torch.int32)
    with pool:
        held = wanted.cuda()
        with torcharena.region("inner"), outside():
            inner = wanted.cuda()
    watch()
    if not REAL:
        libraries()[1].ta_simcuda_allow_moves(1)
    assert region(held) == pool._number and region(inner) not in (0, pool._number)
    _regions_out_of_order(pool)
    with raises(RuntimeError, "pool="):
        assert pool.id
    with raises(ValueError, "set_limit"), torcharena.pool("capped", limit="1GiB"):
        pass
    # torch_memory_saver: what a graph captures has no pool of its own to sleep in.
    graph = torch.cuda.CUDAGraph()
    for asked in ({"tag": "graph"}, {"enable_cpu_backup": True}):
        captured = torch_memory_saver.cuda_graph(graph, **asked)
        with raises(RuntimeError, next(iter(asked)), "cuda_graph", "enable()"), captured:
            pass
    with torch_memory_saver.cuda_graph(graph):
        held + 1
    del graph
    assert pool.stats()["live_bytes"] == 4 * MIB
    assert torcharena.sleep("weights") > 0 and pool.asleep
    assert pool.wake_up() > 0
    same([held], [wanted])
    assert pool.empty_cache() >= 0
    assert_sound()


def _regions_out_of_order(first: torcharena.Pool) -> None:
    """Left in another order than entered, as pools beside torch's own allocator may be."""

    def now() -> int:
        return region(torch.zeros(MIB, dtype=torch.uint8, device="cuda"))

    second, third = torcharena.region("second"), torcharena.pool("third")
    outermost = now()
    first.__enter__()
    second.__enter__()
    inner = now()
    first.__exit__(None, None, None)
    assert now() == inner != first._number
    third.__enter__()
    first.__enter__()
    assert now() == first._number
    second.__exit__(None, None, None)
    third.__exit__(None, None, None)
    assert now() == first._number
    said: list[str] = []

    def leaves(one: Any) -> None:
        with raises(RuntimeError, "the thread that entered") as texts:
            one.__exit__(None, None, None)
        said.extend(texts)

    for one in (first, second):
        thread = threading.Thread(target=leaves, args=(one,))
        thread.start()
        thread.join()
    assert "region('weights')" in said[0] and "region('second')" in said[1], said
    first.__exit__(None, None, None)
    assert now() == outermost


def environment() -> None:
    """TORCHARENA_LIMIT and TORCHARENA_SPILL hold for pools where nothing enables the arena."""
    pool = start("environment")
    with raises(torch.OutOfMemoryError, "torcharena's pool", "environment"), pool:
        torch.zeros(100 * MIB, dtype=torch.uint8, device="cuda")
    torch.zeros(100 * MIB, dtype=torch.uint8, device="cuda")
    with pool:
        held = torch.zeros(50 * MIB, dtype=torch.uint8, device="cuda")
    with raises(RuntimeError, "budget of host memory"):
        pool.sleep()
    assert not torcharena.enabled() and region(held) == pool._number
    with raises(RuntimeError, "comes after torcharena.enable()"):
        torcharena.memory_stats()
    with raises(RuntimeError, "before CUDA is first used"):
        torcharena.enable()


def no_budget() -> None:
    """TORCHARENA_SPILL=0: no host memory, for pools too."""
    pool = start("no budget")
    with pool:
        held = torch.zeros(MIB, device="cuda")
    with raises(RuntimeError, "budget of host memory"):
        pool.sleep()
    assert pool.stats()["host_bytes"] == 0 and not pool.asleep
    held.zero_()
    assert pool.sleep(keep=False) > 0
    pool.wake_up()


def end(how: str) -> None:
    """The process ends with everything in use: exit code 0, and nothing said."""
    pool = start("end")
    with pool:
        globals()["held"] = torch.zeros(3 * MIB, device="cuda")
    if CAPTURES:
        graph = globals()["graph"] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool.id):
            globals()["out"] = torch.zeros(3 * MIB, device="cuda")
    if how == "asleep":
        pool.sleep()
    elif how == "inside":
        pool.__enter__()
    elif how == "forked":
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with raises(RuntimeError, "forked child", "spawn"), pool:
                    pass
                with raises(RuntimeError, "forked child"):
                    pool.sleep()
                globals().pop("held")
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
