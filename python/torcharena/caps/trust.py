"""Reads a file that only root can have written, or says why it may have been another.

Links are followed where root made them, as a mounted ConfigMap has some; every directory on
the way must be root's. In a user namespace root shows as the overflow uid: a file of that
one counts as root's where it is mounted read-only."""

from __future__ import annotations

import os
import stat

__all__ = ["LARGEST", "TRUSTED", "Untrusted", "mark", "read"]

LARGEST = 1 << 20  # bytes of a file
TRUSTED = {0}  # uids
_LINKS = 40


class Untrusted(Exception):
    """The file may be another's than root's, or cannot be read. The text says which and why,
    and what to do."""


def read(path: str) -> tuple[bytes, tuple[int, ...]] | None:
    """The file's bytes, and a mark that is another whenever the file is another.

    None where nobody made one. Raises Untrusted."""
    found = _resolve(path)
    if found is None:
        return None
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(found, flags)
    except OSError as error:
        raise Untrusted(f"{path} cannot be read: {error.strerror}") from None
    try:
        return _checked(path, fd)
    finally:
        os.close(fd)


def _checked(path: str, fd: int) -> tuple[bytes, tuple[int, ...]]:
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode):
        raise Untrusted(f"{path} is no regular file")
    if not _roots(about, os.fstatvfs(fd).f_flag & os.ST_RDONLY != 0):
        raise Untrusted(
            f"{path} belongs to uid {about.st_uid}, not to root (chown root {path})"
        )
    if about.st_mode & 0o002 or (about.st_mode & 0o020 and about.st_gid != 0):
        raise Untrusted(
            f"{path} is writable by others than root: mode {about.st_mode & 0o777:04o}, "
            f"group {about.st_gid} (chmod 0644 {path})"
        )
    if about.st_size > LARGEST:
        raise Untrusted(f"{path} has {about.st_size} bytes; no such file needs as many")
    said = b""
    while part := os.read(fd, LARGEST + 1 - len(said)):
        said += part
    return said, _mark(about)


def mark(path: str) -> tuple[int, ...]:
    """The mark of the file that is there now, whoever made it; () for none."""
    try:
        return _mark(os.stat(path))
    except OSError:
        return ()


def _mark(about: os.stat_result) -> tuple[int, ...]:
    changed = (about.st_mtime_ns, about.st_ctime_ns)
    return (about.st_dev, about.st_ino, about.st_size, *changed)


def _resolve(path: str) -> str | None:
    """The path without links; None where there is nothing."""
    left = [part for part in path.split("/") if part]
    at, links = "/", 0
    _check_directory(path, "/")
    while left:
        part = left.pop(0)
        if part == ".":
            continue
        if part == "..":
            at = os.path.dirname(at)
            continue
        here = os.path.join(at, part)
        try:
            about = os.lstat(here)
        except FileNotFoundError:
            if links:
                raise Untrusted(f"{path} leads to {here}, which is not there") from None
            return None
        except OSError as error:
            raise Untrusted(f"{path} cannot be read: {here}: {error.strerror}") from None
        if stat.S_ISLNK(about.st_mode):
            links += 1
            if links > _LINKS:
                raise Untrusted(f"{path}: too many links, one to another")
            if not _roots(about, True):
                raise Untrusted(
                    f"{path}: the link {here} belongs to uid {about.st_uid}, not to root"
                )
            target = os.readlink(here)
            left = [name for name in target.split("/") if name] + left
            at = "/" if target.startswith("/") else at
            continue
        if left:
            _check_directory(path, here)
        at = here
    return at


def _check_directory(path: str, directory: str) -> None:
    about = os.lstat(directory)
    if not stat.S_ISDIR(about.st_mode):
        raise Untrusted(f"{path}: {directory} is no directory")
    if not _roots(about, True):
        raise Untrusted(
            f"{path}: the directory {directory} belongs to uid {about.st_uid}, not to root"
        )
    # In a sticky one others cannot replace what is root's.
    others = about.st_mode & 0o002 or (about.st_mode & 0o020 and about.st_gid != 0)
    if others and not about.st_mode & stat.S_ISVTX:
        raise Untrusted(
            f"{path}: the directory {directory} is writable by others than root "
            f"(mode {about.st_mode & 0o7777:04o})"
        )


def _roots(about: os.stat_result, read_only: bool) -> bool:
    if about.st_uid in TRUSTED:
        return True
    return read_only and about.st_uid == _overflow_uid() and _in_user_namespace()


def _overflow_uid() -> int:
    try:
        with open("/proc/sys/kernel/overflowuid") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 65534


def _in_user_namespace() -> bool:
    """Whether some uids of the machine have no number here."""
    try:
        with open("/proc/self/uid_map") as file:
            return [line.split() for line in file] != [["0", "0", "4294967295"]]
    except OSError:
        return False
