"""All static checks, each named with its outcome: what `make lint` runs.

    python3 scripts/lint.py [--fix]

A tool that this machine lacks is skipped by name with the reason; with CI set in the
environment that is a failure, since .ci/run installs them all. --fix lets the formatters
rewrite files and runs nothing else (`make format`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import check_layers
import environments

ROOT = Path(__file__).resolve().parent.parent
WARNINGS = ["-Werror", "-Wall", "-Wextra", "-Wconversion", "-Wshadow"]
CORES = threading.Semaphore(max(2, os.cpu_count() or 2))  # of the checks that run at once
LANGUAGE = ["-O2", "-std=c11", "-fvisibility=hidden", "-fexceptions", "-D_GNU_SOURCE="]


class Skip(Exception):
    """The check cannot run here; the text says why."""


def tracked(*patterns: str) -> list[str]:
    """Files of the checkout, tracked or new, that match; generated and ignored ones not."""
    command = [
        "git",
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "--",
        *patterns,
    ]
    out = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return sorted({name for name in out.splitlines() if (ROOT / name).is_file()})


def tool(*names: str) -> str:
    for name in names:
        if shutil.which(name):
            return name
    raise Skip(f"{names[0]} is not installed (.ci/run installs it)")


def run(command: list[str]) -> str:
    """Empty where the command succeeds; else what it said."""
    with CORES:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return (
        ""
        if done.returncode == 0
        else (done.stdout + done.stderr).strip() or f"exit status {done.returncode}"
    )


def each(commands: list[list[str]]) -> str:
    """The same over several commands, as many at a time as there are cores."""
    with ThreadPoolExecutor(max(2, os.cpu_count() or 2)) as pool:
        return "\n".join(text for text in pool.map(run, commands) if text)


def cuda_include() -> str | None:
    """A folder with the CUDA Toolkit's headers: the system's, or that of NVIDIA's wheels."""
    homes = [
        os.environ.get("CUDA_HOME", ""),
        os.environ.get("CUDA_PATH", ""),
        "/usr/local/cuda",
    ]
    for home in homes:
        if home and (Path(home) / "include" / "cuda.h").is_file():
            return str(Path(home) / "include")
    # The tests' environment may be in the making: it comes last.
    for start in (Path(sysconfig.get_paths()["purelib"]), ROOT / ".venv"):
        for header in start.glob("**/nvidia/*/include/cuda.h"):
            return str(header.parent)
    return None


def python_include() -> str | None:
    folder = sysconfig.get_paths()["include"]
    return folder if (Path(folder) / "Python.h").is_file() else None


class Missing(Exception):
    """A header that a source needs is not on this machine."""


def includes(source: str) -> list[str]:
    """The include flags that a source needs."""
    flags = ["-Icsrc/include", "-Icsrc/core", "-Icsrc"]
    text = (ROOT / source).read_text()
    if source.startswith("csrc/py/"):
        folder = python_include()
        if folder is None:
            raise Missing("Python.h")
        flags += ["-isystem", folder, "-DPy_LIMITED_API=0x030A0000"]
    if source.startswith("csrc/simcuda/") or "cuda.h" in text:
        folder = cuda_include()
        if folder is None:
            raise Missing("cuda.h")
        flags += ["-isystem", folder]
    return flags


def c_sources() -> tuple[list[str], list[str]]:
    """The sources that can be compiled here, and what those left out lack."""
    good, missing = [], []
    for source in tracked("csrc/**/*.c", "csrc/*.c", "tests/c/*.c"):
        try:
            includes(source)
            good.append(source)
        except Missing as lack:
            missing.append(f"{source} ({lack})")
    if missing:
        print(f"lint: skipped for want of a header: {', '.join(missing)}", flush=True)
        if os.environ.get("CI"):
            raise SystemExit(1)
    return good, missing


