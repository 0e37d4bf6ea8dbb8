"""Makes an `AdminFile` of the text of limits.toml, or says on which line it makes no sense.

TOML's own parser keeps no lines, so a key's line is looked for in the text: exact for files
as people write them, and left out where it is not found."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Iterable
from typing import Any

from .. import sizes
from .admin_file import MATCHES, MODES, SCOPES, AdminFile, Cap, Malformed, TenantRule

__all__ = ["parse"]

_TOP = ("mode", "ledger", "limits", "gpu", "tenant")
_OF_TENANT = ("name", *MATCHES, "limit", "process")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:/-]{0,62}")
_GPU = re.compile(r"(GPU|MIG)-[A-Za-z0-9/-]+")
_VALUES = {
    "user": 'a name, a uid, a list of them, or "*"',
    "slurm_job": 'a job\'s number, a list of them, or "*"',
    "pod": 'a pod\'s UID, namespace/name, a list of them, or "*"',
    "cgroup": 'a path of the cgroup tree, as "/docker/*"',
}


def parse(text: bytes, path: str, mark: tuple[int, ...] = ()) -> AdminFile:
    """The file's contents from its bytes. Raises Malformed."""
    try:
        source = text.decode()
    except UnicodeDecodeError as error:
        line = text[: error.start].count(b"\n") + 1
        raise Malformed(f"{path}, line {line}: not UTF-8") from None
    toml = _toml(path)
    try:
        raw: dict[str, Any] = toml.loads(source)
    except toml.TOMLDecodeError as error:
        raise Malformed(_syntax(path, source, str(error))) from None
    return _Reader(path, source, raw).file(mark)


def _toml(path: str) -> Any:
    for name in ("tomllib", "tomli"):  # Python 3.11 has the first
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise Malformed(
        f"{path} cannot be read: Python 3.10 has no TOML of its own "
        "(pip install tomli, or take Python 3.11)"
    )


def _syntax(path: str, source: str, said: str) -> str:
    """TOML's error, its place first, with the remedy for what people do most."""
    place = re.search(r"\s*\(at (?:line (\d+), column \d+|end of document)\)", said)
    lines = source.splitlines() or [""]
    number = int(place[1]) if place and place[1] else len(lines)
    said = said.replace(place[0], "") if place else said
    line = lines[min(number, len(lines)) - 1].strip()
    bare = re.match(
        r"[\w.\"-]+\s*=\s*([0-9][\w.%]*|none|off|observe|enforce)\s*(#.*)?$", line
    )
    if bare:
        said = f'a text needs quotes: "{bare[1]}"'
    return f"{path}, line {number}: {said[:1].lower()}{said[1:]}: {line[:60]}"


