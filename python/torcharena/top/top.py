"""What `torcharena top` and the metrics show: every GPU, and who holds what of it.

The ledgers say what the processes hold that load torcharena, NVML what the device has given
in all; the difference is the processes' contexts and those who are not counted. Needs
neither a GPU nor rights that a member of the GPUs' group has not."""

from __future__ import annotations

import os
import pwd
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from .. import settings
from ..caps import admin_file, administrator, ledgers, tenants
from . import nvml

__all__ = ["Gpu", "Overview", "Process", "TenantSum", "look"]


@dataclass(frozen=True)
class Process:
    """One process on one GPU; sizes in bytes. ``state``: ``alive``, or ``draining``: it has
    died, its bytes count no more, and the driver may hold them for a moment yet.
    ``context``: what NVML counts for it besides; None where that is not known."""

    pid: int  # as its own pid namespace has it
    uid: int
    user: str
    label: str
    tenant: str
    claimed: bool  # the tenant is what its environment says
    state: str
    reserved: int
    unused: int  # of it, without a live block when last told
    peak: int
    spilled: int
    refused: int  # requests
    cap: int | None
    cap_source: str | None
    started: float  # seconds since 1970
    context: int | None = None
    slurm_job_id: str = ""
    k8s_namespace: str = ""
    k8s_pod: str = ""
    slot: int = 0  # of the ledger: what tells two of one pid apart, of two pid namespaces


@dataclass(frozen=True)
class TenantSum:
    """A tenant on one GPU: bytes held, and the cap over them."""

    name: str
    reserved: int
    cap: int | None


@dataclass
class Gpu:
    """A GPU, or a MIG instance; sizes in bytes, None where nobody says them."""

    uuid: str
    index: int | None = None  # NVML's
    name: str | None = None
    total: int | None = None
    used: int | None = None
    counted: int = 0  # by the ledger, of the living
    unaccounted: int | None = None  # used, and not counted
    cap: int | None = None
    cap_source: str | None = None
    tenants: list[TenantSum] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    strangers: dict[int, int] = field(default_factory=dict)  # bytes by pid, by NVML
    problem: str = ""


@dataclass
class Overview:
    """All of it at one moment."""

    time: float
    ledger: str
    mode: str  # of the administrator's file; "": there is none; "malformed"
    gpus: list[Gpu]
    problem: str = ""  # of the ledgers' directory or the administrator's file
    nvml: str = ""  # why NVML says nothing

    def as_json(self) -> dict[str, Any]:
        """One object; sizes end in ``_bytes``."""
        return _renamed(asdict(self))


_SIZES = {
    "reserved", "unused", "peak", "spilled", "cap", "context", "total", "used", "counted",
    "unaccounted",
}  # fmt: skip


def _renamed(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            f"{k}_bytes" if k in _SIZES else str(k): _renamed(v) for k, v in value.items()
        }
    return [_renamed(one) for one in value] if isinstance(value, list) else value


def look(directory: str | None = None) -> Overview:
    """Reads everything once. ``directory``: other ledgers than those of this machine."""
    admin, problem, mode = None, "", ""
    try:
        where = administrator.path()
        admin = admin_file.load(where) if where else None
        mode = admin.mode if admin else ""
    except admin_file.Malformed as error:
        problem, mode = str(error), "malformed"
    if directory is None:
        try:
            wanted = settings.from_environment().get("ledger")
        except ValueError as error:
            wanted, problem = None, problem or str(error)
        place = ledgers.choose(admin, wanted)
        directory, problem = place.path, problem or place.why
    found: list[str] = []
    try:
        found = ledgers.gpus(directory) if directory else []
    except OSError as error:
        problem = problem or f"{directory}: {error.strerror}" + _who_may(directory, error)
    cards, why = nvml.cards()
    by_uuid = {card.uuid: card for card in cards}
    uuids = [card.uuid for card in cards] + [u for u in found if u not in by_uuid]
    gpus = [
        _gpu(u, by_uuid.get(u), directory if u in found else "", admin) for u in uuids
    ]
    return Overview(time.time(), directory or "", mode, gpus, problem, why)


