"""PyTorch's own allocator settings in the environment, and what becomes of them here."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping

from .loading import warn

__all__ = ["check", "choice", "keys", "settle", "without_meaning"]

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
EXPANDABLE = "expandable_segments:True"
_CHOICES = ("backend", "expandable_segments")
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


def choice(environ: Mapping[str, str]) -> str:
    """Which of torch's allocators ``environ`` asks for, as it is spelt there; "": none."""
    found = {
        k: v
        for name in reversed(VARIABLES)
        for k, v in keys(environ.get(name, "")).items()
    }
    asked = [f"{key}:{found[key]}" for key in _CHOICES if key in found]
    return ",".join(asked)


def settle(environ: MutableMapping[str, str], expandable: bool) -> None:
    """For a rehearsal, which chooses the allocator: the settings in ``environ`` stay, but for
    that choice, ``expandable`` segments or not."""
    given = (
        environ.get("PYTORCH_CUDA_ALLOC_CONF") or environ.get("PYTORCH_ALLOC_CONF") or ""
    )
    kept = [
        part
        for part in given.split(",")
        if part.strip() and part.partition(":")[0].strip() not in _CHOICES
    ]
    if expandable:
        kept.append(EXPANDABLE)
    for name in VARIABLES:
        environ.pop(name, None)
    if kept:
        environ["PYTORCH_CUDA_ALLOC_CONF"] = ",".join(kept)


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
