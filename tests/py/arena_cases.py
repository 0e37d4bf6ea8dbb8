"""What real PyTorch does over the arena: one function a case, each run in a process of its
own on the simulated GPU by test_torch_memory.py.

A case fails by an exception. `Model` is the truth that numbers are held against. `serve`
imports torch once and forks a process for each case, which is quick, and sound while the
process that forks has not touched CUDA."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import pickle
import random
import sys
import threading
import time
import warnings
from typing import Any

import torch
import torcharena

MIB, GIB = 1 << 20, 1 << 30
PAGE = 4 * MIB
memory = torch.cuda.memory


def empty(size: int, device: int = 0) -> torch.Tensor:
    """A tensor of ``size`` bytes."""
    return torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}")


class Model:
    """Sums over the live tensors, by pool, with peaks and totals."""

    def __init__(self) -> None:
        self.live: list[torch.Tensor] = []
        self.now = {"bytes": 0, "granules": 0, "count": 0}
        self.peak = dict(self.now)
        self.up, self.down = dict(self.now), dict(self.now)

    def _count(self, tensor: torch.Tensor, sign: int) -> None:
        size = tensor.untyped_storage().nbytes()
        by = {"bytes": size, "granules": -(-size // 512) * 512, "count": 1}
        for name, value in by.items():
            self.now[name] += sign * value
            self.peak[name] = max(self.peak[name], self.now[name])
            (self.up if sign > 0 else self.down)[name] += value

    def add(self, size: int) -> None:
        self.live.append(empty(size))
        self._count(self.live[-1], 1)

    def drop(self, place: int) -> None:
        self._count(self.live[place], -1)
        del self.live[place]

    def check(self) -> None:
        stats = torch.cuda.memory_stats()
        for name, key in (
            ("bytes", "requested_bytes"),
            ("granules", "allocated_bytes"),
            ("count", "allocation"),
        ):
            assert stats[f"{key}.all.current"] == self.now[name], (key, stats, self.now)
            assert stats[f"{key}.all.peak"] == self.peak[name], (key, stats, self.peak)
            assert stats[f"{key}.all.allocated"] == self.up[name]
            assert stats[f"{key}.all.freed"] == self.down[name]
            assert (
                stats[f"{key}.small_pool.current"] + stats[f"{key}.large_pool.current"]
                == self.now[name]
            )
        assert torch.cuda.memory_allocated() == self.now["granules"]
        assert torch.cuda.max_memory_allocated() == self.peak["granules"]
        reserved = torch.cuda.memory_reserved()
        assert reserved >= self.now["granules"] and reserved % PAGE == 0
        self.check_segments(stats)
        assert torch.cuda.max_memory_reserved() >= reserved

    def check_segments(self, stats: dict[str, int]) -> None:
        """Reserved bytes by pool against the runs of mapped pages; the rest is kept ready."""
        mapped = {"small": 0, "large": 0}
        free = {"small": 0, "large": 0}
        for segment in torch.cuda.memory_snapshot():
            kind = segment["segment_type"]
            mapped[kind] += segment["total_size"]
            free[kind] += any(b["state"] == "inactive" for b in segment["blocks"])
        small, large = (stats[f"reserved_bytes.{k}_pool.current"] for k in mapped)
        assert small == mapped["small"] and large >= mapped["large"], (stats, mapped)
        for key, unit in (("reserved_bytes", 1), ("segment", PAGE)):
            whole = stats[f"{key}.all.current"]
            assert whole * unit == small + large == torch.cuda.memory_reserved()
            for kind in ("all", "small_pool", "large_pool"):
                now, peak, up, down = (
                    stats[f"{key}.{kind}.{m}"]
                    for m in ("current", "peak", "allocated", "freed")
                )
                assert now == up - down and now <= peak <= stats[f"{key}.all.peak"]
        for kind, least in free.items():
            assert stats[f"inactive_split.{kind}_pool.current"] >= least


def numbers() -> None:
    torcharena.enable()
    rng, model = random.Random(7), Model()
    for step in range(400):
        if model.live and rng.random() < 0.45:
            model.drop(rng.randrange(len(model.live)))
        else:
            model.add(
                rng.choice([1, 512, 700, 64 << 10, MIB, MIB + 1, 3 * MIB, 40 * MIB])
            )
        model.check()
        if step == 200:
            torch.cuda.reset_peak_memory_stats()
            model.peak = dict(model.now)
        if step == 300:
            torch.cuda.reset_accumulated_memory_stats()
            model.up, model.down = dict(model.now), dict.fromkeys(model.now, 0)
    model.live.clear()
    assert torch.cuda.memory_allocated() == 0
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


def accelerator() -> None:
    torcharena.enable(limit="4GiB")
    acc = getattr(torch.accelerator, "memory", None)
    if acc is None or not hasattr(acc, "memory_stats"):
        return
    x, y = empty(100 * MIB), empty(5)
    del x
    assert acc.memory_allocated() == torch.cuda.memory_allocated() == 512
    assert (
        acc.max_memory_allocated() == torch.cuda.max_memory_allocated() == 100 * MIB + 512
    )
    assert acc.memory_reserved() == torch.cuda.memory_reserved() >= 100 * MIB
    assert acc.max_memory_reserved() == torch.cuda.max_memory_reserved()
    assert acc.memory_stats() == torch.cuda.memory_stats()
    if hasattr(acc, "get_memory_info"):
        assert acc.get_memory_info() == torch.cuda.mem_get_info()
    acc.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 512
    acc.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == 1
    acc.empty_cache()
    assert torch.cuda.memory_reserved() == PAGE
    del y


# Every public name of torch.cuda.memory, so that a new one is noticed.
CALLED = {
    "get_per_process_memory_fraction",
    "empty_cache",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "reset_accumulated_host_memory_stats",
    "reset_peak_host_memory_stats",
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "memory_cached",
    "max_memory_cached",
    "memory_snapshot",
    "memory_summary",
    "mem_get_info",
    "get_allocator_backend",
}
ELSEWHERE = {  # in other cases of this file
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "caching_allocator_enable",
    "caching_allocator_disabled",
    "set_per_process_memory_fraction",
    "list_gpu_processes",
    "CUDAPluggableAllocator",
    "change_current_allocator",
    "MemPool",
    "MemPoolContext",  # torch 2.7
    "use_mem_pool",
}


def every_function() -> None:
    torcharena.enable()
    keep = empty(MIB)
    warnings.simplefilter("ignore", FutureWarning)
    strangers = set(memory.__all__) - CALLED - ELSEWHERE
    assert not strangers, f"torch.cuda.memory has new functions: {strangers}"
    for name in sorted(CALLED & set(memory.__all__)):
        getattr(memory, name)()
    assert torch.cuda.get_allocator_backend() == "pluggable"
    text = torch.cuda.memory_summary(abbreviated=True)
    assert "Allocated memory      |      1 MiB" in text.replace("1024 KiB", "   1 MiB"), (
        text
    )
    del keep


def raw_memory() -> None:
    torcharena.enable()
    keep = empty(512)
    address = memory.caching_allocator_alloc(3 * MIB)
    assert torch.cuda.memory_allocated() == 3 * MIB + 512
    memory.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated() == 512
    memory.caching_allocator_enable(True)
    refused("without torcharena", lambda: memory.caching_allocator_enable(False))
    del keep


def refused(text: str, call: Any) -> None:
    """The call raises a RuntimeError whose text has ``text``."""
    try:
        call()
    except RuntimeError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"not refused: {text}")


def refusals() -> None:
    torcharena.enable()
    empty(MIB)
    refused(
        "takes one",
        lambda: memory.change_current_allocator(memory._get_current_allocator()),
    )
    refused(
        "OutOfMemoryError", lambda: torch._C._cuda_attach_out_of_memory_observer(print)
    )
    refused("use_on_oom", lambda: torch.cuda.MemPool(use_on_oom=True))
    refused(
        "allocator=",
        lambda: torch.cuda.MemPool(memory._get_current_allocator().allocator()),
    )
    refused(
        "not torcharena's",
        lambda: torch._C._cuda_setCheckpointPoolState(0, None, [], []),
    )
    warnings.simplefilter("ignore", FutureWarning)
    refused(
        "expandable_segments",
        lambda: memory._set_allocator_settings("expandable_segments:True"),
    )
    memory._set_allocator_settings("pinned_use_background_threads:False")


def share_of_the_device() -> None:
    torcharena.enable(limit="50%")
    total = torch.cuda.get_device_properties(0).total_memory
    assert torcharena.limit() == total // 2 // PAGE * PAGE
    assert torch.cuda.mem_get_info() == (torcharena.limit(), torcharena.limit())
    free, all_ = torcharena.device_memory()
    assert all_ == total and free <= total
    memory.set_per_process_memory_fraction(0.25)
    assert memory.get_per_process_memory_fraction() == 0.25
    assert torcharena.limit() == total // 4 // PAGE * PAGE
    assert torcharena.memory_stats()["cap_source"] == "fraction"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torcharena.set_limit("40%")
    assert "set_per_process_memory_fraction" in str(said[0].message)
    memory.set_per_process_memory_fraction(1.0)
    assert torcharena.limit() == int(total * 0.4) // PAGE * PAGE


def cap_is_exact() -> None:
    torcharena.enable(limit=64 * MIB + 5)
    assert torcharena.limit() == 64 * MIB
    blocks = [empty(PAGE) for _ in range(16)]
    assert torch.cuda.memory_reserved() == 64 * MIB == torch.cuda.memory_allocated()
    assert torch.cuda.mem_get_info() == (0, 64 * MIB)
    out_of_memory(PAGE)
    out_of_memory(1 << 40)
    del blocks[3]
    blocks.append(empty(PAGE))
    torcharena.set_limit("128MiB")
    blocks.append(empty(64 * MIB))
    assert torch.cuda.max_memory_reserved() == 128 * MIB
    assert "cap: 128 MiB" in torcharena.memory_summary()


def out_of_memory(size: int) -> str:
    """Asks for it and must be refused; the text."""
    try:
        empty(size)
    except torch.OutOfMemoryError as error:
        assert len(error.args) == 1 and isinstance(error, RuntimeError)
        text = str(error)
        assert text.startswith("CUDA out of memory. Tried to allocate ")
        # accelerate's matcher, then Lightning's
        assert " out of memory." in text and "CUDA" in text and "out of memory" in text
        return text
    raise AssertionError(f"{size} bytes were had")


def out_of_memory_is_caught() -> None:  # G1
    torcharena.enable(limit="1GiB")
    text = out_of_memory(1 << 40)
    assert "1.00 TiB" in text or "1024.00 GiB" in text, text
    small = empty(MIB)
    small.fill_(1)
    torch.cuda.synchronize()
    assert torch.cuda.memory_stats()["num_ooms"] == 1


def same_depth_twice() -> None:  # G8
    torcharena.enable(limit="512MiB")
    base, depths = torch.cuda.memory_allocated(), []
    for _ in range(3):
        kept = []
        try:
            while True:
                kept.append(empty(7 * MIB))
        except torch.OutOfMemoryError:
            depths.append(len(kept))
        del kept
        assert torch.cuda.memory_allocated() == base
    assert len(set(depths)) == 1 and depths[0] >= 70, depths


def back_at(base: int) -> None:
    """Live bytes come back to ``base``: autograd's threads let go a little later."""
    until = time.monotonic() + 60
    while torch.cuda.memory_allocated() != base:
        assert time.monotonic() < until, (torch.cuda.memory_allocated(), base)
        time.sleep(0.01)


