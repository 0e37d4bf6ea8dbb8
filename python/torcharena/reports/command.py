"""The command `report`: shows, converts and compares saved reports."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from . import reporting

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """The command and its options."""
    shown = commands.add_parser("report", help="show a report that was saved")
    shown.add_argument("file", metavar="FILE", help="r.json, as report().save wrote it")
    shown.add_argument(
        "other", metavar="OTHER", nargs="?", help="a second one: what is different there"
    )
    shown.add_argument("--json", action="store_true", help="one object")
    shown.add_argument("--html", metavar="OUT", help="write a page instead")
    shown.set_defaults(command=_report)


def _report(options: argparse.Namespace) -> int:
    try:
        first = reporting.load(options.file)
        second = None if options.other is None else reporting.load(options.other)
    except (OSError, ValueError) as error:
        said = str(error)
        if isinstance(error, OSError) and error.strerror:
            said = f"{error.filename}: {error.strerror}"
        print(f"torcharena: {said}", file=sys.stderr)
        return 2
    if second is not None and options.html is not None:
        print("torcharena: --html takes one report, not two", file=sys.stderr)
        return 2
    if options.html is not None:
        if not options.html.endswith(".html"):
            print(f"torcharena: --html {options.html}: ends in .html", file=sys.stderr)
            return 2
        try:
            first.save(options.html)
        except OSError as error:
            print(f"torcharena: {options.html}: {error.strerror}", file=sys.stderr)
            return 2
    elif second is not None:
        print(first.compare(second), end="")
    elif options.json:
        print(json.dumps(first.data))
    else:
        print(first, end="")
    return 0
