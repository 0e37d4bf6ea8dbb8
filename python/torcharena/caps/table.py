"""`limits`: every cap that counts for this process, its scope and its source."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from .. import sizes, state
from ..loading import core
from ..state import DeviceLike, device_index, needs_enabled
from . import administrator, caps, hardware, ledgers
from .administrator import Admin, Device

__all__ = ["Limit", "Limits", "limits", "of_file"]


@dataclass(frozen=True)
class Limit:
    """One cap on one device.

    ``scope``: whose bytes it counts: ``process``, ``tenant`` or ``device``. ``value``: bytes,
    None for none. ``source``: ``api``, ``environment``, ``fraction``, ``admin`` or
    ``hardware``, and ``where`` in words. ``holds``: growth over it is refused, and of its
    scope it is the least."""

    device: int
    scope: str
    value: int | None
    source: str
    where: str
    holds: bool = True

    def __str__(self) -> str:
        value = "none" if self.value is None else sizes.format_size(self.value)
        return f"{self.scope} {value} from {self.where}"


@dataclass
class Limits(list[Limit]):
    """The caps, by device, scope and size; and what they belong to."""

    mode: str = ""  # of the administrator's file; "": there is none
    tenant: str = ""
    claimed: bool = False  # the tenant is what the environment says
    ledger: str = ""  # the directory where this process is counted with others; "": none
    why: str = ""  # why none, or what is wrong with it now
    names: dict[int, str] = field(default_factory=dict)  # of the devices
    held: dict[tuple[int, str], int] = field(default_factory=dict)  # bytes, where known

    def least(self, device: int = 0) -> int | None:
        """The least of the device's caps that hold, over all scopes; None for none."""
        held = [one.value for one in self if one.device == device and one.holds]
        return min((value for value in held if value is not None), default=None)

    def as_json(self) -> dict[str, Any]:
        """One object for programs; sizes in bytes."""
        return {
            "mode": self.mode,
            "tenant": self.tenant,
            "claimed": self.claimed,
            "ledger": self.ledger,
            "why": self.why,
            "limits": [asdict(one) for one in self],
        }

    def __str__(self) -> str:
        lines: list[str] = []
        for device in dict.fromkeys([*self.names, *(one.device for one in self)]):
            if lines:
                lines.append("")
            lines += self._device(device)
        lines = lines or ["any device: no caps"]
        claimed = ", claimed by the environment" if self.claimed else ""
        lines += ["", f"tenant   {self.tenant}{claimed}"]
        ledger = f"{self.ledger or 'none'}{': ' if self.why else ''}{self.why}"
        lines.append(f"ledger   {ledger}")
        lines.append(f"mode     {_MODES[self.mode]}")
        return "\n".join(lines)

    def _device(self, device: int) -> list[str]:
        rows = [one for one in self if one.device == device]
        name = self.names.get(device, "")
        head = "any device" if device < 0 else f"device {device}"
        head += f", {name}" if name else ""
        if not rows:
            return [f"{head}: no caps"]
        lines = [head, f"  {'scope':<8} {'cap':>10}  {'held now':>10}  from"]
        shown: set[str] = set()
        for one in rows:
            cap = "none" if one.value is None else sizes.format_size(one.value)
            held = self.held.get((device, one.scope))
            known = held is not None and one.scope not in shown
            shown.add(one.scope)
            text = sizes.format_size(held) if known and held is not None else ""
            mark = "" if one.holds else f" ({self._idle(one)})"
            lines.append(f"  {one.scope:<8} {cap:>10}  {text:>10}  {one.where}{mark}")
        return lines

    def _idle(self, one: Limit) -> str:
        admins = one.source == "admin" and self.mode == "observe"
        return "observed, not enforced" if admins else "a lower one holds"


_MODES = {
    "": "no administrator's file: only your own caps hold",
    "off": "off: the administrator's caps do not hold",
    "observe": "observe: the administrator's caps are counted, none is enforced",
    "enforce": "enforce: growth over a cap is refused",
}


def limits(device: DeviceLike = None) -> Limits:
    """Every cap that counts for this process, with scope and source; of every device that the
    process sees, or of one. Print it for a table. Raises RuntimeError where the arena is not
    enabled."""
    needs_enabled("limits")
    with state.lock:
        admin = state.current.admin or administrator.begin({})
        wanted = None if device is None else device_index(device)
        found = _blank(admin)
        for one in admin.devices or [Device(wanted or 0, "", 0, "")]:
            if wanted is None or one.index == wanted:
                _add(found, admin, one, _own(one))
                _add_held(found, one)
        return found


