"""The built library and torch's contract, as far as no GPU is needed.

What needs an allocation is in test_hooks_simulated.py and tests/gpu."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_core = pytest.importorskip("torcharena._core", reason="the C library is not built")

ROOT = Path(__file__).resolve().parents[2]
HOOKS = {
    "alloc",
    "free",
    "init",
    "empty_cache",
    "memory_fraction",
    "base_address",
    "record_stream",
    "pool_begin",
    "pool_end",
    "pool_release",
}


def in_child(code: str, **environment: str) -> str:
    """Standard output of a program that must end well and say nothing else."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env={**__import__("os").environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


# --- the library ---------------------------------------------------------------------------
def needed(library: Path) -> set[str]:
    if shutil.which("readelf") is None:
        pytest.skip("readelf is not installed")
    done = subprocess.run(
        ["readelf", "-d", str(library)], capture_output=True, text=True, check=True
    )
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", done.stdout))


def test_links_the_c_library_alone() -> None:
    # On older systems threads and dlopen are libraries of their own.
    libc = re.compile(r"(libc|libm|libpthread|libdl|librt|ld-linux.*)\.so\.\d+")
    libraries = needed(Path(_core.library_path()))
    assert "libc.so.6" in libraries
    assert [name for name in libraries if not libc.fullmatch(name)] == []


def test_exports_its_own_names_alone() -> None:
    if shutil.which("nm") is None:
        pytest.skip("nm is not installed")
    done = subprocess.run(
        ["nm", "-D", "--defined-only", _core.library_path()],
        capture_output=True,
        text=True,
        check=True,
    )
    names = {line.split()[-1] for line in done.stdout.splitlines()}
    assert {"PyInit__core", "ta_torch_alloc", "ta_torch_free"} <= names
    assert [n for n in names if not n.startswith("ta_")] == ["PyInit__core"]


def test_hooks_are_the_exported_functions() -> None:
    hooks = _core.hooks()
    assert set(hooks) == HOOKS
    library = ctypes.CDLL(_core.library_path())
    for name, address in hooks.items():
        exported = getattr(library, f"ta_torch_{name}")
        assert ctypes.cast(exported, ctypes.c_void_p).value == address


def test_an_import_starts_nothing() -> None:
    code = (
        "import threading, torcharena, torcharena._core as core\n"
        "assert not core.created() and not core.forked()\n"
        "assert 'libcuda' not in open('/proc/self/maps').read()\n"
        "assert len(threading.enumerate()) == 1\n"
        "import os; print(len(os.listdir('/proc/self/task')))"
    )
    assert in_child(code) == "1\n"


# --- before and after create ------------------------------------------------------------------
def test_before_create_every_function_says_so() -> None:
    code = """
import torcharena._core as core
calls = [lambda: core.stats(0), lambda: core.limit(0), lambda: core.snapshot(),
         lambda: core.trim(), lambda: core.check(), lambda: core.mark("x"),
         lambda: core.set_limit(0, "api", 1), lambda: core.history_start(5),
         lambda: core.record_start("/nowhere/x"), lambda: core.device_memory(0)]
for call in calls:
    try:
        call()
    except core.Error as error:
        assert "torcharena.enable()" in str(error), error
    else:
        raise AssertionError("no Error")
core.record_stop(); core.history_stop()
assert core.history() == [] and core.messages() == []
"""
    in_child(code)


def test_one_allocator_a_process() -> None:
    code = """
import torcharena._core as core
core.create(page_bytes=8 << 20)
assert core.created()
try:
    core.create()
except core.Error as error:
    assert "already" in str(error), error
else:
    raise AssertionError("created twice")
assert core.stats(3)["allocated"][0] == (0, 0, 0, 0)
assert core.snapshot() == [] and core.check() is None
"""
    in_child(code)


def test_limits_by_source() -> None:
    code = """
import torcharena._core as core
core.create()
assert core.limit(0) == (None, "none")
core.set_limit(-1, "environment", 8 << 30)
core.set_limit(0, "api", 16 << 30)
assert core.limit(0) == core.limit(5) == (8 << 30, "environment")
core.set_limit(-1, "environment", None)
assert core.limit(0) == (16 << 30, "api") and core.limit(5) == (None, "none")
core.set_limit(0, "api", 0)
assert core.limit(0) == (0, "api")
for wrong in (-1, 1 << 70, "x", 1.5):
    try:
        core.set_limit(0, "api", wrong)
    except (OverflowError, TypeError):
        pass
    else:
        raise AssertionError(wrong)
try:
    core.set_limit(0, "none", 5)
except ValueError as error:
    assert "admin" in str(error)
assert core.limit(0) == (0, "api")
"""
    in_child(code)


