"""Runs Python in a virtual environment of the project's own, making it first where needed.

    python3 scripts/environments.py KIND [PYTHON ARGUMENTS...]

KIND is `lint` (ruff and mypy), `demo` (torch and torcharena) or `test` (those, pytest and
the models that tests train). Without arguments it only prepares.

Environments live in `.venv/KIND-HASH`, the hash being of what the environment holds: another
Python, torch or list of packages makes another one, and nothing is ever half updated. torch
is the active environment's where that is a CUDA build of 2.7 or later (linked by a .pth
file, nothing is copied), else it is fetched once, into `.venv/torch-HASH`.

TORCHARENA_TORCH=2.11.0 asks for that version from PyPI, whatever is active.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENVS = ROOT / ".venv"
TORCH = "2.14.1"
OLDEST = (2, 7)
TORCH_BYTES = 5.4e9  # of torch 2.14.1 and its CUDA libraries, unpacked
LISTS = {
    "lint": ROOT / "scripts" / "requirements-lint.txt",
    "demo": ROOT / "scripts" / "requirements-build.txt",
    "test": ROOT / "tests" / "requirements.txt",
}
EXTENSION = ROOT / "python" / "torcharena" / "_core.abi3.so"
QUIET = {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
}


def say(text: str) -> None:
    print(f"set-up: {text}", file=sys.stderr, flush=True)


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


# Run in the active interpreter: reads torch's version file, which is quick; importing torch
# would take seconds.
PROBE = """
import importlib.util, json, pathlib, runpy, sys
found = {"python": "%d.%d" % sys.version_info[:2], "executable": sys.executable}
spec = importlib.util.find_spec("torch")
if spec and spec.origin:
    home = pathlib.Path(spec.origin).parent
    version = home / "version.py"
    if version.is_file():
        names = runpy.run_path(str(version))
        found.update(torch=str(names["__version__"]), cuda=names.get("cuda"), site=str(home.parent))
