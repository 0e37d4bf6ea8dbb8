"""Values on a simulated GPU: what decides a program's course is computed on the CPU.

Kernels compute nothing on the simulated GPU, but its memory is real host memory. So a
dispatch mode lets every operation run (all its allocations happen), and then computes what
matters with PyTorch's CPU kernels over the same memory:

* integers and booleans are true;
* small floats (up to ``limit`` elements) are computed;
* where an integer derives from large floats, which have no contents, it is computed from
  random numbers; a small float that derives from large ones is random, in [0, 1);
* an operation whose output's size is its value (``nonzero``, ``unique``, a boolean mask as
  an index) is computed first, and its output allocated.

Not thread-safe beyond what a dispatch mode is: each thread has its own stack of modes, and
autograd's threads take the one of the forward pass.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
)

from . import guesses, inside

__all__ = ["DEFAULT_LIMIT", "Values"]

DEFAULT_LIMIT = 1 << 17  #: elements up to which floats are computed
_WORK = 1 << 25  # multiplications up to which a product is computed
_WIDEST = 8  # bytes of an element
_ALL = (1 << 64) - 1
_FEED = 1 << 22  # elements up to which a large float is fed at random; above, outputs are
_SPRINKLED = 1 << 24  # booleans up to which all are random, and how many are beyond:
_SPOTS = 16  # in so many parts, of a mebibyte each
_aten = torch.ops.aten
_ADD, _ADD_ = _aten.add.Tensor, _aten.add_.Tensor
_ENGINE = torch.autograd.graph._engine_run_backward.__code__  # autograd, from this thread
# Of a gradient that autograd's buffer alone holds, as `Values._gradients_meet` sees it: uses
# of the tensor, references to its wrapper, uses of its storage (torch 2.10 and later).
_ALONE = (4, 4, 2)

_PLAIN_DISPATCH = torch._C._disabled_torch_dispatch_impl

_VIEW, _PLAIN, _LEAVE, _DYNAMIC, _COPY, _INDEX, _ITEM, _RANKS, _OPENED = range(9)

# Integers in their results are for the backward pass alone, or states of generators.
_LEFT_ALONE = (
    "native_dropout",
    "_fused_dropout",
    "_scaled_dot_product",
    "_efficient_attention",
    "_flash_attention",
    "_fused_sdp_choice",
    "cudnn_batch_norm",
    "_cudnn_rnn",
    "_cudnn_init_dropout_state",
    "max_pool2d_with_indices",
    "max_pool3d_with_indices",
    "_thnn_fused",
    "_amp_foreach_non_finite_check_and_unscale",
    "empty",
    "_embedding_bag",
    "_ctc_loss",
    "record_stream",
    "resize_",
    "set_",
)
_SIZED_BY_VALUES = (
    "nonzero",
    "masked_select",
    "_unique",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "unique_dim_consecutive",
    "repeat_interleave",
    "bincount",
    "equal",
    "allclose",
    "nms",
    "is_nonzero",
)
_SAME = ("equal", "allclose")
_COPIES = ("copy_", "_to_copy", "_foreach_copy_", "_copy_from", "clone")
_INDEXING = (
    "index",
    "_unsafe_index",
    "index_put",
    "index_put_",
    "_index_put_impl_",
    "_unsafe_index_put",
)
_PRODUCTS = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "convolution",
    "_convolution",
    "convolution_backward",
    "cudnn_convolution",
    "addmv",
    "mv",
    "linear",
)
_ZEROS = ("zero_", "zeros", "zeros_like", "new_zeros")
_OVERWRITES = ("copy_", "fill_", "normal_", "random_", "uniform_", "zero_")
_EQUALITIES = ("eq", "ne", "isnan", "isinf", "isfinite")
_CHOICES = (
    "argmax",
    "argmin",
    "max",
    "min",
    "topk",
    "sort",
    "argsort",
    "multinomial",
    "mode",
)


class _Plan:
    """What to do with one operator, looked up once."""

    __slots__ = ("composite", "fresh", "kind", "name", "seeded", "sparse", "writes")

    def __init__(self, func: Any) -> None:
        schema = func._schema
        name = schema.name.split("::")[-1]
        self.name = name
        self.writes = [
            (i, a.name, a.kwarg_only)
            for i, a in enumerate(schema.arguments)
            if a.alias_info is not None and a.alias_info.is_write
        ]
        self.seeded = torch.Tag.nondeterministic_seeded in func.tags
        # What it writes held nothing that it reads.
        self.fresh = name in _OVERWRITES or "out" in schema.overload_name
        # Made of other operators; in inference mode these arrive whole.
        kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        self.composite = kernel(func.name(), "CompositeImplicitAutograd") and not kernel(
            func.name(), "CUDA"
        )
        self.sparse = name in inside.SPARSE or "sparse" in name or name == "_coalesce"
        returns = schema.returns
        if schema.name.startswith(("c10d::", "_c10d_functional")):
            self.kind = _RANKS
        elif name == "_local_scalar_dense":
            self.kind = _ITEM
        elif name in inside.OPENED:
            self.kind = _OPENED
        elif name in _INDEXING:  # whose size is that of the indices, once masks are
            self.kind = _INDEX
        elif name in _SIZED_BY_VALUES or torch.Tag.dynamic_output_shape in func.tags:
            self.kind = _DYNAMIC
        elif name in _COPIES:
            self.kind = _COPY
        elif name.startswith(_LEFT_ALONE) or name.startswith("new_empty"):
            self.kind = _LEAVE
        elif (
            returns and not self.writes and all(r.alias_info is not None for r in returns)
        ):
            self.kind = _VIEW
        else:
            self.kind = _PLAIN


_PLAN_ADD_ = _Plan(_ADD_)


def _tensors(values: Any, found: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors among arguments or results, lists and tuples included."""
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            _tensors(value, found)
    return found


