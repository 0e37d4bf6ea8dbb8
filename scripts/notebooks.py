#!/usr/bin/env python3
"""Runs notebooks cell by cell in this process and fails where a cell does.

    torcharena rehearse --allocator arena --gpu 16GiB --share notebooks \\
        scripts/notebooks.py --write notebooks/first_look.ipynb

on a machine without a GPU; on one with a GPU, without the first line. ``--write`` puts the
outputs into the file. One notebook a process: each enables the arena in its own way. Needs
IPython, and no kernel."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _outputs(captured: Any) -> list[dict[str, Any]]:
    outputs: list[dict[str, Any]] = [
        {"output_type": "stream", "name": name, "text": _lines(text)}
        for name, text in (("stdout", captured.stdout), ("stderr", captured.stderr))
        if text
    ]
    for one in captured.outputs:
        data = {kind: _lines(value) for kind, value in one.data.items()}
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    return outputs


def execute(notebook: dict[str, Any]) -> None:
    """Runs the code cells in order, and puts their outputs in place. Raises RuntimeError for
    the first cell that fails, with what it printed."""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    shell: Any = InteractiveShell.instance(colors="nocolor")
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        source = "".join(cell["source"])
        with capture_output() as captured:
            result = shell.run_cell(source, store_history=True)
        if not result.success:
            raise RuntimeError(f"{source}\n---\n{captured.stdout}{captured.stderr}")
        cell["execution_count"] = result.execution_count
        cell["outputs"] = _outputs(captured)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("path", type=Path)
    parser.add_argument(
        "--write", action="store_true", help="put the outputs in the file"
    )
    asked = parser.parse_args()
    notebook = json.loads(asked.path.read_text(encoding="utf-8"))
    try:
        execute(notebook)
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