def out_of_memory_in_backward() -> None:  # G8
    torcharena.enable(limit="96MiB")
    weights = torch.empty(1024, 1024, device="cuda", requires_grad=True)
    torch.ones(1, device="cuda")

    class Hungry(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            empty(200 * MIB)
            return grad

    base = torch.cuda.memory_allocated()
    for _ in range(2):
        try:
            Hungry.apply(weights).sum().backward()
        except torch.OutOfMemoryError:
            pass
        else:
            raise AssertionError("backward had what it asked for")
        weights.grad = None
        gc.collect()
        back_at(base)
    (weights * 2).sum().backward()
    assert weights.grad is not None


def between_the_reports() -> None:  # G2
    torcharena.enable()
    for _ in range(3):
        x = empty(GIB)
        assert torch.cuda.memory_allocated() == GIB
        del x
        assert torch.cuda.memory_allocated() == 0
        assert torch.cuda.max_memory_allocated() == GIB
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == 0
        assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == 0
        assert "CUDA OOMs: 0" in torch.cuda.memory_summary()


def touched_before() -> None:  # G6
    keep = torch.empty(1, device="cuda")
    for _ in range(2):
        try:
            torcharena.enable()
        except RuntimeError as error:
            assert "before CUDA is first used" in str(
                error
            ) and "TORCHARENA_ENABLE" in str(error)
        else:
            raise AssertionError("enabled after CUDA was in use")
    assert not torcharena.enabled()
    assert torch.cuda.get_allocator_backend() == "native"
    assert torch.cuda.memory_allocated() == 512
    del keep


def enable_twice() -> None:  # G6
    torcharena.enable(limit="1GiB")
    torcharena.enable(limit="1GiB")
    x = empty(MIB)
    torcharena.enable(limit="1GiB")
    refused("set_limit", lambda: torcharena.enable(limit="2GiB"))
    assert torch.cuda.memory_allocated() == MIB
    del x


def snapshot() -> None:
    torcharena.enable()
    memory._record_memory_history(context=None, max_entries=2000)
    assert torch._C._cuda_isHistoryEnabled()
    rng = random.Random(3)
    live: list[torch.Tensor] = []
    for _ in range(1500):
        if live and rng.random() < 0.5:
            del live[rng.randrange(len(live))]
        else:
            live.append(empty(rng.randrange(1, 9 * MIB)))
    out_of_memory(1 << 41)
    memory._dump_snapshot("snapshot.pickle")
    with open("snapshot.pickle", "rb") as file:
        found = pickle.load(file)
    segments = found["segments"]
    for segment in segments:
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at
            at += block["size"]
        assert at == segment["address"] + segment["total_size"]
    stats = torch.cuda.memory_stats()
    for key, stat in (
        ("allocated_size", "allocated_bytes.all.current"),
        ("active_size", "active_bytes.all.current"),
        ("requested_size", "requested_bytes.all.current"),
    ):
        assert sum(segment[key] for segment in segments) == stats[stat], key
    taken = {
        block["address"]
        for segment in segments
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    assert taken == {tensor.data_ptr() for tensor in live}
    (trace,) = found["device_traces"]
    assert 100 < len(trace) <= 2000
    assert {"alloc", "free_requested", "free_completed", "oom"} <= {
        e["action"] for e in trace
    }
    walk_back(segments, trace)
    from torch.cuda import _memory_viz

    for draw in (_memory_viz.trace_plot, _memory_viz.segment_plot, _memory_viz.segsum):
        assert len(draw(found)) > 500
    memory._record_memory_history(None)
    assert not torch._C._cuda_isHistoryEnabled()
    assert memory._snapshot()["device_traces"] == [[]]


def walk_back(segments: list[Any], trace: list[Any]) -> None:
    """Undoes the trace from its end, as the viewer does: what lives must fit at each step."""
    live = {
        block["address"]: block["requested_size"]
        for segment in segments
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    for entry in reversed(trace):
        if entry["action"] == "alloc":
            assert live.pop(entry["addr"]) == entry["size"]
        elif entry["action"] == "free_requested":
            assert entry["addr"] not in live
            live[entry["addr"]] = entry["size"]


def long_history() -> None:  # S19
    torcharena.enable()
    memory._record_memory_history(context=None, max_entries=2000)
    for _ in range(50_000):
        empty(512)
    memory._dump_snapshot("snapshot.pickle")
    assert len(memory._snapshot()["device_traces"][0]) <= 2000
    assert os.path.getsize("snapshot.pickle") < 1 << 20


def pools() -> None:
    torcharena.enable()
    gpu = judged()
    pool = torch.cuda.MemPool()
    other = torch.cuda.MemPool()
    assert pool.id != other.id
    outside = empty(5 * MIB)
    context = getattr(memory, "MemPoolContext", None)
    with torch.cuda.use_mem_pool(pool):
        inside = empty(5 * MIB)
        assert context is None or context.active_pool() is pool
    assert context is None or context.active_pool() is None
    after = empty(5 * MIB)
    (segment,) = pool.snapshot()
    assert tuple(segment["segment_pool_id"]) == pool.id
    low, high = segment["address"], segment["address"] + segment["total_size"]
    assert low <= inside.data_ptr() < high
    assert not low <= outside.data_ptr() < high and not low <= after.data_ptr() < high
    assert not other.snapshot()
    with torch.cuda.use_mem_pool(pool):
        little = empty(700)
    nested = memory.memory_stats_as_nested_dict()
    if "reserved_bytes_by_private_pools" in nested:
        (held,) = nested["reserved_bytes_by_private_pools"].values()
        assert {kind: gauge["current"] for kind, gauge in held.items()} == {
            "all": 3 * PAGE,
            "small_pool": PAGE,
            "large_pool": 2 * PAGE,
        }
        key = "reserved_bytes_by_private_pools.{}_{}.all.current".format(*pool.id)
        assert torch.cuda.memory_stats()[key] == 3 * PAGE
    del little
    with torch.cuda.use_mem_pool(pool):
        again = empty(5 * MIB)
    assert again.data_ptr() != inside.data_ptr()
    del inside, again, outside, after, pool, other
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    unbroken(gpu)


def pool_in_two_threads() -> None:
    """One pool, two openers: the second is refused, as by torch's own allocator, and the
    first one's memory goes on coming from the pool."""
    torcharena.enable()
    pool = torch.cuda.MemPool()
    opened, tried = threading.Event(), threading.Event()
    said: list[str] = []

    def other() -> None:
        with torch.cuda.use_mem_pool(pool):
            opened.set()
            tried.wait(60)
            empty(MIB)

    thread = threading.Thread(target=other)
    thread.start()
    opened.wait(60)
    try:
        with torch.cuda.use_mem_pool(pool):
            raise AssertionError("opened twice")
    except RuntimeError as error:
        said.append(str(error))
    tried.set()
    thread.join()
    assert "allocates to this pool already" in said[0], said
    with torch.cuda.use_mem_pool(pool):
        refused("already", lambda: torch.cuda.use_mem_pool(pool).__enter__())
        inside = empty(50 * MIB)
    (segment,) = (s for s in pool.snapshot() if s["segment_type"] == "large")
    assert segment["address"] <= inside.data_ptr()
    shared = torch.cuda.graph_pool_handle()
    graphs = [torch.cuda.CUDAGraph() for _ in range(3)]
    for captured in graphs:  # one pool, one after the other
        with torch.cuda.graph(captured, pool=shared):
            empty(MIB)
        captured.replay()


def pool_hooks_drop_the_gil() -> None:
    """The end of a pool waits for a filter under way, which here waits for the GIL."""
    torcharena.enable()
    torch.cuda.init()
    from torcharena import _core

    class Id(ctypes.Structure):
        _fields_ = [("a", ctypes.c_ulonglong), ("b", ctypes.c_ulonglong)]

    core = ctypes.CDLL(_core.library_path())
    holding = ctypes.PyDLL(_core.library_path())  # calls with the GIL, as torch does
    core.ta_process_allocator.restype = ctypes.c_void_p
    allocator = ctypes.c_void_p(core.ta_process_allocator())
    under_way, ended = threading.Event(), threading.Event()
    until = time.monotonic() + 0.2

    @ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p)
    def slow_filter(context: Any, stream: Any) -> bool:
        under_way.set()
        while time.monotonic() < until:
            time.sleep(0.01)
        ended.set()
        return False

    assert core.ta_pool_begin(allocator, 0, Id(9, 9), slow_filter, None) == 0
    thread = threading.Thread(target=empty, args=(MIB,))
    thread.start()
    assert under_way.wait(60)
    holding.ta_torch_pool_end(0, Id(9, 9))
    assert (
        ended.is_set()
    )  # a filter that could not have the GIL is given up after a second
    thread.join()
    assert core.ta_pool_release(allocator, 0, Id(9, 9)) == 0


def graph() -> None:
    torcharena.enable()
    gpu = judged()
    captured = torch.cuda.CUDAGraph()
    static = empty(8 * MIB)
    with torch.cuda.graph(captured):
        result = static + 1
    pool = captured.pool()
    holding = [
        segment
        for segment in torch.cuda.memory_snapshot()
        if tuple(segment["segment_pool_id"]) == tuple(pool)
    ]
    assert any(
        segment["address"]
        <= result.data_ptr()
        < segment["address"] + segment["total_size"]
        for segment in holding
    )
    for _ in range(20):
        captured.replay()
        keep = empty(16 * MIB)
        assert keep.data_ptr() != result.data_ptr()
    unbroken(gpu)


def two_devices() -> None:  # S13
    torcharena.enable(limit="1GiB")
    zero, one = empty(3 * MIB, 0), empty(100 * MIB, 1)
    assert torch.cuda.memory_allocated(0) == 3 * MIB
    assert torch.cuda.memory_allocated(1) == 100 * MIB
    torcharena.set_limit("200MiB", device=1)
    assert torcharena.limit(0) == GIB and torcharena.limit("cuda:1") == 200 * MIB
    assert torch.cuda.mem_get_info(1)[1] == 200 * MIB
    with torch.cuda.device(0):
        del one
    assert (
        torch.cuda.memory_allocated(1) == 0 and torch.cuda.memory_allocated(0) == 3 * MIB
    )
    assert {segment["device"] for segment in torch.cuda.memory_snapshot()} <= {0, 1}
    assert len(memory._snapshot()["device_traces"]) == 2
    refused("there are 2", lambda: torch.cuda.memory_stats(2))
    del zero


def recorded() -> None:
    torcharena.enable()
    with torcharena.record("x.trace.xz"):
        refused("stop()", lambda: torcharena.record("y.trace"))
        torcharena.mark("forward")
        x = [empty(size * MIB) for size in (1, 20, 3)]
        del x[1]
        torcharena.mark("step")
    del x
    assert set(os.listdir(".")) - {"stdout", "stderr"} == {"x.trace.xz"}, os.listdir(".")
    from torcharena import traces

    text = traces.read("x.trace.xz").decode()
    assert text.count("\na ") == 3 and text.count("\nf ") == 1 and "m forward" in text, (
        text
    )
    (figures,) = traces.replay("x.trace.xz")
    assert figures["peak_requested"] == 24 * MIB and not figures["oom"]
    torcharena.record("z.trace")  # ends with the program
    empty(MIB)


def judged() -> ctypes.CDLL:
    """The oracle judges every reuse from now on; `unbroken` asks it."""
    torch.cuda.init()  # the allocator is made with it
    from torcharena import _core

    core, gpu = ctypes.CDLL(_core.library_path()), ctypes.CDLL(None)
    core.ta_process_allocator.restype = gpu.ta_simcuda_machine.restype = ctypes.c_void_p
    gpu.ta_simcuda_violation.restype = ctypes.c_char_p
    machine = ctypes.c_void_p(gpu.ta_simcuda_machine())
    allocator = ctypes.c_void_p(core.ta_process_allocator())
    assert core.ta_add_observer(allocator, gpu.ta_simcuda_observe, machine) == 0
    return gpu


def unbroken(gpu: ctypes.CDLL) -> None:
    torch.cuda.synchronize()
    assert gpu.ta_simcuda_violation(None) is None, gpu.ta_simcuda_violation(None)


def lora() -> None:
    """A small Llama with LoRA, checkpointing and lengths that vary, under the arena."""
    torcharena.enable(limit="1GiB")
    gpu = judged()
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=1000,
        use_cache=False,
    )
    with torch.device("cuda"):
        base = LlamaForCausalLM(config).to(torch.bfloat16)
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    model.gradient_checkpointing_enable(
        gradient_checkpointing_kwargs={"use_reentrant": False}
    )
    model.enable_input_require_grads()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, 1e-4)
    peaks = []
    for length in (32, 256, 64, 512, 128, 512):
        ids = torch.randint(1000, (4, length), device="cuda")
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[3] == peaks[5] > peaks[1] > peaks[0]
    states = [s for p in trained for s in optimizer.state[p].values() if s.is_cuda]
    assert len(states) == 2 * len(trained)
    assert torch.cuda.max_memory_reserved() <= torcharena.limit()
    unbroken(gpu)


