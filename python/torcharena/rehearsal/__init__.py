"""Runs a script with real PyTorch on a simulated GPU, and tells its peaks.

The script is run by a child process that preloads ``lib/libcuda.so.1``, which stands for
CUDA and its libraries: every allocation happens, no kernel runs (see ``values`` for which
values are true). ``main`` is what ``torcharena rehearse`` calls.

    torcharena rehearse [--gpu h100] [--gpus 1] [--allocator native] [--json] SCRIPT [ARGS...]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["main", "environment", "library", "machine", "rehearse_script"]

ALLOCATORS = ("native", "expandable", "arena")
FITS, SCRIPT_FAILED, DOES_NOT_FIT, CANNOT_TELL = 0, 1, 3, 4

_RESULT = "TORCHARENA_REHEARSAL_RESULT"
_ALLOCATOR = "TORCHARENA_REHEARSAL_ALLOCATOR"
_VALUES = "TORCHARENA_REHEARSAL_VALUES"


def library() -> Path:
    """The preloaded library. Raises FileNotFoundError where it was not built."""
    path = Path(__file__).parent.parent / "lib" / "libcuda.so.1"
    if not path.exists():
        raise FileNotFoundError(f"{path} was not built: install torcharena from a wheel")
    return path


def environment(
    gpu: str = "h200",
    devices: int = 1,
    allocator: str = "native",
    base: dict[str, str] | None = None,
) -> dict[str, str]:
    """The environment in which a Python process finds simulated GPUs.

    ``gpu``: a card of the catalogue or a size such as ``16GiB``. ``devices``: how many.
    ``base``: the environment to begin with, this process's own by default.
    """
    env = dict(os.environ if base is None else base)
    path = library()
    earlier = env.get("LD_PRELOAD", "")
    env["LD_PRELOAD"] = f"{path}:{earlier}" if earlier else str(path)
    folder = str(path.parent)
    earlier = env.get("LD_LIBRARY_PATH", "")
    env["LD_LIBRARY_PATH"] = f"{folder}:{earlier}" if earlier else folder
    env["TRITON_LIBCUDA_PATH"] = folder
    env["TORCHARENA_SIM_GPU"] = gpu
    env["TORCHARENA_SIM_DEVICES"] = str(devices)
    env["TORCHARENA_REHEARSAL"] = "1"
    env.pop("CUDA_VISIBLE_DEVICES", None)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        env.pop(name, None)
    if allocator == "expandable":
        env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    elif allocator not in ALLOCATORS:
        raise ValueError(f"allocator {allocator!r} is none of {', '.join(ALLOCATORS)}")
    return env


@contextlib.contextmanager
def machine(
    gpu: str = "h200", base: dict[str, str] | None = None, devices: int = 1
) -> Iterator[dict[str, str]]:
    """The environment of ``environment`` with a machine's state of its own, gone at the end:
    several processes started in it share the same simulated GPUs."""
    with tempfile.TemporaryDirectory(prefix="torcharena-") as folder:
        env = environment(gpu, devices, base=base)
        env["TORCHARENA_SIM_DIR"] = folder
        yield env


# --- the child -----------------------------------------------------------------------------
def _peaks() -> dict[str, int]:
    """Peak bytes and allocations: of the device that requested most."""
    import torch

    best = dict(peak_requested=0, peak_allocated=0, peak_reserved=0, allocations=0)
    if not torch.cuda.is_initialized():
        return best
    for device in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats(device)
        one = dict(
            peak_requested=stats.get("requested_bytes.all.peak", 0),
            peak_allocated=stats.get("allocated_bytes.all.peak", 0),
            peak_reserved=stats.get("reserved_bytes.all.peak", 0),
            allocations=stats.get("allocation.all.allocated", 0),
        )
        if one["peak_requested"] > best["peak_requested"]:
            best = one
    return best


def _inside(arguments: list[str]) -> int:
    """Runs the script in this process, which has the library preloaded."""
    script = arguments[0]
    result: dict[str, Any] = dict(oom=False, failed=False, exit_code=0)
    started = time.monotonic()
    sys.argv = arguments
    sys.path[0] = str(Path(script).resolve().parent)
    import torch

    if os.environ.get(_ALLOCATOR) == "arena":
        import torcharena

        torcharena.enable()
    mode = None
    if os.environ.get(_VALUES, "1") != "0":
        from .values import Values

        mode = Values(seed=int(os.environ.get("TORCHARENA_SIM_SEED", "0")))
        mode.__enter__()
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        code = end.code
        result["exit_code"] = code if isinstance(code, int) else 0 if code is None else 1
        result["failed"] = result["exit_code"] != 0
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except torch.OutOfMemoryError as error:
        result["oom"] = True
        result["error"] = str(error)
        traceback.print_exc()
    except BaseException as error:
        result["failed"] = True
        result["exit_code"] = 1
        result["error"] = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    finally:
        if mode is not None:
            mode.__exit__(None, None, None)
            result["guessed"] = dict(mode.guessed.most_common(20))
    result.update(_peaks())
    result["seconds"] = round(time.monotonic() - started, 2)
    target = os.environ.get(_RESULT)
    if target:
        Path(target).write_text(json.dumps(result))
    return DOES_NOT_FIT if result["oom"] else result["exit_code"]


# --- the parent ------------------------------------------------------------------------------
def rehearse_script(
    arguments: list[str],
    *,
    gpu: str = "h200",
    devices: int = 1,
    allocator: str = "native",
    values: bool = True,
    timeout: float | None = None,
    output: Any = None,
) -> dict[str, Any]:
    """Rehearses ``arguments`` (a script and its own arguments) and returns what was seen.

    The result has ``script, allocator, peak_requested, peak_allocated, peak_reserved`` (bytes,
    of the device that requested most), ``allocations``, ``oom``, ``seconds``, and
    ``exit_code`` of the script; ``timed_out`` where ``timeout`` seconds ran out. ``output``:
    where the script's standard output goes.
    """
    env = environment(gpu, devices, allocator)
    env[_ALLOCATOR] = allocator
    env[_VALUES] = "1" if values else "0"
    package = str(Path(__file__).resolve().parents[2])
    earlier = env.get("PYTHONPATH", "")
    env["PYTHONPATH"] = f"{package}:{earlier}" if earlier else package
    with tempfile.TemporaryDirectory(prefix="torcharena-") as folder:
        target = Path(folder) / "result.json"
        env[_RESULT] = str(target)
        command = [sys.executable, "-m", "torcharena.rehearsal", "--inside", *arguments]
        started = time.monotonic()
        timed_out = False
        try:
            code = subprocess.run(
                command, env=env, stdout=output, timeout=timeout, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code, timed_out = CANNOT_TELL, True
        found: dict[str, Any] = {}
        if target.exists():
            found = json.loads(target.read_text())
    result: dict[str, Any] = dict(
        script=arguments[0],
        allocator=allocator,
        peak_requested=0,
        peak_allocated=0,
        peak_reserved=0,
        allocations=0,
        oom=False,
        seconds=round(time.monotonic() - started, 2),
        exit_code=code,
    )
    result.update(found)
    if timed_out:
        result["timed_out"] = True
    return result


def _size(number: int) -> str:
    return f"{number / (1 << 30):.3f} GiB ({number:,} bytes)"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torcharena rehearse",
        description="Runs a script with real PyTorch on a simulated GPU, and tells its peaks.",
    )
    parser.add_argument("--gpu", default="h200", help="a card, or a size such as 16GiB")
    parser.add_argument("--gpus", type=int, default=1, help="how many (1)")
    parser.add_argument("--allocator", choices=ALLOCATORS, default="native")
    parser.add_argument("--no-values", action="store_true", help="compute no values at all")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="give up after")
    parser.add_argument("--json", action="store_true", help="one object, on the last line")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def main(argv: list[str] | None = None) -> int:
    """The command. Returns 0 where the script fits, 3 where it runs out of memory, 1 where
    it failed otherwise, 4 where the time ran out first."""
    options = _parser().parse_args(argv)
    try:
        result = rehearse_script(
            [options.script, *options.arguments],
            gpu=options.gpu,
            devices=options.gpus,
            allocator=options.allocator,
            values=not options.no_values,
            timeout=options.timeout,
        )
    except FileNotFoundError as error:
        print(f"torcharena: {error}", file=sys.stderr)
        return SCRIPT_FAILED
    sys.stdout.flush()
    if options.json:
        print(json.dumps(result), flush=True)
    else:
        verdict = "out of memory" if result["oom"] else "fits"
        if result.get("timed_out"):
            verdict = "ran out of time"
        elif not result["oom"] and result["exit_code"] != 0:
            verdict = f"failed with exit code {result['exit_code']}"
        print(f"{result['script']} on a simulated {options.gpu}, {options.allocator}: {verdict}")
        for key in ("requested", "allocated", "reserved"):
            print(f"  peak {key:10} {_size(result[f'peak_{key}'])}")
        print(f"  {result['allocations']:,} allocations, {result['seconds']} s")
    if result.get("timed_out"):
        return CANNOT_TELL
    if result["oom"]:
        return DOES_NOT_FIT
    return FITS if result["exit_code"] == 0 else SCRIPT_FAILED


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] == "--inside":
        sys.exit(_inside(sys.argv[2:]))
    sys.exit(main())
