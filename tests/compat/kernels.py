"""A kernel in triton, in a file of its own: triton reads its source."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["doubled"]


@triton.jit
def _double(source, target, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0) * block + tl.arange(0, block)
    inside = place < count
    tl.store(target + place, 2 * tl.load(source + place, mask=inside), mask=inside)


def doubled(x: torch.Tensor) -> torch.Tensor:
    """Twice ``x``, on its device."""
    found = torch.empty_like(x)
    _double[(triton.cdiv(x.numel(), 256),)](x, found, x.numel(), block=256)
    return found
