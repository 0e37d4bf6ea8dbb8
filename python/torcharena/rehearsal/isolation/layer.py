"""The throw-away layer over the files: a mount namespace whose file systems are overlays.

Run as a program of its own, with nothing but the standard library (``isolation.wrap`` puts it
before the command):

    python -I -S layer.py LAYER [--user] [--whole] -- COMMAND...

``--user``: a user namespace even for root. ``--whole``: the upper directories hold all of
each changed file and renamed directory, for who reads them afterwards.

It makes a mount namespace (inside a user namespace where it is not root), builds a tree in
which every writable directory is an overlay whose changes lie under LAYER, makes that tree
the root, and becomes COMMAND: same process, same user, same working directory. The caller's
mounts are never touched, and the kernel takes the namespace away with its last process.

    LAYER/root       the new root: real directories where a mount or LAYER itself lies below,
                     so that no overlay contains its own upper directory or a locked mount
    LAYER/l/N/{u,w}  upper and work directory of the Nth overlay
    LAYER/inside     seen under its own name by the command; the rest of LAYER is not
    LAYER/share      paths that stay the real ones, NUL between them
    LAYER/alive      a FIFO: as long as somebody has it open, the layer is in use
    LAYER/manifest   what lies where, one JSON object a line, for whoever keeps the changes

What stays live: /proc, /sys, /dev, /run, the shared paths and existing sockets. /dev/shm is
a layer of its own, in memory. What was mounted read-only stays so; a file system that cannot
lie below an overlay becomes read-only.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import stat
import sys

LIVE = ("/proc", "/sys", "/dev", "/run")
PSEUDO = (
    "autofs binfmt_misc bpf cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs fusectl "
    "hugetlbfs mqueue nsfs proc pstore rpc_pipefs securityfs selinuxfs sysfs tracefs"
)
DISKS = "btrfs exfat ext2 ext3 ext4 f2fs fuseblk hfsplus ntfs3 vfat xfs zfs"
SMALL = 1 << 20  # a file between mounts is copied up to this many bytes, else read-only

NEWNS, NEWUSER = 0x20000, 0x10000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
FLAGS = {
    "ro": MS_RDONLY,
    "nosuid": MS_NOSUID,
    "nodev": MS_NODEV,
    "noexec": MS_NOEXEC,
    "noatime": 1024,
    "nodiratime": 2048,
    "relatime": 1 << 21,
}

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(
    source: str, target: str, kind: str = "", flags: int = 0, data: str = ""
) -> None:
    """mount(2). Raises OSError."""
    _checked(
        _libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            kind.encode() or None,
            ctypes.c_ulong(flags),
            data.encode() or None,
        ),
        f"mount {kind or source} on {target}",
    )


def unescape(text: str) -> str:
    """A path of mountinfo, whose blanks and backslashes are octal."""
    if "\\" not in text:
        return text
    parts = text.split("\\")
    return parts[0] + "".join(chr(int(p[:3], 8)) + p[3:] for p in parts[1:])


def mounts() -> dict[str, tuple[str, int]]:
    """Of each mount point its file system and MS_ flags; the topmost where several lie."""
    found: dict[str, tuple[str, int]] = {}
    with open(
        "/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape"
    ) as lines:
        for line in lines:
            left, right = line.split(" - ", 1)
            fields = left.split(" ")
            flags = 0
            for option in fields[5].split(","):
                flags |= FLAGS.get(option, 0)
            if "ro" in right.split()[-1].split(","):
                flags |= MS_RDONLY
            found[unescape(fields[4])] = (right.split(" ", 1)[0], flags)
    return found


def enter_namespace(user: bool) -> bool:
    """A mount namespace of this process's own; True where it took a user namespace too.
    Must run while the process has one thread. Raises OSError."""
    if not user and _libc.unshare(NEWNS) == 0:
        mount("none", "/", flags=MS_REC | MS_PRIVATE)
        return False
    uid, gid = os.geteuid(), os.getegid()
    _checked(_libc.unshare(NEWNS | NEWUSER), "a user namespace")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    return True


class Tree:
    """The new root under ``layer``, made directory by directory."""

    def __init__(self, layer: str, user: bool, whole: bool = False) -> None:
        self.layer = layer
        self.whole = whole
        self.new = os.path.join(layer, "root")
        self.user = user
        self.mounts = mounts()
        self.live = {path for path in LIVE if os.path.isdir(path)}
        self.points = [*self.mounts, *self.live, layer]
        self.layered: list[str] = []
        self.lines: list[str] = []
        self.count = 0

    def note(self, **what: object) -> None:
        """One line of the manifest."""
        self.lines.append(json.dumps(what) + "\n")

    def build(self) -> None:
        """Everything."""
        os.makedirs(self.new, exist_ok=True)
        mount(self.new, self.new, flags=MS_BIND)
        self.place("/", self.mounts.get("/", ("", 0))[1])
        self.shared_memory()
        inside = os.path.join(self.layer, "inside")
        shared = [inside]
        with open(os.path.join(self.layer, "share"), encoding="utf-8") as file:
            shared += [path for path in file.read().split("\0") if path]
        for path in shared:
            self.bind(path)
        for path in self.sockets():
            with contextlib.suppress(OSError):
                self.bind(path)
        with open(os.path.join(self.layer, "manifest"), "w", encoding="ascii") as file:
            file.writelines(self.lines)

    def place(self, path: str, flags: int) -> None:
        """``path``, a directory, in the new root, as it was mounted with ``flags``."""
        kind, flags = self.mounts.get(path, ("", flags))
        prefix = path if path == "/" else path + "/"
        inner = [
            point for point in self.points if point.startswith(prefix) and point != path
        ]
        if path in self.live:
            self.bind(path)
            for point in inner:  # a disk that the desktop mounts under /run/media
                kind, flags = self.mounts.get(point, ("tmpfs", 0))
                if not flags & MS_RDONLY and kind in DISKS.split():
                    self.overlay(point, flags)
        elif kind == "autofs" and inner:
            self.split(path, flags, {one[len(prefix) :].split("/")[0] for one in inner})
        elif kind in PSEUDO.split():
            self.bind(path)
        elif inner:
            self.split(path, flags)
        elif flags & MS_RDONLY:
            self.bind(path)
        else:
            self.overlay(path, flags)

    def target(self, path: str, directory: bool = True) -> str:
        """The place of ``path`` in the new root, made where it is missing."""
        place = self.new + ("" if path == "/" else path)
        if directory:
            os.makedirs(place, exist_ok=True)
        elif not os.path.lexists(place):
            os.makedirs(os.path.dirname(place), exist_ok=True)
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        return place

    def bind(self, path: str, read_only: bool = False, flags: int = 0) -> None:
        """The real ``path``, with all that is mounted below it."""
        place = self.target(path, os.path.isdir(path))
        mount(path, place, flags=MS_BIND | MS_REC)
        if read_only:
            mount("none", place, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | flags)

    def like(self, path: str, place: str) -> None:
        """Gives the directory ``place`` the owner and mode of ``path``; no write bits where
        this user cannot write, for here it is the user's own."""
        seen = os.stat(path)
        if not self.user:
            with contextlib.suppress(OSError):
                os.chown(place, seen.st_uid, seen.st_gid)
        mode = stat.S_IMODE(seen.st_mode)
        if not os.access(path, os.W_OK):
            mode &= ~0o222
        os.chmod(place, mode & 0o1777)

    def overlay(self, path: str, flags: int) -> None:
        """``path`` with a layer over it; read-only where no overlay can be made of it."""
        place = self.target(path)
        part = os.path.join(self.layer, "l", str(self.count))
        self.count += 1
        for name in ("u", "w"):
            os.makedirs(os.path.join(part, name), 0o700)
        self.like(path, os.path.join(part, "u"))
        try:
            self._overlay(path, place, part, flags)
        except OSError as error:
            self.protect(path, flags, str(error))
            return
        self.layered.append(path)
        self.note(layer=part, path=path)

    def protect(self, path: str, flags: int, why: str) -> None:
        """``path`` read-only. Raises OSError where it can neither be, and is writable."""
        try:
            self.bind(path, True, flags)
        except OSError:
            if os.access(path, os.W_OK):
                raise
            self.bind(path)
        self.note(unlayered=path, why=why)

    def _overlay(self, path: str, place: str, part: str, flags: int) -> None:
        # By descriptors: the option string has no room for colons, commas or long names.
        names = [path, os.path.join(part, "u"), os.path.join(part, "w")]
        opened = [os.open(name, os.O_PATH | os.O_DIRECTORY) for name in names]
        lower, upper, work = (f"/proc/self/fd/{number}" for number in opened)
        data = f"lowerdir={lower},upperdir={upper},workdir={work}"
        tries = ["volatile,redirect_dir=on", "redirect_dir=on", "redirect_dir=off"]
        if self.whole:
            both = "redirect_dir=off,metacopy=off"
            tries = [f"volatile,{both}", both, "redirect_dir=off"]
        if self.user:
            tries = ["userxattr,volatile", "userxattr"]
        try:
            for index, extra in enumerate(tries):
                try:
                    mount("torcharena", place, "overlay", flags & 0xE, f"{data},{extra}")
                    return
                except OSError:
                    if index + 1 == len(tries):
                        raise
        finally:
            for number in opened:
                os.close(number)

    def split(self, path: str, flags: int, only: set[str] | None = None) -> None:
        """``path`` as a real directory of the new root, each of its entries in its own way;
        ``only`` these, where to touch others would mount them."""
        try:
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
        except PermissionError as error:
            self.protect(path, flags, str(error))
            return
        if only is not None:
            entries = [entry for entry in entries if entry.name in only]
        place = self.target(path)
        copied: list[str] = []
        there: list[str] = []
        for entry in entries:
            if entry.path == self.layer:
                continue
            try:
                if self.entry(entry, place, flags):
                    copied.append(entry.name)
            except OSError:
                # /tmp is split where something is mounted below it, and others use it too.
                if os.path.lexists(entry.path):
                    raise
                self.forget(os.path.join(place, entry.name))
                continue
            there.append(entry.name)
        self.note(split=path, entries=there, copied=copied)
        self.like(path, place)

    def entry(self, entry: os.DirEntry[str], place: str, flags: int) -> bool:
        """One entry of a directory that is split; True where it was copied."""
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), os.path.join(place, entry.name))
        elif entry.is_dir():
            self.place(entry.path, flags)
        elif entry.path not in self.mounts and self.copy(entry):
            return True
        else:
            regular = entry.is_file()
            with contextlib.suppress(OSError):
                self.bind(
                    entry.path, regular, self.mounts.get(entry.path, ("", flags))[1]
                )
        return False

    def forget(self, place: str) -> None:
        """What was made in the new root for something that is gone; only if it is empty."""
        with contextlib.suppress(OSError):
            if os.path.isdir(place):
                os.rmdir(place)
            elif os.path.getsize(place) == 0:
                os.unlink(place)

    def copy(self, entry: os.DirEntry[str]) -> bool:
        """A small file between mounts, copied; False where it is not small or not readable."""
        seen = entry.stat(follow_symlinks=False)
        if not stat.S_ISREG(seen.st_mode) or seen.st_size > SMALL:
            return False
        try:
            with open(entry.path, "rb") as file:
                content = file.read(SMALL + 1)
        except OSError:
            return False
        place = self.target(entry.path, False)
        with open(place, "wb") as file:
            file.write(content)
        if not self.user:
            os.chown(place, seen.st_uid, seen.st_gid)
        os.chmod(place, stat.S_IMODE(seen.st_mode) & 0o777)
        os.utime(place, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        return True

    def shared_memory(self) -> None:
        """/dev/shm, layered in memory: gone with the namespace."""
        path = "/dev/shm"
        if path not in self.mounts or self.layer.startswith(path + "/"):
            return
        seen = os.statvfs(path)
        size = f"size={max(seen.f_blocks * seen.f_frsize, 1 << 20)}"
        part = os.path.join(self.layer, "shm")
        os.makedirs(part, exist_ok=True)
        try:
            mount("torcharena", part, "tmpfs", MS_NOSUID | MS_NODEV, f"{size},mode=0700")
            os.mkdir(os.path.join(part, "u"), 0o700)
            os.chmod(os.path.join(part, "u"), 0o1777)
            os.mkdir(os.path.join(part, "w"), 0o700)
            self._overlay(path, self.new + path, part, MS_NOSUID | MS_NODEV)
        except OSError as error:
            self.note(unlayered=path, why=str(error))

    def sockets(self) -> list[str]:
        """Existing sockets below a layer: reached through an overlay they would be others."""
        found = []
        with (
            contextlib.suppress(OSError),
            open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as lines,
        ):
            for line in lines:
                path = line.rstrip("\n").split(" /", 1)[-1]
                path = "/" + path
                below = any(path.startswith(layer + "/") for layer in self.layered)
                if (
                    below
                    and os.path.exists(path)
                    and stat.S_ISSOCK(os.stat(path).st_mode)
                ):
                    found.append(os.path.realpath(path))
        return sorted(set(found))[:256]


def enter(layer: str, user: bool, whole: bool) -> None:
    """Puts this process into the layer. Raises OSError; the process is then of no use."""
    here = os.getcwd()
    user = enter_namespace(user)
    tree = Tree(layer, user, whole)
    tree.build()
    os.chdir(tree.new)
    if _libc.pivot_root(b".", b".") == 0:
        _checked(_libc.umount2(b".", MNT_DETACH), "the old root")
    else:  # an initial ram disk cannot be pivoted away
        os.chroot(".")
    os.chdir("/")
    os.chdir(here)


def main(arguments: list[str]) -> int:
    """Enters the layer and becomes the command; returns only where that fails."""
    cut = arguments.index("--")
    layer, options = arguments[0], arguments[1:cut]
    command = arguments[cut + 1 :]
    alive = os.open(os.path.join(layer, "alive"), os.O_RDWR)
    try:
        # Held by the command and, where it lets them, its children: high, out of their way.
        os.set_inheritable(fcntl.fcntl(alive, fcntl.F_DUPFD, 200), True)
        os.close(alive)
        enter(layer, "--user" in options, "--whole" in options)
    except OSError as error:
        print(f"torcharena: no layer over the files: {error.strerror}", file=sys.stderr)
        return 125
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"torcharena: {command[0]}: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
