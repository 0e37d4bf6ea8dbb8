"""The driver's table over CUDA, against a made-up driver (cuda_table.c)."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
DRIVER = HERE.parents[1] / "csrc" / "driver"


def cuda_headers() -> str:
    places = [
        os.environ.get("CUDA_HOME", "/nowhere") + "/include",
        "/usr/local/cuda/include",
    ]
    places += glob.glob(sysconfig.get_paths()["purelib"] + "/nvidia/*/include")
    for place in places:
        if Path(place, "cuda.h").is_file():
            return place
    pytest.skip(f"no cuda.h in {', '.join(places)}")
    return ""  # not reached: skip raises


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
@pytest.mark.parametrize("flags", [["-O2"], ["-O1", "-fsanitize=address,undefined"]])
def test_table(tmp_path: Path, flags: list[str]) -> None:
    program = tmp_path / "cuda_table"
    sources = [str(HERE / "cuda_table.c"), str(DRIVER / "host_memory.c")]
    sources += map(str, sorted(DRIVER.glob("cuda*.c")))
    command = ["gcc", "-std=c11", "-D_GNU_SOURCE=", "-g", *flags, "-rdynamic"]
    command += [
        "-isystem",
        cuda_headers(),
        *sources,
        "-o",
        str(program),
        "-ldl",
        "-lpthread",
    ]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
