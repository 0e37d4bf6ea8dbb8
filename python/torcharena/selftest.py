"""`torcharena.test`: whether an installed package works on this machine.

Each check is a program in a process of its own, so nothing of the caller's is touched, and the
caller may hold CUDA or not."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["test", "unable"]

_TIMEOUT = 300.0  # seconds for one check

_LIBRARY = """
import torcharena
from torcharena import _core, settings, sizes
assert _core.library_path().endswith("_core.abi3.so"), _core.library_path()
assert sizes.parse("1.5GiB").bytes == 3 << 29
assert settings.from_environment({"TORCHARENA_LIMIT": "1GiB"})["limit"].bytes == 1 << 30
missing = [name for name in torcharena.__all__ if not hasattr(torcharena, name)]
assert not missing or not _torch(), missing
print(f"version {torcharena.__version__}, {len(_core.hooks())} hooks")
"""

# Blocks of random sizes, freed in random order, within a cap of 1.05 times what lives at most;
# every invariant of the allocator is checked as it goes.
_REPLAY = """
import random
from torcharena import _core
random.seed(7)
lines, live, held, most = [], {}, 0, 0
for n in range(3000):
    size = random.choice((512, 4096, 70_000, 1 << 20, 5 << 20, 33 << 20))
    size = random.randrange(size // 2, size)
    while live and held + size > 900 << 20:
        one = random.choice(list(live))
        held -= live.pop(one)
        lines.append(f"f {one}")
    live[n] = size
    held += size
    most = max(most, held)
    lines.append(f"a {n} {size} 0")
text = "\\n".join(lines) + "\\n"
found = _core.replay(text.encode(), limit_ratio=1.05, check=True)
ratio = found["peak_reserved"] / found["peak_requested"]
assert 1.0 <= ratio <= 1.05, ratio
print(f"{len(lines)} requests within 1.05 of their peak, {ratio:.3f} reserved")
"""

# A model that trains, with a cap, an error that is caught, and counts that end at zero.
_TRAINING = """
import gc, torch, torcharena
torcharena.enable(limit="512MiB")
base = torch.cuda.memory_allocated()
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(),
                            torch.nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    x = torch.randn(64, 256, device="cuda")
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    last = loss.item()
assert last == last, "the loss is not a number"
try:
    torch.empty(1 << 30, device="cuda")
    raise SystemExit("1 GiB was had under a cap of 512 MiB")
except torch.OutOfMemoryError as error:
    assert "512.00 MiB" in str(error), error
peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
assert 0 < peak <= reserved <= 512 << 20, (peak, reserved)
print("torch", torch.__version__, "on", torch.cuda.get_device_name(0) + ":",
      f"trained under a cap, peak {peak / 2**20:.1f} MiB, reserved {reserved / 2**20:.1f}")
del model, optimizer, loss, x
gc.collect()
torch.cuda.synchronize()
torch.cuda.empty_cache()
from torcharena import _core
assert _core.check() is None, _core.check()
"""

_TORCH = """
def _torch():
    import importlib.util
    return importlib.util.find_spec("torch") is not None
"""


@dataclass(frozen=True)
class _Check:
    name: str
    program: str
    where: str = ""  # simulated, gpu; "": needs neither


_CHECKS = (
    _Check("the C library and the package", _LIBRARY),
    _Check("the allocator, on a simulated driver", _REPLAY),
    _Check("PyTorch on the simulated GPU", _TRAINING, "simulated"),
    _Check("PyTorch on this machine's GPU", _TRAINING, "gpu"),
)


def unable() -> str:
    """Why nothing can be rehearsed here; empty where it can."""
    from .rehearsal import launch

    try:
        launch.library()
    except FileNotFoundError as error:
        return str(error)
    try:
        from torch.version import cuda
    except ImportError:
        return "torch is not installed"
    return "" if cuda else "this torch is a build without CUDA: pip install torch"


def _unable(where: str) -> str:
    """Why such a check cannot run here; empty where it can."""
    if where == "simulated":
        return unable()
    if where == "gpu":
        from .installing import probed
        from .loading import core

        facts = probed(core())
        if facts["reason"]:
            return f"no GPU: {facts['reason']}"
        try:
            import torch
        except ImportError:
            return "torch is not installed"
        return "" if torch.version.cuda else "this torch is a build without CUDA"
    return ""


def _environment(where: str, folder: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("TORCHARENA_")}
    if where == "simulated":
        from .rehearsal import launch

        env = launch.environment("2GiB", base=env)
        env["TORCHARENA_SIM_DIR"] = folder
    # Wherever this package is imported from; not the caller's folder.
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    paths = [package, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    env.pop("PYTHONOPTIMIZE", None)  # which takes the checks out
    return env | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


def _run(check: _Check) -> tuple[bool, str]:
    with tempfile.TemporaryDirectory(prefix="torcharena-") as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-c", _TORCH + check.program],
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
                env=_environment(check.where, folder),
                cwd=folder,
            )
        except subprocess.TimeoutExpired:
            return False, f"not done after {_TIMEOUT:.0f} s"
    if done.returncode:
        return False, done.stderr.strip() or f"exit code {done.returncode}"
    return True, done.stdout.strip()


def _lines(verbose: bool) -> Iterator[bool]:
    for check in _CHECKS:
        reason = _unable(check.where)
        begin = time.monotonic()
        good, said = (True, reason) if reason else _run(check)
        word = "skipped" if reason else "ok" if good else "FAILED"
        took = f" ({time.monotonic() - begin:.1f} s)" if not reason else ""
        if verbose or not good:
            print(f"{word:8} {check.name}: {said}{took}", flush=True)
        yield good


def test(verbose: bool = True) -> bool:
    """Checks that this installation works, and prints what was checked, one line each: the C
    library, the allocator under a simulated driver, PyTorch on the simulated GPU, and
    PyTorch on a real one. What cannot run here is a line that says why.

    verbose: False prints failures only. Returns whether nothing failed. Takes seconds; each
    check is a process of its own, so it can be called at any time."""
    return all(list(_lines(verbose)))


test.__test__ = False  # type: ignore[attr-defined]  # no test of pytest's
