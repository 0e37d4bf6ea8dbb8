"""Sizes that NVIDIA's libraries ask for on a simulated GPU: workspaces and RNN buffers."""

from __future__ import annotations

from textwrap import dedent

import pytest
import simulated
from simulated import run

pytestmark = pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing())

TOLD = """
def told():
    ask = ctypes.CDLL(None).ta_simcuda_workspaces
    ask.restype = ctypes.c_char_p
    counts = (ctypes.c_uint64 * 6)()
    why = ask(counts).decode()
    (told, largest), measured, stated = zip(counts[::2], counts[1::2])
    return [told, stated[0], largest, stated[1]], why

def allocations(f):
    torch.cuda.memory._record_memory_history(max_entries=10000, context=None)
    f()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    return [e["size"] for e in trace if e["action"] == "alloc"]
"""

# Takes part only where libcudnn takes a description of a device: from 9.8 on.
OLD = """
if torch.backends.cudnn.version() < 90800:
    raise SystemExit(0)
"""


def test_convolutions_ask_the_real_library() -> None:
    run(
        TOLD
        + OLD
        + dedent("""
        F = torch.nn.functional
        x = torch.randn(64, 64, 72, 72, device="cuda", dtype=torch.bfloat16)
        x.requires_grad_()
        # one by one: matrix products, as on an H200, whose gradient sums a part an image
        w = torch.randn(256, 64, 1, 1, device="cuda", dtype=torch.bfloat16)
        y = F.conv2d(x, w)
        sizes = allocations(lambda: F.conv2d(x, w))
        assert max(s for s in sizes if s != y.nbytes) <= 512, sizes
        w.requires_grad_()
        y = F.conv2d(x, w)
        y.backward(y.detach())
        counts, why = told()
        assert why == "" and counts[1] == 0, (counts, why)
        assert counts[0] == 3 and counts[2] == 64 * 64 * 256 * 4 + 272, counts
        # three by three: what an H200 was seen to ask for, for 64 channels at 72 x 72
        w = torch.randn(64, 64, 3, 3, device="cuda", dtype=torch.bfloat16)
        sizes = allocations(lambda: F.conv2d(x, w, padding=1))
        assert 84_000_000 < max(sizes) < 88_000_000, sizes
        """),
        gpu="h200",
        values=False,
    )


def test_gradients_of_weights_take_what_an_h200_takes() -> None:
    """The parts that work is divided into hang on the card's GPCs: 85,303,507 bytes where the
    card is described alone, as by 9.10, 9.19 and 9.24; an H200 was seen to take the figure
    below. A card with fewer SMs divides into fewer parts."""
    code = (
        TOLD
        + OLD
        + """
x = torch.empty(64, 64, 72, 72, device="cuda", dtype=torch.bfloat16)
w = torch.empty(64, 64, 3, 3, device="cuda", dtype=torch.bfloat16, requires_grad=True)
y = torch.nn.functional.conv2d(x, w, padding=1)
sizes = allocations(lambda: y.backward(y.detach()))
"""
    )
    run(
        code + "assert max(sizes) == 86_925_991, sizes\n",
        gpu="h200",
        values=False,
    )
    run(
        code + "assert 85_303_507 < max(sizes) < 86_925_991, sizes\n",
        gpu="h20",
        values=False,
    )


def test_benchmark_tries_many_plans() -> None:
    run(
        TOLD
        + OLD
        + dedent("""
        x = torch.randn(16, 128, 64, 64, device="cuda", dtype=torch.bfloat16)
        c = torch.nn.Conv2d(128, 256, 3, padding=1, device="cuda", dtype=torch.bfloat16)
        plain = allocations(lambda: c(x[:8]))  # another size: plans are kept
        torch.backends.cudnn.benchmark = True
        first, later = allocations(lambda: c(x)), allocations(lambda: c(x))
        assert max(first) >= max(plain), (first, plain)
        assert len(later) <= len(plain), (later, plain)
        assert told()[0][0] > 20, "it tries many plans"
        """),
        values=False,
    )


