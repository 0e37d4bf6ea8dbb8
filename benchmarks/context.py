"""What a CUDA context and the libraries' code take of a GPU, by NVML.

    python -m benchmarks.context [--device 0] [--out context.json]

The GPU must be idle. Two processes: one makes a context by the driver alone, the other does
what a training program does, step by step: a context by PyTorch, first kernels, random
numbers, cuBLAS, cuBLASLt, cuDNN, attention, cuSOLVER, cuFFT, a training step. After each the
GPU's used bytes are read, less those before the process and less what PyTorch's allocator
holds: the rest is the context's and the code of kernels loaded so far (they are loaded as they
are first used). A GPU that is not idle shows in ``noise``, the used bytes' change from
before the first process to after the last."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MIB = float(1 << 20)
MARK = "CONTEXT "


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class Nvml:
    """The management library's view of one device, which makes no context. Raises OSError
    where the library or the device is missing."""

    def __init__(self, device: int) -> None:
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self.device = ctypes.c_void_p()
        self.call("nvmlInit_v2")
        self.call("nvmlDeviceGetHandleByIndex_v2", device, ctypes.byref(self.device))

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            raise OSError(f"{name} failed with code {code}")

    def used(self) -> int:
        """Bytes in use on the device, by all processes and the driver."""
        found = _Memory()
        self.call("nvmlDeviceGetMemoryInfo", self.device, ctypes.byref(found))
        return int(found.used)

    def driver(self) -> str:
        """The driver's version."""
        text = ctypes.create_string_buffer(96)
        self.call("nvmlSystemGetDriverVersion", text, 96)
        return text.value.decode()


# --- the two processes -------------------------------------------------------------------


def by_the_driver(device: int, before: int) -> list[dict[str, Any]]:
    """A primary context of the driver's, nothing else."""
    nvml = Nvml(device)
    cuda = ctypes.CDLL("libcuda.so.1")
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    for code in (
        cuda.cuInit(0),
        cuda.cuDeviceGet(ctypes.byref(handle), 0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle),
    ):
        if code:
            raise SystemExit(f"the driver answers {code}")
    return [{"step": "driver's context alone", "bytes": nvml.used() - before}]


def by_torch(device: int, before: int) -> list[dict[str, Any]]:
    """PyTorch's context, then library by library."""
    nvml = Nvml(device)
    import torch
    import torch.nn.functional as F

    rows: list[dict[str, Any]] = []

    def step(name: str, do: Callable[[], Any]) -> None:
        try:
            do()
            torch.cuda.synchronize()
        except (RuntimeError, ImportError) as error:
            rows.append({"step": name, "error": str(error).splitlines()[0][:200]})
            return
        stats = torch.cuda.memory_stats()
        reserved = int(stats.get("reserved_bytes.all.current", 0))
        used = nvml.used() - before
        rows.append({"step": name, "bytes": used - reserved, "reserved": reserved})

    def on(*shape: int, dtype: Any = torch.float32, gradient: bool = False) -> Any:
        return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=gradient)

    def train() -> None:
        model = torch.nn.Sequential(
            torch.nn.Embedding(1000, 256),
            torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True),
            torch.nn.Linear(256, 1000),
        ).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(2):
            x = torch.randint(0, 1000, (8, 64), device="cuda")
            with torch.autocast("cuda", torch.float16):
                loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    half = torch.bfloat16
    step("torch's context", torch.cuda.init)
    step("first allocation", lambda: torch.empty(1 << 20, device="cuda"))
    step("first kernel", lambda: torch.zeros(1 << 20, device="cuda"))
    step("random numbers", lambda: on(1 << 20))
    step("reductions, softmax", lambda: on(64, 1000).softmax(-1).sum().item())
    step("cuBLAS, float", lambda: on(512, 512) @ on(512, 512))
    step("cuBLAS, bfloat16", lambda: on(512, 512, dtype=half) @ on(512, 512, dtype=half))
    step(
        "cuBLASLt",
        lambda: F.linear(
            on(512, 512, dtype=half), on(512, 512, dtype=half), on(512, dtype=half)
        ),
    )
    step(
        "attention, both ways",
        lambda: (
            F.scaled_dot_product_attention(
                *(on(2, 4, 256, 64, dtype=half, gradient=True) for _ in range(3)),
                is_causal=True,
            )
            .sum()
            .backward()
        ),
    )
    step(
        "cuDNN convolution",
        lambda: F.conv2d(on(8, 64, 56, 56), on(64, 64, 3, 3), padding=1),
    )
    step(
        "cuDNN convolution, bfloat16, both ways",
        lambda: (
            F.conv2d(
                on(8, 64, 56, 56, dtype=half, gradient=True),
                on(64, 64, 3, 3, dtype=half, gradient=True),
                padding=1,
            )
            .sum()
            .backward()
        ),
    )
    step("cuDNN LSTM", lambda: torch.nn.LSTM(64, 64).cuda()(on(16, 8, 64)))
    step("cuFFT", lambda: torch.fft.rfft(on(64, 1024)))
    step("cuSOLVER", lambda: torch.linalg.cholesky_ex(torch.eye(512, device="cuda") * 2))
    step("sort, top-k", lambda: on(1 << 20).sort()[0].topk(10))
    step("training steps", train)
    return rows


PROCESSES = {"driver": by_the_driver, "torch": by_torch}


# --- the command -------------------------------------------------------------------------


def run(kind: str, device: int, before: int) -> list[dict[str, Any]]:
    """One process's rows; one with ``error`` where it had none."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key
        not in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "TORCHARENA_ENABLE")
    }
    kept["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    kept.setdefault("CUDA_VISIBLE_DEVICES", str(device))
    command = [sys.executable, "-m", "benchmarks.context", "--device", str(device)]
    done = subprocess.run(
        [*command, "--child", kind, str(before)],
        env=kept,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            return list(json.loads(line[len(MARK) :]))
    last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
    return [{"step": kind, "error": last[0] if last else f"code {done.returncode}"}]


def settled(nvml: Nvml, most: float = 10.0) -> int:
    """The used bytes, once they have not changed for a while: an ended process's memory
    comes back a little later. At most ``most`` seconds."""
    end = time.monotonic() + most
    last, same = nvml.used(), 0
    while same < 5 and time.monotonic() < end:
        time.sleep(0.2)
        now = nvml.used()
        last, same = now, same + 1 if now == last else 0
    return last


def table(rows: list[dict[str, Any]]) -> str:
    """MiB, and by how many each step moved them."""
    lines, last = [], 0
    for row in rows:
        if "error" in row:
            lines.append(f"{row['step']:<40} failed: {row['error'][:80]}")
            continue
        size = row["bytes"]
        lines.append(f"{row['step']:<40} {size / MIB:8.1f} {(size - last) / MIB:+8.1f}")
        last = 0 if row["step"].startswith("driver") else size
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 where a step failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.context",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        kind, before = options.child
        print(MARK + json.dumps(PROCESSES[kind](options.device, int(before))), flush=True)
        return 0
    nvml = Nvml(options.device)
    first = settled(nvml)
    rows: list[dict[str, Any]] = []
    for kind in PROCESSES:
        rows += run(kind, options.device, settled(nvml))
    found = {
        "driver": nvml.driver(),
        "used_before": first,
        "noise": settled(nvml) - first,
        "simulated": "TORCHARENA_SIM_DIR" in os.environ,
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"driver {found['driver']}, used before {first / MIB:.1f} MiB, MiB:")
    print(table(rows))
    return 1 if any("error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
