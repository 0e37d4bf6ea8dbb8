"""Which blocks are workspaces of cuBLAS: memory that torch keeps for a handle and a stream,
and no tensor has.

torch exports functions that return its maps of them. How such a map is laid out stands in
the header that torch's wheel brings along; where that says something else than what is known
here, or there is none (before torch 2.8), nothing is told."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from ..loading import core

__all__ = ["layout", "tell"]

_MAP = (
    r"std::map<std::tuple<void\*,void\*>,(?:at::DataPtr|std::pair<at::DataPtr,size_t>)>"
)
_NAME = "cublas_handle_stream_to_workspace();"


def layout(header: str) -> bool | None:
    """From the text of torch's CUDAContextLight.h: whether a lock stands behind the map, or
    None for one that is laid out otherwise."""
    text = re.sub(r"//[^\n]*|\s+", "", header)
    if re.search(_MAP + "&" + re.escape(_NAME), text):
        return False
    known = re.search(
        r"struct(\w+)\{"
        + _MAP
        + r"\w+;std::shared_mutex\w+;\};(?=.*\1&"
        + re.escape(_NAME)
        + ")",
        text,
    )
    return True if known else None


@functools.cache
def _locked() -> bool | None:
    import torch

    header = Path(torch.__file__).with_name("include") / "ATen/cuda/CUDAContextLight.h"
    try:
        return layout(header.read_text())
    except (OSError, ValueError):
        return None


def tell() -> None:
    """Says of these blocks what they are, now."""
    locked = _locked()
    if locked is not None:
        core().usage_tell_workspaces(locked)
