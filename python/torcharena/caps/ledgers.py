"""Where the processes of a GPU count together, and what stands there.

The administrator's file names the directory; without one it is /run/torcharena where that
exists, else one of the user's own, which no other user sees. Reading takes no lock and needs
no GPU; whose files are trusted the C library decides."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import Any

from ..loading import core
from .admin_file import DIRECTORY, AdminFile

__all__ = [
    "NOWHERE",
    "Place",
    "choose",
    "gpus",
    "label",
    "packed",
    "rows",
    "simulated",
    "unpacked",
    "unusable",
]

NOWHERE = "none"  # of TORCHARENA_LEDGER


@dataclass(frozen=True)
class Place:
    """The ledgers' directory, "" for none and then why, and who said so."""

    path: str
    by: str  # what named it
    why: str = ""


def simulated() -> bool:
    """Whether this process's GPUs are simulated: the machine's own files are not theirs."""
    if "TORCHARENA_SIM_GPU" not in os.environ:
        return False
    import ctypes

    return hasattr(ctypes.CDLL(None), "ta_simcuda_devices")


def choose(admin: AdminFile | None, wanted: str | None) -> Place:
    """The directory for this process; ``wanted`` is TORCHARENA_LEDGER's. Makes none of
    root's, but the user's own where it is missing."""
    if admin is not None and admin.mode != "off":
        return Place(admin.ledger, admin.path)
    if wanted == NOWHERE:
        return Place("", "TORCHARENA_LEDGER", "TORCHARENA_LEDGER=none")
    if wanted:
        return Place(wanted, "TORCHARENA_LEDGER")
    if simulated():
        return Place("", "", "the GPU is simulated (TORCHARENA_LEDGER names a directory)")
    if os.path.isdir(DIRECTORY):
        return Place(DIRECTORY, "")
    own = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    path = os.path.join(own, "torcharena")
    try:
        if os.stat(own).st_uid == os.getuid():
            os.makedirs(path, mode=0o700, exist_ok=True)
            return Place(path, "")
    except OSError:
        pass
    return Place("", "", f"there is neither {DIRECTORY} nor a runtime directory of yours")


def unusable(path: str) -> str:
    """Why processes of several users cannot keep a cap in the directory; "" where they can."""
    remedy = (
        f"as root: install -d -m 3770 -g GROUP {path}, GROUP being those who may use GPUs"
    )
    try:
        about = os.lstat(path)
    except FileNotFoundError:
        return f"{path} is not there ({remedy})"
    except OSError as error:
        return f"{path}: {error.strerror}"
    mode = f"mode {stat.S_IMODE(about.st_mode):04o}"
    if not stat.S_ISDIR(about.st_mode):
        return f"{path} is a link, or no directory ({remedy})"
    if about.st_uid != 0:
        return f"{path} belongs to uid {about.st_uid}, not to root ({remedy})"
    if about.st_mode & stat.S_IWOTH:
        return f"{path} is writable by everybody, {mode} ({remedy})"
    if not about.st_mode & stat.S_IWGRP:
        return f"{path} is shared with no other user, {mode} ({remedy})"
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return (
            f"{path} is for group {_group(about.st_gid)}, and this process is not in it"
        )
    return ""


def _group(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def label(environ_label: str | None) -> str:
    """What `top` calls this process: TORCHARENA_LABEL, else the program and its rank."""
    if environ_label:
        return environ_label
    import sys

    given = sys.argv[0] if sys.argv else ""
    name = os.path.basename(given) if given not in ("", "-c", "-m") else "python"
    if name == "__main__.py":  # of python -m package
        name = os.path.basename(os.path.dirname(given)) or name
    rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or ""
    return f"{name}:{rank}" if rank else name


_LONGEST = 63  # bytes of a label in the ledger
_SEPARATOR = "\x1f"


def packed(name: str, place: str) -> str:
    """A label with the job or pod behind it, which has the room where both have not."""
    if not place or len(place.encode()) >= _LONGEST:
        return name
    room = _LONGEST - len(place.encode()) - 1
    return name.encode()[:room].decode("utf-8", "ignore") + _SEPARATOR + place


def unpacked(text: str) -> tuple[str, str]:
    """Label and place of `packed`."""
    name, _, place = text.partition(_SEPARATOR)
    return name, place


def gpus(directory: str) -> list[str]:
    """The GPUs that have a ledger there, by UUID. Raises OSError."""
    found = (
        n for n in os.listdir(directory) if n.isprintable() and not n.startswith(".")
    )
    return sorted(n.removesuffix(".ledger") for n in found if n.endswith(".ledger"))


def rows(directory: str, gpu: str) -> list[dict[str, Any]]:
    """The processes of one GPU's ledger, as the C library gives them; the living first, and
    of them those that hold most. Raises RuntimeError for a ledger that is not to be trusted."""
    found: list[dict[str, Any]] = list(core().ledger_read(directory, gpu))
    return sorted(
        found,
        key=lambda row: (not row["alive"], -row["bytes"], row["started"], row["slot"]),
    )
