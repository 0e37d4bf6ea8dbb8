"""`torch.compile` in a rehearsal: what only a GPU would use is not made.

Dynamo, AOTAutograd and Inductor run as ever, since they decide what a compiled program
allocates. What comes after them is for a GPU alone and decides nothing about memory:

* the kernels that Inductor writes are not compiled by Triton: launching one queues work on
  its stream and computes nothing, so no PTX, no cubin and no C launcher is needed. Their
  registers (32), spills (0) and shared memory (0) are such that every configuration that
  Inductor proposes is a candidate, as is mostly so on a GPU;
* a benchmark calls its candidate twice with the cache-clearing buffer allocated between, as
  the first of its hundreds of rounds would, and every candidate is found to take as long;
* no process pool compiles beside the program.

The runs of one rehearsal share what Inductor keeps on disk (`launch.cache_environment`), so
that only the first compiles. What a compilation chose by benchmarks is kept from the others,
who take the memory of those benchmarks themselves.

Under the arena, CUDA graph trees (``mode="reduce-overhead"``) are off in a rehearsal, though the
arena has them on a GPU; `trees_off` says whether the program captured graphs without them.

Kernels that a program writes in Triton itself, ahead-of-time compilation, and kernels that
make tensor descriptors on the device (whose scratch memory the compiler decides) are really
compiled. Modules are changed when the program imports them: one that never compiles
anything pays nothing."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import hashlib
import importlib.abc
import importlib.util
import os
import sys
import threading
from collections import namedtuple
from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["AfterImport", "install"]

_REGISTERS = 32  # up to this many, Inductor sees no reason to try smaller blocks
_MILLISECONDS = 0.1  # what every benchmark says
_L2 = 256 << 20  # bytes of the buffer by which Triton's own benchmark clears the cache
_captured = False
_here = threading.local()  # .compiling: how deep this thread is in a compilation
_chose = False  # a compilation has benchmarked


def install() -> None:
    """Called once, before the program imports any of the modules concerned."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    AfterImport.of("torch._inductor.runtime.triton_heuristics", _no_compiler)
    AfterImport.of("torch._inductor.runtime.benchmarking", _no_benchmarks)
    AfterImport.of("torch._inductor.runtime.autotune_cache", _no_choices_kept)
    AfterImport.of("torch._inductor.codecache", _no_graphs_chosen)
    AfterImport.of("torch._functorch._aot_autograd.autograd_cache", _no_pairs_chosen)
    AfterImport.of("torch._dynamo.convert_frame", _no_collections)
    AfterImport.of("torch._inductor.compile_fx", _no_collections_backward)
    AfterImport.of("triton.testing", _no_benchmarks_of_triton)


def without_trees() -> None:
    """For the arena in a rehearsal: graphs are captured one by one, without trees. Called once,
    before the program imports Inductor."""
    AfterImport.of("torch._inductor.config", _no_trees)
    AfterImport.of("torch._inductor.compile_fx", _watch_captures)


def trees_off() -> bool:
    """Whether a graph was captured that trees would have had."""
    return _captured


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with a module, once that has been imported."""

    def __init__(self, name: str, then: Callable[[Any], None]) -> None:
        self.name = name
        self.then = then

    @classmethod
    def of(cls, name: str, then: Callable[[Any], None]) -> None:
        """At once where the module is there already."""
        if name in sys.modules:
            then(sys.modules[name])
        else:
            sys.meta_path.insert(0, cls(name, then))

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name != self.name:
            return None
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        inner = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            inner(module)
            vars(loader).pop("exec_module", None)  # several may wait for one module
            self.then(module)

        loader.exec_module = exec_module
        return spec


# --- kernels ------------------------------------------------------------------------------
class _Source:
    """Of a kernel: what Inductor's launcher asks of it."""

    def __init__(self, source: Any) -> None:
        self.fn = source.fn


