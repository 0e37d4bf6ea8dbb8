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
from .contents import FLOATS, WIDEST, Simulated, is_dense, is_float, tensors_in, view_of
from .guessing import CHOICES, EQUALITIES, SPRINKLED, Guesser

__all__ = ["DEFAULT_LIMIT", "Values"]

DEFAULT_LIMIT = 1 << 17  #: elements up to which floats are computed
_WORK = 1 << 25  # multiplications up to which a product is computed
_ALL = (1 << 64) - 1
_FEED = 1 << 22  # elements up to which a large float is fed at random; above, outputs are
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


class _Plan:
    """What to do with one operator, looked up once."""

    __slots__ = (
        "call",
        "composite",
        "fresh",
        "func",
        "kind",
        "name",
        "plain",
        "seeded",
        "sparse",
        "writes",
    )

    def __init__(self, func: Any) -> None:
        self.func = func  # held, as plans go by its address
        self.call = func._op if type(func) is torch._ops.OpOverload else func
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
            name == "_unsafe_view"  # says nothing of it, but is one
            or torch.Tag.inplace_view in func.tags
            or (
                returns
                and not self.writes
                and all(r.alias_info is not None for r in returns)
            )
        ):
            self.kind = _VIEW
        else:
            self.kind = _PLAIN
        #: Runs, and that is all.
        self.plain = self.kind in (_VIEW, _LEAVE) and not (self.composite or self.sparse)


_PLAN_ADD_ = _Plan(_ADD_)


def _is_for_device(args: Any, kwargs: Any) -> bool:
    """An operator on the simulated GPU: no tensor is elsewhere, nor is it asked for there."""
    tensors = tensors_in(args, tensors_in(kwargs.values(), []))
    if tensors:
        return any(t.is_cuda for t in tensors)
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == "cuda"


def _uses_of_storage(tensor: torch.Tensor) -> int:
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def _stack() -> list[Any]:
    return list(_get_current_dispatch_mode_stack())


