"""Measures torcharena beside what users of PyTorch could pick instead.

    python -m benchmarks latency [--only native,arena] [--cases size,live]
    python -m benchmarks packing --programs llama_lora,long_context [--jobs 3]
    python -m benchmarks packing --rehearse --programs long_context      (no GPU)
    python -m benchmarks all --out benchmarks/results/bench-h200.json --seconds 550
    python -m benchmarks report [--check]

Groups: core (the C core alone, any machine), latency, packing, caps, steps, startup, spill. Each
contender runs in processes of its own: native, expandable, async (cudaMallocAsync), rmm_pool
and rmm_arena (where rmm is installed), the floor (a plug-in that does nothing), the arena.
``--out`` names a file of results that is gone on with: what it has is not measured again
unless ``--again``. ``--seconds`` bounds the whole run; what was not reached is said, and comes
next time. ``report`` writes benchmarks/RESULTS.md from the files in benchmarks/results."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from .groups import caps, latency, packing, report, spill, startup, steps
from .harness.contenders import pick
from .harness.runs import devices
from .harness.store import Store

GROUPS = ("core", "latency", "packing", "caps", "steps", "startup", "spill")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "groups", nargs="+", choices=(*GROUPS, "all", "report"), metavar="GROUP"
    )
    parser.add_argument("--only", help="contenders, by commas")
    parser.add_argument(
        "--programs", help="of packing, caps and steps, by commas; `new`: the six"
    )
    parser.add_argument("--cases", help="of latency: size, live, threads, streams")
    parser.add_argument("--means", help=f"parts of spill: {', '.join(spill.PARTS)}")
    parser.add_argument("--out", type=Path, help="the file of results")
    parser.add_argument("--again", action="store_true", help="also what the file has")
    parser.add_argument("--seconds", type=float, help="for all of it (none)")
    parser.add_argument("--timeout", type=float, default=300, help="of one run (300)")
    parser.add_argument(
        "--jobs", type=int, default=1, help="of packing, side by side (1)"
    )
    parser.add_argument("--generations", type=int, default=2, help="of processes (2)")
    parser.add_argument("--rehearse", action="store_true", help="on a simulated GPU")
    parser.add_argument("--gpu", default="h200", help="the one to rehearse on (h200)")
    parser.add_argument("--check", action="store_true", help="report: only compare")
    options = parser.parse_args(arguments)
    options.only = options.only.split(",") if options.only else None
    if "all" in options.groups:
        options.groups = list(GROUPS)
    if options.jobs < 1 or options.generations < 1:
        parser.error("--jobs and --generations are at least 1")
    options.means = options.means.split(",") if options.means else None
    for name in options.means or ():
        if name not in spill.PARTS:
            parser.error(f"--means {name}: not one of {', '.join(spill.PARTS)}")
    options.cases = chosen_cases(parser, options.cases)
    options.programs = chosen_programs(parser, options.programs)
    for group in options.groups:
        if group in FIELDS and options.only is not None:
            for name in options.only:
                if name not in FIELDS[group]:
                    parser.error(
                        f"{name}: not one of {', '.join(FIELDS[group])} ({group})"
                    )
    return options


def chosen_cases(
    parser: argparse.ArgumentParser, text: str | None
) -> list[tuple[str, int]]:
    kinds = [kind for kind, _ in latency.CASES]
    wanted = text.split(",") if text else kinds
    for kind in wanted:
        if kind not in kinds:
            parser.error(f"{kind}: not one of {', '.join(dict.fromkeys(kinds))}")
    return [case for case in latency.CASES if case[0] in wanted]


def chosen_programs(
    parser: argparse.ArgumentParser, text: str | None
) -> list[str] | None:
    """A loop's name alone will do."""
    if text is None:
        return None
    found: list[str] = []
    for name in text.split(","):
        if name == "new":
            found += packing.NEW
        elif name in packing.PROGRAMS:
            found.append(name)
        elif f"loop:{name}" in packing.PROGRAMS:
            found.append(f"loop:{name}")
        else:
            parser.error(f"{name}: not one of new, {', '.join(packing.PROGRAMS)}")
    return found


