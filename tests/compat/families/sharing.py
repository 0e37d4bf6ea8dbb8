"""Memory handed to other libraries and processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..models import STEPS
from ..rows import row


@row("DLPack to CuPy and back", needs=("cupy",), rehearsed=False)
def cupy_dlpack() -> Iterator[torch.Tensor]:
    import cupy

    for step in range(STEPS):
        x = torch.full((1000 * (1 + step),), 1.0 + step, device="cuda")
        there = cupy.from_dlpack(x)
        there *= 2
        cupy.cuda.get_current_stream().synchronize()
        back = torch.from_dlpack(there)
        assert back.data_ptr() == x.data_ptr()
        del x
        assert bool((back == 2.0 * (1 + step)).all())
        yield back.mean()


@row("DLPack to JAX and back", needs=("jax",), rehearsed=False)
def jax_dlpack() -> Iterator[torch.Tensor]:
    import os

    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax
    import jax.numpy as jnp

    for step in range(STEPS):
        x = torch.full((1000 * (1 + step),), 1.0 + step, device="cuda")
        torch.cuda.synchronize()
        there = jnp.sin(jax.dlpack.from_dlpack(x))
        there.block_until_ready()
        back = torch.from_dlpack(there)
        assert torch.allclose(back, torch.sin(x), atol=1e-5)
        yield back.mean()


@row("CuPy with torch's memory as its allocator", needs=("cupy",), rehearsed=False)
def cupy_allocator() -> Iterator[float]:
    import cupy

    def get(size: int) -> Any:
        block = torch.empty(max(size, 1), dtype=torch.uint8, device="cuda")
        memory = cupy.cuda.UnownedMemory(block.data_ptr(), size, block)
        return cupy.cuda.MemoryPointer(memory, 0)

    cupy.cuda.set_allocator(get)
    for step in range(STEPS):
        before = torch.cuda.memory_allocated()
        x = cupy.arange(10000 * (1 + step), dtype=cupy.float32)
        assert torch.cuda.memory_allocated() > before
        yield float(x.sum())


@row("__cuda_array_interface__ (Numba)", needs=("numba",), rehearsed=False)
def cuda_array_interface() -> Iterator[torch.Tensor]:
    from numba import cuda

    for step in range(STEPS):
        x = torch.full((1000,), 1.0 + step, device="cuda")
        there = cuda.as_cuda_array(x)
        assert there.copy_to_host()[0] == 1.0 + step
        yield x.mean()


@row("CuPy on the arena (torcharena.cupy_allocator)", needs=("cupy",), rehearsed=False)
def cupy_on_arena() -> Iterator[float]:
    import cupy
    import torcharena

    if torcharena.enabled():
        cupy.cuda.set_allocator(torcharena.cupy_allocator)
    for step in range(STEPS):
        before = torch.cuda.memory_allocated()
        with cupy.cuda.Stream(non_blocking=bool(step % 2)) as stream:
            x = cupy.arange(100000 * (1 + step), dtype=cupy.float32)
            y = cupy.sqrt(x @ x)
            stream.synchronize()
        grown = torch.cuda.memory_allocated() - before
        assert grown >= x.nbytes or not torcharena.enabled(), grown
        yield float(y)
        del x, y


def _receive(arena: bool, queue: Any, answers: Any) -> None:
    if arena:
        import torcharena

        torcharena.enable()
    for _ in range(STEPS):
        found = queue.get(timeout=60)
        found *= 2
        torch.cuda.synchronize()
        answers.put(float(found.sum()))
        del found


@row("CUDA tensors through a torch.multiprocessing queue", rehearsed=False)
def multiprocessing_queue() -> Iterator[float]:
    import torch.multiprocessing as processes
    import torcharena

    context = processes.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    arena = torcharena.enabled()
    child = context.Process(target=_receive, args=(arena, queue, answers), daemon=True)
    child.start()
    for step in range(STEPS):
        x = torch.ones(1000 * 2**step, device="cuda")
        queue.put(x)
        yield answers.get(timeout=60)
        assert bool((x == 2).all())  # the other process wrote it
    child.join(60)
    assert child.exitcode == 0


@row("torch.cuda.MemPool")
def mempool() -> Iterator[torch.Tensor]:
    pool = torch.cuda.MemPool()
    for step in range(STEPS):
        with torch.cuda.use_mem_pool(pool):
            x = torch.full((1 << 18,), 1.0 + step, device="cuda")
        yield x.mean()
        del x
