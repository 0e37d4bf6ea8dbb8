"""Five training loops whose allocations vary from step to step.

Random weights, no downloads. Each loop is a generator that builds its model on the current
CUDA device, trains, and yields the loss after every step; seeds and lengths are fixed, so two
runs ask for the same memory. ``mark`` is called with the name of each phase as it begins.

The traces in tests/traces are of these loops."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["LOOPS"]

Mark = Callable[[str], None]


def lengths(count: int, low: int, high: int, seed: int, multiple: int = 8) -> list[int]:
    """``count`` lengths from low to high, multiples of ``multiple``."""
    draw = random.Random(seed)
    return [
        max(multiple, draw.randint(low, high) // multiple * multiple)
        for _ in range(count)
    ]


def gpt2_varlen(mark: Mark, steps: int = 30) -> Iterator[float]:
    """GPT-2 medium, bf16 autocast, AdamW, batch 8, length drawn from 128 to 1024."""
    from transformers import GPT2Config, GPT2LMHeadModel

    vocabulary = 50257
    config = GPT2Config(
        n_layer=24,
        n_embd=1024,
        n_head=16,
        vocab_size=vocabulary,
        n_positions=1024,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for length in lengths(steps, 128, 1024, seed=7):
        tokens = torch.randint(0, vocabulary, (8, length), device="cuda")
        mark("forward")
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        mark("backward")
        loss.backward()
        mark("optimizer")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield float(loss.detach())


def bert_amp(mark: Mark, steps: int = 40) -> Iterator[float]:
    """BERT base classifier, fp16 autocast with a gradient scaler, AdamW, batch 32, length 32
    to 512, an evaluation every 10 steps."""
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(BertConfig(num_labels=4)).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-5)
    scaler = torch.amp.GradScaler("cuda")
    for step, length in enumerate(lengths(steps, 32, 512, seed=11)):
        tokens = torch.randint(0, 30522, (32, length), device="cuda")
        labels = torch.randint(0, 4, (32,), device="cuda")
        mark("forward")
        with torch.autocast("cuda", torch.float16):
            loss = model(input_ids=tokens, labels=labels).loss
        mark("backward")
        scaler.scale(loss).backward()
        mark("optimizer")
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 9:
            mark("eval")
            model.eval()
            with torch.no_grad():
                model(input_ids=tokens[:, : length // 2])
            model.train()
        yield float(loss.detach())


def resnet50_multiscale(mark: Mark, steps: int = 24) -> Iterator[float]:
    """ResNet-50, bf16 autocast, SGD with momentum, batch 64, image side 192 to 448."""
    import torchvision

    model = torchvision.models.resnet50().cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for side in lengths(steps, 192, 448, seed=3, multiple=32):
        images = torch.randn(64, 3, side, side, device="cuda")
        labels = torch.randint(0, 1000, (64,), device="cuda")
        mark("forward")
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        mark("backward")
        loss.backward()
        mark("optimizer")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield float(loss.detach())


def llama_lora(mark: Mark, steps: int = 20) -> Iterator[float]:
    """A Llama of 1.1 B parameters in bf16 with LoRA of rank 16, gradient checkpointing, batch
    4, length 256 to 2048."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    vocabulary = 32000
    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=22,
        num_attention_heads=32,
        num_key_value_heads=4,
        vocab_size=vocabulary,
        use_cache=False,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        base = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model = get_peft_model(base, LoraConfig(r=16, target_modules=["q_proj", "v_proj"]))
    model.gradient_checkpointing_enable(
        gradient_checkpointing_kwargs={"use_reentrant": False}
    )
    model.enable_input_require_grads()
    model.train()
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], 1e-4
    )
    for length in lengths(steps, 256, 2048, seed=5):
        tokens = torch.randint(0, vocabulary, (4, length), device="cuda")
        mark("forward")
        loss = model(input_ids=tokens, labels=tokens).loss
        mark("backward")
        loss.backward()
        mark("optimizer")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield float(loss.detach())


class Experts(nn.Module):
    """``count`` feed-forward experts, of which each token goes to two: how many tokens each
    gets varies from step to step."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )
            for _ in range(count)
        )

    def forward(self, x: Any) -> Any:
        """x: (batch, length, width); so is the result."""
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        weights, chosen = self.router(x).softmax(-1).topk(2)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            if token.numel():
                out = expert(x[token]) * weights[token, place, None]
                y = y.index_add(0, token, out.to(y.dtype))
        return y.reshape(shape)


class Layer(nn.Module):
    """Attention, then experts, each behind a norm and around it a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 16, batch_first=True)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.experts = Experts(width, 8)

    def forward(self, x: Any) -> Any:
        """x: (batch, length, width); so is the result."""
        h = self.norm1(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.experts(self.norm2(x))


def moe(mark: Mark, steps: int = 24) -> Iterator[float]:
    """6 layers with 8 experts top-2, 1024 wide, bf16 autocast, AdamW, batch 8, length 256 to
    1024."""
    width, vocabulary = 1024, 32000
    model = nn.Sequential(
        nn.Embedding(vocabulary, width),
        *[Layer(width) for _ in range(6)],
        nn.Linear(width, vocabulary),
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for length in lengths(steps, 256, 1024, seed=13):
        tokens = torch.randint(0, vocabulary, (8, length), device="cuda")
        mark("forward")
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        mark("backward")
        loss.backward()
        mark("optimizer")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield float(loss.detach())


LOOPS: dict[str, Callable[..., Iterator[float]]] = {
    "gpt2_varlen": gpt2_varlen,
    "bert_amp": bert_amp,
    "resnet50_multiscale": resnet50_multiscale,
    "llama_lora": llama_lora,
    "moe": moe,
}
