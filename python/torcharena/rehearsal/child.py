"""What runs inside a rehearsed process.

``site/sitecustomize.py`` calls `prepare` in every Python process of a rehearsal, launchers,
ranks and workers alike. Nothing happens until the process imports torch; then the allocator
asked for is put in place, the values mode is entered, optimizer steps are counted, and a
thread waits for the deadline. What was seen goes to ``result.PID.json`` in the job's folder,
anew as the program goes on, so that a process that is killed has left its figures too.

The script's own code runs as it would: as ``__main__``, by the interpreter itself."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from types import FrameType, TracebackType
from typing import Any

from .. import conf
from . import compiling, marks, places

__all__ = ["JOB", "STOP", "Job", "prepare"]

JOB = "TORCHARENA_REHEARSAL_JOB"
STOP = "stop"  # the file in the job's folder that says that another rank has failed
_LOOK_EVERY = 0.25  # seconds
_SETTLED_SECONDS = 30.0  # a program shorter than this runs to its end
_SETTLED_STEPS = 20
_KINDS = ("requested", "allocated", "reserved")
_GROWN = 1.02  # times the peak that was looked at: worth another look
_WRITE_EVERY = 1.0  # seconds
_KEPT = 1 << 20  # bytes up to which copies are made where no values are computed


@dataclass(frozen=True)
class Job:
    """What the parent asks of its processes; travels as JSON in the environment."""

    folder: str  # where results go
    allocator: str = "native"
    limit: int | None = None  # bytes on each device, for torch's own allocators
    spill: int | None = None  # bytes of host memory that the arena may use
    steps: int | None = None  # end after so many optimizer steps; 0: run to the end
    deadline: float | None = None  # seconds since 1970
    seed: int = 0
    values: bool = True
    values_limit: int | None = None
    world_size: int | None = None  # one process stands for rank `rank` of so many
    rank: int = 0
    ranks: int = 1  # so many ranks, from 0, are processes of one node (`--ranks all`)
    places: bool = False  # find out what holds the peak
    peak_step: int | None = None  # the step in which it is known to stand
    report: bool = False  # track it, and write who used what

    def spelt(self) -> str:
        return json.dumps(asdict(self))


def prepare() -> None:
    """Waits for torch. Called once, as Python starts."""
    job = Job(**json.loads(os.environ[JOB]))
    started = time.monotonic()
    if "compile_worker" in " ".join(sys.orig_argv):
        return  # Inductor's, which compiles kernels for others
    compiling.AfterImport.of("torch", lambda torch: Watch(job, started).start(torch))


class Watch:
    """One process's watcher."""

    def __init__(self, job: Job, started: float) -> None:
        self.job = job
        self.started = started
        self.pid = os.getpid()
        self.torch: Any = None
        self.mode: Any = None
        self.steps: list[int] = []  # of each optimizer: a GAN has two
        # Its place in `steps`. Held weakly: what the program lets go of must go.
        self.optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.moved_at = 0  # step in which the peak last moved
        self.peak = 0
        self.peaks: dict[tuple[int, str], int] = {}  # that the program has reset since
        self.seen: set[str] = set()
        self.ended = "itself"
        self.oom: dict[str, Any] | None = None
        self.holders: dict[str, Any] | None = None
        self.analysed = 0
        self.labels: places.Labels = {}
        self.written = 0.0
        self.over = threading.Event()
        self.leave = os._exit  # at once; the program's goes by `leaving`
        self.lock = threading.Lock()
        self.finder: Any = None
        self.tracked: dict[str, Any] | None = None
        self.conf: str | None = None  # torch's allocator settings that hold
        self.chose = ""  # the allocator that the script has asked for

    # --- the start ----------------------------------------------------------------------
    def start(self, torch: Any) -> None:
        self.torch = torch
        atexit.register(self.at_exit)
        os._exit = self.leaving  # type: ignore[assignment]
        self.choose_allocator()
        later = torch.cuda._lazy_call
        if self.job.allocator == "arena":
            from .. import installing

            installing.enable_from_environment()
            compiling.without_trees()
            marks.install(torch)
            if self.job.report:
                from . import tracked

                self.finder = tracked.Finder(torch)
                self.finder.start()
        else:
            if self.job.limit is not None:
                later(self.cap)
            if self.job.places:
                later(self.watch_places)
        if self.job.world_size is not None:
            from . import alone

            rank = self.job.rank
            if self.job.ranks > 1:
                rank = int(os.environ["RANK"])
            alone.install(self.job.world_size, rank, self.job.ranks)
        if self.job.values:
            from .values import Values

            limit = self.job.values_limit
            self.mode = Values(limit=limit, seed=self.job.seed)
            self.mode.__enter__()
        else:
            _keep_no_contents()
        compiling.install()
        for name in ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats"):
            if hasattr(torch._C, name):
                setattr(torch._C, name, self.keeping_peaks(getattr(torch._C, name)))
        # `torch.optim` hides its module of this name.
        optimizer = importlib.import_module("torch.optim.optimizer")
        optimizer.register_optimizer_step_post_hook(self.on_step)
        self.watch_stages()
        threading.Thread(
            target=self.wait, name="torcharena-rehearsal", daemon=True
        ).start()

    def choose_allocator(self) -> None:
        """The settings of torch's allocator that the script has made itself hold, but which
        allocator it is, is the rehearsal's to say: before CUDA is used, when torch reads
        them."""
        self.settle()
        init = getattr(self.torch._C, "_cuda_init", None)
        if init is None:  # a build without CUDA
            return

        def settled() -> Any:
            self.settle()
            return init()

        self.torch._C._cuda_init = settled

    def settle(self) -> None:
        expandable = self.job.allocator == "expandable"
        asked = conf.choice(os.environ)
        if asked != (conf.EXPANDABLE if expandable else ""):
            self.chose = asked
        conf.settle(os.environ, expandable)
        self.conf = os.environ.get("PYTORCH_CUDA_ALLOC_CONF")

    def cap(self) -> None:
        """The cap for torch's own allocators, as a share of the device."""
        assert self.job.limit is not None
        if self.on_arena():  # the program enabled it, and it may not be made yet
            from ..caps import caps

            caps.keeper().set_limit(-1, "fraction", self.job.limit)
            return
        shares: list[float] = []
        for device in range(self.torch.cuda.device_count()):
            total = self.torch.cuda.get_device_properties(device).total_memory
            shares.append(min(1.0, self.job.limit / total))
            self.torch.cuda.set_per_process_memory_fraction(shares[-1], device)
        inner = self.torch._C._cuda_setMemoryFraction

        def least(fraction: float, device: int) -> None:
            """The program's own share may be less, not more."""
            inner(min(fraction, shares[device]), device)

        self.torch._C._cuda_setMemoryFraction = least

    def on_arena(self) -> bool:
        """The program may have enabled it itself, whatever was to be rehearsed."""
        state = sys.modules.get("torcharena.state")
        return self.job.allocator == "arena" or (state is not None and state.enabled())

    def watch_places(self) -> None:
        if self.on_arena():
            return
        places.start(self.torch)
        observe = getattr(self.torch._C, "_cuda_attach_out_of_memory_observer", None)
        if observe is not None:
            observe(self.on_oom)

    def keeping_peaks(self, reset: Callable[..., Any]) -> Callable[..., Any]:
        """The program's own reset of the peaks, which are known here nonetheless."""

        def resets(*args: Any) -> Any:
            if self.torch.cuda.is_initialized():
                self.devices()
            return reset(*args)

        return resets

    def watch_stages(self) -> None:
        """Evaluations and saves that the program comes to."""
        module = self.torch.nn.Module
        train = module.train

        def watched_train(this: Any, mode: bool = True) -> Any:
            if not mode and self.steps:
                self.seen.add("an evaluation")
            return train(this, mode)

        module.train = watched_train
        save = self.torch.save

        def watched_save(*args: Any, **kwargs: Any) -> Any:
            with self.saving():
                return save(*args, **kwargs)

        self.torch.save = watched_save

    # --- while it runs --------------------------------------------------------------------
    def on_step(self, optimizer: Any, *_: Any) -> None:
        """After every optimizer's step."""
        if os.getpid() != self.pid:
            return
        key = self.optimizers.setdefault(optimizer, len(self.steps))
        if key == len(self.steps):
            self.steps.append(0)
        self.steps[key] += 1
        step = max(self.steps)
        if self.steps[key] < step or not self.torch.cuda.is_initialized():
            return
        if "safetensors.torch" in sys.modules:
            self.watch_safetensors(sys.modules["safetensors.torch"])
        if self.job.allocator == "arena":
            from .. import recording

            recording.mark("step")
        peak = self.peak_requested()
        if peak > self.peak:
            self.peak, self.moved_at = peak, step
        self.look(step)
        if self.job.steps and step >= self.job.steps:
            self.end("steps")
        if self.job.steps is None and self.settled(step):
            self.end("settled")
        if time.monotonic() - self.written > _WRITE_EVERY:
            self.write()

    def settled(self, step: int) -> bool:
        """The peak has not moved for as long again as it took, and for some steps."""
        enough = max(2 * self.moved_at, self.moved_at + _SETTLED_STEPS)
        return step >= enough and time.monotonic() - self.started > _SETTLED_SECONDS

    def watch_safetensors(self, module: Any) -> None:
        save = module.save_file
        if getattr(save, "_watched", False):
            return

        def watched(*args: Any, **kwargs: Any) -> Any:
            with self.saving():
                return save(*args, **kwargs)

        watched._watched = True  # type: ignore[attr-defined]
        module.save_file = watched

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Within a save."""
        self.seen.add("a save")
        guesses = getattr(self.mode, "guesses", None)
        if guesses is None:
            yield
            return
        guesses.saving += 1
        try:
            yield
        finally:
            guesses.saving -= 1

    def look(self, step: int) -> None:
        """Finds out what holds the peak, where it has just moved or is known to stand."""
        if not self.job.places or self.on_arena():
            return
        known = self.job.peak_step
        if known is not None:
            if step != known:
                return
        elif self.peak < self.analysed * _GROWN or self.moved_at != step:
            return
        self.analyse(step)

    def analyse(self, step: int | None) -> None:
        self.analysed = self.peak
        try:
            found = places.holders(self.torch, list(self.optimizers), self.labels)
        except (RuntimeError, KeyError, TypeError, ValueError, AttributeError) as error:
            found = {"problem": f"{type(error).__name__}: {error}"}
        found["step"] = step
        if self.holders is None or found.get("requested", 0) >= self.holders.get(
            "requested", 0
        ):
            self.holders = found

    def on_oom(self, device: int, wanted: int, *_: Any) -> None:
        """Called by torch's allocator before it raises."""
        self.oom = {"device": device, "wanted": wanted, "stack": self.stack(None)}
        try:
            self.holders = places.holders(
                self.torch, list(self.optimizers), self.labels, now=True
            )
            self.holders["step"] = max(self.steps, default=0) + 1
        except (RuntimeError, KeyError, TypeError, ValueError, AttributeError):
            pass

    # --- the end ----------------------------------------------------------------------------
    def wait(self) -> None:
        """The thread: writes what is known now and then, for a process that is killed; and
        when the time is up, or another rank has failed, ends the process."""
        deadline, several = self.job.deadline, self.job.ranks > 1
        stop = os.path.join(self.job.folder, STOP)
        while True:
            left = _LOOK_EVERY if several else _WRITE_EVERY
            if deadline is not None:
                left = min(left, max(0.0, deadline - time.time()))
            if self.over.wait(left) or os.getpid() != self.pid:
                return
            if deadline is not None and time.time() >= deadline:
                self.ended = "timeout"
                break
            if several and os.path.exists(stop):
                self.ended = "stopped"
                break
            if time.monotonic() - self.written > _WRITE_EVERY:
                with contextlib.suppress(Exception):  # the program goes on meanwhile
                    self.write()
        stack = self.stack(None)
        self.save_report()
        self.write(last=True, stack=stack)
        _flush()
        self.leave(124)

    def end(self, why: str) -> None:
        """Ends the process here: no more of the script runs, its ``finally`` included."""
        self.ended = why
        self.at_exit()
        _flush()
        self.leave(0)

    def leaving(self, status: int) -> None:
        """In place of ``os._exit``."""
        self.at_exit()
        self.leave(status)

    def at_exit(self) -> None:
        if os.getpid() != self.pid or self.over.is_set():
            return
        self.over.set()
        if self.mode is not None:
            with contextlib.suppress(
                RuntimeError, AttributeError, IndexError, AssertionError
            ):
                self.mode.__exit__(None, None, None)
        error = getattr(sys, "last_value", None)
        if error is not None and self.oom is None and self.is_oom(error):
            stack = self.frames(error.__traceback__)
            self.oom = {"device": None, "wanted": None, "stack": stack}
        initialised = self.torch.cuda.is_initialized()
        if self.job.places and not self.on_arena() and initialised:
            self.peak = max(self.peak, self.peak_requested())
            grown = self.peak > self.analysed * _GROWN and self.job.peak_step is None
            if self.oom is None and (grown or self.holders is None):
                self.analyse(None)
        if self.job.allocator == "arena":
            from .. import recording

            recording._stop_at_exit()
        self.save_report()
        self.write(last=True, error=error)

    def save_report(self) -> None:
        """Who used what, where that was asked for."""
        if self.finder is None or not self.torch.cuda.is_initialized():
            return
        try:
            self.tracked = self.finder.save(self.job.folder)
        except (RuntimeError, OSError, KeyError, TypeError, ValueError) as error:
            self.tracked = {"problem": f"{type(error).__name__}: {error}"}

    def is_oom(self, error: BaseException | None) -> bool:
        seen = 0
        while error is not None and seen < 20:
            if isinstance(error, self.torch.OutOfMemoryError):
                return True
            error, seen = error.__cause__ or error.__context__, seen + 1
        return False

    def peak_requested(self) -> int:
        return max(
            self.highest(d, "requested", self.torch.cuda.memory_stats(d))
            for d in range(self.torch.cuda.device_count())
        )

    def devices(self) -> list[dict[str, int]]:
        """Each device's peaks, bytes."""
        found = []
        for device in range(self.torch.cuda.device_count()):
            stats = self.torch.cuda.memory_stats(device)
            if not stats.get("allocation.all.allocated"):
                continue
            found.append(
                {
                    "device": device,
                    **{
                        f"peak_{kind}": self.highest(device, kind, stats)
                        for kind in _KINDS
                    },
                    "allocations": stats.get("allocation.all.allocated", 0),
                    "retries": stats.get("num_alloc_retries", 0),
                    "ooms": stats.get("num_ooms", 0),
                }
            )
        return found

    def highest(self, device: int, kind: str, stats: dict[str, int]) -> int:
        peak = max(
            self.peaks.get((device, kind), 0), stats.get(f"{kind}_bytes.all.peak", 0)
        )
        self.peaks[device, kind] = peak
        return peak

    def write(
        self,
        *,
        last: bool = False,
        error: BaseException | None = None,
        stack: list[dict[str, Any]] | None = None,
    ) -> None:
        """The result so far. Processes that used no CUDA memory write none."""
        if not self.torch.cuda.is_initialized():
            if not last or (error is None and self.ended != "timeout"):
                return
            devices = []
        else:
            devices = self.devices()
        result: dict[str, Any] = {
            "pid": self.pid,
            "rank": os.environ.get("RANK"),
            "torch": self.torch.__version__,
            "cuda": self.torch.version.cuda,
            "arena": "torcharena.state" in sys.modules
            and sys.modules["torcharena.state"].enabled(),
            "conf": self.conf,
            "chose": self.chose,
            "devices": devices,
            "steps": max(self.steps, default=0),
            "moved_at": self.moved_at,
            "seen": sorted(self.seen),
            "ended": self.ended if last else "killed",
            "oom": self.oom,
            "holders": self.holders,
            "tracked": self.tracked,
            "guessed": self.guessed(),
            "seconds": round(time.monotonic() - self.started, 2),
        }
        result["workspaces"] = _workspaces()
        result["spilled"] = _spilled() if result["arena"] else 0
        result["trees_off"] = compiling.trees_off()
        if self.mode is not None and hasattr(self.mode, "report"):
            result["values"] = self.mode.report()
        if self.job.world_size is not None:
            from . import ranks

            result["ranks"] = ranks.report()
        if error is not None:
            result["error"] = f"{type(error).__name__}: {error}"
            result["traceback"] = self.frames(error.__traceback__)
        if stack is not None:
            result["stack"] = stack
        with self.lock:
            if not last and self.over.is_set():
                return  # what is there is newer
            target = os.path.join(self.job.folder, f"result.{self.pid}.json")
            with open(f"{target}.part", "w") as file:
                json.dump(result, file)
            os.replace(f"{target}.part", target)
            self.written = time.monotonic()

    def guessed(self) -> dict[str, int]:
        """Operators whose results were guesses, the most frequent first."""
        for _ in range(5):  # the program goes on counting meanwhile
            with contextlib.suppress(RuntimeError):
                return dict(self.mode.guessed.most_common(30)) if self.mode else {}
        return {}

    # --- stacks -----------------------------------------------------------------------------
    def frames(self, trace: TracebackType | None) -> list[dict[str, Any]]:
        """A traceback's frames, outermost first."""
        found = []
        while trace is not None:
            found.append(places.frame(trace.tb_frame, trace.tb_lineno))
            trace = trace.tb_next
        return found

    def stack(self, frame: FrameType | None) -> list[dict[str, Any]]:
        """Where the thread is, outermost frame first; of a thread that runs no Python of the
        program's (autograd's), where the main thread is."""
        mine = sys._getframe(1) if frame is None else frame
        found = _walk(mine)
        if not any(places.is_users(f["file"]) for f in found):
            main = threading.main_thread().ident
            other = sys._current_frames().get(main or 0)
            if other is not None:
                found = _walk(other)
        return [f for f in found if not places.is_ours(f["file"])]


