"""A diffusion transformer over latents, conditioned on classes by adaptive norms: training in
bfloat16 with checkpointed blocks and an exponential moving average, then sampling with
classifier-free guidance, and a convolutional decoder that makes pictures of the latents."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
import truth  # noqa: F401
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, BLOCKS, CLASSES, PATCH = 768, 12, 12, 1000, 2


def wave(times: torch.Tensor, width: int = 256) -> torch.Tensor:
    """Sines and cosines of the times: (batch, width)."""
    steps = torch.arange(width // 2, device=times.device) / (width // 2)
    angles = times[:, None] * torch.exp(-9.2 * steps)
    return torch.cat([angles.cos(), angles.sin()], -1)


class Block(nn.Module):
    """Attention and a feed-forward part, each shifted, scaled and gated by the condition."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * WIDTH, WIDTH),
        )
        self.condition = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 6 * WIDTH))

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.condition(c)[:, None].chunk(
            6, -1
        )
        n, t, _ = x.shape
        h = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(h).view(n, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v)
        x = x + gate1 * self.out(h.transpose(1, 2).reshape(n, t, WIDTH))
        return x + gate2 * self.feed(self.norm2(x) * (1 + scale2) + shift2)


class Transformer(nn.Module):
    """Latents (batch, 4, side, side), times and classes to the noise, of the latents' shape.
    Class CLASSES stands for none."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(4, WIDTH, PATCH, PATCH)
        self.times = nn.Sequential(
            nn.Linear(256, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH)
        )
        self.classes = nn.Embedding(CLASSES + 1, WIDTH)
        self.place = nn.Parameter(torch.randn(1, 1024, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, PATCH * PATCH * 4)

    def forward(
        self, x: torch.Tensor, times: torch.Tensor, classes: torch.Tensor
    ) -> torch.Tensor:
        n, _, high, wide = x.shape
        c = self.times(wave(times)) + self.classes(classes)
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.place[:, : x.shape[1]]
        for number, block in enumerate(self.blocks):
            if self.training and number % 2:
                x = checkpoint(block, x, c, use_reentrant=False)
            else:
                x = block(x, c)
        x = self.out(self.norm(x)).view(n, high // PATCH, wide // PATCH, PATCH, PATCH, 4)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(n, 4, high, wide)


class Decoder(nn.Module):
    """Latents to pictures of eight times the side."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(4, 256, 3, padding=1)]
        for i, o in ((256, 256), (256, 128), (128, 64)):
            layers += [
                nn.GroupNorm(32, i),
                nn.SiLU(),
                nn.Upsample(scale_factor=2),
                nn.Conv2d(i, o, 3, padding=1),
            ]
        layers += [nn.GroupNorm(32, 64), nn.SiLU(), nn.Conv2d(64, 3, 3, padding=1)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@torch.no_grad()
def sample(
    model: Transformer, decoder: Decoder, count: int, side: int, steps: int
) -> torch.Tensor:
    """Pictures by guidance: each step runs the model with and without the class."""
    model.eval()
    x = torch.randn(count, 4, side, side, device="cuda")
    classes = torch.randint(0, CLASSES, (count,), device="cuda")
    both = torch.cat([classes, torch.full_like(classes, CLASSES)])
    for step in range(steps, 0, -1):
        times = torch.full((2 * count,), 1000.0 * step / steps, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            with_class, without = model(torch.cat([x, x]), times, both).chunk(2)
        x = x - (without + 4.0 * (with_class - without)).float() / steps
    with torch.autocast("cuda", torch.bfloat16):
        return decoder(x).float().clamp(-1, 1)


def main() -> None:
    torch.manual_seed(0)
    model = Transformer().cuda()
    average = copy.deepcopy(model).requires_grad_(False)
    decoder = Decoder().cuda().eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0.0)
    for step in range(12):
        side = (32, 32, 48, 40)[step % 4]
        latents = torch.randn(32, 4, side, side).cuda(non_blocking=True)
        classes = torch.randint(0, CLASSES, (32,), device="cuda")
        classes = torch.where(
            torch.rand(32, device="cuda") < 0.1,
            torch.full_like(classes, CLASSES),
            classes,
        )
        times = torch.rand(32, device="cuda") * 1000
        noise = torch.randn_like(latents)
        part = (times / 1000)[:, None, None, None]
        with torch.autocast("cuda", torch.bfloat16):
            said = model((1 - part) * latents + part * noise, times, classes)
            loss = F.mse_loss(said.float(), noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(
                list(average.parameters()), list(model.parameters()), 1e-3
            )
        print(f"step {step}: side {side}, {loss.item():.3f}", flush=True)
        if step % 6 == 5:
            pictures = sample(average, decoder, 24, 32, 6)
            print("sampled", tuple(pictures.shape), pictures.mean().item(), flush=True)


if __name__ == "__main__":
    main()