def train() -> None:
    """The demo's model for some steps, under a cap, and its books at the end."""
    torcharena.enable(limit="8GiB")
    gpu = judged()
    from torcharena.demo import train as demo

    demo.train(torch, 3)
    unbroken(gpu)
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.peak"] > GIB
    assert stats["reserved_bytes.all.peak"] <= torcharena.limit()
    assert stats["reserved_bytes.all.peak"] < 1.05 * stats["requested_bytes.all.peak"]
    gc.collect()
    left = torch.cuda.memory_allocated()
    assert left <= 96 * MIB, left  # cuBLAS keeps its workspaces, 32 MiB a thread


def forked_child() -> None:  # S16
    torcharena.enable()
    keep = empty(64 * MIB)
    before = torch.cuda.memory_allocated()
    child = os.fork()
    if child == 0:
        del keep
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.cuda.memory_allocated() == before
    more = empty(64 * MIB)
    assert more.data_ptr() != keep.data_ptr()


def fork_before_cuda() -> None:
    """Children that use CUDA after a parent that enabled the arena and has not: legal."""
    torcharena.enable(limit="1GiB")
    memory._record_memory_history(context=None)
    for _ in range(2):
        child = os.fork()
        if child == 0:
            keep = empty(64 * MIB)
            good = torch.cuda.memory_allocated() == 64 * MIB and torcharena.limit() == GIB
            good = good and len(memory._snapshot()["device_traces"][0]) >= 2
            del keep
            out_of_memory(2 * GIB)
            os._exit(0 if good else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert not torch.cuda.is_initialized()
    empty(64 * MIB)
    assert torch.cuda.max_memory_allocated() == 64 * MIB


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, place: int) -> torch.Tensor:
        return torch.full((4,), place)