class _Kernel:
    """A compiled kernel, as far as Inductor looks at one."""

    launch_enter_hook = None
    launch_exit_hook = None
    function = 1
    module = 1
    n_regs = _REGISTERS
    n_spills = 0
    n_max_threads = 1024
    shared = 0

    def __init__(self, source: Any, target: Any, options: dict[str, Any]) -> None:
        self.src = _Source(source)
        self.name = getattr(source.fn, "__name__", "kernel")
        text = (
            f"{getattr(source.fn, 'src', '')}{source.constants}{sorted(options.items())}"
        )
        self.hash = hashlib.sha256(text.encode()).hexdigest()
        fields = {
            "name": self.name,
            "target": target,
            "shared": 0,
            "num_warps": options.get("num_warps", 4),
            "num_stages": options.get("num_stages", 3),
            "num_ctas": 1,
            "cluster_dims": (1, 1, 1),
            "launch_cooperative_grid": bool(options.get("launch_cooperative_grid")),
            "launch_pdl": False,
            "global_scratch_size": 0,
            "global_scratch_align": 1,
            "profile_scratch_size": 0,
            "profile_scratch_align": 1,
        }
        self.metadata = namedtuple("KernelMetadata", sorted(fields))(**fields)
        self.packed_metadata = (fields["num_warps"], 1, 0, 1, 1, 1)
        self.asm: dict[str, Any] = {}
        self.run = _launcher(fields["num_warps"] * 32)

    def _init_handles(self) -> None:
        return

    def launch_metadata(self, *_: Any) -> None:
        return None


def _launcher(threads: int) -> Callable[..., None]:
    """Queues work that computes nothing. The arguments are those of Triton's launchers."""
    launch = ctypes.PyDLL(None).cuLaunchKernel
    launch.argtypes = [
        ctypes.c_void_p,
        *[ctypes.c_uint] * 7,
        *[ctypes.c_void_p] * 3,
    ]
    launch.restype = ctypes.c_int

    def run(x: int, y: int, z: int, stream: int, function: int, *_: Any) -> None:
        if x * y * z <= 0:
            return
        status = launch(function, x, y, z, threads, 1, 1, 0, stream, None, None)
        if status != 0:
            raise RuntimeError(f"Triton Error [CUDA]: launch failed with {status}")

    return run


def _no_compiler(heuristics: Any) -> None:
    """Inductor's `triton.compile`."""
    triton = getattr(heuristics, "triton", None)
    helpers = getattr(heuristics, "triton_helpers", None)
    compile_ = getattr(triton, "compile", None)
    set_driver = getattr(helpers, "set_driver_to_gpu", None)
    if triton is None or helpers is None or compile_ is None or set_driver is None:
        return
    inductor = heuristics.__name__

    # It builds an extension module in C, which only the compiler uses.
    helpers.set_driver_to_gpu = lambda: None

    @functools.wraps(compile_)
    def compiled(src: Any, target: Any = None, options: Any = None, **more: Any) -> Any:
        asks = sys._getframe(1).f_globals.get("__name__")
        if asks != inductor or not _is_plain(src, target):
            set_driver()
            return compile_(src, target=target, options=options, **more)
        return _Kernel(src, target, options or {})

    triton.compile = compiled


def _is_plain(source: Any, target: Any) -> bool:
    """A kernel of which nothing but the launch matters."""
    import torch._inductor.config as config

    text = getattr(getattr(source, "fn", None), "src", None)
    return (
        getattr(target, "backend", None) == "cuda"
        and isinstance(text, str)
        and "tensor_descriptor" not in text
        and not config.cpp_wrapper
    )


# --- graphs -------------------------------------------------------------------------------
def _no_trees(config: Any) -> None:
    if hasattr(config.triton, "cudagraph_trees"):
        config.triton.cudagraph_trees = False


def _watch_captures(module: Any) -> None:
    inner = getattr(module, "cudagraphify_impl", None)
    if inner is None:
        return

    @functools.wraps(inner)
    def captured(*args: Any, **kwargs: Any) -> Any:
        global _captured
        _captured = True
        return inner(*args, **kwargs)

    module.cudagraphify_impl = captured


