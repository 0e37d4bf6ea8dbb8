"""Two models that take turns: a policy reads long batches without gradients, a judge of another
shape scores them, is trained for two steps on pieces of them, and then the policy for one."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
import truth  # noqa: F401
from parts import Gpt

WORDS, LONGEST, ROUNDS = 32000, 1536, 8


def read(policy: Gpt, tokens: torch.Tensor) -> torch.Tensor:
    """The log-probability of each token after the first: (batch, length - 1)."""
    logits = policy(tokens[:, :-1]).float()
    return logits.log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)


def train(model: Gpt, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> float:
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(loss.detach())


def main() -> None:
    torch.manual_seed(0)
    draw = random.Random(33)
    policy = Gpt(WORDS, LONGEST, 1024, 16, 12).cuda()
    judge = Gpt(WORDS, LONGEST, 1536, 12, 6, out=1).cuda()
    learns = torch.optim.AdamW(policy.parameters(), 1e-5)
    judges = torch.optim.AdamW(judge.parameters(), 1e-5)
    for number in range(ROUNDS):
        batch, length = draw.choice((6, 8, 12)), draw.randrange(256, LONGEST)
        tokens = torch.randint(0, WORDS, (batch, length), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            with torch.no_grad():
                before = read(policy, tokens)
                score = judge(tokens).squeeze(-1)[:, 1:].float()
            for _ in range(2):
                part = tokens[: batch // 2, : draw.randrange(128, length)]
                said = judge(part).squeeze(-1).float()
                lost = train(judge, judges, F.mse_loss(said, torch.zeros_like(said)))
            ratio = (read(policy, tokens) - before).exp()
            gain = torch.minimum(ratio * score, ratio.clamp(0.8, 1.2) * score)
            won = train(policy, learns, -gain.mean())
        print(f"round {number}: {batch} x {length}, {lost:.3f}, {won:.4f}", flush=True)


if __name__ == "__main__":
    main()
