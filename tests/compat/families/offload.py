"""Other libraries' ways to the host's memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..models import STEPS, Mlp, gpt, noise, tokens, train, update
from ..rows import row


@row("torch.autograd.graph.save_on_cpu(pin_memory=True)")
def save_on_cpu() -> Iterator[torch.Tensor]:
    model = Mlp().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(STEPS):
        x = noise(step, 64 + 32 * (step % 3))
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss = model(x).square().mean()
        yield update(loss, optimizer)


@row("accelerate's cpu_offload", needs=("accelerate", "transformers"))
def accelerate_offload() -> Iterator[torch.Tensor]:
    from accelerate import cpu_offload

    model = cpu_offload(gpt().eval(), torch.device("cuda"))
    with torch.no_grad():
        for step in range(STEPS):
            batch = tokens(step)
            yield model(input_ids=batch, labels=batch).loss


@row(
    "accelerate's device_map with layers on the host",
    needs=("accelerate", "transformers"),
)
def device_map() -> Iterator[torch.Tensor]:
    from accelerate import dispatch_model

    model = gpt().eval()
    places: dict[str, Any] = {"transformer.wte": 0, "transformer.wpe": 0}
    places |= {"transformer.drop": 0, "transformer.ln_f": 0, "lm_head": 0}
    places |= {f"transformer.h.{n}": 0 if n < 2 else "cpu" for n in range(4)}
    model = dispatch_model(model, device_map=places, main_device=0)
    with torch.no_grad():
        for step in range(STEPS):
            batch = tokens(step)
            yield model(input_ids=batch, labels=batch).loss


def _deepspeed(stage: int) -> Iterator[torch.Tensor]:
    import deepspeed

    model = Mlp()
    settings = {
        "train_micro_batch_size_per_gpu": 64,
        "zero_optimization": {"stage": stage, "offload_optimizer": {"device": "cpu"}},
        "zero_force_ds_cpu_optimizer": False,
    }
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    for step in range(STEPS):
        draw = torch.Generator().manual_seed(step)
        loss = engine(torch.randn(64, 512, generator=draw).cuda()).square().mean()
        engine.backward(loss)
        engine.step()
        yield loss.detach()


@row("DeepSpeed ZeRO-2 with CPU offload", needs=("deepspeed",), processes=2, gpus=2)
def deepspeed_2() -> Iterator[torch.Tensor]:
    yield from _deepspeed(2)


@row("DeepSpeed ZeRO-3 with CPU offload", needs=("deepspeed",), processes=2, gpus=2)
def deepspeed_3() -> Iterator[torch.Tensor]:
    yield from _deepspeed(3)


@row("weights on the host, a layer at a time")
def layer_by_layer() -> Iterator[torch.Tensor]:
    layers = [torch.nn.Linear(1024, 1024).requires_grad_(False) for _ in range(6)]
    for layer in layers:
        layer.weight.data = layer.weight.data.pin_memory()
    side = torch.cuda.Stream()
    for step in range(STEPS):
        x = noise(step, 128, 1024)
        for layer in layers:
            with torch.cuda.stream(side):
                weight = layer.weight.to("cuda", non_blocking=True)
            torch.cuda.current_stream().wait_stream(side)
            weight.record_stream(torch.cuda.current_stream())
            x = torch.relu(x @ weight.t())
        yield x.mean()


@row("training goes on while its state is saved", needs=("transformers",))
def saved_meanwhile() -> Iterator[torch.Tensor]:
    import io

    model = gpt().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for loss in train(model, optimizer, steps=4):
        file = io.BytesIO()
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file
        )
        file.seek(0)
        found = torch.load(file, map_location="cuda", weights_only=True)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        yield loss
