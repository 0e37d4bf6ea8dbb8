"""`torcharena doctor`: what this machine supports, and what the allocator would do here.

Every finding is one line in plain words with a verdict: good, note (works, with a limit that
is named), or bad (the arena cannot be used, and what to do). Works with no GPU and no torch."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

from . import __version__, settings
from .caps import administrator
from .loading import core
from .sizes import format_size
from .state import DEFAULT_PAGE

__all__ = ["Finding", "Report", "examine"]

_CUDNN = 90800  # the first that answers for a card that is only described
_SIGNS = {"good": "ok", "note": "--", "bad": "NO"}


@dataclass(frozen=True)
class Finding:
    """``what`` was looked at, ``verdict`` good, note or bad, and ``text`` in plain words."""

    what: str
    verdict: str
    text: str


@dataclass
class Report:
    """All findings; `usable`: the arena works on this machine."""

    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Whether nothing speaks against the arena."""
        return all(finding.verdict != "bad" for finding in self.findings)

    def add(self, what: str, verdict: str, text: str) -> None:
        """One more finding."""
        self.findings.append(Finding(what, verdict, text))

    def as_json(self) -> dict[str, Any]:
        """One object for programs."""
        return {
            "version": __version__,
            "usable": self.usable,
            "findings": [asdict(finding) for finding in self.findings],
            **self.facts,
        }

    def __str__(self) -> str:
        width = max(len(finding.what) for finding in self.findings)
        lines = [f"torcharena {__version__}"]
        lines += [
            f"  {_SIGNS[f.verdict]}  {f.what:<{width}}  {f.text}" for f in self.findings
        ]
        if self.usable:
            lines.append("torcharena.enable() works here.")
        else:
            first = next(f for f in self.findings if f.verdict == "bad")
            lines.append(f"torcharena.enable() does not work here: {first.text}.")
            lines.append("`torcharena rehearse` and `replay` need no GPU.")
        return "\n".join(lines)


def examine() -> Report:
    """Looks at the machine. Starts the driver, makes no CUDA context."""
    report = Report()
    _system(report)
    library = _library(report)
    _torch(report, library)
    if library is not None:
        _devices(report, library)
    _environment(report)
    _limits(report)
    _rehearsal(report)
    return report


def _system(report: Report) -> None:
    system = (
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    )
    report.facts["system"] = system
    if sys.platform != "linux":
        report.add("system", "bad", f"{system}: torcharena is for Linux")
    else:
        report.add("system", "good", system)


def _library(report: Report) -> Any:
    try:
        library = core()
    except ImportError as error:
        report.add("library", "bad", str(error).splitlines()[0])
        return None
    report.add("library", "good", os.path.basename(library.library_path()))
    return library


def _torch(report: Report, library: Any) -> None:
    # No backend is loaded with it: this command looks at the environment itself.
    before = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    try:
        import torch
    except ImportError:
        report.add("torch", "note", "not installed: pip install torch (2.7 or later)")
        return
    except Exception as error:  # a broken torch is a finding, whatever it raises
        report.add("torch", "bad", f"does not import: {error}")
        return
    finally:
        if before is None:
            del os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"]
        else:
            os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = before
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    report.facts["torch"] = torch.__version__
    cuda = torch.version.cuda
    if cuda is None:
        report.add("torch", "bad", f"{torch.__version__} is a build without CUDA")
        return
    if version < (2, 7):
        report.add("torch", "bad", f"{torch.__version__} is too old: 2.7 is the oldest")
        return
    if int(cuda.split(".")[0]) < 12:
        report.add(
            "torch", "bad", f"{torch.__version__} is built for CUDA {cuda}: 12 or 13"
        )
        return
    tested = version <= (2, 14)
    report.add(
        "torch",
        "good" if tested else "note",
        f"{torch.__version__}, CUDA {cuda}" + ("" if tested else ": newer than tested"),
    )
    from .installing import SETTERS

    kind = getattr(torch._C, "_CUDAPluggableAllocator", None)
    missing = [
        setter for setter in SETTERS if kind is not None and not hasattr(kind, setter)
    ]
    report.facts["setters_missing"] = missing
    if missing:
        report.add("torch's hooks", "note", f"this torch lacks {', '.join(missing)}")
    else:
        report.add("torch's hooks", "good", f"all {len(SETTERS)} there")
    if library is not None:
        _status(report, library.torch_status())


def _limits(report: Report) -> None:
    """The administrator's file, and where processes count together."""
    what = "limits"
    try:
        admin = administrator.begin(_settings())
    except RuntimeError as error:
        report.add(what, "bad", str(error))
        return
    report.facts["limits"] = {"mode": admin.mode, "ledger": admin.place.path}
    counted = f"counted in {admin.place.path}" if admin.place.path else "not counted: "
    counted += "" if admin.place.path else admin.place.why
    if admin.problem:
        report.add(what, "note", f"{admin.problem}; nothing of it holds")
    elif admin.file is not None:
        text = (
            f"{admin.file.path} says {admin.mode}; tenant {admin.tenant.name}, {counted}"
        )
        report.add(what, "good", text)
    else:
        report.add(what, "good", f"no administrator's file; {counted}")


