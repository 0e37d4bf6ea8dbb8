"""The few figures that every integration shows."""

from __future__ import annotations

from ..loading import core
from ..sizes import format_size
from ..state import DeviceLike, device_index, enabled

__all__ = ["epoch_line", "figures", "tqdm_postfix"]

_ALL = 0  # of the core's (all, small, large)


def figures(device: DeviceLike = None) -> dict[str, int]:
    """Bytes asked for and reserved, now and at the highest, and page moves and waits so far;
    empty before CUDA is in use and where the arena is not enabled."""
    if not enabled() or not core().created():
        return {}
    stats = core().stats(device_index(device))
    requested, reserved = stats["requested"][_ALL], stats["reserved"]
    return {
        "requested_bytes": requested[0],
        "peak_requested_bytes": requested[1],
        "reserved_bytes": reserved[0],
        "peak_reserved_bytes": reserved[1],
        "page_moves": stats["page_moves"],
        "waits": stats["waits"],
    }


def tqdm_postfix(device: DeviceLike = None) -> dict[str, str]:
    """For a progress bar: ``bar.set_postfix(torcharena.tqdm_postfix())`` shows what is
    reserved and the highest so far. Empty where the arena is not enabled."""
    found = figures(device)
    if not found:
        return {}
    return {
        "gpu": format_size(found["reserved_bytes"]),
        "peak": format_size(found["peak_reserved_bytes"]),
    }


def epoch_line(device: DeviceLike = None) -> str:
    """One line for a log."""
    found = figures(device)
    if not found:
        return "torcharena is not enabled"
    return (
        f"reserved {format_size(found['reserved_bytes'])}, at most "
        f"{format_size(found['peak_reserved_bytes'])}; asked for at most "
        f"{format_size(found['peak_requested_bytes'])}; page moves "
        f"{found['page_moves']:,}, waits {found['waits']:,}"
    )
