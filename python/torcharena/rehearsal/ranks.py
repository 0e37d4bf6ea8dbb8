"""What ranks hear from others that are not there, and where the program asked.

The contents of collectives come from NCCL's stand-ins, as if every missing rank had sent what
the one did that stands for it: of one rank alone that one, of a node's ranks the one with the
same place on its own node. What only a peer can know is left as it is here: the objects that
`broadcast_object_list` would bring from another rank, the tensors that a pipeline's earlier
stage would send. Each such place is counted by file and line (`report`), so that a size that
came from one can be told from one that the program knew."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["install", "replace", "report", "settle_pipelines", "stand_ins"]

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


def install(dist: Any, store: Any, rank: int, here: int) -> None:
    """Called once, by `alone.install`. ``store``: what answers for the others. ``here``: so
    many ranks, from 0, are processes of this machine; 1: this one alone, whichever it is."""
    c10d = dist.distributed_c10d
    _count(dist, c10d)
    _keep_objects(dist, c10d, rank, here)
    if here > 1:
        _prefer_cuda(c10d)
    _tell_groups(dist, c10d, type(store), here)
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


def _prefer_cuda(c10d: Any) -> None:
    """Objects travel by NCCL wherever a group has it: gloo's place is empty."""
    inner = getattr(c10d, "_get_object_coll_device", None)
    if inner is None:
        return

    @functools.wraps(inner)
    def device(group: Any = None) -> str:
        return "cuda" if _has_nccl(c10d, group) else str(inner(group))

    c10d._get_object_coll_device = device


def _has_nccl(c10d: Any, group: Any) -> bool:
    return "nccl" in str(c10d.get_backend_config(group))


def _keep_objects(dist: Any, c10d: Any, rank: int, here: int) -> None:
    """Objects of ranks that are not there are taken to be like this one's own."""

    def is_here(source: int, group: Any) -> bool:
        there = here > 1 and source < here
        return source == rank or (there and _has_nccl(c10d, group))

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
        source = _source(c10d, group, src, group_src)
        if is_here(source, group):
            kwargs: dict[str, Any] = {"src": source, "group": group, "device": device}
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

    receive, send = c10d.recv_object_list, c10d.send_object_list

    @functools.wraps(receive)
    def recv_object_list(
        object_list: list[Any],
        src: Any = None,
        group: Any = None,
        *rest: Any,
        group_src: int | None = None,
        **more: Any,
    ) -> Any:
        if group_src is not None:
            src = _source(c10d, group, src, group_src)
        if src is not None and src != rank and is_here(src, group):
            return receive(object_list, src, group, *rest, **more)
        _note("recv_object_list")
        if any(o is None for o in object_list):
            raise RuntimeError(
                f"rank {rank} receives objects from rank {src}, which is not there: give "
                "their shapes (a pipeline stage's input_args and output_args), or rehearse "
                "with --ranks all"
            )
        return src

    @functools.wraps(send)
    def send_object_list(
        object_list: list[Any],
        dst: int | None = None,
        group: Any = None,
        *rest: Any,
        group_dst: int | None = None,
        **more: Any,
    ) -> None:
        """No one hears it who is not here."""
        to = _source(c10d, group, dst, group_dst)
        if to != rank and is_here(to, group):
            send(object_list, to, group, *rest, **more)

    replace(dist, "broadcast_object_list", broadcast_object_list)
    replace(dist, "scatter_object_list", scatter_object_list)
    replace(dist, "recv_object_list", recv_object_list)
    replace(dist, "send_object_list", send_object_list)