def _rehearsal(report: Report) -> None:
    """What a rehearsal would have here; nothing of it speaks against the arena."""
    from .rehearsal import isolation, library

    what = "rehearsal"
    facts: dict[str, Any] = {"built": True}
    report.facts["rehearsal"] = facts
    try:
        library()
    except FileNotFoundError as error:
        facts["built"] = False
        report.add(what, "note", f"none: {error}")
        return
    files = isolation.status()
    facts["files"] = files.mechanism
    report.add(what, "good" if files.mechanism == "layer" else "note", files.text)
    torch = sys.modules.get("torch")
    if torch is None or torch.version.cuda is None:
        report.add(what, "note", "none without a torch that is built with CUDA")
        return
    try:
        version = torch.backends.cudnn.version()
    except RuntimeError as error:  # of another version than torch was built with
        version, problem = None, f" ({str(error).splitlines()[0]})"
    else:
        problem = ""
    facts["cudnn"] = version
    if version is None:
        text = f"no libcudnn{problem}: workspaces of convolutions would be guesses"
    elif version < _CUDNN:
        text = f"cuDNN {_spelt(version)} describes no card: 9.8 does, older ones' workspaces "
        text += "of convolutions are guesses"
    else:
        text = f"workspaces of convolutions come from cuDNN {_spelt(version)} itself"
    good = version is not None and version >= _CUDNN
    report.add(what, "good" if good else "note", text)


def _spelt(version: int) -> str:
    """cuDNN's number in its usual form, 91900 being 9.19.0."""
    thousands = 10000 if version >= 90000 else 1000
    return f"{version // thousands}.{version % thousands // 100}.{version % 100}"


def _status(report: Report, status: dict[str, str]) -> None:
    """What the library found of torch's own: what it throws, asks and mends."""
    report.facts["torch_status"] = status
    for name, text in status.items():
        # Before the arena is under torch, some has not been looked at yet.
        good = text.startswith("ok") or text == "not installed yet"
        report.add(f"torch's {name}", "good" if good else "note", text)


def _devices(report: Report, library: Any) -> None:
    first = library.probe(0)
    if first["reason"]:
        report.add("driver", "bad", f"no NVIDIA GPU to be had: {first['reason']}")
        return
    version = first["driver_version"]
    said = f"CUDA {version // 1000}.{version % 1000 // 10}"
    if version < 12000:
        report.add("driver", "bad", f"{said}: 12.0 is the oldest, update the driver")
    else:
        report.add("driver", "good", said)
    report.facts["devices"] = [
        _device(report, library, index) for index in range(first["devices"])
    ]


def _device(report: Report, library: Any, index: int) -> dict[str, Any]:
    facts: dict[str, Any] = dict(library.probe(index))
    what = f"device {index}"
    name = f"{facts['name']}, {format_size(facts['total'])}"
    wanted = _settings()
    if facts["vmm"]:
        granularity = format_size(facts["granularity"])
        report.add(what, "good", f"{name}: virtual memory in units of {granularity}")
    else:
        report.add(
            what,
            "note" if wanted.get("fallback") else "bad",
            f"{name}: no virtual memory management"
            + (" under WSL2" if facts["wsl2"] else "")
            + (
                "; plain driver allocations are taken, as TORCHARENA_FALLBACK allows"
                if wanted.get("fallback")
                else "; enable(fallback=True) takes plain driver allocations"
            ),
        )
    facts["would"] = _plan(facts, wanted)
    report.add(what, "good", facts["would"])
    if facts["mig"]:
        report.add(
            what, "note", "a MIG slice: its memory is the slice's, caps count in it"
        )
    if "GeForce" in facts["name"]:
        text = "a GeForce: a desktop on it takes memory besides, of which a cap knows nothing"
        report.add(what, "note", text)
    if facts["wsl2"]:
        report.add(what, "note", "WSL2: Windows shares the card, free memory may shrink")
    report.add(
        what,
        "good" if facts["host_pages"] else "note",
        "host memory can back pages"
        if facts["host_pages"]
        else "no pages in host memory: spilling will not be possible",
    )
    peers = facts["peers"]
    if peers:
        report.add(what, "good", f"reaches device {', '.join(map(str, peers))} directly")
    if facts["context"]:
        report.add(what, "note", "a CUDA context exists in this process already")
    return facts


def _settings() -> dict[str, Any]:
    """Those of the environment; none where it makes no sense, which `_environment` tells."""
    try:
        return settings.from_environment()
    except ValueError:
        return {}


def _plan(facts: dict[str, Any], wanted: dict[str, Any]) -> str:
    """What the allocator would do on this device."""
    page = wanted.get("page") or max(DEFAULT_PAGE, facts["granularity"])
    total = facts["total"]
    cap, source = wanted.get("limit"), "TORCHARENA_LIMIT"
    if cap is None:
        allowed = f"no cap, so up to all of {format_size(total)}"
    else:
        bytes_ = min(cap.resolve(total), total) // page * page
        allowed = f"cap {format_size(bytes_)} by {source}, the CUDA context on top"
    if not facts["vmm"]:
        return f"would take ranges of the driver's; {allowed}"
    return f"would take pages of {format_size(page)}; {allowed}"


def _environment(report: Report) -> None:
    from . import conf

    try:
        found = settings.from_environment()
        conf_idle = [
            k for v in conf.VARIABLES for k in conf.without_meaning(os.environ.get(v, ""))
        ]
    except (ValueError, RuntimeError) as error:
        report.add("environment", "bad", str(error))
        return
    report.facts["settings"] = {name: str(value) for name, value in found.items()}
    said = ", ".join(f"{name}={value}" for name, value in found.items()) or "no settings"
    report.add("environment", "good", said)
    if conf_idle:
        report.add("environment", "note", f"without meaning here: {', '.join(conf_idle)}")
