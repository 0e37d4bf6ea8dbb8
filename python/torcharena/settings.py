"""Every setting in one table: name, environment variable, default, meaning.

The environment is read when the arena is enabled, never at import. A variable that starts
with ``TORCHARENA_`` and is not in the table is an error that names it: a misspelt cap must
not turn into no cap.
"""

from __future__ import annotations

import difflib
import os
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import sizes

__all__ = [
    "PREFIX",
    "SETTINGS",
    "Setting",
    "from_environment",
    "markdown",
    "on",
    "table",
    "unknown",
]

PREFIX = "TORCHARENA_"
# Belong to the simulated machine and to tests; each is read where it is used.
_OTHERS = (
    "TORCHARENA_SIM_",
    "TORCHARENA_TEST_",
    "TORCHARENA_REHEARSAL",
    "TORCHARENA_VALUES_",
    "TORCHARENA_CHECKS",
    "TORCHARENA_VLLM",
)


@dataclass(frozen=True)
class Setting:
    """One setting. ``read`` turns the variable's text into a value or raises ValueError;
    ``usual`` is the default in words."""

    name: str
    variable: str
    default: Any
    usual: str
    read: Callable[[str, str], Any]
    meaning: str


_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})


def _flag(text: str, name: str) -> bool:
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(f"{name}={text!r}: neither yes nor no (accepted: 1, 0)")


def _size(text: str, name: str) -> sizes.Size | None:
    return sizes.parse(text, in_code=False, name=name)


def _spill(text: str, name: str) -> int | None:
    return spill_bytes(_size(text, name), name)


def spill_bytes(value: sizes.Size | None, name: str = "spill") -> int | None:
    """Bytes of host memory that may be used; None for none, which 0 is too. Raises ValueError
    for a share."""
    if value is None:
        return None
    if value.bytes is None:
        raise ValueError(
            f"{name}={value}: a share of what? Host memory is given in bytes, as 64GiB"
        )
    return value.bytes or None


def _page(text: str, name: str) -> int:
    return page_bytes(_size(text, name), name)


def page_bytes(value: sizes.Size | None, name: str = "page") -> int:
    """Bytes of a page, 0 for the default. Raises ValueError for other sizes than the powers
    of two from CUDA's 2 MiB to the allocator's 256 MiB."""
    if value is None:
        return 0
    if value.bytes not in [(2 << 20) << n for n in range(8)]:
        raise ValueError(
            f"{name}={value}: a page has 2MiB, 4MiB, 8MiB and so on, doubling up to 256MiB"
        )
    return value.bytes


def _slack(text: str, name: str) -> float:
    try:
        return slack_ratio(float(text), name)
    except ValueError:
        raise ValueError(
            f"{name}={text!r}: no such ratio (accepted: a number from 1.0, such as 1.02)"
        ) from None


def slack_ratio(value: float | None, name: str = "slack") -> float:
    """The ratio, 0.0 for the default. Raises ValueError: 1.0 or more, and finite."""
    if value is None:
        return 0.0
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not good or not 1.0 <= value < float("inf"):
        raise ValueError(f"{name}={value!r}: a number from 1.0, such as 1.02")
    return float(value)


def _path(text: str, name: str) -> str:
    if not text:
        raise ValueError(
            f"{name}='': it is empty (accepted: a file to write, x.trace.xz)"
        )
    return text


