"""What NVML, the driver's management library, says of each GPU's memory: by nvidia-ml-py where
that is installed. It opens no context and takes no memory of the device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Card", "cards", "processes_of"]


@dataclass(frozen=True)
class Card:
    """A GPU, or a MIG instance. ``used``: bytes that anybody holds, the driver's own reserve
    not among them; ``processes``: bytes by process id, as far as NVML tells them."""

    uuid: str
    index: int
    name: str
    total: int | None = None
    used: int | None = None
    processes: dict[int, int] = field(default_factory=dict)


def cards() -> tuple[list[Card], str]:
    """All that NVML lists; and why there are none, in words."""
    try:
        import pynvml
    except ImportError:
        return [], "nvidia-ml-py is not installed (pip install nvidia-ml-py)"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return [], f"NVML: {error}"
    try:
        found = list(_cards(pynvml))
        return found, "" if found else "NVML lists no GPU"
    except pynvml.NVMLError as error:
        return [], f"NVML: {error}"
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def processes_of(uuid: str) -> dict[int, int]:
    """Bytes by process id of the GPU or the MIG instance, as torch writes its ``uuid``; empty
    where nothing is told. Raises ImportError without nvidia-ml-py, or NVML's own error."""
    import pynvml

    pynvml.nvmlInit()
    try:
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except pynvml.NVMLError:
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
        return _processes(pynvml, handle)
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _processes(nvml: Any, handle: Any) -> dict[int, int]:
    processes: dict[int, int] = {}
    with contextlib.suppress(nvml.NVMLError):
        for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if one.usedGpuMemory is not None:
                processes[int(one.pid)] = int(one.usedGpuMemory)
    return processes


def _cards(nvml: Any) -> Iterator[Card]:
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        slices = list(_slices(nvml, handle))
        for one in slices or [handle]:
            yield _card(nvml, one, index)


def _slices(nvml: Any, handle: Any) -> Iterator[Any]:
    """The MIG instances of a GPU in MIG mode."""
    try:
        if not nvml.nvmlDeviceGetMigMode(handle)[0]:
            return
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nvml.NVMLError:
        return
    for place in range(count):
        with contextlib.suppress(nvml.NVMLError):
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)


def _card(nvml: Any, handle: Any, index: int) -> Card:
    total = used = None
    with contextlib.suppress(nvml.NVMLError):
        memory = _memory(nvml, handle)
        total, used = int(memory.total), int(memory.used)
    return Card(
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        total=total,
        used=used,
        processes=_processes(nvml, handle),
    )


def _memory(nvml: Any, handle: Any) -> Any:
    """The second version leaves the driver's own reserve out of what is used."""
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError, AttributeError, TypeError):
        return nvml.nvmlDeviceGetMemoryInfo(handle)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
