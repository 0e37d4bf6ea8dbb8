"""Starts a rehearsed program, and gathers what its processes left.

`environment` is all that a Python process needs to find simulated GPUs; `run` adds the
watcher of ``child`` to it, waits, and returns a `Run`."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import conf
from . import alone
from .cards import Card
from .child import JOB, STOP, Job

__all__ = [
    "ALLOCATORS",
    "Run",
    "cache_environment",
    "command_of",
    "environment",
    "is_launcher",
    "library",
    "machine",
    "run",
    "watched_environment",
]

ALLOCATORS = ("arena", "expandable", "native")
_PEAKS = ("peak_requested", "peak_allocated", "peak_reserved")
_PATIENCE = 15.0  # seconds for a process to end itself at the deadline
# Launchers that are modules too, for an environment that has no script of theirs.
_MODULES = {
    "torchrun": "torch.distributed.run",
    "accelerate": "accelerate.commands.accelerate_cli",
}
_LAUNCHERS = {*_MODULES, "deepspeed", "horovodrun", "mpiexec", "mpirun", "srun"}
_LAUNCHERS |= {"accelerate.commands.launch", "torch.distributed.launch"}
_OWN_SETTINGS = (
    "TORCHARENA_ENABLE",
    "TORCHARENA_LIMIT",
    "TORCHARENA_RECORD",
    "TORCHARENA_SPILL",
    "TORCHARENA_STRICT",
)


def library() -> Path:
    """The preloaded library. Raises FileNotFoundError where it was not built."""
    path = Path(__file__).resolve().parents[1] / "lib" / "libcuda.so.1"
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
    ``base``: the environment to begin with, this process's own by default. Of torch's
    allocator settings only whether segments expand is decided here. Raises ValueError for
    an allocator that is none, FileNotFoundError where the library was not built."""
    if allocator not in ALLOCATORS:
        raise ValueError(f"allocator {allocator!r} is none of {', '.join(ALLOCATORS)}")
    env = dict(os.environ if base is None else base)
    path = library()
    folder = str(path.parent)
    _put_first(env, "LD_PRELOAD", str(path))
    _put_first(env, "LD_LIBRARY_PATH", folder)
    env["TRITON_LIBCUDA_PATH"] = folder
    env["TORCHARENA_SIM_GPU"] = gpu
    env["TORCHARENA_SIM_DEVICES"] = str(devices)
    env["TORCHARENA_REHEARSAL"] = "1"
    # It numbers the machine's real GPUs; what the program sets itself counts.
    env.pop("CUDA_VISIBLE_DEVICES", None)
    conf.settle(env, allocator == "expandable")
    return env


def _put_first(env: dict[str, str], name: str, value: str) -> None:
    parts = [p for p in env.get(name, "").split(":") if p and p != value]
    env[name] = ":".join([value, *parts])


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


def command_of(program: str, module: bool = False) -> list[str]:
    """The command line's beginning for a script, a module, or a launcher. Raises
    FileNotFoundError, saying which."""
    if module:
        return [sys.executable, "-m", program]
    if os.path.isfile(program) and not (
        os.access(program, os.X_OK) and _is_binary(program)
    ):
        return [sys.executable, program]
    beside = Path(sys.executable).parent / program
    if os.sep not in program and beside.is_file():
        return [str(beside)]
    # Before the one on PATH, which may be of another environment than this Python's.
    if program in _MODULES and importlib.util.find_spec(_MODULES[program].split(".")[0]):
        return [sys.executable, "-m", _MODULES[program]]
    found = shutil.which(program)
    if found and not program.endswith(".py"):
        return [found]
    raise FileNotFoundError(f"{program}: no such script, and no such command")


def is_launcher(program: str) -> bool:
    """True for a program or module that starts ranks itself."""
    return program in _LAUNCHERS or program in _MODULES.values()


def _is_binary(path: str) -> bool:
    """True for a program, and for a script of another interpreter than Python."""
    with open(path, "rb") as file:
        head = file.read(128)
    if head.startswith(b"\x7fELF"):
        return True
    return head.startswith(b"#!") and b"python" not in head.split(b"\n")[0]


