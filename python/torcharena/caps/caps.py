"""Caps: `set_limit` and `limit`, and what several sources of caps make together.

The least of all sources holds. A share of a device waits until CUDA is initialised, since
only then the device can be asked without starting the driver early."""

from __future__ import annotations

from typing import Any

from .. import sizes, state
from ..loading import core, pass_on, warn
from ..state import DeviceLike, SizeLike, device_index, needs_enabled

__all__ = [
    "SOURCES",
    "device_memory",
    "keeper",
    "limit",
    "put",
    "put_waiting",
    "set_limit",
]

# Before any kernel is loaded; measured between 0.4 and 0.6 GiB.
_CONTEXT = "0.5 GiB"

SOURCES = {
    "api": "torcharena.enable(limit=) or set_limit()",
    "environment": "TORCHARENA_LIMIT or --limit",
    "fraction": "torch's set_per_process_memory_fraction",
    "admin": "the administrator's file",
}


def set_limit(
    size: SizeLike, device: DeviceLike = None, *, strict: bool | None = None
) -> None:
    """Sets your cap to ``size`` bytes (see `sizes`), None for none; on every device, or one.

    It may raise or lower what you set, never what another source set: where another's is
    lower that one holds, which warns once and, with ``strict``, raises RuntimeError and
    changes nothing. What is over a lowered cap is given back as far as idle pages go."""
    needs_enabled("set_limit")
    with state.lock:
        wanted = sizes.parse(size, name="size")
        index = None if device is None else device_index(device)
        put("api", index, wanted, state.current.strict if strict is None else strict)
    pass_on()


def limit(device: DeviceLike = None) -> int | None:
    """The cap that holds on the device, in bytes; None: there is none."""
    needs_enabled("limit")
    return keeper().limit(device_index(device))[0]


def device_memory(device: DeviceLike = None) -> tuple[int, int]:
    """The driver's own pair for the device: bytes that nobody holds, bytes in all.

    `torch.cuda.mem_get_info` says what is left under the cap instead."""
    if state.enabled():
        state.needs_cuda()
        free, total = core().device_memory(device_index(device))
        return free, total
    import torch

    return torch.cuda.mem_get_info(device)


def keeper() -> Any:
    """What keeps the caps: the library, or until its allocator is made, a list."""
    library = core()
    return library if library.created() else state.current.waiting


def _totals() -> list[int] | None:
    """Bytes of each device; None while CUDA is not initialised."""
    if not (state.current.cuda_is_up or state.cuda_is_initialized()):
        return None
    import torch

    return [
        torch.cuda.get_device_properties(index).total_memory
        for index in range(torch.cuda.device_count())
    ]


def put(source: str, device: int | None, size: sizes.Size | None, strict: bool) -> None:
    """One source's cap. A share of a device waits until the device can be asked. Raises
    ValueError for one that is less than a page, and so would refuse everything."""
    page = state.current.page or state.DEFAULT_PAGE
    users = size.bytes if size is not None and source in ("api", "environment") else None
    if users is not None and 0 < users < page:
        raise ValueError(
            f"a cap of {sizes.format_size(users)}, from {SOURCES[source]}, is less than a "
            f"page of {sizes.format_size(page)}: 0, or a page at least"
        )
    library = keeper()
    totals = _totals()
    waits = size is not None and size.bytes is None and totals is None
    if size is None or size.bytes is not None:
        wanted = None if size is None else size.bytes
        _apply(library, source, -1 if device is None else device, wanted, strict)
    elif totals is not None:
        for index in range(len(totals)) if device is None else [device]:
            _apply(library, source, index, size.resolve(totals[index]), strict)
    now = state.current
    if device is None:
        now.shares = {k: v for k, v in now.shares.items() if k[0] != source}
        now.given = {k: v for k, v in now.given.items() if k[0] != source}
    now.shares.pop((source, device), None)
    now.given[source, device] = size
    if waits and size is not None:
        now.shares[source, device] = size


def _apply(
    library: Any, source: str, device: int, wanted: int | None, strict: bool
) -> None:
    """Tells the core, and says so where another source's cap is lower."""
    shown = range(len(_totals() or [0])) if device < 0 else [device]
    before = {index: library.limit(index) for index in shown}
    if strict:  # known before anything changes
        for index in shown:
            if text := _lower(index, source, wanted):
                raise RuntimeError(text)
    library.set_limit(device, source, wanted)
    for index in shown:
        text = _lower(index, source, wanted)
        if text is None:
            continue
        if strict:  # ours held before, and hid the other's
            for back in shown:
                library.set_limit(back, source, before[back][0])
            raise RuntimeError(text)
        warn(text, stacklevel=0)
        return


def _lower(index: int, source: str, wanted: int | None) -> str | None:
    """What to say where others' caps are lower than what a source asks for: the least of
    them, over the process or over several."""
    holds, holder = keeper().limit(index)
    found = [] if holds is None or holder == source else [(holds, _named(holder, index))]
    if state.current.admin is not None:
        found += state.current.admin.shared(index)
    if not found or not _clamps(min(found)[0], wanted):
        return None
    return _clamped(*min(found), wanted)


def _clamps(holds: int | None, wanted: int | None) -> bool:
    return holds is not None and (wanted is None or wanted > holds)


def _clamped(holds: int, holder: str, wanted: int | None) -> str:
    asked = "no cap" if wanted is None else f"a cap of {sizes.format_size(wanted)}"
    return (
        f"torcharena: {asked} was asked for; the one of {sizes.format_size(holds)} from "
        f"{holder} is lower and holds"
    )


def _named(source: str, device: int) -> str:
    """Whose cap it is: of the administrator's, the file and the line."""
    if source == "admin" and state.current.admin is not None:
        return str(state.current.admin.where(device))
    return SOURCES.get(source, source)


def put_waiting() -> None:
    """CUDA is up: caps that are shares of a device take their size."""
    for (source, device), size in list(state.current.shares.items()):
        put(source, device, size, state.current.strict)


def check_given() -> None:
    """The administrator's caps of each device are known now: says where one is lower than
    what was asked for. Raises RuntimeError where the settings are strict."""
    totals = _totals() or []
    for (source, device), size in state.current.given.items():
        if size is None:
            continue
        for index in range(len(totals)) if device is None else [device]:
            text = _lower(index, source, size.resolve(totals[index]))
            if text is None:
                continue
            if state.current.strict:
                raise RuntimeError(text)
            warn(text, stacklevel=0)
            break


def announcement() -> str:
    """One line: what the cap makes on the card."""
    import torch

    bytes_, source = keeper().limit(device_index(None))
    page = sizes.format_size(state.current.page or state.DEFAULT_PAGE)
    admin = state.current.admin
    held = admin.shared(device_index(None)) if admin else []
    shared = "".join(f"; {sizes.format_size(size)} by {where}" for size, where in held)
    if bytes_ is None:
        return f"no cap, pages of {page}{shared}"
    name = torch.cuda.get_device_name(device_index(None))
    total = sizes.format_size((_totals() or [0])[0])
    return (
        f"cap {sizes.format_size(bytes_)}, the CUDA context's "
        f"{_CONTEXT} on top "
        f"(from {_named(source, device_index(None))}; {name}, {total}){shared}"
    )