def compile_with(compiler: str) -> str:
    """gcc has warnings that need its optimiser; those of the tests come when they are built."""
    compiler = tool(compiler)
    sources, _ = c_sources()

    def command(source: str) -> list[str]:
        whole = compiler == "gcc" and not source.startswith("tests/")
        what = ["-c", "-o", os.devnull] if whole else ["-fsyntax-only"]
        return [compiler, *LANGUAGE, *WARNINGS, *what, *includes(source), source]

    return each([command(source) for source in sources])


def clang_tidy() -> str:
    """The analyzer follows a function's paths for a third of its own measure, in a quarter of
    the time; with TA_TEST_LONG set, for all of it."""
    name = tool("clang-tidy")
    sources, _ = c_sources()
    depth = ["-Xclang", "-analyzer-config", "-Xclang", "max-nodes=75000"]
    if os.environ.get("TA_TEST_LONG"):
        depth = []
    return each(
        [
            [name, "--quiet", source, "--", *LANGUAGE, *depth, *includes(source)]
            for source in sources
            if not source.startswith("tests/")
        ]
    )


def clang_format(fix: bool = False) -> str:
    name = tool("clang-format")
    files = tracked("*.c", "*.h")
    if fix:
        return run([name, "-i", *files])
    said = run([name, "--dry-run", "-Werror", *files])
    off = sorted(
        {line.split(":")[0] for line in said.splitlines() if ": error: " in line}
    )
    return f"{' '.join(off) or said}: make format mends these" if said else ""


def python_tool(*arguments: str) -> str:
    """ruff or mypy, out of their own environment."""
    return run([sys.executable, "scripts/environments.py", "lint", "-m", *arguments])


def mypy() -> str:
    # The last is a user's program: what it calls must be typed as it expects.
    names = ("python/torcharena", "scripts", "tests/py/typed_user.py")
    folders = [name for name in names if (ROOT / name).exists()]
    return python_tool("mypy", *folders)


def layers() -> str:
    return "\n".join(check_layers.check(ROOT))


CHECKS: list[tuple[str, Callable[[], str]]] = [
    ("layers", layers),
    ("clang-format", clang_format),
    ("gcc", lambda: compile_with("gcc")),
    ("clang", lambda: compile_with("clang")),
    ("clang-tidy", clang_tidy),
    ("ruff check", lambda: python_tool("ruff", "check", ".")),
    ("ruff format", lambda: python_tool("ruff", "format", "--check", ".")),
    ("mypy", mypy),
]
FIXES: list[tuple[str, Callable[[], str]]] = [
    ("clang-format", lambda: clang_format(fix=True)),
    ("ruff check", lambda: python_tool("ruff", "check", "--fix", ".")),
    ("ruff format", lambda: python_tool("ruff", "format", ".")),
]


def ready() -> None:
    """The environment of ruff and mypy; without it (no network) their checks are skipped."""
    try:
        environments.prepare("lint")
    except SystemExit as failure:
        raise Skip(f"no environment for it: {failure}") from None


def outcome(name: str, check: Callable[[], str], lacking: str) -> str:
    """Empty where the check finds nothing. Raises Skip."""
    if lacking and name.startswith(("ruff", "mypy")):
        raise Skip(lacking)
    return check()


def main(arguments: list[str]) -> int:
    failed = skipped = 0
    lacking = ""
    fix = "--fix" in arguments
    start = time.monotonic()
    try:
        ready()
    except Skip as reason:
        lacking = str(reason)
    checks = FIXES if fix else CHECKS
    # All checks at once but for the formatters, which write: `run` keeps to the cores.
    with ThreadPoolExecutor(1 if fix else len(checks)) as pool:
        found = {
            name: pool.submit(outcome, name, check, lacking) for name, check in checks
        }
        for name, one in found.items():
            try:
                text = one.result()
            except Skip as reason:
                skipped += 1
                print(f"lint: {name}: SKIPPED: {reason}", flush=True)
                continue
            print(f"lint: {name}: {'FAILED' if text else 'ok'}", flush=True)
            if text:
                failed += 1
                print(text, flush=True)
    print(f"lint: all of it took {time.monotonic() - start:.0f} s", flush=True)
    if skipped and os.environ.get("CI"):
        print(f"lint: {skipped} skipped, which is a failure in CI", flush=True)
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
