"""What holds a peak: the blocks that lived then, by the line of Python that made them.

From the memory history of torch's own allocators, which keeps the Python stack of every
allocation (a few microseconds each). The newest events are kept, so a peak is looked at at
the end of the step in which it rose. The arena's requests are the same, so the places hold
for it too."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from types import FrameType, SimpleNamespace
from typing import Any

__all__ = ["Labels", "frame", "holders", "is_ours", "is_users", "short", "start"]

EVENTS = 100_000  # of the history; at some 100 bytes each, and a kilobyte an allocation
SHOWN = 10
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = tuple(
    os.path.join(os.path.realpath(sysconfig.get_paths()[kind]), "")
    for kind in ("purelib", "platlib", "stdlib", "platstdlib")
)
_known: dict[str, tuple[bool, bool]] = {}


def _classes(file: str) -> tuple[bool, bool]:
    """(the user's, ours) of a source file."""
    found = _known.get(file)
    if found is None:
        real = os.path.realpath(file)
        ours = real.startswith(os.path.realpath(_OURS) + os.sep) or file.startswith(_OURS)
        # Cells of notebooks are the user's: <ipython-input-...>, /tmp/ipykernel_1/2.py.
        strange = file.startswith("<") and not file.startswith("<ipython")
        library = (
            real.startswith(_LIBRARIES)
            or "/site-packages/" in file
            or "/dist-packages/" in file
            or "/.cache/" in file  # what libraries generate
        )
        user = bool(file) and not (ours or strange or library or file == "??")
        found = _known[file] = (user, ours)
    return found


def is_users(file: str) -> bool:
    """True for the program's own files: no library, no part of Python or of torcharena."""
    return _classes(file)[0]


def is_ours(file: str) -> bool:
    return _classes(file)[1]


def frame(source: FrameType, line: int) -> dict[str, Any]:
    return {
        "file": source.f_code.co_filename,
        "line": line,
        "function": source.f_code.co_name,
    }


def start(torch: Any) -> None:
    """Begins the history. Called before the first allocation."""
    torch.cuda.memory._record_memory_history(
        "all", context="alloc", stacks="python", max_entries=EVENTS
    )


#: What a block holds, by (device, address, bytes).
Labels = dict[tuple[int, int, int], str]


class _Block:
    __slots__ = ("address", "begin", "end", "frames", "kind", "size")

    def __init__(self, address: int, size: int, frames: Any, begin: int) -> None:
        self.address = address
        self.size = size
        self.frames = frames
        self.begin = begin
        self.end = -1
        self.kind = "other"


def holders(
    torch: Any, optimizers: list[Any], known: Labels, *, now: bool = False
) -> dict[str, Any]:
    """The device that asked for most: its peak within the history, bytes by kind, and the
    largest holders by place. ``now``: what lives now, instead of the peak. ``known``: what
    earlier calls have learnt of optimizers that may be gone by now; it is added to.

    Python's collector rests meanwhile: what is made here makes no cycles, and the program's
    own are to be found when they would be without us."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _holders(torch, optimizers, known, now)
    finally:
        if collecting:
            gc.enable()


def _holders(
    torch: Any, optimizers: list[Any], known: Labels, now: bool
) -> dict[str, Any]:
    with _no_compiled_frames(torch):
        snapshot = torch.cuda.memory._snapshot()
    best: dict[str, Any] = {"requested": -1}
    for device, entries in enumerate(snapshot.get("device_traces", [])):
        segments = [s for s in snapshot["segments"] if s["device"] == device]
        if not segments and not entries:
            continue
        blocks = _history(segments, entries)
        _label(torch, device, blocks, optimizers, known)
        live, requested = _live(blocks, len(entries), now)
        if requested > best["requested"]:
            best = {
                "device": device,
                "requested": requested,
                "now": now,
                **_summary(live),
            }
    return best


@contextlib.contextmanager
def _no_compiled_frames(torch: Any) -> Iterator[None]:
    """A snapshot looks its frames up among Inductor's and imports all of it, which takes as
    long as torch itself: a program that has compiled nothing has none."""
    if "torch._inductor" in sys.modules or "_inductor" in vars(torch):
        yield
        return
    cache = SimpleNamespace(stack_frames_for_code=lambda path, line: None)
    torch._inductor = SimpleNamespace(codecache=SimpleNamespace(PyCodeCache=cache))
    try:
        yield
    finally:
        # Another thread's import of the real one has put that here.
        if isinstance(vars(torch).get("_inductor"), SimpleNamespace):
            del torch._inductor


def _history(segments: list[Any], entries: list[Any]) -> list[_Block]:
    """Every block of the history, and those that live now and are older."""
    open_: dict[int, _Block] = {}
    blocks: list[_Block] = []
    for index, entry in enumerate(entries):
        action = entry["action"]
        if action == "alloc":
            block = _Block(entry["addr"], entry["size"], entry.get("frames"), index)
            open_[block.address] = block
            blocks.append(block)
        elif action == "free_requested":
            older = open_.pop(entry["addr"], None)
            if older is None:
                older = _Block(entry["addr"], entry["size"], None, -1)
                blocks.append(older)
            older.end = index
    for segment in segments:
        address = segment["address"]
        for part in segment["blocks"]:
            address = part.get("address", address)
            if part["state"] == "active_allocated" and address not in open_:
                size = part.get("requested_size", part["size"])
                blocks.append(_Block(address, size, part.get("frames"), -1))
            address += part["size"]
    return blocks


def _live(blocks: list[_Block], events: int, now: bool) -> tuple[list[_Block], int]:
    """The blocks of the highest moment (or of now), and their bytes."""
    if now:
        live = [b for b in blocks if b.end < 0]
        return live, sum(b.size for b in live)
    change = [0] * (events + 1)
    current = 0
    for block in blocks:
        if block.begin < 0:
            current += block.size
        else:
            change[block.begin] += block.size
        if block.end >= 0:
            change[block.end] -= block.size
    highest, at = current, -1
    for index in range(events):
        current += change[index]
        if current > highest:
            highest, at = current, index
    live = [b for b in blocks if b.begin <= at and (b.end < 0 or b.end > at)]
    return live, highest


def _label(
    torch: Any, device: int, blocks: list[_Block], optimizers: list[Any], known: Labels
) -> None:
    """Names what the optimizers know: parameters, gradients, their own state."""
    by_address = {b.address: b for b in blocks if b.end < 0}
    for block in blocks:
        block.kind = known.get((device, block.address, block.size), block.kind)

    def name(tensor: Any, kind: str) -> None:
        if not isinstance(tensor, torch.Tensor) or not tensor.is_cuda:
            return
        tensor = getattr(tensor, "_local_tensor", tensor)
        if tensor.device.index != device:
            return
        try:
            address = tensor.untyped_storage().data_ptr()
        except (RuntimeError, NotImplementedError):
            return
        block = by_address.get(address)
        if block is None:
            return
        block.kind = kind
        if kind != "gradients":  # which come and go
            known[device, address, block.size] = kind

    for optimizer in optimizers:
        for values in list(getattr(optimizer, "state", {}).values()):
            for value in values.values() if isinstance(values, dict) else ():
                name(value, "optimizer state")
        for group in getattr(optimizer, "param_groups", ()):
            for parameter in group.get("params", ()):
                name(parameter, "parameters")
                name(parameter.grad, "gradients")


def _summary(live: list[_Block]) -> dict[str, Any]:
    kinds: Counter[str] = Counter()
    sizes: Counter[tuple[str, str, str]] = Counter()
    counts: Counter[tuple[str, str, str]] = Counter()
    places: dict[int, tuple[str, str]] = {}
    for block in live:
        kinds[block.kind] += block.size
        known = places.get(id(block.frames))
        if known is None:
            known = places[id(block.frames)] = _place(block.frames)
        # What a kind has in one line is one holder, whichever of its lines made it.
        within = known[1] if block.kind == "other" else ""
        key = (known[0], within, block.kind)
        sizes[key] += block.size
        counts[key] += 1
    return {
        "kinds": dict(kinds.most_common()),
        "blocks": len(live),
        "places": [
            {
                "place": key[0],
                "within": key[1],
                "kind": key[2],
                "bytes": size,
                "blocks": counts[key],
            }
            for key, size in sizes.most_common(SHOWN)
        ],
    }


def _place(frames: Any) -> tuple[str, str]:
    """(the program's line, the library's line it came by). Innermost frame first."""
    if frames is None:
        return "before the history begins", ""
    within = inner = ""
    for entry in frames:
        file = entry.get("filename", "")
        user, ours = _classes(file)
        if user:
            return f"{short(file)}:{entry['line']} {entry['name']}", within
        if ours or within or file.startswith("<") or file == "??":
            continue
        if not _plumbing(file):
            within = f"{short(file)}:{entry['line']} {entry['name']}"
        elif not inner and "/torch/nn/" in file:
            inner = f"{short(file)}:{entry['line']} {entry['name']}"
    if within or inner:  # a thread that a library began: DataParallel's, for one
        return within or inner, ""
    return "backward (autograd's own thread)", ""


def _plumbing(file: str) -> bool:
    """Parts of torch that stand between a model's line and the allocation."""
    return any(
        part in file
        for part in (
            "/torch/nn/",
            "/torch/_",
            "/torch/utils/",
            "/torch/functional.py",
            "/torch/autograd/",
            "/torch/cuda/",
            "/torch/amp/",
            "/torch/overrides",
            "/threading.py",
        )
    )


def short(file: str) -> str:
    """As a person would say it: from the working folder, or below site-packages, or from
    the program's own folder."""
    for mark in ("/site-packages/", "/dist-packages/"):
        if mark in file:
            return file.split(mark, 1)[1]
    here = os.getcwd() + os.sep
    if file.startswith(here):
        return file[len(here) :]
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    folders = [os.path.realpath(sys.prefix)]
    if program and not _classes(program)[1]:
        folders.append(os.path.dirname(os.path.abspath(program)))
    for folder in folders:
        if file.startswith(folder + os.sep):
            return file[len(folder) + 1 :]
    return file
