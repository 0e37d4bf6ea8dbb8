"""The command line: run, doctor, top, limits, metrics, replay, report, rehearse, demo.

What a command prints as JSON is the last line of standard output, one object. Exit codes:
0 done; 1 the command's own answer is no; 2 the command line, or a file that it names, makes
no sense. `run` ends with the script's code, `rehearse` has codes of its own."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from . import __version__, settings, sizes
from .reports import command as report_command
from .top import command as top_command

__all__ = ["main"]

_ABOUT = """\
a memory allocator for PyTorch on NVIDIA GPUs

  torcharena run --limit 16GiB train.py --epochs 3   an unmodified script on the arena
  torcharena doctor                                  what this machine supports
  torcharena top                                     who holds what of each GPU
  torcharena limits                                  which caps hold here
  torcharena demo                                    see it beside torch's own allocators
  torcharena replay x.trace.xz --limit-ratio 1.02    a recorded trace, with no GPU
  torcharena rehearse --gpu 16GiB train.py           will it fit? with no GPU
  torcharena report r.json                           a report that a program saved
"""


_UNSAID: Any = object()  # of --limit, whose None means no cap


class _Refusal(Exception):
    """What is wrong with the command line, and what is accepted."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if arguments[:1] == ["rehearse"]:  # it has options of its own
            from . import rehearsal

            return int(rehearsal.main(arguments[1:]) or 0)
        parser = _parser()
        options = parser.parse_args(arguments)
        if options.command is None:
            parser.print_help()
            return 2
        return int(options.command(options))
    except (_Refusal, ImportError) as error:
        print(f"torcharena: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torcharena",
        description=_ABOUT,
        epilog="environment:\n  " + settings.table().replace("\n", "\n  "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"torcharena {__version__}"
    )
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    run = commands.add_parser("run", help="run an unmodified script on the arena")
    run.add_argument(
        "--limit", type=_size, metavar="SIZE", default=_UNSAID, help="cap on each device"
    )
    run.add_argument(
        "--spill",
        type=_size,
        metavar="SIZE",
        help="host memory that may be used, as 64GiB",
    )
    run.add_argument("--record", metavar="FILE", help="write a trace of every allocation")
    run.add_argument("--strict", action="store_true", help="a clamped cap is an error")
    run.add_argument(
        "--fallback",
        action="store_true",
        help="without VMM take plain driver allocations",
    )
    run.add_argument("-m", dest="module", action="store_true", help="run a module")
    run.add_argument(
        "program", help="script.py, a module after -m, or torchrun and the like"
    )
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    run.set_defaults(command=_run)

    doctor = commands.add_parser("doctor", help="what this machine supports")
    doctor.add_argument("--json", action="store_true", help="one object")
    doctor.set_defaults(command=_doctor)

    top_command.add_parsers(commands)

    replay = commands.add_parser("replay", help="replay recorded traces, with no GPU")
    replay.add_argument(
        "files", nargs="+", metavar="FILE", help="x.trace.xz, .gz or plain"
    )
    cap = replay.add_mutually_exclusive_group()
    cap.add_argument("--limit", type=_size, metavar="SIZE", help="cap, as 16GiB")
    cap.add_argument(
        "--limit-ratio", type=_ratio, metavar="R", help="cap, times the trace's own peak"
    )
    replay.add_argument(
        "--json", action="store_true", help="one object a trace, on a line"
    )
    replay.set_defaults(command=_replay)

    report_command.add_parser(commands)
    commands.add_parser(
        "rehearse", help="run a script on a simulated GPU", add_help=False
    )

    demo = commands.add_parser("demo", help="a small GPT on every allocator")
    demo.add_argument("--steps", type=int, default=40, help="training steps (40)")
    demo.add_argument("--json", action="store_true", help="the figures as one object")
    demo.set_defaults(command=_demo)
    return parser


def _size(text: str) -> sizes.Size | None:
    try:
        return sizes.parse(text, in_code=False)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("size=")) from None


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = float("nan")
    if not 0 < ratio < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} (accepted: a number such as 1.02)")
    return ratio


# --- run ---------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    """Replaces this process by the program, with the arena asked for in its environment, so
    that its children and the ranks of a launcher get the same."""
    _needs_entry_point()
    environment = dict(os.environ)
    environment["TORCHARENA_ENABLE"] = "1"
    environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "1"
    environment.setdefault("TORCHARENA_LOG", "info")
    if options.limit is not _UNSAID:
        environment["TORCHARENA_LIMIT"] = _in_words(options.limit)
    if options.spill is not None:
        environment["TORCHARENA_SPILL"] = _in_words(options.spill)
    for name in ("strict", "fallback"):
        if getattr(options, name):
            environment[f"TORCHARENA_{name.upper()}"] = "1"
    if options.record is not None:
        environment["TORCHARENA_RECORD"] = os.path.abspath(options.record)
    try:
        settings.from_environment(environment)
    except ValueError as error:
        raise _Refusal(str(error)) from None
    command = _command(options.program, options.module)
    sys.stdout.flush()
    os.execve(command[0], [*command, *options.arguments], environment)


def _in_words(size: sizes.Size | None) -> str:
    """The size with a unit, as the environment wants it."""
    if size is None or not size.bytes:
        return str(size).lower()
    spelt = sizes.spell(size.bytes)
    return spelt if not spelt.isdigit() else f"{size.bytes // 1024}KiB"


def _command(program: str, module: bool) -> list[str]:
    if module:
        return [sys.executable, "-m", program]
    if os.path.exists(program):
        return [sys.executable, program]
    launcher = shutil.which(program)
    if launcher is None or program.endswith(".py"):
        raise _Refusal(f"{program}: no such script, and no such command")
    return [launcher]


def _needs_entry_point() -> None:
    from importlib import metadata

    group = metadata.entry_points(group="torch.backends")
    if not any(entry.name == "torcharena" for entry in group):
        raise _Refusal(
            "this torcharena is not installed (torch finds no entry point of it), so an "
            "unmodified script would run without the arena: pip install it"
        )


# --- the rest ----------------------------------------------------------------------------


def _doctor(options: argparse.Namespace) -> int:
    from . import doctor

    report = doctor.examine()
    print(json.dumps(report.as_json()) if options.json else str(report))
    return 0 if report.usable else 1


def _replay(options: argparse.Namespace) -> int:
    from . import replaying, traces

    limit = None
    if options.limit is not None:
        if options.limit.bytes is None:
            raise _Refusal(
                f"--limit {options.limit}: a replay has no device to take a share of"
            )
        limit = options.limit.bytes
    failed = False
    rows: list[dict[str, Any]] = []
    for file in options.files:
        try:
            (row,) = traces.replay(file, limit=limit, limit_ratio=options.limit_ratio)
        except (OSError, ValueError, RuntimeError) as error:
            said = str(error)
            if isinstance(error, OSError) and error.strerror:
                said = f"{file}: {error.strerror}"
            print(f"torcharena: {said}", file=sys.stderr)
            failed = True
            continue
        rows.append(row)
        if options.json:
            print(json.dumps(row), flush=True)
    if rows and not options.json:
        print(replaying.table(rows))
    if failed:
        return 2
    return 1 if any(row["oom"] for row in rows) else 0


def _demo(options: argparse.Namespace) -> int:
    from .demo import command as demo

    if options.steps < 2:
        raise _Refusal(f"--steps {options.steps}: at least 2")
    return int(demo.main(options.steps, options.json))
