#!/usr/bin/env python3
"""Runs notebooks cell by cell in this process and fails where a cell does.

    torcharena rehearse --allocator arena --gpu h200 --spill 64GiB --share notebooks \\
        scripts/notebooks.py --write notebooks/first_look.ipynb

on a machine without a GPU; on one with a GPU, without the first line. ``--write`` puts the
outputs into the file, and into its first cell what GPU they are from, simulated or not. One
notebook a process: each enables the arena in its own way. Needs IPython, and no kernel.

    scripts/on_gpu.sh FOLDER --parts notebooks

writes all of them on a GPU, into FOLDER."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

_FROM = re.compile(r"^(> The outputs below are from ).*$", re.M)


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


class _Results:
    """In the place of what prints a cell's value: keeps it, as a page would be given it."""

    def __init__(self, shell: Any) -> None:
        self.found: list[dict[str, Any]] = []
        hook = shell.displayhook
        hook.write_output_prompt = hook.finish_displayhook = lambda: None
        hook.write_format_data = lambda data, more=None: self.found.append(data)


def _outputs(
    captured: Any, values: list[dict[str, Any]], count: int
) -> list[dict[str, Any]]:
    outputs: list[dict[str, Any]] = [
        {"output_type": "stream", "name": name, "text": _lines(text)}
        for name, text in (("stdout", captured.stdout), ("stderr", captured.stderr))
        if text
    ]
    for one in captured.outputs:
        outputs.append(
            {"output_type": "display_data", "data": _data(one.data), "metadata": {}}
        )
    for value in values:
        outputs.append(
            {
                "output_type": "execute_result",
                "data": _data(value),
                "metadata": {},
                "execution_count": count,
            }
        )
    return outputs


def _data(formats: dict[str, Any]) -> dict[str, Any]:
    return {kind: _lines(value) for kind, value in formats.items()}


def execute(notebook: dict[str, Any]) -> None:
    """Runs the code cells in order, and puts their outputs in place. Raises RuntimeError for
    the first cell that fails, with what it printed."""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    shell: Any = InteractiveShell.instance(colors="nocolor")
    shell.display_formatter.active_types = ["text/plain", "text/html"]
    results = _Results(shell)
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        source = "".join(cell["source"])
        count += 1
        results.found = []
        with capture_output() as captured:
            result = shell.run_cell(source, store_history=True)
        if not result.success:
            raise RuntimeError(f"{source}\n---\n{captured.stdout}{captured.stderr}")
        cell["execution_count"] = count
        cell["outputs"] = _outputs(captured, results.found, count)


def put_instead(notebook: dict[str, Any], old: str, new: str) -> None:
    """In the code cells; how a test makes it shorter. Raises RuntimeError without ``old``."""
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            count += source.count(old)
            cell["source"] = _lines(source.replace(old, new))
    if not count:
        raise RuntimeError(f"no cell has {old!r}")


def where() -> str:
    """The GPU that this process uses, for people."""
    import torch
    import torcharena

    name = torch.cuda.get_device_name()
    version = torch.__version__.partition("+")[0].rpartition(".")[0]
    if torcharena.is_rehearsal():
        return (
            f"a **simulated** {name} (torch {version}): sizes are right, times and losses "
            "mean nothing"
        )
    return f"one {name} (torch {version})"


def say_where(notebook: dict[str, Any], place: str) -> None:
    """The first cell's sentence on what the outputs are from. Raises RuntimeError where it
    has none."""
    first = notebook["cells"][0]
    text, count = _FROM.subn(
        lambda found: f"{found.group(1)}{place}.", "".join(first["source"])
    )
    if count != 1:
        raise RuntimeError('the first cell lacks "The outputs below are from ..."')
    first["source"] = _lines(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("path", type=Path)
    parser.add_argument(
        "--write", action="store_true", help="put the outputs in the file"
    )
    parser.add_argument(
        "--instead", nargs=2, metavar=("OLD", "NEW"), help="in the code, not with --write"
    )
    asked = parser.parse_args()
    if asked.write and asked.instead:
        parser.error("--write writes what the notebook says, and nothing instead of it")
    notebook = json.loads(asked.path.read_text(encoding="utf-8"))
    try:
        if asked.instead:
            put_instead(notebook, *asked.instead)
        execute(notebook)
        if asked.write:
            say_where(notebook, where())
    except RuntimeError as error:
        print(f"{asked.path}: a cell failed\n{error}", file=sys.stderr)
        return 1
    if asked.write:
        text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
        asked.path.write_text(text, encoding="utf-8")
    count = sum(cell["cell_type"] == "code" for cell in notebook["cells"])
    print(f"{asked.path}: {count} cells ran")
    return 0


if __name__ == "__main__":
    sys.exit(main())