def _walk(frame: FrameType | None) -> list[dict[str, Any]]:
    found = []
    while frame is not None:
        found.append(places.frame(frame, frame.f_lineno))
        frame = frame.f_back
    return found[::-1]


def _keep_no_contents() -> None:
    """Nobody computes with them: large copies within the device need not be made."""
    with contextlib.suppress(AttributeError, OSError):
        skip = ctypes.CDLL(None).ta_simcuda_device_skip_above
        skip.argtypes, skip.restype = [ctypes.c_size_t], None
        skip(_KEPT)


def _spilled() -> int:
    """The most that was on the host, bytes, of all devices."""
    library = sys.modules.get("torcharena._core")
    if library is None or not library.created():
        return 0
    used = (device for device in range(64) if library.device_used(device))
    return sum(library.stats(device)["spilled"][1] for device in used)


def _workspaces() -> dict[str, Any] | None:
    """Workspaces by where their sizes come from, and the largest of each, bytes: told by the
    real libcudnn, measured, or guessed, which is a stated default. ``why`` libcudnn is not
    asked. None where the program asked for none."""
    try:
        ask = ctypes.CDLL(None).ta_simcuda_workspaces
    except (AttributeError, OSError):
        return None
    counts = (ctypes.c_uint64 * 6)()
    ask.restype = ctypes.c_char_p
    why = ask(counts)
    if not any(counts[::2]):
        return None
    found: dict[str, Any] = {}
    for place, kind in enumerate(("told", "measured", "guessed")):
        found[kind] = counts[2 * place]
        found[f"largest_{kind}"] = counts[2 * place + 1]
    return {**found, "why": (why or b"").decode(errors="replace")}


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
