"""What the machine itself allows this process of a GPU's memory: the size of a MIG instance,
and the cgroup's dmem.max where the GPU's driver reports its memory there (Linux 6.14; NVIDIA's
does not yet). Reads files, asks no driver."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["DMEM", "MIG", "bus_of", "cgroup_cap"]

DMEM, MIG = "the cgroup's dmem.max", "the MIG instance's memory"
_ROOT = "/sys/fs/cgroup"


def bus_of(properties: Any) -> str:
    """A device's PCI address, as 0000:3b:00.0, by torch's properties; "" before torch 2.9."""
    try:
        domain, bus = int(properties.pci_domain_id), int(properties.pci_bus_id)
        return f"{domain:04x}:{bus:02x}:{int(properties.pci_device_id):02x}.0"
    except AttributeError:
        return ""


def cgroup_cap(bus: str, root: str = _ROOT, proc: str = "/proc/self") -> int | None:
    """The least dmem.max, of this process's cgroup and those above it, for the device at the
    PCI address ``bus``, in bytes; None where none is reported."""
    try:
        with open(f"{proc}/cgroup") as file:
            paths = [line.strip()[3:] for line in file if line.startswith("0::")]
    except OSError:
        return None
    if not paths or not bus:
        return None
    found, at = [], os.path.normpath(root + "/" + paths[0])
    while at == root or at.startswith(root + "/"):
        found += _of(os.path.join(at, "dmem.max"), bus.lower())
        at = os.path.dirname(at)
    return min(found, default=None)


def _of(path: str, bus: str) -> list[int]:
    """``drm/0000:3b:00.0/vram0 1073741824``; ``max`` is none."""
    try:
        with open(path) as file:
            lines = [line.split() for line in file]
    except OSError:
        return []
    return [
        int(fields[1])
        for fields in lines
        if len(fields) == 2 and bus in fields[0].lower() and fields[1].isdigit()
    ]
