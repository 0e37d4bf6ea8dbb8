"""Which errors say that memory ran out: of torch, of CUDA's libraries, of the host.

`why_out_of_memory` tells them from all others; `Grades` notes where gradients were off."""

from __future__ import annotations

import re
import sys
import traceback
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Grades", "let_go", "why_out_of_memory"]

# A text that cannot mean anything else, and what ran out.
_CERTAIN = (
    (r"(CUDA|HIP|XPU|Cuda|cuda).*out of memory", "the device's memory"),
    (r"out of memory.*(CUDA|HIP|XPU|Cuda)", "the device's memory"),
    (r"cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY", "the device's memory"),
    (
        r"(CUBLAS|CUSOLVER|CUSPARSE|CURAND|CUFFT|CUDNN)_(STATUS_)?(INTERNAL_ERROR_)?"
        r"(DEVICE_)?ALLOC(ATION)?_FAILED",
        "the device's memory, for one of NVIDIA's libraries",
    ),
    (r"CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED", "the host's memory"),
    (r"CUSPARSE_STATUS_INSUFFICIENT_RESOURCES", "the device's memory, for cuSPARSE"),
    (r"DefaultCPUAllocator: (can't|not enough)", "the host's memory"),
)
# Texts of libraries that find no memory, and of other faults too.
_PERHAPS = re.compile(
    r"CUBLAS_STATUS_NOT_INITIALIZED|CUSOLVER_STATUS_NOT_INITIALIZED|"
    r"CUBLAS_STATUS_INTERNAL_ERROR|CUSOLVER_STATUS_INTERNAL_ERROR|CUFFT_INTERNAL_ERROR|"
    r"CUDNN_STATUS_NOT_INITIALIZED|CUDNN_STATUS_INTERNAL_ERROR|"
    r"CUDNN_STATUS_EXECUTION_FAILED|CUDNN_STATUS_NOT_SUPPORTED|"
    r"unable to find an engine to execute this computation"
)


def why_out_of_memory(error: BaseException, *, full: bool = False) -> str:
    """What ran out, in a few words; empty for an error of another kind.

    ``full``: the device had hardly any memory left, so that an error by which NVIDIA's
    libraries say that, among other things, is taken to mean it. An error that was raised
    ``from`` one of these is one too, and a group of nothing else."""
    import torch

    inside = getattr(error, "exceptions", None)
    if isinstance(inside, tuple) and inside and isinstance(inside[0], BaseException):
        found = [why_out_of_memory(one, full=full) for one in inside]
        return found[0] if all(found) else ""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        if isinstance(one, torch.OutOfMemoryError):
            return "the device's memory"
        if isinstance(one, MemoryError):
            return "the host's memory"
        if isinstance(one, RuntimeError):
            text = str(one)
            for pattern, what in _CERTAIN:
                if re.search(pattern, text):
                    return what
            if full and _PERHAPS.search(text):
                return "the device's memory, most likely, for one of NVIDIA's libraries"
        one = one.__cause__
    return ""


def let_go(error: BaseException, spared: BaseException | None = None) -> None:
    """Clears the frames of an error, and of those it came from, of what they hold; but for
    ``spared``, which the program was handling before, and what that came from."""
    seen = {id(one) for one in _chain(spared)}
    for one in _chain(error):
        if id(one) not in seen and one.__traceback__ is not None:
            traceback.clear_frames(one.__traceback__)
            one.__traceback__ = None


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and not any(one is other for other in found):
            found.append(one)
            waiting += [one.__cause__, one.__context__]
            waiting += getattr(one, "exceptions", ())  # of a group
    return found


class Grades:
    """While it is entered, notes which errors left a block without gradients: what ran out of
    memory there was an evaluation, if no module or optimizer was at work around it."""

    _KINDS = ("no_grad", "set_grad_enabled", "inference_mode")

    def __init__(self) -> None:
        self._originals: list[tuple[Any, Any]] = []

    def __enter__(self) -> Grades:
        import torch

        for name in self._KINDS:
            kind: Any = getattr(torch, name)
            original = kind.__exit__
            self._originals.append((kind, original))
            kind.__exit__ = self._wrapped(original)
        return self

    def __exit__(self, *_: object) -> None:
        for kind, original in self._originals:
            kind.__exit__ = original

    def _wrapped(self, original: Any) -> Any:
        def left(this: Any, kind: Any, error: Any, trace: Any) -> Any:
            import torch

            if (
                isinstance(error, BaseException)
                and not torch.is_grad_enabled()
                and why_out_of_memory(error, full=True)
                and _of_the_program(sys._getframe(1))
            ):
                vars(error)[_MARK] = True
            return original(this, kind, error, trace)

        return left

    def part_of(self, error: BaseException) -> str:
        """``evaluation`` or ``training``: where the error came from."""
        trace = error.__traceback__
        if vars(error).get(_MARK) or _outermost_evaluates(trace):
            return "evaluation"
        return "training"


def _of_the_program(frame: FrameType) -> bool:
    """The block is the program's own: neither a model's (checkpointing turns gradients off)
    nor an optimizer's, nor of a function of torch such as clipping."""
    import torch

    if (
        "/torch/" in frame.f_code.co_filename
        and frame.f_code.co_name != "decorate_context"
    ):
        return False
    at: FrameType | None = frame
    while at is not None:
        this = at.f_locals.get("self")
        if at.f_code.co_name == "decorate_context":  # of a method, perhaps
            this = next(iter(at.f_locals.get("args", ())), None)
        if isinstance(this, torch.optim.Optimizer):
            return False
        if isinstance(this, torch.nn.Module) and at.f_code.co_name in _CALLING:
            return False
        at = at.f_back
    return True


_MARK = "_torcharena_in_evaluation"
_CALLING = ("__call__", "_call_impl", "_wrapped_call_impl", "forward")


def _outermost_evaluates(trace: TracebackType | None) -> bool:
    """Of the modules that were being called, the outermost is in evaluation mode."""
    import torch

    for frame, _ in traceback.walk_tb(trace):
        this = frame.f_locals.get("self")
        if isinstance(this, torch.nn.Module) and frame.f_code.co_name in _CALLING:
            return not this.training
    return False
