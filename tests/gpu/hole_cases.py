"""What torch's plug-in interface has no hook for: graph trees, tensors for other processes,
memory events of the profiler, MemPool. One function a case.

    python hole_cases.py NAME[,NAME...]

On the simulated GPU the oracle watches, and values of kernels are not looked at: what must
arrive there is copied."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torcharena
from cases import MIB, REAL, assert_sound, watch

WAIT = 240  # seconds; a busy machine takes ten times what an idle one does


def begin() -> None:
    torcharena.enable()
    watch()
    torch.ones(1, device="cuda")


def is_all(tensor: torch.Tensor, wanted: float) -> None:
    if REAL:
        low, high = tensor.min().item(), tensor.max().item()
        assert low == high == wanted, (low, high, wanted)


def apart(tensors: list[torch.Tensor]) -> None:
    """No two of them share a byte."""
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors)
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert end <= start, [tuple(map(hex, span)) for span in spans]


# --- CUDA graph trees ---------------------------------------------------------------------
def compiled(function: Callable[..., Any]) -> Any:
    """Under graph trees, without a compiler's time."""
    return torch.compile(function, backend="cudagraphs", dynamic=False)


def managers() -> Any:
    from torch._inductor import cudagraph_trees

    return cudagraph_trees.get_manager(0, create_if_none_exists=False)


def trees() -> None:
    """Graphs one after another, in branches: what a graph that was replayed gave lives on
    while the next one is warmed up, captured and replayed. torch's own checks are on."""
    from torch._inductor import config, cudagraph_trees

    config.triton.slow_path_cudagraph_asserts = True
    begin()
    before = torch.cuda.memory_allocated()
    first = compiled(lambda x: (x * 2, x + 1, x - 1))
    branches = [
        compiled(lambda a: torch.cat([a, a]) + 1),
        compiled(lambda a: (a * 3).repeat(5)),
        compiled(lambda a: (a - 7) * (a + 1)),
    ]
    last = compiled(lambda c: c[: 1 << 16] * 2)
    expected = [
        lambda a: a + 1,
        lambda a: a * 3,
        lambda a: (a - 7) * (a + 1),
    ]
    x = torch.zeros(1 << 18, device="cuda")
    with torch.no_grad():
        for step in range(18):
            torch.compiler.cudagraph_mark_step_begin()
            which = (0, 0, 0, 1, 1, 2, 1, 2, 0)[step % 9]
            x.fill_(step)
            a, b, dropped = first(x)
            del dropped  # freed in the books before the branch is captured
            c = branches[which](a)
            d = last(c)
            other = torch.empty(MIB, dtype=torch.uint8, device="cuda")
            apart([x, a, b, c, d, other])
            is_all(a, step * 2)
            is_all(b, step + 1)
            is_all(c, expected[which](step * 2))
            is_all(d, expected[which](step * 2) * 2)
            del a, b, c, d, other
    manager = managers()
    assert manager is not None
    nodes = [node for roots in manager.roots.values() for node in roots]
    for node in nodes:
        nodes += [child for group in node.children.values() for child in group]
    assert len(nodes) == 1 + 2 * 3, len(nodes)
    del manager, nodes, node
    torch._dynamo.reset()
    cudagraph_trees.reset_cudagraph_trees()
    del first, branches, last, x
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    assert torch.cuda.memory_allocated() <= before + MIB, torch.cuda.memory_allocated()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= 16 * MIB, torch.cuda.memory_reserved()
    assert_sound()


def trees_backward() -> None:
    """Forward and backward of a model, each a graph, with the optimizer between them."""
    from torch._inductor import config

    config.triton.slow_path_cudagraph_asserts = True
    begin()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 64)
    ).cuda()
    twin = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 64)
    ).cuda()
    twin.load_state_dict(model.state_dict())
    step_of = {m: torch.optim.SGD(m.parameters(), 0.1) for m in (model, twin)}
    graphed = torch.compile(model, backend="cudagraphs", dynamic=False)
    for step in range(8):
        torch.compiler.cudagraph_mark_step_begin()
        draw = torch.Generator().manual_seed(step)
        x = torch.randn(32, 64, generator=draw).cuda()
        losses = []
        for module, call in ((model, graphed), (twin, twin)):
            loss = call(x).square().mean()
            loss.backward()
            step_of[module].step()
            step_of[module].zero_grad(set_to_none=True)
            losses.append(loss.item())
        assert not REAL or abs(losses[0] - losses[1]) < 1e-5, (step, losses)
    assert_sound()


def promised() -> None:
    """torch's allocate() throws while a pool is set back: its next request of that size is not
    given the block that it would have had."""
    from torcharena import _core
    from torcharena.answers import checkpoints

    begin()
    size = 64 * MIB
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = torch.zeros(size, dtype=torch.uint8, device="cuda")
    state = checkpoints.get(0, pool.id)
    assert [block[0] for block in state.blocks] == [kept.data_ptr()]
    torch.zeros(1, device="cuda:1")
    torcharena.set_limit(torch.cuda.memory_reserved(1), 1)
    with torch.cuda.device(1):  # where torch's allocate() then asks, in vain
        try:
            _core.pool_restoring(
                *state.pool,
                state.blocks,
                lambda: checkpoints._set(0, None, [kept.data_ptr()], []),
            )
        except torch.OutOfMemoryError:
            pass
        else:
            raise AssertionError("there was room")
    torcharena.set_limit(None, 1)
    other = torch.empty(size, dtype=torch.uint8, device="cuda")
    apart([kept, other])
    del other
    assert_sound()


