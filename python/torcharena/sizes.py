"""Sizes of memory as people write them: one grammar everywhere.

In Python code an ``int``, or a string of digits alone, is bytes. In the environment, in
files and on the command line a number without a unit is refused, except ``0``. ``GiB`` and
``Gi`` are the same, and so for K, M and T; ``80%`` is of the device's total; ``None`` and
``none`` mean no cap. Everything else is a ``ValueError`` that shows what is accepted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["ACCEPTED", "Size", "format_size", "parse", "spell"]

_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_LARGEST = 1 << 62  # bytes; beyond any machine, and safe in 64 bits with room for sums

ACCEPTED = "accepted: 16GiB or 16Gi (likewise KiB, MiB, TiB), 1.5GiB, 80%, 0, none"
_ACCEPTED_IN_CODE = ACCEPTED + ", or a number of bytes"

_NUMBER = r"(?P<number>[0-9]+(?:\.[0-9]+)?)"
_WITH_UNIT = re.compile(_NUMBER + r"(?P<unit>[KMGT]i)B?")
_PERCENT = re.compile(_NUMBER + r"%")
_DIGITS = re.compile(r"[0-9]+")
# What people write instead, so that the right spelling can be shown.
_ALMOST = re.compile(
    _NUMBER + r"\s*(?P<letter>[kmgt])(?:i?b?|ibs?|bs?|bytes)", re.IGNORECASE
)
_ALMOST_PERCENT = re.compile(_NUMBER + r"\s*(?:%|percent)", re.IGNORECASE)


@dataclass(frozen=True)
class Size:
    """Either a number of bytes or a share of a device's total; the other one is None."""

    bytes: int | None = None
    share: Fraction | None = None  # 0 to 1

    def resolve(self, total: int | None) -> int:
        """Bytes on a device of ``total`` bytes, rounded down.

        Raises ValueError for a share where the total is not known."""
        if self.bytes is not None:
            return self.bytes
        assert self.share is not None
        if total is None:
            raise ValueError(
                f"{self} is a share of a device, and there is no device to ask"
            )
        return int(self.share * total)

    def __str__(self) -> str:
        if self.bytes is not None:
            return spell(self.bytes)
        assert self.share is not None
        return f"{float(self.share * 100):g}%"


def parse(value: object, *, in_code: bool = True, name: str = "size") -> Size | None:
    """The size that ``value`` says; None for no cap.

    ``in_code`` is False for what came from the environment, a file or the command line.
    ``name`` is what the error calls it. Raises ValueError."""
    if value is None:
        return None
    if isinstance(value, Size):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise _refusal(value, in_code, name, f"it is a {type(value).__name__}")
    if isinstance(value, int):
        if not in_code:
            raise _refusal(value, in_code, name, "a number needs a unit here")
        return _in_bytes(Fraction(value), value, in_code, name)
    text = value.strip()
    if text.lower() == "none":
        return None
    if _DIGITS.fullmatch(text):
        if in_code or int(text) == 0:
            return _in_bytes(Fraction(text), value, in_code, name)
        raise _refusal(
            value, in_code, name, f"a number needs a unit here: {text}MiB, {text}GiB, ..."
        )
    if match := _WITH_UNIT.fullmatch(text):
        exact = Fraction(match["number"]) * _UNITS[match["unit"]]
        return _in_bytes(exact, value, in_code, name)
    if match := _PERCENT.fullmatch(text):
        share = Fraction(match["number"]) / 100
        if share > 1:
            raise _refusal(value, in_code, name, "more than the whole device")
        return Size(share=share)
    raise _refusal(value, in_code, name, _meant(text))


def _in_bytes(exact: Fraction, value: object, in_code: bool, name: str) -> Size:
    if exact < 0:
        raise _refusal(value, in_code, name, "it is negative")
    if exact > _LARGEST:
        raise _refusal(value, in_code, name, "it is larger than any machine's memory")
    return Size(bytes=int(exact))


def _meant(text: str) -> str:
    if match := _ALMOST.fullmatch(text):
        return f"write {match['number']}{match['letter'].upper()}iB"
    if match := _ALMOST_PERCENT.fullmatch(text):
        return f"write {match['number']}%"
    if not text:
        return "it is empty"
    return "it is no size"


def _refusal(value: object, in_code: bool, name: str, reason: str) -> ValueError:
    accepted = _ACCEPTED_IN_CODE if in_code else ACCEPTED
    return ValueError(f"{name}={value!r}: {reason} ({accepted})")


def spell(size: int) -> str:
    """``size`` bytes in the grammar, exactly: the largest unit that divides it."""
    for unit in reversed(_UNITS):
        if size and size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]}{unit}B"
    return str(size)


def format_size(size: float) -> str:
    """``size`` bytes for people: ``16 GiB`` where it is that exactly, else ``16.00 GiB``."""
    sign = "-" if size < 0 else ""
    size = abs(size)
    unit, scale = "B", 1
    for name, factor in _UNITS.items():
        # 1023.995 KiB would print as 1024.00 KiB: it belongs to the next unit.
        if size < factor - factor / 200000:
            break
        unit, scale = f"{name}B", factor
    number = f"{size / scale:.{0 if size % scale == 0 or scale == 1 else 2}f}"
    return f"{sign}{number} {unit}"