def test_probe_without_a_driver_gives_the_reason() -> None:
    facts = _core.probe(0)
    if facts["devices"]:
        pytest.skip("this machine has a GPU")
    assert not facts["vmm"]
    assert "CUDA driver" in facts["reason"]


# --- torch -------------------------------------------------------------------------------------
def cuda_torch() -> None:
    torch = pytest.importorskip("torch")
    if torch.version.cuda is None:
        pytest.skip(f"torch {torch.__version__} is not a CUDA build")


INSTALL = """
import ctypes, gc, torch
import torcharena._core as core
core.create()
hooks = core.hooks()
library = ctypes.CDLL(core.library_path())
made = torch.cuda.memory.CUDAPluggableAllocator(
    core.library_path(), "ta_torch_alloc", "ta_torch_free")
def hook(function):
    made.allocator().set_reset_fn(ctypes.cast(function, ctypes.c_void_p).value)
hook(library.ta_test_throw_out_of_memory)
torch.cuda.memory.change_current_allocator(made)
"""


def test_out_of_memory_is_torchs_own() -> None:
    cuda_torch()
    code = INSTALL + (
        "for _ in range(1000):\n"
        "    try:\n"
        "        torch._C._cuda_emptyCache()\n"
        "    except torch.OutOfMemoryError as error:\n"
        "        text, = error.args\n"
        "        assert text.startswith('CUDA out of memory. Tried to allocate 20.00 MiB.')\n"
        "    else:\n"
        "        raise AssertionError('nothing was thrown')\n"
        "print(core.torch_status()['out_of_memory_error'])\n"
    )
    assert in_child(code) == "ok\n"


def test_other_errors_are_runtime_errors() -> None:
    cuda_torch()
    code = INSTALL + (
        "hook(library.ta_test_throw_error)\n"
        "try:\n"
        "    torch._C._cuda_emptyCache()\n"
        "except RuntimeError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    assert in_child(code) == "RuntimeError torcharena: an error (a test)\n"


def test_throwing_from_threads_at_once() -> None:
    cuda_torch()
    code = INSTALL + (
        "import threading\n"
        "caught = []\n"
        "def throw():\n"
        "    for _ in range(200):\n"
        "        try:\n"
        "            torch._C._cuda_emptyCache()\n"
        "        except torch.OutOfMemoryError as error:\n"
        "            caught.append(str(error))\n"
        "threads = [threading.Thread(target=throw) for _ in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "print(len(caught), len(set(caught)))\n"
    )
    assert in_child(code) == "1600 1\n"


def test_torchs_object_is_completed() -> None:
    """And torch's own table of functions stays as it was."""
    cuda_torch()
    code = INSTALL + (
        "assert core.torch_status()['cacheInfo'] == 'not installed yet'\n"
        "core.torch_install(); core.torch_install()\n"
        "status = core.torch_status()\n"
        "assert all(text.startswith('ok') for text in status.values()), status\n"
        "other = torch.cuda.memory.CUDAPluggableAllocator(\n"
        "    core.library_path(), 'ta_torch_alloc', 'ta_torch_free')\n"
        "del other; gc.collect()\n"
        "print(torch.cuda.get_allocator_backend())\n"
    )
    assert in_child(code) == "pluggable\n"


def test_without_our_allocator_torch_is_left_alone() -> None:
    cuda_torch()
    code = (
        "import torch, torcharena._core as core\n"
        "core.create(); core.torch_install()\n"
        "print(core.torch_status()['cacheInfo'])\n"
    )
    text = in_child(code)
    assert "not a pluggable one" in text


# --- the build --------------------------------------------------------------------------------
def test_a_build_without_headers_lists_what_was_tried(tmp_path: Path) -> None:
    code = f"""
import os, pathlib, runpy, sys
real = pathlib.Path.is_file
pathlib.Path.is_file = lambda self: self.name != "cuda.h" and real(self)
os.chdir({str(ROOT)!r})
os.environ["CUDA_HOME"] = {str(tmp_path)!r}
sys.argv = ["setup.py", "-q", "build_ext", "--build-lib", {str(tmp_path)!r}]
import setuptools
setuptools.setup_ = setuptools.setup
def setup(**given):
    assert given.pop("setup_requires") == ["nvidia-cuda-runtime>=13"]
    return setuptools.setup_(**given)
setuptools.setup = setup
import warnings; warnings.simplefilter("ignore")
try:
    runpy.run_path("setup.py")
except SystemExit as error:
    print(error)
"""
    pytest.importorskip("setuptools")
    text = in_child(code)
    assert "torcharena needs CUDA's header cuda.h" in text
    assert f"{tmp_path}/include (CUDA_HOME): no cuda.h" in text
    assert "/usr/local/cuda/include (system): no cuda.h" in text
