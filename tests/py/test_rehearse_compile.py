"""`torch.compile` in a rehearsal: all of it but what only a GPU would use."""

from __future__ import annotations

from pathlib import Path

import pytest
import simulated
from simulated import missing, run

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

# Small; its second reduction has several configurations, between which Inductor measures.
PROGRAM = """
import os, sys
from torcharena.rehearsal import compiling
compiling.install()
def f(x, w):
    y = torch.nn.functional.gelu(x @ w)
    return torch.nn.functional.layer_norm(y, (512,)).sum(-1)
w = torch.randn(256, 512, device="cuda", requires_grad=True)
peaks = {}
for mode in ("default", "reduce-overhead"):
    torch._dynamo.reset()
    c = torch.compile(f, mode=mode)
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        c(torch.ones(4096, 256, device="cuda"), w).sum().backward()
        w.grad = None
    peaks[mode] = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    torch.cuda.reset_peak_memory_stats()
folder = os.environ["TRITON_CACHE_DIR"]
made = [f for _, _, files in os.walk(folder) for f in files]
from torch._inductor.async_compile import AsyncCompile
def kept():
    roots = [os.environ["TORCHINDUCTOR_CACHE_DIR"] + "/" + n for n in ("fxgraph", "aotautograd")]
    return [sum(len(files) for _, _, files in os.walk(root)) for root in roots]
before = kept()
compiling._chose = True  # as after a benchmark while compiling
torch._dynamo.reset()
with torch.no_grad():
    torch.compile(lambda x: torch.sin(x) + 1)(w)
print({"kept": before, "more": [a - b for a, b in zip(kept(), before)], "kernels": [f for f in made if f.endswith((".cubin", ".ptx"))],
       "pools": AsyncCompile.process_pool.cache_info().currsize, **peaks})
"""


def test_kernels_are_not_compiled(tmp_path: Path) -> None:
    done = run(
        PROGRAM,
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "inductor"),
        TRITON_CACHE_DIR=str(tmp_path / "triton"),
    )
    found = simulated.said(done)
    assert found["kernels"] == [] and not found["pools"]
    # Another run may use what was compiled, but for what was chosen by measurement.
    assert all(found["kept"]) and not any(found["more"])
    # The activations, and a benchmark's buffer; under CUDA graphs what they keep as well.
    activation = 4096 * 512 * 4
    assert 2 * activation < found["default"] < 8 * activation + (64 << 20)
    assert 2 * activation < found["reduce-overhead"] < 16 * activation + (64 << 20)


def test_a_kernel_of_the_programs_own_is_compiled(tmp_path: Path) -> None:
    program = tmp_path / "own.py"
    program.write_text(
        "import sys, torch, triton, triton.language as tl\n"
        "from torcharena.rehearsal import compiling\n"
        "compiling.install()\n"
        "@triton.autotune([triton.Config({'B': 64}), triton.Config({'B': 128})], key=['n'])\n"
        "@triton.jit\n"
        "def twice(p, n, B: tl.constexpr):\n"
        "    i = tl.program_id(0) * B + tl.arange(0, B)\n"
        "    tl.store(p + i, 2 * tl.load(p + i, mask=i < n), mask=i < n)\n"
        "x = torch.ones(1000, device='cuda')\n"
        "twice[lambda m: (triton.cdiv(1000, m['B']),)](x, 1000)\n"
        "assert len(twice.cache) == 1\n"
    )
    run(
        f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')",
        TRITON_CACHE_DIR=str(tmp_path / "triton"),
    )
    assert list((tmp_path / "triton").rglob("*.cubin"))
