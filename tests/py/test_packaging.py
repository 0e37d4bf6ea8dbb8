"""What users install: the wheel's contents, and that it works where it is put.

The wheel is made of the libraries that are built already, so that it takes seconds."""

from __future__ import annotations

import ast
import email.parser
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torcharena

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "torcharena"
TAG = "cp310-abi3-linux_"
pytestmark = pytest.mark.skipif(
    not (PACKAGE / "lib" / "libcuda.so.1").exists(), reason="nothing is built in place"
)

# setup.py with its compiler replaced by a copy of what is in the source tree.
_BUILD = """
import os, runpy, shutil, sys
from pathlib import Path
from setuptools.command.build_ext import build_ext

def copy(self, extension):
    target = Path(self.get_ext_fullpath(extension.name))
    target.parent.mkdir(parents=True, exist_ok=True)
    name = target.name if "libcuda" in target.name or "libnvidia" in target.name else None
    source = Path("python/torcharena") / (f"lib/{name}" if name else "_core.abi3.so")
    shutil.copy(source, target)

build_ext.build_extension = copy
base, out = sys.argv[1:3]
sys.argv = ["setup.py", "-q", "egg_info", "--egg-base", base, "build", "--build-base", base,
            "bdist_wheel", "--dist-dir", out]
runpy.run_path("setup.py", run_name="__main__")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "base").mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _BUILD, folder / "base", folder / "out"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (found,) = (folder / "out").glob("*.whl")
    return found


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as opened:
        return set(opened.namelist())


def test_its_name_and_contents(wheel: Path) -> None:
    assert f"-{TAG}{os.uname().machine}.whl" in wheel.name, wheel.name
    assert torcharena.__version__ in wheel.name
    names = names_in(wheel)
    wanted = {
        f"torcharena/{path.relative_to(PACKAGE)}"
        for pattern in ("**/*.py", "*.pyi", "py.typed", "reports/pages/*")
        for path in PACKAGE.glob(pattern)
    }
    wanted |= {"torcharena/_core.abi3.so", "torcharena/lib/libcuda.so.1"}
    wanted.add("torcharena/lib/libnvidia-ml.so.1")
    packed = {name for name in names if ".dist-info/" not in name}
    assert packed == wanted, packed ^ wanted
    assert any(name.endswith("/licenses/LICENSE") for name in names), sorted(names)[-8:]


def test_its_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        texts = {
            name.rpartition("/")[2]: opened.read(name).decode()
            for name in opened.namelist()
            if ".dist-info/" in name
        }
    said = email.parser.Parser().parsestr(texts["METADATA"])
    assert "Apache-2.0" in (said["License"], said["License-Expression"])
    assert said["License-File"] == "LICENSE"
    assert said["Requires-Python"] == ">=3.10"
    needed = [one for one in said.get_all("Requires-Dist") if "extra ==" not in one]
    assert all(one.startswith("tomli") for one in needed), needed  # torch is not one
    assert "torcharena = torcharena.cli:main" in texts["entry_points.txt"]
    assert "torcharena = torcharena._autoload:load" in texts["entry_points.txt"]
    assert f"Tag: {TAG}" in texts["WHEEL"]


def test_its_libraries_link_the_c_library_alone(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(tmp_path)
    for library in tmp_path.glob("torcharena/**/*.so*"):
        said = subprocess.run(
            ["readelf", "-d", library], capture_output=True, text=True, check=True
        ).stdout
        needs = set(re.findall(r"NEEDED.*\[(.*?)\]", said))
        ours = {"libcuda.so.1"} if "nvidia" in library.name else set()
        assert all(n.startswith(("libc.so", "libm.so", "ld-linux")) for n in needs - ours)


def test_it_runs_where_it_is_put(wheel: Path, tmp_path: Path) -> None:
    """Unpacked, as an installer does, with an interpreter that sees nothing else."""
    place = tmp_path / "site"
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(place)
    alone = {"PATH": os.environ["PATH"], "PYTHONPATH": str(place)}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-S", *arguments],  # no torch, nor anything else
            capture_output=True,
            text=True,
            timeout=200,
            cwd=tmp_path,
            env=alone,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    assert run("-m", "torcharena", "--version").split()[1] == torcharena.__version__
    said = run(
        "-c",
        "import sys, torcharena; print(torcharena.__file__); "
        "sys.exit(not torcharena.test())",
    )
    assert said.startswith(str(place)), said
    assert (
        f"ok       the C library and the package: version {torcharena.__version__}"
        in said
    )
    assert "ok       the allocator, on a simulated driver:" in said
    assert "skipped  PyTorch on the simulated GPU: torch is not installed" in said


def test_a_failure_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from torcharena import selftest

    broken = selftest._Check("a check", "raise SystemExit('it is broken')")
    monkeypatch.setattr(selftest, "_CHECKS", (broken,))
    assert not torcharena.test(verbose=False)
    assert capsys.readouterr().out.startswith("FAILED   a check: it is broken")


def test_checks_are_made_where_asserts_are_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from torcharena import selftest

    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    broken = selftest._Check("a check", "assert False, 'it is broken'")
    monkeypatch.setattr(selftest, "_CHECKS", (broken,))
    assert not torcharena.test(verbose=False)
    assert "it is broken" in capsys.readouterr().out


def test_the_driver_is_not_started_in_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torcharena import loading, selftest

    asked: list[int] = []  # a child's are its own

    class Driver:
        def probe(self, index: int) -> dict[str, str]:
            asked.append(index)
            return {"reason": ""}

    monkeypatch.setattr(loading, "core", Driver)
    selftest._unable("gpu")
    assert not asked


def test_a_sdist_has_what_builds_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "setup.py",
            "-q",
            "egg_info",
            "--egg-base",
            str(tmp_path),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    packed = set(
        (tmp_path / "torcharena.egg-info" / "SOURCES.txt").read_text().splitlines()
    )
    csrc = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "csrc").rglob("*")
        if path.suffix in (".c", ".h", ".inc")
    }
    assert csrc <= packed, csrc - packed
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.py", "Makefile"):
        assert name in packed, name
    assert not [name for name in packed if name.endswith((".so", ".so.1", ".pyc"))]


def test_a_typed_program_has_every_name() -> None:
    tree = ast.parse((ROOT / "tests" / "py" / "typed_user.py").read_text())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(torcharena.__all__) <= used, set(torcharena.__all__) - used


def test_the_reference_has_every_name() -> None:
    pytest.importorskip("torch")
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import api_reference
    finally:
        sys.path.pop(0)
    text = api_reference.PAGE.read_text()
    entries = re.findall(r"^## (\S+)$", text, re.M)
    assert entries == api_reference.names()
    assert text == api_reference.page(), "python scripts/api_reference.py --write"
