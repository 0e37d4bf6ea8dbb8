"""Runs a client's own test suite under PyTorch's allocator and under the arena.

    git clone https://github.com/Stonesjtu/pytorch_memlab /tmp/memlab
    python -m tests.clients pytorch_memlab /tmp/memlab
    python -m tests.clients accelerate /tmp/accelerate --real --out results.json

On a simulated GPU, or with ``--real`` on this machine's. What the suite needs must be there
(its requirements for tests; pytest). Prints how many tests passed, failed and were skipped
under each, then every test that came out otherwise, with the last line of its error. Exit
code 1 where one passes under PyTorch's allocator and not under the arena."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ALLOCATORS = ("native", "arena")


@dataclass(frozen=True)
class Suite:
    """``tests``: what pytest is given, below the checkout. ``paths``: folders of it that are to
    be imported from. ``gpus``: how many simulated ones."""

    tests: tuple[str, ...]
    paths: tuple[str, ...] = (".",)
    gpus: int = 1
    options: tuple[str, ...] = ()


INTERRUPT = "test/test_line_profiler.py::test_line_report"
SUITES = {
    # That one raises KeyboardInterrupt, which ends pytest.
    "pytorch_memlab": Suite(
        ("test",), gpus=2, options=("--deselect", f"{INTERRUPT}_profile_interrupt")
    ),
    "accelerate": Suite(
        (
            "tests/test_memory_utils.py",
            "tests/test_big_modeling.py",
            "tests/test_hooks.py",
            "tests/test_offload.py",
        ),
        paths=("src",),
        gpus=2,
    ),
    # Of PyTorch's repository, at the tag of the torch that is installed. Those that compile C++
    # take minutes each.
    "pytorch": Suite(
        ("test/test_cuda.py",),
        options=(
            "-k",
            "(memory or alloc or cache or snapshot or fraction or pool) and not cpp "
            "and not mempool and not fuzz and not amdsmi and not nvml",
            "--timeout=100",
            "--noconftest",
        ),
    ),
}


def environment(
    suite: Suite, checkout: Path, allocator: str, folder: Path, real: bool
) -> dict[str, str]:
    paths = [str(checkout / path) for path in suite.paths]
    if real:
        env = {k: v for k, v in os.environ.items() if not k.startswith("TORCHARENA_")}
        if allocator == "arena":
            env["TORCHARENA_ENABLE"] = "1"
    else:
        from torcharena.rehearsal import cards, launch
        from torcharena.rehearsal.child import Job

        job = Job(folder=str(folder), allocator=allocator, steps=0)
        env = launch.watched_environment(
            cards.find("h200"), folder=str(folder), gpus=suite.gpus, job=job
        )
        env.pop("TORCHARENA_RECORD", None)
    before = [part for part in env.get("PYTHONPATH", "").split(os.pathsep) if part]
    # The watcher of a rehearsal must come first.
    env["PYTHONPATH"] = os.pathsep.join([*before, *paths])
    return env | {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def outcome(case: ElementTree.Element) -> tuple[str, str]:
    """What became of a test, and why."""
    for word, said in (
        ("failure", "failed"),
        ("error", "failed"),
        ("skipped", "skipped"),
    ):
        found = case.find(word)
        if found is not None:
            text = (found.get("message") or found.text or "").strip()
            return said, text.splitlines()[0][:200] if text else ""
    return "passed", ""


def run(
    suite: Suite, checkout: Path, allocator: str, real: bool, timeout: float
) -> dict[str, tuple[str, str]]:
    """Every test by name, with its outcome and why. Raises RuntimeError where the suite cannot
    be run at all."""
    with tempfile.TemporaryDirectory(prefix="torcharena-") as name:
        folder = Path(name)
        (folder / "run").mkdir()
        report = folder / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-p", "no:torcharena", f"--junitxml={report}", *suite.options]
        done = subprocess.run(
            [*command, *suite.tests],
            cwd=checkout,
            env=environment(suite, checkout, allocator, folder / "run", real),
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if not report.exists():
            raise RuntimeError((done.stdout + done.stderr)[-3000:])
        root = ElementTree.parse(report).getroot()
    return {
        f"{case.get('classname')}.{case.get('name')}": outcome(case)
        for case in root.iter("testcase")
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients")
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--real", action="store_true", help="on this machine's GPU")
    parser.add_argument(
        "--timeout", type=float, default=1200, help="seconds, for each run"
    )
    parser.add_argument("--out", type=Path, help="every test's outcome, as JSON")
    parser.add_argument(
        "--why", action="store_true", help="every failure, not only the other"
    )
    options = parser.parse_args()
    suite, checkout = SUITES[options.suite], options.checkout.resolve()
    found = {
        allocator: run(suite, checkout, allocator, options.real, options.timeout)
        for allocator in ALLOCATORS
    }
    for allocator in ALLOCATORS:
        counts = Counter(word for word, _ in found[allocator].values())
        text = ", ".join(f"{counts[w]} {w}" for w in ("passed", "failed", "skipped"))
        print(f"{allocator}: {text}")
    worse = 0
    for name in sorted(found["native"] | found["arena"]):
        native, arena = (found[a].get(name, ("absent", "")) for a in ALLOCATORS)
        other = native[0] != arena[0]
        worse += native[0] == "passed" and other
        if other or (options.why and "failed" in (native[0], arena[0])):
            print(f"{name}: {native[0]}, {arena[0]}: {arena[1] or native[1]}")
    if options.out:
        options.out.write_text(json.dumps(found))
    return bool(worse)


if __name__ == "__main__":
    sys.exit(main())
