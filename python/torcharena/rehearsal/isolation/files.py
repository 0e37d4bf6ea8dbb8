"""Taking away what a rehearsal made: layers, and what a guarded run made anew; or keeping it.

``isolation`` uses it, and its watcher process, which is this file run as a program of its own:

    python -I -S files.py --watch LAYER

Nothing here follows a link out of what it takes away.
"""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import shutil
import stat
import sys
import time
from pathlib import Path

__all__ = [
    "PREFIX",
    "Keeper",
    "keep_layer",
    "names",
    "read_only",
    "remove",
    "sweep",
    "undo",
]

PREFIX = "torcharena-layer-"


def watch(layer: str) -> None:
    """The watcher: reads until the last writer is gone."""
    try:
        number = os.open(os.path.join(layer, "alive"), os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    os.set_blocking(number, True)
    while os.read(number, 4096):
        pass
    if os.path.isdir(layer):
        inside = os.path.join(layer, "inside")
        mode = Path(layer, "mode")  # a layer that was only tried has none
        if mode.exists() and mode.read_text() == "guard":
            undo(inside, os.stat(mode).st_mtime, None)
        remove(layer)


def sweep(place: str) -> None:
    """Takes away layers of this user's that neither a command, nor a caller, nor a watcher
    uses: all three were killed."""
    for entry in os.scandir(place):
        if not entry.name.startswith(PREFIX) or not entry.is_dir(follow_symlinks=False):
            continue
        with contextlib.suppress(OSError):
            if entry.stat(follow_symlinks=False).st_uid != os.geteuid():
                continue
            try:
                fifo = os.path.join(entry.path, "alive")
                os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
            except FileNotFoundError:
                if time.time() - entry.stat(follow_symlinks=False).st_mtime > 3600:
                    remove(entry.path)
            except OSError:  # ENXIO: nobody has it open
                watch(entry.path)


def remove(path: str) -> None:
    """Takes a directory tree away. Follows no link, stays on its file system, and opens each
    directory by its name within the one above, so that nothing can be put in between."""
    with contextlib.suppress(OSError):
        up = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            _remove_at(up, os.path.basename(path), os.lstat(path).st_dev)
        finally:
            os.close(up)


def _remove_at(up: int, name: str, device: int) -> None:
    seen = os.stat(name, dir_fd=up, follow_symlinks=False)
    if not stat.S_ISDIR(seen.st_mode):
        os.unlink(name, dir_fd=up)
        return
    if seen.st_dev != device:
        return
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    if stat.S_IMODE(seen.st_mode) & 0o700 != 0o700:
        held = os.open(name, flags | os.O_PATH, dir_fd=up)
        try:
            os.chmod(f"/proc/self/fd/{held}", 0o700)
        finally:
            os.close(held)
    here = os.open(name, flags | os.O_RDONLY, dir_fd=up)
    try:
        for entry in os.listdir(here):
            with contextlib.suppress(OSError):
                _remove_at(here, entry, device)
    finally:
        os.close(here)
    os.rmdir(name, dir_fd=up)


def names(file: str) -> list[str]:
    try:
        return [
            os.fsdecode(name) for name in Path(file).read_bytes().split(b"\0") if name
        ]
    except OSError:
        return []


def undo(inside: str, started: float, keeper: Keeper | None) -> None:
    """Takes away what a guarded run made anew, or has it kept."""
    for path in sorted(set(names(os.path.join(inside, "made")))):
        with contextlib.suppress(OSError):
            seen = os.lstat(path)
            up = os.path.dirname(path)
            # Made by this user since the run began, and no link led elsewhere meanwhile.
            if seen.st_uid != os.geteuid() or seen.st_ctime < started - 1:
                continue
            if os.path.realpath(up) != up:
                continue
            if keeper is not None:
                keeper.tree(path, path)
            remove(path)


# --- keeping ---------------------------------------------------------------------------------
class Keeper:
    """Moves files into the directory of --keep-files, under their absolute paths."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.deleted: list[str] = []
        self.files = 0
        target.mkdir(parents=True, exist_ok=True)

    def tree(self, path: str, name: str) -> None:
        """``path`` with all below it, which the command knew as ``name``."""
        seen = os.lstat(path)
        place = self.target / name.lstrip("/")
        if stat.S_ISCHR(seen.st_mode) and seen.st_rdev == 0:
            self.deleted.append(name)
        elif stat.S_ISDIR(seen.st_mode):
            place.mkdir(parents=True, exist_ok=True)
            if stat.S_IMODE(seen.st_mode) & 0o500 != 0o500:
                os.chmod(path, 0o700)  # in the layer, or of the command's own making
            below = os.listdir(path)
            if _opaque(path):
                with contextlib.suppress(OSError):
                    hidden = set(os.listdir(name)) - set(below)
                    self.deleted += [os.path.join(name, one) for one in hidden]
            for entry in below:
                self.tree(os.path.join(path, entry), os.path.join(name, entry))
            if os.path.isdir(name) and not os.listdir(place):
                place.rmdir()  # it was only walked through
        elif stat.S_ISLNK(seen.st_mode):
            place.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(os.readlink(path), place)
            self.files += 1
        elif stat.S_ISREG(seen.st_mode):
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.rename(path, place)
            except OSError:
                shutil.copy2(path, place, follow_symlinks=False)
            for mark in os.listxattr(place, follow_symlinks=False):
                if ".overlay." in mark:
                    os.removexattr(place, mark, follow_symlinks=False)
            os.chmod(place, stat.S_IMODE(seen.st_mode) & 0o777 | 0o200)
            self.files += 1

    def finish(self) -> int:
        """Writes DELETED.txt; returns how many files were kept."""
        lines = "".join(f"{name}\n" for name in sorted(self.deleted))
        with open(self.target / "DELETED.txt", "w", errors="surrogateescape") as file:
            file.write(lines)
        return self.files


def _opaque(path: str) -> bool:
    for name in ("user.overlay.opaque", "trusted.overlay.opaque"):
        with contextlib.suppress(OSError):
            if os.getxattr(path, name, follow_symlinks=False) == b"y":
                return True
    return False


def keep_layer(layer: str, keeper: Keeper) -> None:
    root = os.path.join(layer, "root")
    for line in Path(layer, "manifest").read_text().splitlines():
        one = json.loads(line)
        if "layer" in one:
            upper = os.path.join(one["layer"], "u")
            for entry in os.listdir(upper):
                keeper.tree(os.path.join(upper, entry), os.path.join(one["path"], entry))
        elif "split" in one:
            path = one["split"]
            place = root + ("" if path == "/" else path)
            old, now = set(one["entries"]), set(os.listdir(place))
            now.discard(os.path.basename(layer))
            keeper.deleted += [os.path.join(path, name) for name in old - now]
            for name in now:
                was, new = os.path.join(path, name), os.path.join(place, name)
                changed = name in one["copied"] and not filecmp.cmp(
                    was, new, shallow=False
                )
                if name not in old or changed:
                    keeper.tree(new, was)


def read_only(layer: str) -> dict[str, str]:
    """Directories that no layer could be put over, with the reason."""
    with contextlib.suppress(OSError):
        lines = map(json.loads, Path(layer, "manifest").read_text().splitlines())
        return {one["unlayered"]: one["why"] for one in lines if "unlayered" in one}
    return {}


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--watch":
        watch(sys.argv[2])
