"""What test_guard.py runs on the simulated GPU, or on a real one: python guard_cases.py NAMES.

The driver is called as a kernel with a fault would touch memory."""

from __future__ import annotations

import ctypes
import os
import sys
import warnings

import torch
import torcharena
from torcharena import _core

driver = ctypes.CDLL("libcuda.so.1")
driver.cuMemsetD8_v2.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t]
driver.cuMemcpyDtoH_v2.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t]


def fill(address: int, size: int) -> int:
    return int(driver.cuMemsetD8_v2(address, 0x11, size))


def message() -> str:
    """Of the error that the next allocation raises; "": it raises none."""
    try:
        torch.empty(1, device="cuda")
    except RuntimeError as error:
        return str(error)
    return ""


def train() -> list[float]:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(33, 65), torch.nn.ReLU(), torch.nn.Linear(65, 7)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    side = torch.cuda.Stream()
    losses = []
    for _ in range(4):
        x = torch.randn(5, 33, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 2
            x.record_stream(side)
        torch.cuda.current_stream().wait_stream(side)
        y.record_stream(torch.cuda.current_stream())
        loss = model(y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def overrun() -> None:
    def writes_too_far() -> None:
        x = torch.empty(250, device="cuda")
        assert fill(x.data_ptr(), 1003) == 0

    writes_too_far()
    said = message()
    assert "3 bytes outside of a block were written" in said, said
    assert "right behind its end (byte 1000, 0x11 in place of 0xa5)" in said, said
    assert "1000 bytes at 0x" in said, said
    assert "guard_cases.py:" in said and "writes_too_far" in said, said
    assert message() == ""
    x = torch.empty(100, device="cuda", dtype=torch.uint8)
    fill(x.data_ptr() - 2, 2)
    torch.cuda.empty_cache()  # looks at what lives
    assert "1 byte before its start" in message()


def freed() -> None:
    x = torch.empty(1000, device="cuda")
    x.fill_(1)
    address, before = x.data_ptr(), torch.cuda.memory_reserved()
    del x
    assert torch.cuda.memory_reserved() == before - (2 << 20)
    assert fill(address, 4) != 0  # as a kernel's illegal access


def behind() -> None:
    x = torch.empty(512, device="cuda", dtype=torch.uint8)
    assert fill(x.data_ptr(), 512) == 0
    assert fill(x.data_ptr(), 513) != 0


def twice() -> None:
    at = torch.cuda.caching_allocator_alloc(700)
    torch.cuda.caching_allocator_delete(at)
    ctypes.CDLL(_core.library_path()).ta_torch_free(
        ctypes.c_void_p(at), ctypes.c_size_t(700), 0, None
    )
    said = message()
    assert "where no block lives; there was one of 700 bytes" in said, said


def sound() -> None:
    losses = train()
    assert all(loss == loss for loss in losses)
    live = torch.cuda.memory_allocated()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == live
    assert torch.cuda.memory_reserved() % (2 << 20) == 0
    assert _core.check() is None
    assert message() == ""


def at_exit() -> None:
    x = torch.empty(64, device="cuda")
    fill(x.data_ptr(), 260)
    at_exit.kept = x  # type: ignore[attr-defined]


_KERNEL = """
extern "C" __global__ void reaches(float *at, int index) { at[index] = 1.0f; }
"""


def kernel() -> None:
    """On a real GPU: a kernel that writes behind a block fails."""
    reaches = torch.cuda._compile_kernel(_KERNEL, "reaches")
    x = torch.zeros(128, device="cuda")
    reaches(args=[x, 127])
    torch.cuda.synchronize()
    assert x[127].item() == 1.0
    reaches(args=[x, 128])
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        assert "illegal memory access" in str(error), error
        print("caught")
        sys.stdout.flush()
        os._exit(0)  # the context is lost
    raise SystemExit("nobody noticed")


if __name__ == "__main__":
    warnings.simplefilter("always")
    torcharena.enable()
    torch.ones(1, device="cuda")
    for name in sys.argv[1:]:
        globals()[name]()
