"""What the administrator's file makes of this process: caps, tenant, ledger.

Made by `enable`, completed when CUDA is up and the devices are known, changed by the thread
of `watching`; always under `state.lock`. In mode enforce what cannot hold is an error
that keeps the arena from being installed; in observe it is a warning."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .. import state
from ..loading import log, warn
from . import admin_file, hardware, ledgers, tenants
from .admin_file import AdminFile, Cap, Malformed

__all__ = ["Admin", "Device", "begin", "devices", "path"]


@dataclass(frozen=True)
class Device:
    """A device as far as caps ask: its ordinal, UUID, bytes and name."""

    index: int
    uuid: str
    total: int
    name: str
    mig: bool = False
    dmem: int | None = None  # the cgroup's cap on it


@dataclass
class Admin:
    """The file in this process."""

    file: AdminFile | None
    tenant: tenants.Tenant
    facts: tenants.Facts
    place: ledgers.Place
    wanted: str | None = None  # TORCHARENA_LEDGER
    label: str = ""
    problem: str = ""  # why the file does not hold
    devices: list[Device] = field(default_factory=list)  # none before CUDA is up
    opened: dict[int, str] = field(default_factory=dict)  # ledgers' files, by device
    closed: dict[int, str] = field(default_factory=dict)  # why there is none

    @property
    def mode(self) -> str:
        """The file's; "" where there is none."""
        return self.file.mode if self.file else ""

    @property
    def enforces(self) -> bool:
        """Whether its caps hold."""
        return self.mode == "enforce"

    def caps(self, scope: str, device: Device | None) -> list[tuple[int | None, Cap]]:
        """The file's caps of one scope in bytes, None for none, each with its place. What is a
        share of the device is left out while there is no device to ask."""
        if self.file is None or self.mode == "off":
            return []
        uuid, total = (device.uuid, device.total) if device else ("", None)
        return [
            (None if cap.size is None else cap.size.resolve(total), cap)
            for cap in self.file.caps(scope, uuid, self.tenant.rule)
            if cap.size is None or cap.size.bytes is not None or total is not None
        ]

    def least(self, scope: str, device: Device | None) -> int | None:
        """The least of them; None for none."""
        caps = [size for size, _ in self.caps(scope, device) if size is not None]
        return min(caps, default=None)

    def device(self, index: int) -> Device | None:
        """The device of that ordinal, once CUDA is up."""
        return next((one for one in self.devices if one.index == index), None)

    def shared(self, index: int) -> list[tuple[int, str]]:
        """The caps that hold over this process and others, each with whose it is."""
        if not self.enforces or self.file is None:
            return []
        device = self.device(index)
        called = {"tenant": f"tenant {self.tenant.name}", "device": "all processes"}
        return [
            (size, f"{self.file.where(cap)} ({called[scope]} together)")
            for scope in ("tenant", "device")
            for size, cap in self.caps(scope, device)
            if size is not None
        ]

    def where(self, index: int) -> str:
        """The file and line of the process's cap on a device."""
        device = self.device(index)
        least = self.least("process", device)
        dmem = device.dmem if device else None
        if dmem is not None and (not self.enforces or least is None or dmem < least):
            return hardware.DMEM
        found = [cap for size, cap in self.caps("process", device) if size == least]
        return self.file.where(found[0]) if self.file and found else admin_file.PATH

    def before_cuda(self, keeper: Any) -> None:
        """Puts the process's cap where it is known without a device."""
        keeper.set_limit(
            -1, "admin", self.least("process", None) if self.enforces else None
        )

    def apply(self, library: Any) -> None:
        """CUDA is up, or the file is another: puts every cap, and opens each GPU's ledger.

        Raises RuntimeError in enforce where a ledger that is needed cannot be used."""
        for device in self.devices:
            library.set_limit(device.index, "admin", self._process_cap(device))
            if device.index in self.opened:
                library.ledger_caps(device.index, *self._shared_caps(device))
            elif self.place.path:
                self._open(library, device)

    def _process_cap(self, device: Device) -> int | None:
        """Together with the cgroup's: the library has one place for what is above the user."""
        own = self.least("process", device) if self.enforces else None
        return min((cap for cap in (own, device.dmem) if cap is not None), default=None)

    def _shared_caps(self, device: Device) -> tuple[int | None, int | None, str]:
        mode = "enforce" if self.enforces else "observe"
        return self.least("device", device), self.least("tenant", device), mode

    def _open(self, library: Any, device: Device) -> None:
        device_cap, tenant_cap, mode = self._shared_caps(device)
        needed = self.enforces and not (device_cap is None and tenant_cap is None)
        try:
            found = library.ledger_open(
                device.index,
                self.place.path,
                device.uuid,
                ledgers.packed(self.label, self.facts.place),
                self.tenant.name,
                self.tenant.claimed,
                device_cap,
                tenant_cap,
                mode,
            )
            why = "" if found["shared"] else ledgers.unusable(self.place.path)
        except library.Error as error:
            found, why = None, str(error)
        if why and needed:
            raise RuntimeError(refusal(f"its ledger cannot be used: {why}"))
        if found is not None:
            self.opened[device.index] = found["path"]
            self.closed.pop(device.index, None)
            return
        self.closed[device.index] = why
        if self.file is None:
            log.debug("not counted with other processes: %s", why)
        else:
            warn(f"torcharena: not counted with other processes on this GPU: {why}")