print(json.dumps(found))
"""


def active() -> dict[str, str | None]:
    """What the active environment has: python, executable, and torch, cuda, site if any."""
    home = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    python = Path(home) / "bin" / "python" if home else Path(sys.executable)
    if not python.exists():
        python = Path(sys.executable)
    # -I would hide user site-packages, where torch may well be; the checkout must not count.
    out = subprocess.run(
        [python, "-c", PROBE], capture_output=True, text=True, cwd="/", check=True
    )
    return json.loads(out.stdout.splitlines()[-1])


def serves(found: dict[str, str | None]) -> str:
    """Empty where the active torch serves; else the reason why it does not."""
    version = found.get("torch")
    if not version:
        return "the active environment has no torch"
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) < OLDEST:
        return f"the active environment's torch {version} is older than {OLDEST[0]}.{OLDEST[1]}"
    if not found.get("cuda"):
        return f"the active environment's torch {version} is not a CUDA build"
    return ""


def list_text(path: Path) -> str:
    """A list of packages, with the lists that it names by `-r`."""
    text = path.read_text()
    for other in re.findall(r"^-r\s+(\S+)", text, re.MULTILINE):
        text += list_text(path.parent / other)
    return text


def run(*command: str | Path) -> None:
    result = subprocess.run(
        [str(c) for c in command], env={**os.environ, **QUIET}, stdout=sys.stderr
    )
    if result.returncode:
        raise SystemExit(
            f"set-up: failed ({result.returncode}): {' '.join(map(str, command))}"
        )


def site_packages(venv: Path) -> Path:
    return next((venv / "lib").glob("python3.*")) / "site-packages"


@contextmanager
def locked() -> Iterator[None]:
    VENVS.mkdir(exist_ok=True)
    with open(VENVS / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make(venv: Path, python: str, base: Path | None, install: list[str]) -> None:
    """A virtual environment with the packages installed, seeing those of `base` too. Its last
    act is the file `.ready`: what lacks it was interrupted and is made anew."""
    if (venv / ".ready").exists():
        return
    shutil.rmtree(venv, ignore_errors=True)
    say(f"making {os.path.relpath(venv, ROOT)}")
    run(python, "-m", "venv", venv)
    if base is not None:
        (site_packages(venv) / "base.pth").write_text(f"{base}\n")
    if install:
        run(venv / "bin" / "python", "-m", "pip", "install", "-q", *install)
    (venv / ".ready").touch()


def torch_site(found: dict[str, str | None], python: str) -> Path:
    """The site-packages directory to take torch from, fetching it where needed."""
    wanted = os.environ.get("TORCHARENA_TORCH")
    reason = f"TORCHARENA_TORCH={wanted}" if wanted else serves(found)
    if not reason:
        say(f"torch {found['torch']} (CUDA {found['cuda']}) of {found['site']}")
        return Path(str(found["site"]))
    version = wanted or TORCH
    venv = VENVS / f"torch-{digest(str(found['python']), version)}"
    if not (venv / ".ready").exists():
        free = shutil.disk_usage(VENVS).free
        if free < 2 * TORCH_BYTES:  # the wheels are there while they are being unpacked
            raise SystemExit(
                f"set-up: torch {version} needs {2 * TORCH_BYTES / 1e9:.0f} GB of disk while it is "
                f"installed; {VENVS} has {free / 1e9:.1f} GB. Activate an environment that has a "
                f"CUDA build of torch {OLDEST[0]}.{OLDEST[1]} or later, and none is fetched."
            )
        say(
            f"{reason}: fetching torch {version} with its CUDA libraries from PyPI into "
            f"{venv.relative_to(ROOT)}, about {TORCH_BYTES / 1e9:.1f} GB unpacked, once"
        )
    make(venv, python, None, [f"torch=={version}"])
    return site_packages(venv)


def install_package(venv: Path) -> None:
    """torcharena itself, from this checkout, rebuilt when a source of its C parts changed."""
    sources = [ROOT / "setup.py", ROOT / "pyproject.toml"]
    sources += [
        p for p in sorted((ROOT / "csrc").rglob("*")) if p.suffix in {".c", ".h", ".txt"}
    ]
    state = digest(
        *(
            f"{p.relative_to(ROOT)} {digest(p.read_text())}"
            for p in sources
            if p.is_file()
        )
    )
    stamp = venv / "package"
    if EXTENSION.exists() and stamp.exists() and stamp.read_text() == state:
        return
    say("building torcharena")
    flags = ["--no-deps", "--no-build-isolation", "-q", "-e", str(ROOT)]
    run(venv / "bin" / "python", "-m", "pip", "install", *flags)
    stamp.write_text(state)


def prepare(kind: str) -> Path:
    """The environment of that kind, ready: its python."""
    found = active()
    python = str(found["executable"])
    text = list_text(LISTS[kind])
    if kind == "lint":
        # It never changes once it is there: another's long work need not be waited for.
        venv = VENVS / f"lint-{digest(str(found['python']), python, 'None', text)}"
        if (venv / ".ready").exists():
            return venv / "bin" / "python"
    with locked():
        base = None if kind == "lint" else torch_site(found, python)
        venv = VENVS / f"{kind}-{digest(str(found['python']), python, str(base), text)}"
        make(venv, python, base, ["-r", str(LISTS[kind])])
        if kind != "lint":
            install_package(venv)
    return venv / "bin" / "python"


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in LISTS:
        print(__doc__, file=sys.stderr)
        return 2
    if sys.version_info < (3, 10):
        raise SystemExit(
            "set-up: Python 3.10 or later is needed; name one with make PYTHON=..."
        )
    python = prepare(arguments[0])
    if arguments[1:]:
        # TORCHARENA_TORCH is for this program: the package would refuse it as misspelt.
        asked = {k: v for k, v in os.environ.items() if k != "TORCHARENA_TORCH"}
        environment = {**asked, "VIRTUAL_ENV": str(python.parent.parent)}
        path = environment.get("PATH", os.defpath)
        environment["PATH"] = f"{python.parent}{os.pathsep}{path}"
        os.execve(python, [str(python), *arguments[1:]], environment)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
