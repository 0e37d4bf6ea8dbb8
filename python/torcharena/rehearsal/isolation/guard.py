"""What isolation does within each Python process of a rehearsal.

A copy of this file is imported by every Python that the rehearsed command starts (data
workers, ranks), before its own code, by a ``sitecustomize`` that ``isolation.wrap`` puts on
PYTHONPATH; so it imports only what is loaded anyway, and stands alone.

* ``hub``: what would change a repository of the Hugging Face Hub answers as if it had, and
  sends nothing; said once. Patched when the module is imported, by whoever imports it.
* ``renames``: where the layer's kernel cannot rename a directory of the lower files
  (unprivileged overlays say EXDEV), it is copied within the layer instead.
* ``guard``: only where there is no layer. An audit hook refuses what would change a file that
  exists, and writes down what is made anew, for the parent to take away. It sees what goes
  through Python's own functions, and torch.save, torch.jit.save and safetensors by their
  names; not other programs, and not what a C library opens for itself.

The folder, $TORCHARENA_REHEARSAL_INSIDE, has ``mode`` (layer or guard), ``free`` (paths that
may be changed, NUL between them), ``why``, and ``made`` and ``refused``, which grow.
"""

from __future__ import annotations

import errno
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself would slow the start of every Python process
    from collections.abc import Callable
    from typing import Any

FOLDER = "TORCHARENA_REHEARSAL_INSIDE"
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

# Of the Hub's functions: those that answer with a commit, with nothing, and not at all.
COMMITS = [
    "create_commit",
    "upload_file",
    "upload_folder",
    "delete_file",
    "delete_folder",
    "delete_files",
]
SILENT = [
    "preupload_lfs_files",
    "upload_large_folder",
    "create_branch",
    "delete_branch",
    "create_tag",
    "delete_tag",
    "delete_repo",
    "update_repo_settings",
    "update_repo_visibility",
    "move_repo",
    "super_squash_history",
    "add_space_secret",
    "add_space_variable",
    "delete_collection",
]
REFUSED = [
    "create_discussion",
    "create_pull_request",
    "merge_pull_request",
    "run_job",
    "run_uv_job",
    "create_inference_endpoint",
    "create_collection",
    "duplicate_space",
    "request_space_hardware",
    "create_webhook",
    "upload_attachment",
    "permanently_delete_lfs_files",
]


class RefusedError(PermissionError):
    """A rehearsal may not do this: it would outlive the rehearsal."""


_once: list[str] = []


def _said(text: str) -> None:
    if text not in _once:
        _once.append(text)
        print(f"torcharena rehearse: {text}", file=sys.stderr)


# --- the Hub ---------------------------------------------------------------------------------
def _hub(module: Any) -> None:
    api = module.HfApi

    def repository(self: Any, repo_id: str, *args: Any, **kwargs: Any) -> Any:
        _said("nothing is sent to the Hub: its repositories are not made or changed")
        kind = kwargs.get("repo_type") or "model"
        folder = "" if kind == "model" else f"{kind}s/"
        name = repo_id if "/" in repo_id else f"rehearsal/{repo_id}"
        endpoint = getattr(self, "endpoint", None) or "https://huggingface.co"
        return module.RepoUrl(f"{endpoint}/{folder}{name}")

    def commit(self: Any, *args: Any, **kwargs: Any) -> Any:
        _said("nothing is sent to the Hub: its repositories are not made or changed")
        name = kwargs.get("repo_id") or "rehearsal/none"
        endpoint = getattr(self, "endpoint", None) or "https://huggingface.co"
        made = module.CommitInfo(
            commit_url=f"{endpoint}/{name}/commit/{'0' * 40}",
            commit_message=str(kwargs.get("commit_message") or ""),
            commit_description="",
            oid="0" * 40,
        )
        if not kwargs.get("run_as_future"):
            return made
        from concurrent.futures import Future

        future: Any = Future()
        future.set_result(made)
        return future

    def silent(self: Any, *args: Any, **kwargs: Any) -> None:
        _said("nothing is sent to the Hub: its repositories are not made or changed")

    def refusing(name: str) -> Any:
        def refused(self: Any, *args: Any, **kwargs: Any) -> Any:
            raise RefusedError(errno.EPERM, f"a rehearsal does not call the Hub's {name}")

        return refused

    table = {"create_repo": repository}
    table.update(dict.fromkeys(COMMITS, commit))
    table.update(dict.fromkeys(SILENT, silent))
    table.update({name: refusing(name) for name in REFUSED})
    for name, function in table.items():
        if hasattr(api, name):
            setattr(api, name, function)
            if hasattr(module, name):
                setattr(module, name, getattr(module.api, name))


