"""Which mechanism isolates a command on this machine, and the command within it: `wrap`."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import files

__all__ = ["SWITCHES", "Status", "Wrapped", "forget", "status", "wrap"]

FOLDER = "TORCHARENA_REHEARSAL_INSIDE"

#: Environment variables that turn services off; ``{inside}`` is a folder that is taken away.
SWITCHES = {
    "WANDB_MODE": "disabled",
    "MLFLOW_TRACKING_URI": "sqlite:///{inside}/mlflow.db",
    "MLFLOW_REGISTRY_URI": "sqlite:///{inside}/mlflow.db",
    "COMET_MODE": "disabled",
    "COMET_START_ONLINE": "0",
    "COMET_DISABLE_AUTO_LOGGING": "1",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "disabled",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}
#: Variables that would point into a run that exists.
_DROPPED = (
    "WANDB_RUN_ID",
    "MLFLOW_RUN_ID",
    "MLFLOW_EXPERIMENT_ID",
    "COMET_EXPERIMENT_KEY",
)
#: Of a guarded run: what would change files that exist for no reason of the script's.
_GUARDED = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "TMPDIR": "{inside}/tmp",
    "TORCHINDUCTOR_CACHE_DIR": "{inside}/tmp/inductor",
    "TRITON_CACHE_DIR": "{inside}/tmp/triton",
}

_SITE = """\
# Of a rehearsal: see torcharena/rehearsal/isolation/guard.py.
import os, sys
_here = os.path.dirname(os.path.abspath(__file__))
import _torcharena_guard
_torcharena_guard.start()
sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != _here]
_own = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize
except ImportError as _error:
    if _error.name != "sitecustomize":
        raise
    sys.modules["sitecustomize"] = _own