def settle_pipelines() -> None:
    """From torch 2.14 on a pipeline's stages vote whether the shapes that they were given will
    do. Those here decide for all. Called as process groups begin, after the imports."""
    module = sys.modules.get("torch.distributed.pipelining.stage")
    stage: Any = getattr(module, "PipelineStage", None)
    mode: Any = getattr(module, "InferenceMode", None)
    if not hasattr(stage, "_warmup_forward_vote") or not hasattr(mode, "needs_dynamic"):
        return
    torch: Any = sys.modules["torch"]

    def vote(self: Any, has_backward: bool, received_acc: Any = None) -> Any:
        enough = not mode.needs_dynamic(self._user_meta, has_backward)
        if received_acc is not None:
            enough = enough and bool(received_acc.item())
        return torch.tensor([int(enough)], dtype=torch.int32)

    def result(self: Any, received_result: Any = None) -> Any:
        return received_result

    stage._warmup_forward_vote, stage._warmup_backward_result = vote, result


def _source(c10d: Any, group: Any, src: int | None, group_src: int | None) -> int:
    """The sender's rank among all."""
    if group_src is not None:
        return int(c10d.get_global_rank(group or c10d._get_default_group(), group_src))
    return 0 if src is None else src


def stand_ins(members: Sequence[int], here: int) -> list[int] | None:
    """For each place in a group the place of the rank that stands for it, where ranks below
    ``here`` are there: itself if it is, else the one with its place on its node, else any.
    None where not two of the group are there."""
    present = [place for place, rank in enumerate(members) if rank < here]
    if len(present) < 2:
        return None
    places = {members[place]: place for place in present}
    return [
        place if rank < here else places.get(rank % here, present[place % len(present)])
        for place, rank in enumerate(members)
    ]


def _teller() -> Callable[..., None] | None:
    """Says to NCCL's stand-ins what its arguments do not, of the next communicator."""
    try:
        tell = ctypes.CDLL(None).ta_simcuda_next_group
    except AttributeError:
        return None
    tell.argtypes, tell.restype = [ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p], None

    def call(size: int, like: list[int] | None = None, name: str | None = None) -> None:
        array = None if like is None else (ctypes.c_int * len(like))(*like)
        tell(size, array, None if name is None else name.encode())

    return call


def _meeting(kind: Any, tell: Any, group: str, like: list[int]) -> Any:
    """A group's store. Of its ranks that are there each asks it, or tells it, under the same
    key, which communicator comes next: that key is the communicator's name."""

    def next_is(key: str) -> None:
        name = hashlib.sha256(f"{group} {key}".encode()).hexdigest()[:32]
        pair = re.search(r"(?:^|/)(\d+):(\d+)$", key)
        if pair is None:
            tell(len(like), like, name)
        elif all(like[int(rank)] == int(rank) for rank in pair.groups()):
            tell(2, [0, 1], name)
        else:
            tell(0)

    class Meeting(kind):
        def set(self, key: str, value: Any) -> None:
            next_is(key)
            super().set(key, value)

        def get(self, key: str) -> Any:
            next_is(key)
            return super().get(key)

        def multi_get(self, keys: list[str]) -> Any:
            found = super().multi_get(keys)
            next_is(keys[0])
            return found

    return Meeting()


def _tell_groups(dist: Any, c10d: Any, kind: Any, here: int) -> None:
    """NCCL's split of a communicator is not told how many ranks it has, nor who of them is
    there; its stand-in is."""
    tell = _teller()
    if tell is None:
        return
    inner = c10d._new_process_group_helper
    stores: list[Any] = []  # torch keeps the half of them that is C++'s

    @functools.wraps(inner)
    def helper(
        group_size: int,
        group_rank: int,
        ranks: Any,
        backend: Any,
        store: Any,
        group_name: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        like = stand_ins(ranks or range(group_size), here) if here > 1 else None
        if like is not None:
            store = _meeting(kind, tell, str(group_name), like)
            stores.append(store)
        tell(group_size, like)
        try:
            return inner(
                group_size, group_rank, ranks, backend, store, group_name, *args, **kwargs
            )
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
        found: list[int] = next(
            (ranks for ranks in split_ranks or () if mine in ranks), []
        )
        if here > 1 and found:
            parent = parent_pg or c10d._get_default_group()
            members = [c10d.get_global_rank(parent, rank) for rank in found]
            tell(len(found), stand_ins(members, here))
        else:
            tell(len(found))
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
