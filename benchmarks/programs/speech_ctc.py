"""Speech recognition: log-mel features of raw audio by STFT on the GPU, masks over them, a
convolutional front, conformer blocks with depthwise convolutions, and the CTC loss, on utterances
of varying length; then greedy decoding."""

from __future__ import annotations

import math
import random

import torch
import torch.nn.functional as F
import truth  # noqa: F401
from torch import nn

RATE, MELS, WIDTH, HEADS, BLOCKS, LETTERS = 16_000, 80, 384, 6, 10, 64


def mel_filters(bins: int = 201) -> torch.Tensor:
    """Triangles on the mel scale: (MELS, bins)."""

    def mel(f: float) -> float:
        return 2595 * math.log10(1 + f / 700)

    points = torch.linspace(mel(20), mel(RATE / 2), MELS + 2)
    edges = 700 * (10 ** (points / 2595) - 1)
    f = torch.linspace(0, RATE / 2, bins)
    up = (f - edges[:-2, None]) / (edges[1:-1, None] - edges[:-2, None])
    down = (edges[2:, None] - f) / (edges[2:, None] - edges[1:-1, None])
    return torch.minimum(up, down).clamp_min(0)


class Features(nn.Module):
    """Audio (batch, samples) to log-mels (batch, frames, MELS), normalised by utterance."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(400))
        self.register_buffer("filters", mel_filters())

    @torch.no_grad()
    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        spectrum = torch.stft(
            audio, 400, hop_length=160, window=self.window, return_complex=True
        )
        mels = self.filters @ spectrum.abs().square()
        mels = mels.clamp_min(1e-10).log().transpose(1, 2)
        mean, spread = mels.mean(1, keepdim=True), mels.std(1, keepdim=True)
        return (mels - mean) / (spread + 1e-5)


class Conformer(nn.Module):
    """Half a feed-forward, attention, a depthwise convolution, half a feed-forward."""

    def __init__(self) -> None:
        super().__init__()

        def feed() -> nn.Sequential:
            return nn.Sequential(
                nn.LayerNorm(WIDTH),
                nn.Linear(WIDTH, 4 * WIDTH),
                nn.SiLU(),
                nn.Dropout(0.1),
                nn.Linear(4 * WIDTH, WIDTH),
                nn.Dropout(0.1),
            )

        self.feed1, self.feed2 = feed(), feed()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(
            WIDTH, HEADS, dropout=0.1, batch_first=True
        )
        self.before = nn.LayerNorm(WIDTH)
        self.wide = nn.Conv1d(WIDTH, 2 * WIDTH, 1)
        self.depth = nn.Conv1d(WIDTH, WIDTH, 31, padding=15, groups=WIDTH)
        self.batch = nn.BatchNorm1d(WIDTH)
        self.narrow = nn.Conv1d(WIDTH, WIDTH, 1)
        self.last = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        x = x + 0.5 * self.feed1(x)
        h = self.norm(x)
        x = x + self.attention(h, h, h, key_padding_mask=padding, need_weights=False)[0]
        h = self.before(x).masked_fill(padding[..., None], 0).transpose(1, 2)
        h = self.narrow(F.silu(self.batch(self.depth(F.glu(self.wide(h), 1)))))
        x = x + h.transpose(1, 2)
        return self.last(x + 0.5 * self.feed2(x))


class Recogniser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = Features()
        self.front = nn.Sequential(
            nn.Conv2d(1, WIDTH // 2, 3, 2),
            nn.ReLU(),
            nn.Conv2d(WIDTH // 2, WIDTH // 2, 3, 2),
            nn.ReLU(),
        )
        self.project = nn.Linear(WIDTH // 2 * 19, WIDTH)
        self.blocks = nn.ModuleList(Conformer() for _ in range(BLOCKS))
        self.out = nn.Linear(WIDTH, LETTERS)

    def forward(
        self, audio: torch.Tensor, samples: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities (frames, batch, LETTERS), and how many frames count."""
        mels = self.features(audio)
        if self.training:
            mels = self.hide(mels)
        h = self.front(mels[:, None])
        h = self.project(h.permute(0, 2, 1, 3).flatten(2))
        frames = ((samples // 160 - 2) // 2 - 2) // 2 + 1
        frames = frames.clamp(1, h.shape[1])
        padding = torch.arange(h.shape[1], device=h.device) >= frames[:, None]
        for block in self.blocks:
            h = block(h, padding)
        return self.out(h).float().log_softmax(-1).transpose(0, 1), frames

    @staticmethod
    def hide(mels: torch.Tensor) -> torch.Tensor:
        """Masks two bands of frequencies and two of time in each utterance."""
        n, time, bands = mels.shape
        for size, axis, most in ((bands, 2, 20), (time, 1, 50)):
            place = torch.arange(size, device=mels.device)
            for _ in range(2):
                begin = torch.randint(0, size - most, (n, 1), device=mels.device)
                width = torch.randint(0, most, (n, 1), device=mels.device)
                mask = (place >= begin) & (place < begin + width)
                mels = mels.masked_fill(mask.unsqueeze(3 - axis), 0.0)
        return mels


def utterances(count: int, draw: random.Random) -> tuple[torch.Tensor, ...]:
    """Audio, its lengths in samples, letters, their lengths: 3 to 14 seconds each."""
    samples = [draw.randint(3 * RATE, 14 * RATE) for _ in range(count)]
    letters = [max(8, n * 10 // RATE) for n in samples]
    audio = torch.zeros(count, max(samples))
    for row, n in zip(audio, samples, strict=True):
        row[:n] = torch.randn(n)
    text = torch.randint(1, LETTERS, (count, max(letters)))
    return audio, torch.tensor(samples), text, torch.tensor(letters)


def greedy(logits: torch.Tensor, frames: torch.Tensor) -> list[list[int]]:
    """The likeliest letters, repetitions and blanks left out."""
    best = logits.argmax(-1).transpose(0, 1)
    texts = []
    for row, n in zip(best, frames.tolist(), strict=True):
        kept = torch.unique_consecutive(row[:n])
        texts.append(kept[kept != 0].tolist())
    return texts


def main() -> None:
    torch.manual_seed(0)
    draw = random.Random(4)
    model = Recogniser().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-4, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-4, total_steps=20)
    loss_of = nn.CTCLoss(zero_infinity=True)
    for step in range(14):
        batch = [t.cuda(non_blocking=True) for t in utterances(16, draw)]
        audio, samples, text, letters = batch
        with torch.autocast("cuda", torch.bfloat16):
            said, frames = model(audio, samples)
        loss = loss_of(said, text, frames, letters)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        print(
            f"step {step}: {audio.shape[1] / RATE:.1f} s, {loss.item():.3f}", flush=True
        )
    model.eval()
    with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
        audio, samples, *_ = [t.cuda() for t in utterances(24, draw)]
        texts = greedy(*model(audio, samples))
        print("letters:", sum(map(len, texts)), flush=True)


if __name__ == "__main__":
    main()
