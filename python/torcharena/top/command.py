"""The commands `top`, `limits` and `metrics`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from typing import Any

from .. import settings
from ..caps import admin_file, administrator
from . import drawing, nvml, top

__all__ = ["add_parsers"]

_SECONDS = 2.0  # between pictures


def add_parsers(commands: Any) -> None:
    """The three commands and their options."""
    shown = commands.add_parser("top", help="who holds what of each GPU, live")
    shown.add_argument("--once", action="store_true", help="one picture, and end")
    shown.add_argument("--json", action="store_true", help="one object, and end")
    shown.add_argument(
        "--interval", type=_seconds, default=_SECONDS, metavar="S", help="seconds (2)"
    )
    shown.add_argument("--ledger", metavar="DIR", help="the ledgers of another directory")
    shown.set_defaults(command=_top)

    caps = commands.add_parser("limits", help="which caps hold here, and whose they are")
    caps.add_argument("--json", action="store_true", help="one object")
    caps.add_argument(
        "--check", metavar="FILE", help="only whether a limits.toml is sound"
    )
    caps.set_defaults(command=_limits)

    figures = commands.add_parser("metrics", help="the figures of top for Prometheus")
    how = figures.add_mutually_exclusive_group()
    how.add_argument(
        "--textfile", metavar="FILE", help="for node_exporter: write and end"
    )
    how.add_argument(
        "--listen",
        metavar="[ADDR]:PORT",
        help="answer over HTTP; the loopback unless told",
    )
    figures.add_argument(
        "--interval",
        type=_seconds,
        metavar="S",
        help="write the textfile every S seconds",
    )
    figures.add_argument(
        "--ledger", metavar="DIR", help="the ledgers of another directory"
    )
    figures.set_defaults(command=_metrics)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} (accepted: seconds, from 0.1 on)")
    return value


# --- top ---------------------------------------------------------------------------------


def _top(options: argparse.Namespace) -> int:
    view = top.look(options.ledger)
    if options.json:
        print(json.dumps(view.as_json()))
    elif options.once or not sys.stdout.isatty():
        print(drawing.plain(drawing.lines(view, _width(), _unicode())))
    else:
        return _live(options)
    return _code(view)


def _code(view: top.Overview) -> int:
    """1 where something that should be read could not be."""
    broken = view.problem if view.ledger or view.mode else ""
    return 1 if broken or any(gpu.problem for gpu in view.gpus) else 0


def _width() -> int:
    return max(shutil.get_terminal_size((100, 24)).columns, 40)


def _unicode() -> bool:
    return "utf" in (sys.stdout.encoding or "").lower()


def _live(options: argparse.Namespace) -> int:
    """Redraws in place until it is interrupted."""
    try:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text
    except ImportError:
        print("(a picture that refreshes needs rich: pip install 'torcharena[top]')")
        print(
            drawing.plain(drawing.lines(top.look(options.ledger), _width(), _unicode()))
        )
        return 0

    unicode = _unicode()  # before rich puts itself before the terminal

    def picture() -> Any:
        rows = drawing.lines(top.look(options.ledger), _width(), unicode)
        return Text("\n", no_wrap=True).join(Text.assemble(*row) for row in rows)

    try:
        with Live(
            picture(), console=Console(highlight=False), auto_refresh=False
        ) as live:
            while True:
                time.sleep(options.interval)
                live.update(picture(), refresh=True)
    except KeyboardInterrupt:
        return 0


# --- limits ------------------------------------------------------------------------------


def _limits(options: argparse.Namespace) -> int:
    if options.check is not None:
        return _check(options.check)
    from ..caps import table

    try:
        found = settings.from_environment()
        admin = administrator.begin(found)
    except (ValueError, RuntimeError) as error:
        print(
            json.dumps({"problem": str(error)})
            if options.json
            else f"torcharena: {error}"
        )
        return 1
    cards, why = nvml.cards()
    devices = [
        administrator.Device(
            card.index,
            card.uuid,
            card.total or 0,
            card.name,
            card.uuid.startswith("MIG-"),
        )
        for card in cards
    ]
    caps = table.of_file(admin, devices, found.get("limit"))
    if options.json:
        print(json.dumps(caps.as_json()))
        return 0
    print(caps)
    if not cards:
        print(f"devices  unknown: {why}")
    return 0


def _check(path: str) -> int:
    """Whether a file is sound, whoever owns it; and who owns it."""
    from ..caps import reader, trust

    try:
        with open(path, "rb") as file:
            found = reader.parse(file.read(trust.LARGEST + 1), path)
    except OSError as error:
        print(f"torcharena: {path}: {error.strerror}", file=sys.stderr)
        return 1
    except admin_file.Malformed as error:
        print(f"torcharena: {error}", file=sys.stderr)
        return 1
    print(f"{path}: sound, mode {found.mode}")
    try:
        trust.read(os.path.abspath(path))
    except trust.Untrusted as error:
        print(
            f"torcharena: but it would not be trusted as it is: {error}", file=sys.stderr
        )
        return 1
    return 0


# --- metrics -----------------------------------------------------------------------------


def _metrics(options: argparse.Namespace) -> int:
    from . import metrics, metrics_serving

    if options.listen is not None:
        try:
            where = metrics_serving.address(options.listen)
        except ValueError as error:
            print(f"torcharena: --listen {error}", file=sys.stderr)
            return 2
        try:
            metrics_serving.serve(where, lambda: top.look(options.ledger), _said)
        except KeyboardInterrupt:
            return 0
        except OSError as error:
            print(
                f"torcharena: --listen {options.listen}: {error.strerror}",
                file=sys.stderr,
            )
            return 1
    if options.textfile is None:
        view = top.look(options.ledger)
        print(metrics.text(view), end="")
        return _code(view)
    try:
        while True:
            view = top.look(options.ledger)
            metrics.write(options.textfile, view)
            if options.interval is None:
                return _code(view)
            time.sleep(options.interval)
    except KeyboardInterrupt:
        return 0
    except OSError as error:
        print(f"torcharena: {options.textfile}: {error.strerror}", file=sys.stderr)
        return 1


def _said(port: int) -> None:
    print(f"torcharena: metrics on port {port}", file=sys.stderr, flush=True)
