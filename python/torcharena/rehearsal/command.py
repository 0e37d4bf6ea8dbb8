"""`torcharena rehearse`: its options, its output, its exit codes.

torcharena rehearse [OPTIONS] script.py ARGS... | -m module ARGS... | torchrun ARGS..."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import Any

from .. import sizes
from ..settings import spill_bytes
from . import cards, launch
from .rehearsing import Options, rehearse_command

__all__ = ["main", "parser", "seconds"]

_EPILOG = """\
exit codes: 0 it fits under every allocator asked for; 3 it does not; 4 cannot tell (the
time ran out first, or too close); 1 the script failed; 2 the command line makes no sense.
With --json the last line of standard output is one object.
"""
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    options = parser().parse_args(list(sys.argv[1:] if arguments is None else arguments))
    if options.list_gpus:
        print(cards.table())
        return 0
    if options.program is None:
        return _refused("what is to be rehearsed? A script, -m module, or a launcher")
    asked = options.allocator
    _end_as_if_interrupted()
    try:
        command = launch.command_of(options.program, options.module)
        if launch.is_launcher(options.program):
            _starts_ranks_itself(options)
        chosen = Options(
            gpu=options.gpu,
            gpus=options.gpus,
            limit=_limit(options.limit, options.gpu),
            spill=spill_bytes(options.spill, "--spill"),
            allocators=launch.ALLOCATORS if asked == "all" else (asked,),
            steps=options.steps,
            timeout=options.timeout,
            seed=options.seed,
            values=not options.no_values,
            values_limit=options.values_limit,
            world_size=options.world_size,
            rank=options.rank,
            ranks=options.ranks,
            record=options.record,
            report=options.report,
            keep_files=_made(options.keep_files),
            share=tuple(map(_folder, options.share)),
        )
        if options.record is not None:
            _can_record(options.record, asked)
        shown = [*(["-m"] if options.module else []), options.program, *options.arguments]
        report = rehearse_command(
            [*command, *options.arguments], chosen, shown=shown, say=_say
        )
    except (ValueError, FileNotFoundError) as error:
        return _refused(str(error))
    except KeyboardInterrupt as interrupt:
        return interrupt.args[0] if interrupt.args else 130
    finally:
        _say("")
    sys.stdout.flush()
    if options.json:
        print(report.json(), flush=True)
    else:
        width = shutil.get_terminal_size((80, 24)).columns
        print(f"\n{report.text(min(width, 120))}", flush=True)
    return report.exit_code


def _end_as_if_interrupted() -> None:
    """A job scheduler's signals end the program too, and its files' layer, as Ctrl-C does."""

    def interrupted(number: int, _: object) -> None:
        raise KeyboardInterrupt(128 + number)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, interrupted)


def _starts_ranks_itself(options: argparse.Namespace) -> None:
    for name, given in (
        ("--ranks", options.ranks),
        ("--world-size", options.world_size),
        ("--rank", options.rank),
    ):
        if given:
            raise ValueError(
                f"{name}: {options.program} starts the ranks itself; give the script alone, "
                f"or {options.program} without {name}"
            )


def _refused(text: str) -> int:
    print(f"torcharena rehearse: {text}", file=sys.stderr)
    return 2


def _say(text: str) -> None:
    """What is being done, on the terminal's last line."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size((80, 24)).columns - 1
        line = f"[rehearsal] {text}"[:width] if text else ""
        print(
            f"\r\033[K{line}", end="" if not text else "\n", file=sys.stderr, flush=True
        )


def _limit(size: sizes.Size | None, gpu: str) -> int | None:
    if size is None:
        return None
    return size.resolve(cards.find(gpu).memory)


def _folder(path: str) -> str:
    found = os.path.realpath(path)
    if not os.path.isdir(found):
        raise ValueError(f"--share {path}: there is no such folder")
    return found


def _made(path: str | None) -> str | None:
    """The folder for what is kept: whether it can be there is known before the run."""
    if path is not None:
        try:
            os.makedirs(path, exist_ok=True)
            if os.listdir(path):
                raise ValueError(
                    f"--keep-files {path}: it is not empty; name a new folder"
                )
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            raise ValueError(f"--keep-files {path}: {error.strerror}") from None
    return path