def test_attention_asks_the_real_library() -> None:
    run(
        TOLD
        + OLD
        + dedent("""
        from torch.nn.attention import sdpa_kernel, SDPBackend
        q = torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16)
        q.requires_grad_()
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            y = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        y.sum().backward()
        counts, why = told()
        assert counts[0] == 2 and counts[1] == 0, (counts, why)
        """),
        gpu="h100",
        values=False,
    )


def test_a_guess_says_so() -> None:
    run(
        TOLD
        + dedent("""
        x = torch.randn(2, 8, 16, 16, device="cuda")
        c = torch.nn.Conv2d(8, 8, 3, padding=1).cuda()
        c(x).sum().backward()
        counts, why = told()
        assert counts[0] == 0 and counts[1] >= 2 and counts[3] == 0, counts
        assert "guess" in why, why
        """),
        values=False,
        TORCHARENA_SIM_CUDNN="guess",
    )


def test_recurrent_sizes_are_cudnns() -> None:
    """Figures of cuDNN 9.19: weights, workspace, reserve of 64 steps of 32."""
    run(
        """
        L = ctypes.CDLL(None)
        def ask(cell, both, width, projected, hidden=512, layers=2, dropout=0.0):
            d, x, drop = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
            L.cudnnCreateRNNDescriptor(ctypes.byref(d))
            L.cudnnCreateDropoutDescriptor(ctypes.byref(drop))
            L.cudnnRestoreDropoutDescriptor(
                drop, None, ctypes.c_float(dropout), None, ctypes.c_size_t(0),
                ctypes.c_ulonglong(0)
            )
            assert L.cudnnSetRNNDescriptor_v8(
                d, 0, cell, 2, both, 0, width, 0, 1, 512, hidden, projected, layers, drop, 0
            ) == 0
            L.cudnnCreateRNNDataDescriptor(ctypes.byref(x))
            L.cudnnSetRNNDataDescriptor(x, width, 0, 64, 32, 512, None, None)
            sizes = [ctypes.c_size_t() for _ in range(3)]
            L.cudnnGetRNNWeightSpaceSize(None, d, ctypes.byref(sizes[0]))
            L.cudnnGetRNNTempSpaceSizes(
                None, d, 1, x, ctypes.byref(sizes[1]), ctypes.byref(sizes[2])
            )
            return tuple(s.value for s in sizes)
        half, single = 2, 0
        assert ask(2, 0, half, 512) == (8404992, 33947904, 23068928)
        assert ask(2, 1, half, 512) == (21004288, 80740608, 46137600)
        assert ask(2, 0, half, 256) == (5783552, 33423616, 29360384)
        assert ask(2, 0, single, 512) == (16809984, 51118336, 46137600)
        assert ask(2, 0, half, 512, layers=4) == (16809984, 59506944, 48234752)
        assert ask(2, 0, half, 1024, hidden=1024) == (29392896, 63701248, 46137600)
        assert ask(3, 0, half, 512) == (6303744, 29556992, 27263232)
        assert ask(1, 0, half, 512) == (2101248, 21561600, 6291712)
        # with dropout: masks between layers, and what was dropped from
        drop = lambda *a, **k: ask(*a, dropout=0.2, **k)[1:]
        assert drop(2, 0, half, 512) == (36045056, 23200000)
        assert drop(2, 1, half, 512) == (80740608, 46661888)
        assert drop(2, 0, half, 256) == (35520768, 29425920)
        assert drop(3, 0, half, 500, hidden=500, layers=3) == (42682080, 41216256)
        assert drop(2, 1, single, 256, layers=3)[1] == 180879616
        assert drop(2, 0, single, 512, layers=1) == (38142208, 20971776)
        """,
        values=False,
    )