# --- tensors for other processes ---------------------------------------------------------
def _bytes(tensor: torch.Tensor) -> list[int]:
    """The first and the last of them."""
    return [int(tensor[0].cpu()), int(tensor[-1].cpu())]


def _gets(inbox: Any, outbox: Any) -> None:
    """The other process."""
    torcharena.enable()
    large, small, again = (inbox.get(timeout=WAIT) for _ in range(3))
    assert large.data_ptr() == again.data_ptr()  # one mapping
    assert _bytes(large) == [1, 2] and _bytes(small) == [3, 4]
    assert torch.cuda.memory_allocated() == 0  # it is charged to who made it
    large[-1:].copy_(torch.tensor([9], dtype=torch.uint8))
    torch.cuda.synchronize()
    outbox.put("wrote")
    assert inbox.get(timeout=WAIT) == "read"
    mine = torch.zeros(5 * MIB, dtype=torch.uint8, device="cuda")
    mine[:1].copy_(torch.tensor([5], dtype=torch.uint8))
    outbox.put(mine)
    assert inbox.get(timeout=WAIT) == "drop"
    del large, again, small
    gc.collect()
    outbox.put("dropped")
    assert inbox.get(timeout=WAIT) == "end"
    del mine
    assert_sound()


def shared() -> None:  # G10
    """Both ways, while both look: the bytes are the same, and live until both are done."""
    begin()
    context = torch.multiprocessing.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    other = context.Process(target=_gets, args=(outbox, inbox), daemon=True)
    other.start()
    base = torch.cuda.memory_allocated()
    large = torch.zeros(37 * MIB, dtype=torch.uint8, device="cuda")
    small = torch.zeros(100, dtype=torch.uint8, device="cuda")
    for tensor, low, high in ((large, 1, 2), (small, 3, 4)):
        tensor[:1].copy_(torch.tensor([low], dtype=torch.uint8))
        tensor[-1:].copy_(torch.tensor([high], dtype=torch.uint8))
    torch.cuda.synchronize()
    for tensor in (large, small, large):
        outbox.put(tensor)
    assert inbox.get(timeout=WAIT) == "wrote"
    assert _bytes(large) == [1, 9]
    outbox.put("read")
    theirs = inbox.get(timeout=WAIT)
    assert int(theirs[0].cpu()) == 5
    del large, small, tensor
    gc.collect()
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() >= base + 37 * MIB  # the other still has it
    outbox.put("drop")
    assert inbox.get(timeout=WAIT) == "dropped"
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() == base, torch.cuda.memory_allocated()
    del theirs
    gc.collect()
    outbox.put("end")
    other.join(WAIT)
    assert other.exitcode == 0, other.exitcode
    assert_sound()