def _label(text: str, name: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError(f"{name}={text!r}: no name (accepted: a short text on one line)")
    return text.strip()


def _ledger(text: str, name: str) -> str:
    if text.strip().lower() == "none":
        return "none"
    if not text.startswith("/"):
        raise ValueError(
            f"{name}={text!r}: no directory's whole path (accepted: /a/directory, none)"
        )
    return text


_LEVELS = ("debug", "info", "warning", "error")


def _level(text: str, name: str) -> str:
    if text.strip().lower() not in _LEVELS:
        raise ValueError(f"{name}={text!r}: no level (accepted: {', '.join(_LEVELS)})")
    return text.strip().upper()


DEBUG = ("guard",)


def _debug(text: str, name: str) -> str | None:
    word = text.strip().lower()
    if word in ("", "none"):
        return None
    if word not in DEBUG:
        raise ValueError(f"{name}={text!r}: no such means (accepted: {', '.join(DEBUG)})")
    return word


SETTINGS = (
    Setting(
        "enable",
        "TORCHARENA_ENABLE",
        False,
        "0",
        _flag,
        "1: `import torch` installs the arena, with no line of code",
    ),
    Setting(
        "limit",
        "TORCHARENA_LIMIT",
        None,
        "none",
        _size,
        "the cap on each device (16GiB, 80%); the CUDA context comes on top",
    ),
    Setting(
        "spill",
        "TORCHARENA_SPILL",
        None,
        "none",
        _spill,
        "host memory that may be pinned where the cap leaves no room (64GiB)",
    ),
    Setting(
        "fallback",
        "TORCHARENA_FALLBACK",
        False,
        "0",
        _flag,
        "1: without virtual memory management take plain driver allocations",
    ),
    Setting(
        "strict",
        "TORCHARENA_STRICT",
        False,
        "0",
        _flag,
        "1: a setting that another clamps is an error, not a warning",
    ),
    Setting(
        "record",
        "TORCHARENA_RECORD",
        None,
        "none",
        _path,
        "a file for the trace of all allocations (x.trace.xz)",
    ),
    Setting(
        "page",
        "TORCHARENA_PAGE",
        0,
        "4MiB",
        _page,
        "size of a page: 2MiB, 4MiB, 8MiB and so on, doubling up to 256MiB",
    ),
    Setting(
        "slack",
        "TORCHARENA_SLACK",
        0.0,
        "1.02",
        _slack,
        "reserved over live peak at which idle pages are reused before new ones are made, "
        "1.0 or more",
    ),
    Setting(
        "label",
        "TORCHARENA_LABEL",
        None,
        "the program's name",
        _label,
        "what `torcharena top` calls this process",
    ),
    Setting(
        "ledger",
        "TORCHARENA_LEDGER",
        None,
        "/run/torcharena, else your own",
        _ledger,
        "the directory where processes on a GPU count together; none: not counted. An "
        "administrator's file goes before it",
    ),
    Setting(
        "log",
        "TORCHARENA_LOG",
        None,
        "nothing",
        _level,
        "info: print what is logged to standard error (debug, info, warning, error)",
    ),
    Setting(
        "debug",
        "TORCHARENA_DEBUG",
        None,
        "none",
        _debug,
        "guard: find what writes out of bounds or touches freed memory; slow, takes more "
        "memory",
    ),
)
_BY_VARIABLE = {setting.variable: setting for setting in SETTINGS}


def unknown(environ: Mapping[str, str] | None = None) -> list[str]:
    """Variables that look like ours and are not, each with the closest real one."""
    environ = os.environ if environ is None else environ
    said = []
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in _BY_VARIABLE:
            continue
        if variable.startswith(_OTHERS):
            continue
        # What all of them begin with would make them all alike.
        names = [s.variable.removeprefix(PREFIX) for s in SETTINGS]
        close = difflib.get_close_matches(variable.removeprefix(PREFIX), names, n=1)
        said.append(variable + (f" (do you mean {PREFIX}{close[0]}?)" if close else ""))
    return said


def from_environment(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The settings that the environment gives; those it does not are absent.

    Raises ValueError for a value that makes no sense and for a variable that nobody knows."""
    environ = os.environ if environ is None else environ
    if strangers := unknown(environ):
        text = f"unknown setting {', '.join(strangers)}"
        if not all(stranger.endswith(")") for stranger in strangers):
            text += f"; there are {', '.join(_BY_VARIABLE)}"
        raise ValueError(text)
    return {
        setting.name: setting.read(environ[setting.variable], setting.variable)
        for setting in SETTINGS
        if setting.variable in environ
    }


def on(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the environment asks for the arena. Raises ValueError for neither yes nor no."""
    environ = os.environ if environ is None else environ
    return _flag(environ.get("TORCHARENA_ENABLE", ""), "TORCHARENA_ENABLE")


def table() -> str:
    """The settings as lines of text, for ``torcharena --help``."""
    width = max(len(setting.variable) for setting in SETTINGS)
    lines = []
    for setting in SETTINGS:
        head = setting.variable
        for part in textwrap.wrap(
            f"{setting.meaning}; default {setting.usual}", 76 - width
        ):
            lines.append(f"{head:<{width}}  {part}")
            head = ""
    return "\n".join(lines)


def markdown() -> str:
    """The same as a table in Markdown, which docs/settings.md has."""
    rows = [
        f"| `{s.name}` | `{s.variable}` | {s.usual} | {s.meaning} |" for s in SETTINGS
    ]
    return "\n".join(
        ["| setting | variable | default | meaning |", "|---|---|---|---|", *rows]
    )
