"""The simulated GPU's tables against what they describe: CUDA's headers, torch's imports."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "csrc" / "simcuda"


def _header_folders() -> list[Path]:
    """Folders with driver_types.h: the toolkit's and those of NVIDIA's wheels."""
    found = [Path("/usr/local/cuda/include")]
    for place in sys.path:
        found += Path(place or ".").glob("nvidia/*/include")
    return [f for f in found if (f / "driver_types.h").exists() and (f / "crt").exists()]


def test_device_properties_are_where_the_headers_have_them(tmp_path: Path) -> None:
    folders = _header_folders()
    if not folders or not shutil.which("gcc"):
        pytest.skip("no compiler, or no CUDA headers")
    table = re.findall(
        r"X\((\w+), (-?\d+), (-?\d+), (\d+)\)", (SOURCES / "props.h").read_text()
    )
    assert len(table) > 40
    for folder in folders:
        version = re.search(
            r"#define CUDART_VERSION\s+(\d+)", (folder / "cuda_runtime_api.h").read_text()
        )
        assert version
        new = int(version[1]) >= 13000
        lines = [
            f"_Static_assert(offsetof(struct cudaDeviceProp, {name}) == {at} && "
            f'sizeof(((struct cudaDeviceProp *)0)->{name}) == {size}, "{name}");'
            for name, old_at, new_at, size in table
            if (at := new_at if new else old_at) != "-1"
        ]
        size = 1008 if new else 1032
        lines.append(f'_Static_assert(sizeof(struct cudaDeviceProp) == {size}, "size");')
        program = tmp_path / "props.c"
        program.write_text(
            "#include <stddef.h>\n#include <driver_types.h>\n" + "\n".join(lines) + "\n"
        )
        done = subprocess.run(
            ["gcc", "-std=c11", "-fsyntax-only", f"-I{folder}", str(program)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{folder}: {done.stderr}"


def test_every_function_that_this_torch_imports_is_listed() -> None:
    if importlib.util.find_spec("torch") is None or not shutil.which("nm"):
        pytest.skip("torch or nm is missing")
    spec = importlib.util.spec_from_file_location("generate", SOURCES / "generate.py")
    assert spec and spec.loader
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    torch = importlib.util.find_spec("torch")
    assert torch and torch.origin
    wanted = generate.imported(Path(torch.origin).parent / "lib")
    listed = set(re.findall(r"X\((\w+),", (SOURCES / "imports.h").read_text()))
    assert len(listed) > 700
    assert wanted <= listed, sorted(wanted - listed)
