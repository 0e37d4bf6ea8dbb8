"""What each cure of train.py saves: rehearses it with the flags in turn, and writes the table
of docs/out-of-memory.md. Needs no GPU.

    python examples/out_of_memory/measure.py [--rows no-grad,bf16] [--write-docs]"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DOC = HERE.parents[1] / "docs" / "out-of-memory.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
CARD = "16GiB"
GIB = float(1 << 30)

# What is done, and train.py's flags for it; each on top of those above.
ROWS = {
    "as it is": "",
    "no-grad": "--no-grad",
    "item": "--item",
    "bf16": "--bf16",
    "checkpoint": "--checkpoint",
    "accumulate": "--batch-size 8 --accumulate 2",
    "one-by-one": "--optimizer adamw-one-by-one",
    "adafactor": "--optimizer adafactor",
}
WHAT = {
    "as it is": "as it is",
    "no-grad": "evaluate under `torch.no_grad()`",
    "item": "keep `loss.item()`, not `loss`",
    "bf16": '`torch.autocast("cuda", torch.bfloat16)`',
    "checkpoint": "checkpoint the blocks",
    "accumulate": "half the batch, two passes accumulated",
    "one-by-one": "`AdamW(..., foreach=False)`",
    "adafactor": "another optimizer: `Adafactor`",
}


def rehearse(flags: str) -> dict[str, Any]:
    """The arena's run of train.py with these flags on the card: the report's object."""
    command = [sys.executable, "-m", "torcharena", "rehearse", "--gpu", CARD]
    command += ["--allocator", "arena", "--no-values", "--json"]
    done = subprocess.run(
        [*command, str(HERE / "train.py"), *flags.split()],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=HERE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode not in (0, 3, 4) or not lines:
        raise SystemExit(f"train.py {flags}: {done.stdout}\n{done.stderr}")
    return dict(json.loads(lines[-1]))


def flags_above(name: str) -> str:
    """A row's flags and those of all above it; of two optimizers the last."""
    names = list(ROWS)
    above = names[: names.index(name) + 1]
    if name == "adafactor":
        above.remove("one-by-one")
    return " ".join(ROWS[one] for one in above if ROWS[one])


def measure(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """With this row's flags alone, and with those of all rows above too."""
    alone = rehearse(ROWS[name])
    whole = flags_above(name)
    return alone, alone if whole == ROWS[name] else rehearse(whole)


def line(name: str, alone: dict[str, Any], all_above: dict[str, Any]) -> str:
    """A row of the table."""
    flags = f"`{ROWS[name]}`" if ROWS[name] else ""
    return (
        f"| {WHAT[name]} | {flags} | {alone['need'] / GIB:.2f} GiB "
        f"| {all_above['need'] / GIB:.2f} GiB | {all_above['verdict']} |"
    )


HEAD = [
    f"| what is done | flags of train.py | alone | with all above | on {CARD[:-3]} GiB |",
    "|---|---|--:|--:|---|",
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rows", default=",".join(ROWS), help="names, by commas")
    parser.add_argument("--write-docs", action="store_true")
    options = parser.parse_args()
    names = options.rows.split(",")
    if options.write_docs and names != list(ROWS):
        parser.error("--write-docs takes all rows")
    lines = []
    for name in names:
        lines.append(line(name, *measure(name)))
        print(lines[-1], flush=True)
    if options.write_docs:
        text = DOC.read_text()
        before, rest = text.split(BEGIN)
        _, after = rest.split(END)
        DOC.write_text("\n".join([f"{before}{BEGIN}", *HEAD, *lines, f"{END}{after}"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
