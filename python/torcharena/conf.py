"""PyTorch's own allocator settings in the environment, and what becomes of them here."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .loading import warn

__all__ = ["check", "keys", "without_meaning"]

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_ENTRY = re.compile(r"\s*([A-Za-z0-9_]+)\s*:\s*(\[[^\]]*\]|[^,]*)\s*(?:,|$)")


def keys(text: str) -> dict[str, str]:
    """``key:value,key:[a,b]`` as a dict. What is no pair is left to PyTorch to refuse."""
    return {match[1]: match[2].strip() for match in _ENTRY.finditer(text)}


def without_meaning(text: str) -> list[str]:
    """The keys of ``text`` that do nothing under the arena: all but those of pinned memory.

    Raises RuntimeError for a backend that is not PyTorch's native one."""
    found = keys(text)
    backend = found.pop("backend", "native")
    if backend != "native":
        raise RuntimeError(
            f"backend:{backend} and torcharena are two CUDA allocators, and PyTorch takes "
            "one: take it out of PYTORCH_ALLOC_CONF, or do not enable torcharena"
        )
    return sorted(key for key in found if not key.startswith("pinned_"))


def check(environ: Mapping[str, str]) -> None:
    """One warning that names the settings without meaning.

    Raises RuntimeError for those that contradict the arena."""
    if environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING", "") not in ("", "0"):
        raise RuntimeError(
            "PYTORCH_NO_CUDA_MEMORY_CACHING asks for an allocation by the driver each time, "
            "and torcharena keeps memory: unset it, or do not enable torcharena"
        )
    idle = [
        f"{key} ({variable})"
        for variable in VARIABLES
        for key in without_meaning(environ.get(variable, ""))
    ]
    if idle:
        warn(
            f"torcharena: without meaning under the arena: {', '.join(idle)}",
            stacklevel=5,
        )