def of_file(
    admin: Admin, devices: list[Device], environment: sizes.Size | None
) -> Limits:
    """The same for a process that would start now, by the administrator's file and
    TORCHARENA_LIMIT alone. Without devices what is known of any."""
    found = _blank(admin)
    for one in devices or [Device(-1, "", 0, "")]:
        own = []
        if environment is not None and (environment.bytes is not None or one.total):
            own.append((environment.resolve(one.total), "environment"))
        _add(found, admin, one, own)
    return found


def _blank(admin: Admin) -> Limits:
    found = Limits()
    found.mode, found.tenant = admin.mode, admin.tenant.name
    found.claimed = admin.tenant.claimed
    why = next(iter(admin.closed.values()), "") or admin.place.why
    found.ledger, found.why = ("" if admin.closed else admin.place.path), why
    return found


def _own(device: Device) -> list[tuple[int, str]]:
    """This process's caps but the administrator's: bytes and source."""
    given = state.current.given
    found = []
    for source in dict.fromkeys(source for source, _ in given):
        size = given.get((source, device.index), given.get((source, None)))
        if size is not None and (size.bytes is not None or device.total):
            found.append((size.resolve(device.total or None), source))
    holds, holder = caps.keeper().limit(device.index)
    if holds is not None and holder == "fraction":
        found.append((holds, holder))
    return found


def _add(found: Limits, admin: Admin, device: Device, own: list[tuple[int, str]]) -> None:
    if device.name:
        found.names[device.index] = f"{device.name}, {sizes.format_size(device.total)}"
    known = device if device.uuid else None
    for scope in ("process", "tenant", "device"):
        rows: list[tuple[int | None, str, str]] = [
            (size, "admin", admin.file.where(cap))
            for size, cap in admin.caps(scope, known)
            if admin.file is not None
        ]
        if scope == "process":
            rows += [(size, source, caps.SOURCES[source]) for size, source in own]
            if device.dmem is not None:
                rows.append((device.dmem, "hardware", hardware.DMEM))
        elif scope == "device" and device.mig:
            rows.append((device.total, "hardware", hardware.MIG))
        holding = [row[0] for row in rows if row[0] is not None and _holds(row[1], admin)]
        for size, source, where in sorted(
            rows, key=lambda row: (row[0] is None, row[0] or 0, row[1])
        ):
            least = size is not None and size == min(holding, default=None)
            holds = least and _holds(source, admin)
            found.append(Limit(device.index, scope, size, source, where, holds))


def _holds(source: str, admin: Admin) -> bool:
    return source != "admin" or admin.enforces


def shared(device: int) -> list[str]:
    """The caps over several processes, each with whose it is and what is left of it."""
    admin = state.current.admin
    caps_ = admin.shared(device) if admin else []
    lefts = room(device)[-len(caps_) :] if caps_ else []
    return [
        f"{sizes.format_size(cap)} from {where}; {sizes.format_size(left)} left"
        for (cap, where), (left, _) in zip(caps_, lefts, strict=False)
    ]


def room(device: int) -> list[tuple[int, int]]:
    """Of each cap that holds on the device, what can still be had, and the cap, in bytes. Of
    those over several processes it is what was left a moment ago."""
    library, admin = core(), state.current.admin
    own, _ = library.limit(device)
    held = library.stats(device)["reserved"][0]
    found = [] if own is None else [(max(own - held, 0), own)]
    known = admin.device(device) if admin else None
    if known is None or not admin.shared(device):
        return found
    try:
        rows = [one for one in ledgers.rows(admin.place.path, known.uuid) if one["alive"]]
    except RuntimeError:  # growth will say why
        return found
    for scope, tenant in (("tenant", admin.tenant.name), ("device", None)):
        cap = admin.least(scope, known)
        if cap is not None:
            used = sum(r["bytes"] for r in rows if tenant in (None, r["tenant"]))
            found.append((max(cap - used, 0), cap))
    return found


def _add_held(found: Limits, device: Device) -> None:
    library: Any = core()
    if not library.created():
        return
    found.held[device.index, "process"] = library.stats(device.index)["reserved"][0]
    if not found.ledger or not device.uuid:
        return
    found.why = library.ledger_state(device.index)["problem"]
    try:
        rows = [one for one in ledgers.rows(found.ledger, device.uuid) if one["alive"]]
    except RuntimeError:
        return
    found.held[device.index, "device"] = sum(row["bytes"] for row in rows)
    found.held[device.index, "tenant"] = sum(
        row["bytes"] for row in rows if row["tenant"] == found.tenant
    )
