"""Inference over long contexts: requests of different lengths come and go, three at a time;
each prompt is read in pieces, then a token a turn is made, and the cache of keys and values of
every layer grows by concatenation."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
import truth
from torch import nn

LAYERS, WIDTH, HEADS, SHARED, WORDS = 12, 2048, 16, 4, 32000
PIECE, AT_ONCE, REQUESTS = 2048, 3, 10
DEPTH = WIDTH // HEADS

Cache = list[tuple[torch.Tensor, torch.Tensor] | None]


class Layer(nn.Module):
    """Attention to all that came before, fewer heads for keys and values, gated feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.kv = nn.Linear(WIDTH, 2 * SHARED * DEPTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, 11 * WIDTH // 4, bias=False)
        self.up = nn.Linear(WIDTH, 11 * WIDTH // 4, bias=False)
        self.down = nn.Linear(11 * WIDTH // 4, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, cache: Cache, number: int) -> torch.Tensor:
        n, t, _ = x.shape
        h = self.norm1(x)
        q = self.q(h).view(n, t, HEADS, DEPTH).transpose(1, 2)
        k, v = self.kv(h).view(n, t, 2, SHARED, DEPTH).permute(2, 0, 3, 1, 4)
        before = cache[number]
        if before is not None:
            k, v = torch.cat([before[0], k], 2), torch.cat([before[1], v], 2)
        cache[number] = (k, v)
        wide = (n, SHARED, HEADS // SHARED, k.shape[2], DEPTH)
        keys = k[:, :, None].expand(wide).reshape(n, HEADS, -1, DEPTH)
        values = v[:, :, None].expand(wide).reshape(n, HEADS, -1, DEPTH)
        mask = None
        if t > 1:
            mask = torch.ones(t, k.shape[2], dtype=torch.bool, device=x.device)
            mask = mask.tril(k.shape[2] - t)
        h = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        x = x + self.out(h.transpose(1, 2).reshape(n, t, WIDTH))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Model(nn.Module):
    """The last token's logits: (1, words)."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor, cache: Cache) -> torch.Tensor:
        x = self.words(tokens)
        for number, layer in enumerate(self.layers):
            x = layer(x, cache, number)
        return self.head(self.norm(x[:, -1]))


class Request:
    """A prompt being read, then tokens being made."""

    def __init__(self, model: Model, length: int, wanted: int) -> None:
        self.model, self.wanted, self.made = model, wanted, 0
        self.cache: Cache = [None] * LAYERS
        prompt = torch.randint(0, WORDS, (1, length), device="cuda")
        for piece in prompt.split(PIECE, 1):
            self.next = model(piece, self.cache).argmax(-1, keepdim=True)

    def turn(self) -> bool:
        """One token more; False when it was the last."""
        self.next = self.model(self.next, self.cache).argmax(-1, keepdim=True)
        self.made += 1
        return self.made < self.wanted


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    draw = random.Random(21)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Model().eval()
    coming = [
        (draw.randrange(1500, 14000), draw.randrange(8, 28)) for _ in range(REQUESTS)
    ]
    running: list[Request] = []
    while coming or running:
        while coming and len(running) < AT_ONCE:
            length, wanted = coming.pop(0)
            running.append(Request(model, length, wanted))
            print(f"a prompt of {length}, {wanted} tokens wanted", flush=True)
        running = [request for request in running if request.turn()]
        torch.cuda.synchronize()
        truth.step()


if __name__ == "__main__":
    main()
