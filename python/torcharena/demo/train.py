"""The training run that `torcharena demo` looks at, one child process for each allocator.

A small GPT in bf16 with AdamW, batches whose length changes at every step. Prints a line of
JSON for each step and one at the end; what else is printed is not JSON and is ignored."""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

LAYERS, WIDTH, HEADS, WORDS, LONGEST, BATCH = 8, 512, 8, 16384, 1024, 8


def say(**what: Any) -> None:
    """One line for the parent."""
    print(json.dumps(what), flush=True)


def build(torch: Any) -> Any:
    """The model, on the GPU."""
    nn = torch.nn
    module: Any = nn.Module

    class Block(module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            shape = (batch, length, 3, HEADS, WIDTH // HEADS)
            q, k, v = self.mix(self.before(x)).view(shape).permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
            return x + self.down(nn.functional.gelu(self.up(self.after(x))))

    class Gpt(module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = (
                nn.Embedding(WORDS, WIDTH),
                nn.Embedding(LONGEST, WIDTH),
            )
            self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
            self.norm, self.head = (
                nn.LayerNorm(WIDTH),
                nn.Linear(WIDTH, WORDS, bias=False),
            )

        def forward(self, tokens: Any) -> Any:
            x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Gpt().cuda()


def train(torch: Any, steps: int) -> None:
    """All steps; torch.OutOfMemoryError comes out."""
    lengths = random.Random(4)
    torch.manual_seed(0)
    model = build(torch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(steps):
        length = lengths.randrange(128, LONGEST + 1)
        tokens = torch.randint(0, WORDS, (BATCH, length), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(
                logits.reshape(-1, WORDS).float(), tokens[:, 1:].reshape(-1)
            )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        say(step=step + 1)


def main(allocator: str, steps: int, cap: int) -> None:
    """``allocator``: native, expandable or arena; ``cap`` in bytes, 0 for none."""
    import torch

    if allocator == "arena":
        import torcharena

        torcharena.enable(limit=cap or None)
    elif cap:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(cap / total, 1.0))
    started, oom = time.monotonic(), False
    try:
        train(torch, steps)
    except torch.OutOfMemoryError:
        oom = True
    stats = torch.cuda.memory_stats()
    say(
        allocator=allocator,
        cap=cap or None,
        oom=oom,
        peak_requested=stats["requested_bytes.all.peak"],
        peak_reserved=stats["reserved_bytes.all.peak"],
        seconds=round(time.monotonic() - started, 3),
        device=torch.cuda.get_device_name(),
        torch=torch.__version__,
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
