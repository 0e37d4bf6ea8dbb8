"""The adapters for servers' own interfaces: one function a case.

    python server_cases.py NAME

vLLM itself is not needed: a module with the part of its interface that matters stands in."""

from __future__ import annotations

import gc
import importlib
import sys
import types
import warnings
from typing import Any

import torch
from cases import MIB, REAL, assert_sound, libraries
from pool_cases import CAPTURES, free, raises, region, same, start
from torcharena.integrations import torch_memory_saver as saver_module
from torcharena.integrations import vllm as arena


def together(*cases: str) -> None:
    """All of them in one process."""
    for case in cases:
        globals()[case]()
        gc.collect()
        torch.cuda.empty_cache()
        assert_sound()


def memory_saver() -> None:
    """What SGLang's adapter, verl and slime call."""
    saver_module.install()
    saver_module.install()
    module: Any = importlib.import_module("torch_memory_saver")
    saver = module.torch_memory_saver
    saver.hook_mode = "preload"
    assert saver.enabled and saver.hook_mode == "preload"
    with module.configure_subprocess():
        pass
    start("default")
    wanted = torch.arange(10 * MIB // 4, dtype=torch.int32)
    with saver.region():
        plain = wanted.cuda()
    with saver.region(tag="weights", enable_cpu_backup=True):
        weights = wanted.cuda()
        with saver.disable():
            ordinary = wanted.cuda()
        with saver.region(tag="kv_cache"):
            cache = wanted.cuda()
        again = wanted.cuda()
    assert region(ordinary) == 0
    assert len({region(one) for one in (plain, weights, cache)}) == 3
    assert region(again) == region(weights)
    graph, out = torch.cuda.CUDAGraph(), torch.zeros_like(weights)
    if CAPTURES:
        with saver.cuda_graph(graph, tag="graph", enable_cpu_backup=True):
            inner = weights.clone()
            out.copy_(inner)
        assert region(inner) not in (0, region(weights))
    else:
        with torch.cuda.graph(graph):
            out.copy_(weights)
    before = free()
    assert saver.get_cpu_backup(weights) is None
    saver.pause("kv_cache")
    half = free()
    saver.pause()
    assert free() > half > before or REAL
    backup = saver.get_cpu_backup(weights)
    assert torch.equal(backup, wanted) and backup.device.type == "cpu"
    assert saver.get_cpu_backup(cache) is None
    same([ordinary], [wanted])
    saver.resume("weights")
    same([weights, again], [wanted] * 2)
    saver.retain_cpu_backup = True
    saver.resume()
    assert saver.retain_cpu_backup is True
    saver.retain_cpu_backup = False
    cache.copy_(wanted)
    plain.copy_(wanted)
    graph.replay()
    torch.cuda.synchronize()
    assert not REAL or torch.equal(out.cpu(), wanted)
    same([plain, cache], [wanted] * 2)
    with (
        raises(ValueError, "enable_cpu_backup=True"),
        saver.region(cpu_backup_backend="mmap"),
    ):
        pass
    with (
        raises(ValueError, "'pinned' or 'mmap'"),
        saver.region(enable_cpu_backup=True, cpu_backup_backend="disk"),
    ):
        pass
    for backend, kept in (("mmap", False), ("disk", True)):
        captured = saver.cuda_graph(
            torch.cuda.CUDAGraph(),
            enable_cpu_backup=kept,
            cpu_backup_backend=backend,
        )
        with raises(ValueError, "cpu_backup_backend"), captured:
            pass
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        saver.memory_margin_bytes = 1 << 30
    assert ["memory_margin_bytes" in str(one.message) for one in said] == [True], said
    assert saver.memory_margin_bytes == 0
    with saver.region(enable_cpu_backup=True, cpu_backup_backend="mmap"):
        pass
    saver.pause()
    saver.resume()
    with raises(RuntimeError, "pinned"), saver.region(enable_disk_backup=True):
        pass


def sleep_mode() -> None:
    """What vLLM's workers call: levels 1 and 2, tags, usage."""
    with raises(ImportError):
        arena.install()

    class CuMemAllocator:
        instance: Any = None

        @staticmethod
        def get_instance() -> Any:
            assert module.cumem_available
            return CuMemAllocator.instance

    module: Any = types.ModuleType("vllm.device_allocator.cumem")
    module.CuMemAllocator, module.cumem_available = CuMemAllocator, False
    for name in ("vllm", "vllm.device_allocator"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[module.__name__] = module
    arena.plugin()  # not asked for
    assert CuMemAllocator.instance is None
    arena.install()
    arena.install()
    allocator = CuMemAllocator.get_instance()
    start("default")
    wanted = torch.arange(10 * MIB // 4, dtype=torch.int32)
    with allocator.use_memory_pool(tag="weights"):
        weights = wanted.cuda()
        loading = torch.zeros(50 * MIB, dtype=torch.uint8, device="cuda")
        del loading
    with allocator.use_memory_pool(tag="kv_cache"):
        cache = wanted.cuda()
    with allocator.use_memory_pool():
        other = wanted.cuda()
    usage = allocator.get_current_usage()
    assert usage == (30 * MIB if CAPTURES else 80 * MIB), usage
    inner = weights
    if CAPTURES:
        graph = torch.cuda.CUDAGraph()
        with (
            allocator.use_cudagraph_pool() as pool,
            torch.cuda.graph(graph, pool=pool),
        ):
            inner = torch.empty_like(weights)
            inner.copy_(weights)
        assert region(inner) not in (0, region(weights))
    before = free()
    allocator.sleep(offload_tags=("weights",))
    assert before + 60 * MIB <= free() or REAL
    assert allocator.get_current_usage() >= usage
    allocator.wake_up(["weights"])
    same([weights], [wanted])
    other.copy_(wanted)  # neither weights nor cache: it is back too
    same([other], [wanted])
    with raises(RuntimeError, "kv_cache"):
        cache + 1
    allocator.wake_up(["kv_cache"])
    cache.copy_(wanted)
    if CAPTURES:
        graph.replay()
        torch.cuda.synchronize()
        same([inner], [wanted])
    allocator.discard(("kv_cache", "unknown"))
    same([weights], [wanted])
    allocator.sleep(offload_tags=())  # level 2
    allocator.wake_up()
    for one in (weights, cache, other):
        one.copy_(wanted)
    allocator.sleep()
    allocator.wake_up()
    same([other], [wanted])


if __name__ == "__main__":
    assert libraries()
    globals()[sys.argv[1]](*sys.argv[2:])
