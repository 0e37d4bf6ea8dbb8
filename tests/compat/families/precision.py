"""Training in fewer bits."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..models import STEPS, Mlp, gpt, tokens, train, update
from ..rows import row


@row("autocast to float16 with GradScaler", needs=("transformers",))
def autocast_float16() -> Iterator[torch.Tensor]:
    model = gpt().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cuda")
    for step in range(STEPS):
        batch = tokens(step)
        with torch.autocast("cuda", torch.float16):
            loss = model(input_ids=batch, labels=batch).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        yield loss.detach()


@row("autocast to bfloat16", needs=("transformers",))
def autocast_bfloat16() -> Iterator[torch.Tensor]:
    model = gpt().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(STEPS):
        batch = tokens(step)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=batch, labels=batch).loss
        yield update(loss, optimizer)


@row("weights in bfloat16", needs=("transformers",))
def pure_bfloat16() -> Iterator[torch.Tensor]:
    yield from train(gpt().to("cuda", torch.bfloat16))


@row("float8 matrix products (torch._scaled_mm)")
def float8() -> Iterator[torch.Tensor]:
    """Inference through a layer whose weights are float8; needs a GPU of 8.9 or later."""
    one = torch.ones((), device="cuda")
    weight = torch.randn(1024, 512, device="cuda").to(torch.float8_e4m3fn)
    for step in range(STEPS):
        x = torch.randn(128 * (1 + step % 3), 512, device="cuda")
        product = torch._scaled_mm(
            x.to(torch.float8_e4m3fn),
            weight.t(),
            scale_a=one,
            scale_b=one,
            out_dtype=torch.bfloat16,
        )
        yield product.float().square().mean()


@row("float32 products as TF32")
def tf32() -> Iterator[torch.Tensor]:
    torch.set_float32_matmul_precision("high")
    yield from train(Mlp().cuda())
