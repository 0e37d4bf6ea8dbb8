"""What a rehearsed script does to files is undone, in a layer and, as far as it promises,
behind the guard; and nothing is left of either."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torcharena.rehearsal import isolation
from torcharena.rehearsal.isolation import files, layer, wrapping

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone")

PACKAGE = str(Path(isolation.__file__).parents[3])
WAYS: dict[str, tuple[str, ...]] = {"layer": (), "user": ("--user",)}


def layer_options(way: str) -> dict[str, Any]:
    """Arguments of ``wrap`` for a layer made that way; skips where the kernel refuses it."""
    found = isolation.status(options=WAYS[way])
    if found.mechanism != "layer":
        pytest.skip(found.text)
    return {"options": WAYS[way]}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of some files and links, which is the working directory too."""
    work = tmp_path / "work"
    (work / "sub" / "deep").mkdir(parents=True)
    (work / "a.txt").write_text("a\n")
    (work / "b.txt").write_text("b\n")
    (work / "c.txt").write_text("c\n")
    (work / "run.sh").write_text("#!/bin/sh\n")
    (work / "run.sh").chmod(0o755)
    (work / "sub" / "d.txt").write_text("d\n")
    (work / "sub" / "deep" / "e.txt").write_text("e\n")
    (tmp_path / "outside.txt").write_text("outside\n")
    (work / "link").symlink_to(tmp_path / "outside.txt")
    (work / "to_sub").symlink_to("sub")
    monkeypatch.chdir(work)
    isolation.forget()
    yield work
    isolation.forget()