"""


@dataclass(frozen=True)
class Status:
    """``mechanism``: layer or guard. ``text``: in plain words, for ``torcharena doctor``.
    ``place``: the directory that layers are made in. ``why``: what speaks against a layer."""

    mechanism: str
    text: str
    place: str
    why: str = ""
    options: tuple[str, ...] = ()


#: Bytes from which on more room for a layer is no better.
ROOM = 16 << 30

_known: dict[tuple[str, ...], Status] = {}


def forget() -> None:
    """Has the next ``status`` try again."""
    _known.clear()


def _places() -> list[str]:
    """Where a layer may lie, best first: with room, on a disk, where scripts seldom write."""
    home = os.path.expanduser("~/.cache")
    found = []
    for path in ("/var/tmp", os.environ.get("TMPDIR"), "/tmp", home, "/dev/shm"):
        if not path or not os.path.isdir(path) or not os.access(path, os.W_OK | os.X_OK):
            continue
        path = os.path.realpath(path)
        seen = os.stat(path)
        trusted = seen.st_uid in (0, os.geteuid())
        if seen.st_mode & 0o022 and not seen.st_mode & stat.S_ISVTX:
            trusted = False  # others could put something else in the place of the layer
        if trusted and path not in found and path not in ("/", os.getcwd()):
            found.append(path)
    return sorted(found, key=lambda path: -min(shutil.disk_usage(path).free, ROOM))


def _command(layer: str, options: Iterable[str], argv: Iterable[str]) -> list[str]:
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "layer.py")
    return [sys.executable, "-I", "-S", program, layer, *options, "--", *argv]


def _make(place: str) -> str:
    """A new layer directory, 0700."""
    layer = tempfile.mkdtemp(prefix=files.PREFIX, dir=place)
    os.makedirs(os.path.join(layer, "inside", "tmp"))
    Path(layer, "share").touch()
    return layer


def _try(place: str, options: Sequence[str]) -> str:
    """An empty string where a layer works at ``place``, else what speaks against it."""
    layer = _make(place)
    here = os.getcwd()
    alive = _start_watch(layer)
    try:
        witness = os.path.join(layer, "inside", "tmp", "witness")
        name = os.path.basename(layer) + "-probe"
        program = (
            f"import os\nif os.access('.', os.W_OK): os.mkdir({name!r}); os.rmdir({name!r})\n"
            f"open({witness!r}, 'w').close()"
        )
        found = subprocess.run(
            _command(layer, options, [sys.executable, "-I", "-S", "-c", program]),
            env={**os.environ, "LD_PRELOAD": ""},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=180,
            check=False,
        )
        if found.returncode == 0 and os.path.exists(witness):
            for path, why in files.read_only(layer).items():
                if os.access(path, os.W_OK) and (here + "/").startswith(path + "/"):
                    return f"{path} cannot have one: {why}"
            return ""
        text = found.stderr.decode(errors="replace").strip()
        return text.splitlines()[-1].removeprefix("torcharena: ") if text else "it failed"
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    finally:
        files.remove(layer)
        os.close(alive)


def _hint(why: str) -> str:
    with contextlib.suppress(OSError):
        switch = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
        if switch.read_text().strip() == "1" and os.geteuid() != 0:
            return f"{why}; sysctl kernel.apparmor_restrict_unprivileged_userns is 1"
    with contextlib.suppress(OSError):
        if Path("/proc/sys/user/max_user_namespaces").read_text().strip() == "0":
            return f"{why}; sysctl user.max_user_namespaces is 0"
    return why


def status(*, mechanism: str | None = None, options: Sequence[str] = ()) -> Status:
    """What this machine allows, found by trying in a child, once a process.

    ``mechanism``: "guard" asks for that one even where a layer works. ``options`` are those
    of ``layer`` (``--user``: a user namespace, even as root).
    """
    if mechanism not in (None, "layer", "guard"):
        raise ValueError(f"mechanism {mechanism!r} is neither layer nor guard")
    key = (mechanism or "", os.getcwd(), os.environ.get("TMPDIR", ""), *options)
    if key in _known:
        return _known[key]
    places = _places()
    why = "asked for" if mechanism == "guard" else "no directory to put it in"
    found = None
    if sys.platform == "linux" and mechanism != "guard":
        for place in places:
            why = _try(place, options)
            if not why:
                text = f"a throw-away layer over all files, kept in {place} during a rehearsal"
                found = Status("layer", text, place, options=tuple(options))
                break
    if found is None:
        why = _hint(why)
        text = f"no layer over the files ({why}): files that exist are protected instead"
        place = places[0] if places else tempfile.gettempdir()
        found = Status("guard", text, place, why)
    _known[key] = found
    return found


@dataclass
class Wrapped:
    """A command and environment to be run instead, and ``finish`` for afterwards.

    ``note``: what holds for this run, one line for the user. After ``finish``: ``kept``, how
    many files are in ``keep``; ``read_only``, directories that no layer could be put over;
    of a guarded run ``refused``, paths that the script was refused, and ``left``, what is new
    in the working directory and not known to be the script's, so still there.
    """

    argv: list[str]
    env: dict[str, str]
    note: str
    mechanism: str
    layer: str
    keep: Path | None = None
    refused: list[str] = field(default_factory=list)
    read_only: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    kept: int = 0
    here: tuple[str, frozenset[str]] = ("", frozenset())
    started: float = 0.0
    _alive: int = -1
    _watcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Wrapped:
        return self

    def __exit__(self, *unused: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Keeps what is to be kept and takes everything else away. Call it once the command
        has ended, however it did; a second call does nothing."""
        if self._alive < 0:
            return
        try:
            inside = os.path.join(self.layer, "inside")
            self.refused = sorted(set(files.names(os.path.join(inside, "refused"))))
            keeper = files.Keeper(self.keep) if self.keep is not None else None
            if self.mechanism == "layer":
                self.read_only = sorted(files.read_only(self.layer))
                if keeper is not None:
                    files.keep_layer(self.layer, keeper)
            else:
                files.undo(inside, self.started, keeper)
                folder, before = self.here
                with contextlib.suppress(OSError):
                    new = set(os.listdir(folder)) - before
                    self.left = sorted(os.path.join(folder, name) for name in new)
            if keeper is not None:
                self.kept = keeper.finish()
        finally:
            files.remove(self.layer)
            os.close(self._alive)
            self._alive = -1
            if self._watcher is not None:
                self._watcher.terminate()
                self._watcher.wait()


def _shared(env: Mapping[str, str]) -> list[str]:
    """What the parent of a rehearsal and its processes have in common."""
    found = []
    state = env.get("TORCHARENA_SIM_DIR", "")
    if os.path.isdir(state):
        found.append(os.path.realpath(state))
    result = os.path.dirname(env.get("TORCHARENA_REHEARSAL_RESULT", ""))
    if os.path.isdir(result) and os.path.basename(result).startswith("torcharena-"):
        found.append(os.path.realpath(result))
    return found