class _After:
    """A finder that calls a function with a module once it was imported."""

    def __init__(self, table: dict[str, Callable[[Any], None]]) -> None:
        self.table = table

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        then = self.table.get(name)
        if then is None:
            return None
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path)
        loader = spec.loader if spec is not None else None
        if loader is None or not hasattr(loader, "exec_module"):
            return spec
        run = loader.exec_module

        def run_then(module: Any) -> None:
            run(module)
            then(module)

        setattr(loader, "exec_module", run_then)  # noqa: B010
        return spec


# --- in a layer ------------------------------------------------------------------------------
def _renames() -> None:
    def patched(real: Any) -> Any:
        def rename(
            src: Any, dst: Any, *, src_dir_fd: Any = None, dst_dir_fd: Any = None
        ) -> None:
            try:
                real(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
                return
            except OSError as error:
                if error.errno != errno.EXDEV or src_dir_fd is not None:
                    raise
                if (
                    dst_dir_fd is not None
                    or os.path.islink(src)
                    or not os.path.isdir(src)
                ):
                    raise
                parent = os.path.dirname(os.path.abspath(os.fsdecode(dst)))
                if os.stat(src).st_dev != os.stat(parent).st_dev:
                    raise
            import shutil
            import tempfile

            aside = tempfile.mkdtemp(prefix=".torcharena-", dir=parent)
            copy = os.path.join(aside, "d")
            try:
                shutil.copytree(src, copy, symlinks=True)
                real(copy, dst)
                shutil.rmtree(src)
            finally:
                shutil.rmtree(aside, ignore_errors=True)

        rename.__name__ = rename.__qualname__ = real.__name__
        return rename

    os.rename = patched(os.rename)
    os.replace = patched(os.replace)
    os.supports_dir_fd.update((os.rename, os.replace))


# --- without one -----------------------------------------------------------------------------
class Guard:
    """The audit hook: ``folder`` is this run's own."""

    def __init__(self, folder: str, free: list[str], why: str) -> None:
        self.made_file = os.path.join(folder, "made")
        self.refused_file = os.path.join(folder, "refused")
        self.free = tuple(path.rstrip("/") for path in [folder, *free])
        self.why = why
        self.made: set[str] = set()
        self.events: dict[str, Callable[[Any], object]] = {
            "open": lambda a: self.open(a[0], a[2]),
            "os.mkdir": lambda a: self.make(a[0], a[2]),
            "os.remove": lambda a: self.change("delete", a[0], a[1]),
            "os.rmdir": lambda a: self.change("delete", a[0], a[1]),
            "os.rename": lambda a: self.rename(*a),
            "os.link": lambda a: self.link(*a),
            "os.symlink": lambda a: self.make(a[1], a[2]),
            "os.truncate": lambda a: self.write(a[0]),
            "os.chmod": lambda a: self.change("change the mode of", a[0], a[2], True),
            "os.chown": lambda a: self.change("change the owner of", a[0], a[3], True),
            "os.setxattr": lambda a: self.change("change", a[0], -1, True),
            "socket.bind": lambda a: self.socket(a[1]),
            "sqlite3.connect": lambda a: self.database(a[0]),
            "os.removexattr": lambda a: self.change("change", a[0], -1, True),
        }

    def hook(self, event: str, arguments: Any) -> None:
        """For sys.addaudithook."""
        action = self.events.get(event)
        if action is not None:
            action(arguments)

    def append(self, file: str, path: str) -> None:
        """Adds ``path`` to a list that all processes of the rehearsal write to."""
        number = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(number, os.fsencode(path) + b"\0")
        finally:
            os.close(number)

    def mine(self, path: str) -> bool:
        """Whether this rehearsal may change ``path``: free, or made by it or below such."""
        if any(path == one or path.startswith(one + "/") for one in self.free):
            return True
        for again in (False, True):
            if again:  # another process of the rehearsal may have made it
                try:
                    number = os.open(self.made_file, os.O_RDONLY)
                except OSError:
                    return False
                with open(number, "rb") as file:
                    self.made.update(map(os.fsdecode, file.read().split(b"\0")[:-1]))
            at = path
            while at not in self.made:
                up = os.path.dirname(at)
                if up == at:
                    break
                at = up
            else:
                return True
        return False

    @staticmethod
    def at(path: Any, directory: int = -1) -> str | None:
        """The name itself, its directory resolved; None for a descriptor."""
        if isinstance(path, int) or path is None:
            return None
        path = os.fsdecode(path)
        if directory != -1 and not os.path.isabs(path):
            path = os.path.join(f"/proc/self/fd/{directory}", path)
        up, name = os.path.split(path.rstrip("/") or "/")
        if name in ("", ".", ".."):
            return os.path.realpath(path)
        return os.path.join(os.path.realpath(up or "."), name)

    def refuse(self, what: str, path: str) -> None:
        """Raises RefusedError, and lets the parent know."""
        self.append(self.refused_file, path)
        raise RefusedError(
            errno.EACCES,
            f"torcharena rehearse: the script would {what} what exists. There is no "
            f"throw-away layer over the files here ({self.why}), so files that exist are "
            "protected. Let the script write to a new place (what it makes anew is taken "
            "away at the end, or kept by --keep-files DIR), or let it write in earnest "
            "below a folder that you name: --share DIR",
            path,
        )

    def open(self, path: Any, flags: Any) -> None:
        """Of the event `open`."""
        if isinstance(flags, int) and flags & _WRITES:
            self.write(path)

    def write(self, path: Any) -> None:
        """Before a file is written to, through links."""
        if isinstance(path, int) or path is None:
            return
        real = os.path.realpath(os.fsdecode(path))
        if not os.path.lexists(real):
            self.make(real)
        elif os.path.isfile(real) and not self.mine(real):
            self.refuse("overwrite", real)

    def make(self, path: Any, directory: int = -1) -> None:
        """Before something is made; nothing where it exists, for that will fail."""
        real = self.at(path, directory)
        if real is None or os.path.lexists(real) or self.mine(real):
            return
        self.made.add(real)
        self.append(self.made_file, real)

    def change(
        self, what: str, path: Any, directory: int = -1, follow: bool = False
    ) -> None:
        """Before something that exists is changed or deleted."""
        real = self.at(path, directory)
        if real is not None and follow:
            real = os.path.realpath(real)
        if real is not None and os.path.lexists(real) and not self.mine(real):
            self.refuse(what, real)

    def link(self, src: Any, dst: Any, src_fd: int = -1, dst_fd: int = -1) -> None:
        """Of the event `os.link`: by another name a file could be changed unseen."""
        self.change("link", src, src_fd)
        self.make(dst, dst_fd)

    def socket(self, address: Any) -> None:
        """Before a socket is bound; of a name in the file system it makes a file."""
        if (
            isinstance(address, (str, bytes))
            and address
            and address[:1] not in ("\0", b"\0")
        ):
            self.make(address)

    def database(self, path: Any) -> None:
        """Before SQLite opens a file; whether it will write to one that exists is not known."""
        if isinstance(path, (str, bytes, os.PathLike)):
            name = os.fsdecode(path)
            if name and not name.startswith((":", "file:")) and not os.path.lexists(name):
                for end in ("", "-journal", "-wal", "-shm"):
                    self.make(name + end)

    def rename(self, src: Any, dst: Any, src_fd: int = -1, dst_fd: int = -1) -> None:
        """Of the event `os.rename`, also for os.replace."""
        self.change("rename", src, src_fd)
        self.change("overwrite", dst, dst_fd)
        self.make(dst, dst_fd)

    def checks(self, module: Any, name: str, position: int) -> None:
        """Has a function whose file is opened in C checked before it is called."""
        real = getattr(module, name, None)
        if real is None:
            return
        from functools import wraps

        @wraps(real)
        def checked(*args: Any, **kwargs: Any) -> Any:
            path = args[position] if len(args) > position else None
            path = kwargs.get("f", kwargs.get("filename", path))
            if isinstance(path, (str, bytes, os.PathLike)):
                self.write(path)
            return real(*args, **kwargs)

        setattr(module, name, checked)


def _read(folder: str, name: str) -> str:
    try:
        with open(os.path.join(folder, name), "rb") as file:
            return os.fsdecode(file.read())
    except OSError:
        return ""


def start() -> None:
    """Does what ``mode`` says, in this process. Nothing where the folder is gone."""
    folder = os.environ.get(FOLDER, "")
    mode = _read(folder, "mode")
    if not mode:
        return
    after: dict[str, Callable[[Any], None]] = {"huggingface_hub.hf_api": _hub}
    if mode == "layer":
        _renames()
    elif mode == "guard":
        free = [path for path in _read(folder, "free").split("\0") if path]
        guard = Guard(folder, free, _read(folder, "why"))
        sys.addaudithook(guard.hook)
        after["torch.serialization"] = lambda m: guard.checks(m, "save", 1)
        after["torch.jit._serialization"] = lambda m: guard.checks(m, "save", 1)
        after["safetensors"] = lambda m: guard.checks(m, "serialize_file", 1)
    sys.meta_path.insert(0, _After(after))