def _who_may(directory: str, error: OSError) -> str:
    if not isinstance(error, PermissionError):
        return ""
    import grp

    try:
        group = grp.getgrgid(os.stat(directory).st_gid).gr_name
    except (OSError, KeyError):
        return ""
    return f" (members of the group {group} may look)"


def _gpu(
    uuid: str,
    card: nvml.Card | None,
    directory: str,
    admin: admin_file.AdminFile | None,
) -> Gpu:
    gpu = Gpu(uuid)
    if card is not None:
        gpu.index, gpu.name, gpu.total = card.index, card.name, card.total
        gpu.used = card.used
    rows: list[dict[str, Any]] = []
    try:
        rows = ledgers.rows(directory, uuid) if directory else []
    except RuntimeError as error:
        gpu.problem = str(error)
    listed = card.processes if card else {}
    gpu.processes = [_process(row, listed) for row in rows]
    gpu.counted = sum(one.reserved for one in gpu.processes if one.state == "alive")
    if gpu.used is not None:
        gpu.unaccounted = max(gpu.used - gpu.counted, 0)
        # What the driver certainly has back does not drain any more.
        gpu.processes = [
            one
            for one in gpu.processes
            if one.state == "alive" or one.reserved <= gpu.unaccounted
        ]
    known = {one.pid for one in gpu.processes}
    gpu.strangers = {pid: size for pid, size in listed.items() if pid not in known}
    _put_caps(gpu, rows, admin)
    return gpu


def _process(row: dict[str, Any], listed: dict[int, int]) -> Process:
    context = None
    if row["alive"] and listed.get(row["pid"], -1) >= row["bytes"]:
        context = listed[row["pid"]] - row["bytes"]
    label, place = ledgers.unpacked(row["label"])
    job, space, pod = tenants.places(_shown(place))
    none = row["limit"] is None
    return Process(
        pid=row["pid"],
        uid=row["uid"],
        user=_user(row["uid"]),
        label=_shown(label),
        tenant=_shown(row["tenant"]),
        claimed=row["claimed"],
        state="alive" if row["alive"] else "draining",
        reserved=row["bytes"],
        unused=row["unused"],
        peak=row["peak"],
        spilled=row["spilled"],
        refused=row["refused"],
        cap=row["limit"],
        cap_source=None if none else row["limit_source"],
        started=row["started"],
        context=context,
        slurm_job_id=job,
        k8s_namespace=space,
        k8s_pod=pod,
        slot=row["slot"],
    )


def _shown(text: str) -> str:
    """What others wrote, without what would steer the terminal of who looks."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _put_caps(
    gpu: Gpu, rows: list[dict[str, Any]], admin: admin_file.AdminFile | None
) -> None:
    """The device's cap is what the file says; where we see none, what the processes go by."""
    believed = [row["device_cap"] for row in rows if row["alive"]]
    caps = [size for size in believed if size is not None]
    if caps:
        gpu.cap, gpu.cap_source = min(caps), "admin"
    if admin is not None and admin.mode != "off":
        for cap in admin.caps("device", gpu.uuid, None):
            if cap.size and (cap.size.bytes is not None or gpu.total is not None):
                gpu.cap = cap.size.resolve(gpu.total)
                gpu.cap_source = admin.where(cap)
    sums: dict[str, TenantSum] = {}
    for row in rows:
        name = _shown(row["tenant"])
        before = sums.get(name, TenantSum(name, 0, None))
        both = [c for c in (before.cap, row["tenant_cap"]) if c is not None]
        held = before.reserved + (row["bytes"] if row["alive"] else 0)
        sums[name] = TenantSum(name, held, min(both, default=None))
    gpu.tenants = sorted(sums.values(), key=lambda one: -one.reserved)