def _caches(env: Mapping[str, str]) -> list[str]:
    home = env.get("HOME", os.path.expanduser("~"))
    names = [env.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")]
    names += [
        env[name] for name in ("HF_HOME", "HF_HUB_CACHE", "TORCH_HOME") if env.get(name)
    ]
    return [os.path.realpath(name) for name in names]


def _below(path: str | None, folders: Sequence[str]) -> bool:
    """It is, or will be, in one of the folders, which are real paths."""
    real = os.path.realpath(path) if path else ""
    return any(real.startswith(os.path.join(folder, "")) for folder in folders)


def wrap(
    argv: Sequence[str],
    env: Mapping[str, str],
    keep: str | os.PathLike[str] | None = None,
    *,
    share: Iterable[str | os.PathLike[str]] = (),
    mechanism: str | None = None,
    options: Sequence[str] = (),
) -> Wrapped:
    """``argv`` and ``env`` so that the command leaves no trace.

    ``keep``: a directory, new or empty, that gets what the command wrote, under its absolute
    path, and DELETED.txt, the paths it deleted. ``share``: paths that exist and stay the real
    ones, beside TORCHARENA_SIM_DIR and the folder of the rehearsal's result. ``mechanism``,
    ``options``: see ``status``. Raises FileExistsError where ``keep`` holds something,
    FileNotFoundError where a shared path is missing.
    """
    kept = None
    if keep is not None:
        kept = Path(keep).absolute()
        if kept.exists() and (not kept.is_dir() or any(kept.iterdir())):
            raise FileExistsError(
                f"{kept} holds something already: files are kept in a new place"
            )
    shared = [os.path.realpath(path) for path in share]
    for path in shared:
        if not os.path.exists(path):
            raise FileNotFoundError(f"{path} cannot be shared: it does not exist")
    shared += _shared(env)
    chosen = status(mechanism=mechanism, options=options)
    files.sweep(chosen.place)
    layer = _make(chosen.place)
    inside = os.path.join(layer, "inside")
    try:
        alive = _start_watch(layer)
        Path(layer, "share").write_bytes(b"\0".join(map(os.fsencode, shared)))
        _write_site(inside)
        Path(inside, "mode").write_text(chosen.mechanism)
        Path(layer, "mode").write_text(chosen.mechanism)  # not the command's to change
        Path(inside, "why").write_text(chosen.why)
        free = [*shared, *_caches(env), "/dev", "/proc", "/run"]
        Path(inside, "free").write_bytes(b"\0".join(map(os.fsencode, free)))
        watcher = _watch(layer)
    except BaseException:
        files.remove(layer)
        raise
    changed = dict(env)
    for name in _DROPPED:
        changed.pop(name, None)
    switches = dict(SWITCHES)
    if chosen.mechanism != "layer":
        guarded = _GUARDED.items()
        switches |= {k: v for k, v in guarded if not _below(changed.get(k), shared)}
    changed.update({name: text.format(inside=inside) for name, text in switches.items()})
    changed[FOLDER] = inside
    earlier = changed.get("PYTHONPATH", "")
    site = os.path.join(inside, "site")
    changed["PYTHONPATH"] = f"{site}:{earlier}" if earlier else site
    command = list(argv)
    if chosen.mechanism == "layer":
        whole = [] if kept is None else ["--whole"]
        command = _command(layer, [*chosen.options, *whole], command)
        note = "what it writes, renames or deletes goes to a throw-away layer"
    else:
        note = (
            f"no throw-away layer here ({chosen.why}): files that exist are protected, what "
            "it makes anew is taken away"
        )
    return Wrapped(
        command,
        changed,
        note if kept is None else f"{note}; new and changed files are kept in {kept}",
        chosen.mechanism,
        layer,
        kept,
        started=time.time(),
        here=_listing(chosen.mechanism),
        _alive=alive,
        _watcher=watcher,
    )


def _listing(mechanism: str) -> tuple[str, frozenset[str]]:
    with contextlib.suppress(OSError):
        if mechanism == "guard":
            return os.getcwd(), frozenset(os.listdir())
    return "", frozenset()


def _write_site(inside: str) -> None:
    site = Path(inside, "site")
    site.mkdir()
    guard = Path(__file__).with_name("guard.py").read_bytes()
    (site / "_torcharena_guard.py").write_bytes(guard)
    (site / "sitecustomize.py").write_text(_SITE)


def _start_watch(layer: str) -> int:
    """The FIFO ``alive``, open: it appears under its name when somebody has it open."""
    early = os.path.join(layer, "alive.new")
    os.mkfifo(early, 0o600)
    alive = os.open(early, os.O_RDWR | os.O_CLOEXEC)
    os.rename(early, os.path.join(layer, "alive"))
    return alive


def _watch(layer: str) -> subprocess.Popen[bytes]:
    """A process that takes ``layer`` away once nobody has ``alive`` open but itself."""
    program = os.path.abspath(files.__file__)
    return subprocess.Popen(
        [sys.executable, "-I", "-S", program, "--watch", layer],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={**os.environ, "LD_PRELOAD": ""},
        start_new_session=True,
    )
