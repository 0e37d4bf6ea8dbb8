"""What one rank without peers hears from them, and where the program asked.

The contents of collectives come from NCCL's stand-ins, as if every other rank had sent what
this one did. What only a peer can know is left as it is here: the objects that
`broadcast_object_list` would bring from another rank, the tensors that a pipeline's earlier
stage would send. Each such place is counted by file and line (`report`), so that a size that
came from one can be told from one that the program knew."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

__all__ = ["install", "replace", "report"]

# Collectives whose integers decide a program's course, and those of objects.
_OF_TENSORS = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "gather",
    "recv",
    "irecv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
)
_OF_OBJECTS = ("all_gather_object", "gather_object")
_HERE = os.path.dirname(os.path.abspath(__file__))

_asked: Counter[tuple[str, str, int]] = Counter()


def report() -> list[dict[str, Any]]:
    """Where integers or objects came from ranks that are not there, most often first: the
    function, file, line and how many times."""
    return [
        {"function": name, "file": file, "line": line, "times": times}
        for (name, file, line), times in _asked.most_common(30)
    ]


def install(dist: Any, store: Any, rank: int) -> None:
    """Called once, by `alone.install`. ``store``: what answers for the others."""
    c10d = dist.distributed_c10d
    _count(dist, c10d)
    _keep_objects(dist, c10d, rank)
    _tell_sizes(dist, c10d)
    _replace_stores(dist, store)

    def monitored_barrier(*args: Any, **kwargs: Any) -> None:
        """Every rank arrives at once."""

    replace(dist, "monitored_barrier", monitored_barrier)


def replace(dist: Any, name: str, value: Any) -> None:
    """Puts ``value`` in the place of `torch.distributed`'s function or class of this name,
    also where its other modules have imported it already."""
    before = getattr(dist.distributed_c10d, name, None)
    if before is None:
        before = getattr(dist, name, None)
    if before is None:
        return
    for module in list(sys.modules.values()):
        ours = getattr(module, "__name__", "").startswith("torch.distributed")
        if ours and vars(module).get(name) is before:
            setattr(module, name, value)


def _place() -> tuple[str, int]:
    """The innermost line outside of torch and of this package."""
    frame = sys._getframe(2)
    last = (frame.f_code.co_filename, frame.f_lineno)
    while frame is not None:
        file = frame.f_code.co_filename
        inner = f"{os.sep}torch{os.sep}" in file or file.startswith(_HERE)
        if not inner and not file.startswith("<"):
            return file, frame.f_lineno
        if frame.f_back is None:
            break
        frame = frame.f_back
    return last


def _note(name: str) -> None:
    file, line = _place()
    _asked[name, file, line] += 1


def _holds_integers(values: Any) -> bool:
    for value in values:
        if isinstance(value, (list, tuple)):
            if _holds_integers(value):
                return True
        elif hasattr(value, "dtype"):
            kind = value.dtype
            if not kind.is_floating_point and not kind.is_complex:
                return True
    return False


def _count(dist: Any, c10d: Any) -> None:
    """Counts the places where integers or objects come from others."""

    def counted(
        name: str, inner: Callable[..., Any], objects: bool
    ) -> Callable[..., Any]:
        @functools.wraps(inner)
        def call(*args: Any, **kwargs: Any) -> Any:
            if objects or _holds_integers((*args, *kwargs.values())):
                _note(name)
            return inner(*args, **kwargs)

        return call

    for name in _OF_TENSORS:
        if hasattr(c10d, name):
            replace(dist, name, counted(name, getattr(c10d, name), False))
    for name in _OF_OBJECTS:
        if hasattr(c10d, name):
            replace(dist, name, counted(name, getattr(c10d, name), True))


def _keep_objects(dist: Any, c10d: Any, rank: int) -> None:
    """Objects of other ranks are taken to be like this one's own."""
    broadcast = c10d.broadcast_object_list
    scatter = c10d.scatter_object_list

    @functools.wraps(broadcast)
    def broadcast_object_list(
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
        **_: Any,
    ) -> None:
        if _source(c10d, group, src, group_src) == rank:
            kwargs: dict[str, Any] = {"src": rank, "group": group, "device": device}
            broadcast(object_list, **kwargs)
        else:
            _note("broadcast_object_list")

    @functools.wraps(scatter)
    def scatter_object_list(
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: int | None = None,
        group: Any = None,
        group_src: int | None = None,
    ) -> None:
        mine = c10d.get_rank(group)
        if scatter_object_input_list:
            scatter_object_output_list[0] = scatter_object_input_list[mine]
        else:
            _note("scatter_object_list")

    @functools.wraps(c10d.recv_object_list)
    def recv_object_list(
        object_list: list[Any], src: Any = None, *_: Any, **__: Any
    ) -> Any:
        _note("recv_object_list")
        if any(o is None for o in object_list):
            raise RuntimeError(
                f"rank {rank} receives objects from rank {src}, which is not there: give "
                "their shapes (a pipeline stage's input_args and output_args), or rehearse "
                "with --ranks all"
            )
        return src

    @functools.wraps(c10d.send_object_list)
    def send_object_list(*_: Any, **__: Any) -> None:
        """No one hears it."""

    replace(dist, "broadcast_object_list", broadcast_object_list)
    replace(dist, "scatter_object_list", scatter_object_list)
    replace(dist, "recv_object_list", recv_object_list)
    replace(dist, "send_object_list", send_object_list)


def _source(c10d: Any, group: Any, src: int | None, group_src: int | None) -> int:
    """The sender's rank among all."""
    if group_src is not None:
        return int(c10d.get_global_rank(group or c10d._get_default_group(), group_src))
    return 0 if src is None else src


def _tell_sizes(dist: Any, c10d: Any) -> None:
    """NCCL's split of a communicator is not told how many ranks it has; its stand-in is."""
    try:
        tell = ctypes.CDLL(None).ta_simcuda_next_group
    except AttributeError:
        return
    tell.argtypes, tell.restype = [ctypes.c_int], None
    inner = c10d._new_process_group_helper

    @functools.wraps(inner)
    def helper(group_size: int, *args: Any, **kwargs: Any) -> Any:
        tell(group_size)
        try:
            return inner(group_size, *args, **kwargs)
        finally:
            tell(0)

    c10d._new_process_group_helper = helper
    split = getattr(c10d, "split_group", None)
    if split is None:
        return

    @functools.wraps(split)
    def split_group(
        parent_pg: Any = None, split_ranks: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        mine = c10d.get_rank(parent_pg)
        tell(next((len(ranks) for ranks in split_ranks or () if mine in ranks), 0))
        try:
            return split(parent_pg, split_ranks, *args, **kwargs)
        finally:
            tell(0)

    replace(dist, "split_group", split_group)


def _replace_stores(dist: Any, store: Any) -> None:
    """Stores that the program makes itself would wait for the others."""
    kind = type(store)
    met: list[Any] = []

    class Met(kind):  # type: ignore[misc, valid-type]
        def __init__(self, *_: Any, **__: Any) -> None:
            kind.__init__(self)
            met.append(self)  # torch keeps the half of it that is C++'s

        @property
        def host(self) -> str:
            return "127.0.0.1"

        @property
        def port(self) -> int:
            return 29500

    for name in ("TCPStore", "FileStore"):
        replace(dist, name, Met)
