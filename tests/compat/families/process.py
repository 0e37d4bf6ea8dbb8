"""From a process's start to its end."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator

import torch

from ..models import STEPS, Convolutions, Mlp, gpt, images, train
from ..rows import row


@row("switching between models", needs=("transformers",), exact=False)
def switching() -> Iterator[torch.Tensor]:
    for _ in range(2):
        yield from train(gpt().cuda(), steps=3)
        gc.collect()
        model = Convolutions().cuda()
        for step in range(3):
            x, y = images(step, 16)
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            yield loss.detach()
        del model, loss
        gc.collect()


@row("torch.cuda.empty_cache at every step")
def emptied() -> Iterator[torch.Tensor]:
    for loss in train(Mlp().cuda()):
        torch.cuda.empty_cache()
        yield loss


@row("cells run again (names bound anew while the old live)")
def cells_again() -> Iterator[torch.Tensor]:
    shared: dict[str, object] = {}
    cell = "model = Mlp().cuda(); losses = list(train(model, steps=2))"
    for _ in range(3):
        exec(cell, {"Mlp": Mlp, "train": train}, shared)
        yield from shared["losses"]  # type: ignore[misc]


@row("a forked child that leaves CUDA alone")
def forked() -> Iterator[torch.Tensor]:
    model = Mlp().cuda()
    for loss in train(model, steps=3):
        child = os.fork()
        if child == 0:
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        yield loss


_CHILD = """
import torch
{first}
x = torch.ones(1000, device="cuda")
torch.cuda.synchronize()
"""


@row("exit with live tensors: a new process, exit code 0, nothing said")
def exits() -> Iterator[float]:
    import torcharena

    first = "import torcharena; torcharena.enable()" if torcharena.enabled() else ""
    program = _CHILD.format(first=first)
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0 and not done.stderr, done.stderr[-500:]
        yield 0.0


@row("random states saved and restored", rehearsed=False)
def random_states() -> Iterator[torch.Tensor]:
    torch.ones(1, device="cuda")
    for _ in range(STEPS):
        state = torch.cuda.get_rng_state()
        first = torch.randn(4096, device="cuda")
        torch.cuda.set_rng_state(state)
        assert torch.equal(first, torch.randn(4096, device="cuda"))
        yield first.mean()
