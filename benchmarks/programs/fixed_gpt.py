"""GPT-2 medium of fixed shapes, 24 GiB: twelve steps that ask for the same."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import truth
from parts import Gpt

WORDS, LENGTH, BATCH, STEPS = 50257, 1024, 8, 12


def main() -> None:
    torch.manual_seed(0)
    model = Gpt(WORDS, LENGTH, 1024, 16, 24).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    truth.step()  # the model is there
    for step in range(STEPS):
        tokens = torch.randint(0, WORDS, (BATCH, LENGTH + 1), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        torch.cuda.synchronize()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"step {step}: {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
