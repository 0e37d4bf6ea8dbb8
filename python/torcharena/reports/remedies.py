"""What would lower a report's peak, ranked by the bytes it would save there. Pure.

Estimates from the bytes by category at the peak: what a remedy can save at most, not what it
costs. Activations are taken to grow with the batch, as nearly all do."""

from __future__ import annotations

from typing import Any

__all__ = ["remedies"]

_LEAST = 0.01  # of the peak; less is not worth a line


def remedies(
    moment: dict[str, Any], unused: int = 0, full_precision: bool = False
) -> list[dict[str, Any]]:
    """``what`` to do, ``bytes`` that it would save at most, and ``how``; the most first.
    ``moment`` is a report's peak or its out_of_memory; ``unused``: bytes that graphs which
    never run backward held then; ``full_precision``: the model is computed in float32."""
    of = moment["categories"]
    activations = of.get("activation", 0)
    state = of.get("optimizer state", 0)
    sharded = of.get("parameter", 0) + of.get("gradient", 0) + state
    forward = sum(
        row["bytes"]
        for row in moment["holders"]
        if row["category"] == "activation"
        and row["phase"].rpartition("/")[2] == "forward"
        and row["blocks"] > 1
    )
    found = [
        (
            "evaluate under torch.no_grad()",
            unused,
            "these passes keep what backward would need, and it never runs",
        ),
        (
            "checkpoint the repeated blocks",
            forward,
            "torch.utils.checkpoint, or gradient_checkpointing_enable() of transformers: "
            "backward computes them again; or torcharena.offload_activations, which copies "
            "them to the host and back",
        ),
        (
            "the optimizer's state in host memory",
            state,
            "torcharena.offload_optimizer, with enable(spill=): each step reads and writes it "
            "over the link",
        ),
        (
            "autocast to bf16",
            activations // 2 if full_precision else 0,
            'torch.autocast("cuda", torch.bfloat16) around forward and the loss: most '
            "activations take half; parameters, gradients and state stay as they are",
        ),
        (
            "half the batch, two steps accumulated",
            activations // 2,
            "the same gradients from two passes of half the size",
        ),
        (
            "shard over two GPUs",
            sharded // 2,
            "torch.distributed.fsdp.fully_shard: parameters, gradients and optimizer state",
        ),
        (
            "an optimizer with 8-bit state",
            state * 3 // 4,
            "bitsandbytes, where the state is 32-bit now",
        ),
        (
            "train a few adapters only",
            state + of.get("gradient", 0),
            "LoRA by peft: no gradients or state for what is frozen",
        ),
    ]
    worth = [one for one in found if one[1] >= max(1, int(_LEAST * moment["bytes"]))]
    worth.sort(key=lambda one: -one[1])
    return [{"what": what, "bytes": size, "how": how} for what, size, how in worth]
