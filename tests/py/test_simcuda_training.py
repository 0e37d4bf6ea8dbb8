"""Whole programs by the real PyTorch on the simulated GPU, and their peaks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from simulated import PACKAGE, TIMEOUT, environment, missing, port, run, said

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def test_a_linear_models_peak_is_what_it_adds_up_to() -> None:
    """Parameters, gradients, two moments, inputs and activations, byte by byte."""
    done = run(
        """
        n, width = 4096, 1024
        m = torch.nn.Linear(width, width, bias=False).cuda()
        o = torch.optim.AdamW(m.parameters(), foreach=False, fused=True)
        for _ in range(3):
            x = torch.randn(n, width, device="cuda")
            m(x).sum().backward()
            o.step()
            o.zero_grad(set_to_none=True)
            del x
        s = torch.cuda.memory_stats()
        print(dict(requested=s["requested_bytes.all.peak"],
                   workspace=torch.cuda.memory_allocated() - 3 * width * width * 4))
        """,
        values=False,
    )
    seen = said(done)
    weights, activation = 1024 * 1024 * 4, 4096 * 1024 * 4
    # In backward: weights, gradient, moments, x; the output's gradient is one number
    # expanded, which the product takes as a whole matrix.
    expected = 3 * weights + 2 * activation + weights
    assert expected <= seen["requested"] <= expected + seen["workspace"] + activation
    # cuBLAS's: 32 MiB for this thread's handle, 32 for autograd's
    assert 64 << 20 <= seen["workspace"] < (64 << 20) + 4096


def test_gpt_trains() -> None:
    done = run(
        """
        import torch.nn.functional as F
        V, D, L, T, B = 1000, 256, 4, 128, 4
        class Block(torch.nn.Module):
            def __init__(s):
                super().__init__()
                s.n1, s.n2 = torch.nn.LayerNorm(D), torch.nn.LayerNorm(D)
                s.qkv, s.out = torch.nn.Linear(D, 3 * D), torch.nn.Linear(D, D)
                s.up, s.down = torch.nn.Linear(D, 4 * D), torch.nn.Linear(4 * D, D)
            def forward(s, x):
                b, t, d = x.shape
                q, k, v = s.qkv(s.n1(x)).view(b, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
                a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = x + s.out(a.transpose(1, 2).reshape(b, t, d))
                return x + s.down(F.gelu(s.up(s.n2(x))))
        m = torch.nn.Sequential(torch.nn.Embedding(V, D), *[Block() for _ in range(L)],
                                torch.nn.Linear(D, V)).cuda()
        o = torch.optim.AdamW(m.parameters(), 1e-3)
        peaks = []
        for step in range(4):
            x = torch.randint(0, V, (B, T), device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.cross_entropy(m(x).flatten(0, 1), x.flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
            o.step()
            o.zero_grad(set_to_none=True)
            peaks.append(torch.cuda.max_memory_allocated())
            assert 0 <= loss.item() < 1e6
        parameters = sum(p.numel() for p in m.parameters()) * 4
        print(dict(parameters=parameters, peaks=peaks, now=torch.cuda.memory_allocated()))
        """,
    )
    seen = said(done)
    assert seen["peaks"][1] == seen["peaks"][2] == seen["peaks"][3]
    assert seen["peaks"][3] > 4 * seen["parameters"]
    assert 3 * seen["parameters"] <= seen["now"] <= 3 * seen["parameters"] + (66 << 20)


def test_convolutions_with_batch_norm_train() -> None:
    run(
        """
        import torch.nn as nn
        torch.backends.cudnn.benchmark = True
        m = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
                          nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, stride=2, groups=4),
                          nn.BatchNorm2d(64), nn.ConvTranspose2d(64, 8, 2, 2), nn.Flatten(),
                          nn.LazyLinear(10)).cuda()
        o = None
        for format in (torch.contiguous_format, torch.channels_last):
            for dtype in (torch.float32, torch.bfloat16):
                x = torch.randn(4, 3, 32, 32, device="cuda").to(memory_format=format)
                with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
                    y = m(x)
                y.float().sum().backward()
                o = o or torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)
                o.step()
        assert y.shape == (4, 10)
        """
    )


def test_recurrent_networks_train() -> None:
    run(
        """
        import torch.nn as nn
        for cell, more in ((nn.LSTM, dict(bidirectional=True, dropout=0.1)), (nn.GRU, {}),
                           (nn.RNN, {}), (nn.LSTM, dict(proj_size=16))):
            m = cell(24, 32, num_layers=2, batch_first=True, **more).cuda()
            count = sum(p.numel() for p in m.parameters())
            m.flatten_parameters()
            one = {p.untyped_storage().data_ptr() for p in m.parameters()}
            assert len(one) == 1, "the weights are in one buffer"
            assert next(m.parameters()).untyped_storage().nbytes() == count * 4
            y, _ = m(torch.randn(5, 7, 24, device="cuda"))
            y.sum().backward()
            assert all(p.grad.shape == p.shape for p in m.parameters())
        """
    )


def test_linear_algebra_runs() -> None:
    run(
        """
        a = torch.eye(16, device="cuda") * 3
        assert torch.allclose(torch.linalg.inv(a).cpu(), torch.eye(16) / 3)
        q, r = torch.linalg.qr(a)
        u, s, v = torch.linalg.svd(a)
        w, x = torch.linalg.eigh(a)
        l = torch.linalg.cholesky(a)
        assert q.shape == u.shape == x.shape == l.shape == (16, 16)
        f = torch.fft.rfft2(torch.randn(4, 30, 32, device="cuda"))
        assert f.shape == (4, 30, 17)
        """
    )


def test_kernels_compiled_at_run_time() -> None:
    """By nvrtc, as PyTorch does for products of all elements and special functions."""
    run(
        """
        a = torch.full((3, 2), 2.0, device="cuda")
        assert a.prod(1).tolist() == [4.0] * 3
        assert torch.special.bessel_j0(a).shape == a.shape
        assert abs(torch.linalg.det(torch.eye(4, device="cuda") * 2).item() - 16) < 1e-4
        """
    )


def test_sparse_products_run() -> None:
    run(
        """
        i = torch.tensor([[0, 1, 1], [2, 0, 2]])
        sparse = torch.sparse_coo_tensor(i, torch.ones(3), (2, 3)).cuda()
        assert torch.sparse.mm(sparse, torch.ones(3, 2, device="cuda")).shape == (2, 2)
        """
    )


def test_loader_workers_inherit_it() -> None:
    run(
        """
        from torch.utils.data import DataLoader, TensorDataset
        torch.zeros(1, device="cuda")  # the parent has a machine when it forks
        data = TensorDataset(torch.arange(64))
        seen = []
        for (batch,) in DataLoader(data, 8, num_workers=2, pin_memory=True):
            assert batch.is_pinned()
            seen += batch.to("cuda", non_blocking=True).tolist()
        assert seen == list(range(64))
        """
    )


def test_forked_child_leaves_the_parents_memory_alone() -> None:
    run(
        """
        import os
        a = torch.arange(1000, device="cuda")
        child = os.fork()
        if child == 0:
            try: torch.ones(1, device="cuda")
            except RuntimeError: os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert a.sum().item() == 499500
        """
    )


def test_profiler_and_memory_history() -> None:
    run(
        """
        torch.cuda.memory._record_memory_history()
        with torch.profiler.profile(profile_memory=True) as p:
            a = torch.ones(1 << 20, device="cuda")
        shot = torch.cuda.memory._snapshot()
        sizes = [e["size"] for e in shot["device_traces"][0] if e["action"] == "alloc"]
        assert 4 << 20 in sizes, sizes
        assert any(e.key == "aten::ones" for e in p.key_averages())
        """,
        values=False,
    )


def test_collectives_of_one_rank() -> None:
    run(
        """
        import torch.distributed as dist
        dist.init_process_group("nccl", rank=0, world_size=1,
                                store=dist.HashStore(), device_id=torch.device("cuda:0"))
        a = torch.arange(8, device="cuda")
        dist.all_reduce(a)
        assert a.tolist() == list(range(8))
        b = [torch.zeros_like(a)]
        dist.all_gather(b, a)
        assert b[0].tolist() == list(range(8))
        dist.barrier()
        m = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).cuda())
        m(torch.randn(2, 8, device="cuda")).sum().backward()
        dist.destroy_process_group()
        """,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=port(),
    )


def _native(options: tuple[str, ...]) -> tuple[str, ...]:
    return options if "--allocator" in options else ("--allocator", "native", *options)


def _rehearse(folder: Path, script: str, *options: str) -> tuple[int, dict]:  # type: ignore[type-arg]
    path = folder / "program.py"
    path.write_text(script)
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTORCH_")}
    env["PYTHONPATH"] = str(PACKAGE.parent)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torcharena.rehearsal",
            "--json",
            *_native(options),
            str(path),
        ],
        env=env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.stdout.strip(), done.stderr
    return done.returncode, json.loads(done.stdout.strip().splitlines()[-1])


def test_rehearsal_tells_the_peaks(tmp_path: Path) -> None:
    script = "import torch\na = torch.empty(1 << 28, device='cuda')\nprint(a.shape)\n"
    code, seen = _rehearse(tmp_path, script, "--gpu", "16GiB")
    assert code == 0 and seen["oom"] is False and seen["allocator"] == "native"
    assert (
        seen["peak_requested"]
        == seen["peak_allocated"]
        == seen["peak_reserved"]
        == 1 << 30
    )
    assert seen["allocations"] == 1 and seen["seconds"] > 0
    assert seen["script"].endswith("program.py")


def test_rehearsal_tells_that_it_does_not_fit(tmp_path: Path) -> None:
    script = "import torch\nk = [torch.empty(1 << 28, device='cuda') for _ in range(9)]\n"
    code, seen = _rehearse(tmp_path, script, "--gpu", "8GiB", "--allocator", "expandable")
    assert code == 3 and seen["oom"] is True and seen["peak_requested"] == 7 << 30
    code, seen = _rehearse(tmp_path, script, "--gpu", "11GiB")
    assert code == 0 and seen["oom"] is False and seen["peak_requested"] == 9 << 30


def test_rehearsal_of_a_script_that_fails(tmp_path: Path) -> None:
    code, seen = _rehearse(tmp_path, "import sys\nsys.exit(5)\n")
    assert code == 1 and seen["exit_code"] == 5 and seen["oom"] is False


def test_environment_refuses_an_unknown_allocator() -> None:
    from torcharena import rehearsal

    with pytest.raises(ValueError, match="mallocator"):
        rehearsal.environment(allocator="mallocator")
    assert environment()["TORCHARENA_SIM_GPU"] == "16GiB"
