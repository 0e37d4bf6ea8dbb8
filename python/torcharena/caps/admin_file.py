"""The administrator's file: what it may say, and what it says.

    mode = "enforce"               # off, observe, enforce
    ledger = "/run/torcharena"     # where the processes of a GPU count together

    [limits]                       # on each GPU
    process = "24GiB"              # a process
    tenant = "40GiB"               # all processes of a tenant together
    device = "76GiB"               # all processes together

    [gpu.GPU-5d0c1a2b-...]         # on this one, in place of [limits]
    device = "60GiB"

    [[tenant]]                     # who is a tenant: the first that fits
    slurm_job = "*"                # or user = ["alice", 1004], pod = "*", cgroup = "/a/*"
    limit = "30GiB"                # in place of [limits] tenant
    process = "10GiB"              # in place of [limits] process

A file that cannot be trusted or understood is an error that names line and remedy, never no
limit. Nothing is remembered here."""

from __future__ import annotations

from dataclasses import dataclass, field

from .. import sizes
from . import trust

__all__ = [
    "DIRECTORY",
    "MATCHES",
    "MODES",
    "PATH",
    "SCOPES",
    "AdminFile",
    "Cap",
    "Malformed",
    "TenantRule",
    "load",
]

PATH = "/etc/torcharena/limits.toml"
MODES = ("off", "observe", "enforce")
DIRECTORY = "/run/torcharena"
MATCHES = ("user", "slurm_job", "pod", "cgroup")
SCOPES = ("process", "tenant", "device")


class Malformed(ValueError):
    """What is wrong with the file, where, and what is accepted. ``mode`` is what it says of
    itself where that much is clear, else ``enforce``: no error becomes no limit."""

    def __init__(self, text: str, mode: str = "enforce") -> None:
        super().__init__(text)
        self.mode = mode


@dataclass(frozen=True)
class Cap:
    """A cap as it is written, and on which line (0: not known)."""

    size: sizes.Size | None  # None: none
    line: int = 0


@dataclass(frozen=True)
class TenantRule:
    """Who belongs to a tenant. ``values`` are texts, ``*`` for each its own tenant."""

    kind: str  # one of MATCHES
    values: tuple[str, ...]
    name: str  # "": what is matched makes the name
    limit: Cap | None  # None: that of [limits]
    process: Cap | None
    line: int


@dataclass(frozen=True)
class AdminFile:
    """All that one file says."""

    path: str
    mode: str = "enforce"
    ledger: str = DIRECTORY
    limits: dict[str, Cap] = field(default_factory=dict)  # by scope
    gpus: dict[str, dict[str, Cap]] = field(default_factory=dict)  # by UUID, by scope
    tenants: tuple[TenantRule, ...] = ()
    mark: tuple[int, ...] = ()  # another file has another

    def caps(self, scope: str, gpu: str, rule: TenantRule | None) -> list[Cap]:
        """The caps of a scope on a GPU for a tenant, of which the least holds. What is said of
        a GPU or of a tenant stands in place of what [limits] says."""
        own = None
        if rule is not None and scope != "device":
            own = rule.limit if scope == "tenant" else rule.process
        special = [own, self.gpus.get(gpu, {}).get(scope)]
        found = [cap for cap in special if cap is not None]
        general = [self.limits[scope]] if scope in self.limits else []
        return found or general

    def shares(self) -> bool:
        """Whether something in it needs the ledger: a cap of a tenant or a device."""
        tables = [self.limits, *self.gpus.values()]
        found = [table.get(scope) for table in tables for scope in ("tenant", "device")]
        found += [rule.limit for rule in self.tenants]
        return any(cap is not None and cap.size is not None for cap in found)

    def where(self, cap: Cap) -> str:
        """The file and line of a cap."""
        return f"{self.path}, line {cap.line}" if cap.line else self.path


def load(path: str | None = None) -> AdminFile | None:
    """The file's contents; None where nobody made one. Raises Malformed."""
    path = PATH if path is None else path
    try:
        found = trust.read(path)
    except trust.Untrusted as error:
        raise Malformed(str(error)) from None
    if found is None:
        return None
    from .reader import parse

    return parse(found[0], path, found[1])