def _is_in(tensor: torch.Tensor, tensors: list[torch.Tensor]) -> bool:
    return any(tensor is other for other in tensors)


def _is_for_device(args: Any, kwargs: Any) -> bool:
    """An operator on the simulated GPU: no tensor is elsewhere, nor is it asked for there."""
    tensors = _tensors(args, _tensors(kwargs.values(), []))
    if tensors:
        return any(t.is_cuda for t in tensors)
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == "cuda"


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def _uses_of_storage(tensor: torch.Tensor) -> int:
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def _is_dense(tensor: torch.Tensor) -> bool:
    """Its elements, in some order of the dimensions, lie side by side."""
    if tensor.is_contiguous():
        return True
    next_to = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != next_to:
                return False
            next_to *= size
    return True


def _view(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the same bytes as a tensor of the simulated GPU."""
    if tensor.numel() == 0:
        return torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu"
        )
    storage = tensor.untyped_storage()
    memory = torch._C._construct_storage_from_data_pointer(
        storage.data_ptr(), torch.device("cpu"), storage.nbytes()
    )
    view = torch.empty((0,), dtype=tensor.dtype, device="cpu").set_(
        memory, tensor.storage_offset(), tensor.shape, tensor.stride()
    )
    if tensor.is_conj():
        view = view.conj()
    return view


def _stack() -> list[Any]:
    return list(_get_current_dispatch_mode_stack())


class _Again:
    """Pushes a mode that is alive already, for a while."""

    def __init__(self, mode: TorchDispatchMode) -> None:
        self.mode = mode

    def __enter__(self) -> None:
        TorchDispatchMode.__enter__(self.mode)

    def __exit__(self, *error: Any) -> None:
        TorchDispatchMode.__exit__(self.mode, *error)


class _OneThread:
    """What is computed here is small: a second thread gains little, and on a busy machine each
    operator would wait for it until it is scheduled."""

    def __enter__(self) -> None:
        self.threads = torch.get_num_threads()
        if self.threads > 1:
            torch.set_num_threads(1)

    def __exit__(self, *error: Any) -> None:
        if self.threads > 1:
            torch.set_num_threads(self.threads)


class Values(TorchDispatchMode):
    """Keeps integers, booleans and small floats true on a simulated GPU.

    ``limit``: elements up to which floats are computed (``TORCHARENA_VALUES_LIMIT`` in the
    environment, else 131072). ``seed``: of the random numbers fed where contents are
    unknown. Enter it in the thread that runs the program.
    """

    def __init__(self, limit: int | None = None, seed: int = 0) -> None:
        super().__init__()
        if limit is None:
            limit = int(os.environ.get("TORCHARENA_VALUES_LIMIT", DEFAULT_LIMIT))
        self.limit = limit
        self.plans: dict[Any, _Plan] = {}
        self.guessed: Counter[str] = Counter()  #: operators fed or filled at random
        self.guesses = guesses.Guesses()  #: which contents are, and where one was read
        self.failed: Counter[str] = Counter()  #: operators the CPU could not compute
        self.generator = torch.Generator().manual_seed(seed)
        self.tile = torch.rand(1 << 18, generator=self.generator)
        self.bits = self.tile > 0.5
        # The same in each type, to be copied: (address, bytes, the tensor that keeps it).
        self.tiles: dict[torch.dtype, tuple[int, int, torch.Tensor]] = {}
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.bool):
            tile = self.bits if dtype is torch.bool else self.tile[: limit * 2].to(dtype)
            size = tile.numel() * tile.element_size()
            self.tiles[dtype] = (tile.data_ptr(), size, tile)
        try:
            skip = ctypes.CDLL(None).ta_simcuda_skip_above
            skip.argtypes, skip.restype = [ctypes.c_size_t], None
            self.skip: Any = skip
            device_skip = ctypes.CDLL(None).ta_simcuda_device_skip_above
            device_skip.argtypes, device_skip.restype = [ctypes.c_size_t], None
            self.device_skip: Any = device_skip
            touched = ctypes.CDLL(None).ta_simcuda_copy_touched
            touched.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
            touched.restype = ctypes.c_size_t
            self.touched: Any = touched
            zero = ctypes.CDLL(None).ta_simcuda_zero
            zero.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
            self.zero: Any = zero
            own_modes = ctypes.CDLL(None).ta_simcuda_own_modes
            own_modes.argtypes, own_modes.restype = [ctypes.c_int], None
            self.own_modes: Any = own_modes
        except AttributeError:
            self.skip = self.device_skip = self.zero = self.touched = None
            self.own_modes = None

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled functions run as without the mode."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No wrapper that imports torch._dynamo at the first operation."""
        return False

    def __enter__(self) -> Values:
        """Also while a tensor is printed: torch switches modes off there, and the sizes
        that printing asks for would be a kernel's."""
        import torch._tensor_str as printing

        inner = printing._str_intern

        def printed(*args: Any, **kwargs: Any) -> Any:
            with self.again():
                return inner(*args, **kwargs)

        self.printing: Any = inner
        printing._str_intern = printed
        if self.device_skip is not None:
            self.device_skip(self.limit * _WIDEST)
        if self.own_modes is not None:
            self.own_modes(1)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        import torch._tensor_str as printing

        super().__exit__(*error)
        printing._str_intern = self.printing
        if self.device_skip is not None:
            self.device_skip(0)
        if self.own_modes is not None:
            self.own_modes(0)

    @contextlib.contextmanager
    def exactly(self, tensors: list[torch.Tensor]) -> Iterator[None]:
        """Copies of large integers on the device are made, unlike those of floats."""
        large = self.skip is not None and any(
            not _is_float(t) and t.numel() * t.element_size() > self.limit * _WIDEST
            for t in tensors
        )
        if not large:
            yield
            return
        self.skip(_ALL)
        try:
            yield
        finally:
            self.skip(0)

    def again(self) -> Any:
        """The mode itself, without what entering it at first does."""
        return contextlib.nullcontext() if self in _stack() else _Again(self)

    def report(self) -> dict[str, Any]:
        """For the rehearsal's: where the program saw guesses, and what the CPU could not do."""
        return {
            "places": self.guesses.report(),
            "failed": dict(list(self.failed.items())),
        }

    # --- what is known ------------------------------------------------------------------
    def known(self, tensor: torch.Tensor) -> bool:
        """True where the contents are kept: integers, booleans, small floats, the CPU's."""
        if not tensor.is_cuda:
            return True
        if tensor.layout is not torch.strided or tensor._is_zerotensor():
            return False  # the latter: forward derivatives' zeros, which have no memory
        if not _is_float(tensor):
            return True
        if tensor.numel() > self.limit:
            return False
        return bool(
            tensor.untyped_storage().nbytes() <= self.limit * tensor.element_size()
        )

    def fill(self, tensor: torch.Tensor) -> None:
        """Random contents: floats in [0, 1), booleans, small integers left as they are."""
        tile = self.tiles.get(tensor.dtype)
        if tile is not None and tensor.is_contiguous():
            size = tensor.numel() * tensor.element_size()
            if size <= tile[1]:
                ctypes.memmove(tensor.data_ptr(), tile[0], size)
                return
            if tensor.dtype is torch.bool:
                self._sprinkle(tensor.data_ptr(), size)
                return
        out = _view(tensor)
        if out.dtype is torch.bool:
            source = self.bits
        elif _is_float(out):
            source = self.tile
        else:
            return
        count = out.numel()
        if count <= source.numel():
            out.copy_(source[:count].view(out.shape))
            return
        whole = source.repeat(-(-count // source.numel()))[:count]
        out.copy_(whole.view(out.shape))

    def _sprinkle(self, address: int, size: int) -> None:
        """Random booleans; where there are very many, in parts of them, spread evenly, and
        none between: a mask over large floats takes little host memory."""
        source, most, _ = self.tiles[torch.bool]
        if size > _SPRINKLED and self.zero is not None and not self.zero(address, size):
            part = _SPRINKLED // _SPOTS
            step = size // _SPOTS // part * part
            for spot in range(_SPOTS):
                for at in range(0, part, most):
                    ctypes.memmove(address + spot * step + at, source, most)
            return
        for at in range(0, size, most):
            ctypes.memmove(address + at, source, min(most, size - at))

    def random_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Random numbers in the shape of a tensor whose contents are unknown."""
        count = tensor.numel()
        start = int(torch.randint(0, 1 << 12, (1,), generator=self.generator))
        repeats = -(-(count + start) // self.tile.numel())
        flat = self.tile if repeats == 1 else self.tile.repeat(repeats)
        return flat[start : start + count].view(tensor.shape).to(tensor.dtype)

    # --- converting arguments -------------------------------------------------------------
    def _convert(self, value: Any, reads: bool = False) -> Any:
        """An argument for the CPU. ``reads``: it is not written to."""
        if isinstance(value, torch.Tensor):
            if not value.is_cuda:
                return value
            if not self.known(value):
                return self.random_like(value)
            return self._sparsely(value) if reads else _view(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self._convert(v, reads) for v in value)
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, torch.Generator):
            return self.generator
        return value

    def _sparsely(self, tensor: torch.Tensor) -> torch.Tensor:
        """As `_view`; of much memory, most of which nobody wrote, a copy of what was
        written: to read the rest in its place would make its pages."""
        size = tensor.numel() * tensor.element_size()
        if size <= _SPRINKLED or self.touched is None or not tensor.is_contiguous():
            return _view(tensor)
        if self.touched(None, tensor.data_ptr(), size) > size // 4:
            return _view(tensor)
        zeros = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory = torch.frombuffer(zeros, dtype=tensor.dtype)
        self.touched(memory.data_ptr(), tensor.data_ptr(), size)
        return memory.view(tensor.shape)

    def _on_cpu(self, func: Any, plan: _Plan, args: Any, kwargs: Any) -> Any:
        """The operator on the CPU over the same memory; None where it cannot."""
        try:
            reads = not plan.writes
            cpu_args = self._convert(tuple(args), reads)
            cpu_kwargs = {k: self._convert(v, reads) for k, v in kwargs.items()}
            if cpu_kwargs.get("pin_memory"):
                cpu_kwargs["pin_memory"] = False
            if not plan.seeded or cpu_kwargs.get("generator") is not None:
                return func(*cpu_args, **cpu_kwargs)
            # The user's generator must not notice.
            state = torch.get_rng_state()
            torch.set_rng_state(self.generator.get_state())
            try:
                return func(*cpu_args, **cpu_kwargs)
            finally:
                self.generator.set_state(torch.get_rng_state())
                torch.set_rng_state(state)
        except (RuntimeError, NotImplementedError, IndexError, TypeError):
            self.failed[plan.name] += 1
            return None

    # --- the mode ----------------------------------------------------------------------------
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        for kind in types:
            if kind.__torch_dispatch__ is not _PLAIN_DISPATCH:
                if kind.__name__ == "FakeTensor":  # its mode comes after ours
                    return func(*args, **(kwargs or {}))
                return NotImplemented  # a subclass has its say first
        kwargs = kwargs or {}
        plan = self.plans.get(func)
        if plan is None:
            plan = self.plans[func] = _Plan(func)
        kind = plan.kind
        if plan.composite and kind != _RANKS:
            with self.again():
                return func.decompose(*args, **kwargs)
        if plan.sparse and inside.has_sparse(args):
            return inside.run(self, func, plan.name, args, kwargs)
        if kind in (_VIEW, _LEAVE):
            return func(*args, **kwargs)
        if (
            func is _ADD
            and not kwargs
            and not torch.is_grad_enabled()
            and self._gradients_meet(*args)
        ):
            func, plan = _ADD_, _PLAN_ADD_
        if kind == _OPENED and _is_for_device(args, kwargs):
            result = inside.run(self, func, plan.name, args, kwargs)
            self._after(func, plan, args, kwargs, result)
            return result
        if kind == _RANKS:
            return self._between_ranks(func, plan, args, kwargs)
        if kind == _ITEM:
            return self._item(func, args)
        if kind == _COPY:
            return self._copy(func, plan, args, kwargs)
        if plan.name == "_linalg_check_errors" and args[0].is_cuda:
            return func(_view(args[0]), *args[1:], **kwargs)
        if kind == _INDEX:
            args = self._indices(args)
        elif kind == _DYNAMIC:
            inputs = _tensors(args, [])
            if any(t.is_cuda for t in inputs) and all(
                t.layout is torch.strided for t in inputs
            ):
                return self._sized_by_values(func, plan, args, kwargs, inputs)
        result = func(*args, **kwargs)
        self._after(func, plan, args, kwargs, result)
        return result

    def _gradients_meet(self, one: Any, other: Any) -> bool:
        """Autograd adds the second gradient of a tensor to the first, which nothing else
        holds. On a GPU it does so in place; here, from torch 2.10 on, it sees that Python
        has a wrapper of the first, which our looking at it made."""
        behind = sys._getframe(1).f_back
        if behind is not None and behind.f_code is not _ENGINE:
            return False
        return (
            isinstance(other, torch.Tensor)
            and one.is_cuda
            and one.layout is other.layout is torch.strided
            and one.dtype == other.dtype
            and one.shape == other.shape
            and not one._is_zerotensor()
            and _is_dense(one)
            and (one._use_count(), sys.getrefcount(one), _uses_of_storage(one)) == _ALONE
        )

    def _between_ranks(self, func: Any, plan: _Plan, args: Any, kwargs: Any) -> Any:
        """Small contents are the stand-ins' of NCCL, but for small floats out of large ones."""
        inputs = _tensors(args, [])
        with self.exactly(inputs):
            result = func(*args, **kwargs)
        outputs = [t for t in _tensors((result,), []) if t.is_cuda]
        places = {id(t) for t in outputs}
        if any(id(t) not in places and not self.known(t) for t in inputs):
            wanted = [t for t in outputs if t.numel() and _is_float(t) and self.known(t)]
            if wanted:
                self.guessed[plan.name] += 1
            for tensor in wanted:
                self.fill(tensor)
        return result

    def _item(self, func: Any, args: Any) -> Any:
        value = func(*args)
        if args[0].is_cuda and isinstance(value, float) and not self.known(args[0]):
            self.guessed["item"] += 1
            self.guesses.seen(guesses.READ)
            value = float(torch.rand((), generator=self.generator))
        elif self.guesses.among(args[:1]):
            self.guesses.seen(guesses.READ)
        return value

    def _copy(self, func: Any, plan: _Plan, args: Any, kwargs: Any) -> Any:
        """Copies move bytes themselves, but large floats' need not; casts are kernels."""
        inputs = _tensors(args, _tensors(kwargs.values(), []))
        large = self.skip is not None and any(
            _is_float(t) and t.numel() > self.limit for t in inputs
        )
        if large:
            self.skip(self.limit)
            try:
                result = func(*args, **kwargs)
            finally:
                self.skip(0)
        else:
            with self.exactly(inputs):
                result = func(*args, **kwargs)
        source = args[1] if plan.name == "copy_" and len(args) > 1 else args[0]
        to_host = (
            isinstance(result, torch.Tensor)
            and isinstance(source, torch.Tensor)
            and source.is_cuda
            and not result.is_cuda
        )
        if to_host and (not self.known(source) or self.guesses.among((source,))):
            self.guesses.seen(guesses.COPIED)
        if large:
            return result
        if to_host:
            # To the host: only plain bytes are moved, what else there is is a kernel's.
            plain = source.is_contiguous() and result.is_contiguous()
            if not plain or source.dtype != result.dtype:
                result.copy_(_view(source))
        else:
            self._after(func, plan, args, kwargs, result)
        return result

    def _indices(self, args: Any) -> Any:
        """Boolean masks become indices here: below, their count would be a kernel's result."""
        indices = args[1]
        if not any(
            i is not None and i.is_cuda and i.dtype in (torch.bool, torch.uint8)
            for i in indices
        ):
            return args
        if self.guesses.among(i for i in indices if i is not None):
            self.guesses.seen(guesses.SIZED)
        made: list[Any] = []
        for index in indices:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                made.append(index)
                continue
            places = _view(index).nonzero() if index.is_cuda else index.nonzero()
            on_device = self._give(places, index.device)
            made.extend(on_device.select(1, j) for j in range(index.dim()))
        return (args[0], made, *args[2:])

    def _give(self, value: Any, device: torch.device) -> Any:
        """A CPU result as a tensor of the simulated GPU."""
        if isinstance(value, (list, tuple)):
            return type(value)(self._give(v, device) for v in value)
        if not isinstance(value, torch.Tensor):
            return value
        out = torch.empty(value.shape, dtype=value.dtype, device=device)
        if value.numel():
            _view(out).copy_(value)
        return out

    def _sized_by_values(
        self, func: Any, plan: _Plan, args: Any, kwargs: Any, inputs: list[torch.Tensor]
    ) -> Any:
        unknown = not all(self.known(t) for t in inputs)
        guess = unknown or self.guesses.among(inputs)
        if guess:
            self.guesses.seen(guesses.READ if plan.name in _SAME else guesses.SIZED)
        if plan.name == "allclose":  # for what it allocates
            func(*args, **kwargs)
        if unknown:
            self.guessed[plan.name] += 1
            if plan.name in _SAME:  # a check, most likely, and one that passes
                return args[0].shape == args[1].shape
        with _OneThread():
            result = self._on_cpu(func, plan, args, kwargs)
        if result is None:
            return func(*args, **kwargs)
        device = next(t.device for t in inputs if t.is_cuda)
        made = self._give(result, device)
        self.guesses.mark(_tensors((made,), []), guess)
        return made

    def _after(self, func: Any, plan: _Plan, args: Any, kwargs: Any, result: Any) -> None:
        """Computes what matters of an operation that has run."""
        written: list[torch.Tensor] = []
        for position, name, keyword in plan.writes:
            value = (
                kwargs.get(name) if keyword or position >= len(args) else args[position]
            )
            _tensors((value,), written)
        outputs = written or _tensors((result,), [])
        wanted = [t for t in outputs if t.numel() and t.is_cuda and self.known(t)]
        if not wanted:
            return
        if plan.name in _ZEROS and self._zeroed(outputs):
            self.guesses.mark(wanted, False)
            return
        with _OneThread():
            self._compute(func, plan, args, kwargs, outputs, wanted, written)

    def _compute(
        self,
        func: Any,
        plan: _Plan,
        args: Any,
        kwargs: Any,
        outputs: list[torch.Tensor],
        wanted: list[torch.Tensor],
        written: list[torch.Tensor],
    ) -> None:
        """The contents of ``wanted``, those of ``outputs`` that are kept; ``written``: the
        arguments among them."""
        inputs = _tensors(args, _tensors(kwargs.values(), []))
        unknown = [t for t in inputs if not self.known(t)]
        if any(t.layout is not torch.strided for t in unknown):
            return
        integers = [t for t in wanted if not _is_float(t)]
        much = (
            not unknown
            and plan.name in _PRODUCTS
            and self._work(plan, inputs, outputs) > _WORK
        )
        if unknown or much:
            guess = True
        elif plan.fresh:
            guess = self.guesses.among(t for t in inputs if not _is_in(t, written))
        else:
            guess = self.guesses.among(inputs)
        self.guesses.mark(wanted, guess)
        if unknown:
            self.guessed[plan.name] += 1
            if not integers:
                if not written:
                    for tensor in wanted:
                        self.fill(tensor)
                return
            if plan.name.startswith(("linalg_", "_linalg_")):
                self._factor(plan, outputs)
                return
            quick = plan.name in _CHOICES or plan.name in _EQUALITIES
            if quick or max(t.numel() for t in unknown) > _FEED:
                chosen = self._choose(plan, args, kwargs, outputs, unknown[0])
                if chosen:
                    return
        elif much:
            self.guessed[plan.name] += 1
            for tensor in wanted:
                self.fill(tensor)
            return
        values = self._on_cpu(func, plan, args, kwargs)
        if written:
            return
        if values is None:
            for tensor in wanted:
                if _is_float(tensor):
                    self.fill(tensor)
            return
        for tensor, value in zip(outputs, _tensors((values,), []), strict=False):
            known = tensor.is_cuda and tensor.numel() and self.known(tensor)
            if known and tensor.shape == value.shape:
                _view(tensor).copy_(value)

    def _factor(self, plan: _Plan, outputs: list[torch.Tensor]) -> None:
        """A factorisation of an unknown matrix: it succeeds, without exchanges of rows. Of
        random numbers most fail."""
        for place, tensor in enumerate(outputs):
            if not self.known(tensor) or not tensor.numel():
                continue
            if _is_float(tensor):
                self.fill(tensor)
            elif plan.name == "linalg_lstsq":  # the rank
                _view(tensor).fill_(outputs[0].shape[-2])
            elif plan.name.endswith("_ex") and place == len(outputs) - 1:
                _view(tensor).zero_()
            else:
                pivots = torch.arange(1, tensor.shape[-1] + 1, dtype=tensor.dtype)
                _view(tensor).copy_(pivots.expand(tensor.shape))

    def _zeroed(self, outputs: list[torch.Tensor]) -> bool:
        """Zeros need no computing; large ones are made by giving their pages back."""
        tensor = outputs[0]
        size = tensor.numel() * tensor.element_size()
        if not tensor.is_cuda or not tensor.is_contiguous():
            return False
        if size <= self.limit * _WIDEST:
            ctypes.memset(tensor.data_ptr(), 0, size)
            return True
        return bool(self.zero is not None and self.zero(tensor.data_ptr(), size) == 0)

    def _work(
        self, plan: _Plan, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
    ) -> int:
        """Multiplications of a product, roughly."""
        if "conv" in plan.name and len(inputs) > 1:
            weight = inputs[1] if plan.name != "convolution_backward" else inputs[2]
            return max(t.numel() for t in (*inputs, *outputs)) * max(
                1, weight.numel() // max(1, weight.shape[0])
            )
        return max(t.numel() for t in outputs) * max(
            t.shape[-1] for t in inputs if t.dim()
        )

    def _choose(
        self,
        plan: _Plan,
        args: Any,
        kwargs: Any,
        outputs: list[torch.Tensor],
        source: torch.Tensor,
    ) -> bool:
        """Random results without looking at large floats. False where it cannot tell how."""
        name = plan.name
        if name in ("argmax", "argmin", "max", "min", "mode", "topk", "multinomial"):
            position = 2 if name in ("topk", "multinomial") else 1
            dim = args[position] if len(args) > position else kwargs.get("dim")
            if name in ("topk", "multinomial") and not isinstance(dim, int):
                dim = -1
            high = source.numel() if dim is None else source.shape[dim]
            for tensor in outputs:
                if _is_float(tensor):
                    if self.known(tensor):
                        self.fill(tensor)
                    continue
                out = _view(tensor)
                if name == "topk" and dim is not None:
                    # distinct along the dimension
                    count = tensor.shape[dim]
                    shape = list(tensor.shape)
                    shape[dim] = 1
                    first = torch.randint(0, high, shape, generator=self.generator)
                    steps = torch.arange(count).view(
                        [
                            -1 if d == dim % tensor.dim() else 1
                            for d in range(tensor.dim())
                        ]
                    )
                    out.copy_((first + steps * max(1, high // max(1, count))) % high)
                else:
                    out.random_(0, max(1, high), generator=self.generator)
            return True
        if name in ("sort", "argsort"):
            return False
        for tensor in outputs:
            if tensor.dtype is torch.bool:
                if name in ("isnan", "isinf", "isneginf", "isposinf", "eq", "ne"):
                    # Two random numbers are hardly ever equal; the same one always is.
                    same = len(args) > 1 and args[0] is args[1]
                    value = (name == "ne") != same if name in ("eq", "ne") else False
                    if value or not self._zeroed([tensor]):
                        _view(tensor).fill_(value)
                elif name == "isfinite":
                    _view(tensor).fill_(True)
                else:
                    self.fill(tensor)
            elif _is_float(tensor) and self.known(tensor):
                self.fill(tensor)
        return True
