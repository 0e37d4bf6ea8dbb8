"""One run of `benchmarks.groups.spill`, in this process.

    python -m benchmarks.groups.spill_child '{"what": "train", ...}'

Prints a line ``RESULT {...}``: seconds of each step, losses, peaks in bytes, what was sent.
Bytes a second are of copies between pinned memory and the device, measured in the same run."""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from ..harness.runs import tell

GIB = 1 << 30
HOST = "96GiB"


# --- training ------------------------------------------------------------------------------
# name: layers, width, heads, words, batch, length; 0: drawn from 128 to 1024, as in `training`
GPTS = {
    "gpt2_varlen": (24, 1024, 16, 50257, 8, 0),
    "gpt2_fixed": (24, 1024, 16, 50257, 8, 1024),
    "gpt_32gib": (24, 1792, 14, 50257, 5, 880),
    "gpt2_28gib": (24, 1024, 16, 50257, 10, 904),
}
SMALL = (4, 256, 4, 2048, 8, 0)


def lengths(name: str, steps: int, small: bool) -> list[int]:
    draw = random.Random(7)
    longest = 512 if small else 1024
    fixed = GPTS[name][5] * longest // 1024
    return [fixed or draw.randint(longest // 8, longest) // 8 * 8 for _ in range(steps)]


def build(name: str, small: bool) -> tuple[Any, int, int]:
    """A GPT-2 of that name, its words and its batch. Made on the device: its weights are the
    same in every run."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, width, heads, words, batch, _ = SMALL if small else GPTS[name]
    config = GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=heads,
        vocab_size=words,
        n_positions=1024,
        use_cache=False,
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = GPT2LMHeadModel(config)
    return model.train(), words, batch


def deterministic() -> None:
    """Kernels that give the same bits every time, where there are such."""
    import torch

    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cuda.enable_cudnn_sdp(False)


Around = Callable[[], Any]


def means(
    name: str, model: Any, optimizer: Any
) -> tuple[Around, Callable[[], None], Any]:
    """What is around forward, what comes after a step, and what to print, by the name."""
    import torch
    import torcharena

    nothing: Around = contextlib.nullcontext
    if name in ("off", "kept"):
        return nothing, lambda: None, None
    if name == "net":
        return nothing, torcharena.step, None
    if name in ("auto", "idle"):
        return nothing, lambda: None, torcharena.auto_offload(model, optimizer)
    if name == "save_on_cpu":
        return (
            lambda: torch.autograd.graph.save_on_cpu(pin_memory=True),
            lambda: None,
            None,
        )
    if name in ("state", "both"):
        torcharena.offload_optimizer(optimizer)
    if name == "state":
        return nothing, torcharena.step, None
    budget = "1TiB" if name == "all" else None
    context = torcharena.offload_activations(budget)
    return lambda: context, torcharena.step, None


def train(spec: dict[str, Any]) -> dict[str, Any]:
    """``means``: off, kept, net, saved, all, state, both, auto, idle, save_on_cpu."""
    import torch
    import torcharena

    name, how, small = spec["model"], spec["means"], spec["small"]
    cap = spec.get("cap")
    torcharena.enable(limit=cap, spill=None if how in ("off", "save_on_cpu") else HOST)
    rates = pinned_rates(GIB // 64 if small else GIB) if spec.get("rates") else None
    deterministic()
    model, words, batch = build(name, small)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    around, after, auto = means(how, model, optimizer)
    steps: list[dict[str, Any]] = []
    losses: list[float] = []
    until = time.monotonic() + spec["seconds"]
    gc.collect()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for length in lengths(name, spec["steps"], small):
        torch.manual_seed(len(steps) + 1)
        tokens = torch.randint(0, words, (batch, length), device="cuda")
        with torch.autocast("cuda", torch.bfloat16), around():
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        after()
        losses.append(loss.item())
        del loss
        now = time.perf_counter()
        steps.append({"seconds": now - begin, "length": length, **counts(how)})
        begin = now
        if time.monotonic() > until:
            break
    torch.cuda.synchronize()
    stats = torcharena.memory_stats()
    found = {
        "losses": losses,
        "steps": steps,
        "requested": stats["requested_bytes.peak"],
        "reserved": stats["reserved_bytes.peak"],
        "state_on_host": state_on_host(optimizer),
    }
    if rates is not None:
        found["rates"] = rates
    if auto is not None:
        found["said"] = str(auto)
        found["expected"], found["cost"] = auto.expected_seconds, auto.cost_seconds
    return found


def counts(how: str) -> dict[str, Any]:
    """After a step: bytes of saved tensors sent in it, and counts so far."""
    import torcharena
    from torcharena.spill import offload_saved

    stats = torcharena.memory_stats()
    calls = sum(stats[key] for key in stats if key.startswith("driver_calls."))
    if how in ("off", "save_on_cpu"):
        return {"sent": 0, "by_net": 0, "calls": calls}
    return {
        # Of the pass that is over now; `figures` know those whose successors began.
        "sent": sum(
            one.current[0].sent
            for one in offload_saved._movers.values()
            if 0 in one.current
        ),
        "by_net": stats["spill_allocated_bytes"],
        "calls": calls,
    }


def state_on_host(optimizer: Any) -> int:
    from torcharena.spill import offload_optimizers

    return offload_optimizers.host_bytes(optimizer)


# --- rates ---------------------------------------------------------------------------------
def pinned_rates(size: int) -> dict[str, float]:
    """GB/s of pinned copies to the host, to the device, and of each way with both at once."""
    import torch

    from ..host_pages import pinned_rates as measured

    out, back, both = measured(size)
    gc.collect()
    torch.cuda.empty_cache()
    return {"out": out, "back": back, "both": both}


def place_rate(size: int) -> float:
    """GB/s each way of a kernel that works in place on memory of the host."""
    import torch
    from torcharena.spill.host_tensors import ArenaTensors

    from ..host_pages import seconds

    there = ArenaTensors("benchmark").flat(size, torch.device("cuda", 0))
    floats = there.view(torch.float32).zero_()
    return size / seconds(lambda: floats.mul_(1.0)) / 1e9


# --- the optimizer's state alone -----------------------------------------------------------
def parameters_of(count: int, pieces: int = 48) -> list[Any]:
    import torch

    return [
        torch.nn.Parameter(torch.full((count // pieces,), 0.5, device="cuda"))
        for _ in range(pieces)
    ]


def state(spec: dict[str, Any]) -> dict[str, Any]:
    """AdamW with gradients that stay; its moments on the device, then on the host."""
    import torch
    import torcharena

    from ..host_pages import seconds

    torcharena.enable(spill=HOST)
    count = spec["count"]
    parameters = parameters_of(count)
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 0.25)
    found: dict[str, Any] = {"count": count, "state": 8 * count, "ms": {}}
    optimizer = torch.optim.AdamW(parameters, fused=True)
    optimizer.step()
    found["ms"]["on the device"] = 1e3 * seconds(optimizer.step)
    torch.cuda.empty_cache()
    before = torcharena.memory_stats()["reserved_bytes"]
    begin = time.perf_counter()
    torcharena.offload_optimizer(optimizer)
    torch.cuda.synchronize()
    found["moving_seconds"] = time.perf_counter() - begin
    torch.cuda.empty_cache()
    found["down"] = before - torcharena.memory_stats()["reserved_bytes"]
    found["ms"]["on the host, fused"] = 1e3 * seconds(optimizer.step)
    optimizer.param_groups[0].update(fused=None, foreach=True)
    for one in optimizer.state.values():
        one["step"] = torch.tensor(9.0)  # where foreach has it: on the processor
    found["ms"]["on the host, foreach"] = 1e3 * seconds(optimizer.step)
    found["place"] = place_rate(spec["rate_bytes"])
    return found


# --- what else there is --------------------------------------------------------------------
def rival(spec: dict[str, Any]) -> dict[str, Any]:
    """Steps of AdamW and the backward that makes its gradients, by ``who``."""
    import torch

    who, count = spec["who"], spec["count"]
    if who in ("plain", "offload_optimizer"):
        import torcharena

        torcharena.enable(spill=HOST)
    parameters = parameters_of(count)
    step = stepper(who, parameters)

    def whole() -> None:
        loss = sum(p.square().sum() for p in parameters)
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        step()

    whole()
    whole()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    from ..host_pages import seconds

    took = seconds(whole, times=5)
    stats = torch.cuda.memory_stats()
    return {
        "ms": 1e3 * took,
        "allocated_peak": stats["allocated_bytes.all.peak"],
        "allocated": stats["allocated_bytes.all.current"],
        "used": used(),
        "first": float(parameters[0][0].detach()),
        "version": version(who),
    }


def used() -> int:
    """Bytes of the device in use, whoever has them."""
    import torch

    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


DISTRIBUTIONS = {
    "torchao": "torchao",
    "bitsandbytes": "bitsandbytes",
    "deepspeed_cpu_adam": "deepspeed",
}


def version(who: str) -> str | None:
    name = DISTRIBUTIONS.get(who, "torch")
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def stepper(who: str, parameters: list[Any]) -> Callable[[], Any]:
    """A step and zero_grad. Raises ImportError where it is not installed."""
    import torch

    if who in ("plain", "offload_optimizer"):
        optimizer: Any = torch.optim.AdamW(parameters, 1e-4, fused=True)
        if who == "offload_optimizer":
            import torcharena

            torcharena.offload_optimizer(optimizer)
    elif who == "torchao":
        from torchao.optim import CPUOffloadOptimizer

        optimizer = CPUOffloadOptimizer(
            parameters, torch.optim.AdamW, lr=1e-4, fused=True
        )
    elif who == "bitsandbytes":
        import bitsandbytes

        optimizer = bitsandbytes.optim.PagedAdamW32bit(parameters, lr=1e-4)
    else:
        return cpu_adam(parameters)

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return step


def cpu_adam(parameters: list[Any]) -> Callable[[], Any]:
    """DeepSpeed's AdamW on the processor, with gradients copied there and weights back, as its
    ZeRO-offload does without other ranks."""
    import torch
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    there = [torch.nn.Parameter(p.detach().cpu().pin_memory()) for p in parameters]
    for parameter in there:
        parameter.grad = torch.empty_like(parameter, pin_memory=True)
    optimizer = DeepSpeedCPUAdam(there, lr=1e-4, adamw_mode=True)

    def step() -> None:
        for one, other in zip(parameters, there, strict=True):
            other.grad.copy_(one.grad, non_blocking=True)
            one.grad = None
        torch.cuda.synchronize()
        optimizer.step()
        with torch.no_grad():
            for one, other in zip(parameters, there, strict=True):
                one.copy_(other, non_blocking=True)

    return step


# --- the process ---------------------------------------------------------------------------
WHAT: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "train": train,
    "state": state,
    "rival": rival,
}


def main(arguments: list[str]) -> None:
    """Ends the process without teardown: some plug-ins do not survive one."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    spec = json.loads(arguments[0])
    import torch

    from ..harness.contenders import out_of_memory
    from ..harness.machine import machine

    try:
        found = WHAT[spec["what"]](spec)
    except ImportError as error:
        found = {"error": f"not installed: {error}"}
    except Exception as error:
        if not out_of_memory(error):
            raise
        found = {"error": "out of memory: " + str(error)[:300]}
    found["machine"] = machine()
    torch.cuda.synchronize()
    tell(found)
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