def _can_record(path: str, allocator: str) -> None:
    if allocator not in ("all", "arena"):
        raise ValueError(
            "--record: only the arena's run is recorded; --allocator arena or all"
        )
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise ValueError(f"--record {path}: there is no folder {folder}")


def seconds(text: str) -> float | None:
    """A time such as ``10m``, ``90s``, ``1.5h``, or a number of seconds; ``none``: no end.
    Raises ValueError."""
    if text.strip().lower() == "none":
        return None
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([smh]?)\s*", text)
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"{text!r} is no time (accepted: 90s, 10m, 1.5h, seconds, none)")
    return float(match[1]) * _UNITS[match[2]]


def _argument(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """An argparse type whose ValueError keeps its own words."""

    def parse(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def _size(text: str) -> sizes.Size | None:
    return sizes.parse(text, in_code=False, name="limit")


def _count(least: int, most: int) -> Callable[[str], Any]:
    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise ValueError(f"{text!r}: a number from {least} to {most}")
        return number

    return _argument(read)


def _card(text: str) -> str:
    cards.find(text)
    return text


def parser() -> argparse.ArgumentParser:
    """The command line of ``torcharena rehearse``."""
    made = argparse.ArgumentParser(
        prog="torcharena rehearse",
        usage="torcharena rehearse [OPTIONS] script.py ARGS... | -m module ARGS... | "
        "torchrun ARGS...",
        description="Will it fit? Runs an unmodified program with real PyTorch on a simulated "
        "GPU, in which every allocation happens and no kernel runs, and says.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = made.add_argument
    add(
        "--gpu",
        type=_argument(_card),
        default="h100",
        help="a card, a size such as 16GiB, or both, rtx4090:20GiB (h100)",
    )
    add("--list-gpus", action="store_true", help="print the catalogue of cards")
    add(
        "--gpus",
        type=_count(1, 16),
        default=1,
        metavar="N",
        help="how many (1)",
    )
    add(
        "--world-size",
        type=_count(1, 1 << 20),
        metavar="N",
        help="the program is one rank of so many, whose others are not there; no launcher",
    )
    add("--rank", type=_count(0, 1 << 20), default=0, metavar="N", help="which (0)")
    add(
        "--ranks",
        choices=("all",),
        help="all: the ranks of one node, as processes on --gpus N devices; no launcher",
    )
    add(
        "--limit",
        type=_argument(_size),
        metavar="SIZE",
        help="a cap on each device, 16GiB or 80%%; the context comes on top",
    )
    add(
        "--spill",
        type=_argument(_size),
        metavar="SIZE",
        help="host memory that the arena may use where there is no room, 64GiB",
    )
    add(
        "--allocator",
        choices=(*launch.ALLOCATORS, "all"),
        default="all",
        help="whose verdict (all)",
    )
    add(
        "--steps",
        type=_count(0, 1 << 30),
        metavar="N",
        help="end after N optimizer steps; 0: run to the end. Else a run of more than half a "
        "minute ends when its peak no longer moves",
    )
    add(
        "--timeout",
        type=_argument(seconds),
        default=600.0,
        metavar="TIME",
        help="give a run up after: 10m, 90s, none (10m)",
    )
    add(
        "--seed",
        type=_count(0, 1 << 62),
        default=0,
        metavar="N",
        help="of the random numbers where values are unknown (0)",
    )
    add("--no-values", action="store_true", help="compute no values at all")
    add(
        "--values-limit",
        type=_count(0, 1 << 40),
        metavar="N",
        help="floats are computed in tensors of up to N elements",
    )
    add(
        "--record",
        metavar="FILE",
        help="keep the arena's trace: x.trace.xz, .gz or plain",
    )
    add(
        "--report",
        metavar="FILE",
        help="write who used what, by phase, category and module: r.html or r.json; %%r is "
        "the rank",
    )
    add("--keep-files", metavar="DIR", help="keep what the program writes, there")
    add(
        "--share",
        action="append",
        default=[],
        metavar="DIR",
        help="let it write below DIR in earnest; may be given several times",
    )
    add("--json", action="store_true", help="one object, on the last line")
    add("-m", dest="module", action="store_true", help="the program is a module")
    add("program", nargs="?", help=argparse.SUPPRESS)
    add("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return made