def unshared() -> None:
    """What cannot be shared says why, in one line."""
    torcharena.enable(spill="1GiB")
    watch()
    with torcharena.region("kv"):
        inside = torch.zeros(MIB, device="cuda")
    try:
        inside.untyped_storage()._share_cuda_()
    except RuntimeError as error:
        assert "region" in str(error) and "tensor.cpu()" in str(error), error
    else:
        raise AssertionError("memory that may move was shared")
    # A process without the arena: the handle says so when it arrives.
    told = torch.zeros(10, device="cuda").untyped_storage()._share_cuda_()
    handle = told[1]
    done = subprocess.run(
        [sys.executable, "-c", f"import pickle; pickle.loads({pickle.dumps(handle)!r})"],
        capture_output=True,
        text=True,
        timeout=WAIT,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and "torcharena.enable()" in last, done.stderr
    torch.UntypedStorage._release_ipc_counter(told[4], told[5], device="cuda")
    torch.cuda.ipc_collect()
    assert_sound()


def misanswered() -> None:
    """Whatever the other side sends, its descriptors are closed and the error says something."""
    begin()
    told = list(torch.zeros(10, device="cuda").untyped_storage()._share_cuda_())
    start = told[1].index(b"torcharena.")
    named = told[1][start : told[1].index(b"\0", start)]
    name = b"torcharena.test".ljust(len(named), b"x")
    told[1] = told[1].replace(named, name)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(b"\0" + name)
    listening.listen()
    fine, wrong = (status.to_bytes(4, sys.byteorder) for status in (0, 1))
    messages = [(fine, 3), (wrong, 1), (b"?", 2), (wrong, 40), (fine, 0), (b"", 0)]
    sent = list(messages)

    def answer() -> None:
        while sent:
            with listening.accept()[0] as connection:
                connection.recv(1000)
                data, count = sent.pop(0)
                if data:
                    socket.send_fds(connection, [data], [listening.fileno()] * count)

    thread = threading.Thread(target=answer)
    thread.start()
    before = len(os.listdir("/proc/self/fd"))
    for _ in messages:
        try:
            torch.UntypedStorage._new_shared_cuda(*told)
        except RuntimeError as error:
            assert "cannot be shared" in str(error), error
        else:
            raise AssertionError("a storage of a malformed answer")
    thread.join()
    after = len(os.listdir("/proc/self/fd"))
    assert after == before, (before, after)
    listening.close()
    torch.UntypedStorage._release_ipc_counter(told[4], told[5], device="cuda")
    torch.cuda.ipc_collect()
    assert_sound()


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """The profiler's library has things of its own to say on standard error."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


# --- the profiler ---------------------------------------------------------------------------
def profiled() -> None:
    """Memory events of the GPU: each allocation and free, with the totals; none when off."""
    from torch.profiler import ProfilerActivity, profile

    begin()
    quiet: dict[str, Any] = {"activities": [ProfilerActivity.CPU], "acc_events": True}
    model = torch.nn.Linear(256, 256).cuda()
    wide: dict[str, Any] = {"record_shapes": True, "with_stack": True}
    with hushed(), profile(**quiet, profile_memory=True, **wide) as on:
        before = torch.cuda.memory_allocated()
        for _ in range(2):
            model(torch.zeros(64, 256, device="cuda")).sum().backward()
        after = torch.cuda.memory_allocated()
    with hushed(), profile(**quiet) as off:
        torch.zeros(1000, device="cuda")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        found = []
        for one in (on, off):
            one.export_chrome_trace(str(path))
            events = json.loads(path.read_text())["traceEvents"]
            memory = [e for e in events if e.get("name") == "[memory]"]
            memory.sort(key=lambda e: e["ts"])
            found.append([e["args"] for e in memory if e["args"]["Device Type"] == 1])
        assert found[1] == []
        assert len(found[0]) >= 8
        assert sum(a["Bytes"] for a in found[0]) == after - before
        total = before
        for args in found[0]:
            total += args["Bytes"]
            assert args["Total Allocated"] == total, (args, total)
            assert args["Total Reserved"] >= total
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            on.export_memory_timeline(str(path), device="cuda:0")
        times, sizes = json.loads(path.read_text())
        assert len(times) == len(sizes) > 8
        assert max(sum(row) for row in sizes) > 256 * 256 * 4
    assert_sound()


# --- MemPool -----------------------------------------------------------------------------------
def pools() -> None:
    """Nested, in several threads, with a graph, and told by a snapshot."""
    begin()
    outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()

    def of(tensor: torch.Tensor) -> tuple[int, int]:
        """The pool whose memory the tensor is in."""
        return next(
            tuple(segment["segment_pool_id"])
            for segment in torch.cuda.memory_snapshot()
            if 0 <= tensor.data_ptr() - segment["address"] < segment["total_size"]
        )

    with torch.cuda.use_mem_pool(outer):
        a = torch.zeros(MIB, device="cuda")
        with torch.cuda.use_mem_pool(inner):
            b = torch.zeros(MIB, device="cuda")
        c = torch.zeros(MIB, device="cuda")
    d = torch.zeros(MIB, device="cuda")
    assert [of(t) for t in (a, b, c, d)] == [outer.id, inner.id, outer.id, (0, 0)]
    assert {tuple(s["segment_pool_id"]) for s in inner.snapshot()} == {inner.id}
    live = [
        block["address"]
        for segment in outer.snapshot()
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
    assert sorted(live) == sorted(t.data_ptr() for t in (a, c))

    # Another thread's allocations are not the pool's; its own pool's are.
    made: dict[str, torch.Tensor] = {}
    inside, done = threading.Event(), threading.Event()

    def elsewhere(pool: Any) -> None:
        inside.wait(WAIT)
        made["none"] = torch.zeros(MIB, device="cuda")
        with torch.cuda.use_mem_pool(pool):
            made["inner"] = torch.zeros(MIB, device="cuda")
        done.set()

    thread = threading.Thread(target=elsewhere, args=(inner,))
    thread.start()
    with torch.cuda.use_mem_pool(outer):
        inside.set()
        done.wait(WAIT)
        e = torch.zeros(MIB, device="cuda")
    thread.join()
    if hasattr(torch._C, "_cuda_beginAllocateCurrentThreadToPool"):
        assert of(made["none"]) == (0, 0)  # torch 2.7 routes by stream
    assert of(made["inner"]) == inner.id
    assert of(e) == outer.id

    # A graph captured into the pool.
    x = torch.zeros(MIB, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=outer.id):
        y = x + 1
    assert of(y) == outer.id
    x.fill_(4)
    graph.replay()
    is_all(y, 5)
    del graph, x, y, a, b, c, d, e
    made.clear()
    reserved = torch.cuda.memory_reserved()
    del outer, inner, thread
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < reserved
    assert_sound()


CASES: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (
        trees,
        trees_backward,
        promised,
        shared,
        unshared,
        misanswered,
        profiled,
        pools,
    )
}

if __name__ == "__main__":
    for name in sys.argv[1].split(","):
        print(name, flush=True)
        CASES[name]()