def loader_workers() -> None:
    torcharena.enable()
    keep = empty(MIB)
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2)
    rows = [int(batch.to("cuda").cpu()[0, 0]) for batch in loader]
    assert rows == list(range(0, 32, 4))
    assert torch.cuda.memory_allocated() == MIB
    del keep


def exit_with_live_tensors() -> None:  # G5
    torcharena.enable()
    globals()["kept"] = [empty(5 * MIB) for _ in range(3)]
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        globals()["result"] = globals()["kept"][0] + 1
    globals()["captured"] = captured


def exit_from_a_thread() -> None:  # G5
    torcharena.enable()

    def work() -> None:
        globals()["kept"] = empty(5 * MIB)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    threading.Thread(target=work, daemon=True).start()
    sys.exit(0)


def from_the_environment() -> None:
    assert torcharena.enabled()
    assert torcharena.limit() == 2 * GIB
    empty(MIB)
    assert torch.cuda.mem_get_info()[1] == 2 * GIB
    out_of_memory(3 * GIB)


# Those whose end is what they are about.
TO_THE_END = {"exit_with_live_tensors", "exit_from_a_thread", "recorded", "graph"}


def serve() -> str:
    """Runs the cases that standard input names, one a line, as JSON: ``case``, ``folder``,
    ``environment``. Answers with the exit code; the output is in the folder. Returns the
    case's name in the process that is to run it, "" at the end."""
    gc.collect()
    gc.freeze()  # what is here already is no concern of a case's collections
    for line in sys.stdin:
        wanted = json.loads(line)
        child = os.fork()
        if child == 0:
            os.chdir(wanted["folder"])
            os.environ.update(wanted["environment"])
            for number, name in ((0, os.devnull), (1, "stdout"), (2, "stderr")):
                flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT
                os.dup2(os.open(name, flags, 0o600), number)
            return str(wanted["case"])
        status = os.waitpid(child, 0)[1]
        print(os.waitstatus_to_exitcode(status), flush=True)
    return ""


if __name__ == "__main__":
    case = serve() if sys.argv[1] == "serve" else sys.argv[1]
    if case:
        globals()[case]()
        if sys.argv[1] == "serve" and case not in TO_THE_END:
            sys.stdout.flush()
            os._exit(0)  # taking all of torch apart costs more than most cases do
