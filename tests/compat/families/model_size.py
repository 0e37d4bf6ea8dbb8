"""Models made smaller."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.utils import prune

from ..models import STEPS, Mlp, gpt, tokens, train
from ..rows import row


@row("shared parameters (tied embeddings)", needs=("transformers",))
def shared_parameters() -> Iterator[torch.Tensor]:
    model = gpt(tie_word_embeddings=True).cuda()
    assert model.lm_head.weight is model.transformer.wte.weight
    yield from train(model)


@row("pruning (torch.nn.utils.prune)")
def pruning() -> Iterator[torch.Tensor]:
    model = Mlp().cuda()
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    for layer in layers:
        prune.l1_unstructured(layer, "weight", amount=0.5)
    yield from train(model)
    for layer in layers:
        prune.remove(layer, "weight")
    yield from train(model, steps=2)


@row("LoRA (peft)", needs=("peft", "transformers"))
def lora() -> Iterator[torch.Tensor]:
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(r=8, target_modules=["c_attn"], task_type="CAUSAL_LM")
    model = get_peft_model(gpt().cuda(), settings)
    learning = [p for p in model.parameters() if p.requires_grad]
    yield from train(model, torch.optim.AdamW(learning, 1e-3))


@row("int8 weights (torch._int_mm)")
def int8() -> Iterator[torch.Tensor]:
    """Products of int8 with int32 sums, scaled: what weight-and-activation int8 does."""
    weight = torch.randn(1024, 1024, device="cuda")
    scale = weight.abs().amax() / 127
    small = (weight / scale).round().to(torch.int8)
    del weight
    for step in range(STEPS):
        x = torch.randn(64 * (1 + step % 3), 1024, device="cuda")
        unit = x.abs().amax() / 127
        product = torch._int_mm((x / unit).round().to(torch.int8), small.t())
        yield (product.float() * unit * scale).square().mean()


@row(
    "8-bit optimizer (bitsandbytes)",
    needs=("bitsandbytes", "transformers"),
    rehearsed=False,
)
def bitsandbytes_adam() -> Iterator[torch.Tensor]:
    import bitsandbytes

    model = gpt().cuda()
    yield from train(model, bitsandbytes.optim.AdamW8bit(model.parameters(), 1e-3))


@row(
    "paged optimizer (bitsandbytes)",
    needs=("bitsandbytes", "transformers"),
    rehearsed=False,
)
def bitsandbytes_paged() -> Iterator[torch.Tensor]:
    import bitsandbytes

    model = gpt().cuda()
    yield from train(model, bitsandbytes.optim.PagedAdamW32bit(model.parameters(), 1e-3))


@row(
    "a model of other dtypes loaded in place (half, then float)", needs=("transformers",)
)
def dtype_changes() -> Iterator[torch.Tensor]:
    model = gpt().cuda().eval()
    with torch.no_grad():
        for step in range(STEPS):
            model = model.half() if step % 2 else model.float()
            batch = tokens(step)
            yield model(input_ids=batch, labels=batch).loss
