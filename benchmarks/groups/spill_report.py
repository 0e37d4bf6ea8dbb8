"""Tables of `spill`, the group: what each means costs, beside what the link and the computing
allow."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from ..harness.store import Store

__all__ = ["spill_tables"]

GIB = float(1 << 30)
Row = dict[str, Any]
Grid = Callable[[Sequence[str], Sequence[Sequence[str]]], str]
NAMES = {
    "saved": "`offload_activations()`",
    "all": "`offload_activations('1TiB')`",
    "both": "the same and `offload_optimizer`",
    "auto": "`auto_offload`",
    "net": "the safety net alone",
}


def late(row: Row) -> list[Row]:
    """The second half of the steps: the first ones learn, pin and load kernels."""
    steps: list[Row] = row["steps"]
    return steps[len(steps) // 2 :]


def same_steps(row: Row, base: Row) -> tuple[list[Row], list[Row]]:
    """The later half of what both did."""
    count = min(len(row["steps"]), len(base["steps"]))
    return row["steps"][count // 2 : count], base["steps"][count // 2 : count]


def link_seconds(step: Row, rate: float, state: int) -> float:
    """What the step's bytes take on the link, one way after the other, at ``rate`` bytes a
    second each way: saved tensors out and back, the state read and written side by side."""
    return (2 * step["sent"] + state) / rate


def judged(row: Row, base: Row, rates: dict[str, float] | None) -> dict[str, float]:
    """Seconds of the later steps over what bounds them, where rates were measured: in sum, and
    step by step."""
    mine, plain = same_steps(row, base)
    took = sum(step["seconds"] for step in mine)
    free = sum(step["seconds"] for step in plain)
    found = {
        "ms": 1e3 * took / len(mine),
        "over_free": took / free,
        "sent": statistics.mean(step["sent"] for step in mine),
        "net": mine[-1]["by_net"] - mine[0]["by_net"],
    }
    if rates is not None:
        rate, state = rates["both"] * 1e9, row["state_on_host"]
        links = [link_seconds(step, rate, state) for step in mine]
        each = sum(max(a["seconds"], b) for a, b in zip(plain, links, strict=True))
        found["over_bound"] = took / max(free, sum(links))
        found["over_each"] = took / each
    return found


def equal(row: Row, base: Row, again: Row | None) -> str:
    """Whether the losses are the same to the bit; where two plain runs are not, how far."""
    count = min(len(row["losses"]), len(base["losses"]))
    if row["losses"][:count] == base["losses"][:count]:
        return "yes"
    if again is not None and again["losses"][:count] != base["losses"][:count]:
        return "as two plain runs"
    pairs = zip(row["losses"], base["losses"], strict=False)
    return f"no: by {max(abs(a - b) for a, b in pairs):.2g}"


def trained(
    store: Store, base: Row, cases: Sequence[str], again: Row | None
) -> list[Any]:
    rates = base.get("rates")
    lines = []
    for case in cases:
        for row in store.of("spill"):
            if row["case"] != case:
                continue
            if "error" in row:
                lines.append([case, row["contender"], *["failed"] * 8])
                continue
            known = judged(row, base, rates)
            bound = "no rates"
            if rates is not None:
                bound = f"{known['over_bound']:.2f} ({known['over_each']:.2f})"
            lines.append(
                [
                    case,
                    NAMES.get(row["contender"], row["contender"]),
                    f"{row['reserved'] / GIB:.2f}",
                    f"{known['sent'] / GIB:.2f}",
                    f"{row['state_on_host'] / GIB:.2f}",
                    f"{known['net'] / GIB:.2f}",
                    f"{known['ms']:.0f}",
                    f"{known['over_free']:.2f}",
                    bound,
                    equal(row, base, again),
                ]
            )
    return lines


HEAD = [
    "model and cap",
    "means",
    "reserved GiB",
    "sent a step",
    "state on host",
    "by the net",
    "ms",
    "over no cap",
    "over its bound",
    "equal losses",
]


def training_tables(store: Store, grid: Grid) -> list[str]:
    found = []
    for model in ("gpt2_varlen", "gpt2_fixed"):
        base = store.get("spill", model, "off")
        if base is None:
            continue
        cases = [f"{model} @ {share}" for share in (0.75, 0.5)]
        lines = trained(store, base, cases, store.get("spill", model, "off again"))
        rates = base["rates"]
        plain = statistics.mean(step["seconds"] for step in late(base))
        found.append(
            f"### {model}, {base['requested'] / GIB:.2f} GiB asked for\n\n"
            f"Pinned copies: {rates['out']:.1f} GB/s to the host, {rates['back']:.1f} back, "
            f"{rates['both']:.1f} each with both at once. A step without a cap: "
            f"{1e3 * plain:.0f} ms. *Its bound* is the larger of the time without a cap and "
            "the bytes moved at the last of these rates, of the later steps in sum (and step "
            "by step); 1.15 is asked of what leaves by plan.\n\n" + grid(HEAD, lines)
        )
    return found


def state_tables(store: Store, grid: Grid) -> list[str]:
    row = store.get("spill", "state", "arena")
    if row is None:
        return []
    lines = []
    for where, ms in row["ms"].items():
        bound = row["state"] / row["place"] / 1e6
        over = "" if where == "on the device" else f"{ms / bound:.2f}"
        lines.append([where, f"{ms:.1f}", f"{row['state'] / ms / 1e6:.1f}", over])
    return [
        f"### AdamW, {row['count'] / 1e9:.2f} billion parameters\n\n"
        f"Work in place on host memory: {row['place']:.1f} GB/s each way in the same run. Device "
        f"bytes went down by {row['down'] / row['state']:.3f} of the state's "
        f"{row['state'] / GIB:.2f} GiB; moving it, pinning included, took "
        f"{row['moving_seconds']:.1f} s.\n\n"
        + grid(["state", "ms a step", "GB/s each way", "over bytes at that rate"], lines)
    ]


def auto_tables(store: Store, grid: Grid) -> list[str]:
    found, lines = [], []
    for model in ("gpt_32gib", "gpt2_28gib"):
        base = store.get("spill", model, "off")
        if base is None:
            continue
        lines += trained(store, base, [f"{model} @ cap"], None)
        auto = store.get("spill", f"{model} @ cap", "auto")
        if auto is not None:
            size = f"{base['requested'] / GIB:.2f} GiB asked for"
            found.append(f"{model}, {size}:\n\n```\n{auto['said']}\n```")
    if not lines:
        return []
    return ["### Far beyond the cap\n\n" + grid(HEAD, lines), *found]


def rival_tables(store: Store, grid: Grid) -> list[str]:
    found = []
    rows = [row for row in store.of("spill") if row["case"] == "rivals: AdamW"]
    if rows:
        lines = [
            [row["contender"], "", "", row["error"][:60]]
            if "error" in row
            else [
                f"{row['contender']} {row['version'] or ''}".strip(),
                f"{row['ms']:.0f}",
                f"{row['allocated_peak'] / GIB:.2f}",
                f"{row['used'] / GIB:.2f}",
            ]
            for row in rows
        ]
        head = [
            "backward and AdamW step",
            "ms",
            "allocated at the peak, GiB",
            "in use after",
        ]
        found.append("### Offloaded optimizers\n\n" + grid(head, lines))
    rows = [row for row in store.of("spill") if row["case"] == "rivals: saved"]
    if rows:
        lines = []
        for row in rows:
            if "error" in row:
                lines.append([row["contender"], "failed", "", row["error"][:60]])
                continue
            took = statistics.mean(step["seconds"] for step in late(row))
            lines.append(
                [
                    NAMES.get(row["contender"], "`save_on_cpu(pin_memory=True)`"),
                    f"{1e3 * took:.0f}",
                    f"{row['reserved'] / GIB:.2f}",
                    f"{statistics.mean(s['sent'] for s in late(row)) / GIB:.2f}",
                ]
            )
        head = ["gpt2_fixed, saved tensors by", "ms a step", "reserved GiB", "sent GiB"]
        found.append("### Saved tensors, beside torch's own\n\n" + grid(head, lines))
    return found


def idle_tables(store: Store, grid: Grid) -> list[str]:
    rows = [r for r in store.of("spill") if r["case"] == "idle" and "error" not in r]
    if not rows:
        return []
    lines = []
    for row in rows:
        steps = late(row)
        calls = [b["calls"] - a["calls"] for a, b in itertools.pairwise(steps)]
        times = [1e3 * step["seconds"] for step in steps]
        how, number = row["contender"].split()
        name = "spill off" if how == "off" else "spill on, `auto_offload`"
        lines.append(
            [
                f"{name}, run {number}",
                f"{statistics.median(times):.1f}",
                f"{min(times):.1f} to {max(times):.1f}",
                str(sum(calls)),
            ]
        )
    head = ["gpt2_fixed, all fits", "ms a step", "of them", "driver calls in those steps"]
    return ["### Nothing to spill\n\n" + grid(head, lines)]


def spill_tables(store: Store, grid: Grid) -> list[str]:
    """All that the store has of spill."""
    return [
        text
        for table in (
            training_tables,
            state_tables,
            auto_tables,
            rival_tables,
            idle_tables,
        )
        for text in table(store, grid)
    ]