@dataclass
class Run:
    """One rehearsal under one allocator. Bytes."""

    allocator: str
    card: Card
    limit: int | None
    exit_code: int = 0  # the program's own
    timed_out: bool = False
    seconds: float = 0.0
    processes: list[dict[str, Any]] = field(default_factory=list)
    traces: list[str] = field(default_factory=list)
    reports: list[tuple[str, str]] = field(default_factory=list)  # (rank, file) of each
    note: str = ""  # of the layer over the files
    refused: list[str] = field(default_factory=list)  # files that it might not change
    output: str = ""  # the end of what it printed, where it was not shown
    replayed: bool = False  # of a run under the arena, through torch's own allocator

    def _worst(self) -> dict[str, int]:
        rows = [d for p in self.processes for d in p["devices"]]
        return max(rows, key=lambda d: d["peak_requested"], default={})

    def figure(self, key: str) -> int:
        """Of the device and process that requested most."""
        return self._worst().get(key, 0)

    @property
    def peak_requested(self) -> int:
        return self.figure("peak_requested")

    @property
    def peak_reserved(self) -> int:
        """Of the device and process that reserved most, which may be another."""
        rows = (d["peak_reserved"] for p in self.processes for d in p["devices"])
        return max(rows, default=0)

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """Of a job of several ranks a row for each, in their order: its ``rank``, the
        ``device`` that it used most of, that one's peaks in bytes, ``steps``, ``ended``."""
        rows = []
        for process in self.processes:
            rank = process.get("rank")
            if rank is None or not process["devices"]:
                continue
            most = max(process["devices"], key=lambda d: d["peak_requested"])
            row = {key: most[key] for key in ("device", *_PEAKS)}
            rows.append(
                {
                    "rank": int(rank),
                    **row,
                    "steps": process["steps"],
                    "ended": process["ended"],
                }
            )
        rows.sort(key=lambda row: row["rank"])
        return rows if len(rows) > 1 else []

    @property
    def ooms(self) -> int:
        """Requests that were refused for good."""
        refused = sum(d["ooms"] for p in self.processes for d in p["devices"])
        return max(refused, sum(1 for p in self.processes if p["oom"]))

    @property
    def retries(self) -> int:
        """Times that torch's allocator had to give its cache back first."""
        return max(
            (d["retries"] for p in self.processes for d in p["devices"]), default=0
        )

    @property
    def oom(self) -> bool:
        """It ended for want of memory."""
        return self.ooms > 0 and self.exit_code != 0

    @property
    def failed(self) -> bool:
        return self.exit_code != 0 and not self.oom and not self.timed_out

    @property
    def sharing(self) -> int:
        """Processes on the device that most have used."""
        counts: dict[int, int] = {}
        for process in self.processes:
            for device in process["devices"]:
                counts[device["device"]] = counts.get(device["device"], 0) + 1
        return max(counts.values(), default=1)

    @property
    def steps(self) -> int:
        return max((p["steps"] for p in self.processes), default=0)

    @property
    def ended(self) -> str:
        """``itself``, ``steps``, ``settled`` (the peak no longer moved), ``timeout``."""
        if self.timed_out:
            return "timeout"
        for why in ("settled", "steps"):
            if any(p["ended"] == why for p in self.processes):
                return why
        return "itself"

    def first(self, key: str) -> Any:
        """The value of the process that requested most, else of the first that has one."""
        order = sorted(
            self.processes,
            key=lambda p: -max((d["peak_requested"] for d in p["devices"]), default=0),
        )
        return next((p[key] for p in order if p.get(key)), None)


def run(
    command: Sequence[str],
    card: Card,
    *,
    folder: str,
    allocator: str = "native",
    gpus: int = 1,
    limit: int | None = None,
    spill: int | None = None,
    steps: int | None = None,
    timeout: float | None = None,
    seed: int = 0,
    values: bool = True,
    values_limit: int | None = None,
    world_size: int | None = None,
    rank: int = 0,
    ranks: int = 1,
    find_places: bool = False,
    peak_step: int | None = None,
    report: bool = False,
    keep_files: str | None = None,
    share: Sequence[str] = (),
    quiet: bool = False,
    extra: dict[str, str] | None = None,
    cache: str | None = None,
) -> Run:
    """Runs ``command`` to its end on simulated GPUs. ``folder``: an empty one for results
    and traces, which the caller removes. ``quiet``: what it prints is kept, not shown.
    ``ranks``: so many processes, the first node's of the world. ``cache``: a folder that runs
    share, for what `torch.compile` keeps."""
    # Where all ranks are there, each by itself knows what to do.
    world = world_size if ranks == 1 or (world_size or ranks) > ranks else None
    job = Job(
        folder=folder,
        allocator=allocator,
        limit=limit,
        spill=spill,
        steps=steps,
        deadline=None if timeout is None else time.time() + timeout,
        seed=seed,
        values=values,
        values_limit=values_limit,
        world_size=world,
        rank=rank,
        ranks=ranks,
        places=find_places,
        peak_step=peak_step,
        report=report,
    )
    env = watched_environment(card, folder=folder, gpus=gpus, job=job)
    env.update(extra or {})
    if cache is not None:
        env.update(cache_environment(cache, env))
        share = [*share, cache]
    if ranks > 1:
        command = _spawning(command, ranks, world is None, folder)
    result = Run(allocator, card, limit)
    started = time.monotonic()
    log = os.path.join(folder, "output") if quiet else None
    with _isolated(list(command), env, keep_files, [folder, *share]) as layer:
        result.note = layer.note
        result.exit_code, killed = _wait(layer.argv, layer.env, log, timeout)
    result.refused = list(layer.refused)
    result.seconds = round(time.monotonic() - started, 2)
    for file in sorted(Path(folder).glob("result.*.json")):
        result.processes.append(json.loads(file.read_text()))
    result.timed_out = killed or any(p["ended"] == "timeout" for p in result.processes)
    result.reports = _reports(folder, result.processes)
    result.traces = sorted(map(str, Path(folder).glob("trace.*.trace")))
    if log is not None:
        result.output = Path(log).read_text(errors="replace")[-4000:]
    return result