def tree(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Of each path below ``folder`` its mode, time of change and content."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in sorted(folder.rglob("*")):
        seen = path.lstat()
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            content = ""
        found[str(path.relative_to(folder))] = (seen.st_mode, seen.st_mtime_ns, content)
    return found


def run(program: str, keep: Path | None = None, **how: Any) -> tuple[int, str, Any]:
    """Runs a Python program wrapped; its exit code, its output and what ``wrap`` returned."""
    argv = [sys.executable, "-c", program]
    wrapped = isolation.wrap(argv, dict(os.environ), keep, **how)
    with wrapped:
        assert os.stat(wrapped.layer).st_mode & 0o777 == 0o700
        found = subprocess.run(
            wrapped.argv,
            env=wrapped.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
    assert not os.path.exists(wrapped.layer)
    return found.returncode, found.stdout, wrapped


EVERYTHING = """
import ctypes, os, shutil, subprocess
open("a.txt", "w").write("other")
open("b.txt", "a").write("more")
os.rename("c.txt", "c2.txt")
open("c.txt", "w").write("new")
os.remove("sub/d.txt")
os.chmod("run.sh", 0o600)
os.utime("run.sh", (1, 1))
open("link", "w").write("through a link")
open("to_sub/new.txt", "w").write("new")
os.makedirs("made/deep/er")
open("made/deep/er/f.txt", "w").write("f")
os.truncate("to_sub/deep/e.txt", 0)
os.rename("sub", "sub2")
shutil.rmtree("sub2")
os.mkdir("sub")
subprocess.run("echo x > b.txt; rm run.sh; mkdir by_shell; ln -s a.txt l2", shell=True, check=True)
libc = ctypes.CDLL(None)
number = libc.open(b"a.txt", os.O_WRONLY | os.O_TRUNC)
assert libc.write(number, b"in C", 4) == 4
pid = os.fork()
if pid == 0:
    open("forked.txt", "w").write("x")
    os._exit(0)
os.waitpid(pid, 0)
assert open("a.txt").read() == "in C" and open("b.txt").read() == "x\\n"
assert open("link").read() == "through a link" and open("c2.txt").read() == "c\\n"
assert os.listdir("sub") == [] and os.path.exists("forked.txt")
print("all done", os.getcwd(), os.getuid())
"""


@pytest.mark.parametrize("way", WAYS)
def test_a_layer_takes_it_all(place: Path, way: str) -> None:
    before, mounts = tree(place.parent), Path("/proc/self/mountinfo").read_bytes()
    code, output, wrapped = run(EVERYTHING, **layer_options(way))
    assert code == 0 and f"all done {place} {os.getuid()}" in output, output
    assert tree(place.parent) == before
    assert Path("/proc/self/mountinfo").read_bytes() == mounts
    assert wrapped.mechanism == "layer" and "throw-away layer" in wrapped.note


@pytest.mark.parametrize("way", WAYS)
def test_a_layer_covers_home_tmp_and_shared_memory(place: Path, way: str) -> None:
    how = layer_options(way)
    names = [f"{folder}/torcharena-test-{os.getpid()}" for folder in ("/tmp", "/dev/shm")]
    names.append(os.path.expanduser(f"~/torcharena-test-{os.getpid()}"))
    code, output, _ = run(f"for n in {names!r}: open(n, 'w').write('x')", **how)
    assert code == 0, output
    assert [name for name in names if os.path.exists(name)] == []


@pytest.mark.parametrize("way", WAYS)
def test_keep_files(place: Path, tmp_path: Path, way: str) -> None:
    before, kept = tree(place), tmp_path / "kept"
    code, output, wrapped = run(EVERYTHING, kept, **layer_options(way))
    assert code == 0, output
    assert tree(place) == before
    here = kept / str(place).lstrip("/")
    assert (here / "a.txt").read_text() == "in C" and (
        here / "b.txt"
    ).read_text() == "x\n"
    assert (here / "made/deep/er/f.txt").read_text() == "f"
    assert (here / "c2.txt").read_text() == "c\n" and os.readlink(here / "l2") == "a.txt"
    assert (
        kept / str(tmp_path).lstrip("/") / "outside.txt"
    ).read_text() == "through a link"
    deleted = (kept / "DELETED.txt").read_text().splitlines()
    assert str(place / "run.sh") in deleted and str(place / "sub" / "d.txt") in deleted
    assert str(place / "a.txt") not in deleted
    assert wrapped.kept >= 7
    with pytest.raises(FileExistsError, match="kept"):
        isolation.wrap(["true"], {}, kept)


@pytest.mark.parametrize("way", WAYS)
def test_keep_a_renamed_directory_whole(place: Path, tmp_path: Path, way: str) -> None:
    kept = tmp_path / "kept"
    code, output, _ = run(
        "import os; os.replace('sub', 'sub2')", kept, **layer_options(way)
    )
    assert code == 0, output
    here = kept / str(place).lstrip("/")
    assert (here / "sub2" / "d.txt").read_text() == "d\n"
    assert (here / "sub2" / "deep" / "e.txt").read_text() == "e\n"
    assert str(place / "sub") in (kept / "DELETED.txt").read_text().splitlines()


def test_shared_paths_are_the_real_ones(place: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    code, output, _ = run(
        f"open({str(state / 'told')!r}, 'w').write('x'); open('a.txt', 'w')",
        share=[state],
        **layer_options("layer"),
    )
    assert code == 0, output
    assert (state / "told").read_text() == "x" and Path("a.txt").read_text() == "a\n"
    with pytest.raises(FileNotFoundError):
        isolation.wrap(["true"], {}, share=[tmp_path / "missing"])


def test_libraries_that_write_in_c(place: Path) -> None:
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    numpy.save("n.npy", numpy.zeros(4))
    torch.save(torch.zeros(4), "t.pt")
    before = tree(place)
    program = (
        "import numpy, torch; numpy.save('n.npy', numpy.ones(4)); "
        "torch.save(torch.ones(4), 't.pt'); torch.save(torch.ones(4), 'new.pt'); "
        "assert torch.load('t.pt').sum() == 4"
    )
    code, output, _ = run(program, **layer_options("layer"))
    assert code == 0, output
    assert tree(place) == before
    for name in ("n.npy", "t.pt"):
        lines = f"import numpy, torch; x = torch.ones(4); numpy.save('own.npy', x); y = {name!r}"
        save = "torch.save(x, y)" if name == "t.pt" else "numpy.save(y, x)"
        code, output, wrapped = run(f"{lines}; {save}", mechanism="guard")
        assert code == 1 and "overwrite what exists" in output, output
        assert wrapped.refused == [str(place / name)]
        assert tree(place) == before


REFUSALS = {
    "overwrite": "open('a.txt', 'w')",
    "append": "open('a.txt', 'a')",
    "update": "open('a.txt', 'r+b')",
    "descriptor": "os.open('a.txt', os.O_RDWR)",
    "link": "open('link', 'w')",
    "delete": "os.remove('a.txt')",
    "delete below": "import shutil; shutil.rmtree('sub')",
    "rename": "os.rename('a.txt', 'z.txt')",
    "replace": "open('z.txt', 'w').close(); os.replace('z.txt', 'a.txt')",
    "hard link": "os.link('a.txt', 'z.txt')",
    "truncate": "os.truncate('a.txt', 0)",
    "mode": "os.chmod('run.sh', 0)",
    "pathlib": "import pathlib; pathlib.Path('a.txt').write_text('x')",
    "child": "import subprocess, sys; subprocess.run([sys.executable, '-c', "
    '\'open("a.txt", "w")\'], check=True)',
    "worker": "import multiprocessing as m; p = m.get_context('spawn').Process("
    "target=os.remove, args=('a.txt',)); p.start(); p.join(); sys.exit(p.exitcode)",
}


@pytest.mark.parametrize("what", REFUSALS)
def test_the_guard_refuses(place: Path, what: str) -> None:
    before = tree(place.parent)
    code, output, wrapped = run(f"import os, sys; {REFUSALS[what]}", mechanism="guard")
    assert code != 0 and "--share" in output and "--keep-files" in output, output
    assert len(wrapped.refused) == 1 and wrapped.refused[0].startswith(str(place.parent))
    after = tree(place.parent)
    after["work"] = before["work"]  # the time of a directory that new files came into
    assert after == before


NEW = """
import os, shutil, subprocess, sys, tempfile
os.makedirs("out/one")
for step in range(3):
    open("out/latest.txt", "w").write(str(step))
    open("out/tmp", "w").write("x")
    os.replace("out/tmp", "out/one/last")
os.rename("out/one", "out/two")
open("log.txt", "a").write("x")
os.symlink("a.txt", "here")
subprocess.run([sys.executable, "-c", "open('out/child.txt', 'w'); open('log.txt', 'a')"], check=True)
with tempfile.TemporaryDirectory() as folder:
    open(folder + "/x", "w")
subprocess.run("echo x > out/by_shell", shell=True, check=True)
os.mkdir("gone"); os.rmdir("gone")
"""


def test_the_guard_takes_away_what_is_new(place: Path, tmp_path: Path) -> None:
    before = tree(place)
    code, output, wrapped = run(NEW, mechanism="guard")
    assert code == 0 and wrapped.refused == [], output
    assert tree(place) == before
    code, output, wrapped = run(NEW, tmp_path / "kept", mechanism="guard")
    assert code == 0, output
    assert tree(place) == before
    here = tmp_path / "kept" / str(place).lstrip("/")
    assert (here / "out/latest.txt").read_text() == "2" and (
        here / "out/two/last"
    ).exists()
    assert (here / "out/by_shell").exists() and (here / "here").is_symlink()
    assert wrapped.left == []
    code, output, wrapped = run(
        "import socket, sqlite3, subprocess; socket.socket(socket.AF_UNIX).bind('sock'); "
        "sqlite3.connect('new.db').execute('create table t (x)'); "
        "subprocess.run(['touch', 'touched'])",
        mechanism="guard",
    )
    assert code == 0 and wrapped.left == [str(place / "touched")], output
    (place / "touched").unlink()
    assert {**tree(place), "touched": 0} == {**before, "touched": 0}


@pytest.mark.parametrize("way", ["layer", "user", "guard"])
@pytest.mark.parametrize("killed", ["command", "caller"])
def test_a_killed_run_leaves_nothing(
    place: Path, tmp_path: Path, way: str, killed: str
) -> None:
    how: dict[str, Any] = {"mechanism": "guard"}
    if way != "guard":
        how = layer_options(way)
    before = tree(place)
    inner = (
        "import os, time; os.makedirs('out/x'); open('out/x/y', 'w'); "
        "print(os.getpid(), flush=True); time.sleep(60)"
    )
    outer = f"""
import os, subprocess, sys
sys.path.insert(0, {PACKAGE!r})
from torcharena.rehearsal import isolation
wrapped = isolation.wrap([sys.executable, "-c", {inner!r}], dict(os.environ), **{how!r})
print(wrapped.layer, flush=True)
with wrapped:
    subprocess.run(wrapped.argv, env=wrapped.env)
"""
    caller = subprocess.Popen(
        [sys.executable, "-c", outer], stdout=subprocess.PIPE, text=True
    )
    assert caller.stdout is not None
    layer, pid = caller.stdout.readline().strip(), int(caller.stdout.readline())
    assert os.path.isdir(layer)
    if killed == "caller":
        caller.kill()
    os.kill(pid, signal.SIGKILL)
    caller.wait(timeout=60)
    caller.stdout.close()
    until = time.monotonic() + 30
    while os.path.exists(layer) and time.monotonic() < until:
        time.sleep(0.05)
    assert not os.path.exists(layer)
    assert tree(place) == before


def test_the_next_run_takes_away_what_nobody_could(place: Path) -> None:
    where = isolation.status().place
    wrapped = isolation.wrap(["true"], {})
    assert wrapped._watcher is not None
    wrapped._watcher.kill()
    wrapped._watcher.wait()
    os.close(wrapped._alive)
    wrapped._alive = -1
    with isolation.wrap(["true"], {}) as other:
        assert not os.path.exists(wrapped.layer) and os.path.dirname(other.layer) == where
        with isolation.wrap(["true"], {}):
            assert os.path.exists(other.layer)


def test_taking_away_follows_no_link(place: Path, tmp_path: Path) -> None:
    doomed = tmp_path / "doomed"
    (doomed / "closed" / "in").mkdir(parents=True)
    (doomed / "out").symlink_to(place)
    (doomed / "closed" / "out").symlink_to(place / "a.txt")
    (doomed / "closed").chmod(0)
    before = tree(place)
    files.remove(str(doomed))
    assert not doomed.exists() and tree(place) == before
    (tmp_path / "link").symlink_to(place)
    files.remove(str(tmp_path / "link"))
    assert tree(place) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts as root")
@pytest.mark.parametrize("way", WAYS)
def test_a_read_only_file_system_stays_so(place: Path, way: str) -> None:
    layer_options(way)
    (place / "ro").mkdir()
    program = f"""
import os, subprocess, sys
sys.path.insert(0, {PACKAGE!r})
from torcharena.rehearsal import isolation
inner = "import os\\nopen('a.txt', 'w')\\nopen('top', 'w')\\nopen('sub/d.txt', 'w')\\n" \\
    "assert open('ro/f').read() == 'f'\\ntry: open('ro/f', 'w')\\n" \\
    "except OSError as e: print('errno', e.errno)"
with isolation.wrap([sys.executable, "-c", inner], dict(os.environ), options={WAYS[way]!r}) as w:
    assert w.mechanism == "layer", w.note
    sys.exit(subprocess.run(w.argv, env=w.env).returncode)
"""
    script = (
        "mount -t tmpfs none ro && echo -n f > ro/f && mount -o remount,ro ro && exec "
        '"$0" -c "$1"'
    )
    before = tree(place)
    found = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, sys.executable, program],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert found.returncode == 0 and "errno 30" in found.stdout, (
        found.stderr + found.stdout
    )
    assert tree(place) == before


def test_what_vanishes_while_a_layer_is_made_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, root = tmp_path / "folder", tmp_path / "root"
    for name in ("gone", "here"):
        (folder / name).mkdir(parents=True)
        (folder / f"{name}.txt").write_text(name)
        (folder / f"{name}.link").symlink_to("x")
    tree = layer.Tree.__new__(layer.Tree)
    tree.layer, tree.new, tree.user = str(tmp_path / "layer"), str(root), True
    tree.mounts, tree.lines = {}, []
    scandir = os.scandir

    def then_gone(path: str) -> list[os.DirEntry[str]]:
        found = list(scandir(path))
        (folder / "gone").rmdir()
        (folder / "gone.txt").unlink()
        (folder / "gone.link").unlink()
        return found

    def place(path: str, flags: int) -> None:
        """As the real one: the target first, then what asks for the source."""
        tree.target(path)
        os.stat(path)

    monkeypatch.setattr(tree, "place", place)
    monkeypatch.setattr(layer.os, "scandir", then_gone)
    tree.split(str(folder), 0)
    manifest = json.loads(tree.lines[0])
    assert manifest["entries"] == ["here", "here.link", "here.txt"]
    assert manifest["copied"] == ["here.txt"]
    assert sorted(os.listdir(f"{root}{folder}")) == manifest["entries"]


def test_nobody_sweeps_a_layer_that_is_being_tried(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = layer_options("layer")
    where, starts = isolation.status(**how).place, wrapping.subprocess.run

    def start(*args: Any, **kwargs: Any) -> Any:
        files.sweep(where)  # another rehearsal begins
        return starts(*args, **kwargs)

    monkeypatch.setattr(wrapping.subprocess, "run", start)
    dead = wrapping._make(where)
    os.mkfifo(os.path.join(dead, "alive"))
    assert wrapping._try(where, ()) == ""
    assert not os.path.exists(dead)


@pytest.mark.parametrize("mechanism", ["layer", "guard"])
def test_the_hub_is_not_written_to(place: Path, mechanism: str) -> None:
    pytest.importorskip("huggingface_hub")
    program = """
import huggingface_hub as hub
assert hub.create_repo("mine").repo_id == "rehearsal/mine"
assert hub.HfApi().create_repo("me/data", repo_type="dataset").repo_id == "me/data"
job = hub.HfApi().upload_folder(repo_id="me/m", folder_path=".", run_as_future=True)
assert job.done() and "me/m" in job.result().commit_url
hub.upload_file(path_or_fileobj="a.txt", path_in_repo="a", repo_id="me/m")
try: hub.HfApi().create_pull_request("me/m", title="t")
except PermissionError: print("refused")
"""
    code, output, _ = run(program, mechanism=mechanism)
    assert code == 0 and "refused" in output, output
    assert output.count("nothing is sent to the Hub") == 1


def test_switches(place: Path) -> None:
    env = {"WANDB_MODE": "online", "MLFLOW_RUN_ID": "1", "PYTHONPATH": "/mine"}
    with isolation.wrap(["python", "x.py"], env) as wrapped:
        assert (
            wrapped.env["WANDB_MODE"] == "disabled" and "MLFLOW_RUN_ID" not in wrapped.env
        )
        assert wrapped.env["PYTHONPATH"].endswith(":/mine")
        assert wrapped.layer in wrapped.env["MLFLOW_TRACKING_URI"]
        assert wrapped.argv[-2:] == ["python", "x.py"]
    assert env["WANDB_MODE"] == "online"


def test_the_users_own_sitecustomize_still_runs(place: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import sys; sys.mine = 1\n")
    argv = [
        sys.executable,
        "-c",
        "import sys; print(sys.mine, 'layer' in ''.join(sys.path))",
    ]
    env = dict(os.environ, PYTHONPATH=str(tmp_path / "own"))
    with isolation.wrap(argv, env) as wrapped:
        output = subprocess.run(
            wrapped.argv, env=wrapped.env, capture_output=True, text=True, check=True
        ).stdout
    assert output.split() == ["1", "False"]


def test_exit_codes_and_signals_are_the_commands(place: Path) -> None:
    how = layer_options("layer")
    assert run("import sys; sys.exit(7)", **how)[0] == 7
    assert run("import os; os.kill(os.getpid(), 9)", **how)[0] == -signal.SIGKILL
    with isolation.wrap(["no-such-program-here"], dict(os.environ)) as wrapped:
        found = subprocess.run(
            wrapped.argv, env=wrapped.env, capture_output=True, text=True
        )
    assert found.returncode == 127 and "no-such-program-here" in found.stderr


def test_status_says_why_not(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = isolation.status(mechanism="guard")
    assert found.mechanism == "guard" and "protected" in found.text
    monkeypatch.setattr(wrapping, "_try", lambda place, options: "not here")
    isolation.forget()
    assert isolation.status().why.startswith("not here")
    with pytest.raises(ValueError, match="neither"):
        isolation.status(mechanism="other")