def _no_rules() -> None:
    """PyTorch asks at each operation whether somebody has registered a rule for this mode,
    by the operator's name: nobody has. It keeps the function that it asks first."""
    import torch._library.simple_registry as registry

    inner = getattr(registry, "find_torch_dispatch_rule", None)
    if inner is None or getattr(inner, "_quick", False):
        return

    def find(op: Any, kind: type) -> Any:
        return None if kind is Values else inner(op, kind)

    find._quick = True  # type: ignore[attr-defined]
    registry.find_torch_dispatch_rule = find


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
        _no_rules()
        if limit is None:
            limit = int(os.environ.get("TORCHARENA_VALUES_LIMIT", DEFAULT_LIMIT))
        self.memory = Simulated(limit)
        self.known = self.memory.known
        self.guesser = Guesser(self.memory, seed)
        self.plans: dict[int, _Plan] = {}  # by `id`: operators are slow to hash
        self.guessed: Counter[str] = Counter()  #: operators fed or filled at random
        self.guesses = guesses.Guesses()  #: which contents are, and where one was read
        self.failed: Counter[str] = Counter()  #: operators the CPU could not compute

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
        if self.memory.device_skip is not None:
            self.memory.device_skip(self.memory.limit * WIDEST)
        if self.memory.own_modes is not None:
            self.memory.own_modes(1)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        import torch._tensor_str as printing

        super().__exit__(*error)
        printing._str_intern = self.printing
        if self.memory.device_skip is not None:
            self.memory.device_skip(0)
        if self.memory.own_modes is not None:
            self.memory.own_modes(0)

    @contextlib.contextmanager
    def exactly(self, tensors: list[torch.Tensor]) -> Iterator[None]:
        """Copies of large integers on the device are made, unlike those of floats."""
        memory = self.memory
        if memory.skip is None or not any(
            t.dtype not in FLOATS and self._is_wide(t) for t in tensors
        ):
            yield
            return
        memory.skip(_ALL)
        try:
            yield
        finally:
            memory.skip(0)

    def _is_wide(self, tensor: torch.Tensor) -> bool:
        """Copies of so many bytes are not made unless they must be."""
        return tensor.numel() * tensor.element_size() > self.memory.limit * WIDEST

    def again(self) -> Any:
        """The mode itself, without what entering it at first does."""
        return contextlib.nullcontext() if self in _stack() else _Again(self)

    def report(self) -> dict[str, Any]:
        """For the rehearsal's: where the program saw guesses, and what the CPU could not do."""
        return {
            "places": self.guesses.report(),
            "failed": dict(list(self.failed.items())),
        }

    # --- converting arguments -------------------------------------------------------------
    def _convert(self, value: Any, reads: bool = False, sure: bool = False) -> Any:
        """An argument for the CPU. ``reads``: it is not written to. ``sure``: its contents
        are known."""
        if isinstance(value, torch.Tensor):
            if not value.is_cuda:
                return value
            if not sure and not self.known(value):
                return self.guesser.like(value)
            return self._sparsely(value) if reads else view_of(value)
        if isinstance(value, (list, tuple)):
            return type(value)([self._convert(v, reads, sure) for v in value])
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, torch.Generator):
            return self.guesser.generator
        return value

    def _sparsely(self, tensor: torch.Tensor) -> torch.Tensor:
        """As `_view`; of much memory, most of which nobody wrote, a copy of what was
        written: to read the rest in its place would make its pages."""
        size = tensor.numel() * tensor.element_size()
        if size <= SPRINKLED or self.memory.touched is None or not tensor.is_contiguous():
            return view_of(tensor)
        if self.memory.touched(None, tensor.data_ptr(), size) > size // 4:
            return view_of(tensor)
        zeros = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        copy = torch.frombuffer(zeros, dtype=tensor.dtype)
        self.memory.touched(copy.data_ptr(), tensor.data_ptr(), size)
        return copy.view(tensor.shape)

    def _on_cpu(
        self, func: Any, plan: _Plan, args: Any, kwargs: Any, sure: bool = False
    ) -> Any:
        """The operator on the CPU over the same memory; None where it cannot. ``sure``: all
        contents are known."""
        try:
            reads = not plan.writes
            cpu_args = self._convert(tuple(args), reads, sure)
            cpu_kwargs = {k: self._convert(v, reads, sure) for k, v in kwargs.items()}
            if cpu_kwargs.get("pin_memory"):
                cpu_kwargs["pin_memory"] = False
            if not plan.seeded or cpu_kwargs.get("generator") is not None:
                return func(*cpu_args, **cpu_kwargs)
            # The user's generator must not notice.
            state = torch.get_rng_state()
            torch.set_rng_state(self.guesser.generator.get_state())
            try:
                return func(*cpu_args, **cpu_kwargs)
            finally:
                self.guesser.generator.set_state(torch.get_rng_state())
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
        if kwargs is None:
            kwargs = {}
        plan = self.plans.get(id(func))
        if plan is None:
            plan = self.plans[id(func)] = _Plan(func)
        if plan.plain:
            return plan.call(*args, **kwargs)
        kind = plan.kind
        if (
            plan.composite
            and kind != _RANKS
            and not any(t.is_nested for t in tensors_in(args, []))  # these have kernels
        ):
            with self.again():
                return func.decompose(*args, **kwargs)
        if plan.sparse and inside.has_sparse(args):
            result = inside.run(self, func, plan.name, args, kwargs)
            if plan.name in inside.KERNELS:
                self._not_computed(result)
            return result
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
            return func(view_of(args[0]), *args[1:], **kwargs)
        if kind == _INDEX:
            args = self._indices(args)
        elif kind == _DYNAMIC:
            inputs = tensors_in(args, [])
            if any(t.is_cuda for t in inputs) and all(
                t.layout is torch.strided for t in inputs
            ):
                return self._sized_by_values(func, plan, args, kwargs, inputs)
        result = plan.call(*args, **kwargs)
        if (  # as most results are: nothing is kept of it
            type(result) is torch.Tensor
            and not plan.writes
            and result.dtype in FLOATS
            and result.numel() > self.memory.limit
        ):
            return result
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
            and is_dense(one)
            and (one._use_count(), sys.getrefcount(one), _uses_of_storage(one)) == _ALONE
        )

    def _between_ranks(self, func: Any, plan: _Plan, args: Any, kwargs: Any) -> Any:
        """Small contents are the stand-ins' of NCCL, but for small floats out of large ones."""
        inputs = tensors_in(args, [])
        with self.exactly(inputs):
            result = func(*args, **kwargs)
        outputs = [t for t in tensors_in((result,), []) if t.is_cuda]
        places = {id(t) for t in outputs}
        if any(id(t) not in places and not self.known(t) for t in inputs):
            wanted = [t for t in outputs if t.numel() and is_float(t) and self.known(t)]
            if wanted:
                self.guessed[plan.name] += 1
            for tensor in wanted:
                self.guesser.fill(tensor)
        return result

    def _item(self, func: Any, args: Any) -> Any:
        value = func(*args)
        if args[0].is_cuda and isinstance(value, float) and not self.known(args[0]):
            self.guessed["item"] += 1
            self.guesses.seen(guesses.READ)
            value = self.guesser.number()
        elif self.guesses.among(args[:1]):
            self.guesses.seen(guesses.READ)
        return value

    def _copy(self, func: Any, plan: _Plan, args: Any, kwargs: Any) -> Any:
        """Copies move bytes themselves, but large floats' need not; casts are kernels."""
        memory = self.memory
        inputs = tensors_in(args, tensors_in(kwargs.values(), []))
        large = wide = False
        if memory.skip is not None:
            for tensor in inputs:
                if tensor.dtype in FLOATS:
                    large = large or tensor.numel() > memory.limit
                else:
                    wide = wide or self._is_wide(tensor)
        if large or wide:
            memory.skip(memory.limit if large else _ALL)
            try:
                result = plan.call(*args, **kwargs)
            finally:
                memory.skip(0)
        else:
            result = plan.call(*args, **kwargs)
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
            if source.is_nested:
                pass
            elif not plain or source.dtype != result.dtype:
                result.copy_(view_of(source))
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
            places = view_of(index).nonzero() if index.is_cuda else index.nonzero()
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
            view_of(out).copy_(value)
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
        self.guesses.mark(tensors_in((made,), []), guess)
        return made

    def _after(self, func: Any, plan: _Plan, args: Any, kwargs: Any, result: Any) -> None:
        """Computes what matters of an operation that has run."""
        written: list[torch.Tensor] = []
        for position, name, keyword in plan.writes:
            value = (
                kwargs.get(name) if keyword or position >= len(args) else args[position]
            )
            tensors_in((value,), written)
        outputs = written or tensors_in((result,), [])
        nested = [t for t in outputs if t.is_nested and t.is_cuda]
        if nested:
            self._guess_nested(plan, nested)
        known = self.known
        wanted = [t for t in outputs if t.is_cuda and known(t) and t.numel()]
        if not wanted:
            return
        if plan.name in _ZEROS and self.memory.zeroed(outputs[0]):
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
        inputs = tensors_in(args, tensors_in(kwargs.values(), []))
        unknown = [t for t in inputs if not self.known(t)]
        if any(t.layout is not torch.strided for t in unknown):
            self._not_computed(wanted)
            return
        if any(t.is_nested for t in unknown):
            self._guess_nested(plan, wanted)
            return
        integers = [t for t in wanted if not is_float(t)]
        much = (
            not unknown
            and plan.name in _PRODUCTS
            and self._work(plan, inputs, outputs) > _WORK
        )
        if unknown or much:
            guess = True
        elif plan.fresh:
            over = {id(t) for t in written}
            guess = self.guesses.among(t for t in inputs if id(t) not in over)
        else:
            guess = self.guesses.among(inputs)
        self.guesses.mark(wanted, guess)
        if unknown:
            self.guessed[plan.name] += 1
            if not integers:
                if not written:
                    for tensor in wanted:
                        self.guesser.fill(tensor)
                return
            if plan.name.startswith(("linalg_", "_linalg_")):
                self.guesser.factor(plan.name, outputs)
                return
            quick = plan.name in CHOICES or plan.name in EQUALITIES
            if quick or max(t.numel() for t in unknown) > _FEED:
                chosen = self.guesser.choose(plan.name, args, kwargs, outputs, unknown[0])
                if chosen:
                    return
        elif much:
            self.guessed[plan.name] += 1
            for tensor in wanted:
                self.guesser.fill(tensor)
            return
        values = self._on_cpu(func, plan, args, kwargs, sure=not unknown)
        if written:
            return
        if values is None:
            for tensor in wanted:
                if is_float(tensor):
                    self.guesser.fill(tensor)
            return
        kept = {id(t) for t in wanted}
        for tensor, value in zip(outputs, tensors_in((values,), []), strict=False):
            if id(tensor) in kept and tensor.shape == value.shape:
                view_of(tensor).copy_(value)

    def _guess_nested(self, plan: _Plan, made: list[torch.Tensor]) -> None:
        """What operators on nested tensors (torch.strided ones) make: floats are random,
        integers 0, wherever they are kept, and all of it is a guess."""
        self.guessed[plan.name] += 1
        self.guesses.mark(made, True)
        for tensor in made:
            size, limit = tensor.untyped_storage().nbytes(), self.memory.limit
            if not tensor.is_nested:
                if is_float(tensor):
                    self.guesser.fill(tensor)
                elif tensor.is_contiguous():
                    ctypes.memset(tensor.data_ptr(), 0, tensor.nbytes)
            elif not is_float(tensor):
                ctypes.memset(tensor.untyped_storage().data_ptr(), 0, size)
            elif size <= limit * tensor.element_size():
                self.guesser.fill(tensor.values())

    def _not_computed(self, made: Any) -> None:
        """Small floats that a library's kernel for sparse tensors would have made."""
        found = tensors_in((made,), [])
        self.guesses.mark([t for t in found if is_float(t) and self.known(t)], True)

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