class _Reader:
    """One file while it is read; every error knows the file's mode."""

    def __init__(self, path: str, source: str, raw: dict[str, Any]) -> None:
        self.path, self.raw = path, raw
        self.lines = _Lines(source)
        self.mode = "enforce"

    def file(self, mark: tuple[int, ...]) -> AdminFile:
        """The whole."""
        self.mode = self._mode(self.raw.get("mode", "enforce"))
        if not self.raw:  # as while it is being written
            said = 'it says nothing (mode = "off" is how to say that nothing holds)'
            raise Malformed(f"{self.path}: {said}")
        self._known("", self.raw, _TOP)
        return AdminFile(
            path=self.path,
            mode=self.mode,
            ledger=self._ledger(self.raw.get("ledger", AdminFile.ledger)),
            limits=self._caps(
                "limits", self._table("limits", self.raw.get("limits", {}))
            ),
            gpus=self._gpus(self._table("gpu", self.raw.get("gpu", {}))),
            tenants=self._tenants(self.raw.get("tenant", [])),
            mark=mark,
        )

    def wrong(self, place: str, key: str, reason: str, accepted: str = "") -> Malformed:
        """The error for a key of a table."""
        line = self.lines.of(place, key)
        at = f"{self.path}, line {line}" if line else self.path
        header = f"[{place}] " if place and not line else ""
        more = f" (accepted: {accepted})" if accepted else ""
        return Malformed(f"{at}: {header}{reason}{more}", self.mode)

    def _known(self, place: str, table: dict[str, Any], keys: Iterable[str]) -> None:
        for key in table:
            if key not in keys:
                close = difflib.get_close_matches(key, list(keys), n=1)
                meant = f" (do you mean {close[0]}?)" if close else ""
                accepted = "" if close else ", ".join(keys)
                raise self.wrong(place, key, f"unknown key {key!r}{meant}", accepted)

    def _mode(self, value: object) -> str:
        if value not in MODES:
            accepted = ", ".join(f'"{mode}"' for mode in MODES)
            raise self.wrong("", "mode", f"mode={value!r}: no such mode", accepted)
        return str(value)

    def _ledger(self, value: object) -> str:
        if not isinstance(value, str) or not value.startswith("/"):
            raise self.wrong(
                "",
                "ledger",
                f"ledger={value!r}: not a directory's whole path",
                f'"{AdminFile.ledger}"',
            )
        return value

    def _table(self, place: str, value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.wrong("", place, f"{place}={value!r}: it is a table, [{place}]")
        return value

    def _caps(self, place: str, table: dict[str, Any]) -> dict[str, Cap]:
        self._known(place, table, SCOPES)
        return {key: self._cap(place, key, value) for key, value in table.items()}

    def _cap(self, place: str, key: str, value: object) -> Cap:
        line = self.lines.of(place, key)
        if value == 0 and type(value) is int:
            return Cap(sizes.Size(bytes=0), line)
        try:
            return Cap(sizes.parse(value, in_code=False, name=key), line)
        except ValueError as error:
            raise self.wrong(place, key, str(error)) from None

    def _gpus(self, tables: dict[str, Any]) -> dict[str, dict[str, Cap]]:
        found = {}
        for uuid, value in tables.items():
            place = f"gpu.{uuid}"
            if not _GPU.fullmatch(uuid):
                raise self.wrong(
                    place,
                    "",
                    f"[{place}]: no UUID of a GPU",
                    "[gpu.GPU-...] or [gpu.MIG-...], as nvidia-smi -L lists them",
                )
            if not isinstance(value, dict):
                raise self.wrong(
                    "gpu", uuid, f"{uuid}={value!r}: it is a table, [{place}]"
                )
            found[uuid] = self._caps(place, value)
        return found

    def _tenants(self, value: object) -> tuple[TenantRule, ...]:
        if not isinstance(value, list) or not all(isinstance(t, dict) for t in value):
            raise self.wrong(
                "", "tenant", "tenant: each is a table of its own, [[tenant]]"
            )
        return tuple(self._tenant(f"tenant#{n}", table) for n, table in enumerate(value))

    def _tenant(self, place: str, table: dict[str, Any]) -> TenantRule:
        self._known(place, table, _OF_TENANT)
        kinds = [key for key in MATCHES if key in table]
        if len(kinds) != 1:
            said = f"both {kinds[0]} and {kinds[1]}" if kinds else "nobody is named"
            raise self.wrong(
                place,
                kinds[1] if kinds else "",
                f"[[tenant]]: {said}",
                "one of " + ", ".join(MATCHES),
            )
        (kind,) = kinds
        name = table.get("name", "")
        if "name" in table and not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise self.wrong(
                place,
                "name",
                f"name={name!r}: no name of a tenant",
                "letters, digits and . _ @ : / -, at most 63",
            )
        return TenantRule(
            kind,
            self._values(place, kind, table[kind]),
            name,
            self._cap(place, "limit", table["limit"]) if "limit" in table else None,
            self._cap(place, "process", table["process"]) if "process" in table else None,
            self.lines.of(place, kind),
        )

    def _values(self, place: str, kind: str, value: object) -> tuple[str, ...]:
        found = value if isinstance(value, list) else [value]
        for one in found:
            number = type(one) is int and one >= 0 and kind in ("user", "slurm_job")
            if not number and not (isinstance(one, str) and one.strip()):
                raise self.wrong(place, kind, f"{kind}={one!r}: nobody", _VALUES[kind])
            if kind == "cgroup" and not str(one).startswith("/"):
                raise self.wrong(place, kind, f"{kind}={one!r}: no path", _VALUES[kind])
        if not found:
            raise self.wrong(place, kind, f"{kind}=[]: nobody", _VALUES[kind])
        return tuple(str(one) for one in found)


class _Lines:
    """On which line a table's key stands. The n-th [[tenant]] is the table ``tenant#n``."""

    _HEADER = re.compile(r"\s*\[(\[?)\s*([^\[\]]+?)\s*\]")
    _KEY = re.compile(r"""\s*(?:"([^"]+)"|'([^']+)'|([\w-]+))\s*[=.]""")

    def __init__(self, source: str) -> None:
        self._at: dict[tuple[str, str], int] = {}
        place, tenants = "", 0
        for number, line in enumerate(source.splitlines(), 1):
            if header := self._HEADER.match(line):
                place = (
                    re.sub(r"\s*\.\s*", ".", header[2]).replace('"', "").replace("'", "")
                )
                if header[1]:
                    place, tenants = f"{place}#{tenants}", tenants + 1
                self._at.setdefault((place, ""), number)
                self._at.setdefault(
                    ("", place.partition(".")[0].partition("#")[0]), number
                )
            elif key := self._KEY.match(line):
                self._at.setdefault((place, key[1] or key[2] or key[3]), number)

    def of(self, place: str, key: str) -> int:
        """The line; that of the table's header where the key's is not found; else 0."""
        return self._at.get((place, key)) or self._at.get((place, ""), 0)
