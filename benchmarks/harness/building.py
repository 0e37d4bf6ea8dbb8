"""Builds the small C programs that are measured; what is newer than its sources is kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["ROOT", "build_core", "build_floor", "compiler"]

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ["-O2", "-std=c11", "-D_GNU_SOURCE=", "-fexceptions", "-fvisibility=hidden"]


def compiler() -> str | None:
    """The C compiler, if there is one."""
    return next(
        (c for c in (os.environ.get("CC"), "gcc", "cc") if c and shutil.which(c)), None
    )


def folder() -> Path:
    """Where the results go: below the source tree, or where that cannot be written elsewhere."""
    wanted = ROOT / "build" / "benchmarks"
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        if os.access(wanted, os.W_OK):
            return wanted
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="torcharena-benchmarks-"))


def build(name: str, sources: list[Path], flags: list[str], depends: list[Path]) -> Path:
    """The built file. Raises RuntimeError with what the compiler said."""
    cc = compiler()
    if cc is None:
        raise RuntimeError("no C compiler")
    out = folder() / name
    newest = max(file.stat().st_mtime for file in [*sources, *depends])
    if out.exists() and out.stat().st_mtime >= newest:
        return out
    part = out.with_name(f"{name}.{os.getpid()}")
    command = [cc, *FLAGS, *flags, *map(str, sources), "-o", str(part), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{name} could not be built: {done.stderr[-2000:]}")
    part.replace(out)
    return out


def build_floor() -> Path:
    """The plug-in that does nothing."""
    source = ROOT / "benchmarks" / "c" / "floor.c"
    return build("libfloor.so", [source], ["-shared", "-fPIC"], [])


def build_core() -> Path:
    """The program that times the core alone."""
    csrc = ROOT / "csrc"
    sources = [
        ROOT / "benchmarks" / "c" / "core_latency.c",
        *sorted((csrc / "core").rglob("*.c")),
        csrc / "driver" / "nulldriver.c",
    ]
    flags = [f"-I{csrc / 'core'}", "-pthread"]
    return build("core_latency", sources, flags, sorted(csrc.rglob("*.h")))