def _reports(folder: str, processes: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(rank, file) of each process that left a report; without ranks, its place in order."""
    found: list[tuple[str, str]] = []
    for process in processes:
        path = os.path.join(folder, f"report.{process['pid']}.json")
        if os.path.exists(path):
            rank = process.get("rank")
            found.append((str(len(found)) if rank is None else str(rank), path))
    return sorted(found, key=lambda one: int(one[0]))


def cache_environment(folder: str, env: dict[str, str]) -> dict[str, str]:
    """What has `torch.compile` keep its work below ``folder``, which is made, unless ``env``
    has places for it already."""
    os.makedirs(folder, exist_ok=True)
    named = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
    return {
        name: os.path.join(folder, inside)
        for name, inside in named.items()
        if not env.get(name)
    }


def watched_environment(
    card: Card, *, folder: str, gpus: int = 1, job: Job | None = None
) -> dict[str, str]:
    """The environment of a rehearsed process: simulated GPUs of its own, and the watcher.
    ``folder``: an empty one for the machine's state and what processes leave. ``job``: by
    default, run to the end under torch's own allocator."""
    if job is None:
        job = Job(folder=folder, steps=0)
    base = {k: v for k, v in os.environ.items() if k not in _OWN_SETTINGS}
    env = environment(card.spelt(), gpus, job.allocator, base)
    here = Path(__file__).resolve()
    _put_first(env, "PYTHONPATH", str(here.parents[2]))
    _put_first(env, "PYTHONPATH", str(here.parent / "site"))
    state = Path(folder) / "machine"
    state.mkdir(parents=True)
    env["TORCHARENA_SIM_DIR"] = str(state)
    env["TORCHARENA_SIM_SEED"] = str(job.seed)
    if job.allocator == "arena":
        env["TORCHARENA_RECORD"] = os.path.join(folder, "trace.%p.trace")
        if job.limit is not None:
            env["TORCHARENA_LIMIT"] = f"{job.limit // 1024}KiB"
        if job.spill is not None:
            env["TORCHARENA_SPILL"] = f"{job.spill // 1024}KiB"
    if job.world_size is not None:
        env.update(alone.environment(job.world_size, job.rank, gpus))
    elif job.ranks > 1:
        env.update(alone.environment(job.ranks, 0, job.ranks, peers=True))
    env[JOB] = job.spelt()
    return env


def _spawning(
    command: Sequence[str], ranks: int, all_here: bool, folder: str
) -> list[str]:
    """The command for each rank of a node, started by `spawning`."""
    program = str(Path(__file__).with_name("spawning.py"))
    stop = os.path.join(folder, STOP)
    head = [sys.executable, "-S", program, str(ranks), "1" if all_here else "0", stop]
    return [*head, "--", *command]


class _Bare:
    """The command as it is, where nothing is to be kept from its files."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self.argv, self.env = argv, env
        self.note = ""
        self.refused: list[str] = []

    def __enter__(self) -> _Bare:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _isolated(
    argv: list[str], env: dict[str, str], keep: str | None, share: list[str]
) -> Any:
    """The command in a throw-away layer over the files (``isolation.Wrapped``), which leaves
    the folders of ``share`` out."""
    try:
        isolation: Any = importlib.import_module("torcharena.rehearsal.isolation")
    except ModuleNotFoundError:
        return _Bare(argv, env)
    return isolation.wrap(argv, env, keep, share=share)


def _wait(
    argv: list[str], env: dict[str, str], log: str | None, timeout: float | None
) -> tuple[int, bool]:
    """(exit code, whether it had to be killed). Its children go with it."""
    with contextlib.ExitStack() as stack:
        out = None if log is None else stack.enter_context(open(log, "wb"))
        process = subprocess.Popen(
            argv, env=env, stdout=out, stderr=out, start_new_session=True
        )
        try:
            limit = None if timeout is None else timeout + _PATIENCE
            return process.wait(limit), False
        except subprocess.TimeoutExpired:
            _end(process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(5), True
            _end(process, signal.SIGKILL)
            return process.wait(), True
        finally:
            _end(process, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes], how: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, how)
