"""Host memory: what planned offloading, the safety net and offloaded state cost.

    python -m benchmarks spill [--means planned,state,auto,rivals,idle] --out FILE [--seconds S]
    python -m benchmarks spill --rehearse            (small, on a simulated GPU: to try it)

Each run is a process of its own (`spill_child`). Parts: *planned*, GPT-2 medium of varying and of
fixed lengths with its cap at 0.75 and 0.5 of what it asks for, by each means; *state*, AdamW of
1.5 billion parameters in place; *auto*, models far beyond their cap, chosen for and set by hand;
*rivals*, what else there is to install; *idle*, spill on with nothing to spill."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from ..harness.contenders import environment
from ..harness.progress import Progress
from ..harness.runs import run_child
from ..harness.store import Store

__all__ = ["PARTS", "run"]

PARTS = ("planned", "state", "auto", "rivals", "idle")
SHARES = (0.75, 0.5)
PLANNED = ("saved", "both", "auto", "net")
# Model, its cap in bytes; by which means.
BEYOND = (("gpt_32gib", 16 << 30), ("gpt2_28gib", 12 << 30))
BY_HAND = ("saved", "both")
RIVALS = ("plain", "offload_optimizer", "torchao", "bitsandbytes", "deepspeed_cpu_adam")
Row = dict[str, Any]


class Runs:
    """What is to run, and what came of it."""

    def __init__(self, store: Store, small: bool, seconds: float, timeout: float) -> None:
        self.store = store
        self.small = small
        self.until = time.monotonic() + seconds
        self.timeout = timeout
        self.wrong: list[str] = []

    def row(self, case: str, contender: str, **spec: Any) -> Row | None:
        """The store's row, measured now where it lacks; None where that went wrong."""
        if not self.store.has("spill", case, contender):
            if time.monotonic() + 15 > self.until:
                self.wrong.append(f"{case} {contender}: no time left")
                return None
            begin = time.monotonic()
            found = self.child(spec)
            machine = found.pop("machine", None)
            if machine is not None:
                self.store.on(machine)
            found["wall"] = round(time.monotonic() - begin, 1)
            self.store.put(
                {"group": "spill", "case": case, "contender": contender} | found
            )
            if "error" in found:
                self.wrong.append(f"{case} {contender}: {found['error']}")
        return self.store.get("spill", case, contender)

    def child(self, spec: dict[str, Any]) -> Row:
        spec = {"small": self.small, **spec}
        command = [
            sys.executable,
            "-m",
            "benchmarks.groups.spill_child",
            json.dumps(spec),
        ]
        env = environment("arena") | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        limit = min(self.timeout, max(self.until - time.monotonic(), 10))
        return run_child(command, env, limit)

    def train(self, case: str, contender: str, model: str, **more: Any) -> Row | None:
        steps = more.pop("steps", 4 if self.small else 14)
        spec = {"what": "train", "model": model, "steps": steps, "seconds": 40, **more}
        return self.row(case, contender, **spec)

    # --- the parts ------------------------------------------------------------------------
    def planned(self) -> Iterator[str]:
        for model in ("gpt2_varlen", "gpt2_fixed"):
            base = self.train(model, "off", model, means="off", rates=True)
            yield model
            self.train(model, "off again", model, means="off")
            yield f"{model} again"
            for share in SHARES:
                for how in PLANNED:
                    if base is not None:
                        cap = int(base["requested"] * share)
                        steps = {"steps": 4, "seconds": 30} if how == "net" else {}
                        case = f"{model} @ {share}"
                        self.train(case, how, model, means=how, cap=cap, **steps)
                    yield f"{model} {share} {how}"

    def state(self) -> Iterator[str]:
        count, size = (1 << 24, 1 << 24) if self.small else (1_500_000_000, 2 << 30)
        self.row("state", "arena", what="state", count=count, rate_bytes=size)
        yield "state"

    def auto(self) -> Iterator[str]:
        for model, cap in BEYOND:
            base = self.train(model, "off", model, means="off", steps=10, rates=True)
            yield model
            for how in ("auto", *BY_HAND):
                if base is not None:
                    small = int(base["requested"] * cap / (30 << 30))
                    limit = small if self.small else cap
                    case = f"{model} @ cap"
                    self.train(case, how, model, means=how, cap=limit, steps=10)
                yield f"{model} {how}"

    def rivals(self) -> Iterator[str]:
        for who in RIVALS:
            count = 1 << 22 if self.small else 500_000_000
            self.row("rivals: AdamW", who, what="rival", who=who, count=count)
            yield who
        model = "gpt2_fixed"
        torchs = self.train(
            "rivals: saved", "save_on_cpu", model, means="save_on_cpu", steps=6
        )
        yield "save_on_cpu"
        self.train("rivals: saved", "all", model, means="all", steps=6)
        yield "all"
        if torchs is not None:
            self.train(
                "rivals: saved",
                "saved",
                model,
                means="saved",
                cap=torchs["reserved"],
                steps=8,
            )
        yield "saved, at the bytes of save_on_cpu"

    def idle(self) -> Iterator[str]:
        model = "gpt2_fixed"
        for number in (1, 2):
            for how in ("off", "idle"):
                self.train("idle", f"{how} {number}", model, means=how, steps=16)
                yield f"idle {how} {number}"


def count(parts: list[str]) -> int:
    """Runs in them."""
    each = {
        "planned": 2 * (2 + len(SHARES) * len(PLANNED)),
        "state": 1,
        "auto": len(BEYOND) * (2 + len(BY_HAND)),
        "rivals": len(RIVALS) + 3,
        "idle": 4,
    }
    return sum(each[part] for part in parts)


def run(
    store: Store,
    parts: list[str] | None = None,
    *,
    small: bool = False,
    seconds: float = 1e9,
    timeout: float = 120,
) -> list[str]:
    """Measures what the store lacks. Returns what went wrong, in words."""
    chosen = [part for part in PARTS if parts is None or part in parts]
    runs = Runs(store, small, seconds, timeout)
    progress = Progress("spill", count(chosen))
    for part in chosen:
        for text in getattr(runs, part)():
            progress.step(text)
    progress.close()
    return runs.wrong