def refusal(why: str) -> str:
    """The error where the administrator's caps cannot hold."""
    return f"the administrator's caps could not hold, so the arena is not enabled: {why}"


def path() -> str:
    """The administrator's file; on simulated GPUs that of TORCHARENA_SIM_LIMITS, else ""."""
    if ledgers.simulated():
        return os.environ.get("TORCHARENA_SIM_LIMITS", "")
    return admin_file.PATH


def begin(environment: dict[str, Any]) -> Admin:
    """Reads the file. Raises RuntimeError where it says enforce, or cannot be understood to
    say something else, and its caps could not hold."""
    file, problem = None, ""
    try:
        file = admin_file.load(path()) if path() else None
    except Malformed as error:
        if error.mode == "enforce":
            raise RuntimeError(refusal(str(error))) from None
        problem = str(error)
        if error.mode == "observe":
            warn(f"torcharena: {error}; nothing of this file is observed")
    facts = tenants.facts()
    wanted = environment.get("ledger")
    admin = Admin(
        file=file,
        tenant=tenants.tenant(file.tenants if file else (), facts),
        facts=facts,
        place=ledgers.choose(file, wanted),
        wanted=wanted,
        label=ledgers.label(environment.get("label")),
        problem=problem,
    )
    if file is not None and admin.mode != "off" and wanted not in (None, file.ledger):
        text = f"torcharena: TORCHARENA_LEDGER={wanted} has no effect: {file.path} says "
        text += f'ledger = "{file.ledger}"'
        if environment.get("strict"):
            raise RuntimeError(text)
        warn(text)
    if file is not None and admin.enforces and file.shares():
        why = ledgers.unusable(file.ledger)
        if why:
            raise RuntimeError(refusal(f"its ledger cannot be used: {why}"))
    return admin


def devices(library: Any) -> list[Device]:
    """The devices that this process sees. Starts the driver."""
    first = library.probe(0)
    return [
        Device(
            index,
            facts["uuid"],
            facts["total"],
            facts["name"],
            facts["mig"],
            hardware.cgroup_cap(_bus(index)),
        )
        for index, facts in enumerate(_probes(library, first))
        if not facts["reason"]
    ]


def _bus(index: int) -> str:
    if not os.path.exists("/sys/fs/cgroup/dmem.capacity"):  # this Linux reports none
        return ""
    import torch

    return hardware.bus_of(torch.cuda.get_device_properties(index))


def _probes(library: Any, first: Any) -> Iterable[Any]:
    yield first
    for index in range(1, first["devices"]):
        yield library.probe(index)


def current() -> Admin | None:
    """What `enable` has read; None where nothing is enabled."""
    found: Admin | None = state.current.admin
    return found