# Who can be named by --only, by group.
FIELDS = {
    "latency": latency.CONTENDERS,
    "packing": packing.CONTENDERS,
    "caps": caps.CONTENDERS,
    "steps": steps.LABELS,
    "startup": startup.CONTENDERS,
}
LOOPS = [program for program in packing.PROGRAMS if program.startswith("loop:")]


class Bench:
    """One call of the command."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.store = Store(options.out, options.again)
        self.begin = time.monotonic()
        self.wrong: list[str] = []

    def left(self, default: float) -> float:
        """Seconds for a group."""
        if self.options.seconds is None:
            return default
        return max(0.0, self.options.seconds - (time.monotonic() - self.begin))

    def names(self, group: str) -> list[str]:
        found, missing = pick(self.options.only, FIELDS[group])
        for name, why in missing.items():
            print(f"{group}: without {name}: {why}", flush=True)
            if self.options.only is not None:
                self.wrong.append(f"{name}: {why}")
        return found

    def core(self) -> None:
        self.wrong += latency.run_core(self.store)

    def latency(self) -> None:
        self.wrong += latency.run(
            self.store,
            self.names("latency"),
            cases=self.options.cases,
            seconds=self.left(240),
            generations=self.options.generations,
        )

    def packing(self) -> None:
        programs = self.options.programs or packing.PROGRAMS
        if self.options.rehearse:
            names = [
                n
                for n in packing.REHEARSED
                if n in (self.options.only or packing.REHEARSED)
            ]
            seconds = None if self.options.seconds is None else self.left(0)
            self.wrong += packing.run_rehearsed(
                self.store,
                names,
                programs,
                gpu=self.options.gpu,
                seconds=seconds,
                timeout=self.options.timeout,
            )
            return
        self.wrong += packing.run(
            self.store,
            self.names("packing"),
            programs,
            jobs=self.options.jobs,
            seconds=self.left(1e9),
            timeout=self.options.timeout,
            gpus=devices(),
        )

    def caps(self) -> None:
        names = self.names("caps")
        if self.options.only is None:
            names = [name for name in names if name in caps.DEFAULT]
        self.wrong += caps.run(
            self.store,
            names,
            self.options.programs or LOOPS,
            jobs=self.options.jobs,
            seconds=self.left(1e9),
            timeout=self.options.timeout,
        )

    def steps(self) -> None:
        self.wrong += steps.run(
            self.store,
            self.options.only or steps.LABELS,
            self.options.programs or LOOPS,
            seconds=self.left(1e9),
            timeout=self.options.timeout,
        )

    def startup(self) -> None:
        self.wrong += startup.run(
            self.store, self.names("startup"), seconds=self.left(400)
        )

    def spill(self) -> None:
        self.wrong += spill.run(
            self.store,
            self.options.means,
            small=self.options.rehearse,
            seconds=self.left(1e9),
            timeout=self.options.timeout,
        )

    def run(self) -> int:
        """Exit code 1 where something was not measured."""
        doors: dict[str, Callable[[], None]] = {
            "core": self.core,
            "latency": self.latency,
            "packing": self.packing,
            "caps": self.caps,
            "steps": self.steps,
            "startup": self.startup,
            "spill": self.spill,
        }
        for group in self.options.groups:
            doors[group]()
        print(report.tables(self.store))
        for text in self.wrong:
            print(f"not measured: {text}")
        return 1 if self.wrong else 0


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.groups == ["report"]:
        return report.main(options.check)
    if options.rehearse and set(options.groups) != {"packing"}:
        simulate(options.gpu)
    try:
        return Bench(options).run()
    except ValueError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2


def simulate(gpu: str) -> None:
    """What is started from here runs on a simulated GPU: to try the harness, not to measure."""
    from torcharena import rehearsal

    os.environ.update(rehearsal.environment(gpu, 1))


if __name__ == "__main__":
    sys.exit(main())