# --- benchmarks ---------------------------------------------------------------------------
def _first_round(call: Callable[[], Any], buffer_bytes: int) -> None:
    """With the memory that a benchmark takes, and twice, as it warms up first."""
    global _chose
    import torch

    _chose |= bool(getattr(_here, "compiling", 0))
    call()
    buffer = torch.empty(buffer_bytes // 4, dtype=torch.int, device="cuda")
    call()
    del buffer


def _no_benchmarks(benchmarking: Any) -> None:
    """Inductor's own."""
    kind = getattr(benchmarking, "InductorBenchmarker", None)
    if kind is None or not hasattr(kind, "L2_cache_size"):
        return

    def benchmark_gpu(self: Any, _callable: Any, *_: Any, **how: Any) -> Any:
        _first_round(_callable, self.L2_cache_size)
        return [_MILLISECONDS] if how.get("return_mode") == "all" else _MILLISECONDS

    kind.benchmark_gpu = benchmark_gpu


def _no_benchmarks_of_triton(testing: Any) -> None:
    """`triton.testing.do_bench`, by which kernels with ``@triton.autotune`` choose."""
    if not hasattr(testing, "do_bench"):
        return

    @functools.wraps(testing.do_bench)
    def do_bench(fn: Any, *_: Any, **how: Any) -> Any:
        _first_round(fn, _L2)
        quantiles = how.get("quantiles")
        if quantiles:
            return (
                [_MILLISECONDS] * len(quantiles) if len(quantiles) > 1 else _MILLISECONDS
            )
        return [_MILLISECONDS] if how.get("return_mode") == "all" else _MILLISECONDS

    testing.do_bench = do_bench


def _no_choices_kept(module: Any) -> None:
    """What was chosen here is nothing for runs on a GPU to find in their cache."""
    cache = getattr(module, "AutotuneCache", None)
    if cache is not None and hasattr(cache, "save"):
        cache.save = lambda self, *args, **kwargs: None


def _no_graphs_chosen(module: Any) -> None:
    """Nor for another run: choices stay in their process, and so do the graphs that are
    compiled after one was made."""
    _kept_while_nothing_chosen(getattr(module, "FxGraphCache", None), "_save_graph")
    base = getattr(module, "CacheBase", None)
    inner = getattr(base, "get_local_cache_path", None)
    if base is None or inner is None:
        return

    def own() -> Any:
        path = inner()
        return path.with_name(f"{path.name}.{os.getpid()}")

    base.get_local_cache_path = staticmethod(own)


def _no_pairs_chosen(module: Any) -> None:
    """AOTAutograd's forward and backward passes, likewise."""
    _kept_while_nothing_chosen(getattr(module, "AOTAutogradCache", None), "save")


def _kept_while_nothing_chosen(cache: Any, name: str) -> None:
    inner = getattr(cache, name, None)
    if inner is None:
        return

    @functools.wraps(inner)
    def save(*args: Any, **kwargs: Any) -> Any:
        return None if _chose else inner(*args, **kwargs)

    setattr(cache, name, staticmethod(save))


# --- time ---------------------------------------------------------------------------------
def _no_collections(module: Any) -> None:
    """Dynamo's `_compile`: while it traces, and compiles forward passes."""
    inner = getattr(module, "_compile", None)
    if inner is not None:
        module._compile = _uncollected(inner)


def _no_collections_backward(module: Any) -> None:
    """Inductor's compilations, backward passes at their first call among them."""
    kind = getattr(module, "_InProcessFxCompile", None)
    if kind is not None and hasattr(kind, "codegen_and_compile"):
        kind.codegen_and_compile = _uncollected(kind.codegen_and_compile)


def _uncollected(inner: Callable[..., Any]) -> Callable[..., Any]:
    """Python's collector walks the graphs that a compilation makes, over and over: once,
    which it does by itself as soon as it may, will do. No tensors of the device are in them."""

    @functools.wraps(inner)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        collects = gc.isenabled()
        if collects:
            gc.disable()
        _here.compiling = getattr(_here, "compiling", 0) + 1
        try:
            return inner(*args, **kwargs)
        finally:
            _here.compiling -= 1
            if collects:
                gc.enable()

    return wrapped
