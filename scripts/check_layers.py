"""Checks that each layer of csrc/ includes only what stands above it.

    python3 scripts/check_layers.py [ROOT]

The layers, from the top: csrc/include, csrc/core, csrc/driver, csrc/torch, csrc/py. A file
may include headers of its own layer and of those above. csrc/simcuda is a library of its
own: it stands on csrc/driver (the simulator) and above, never on csrc/torch or csrc/py.
Beyond the C library, only csrc/py may include Python.h, only csrc/driver/cuda*.c, by their
cuda_calls.h, and csrc/simcuda the driver's cuda.h, and only csrc/simcuda the CUDA runtime's and
libraries' headers.
Exit status 1 where a rule is broken, each with file and line.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

# layer: the layers whose headers it may include, itself among them
MAY_INCLUDE = {
    "include": {"include"},
    "core": {"include", "core"},
    "driver": {"include", "core", "driver"},
    "torch": {"include", "core", "driver", "torch"},
    "py": {"include", "core", "driver", "torch", "py"},
    "simcuda": {"include", "core", "driver", "simcuda"},
}
# Foreign headers: pattern, and where they are allowed.
FOREIGN = [
    (re.compile(r"(Python|structmember|pythread)\.h"), re.compile(r"py/")),
    (re.compile(r"cuda\.h"), re.compile(r"driver/cuda\w*\.c|simcuda/")),
    (
        re.compile(r"(cuda\w+|cu[a-z]+\w*|driver_types|vector_types|nv\w+|nccl)\.h"),
        re.compile(r"simcuda/"),
    ),
    (re.compile(r"(torch|ATen|c10|caffe2|pybind11)/.*"), re.compile(r"$^")),
]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def layer_of(path: Path, csrc: Path) -> str | None:
    """The layer a file belongs to; None where it is in none."""
    try:
        return path.resolve().relative_to(csrc).parts[0]
    except ValueError:
        return None


def resolve(name: str, including: Path, csrc: Path) -> Path | None:
    """The file of ours that an include names, as the compiler would find it; None if it is
    not one of ours."""
    for start in (including.parent, csrc, csrc / "include", csrc / "core"):
        candidate = (start / name).resolve()
        if candidate.is_file() and candidate.is_relative_to(csrc):
            return candidate
    return None


def broken(path: Path, csrc: Path) -> list[str]:
    """The rules that one file breaks, as messages."""
    layer = layer_of(path, csrc)
    allowed = MAY_INCLUDE.get(layer or "")
    place = path.resolve().relative_to(csrc).as_posix()
    if allowed is None:
        return [f"csrc/{place}: no layer of this name: {', '.join(MAY_INCLUDE)}"]
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        name = match[2]
        target = resolve(name, path, csrc)
        if target is not None:
            other = layer_of(target, csrc)
            if other not in allowed:
                found.append(
                    f"csrc/{place}:{number}: csrc/{layer} may not include csrc/{other} ({name})"
                )
            continue
        if match[1] == '"' and "/" in name and ".." in name:
            found.append(f"csrc/{place}:{number}: no such file: {name}")
            continue
        for pattern, where in FOREIGN:
            if pattern.fullmatch(name):
                if not where.match(place):
                    found.append(f"csrc/{place}:{number}: {name} is not for csrc/{layer}")
                break
    return found


def check(root: Path) -> list[str]:
    """All broken rules of the checkout at `root`."""
    csrc = (root / "csrc").resolve()
    files = sorted(
        p for p in csrc.rglob("*") if p.suffix in {".c", ".h", ".inc"} and p.is_file()
    )
    if not files:
        return [f"{csrc}: no C files"]
    return [message for path in files for message in broken(path, csrc)]


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    messages = check(root)
    for message in messages:
        print(message)
    return 1 if messages else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
