"""Writes imports.h: what PyTorch's libraries import from NVIDIA's.

    python generate.py TORCH_LIB_DIR...

Each argument is the torch/lib directory of an installed torch; the list is the union over
them. The compiler (nvrtc) is left out: it needs no GPU, so the real one serves.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

# What a function's name begins with, and what it returns where it is not simulated.
FAILURES = {
    "cublasLt": 15,
    "cublas": 15,
    "cudnn": 3000,
    "cusolver": 9,
    "cusparse": 10,
    "cufft": 16,
    "curand": 999,
    "cupti": 27,
    "cuFile": 5001,
    "cuda": 801,
    "__cuda": 0,
    "pnccl": 3,
    "nccl": 3,
    "nvml": 999,
    "nvshmem_malloc": 0,
    "nvshmem_ptr": 0,
    "nvshmemx_mc_ptr": 0,
    "nvshmem": 7,
    "cu": 801,
}
HEADER = """/* imports.h - what PyTorch's libraries import from NVIDIA's. Made by generate.py.
 *
 * X(function, status that says it is not supported). */
#ifndef TA_SC_IMPORTS_H
#define TA_SC_IMPORTS_H

#define TA_SC_IMPORTS(X) \\
"""


def imported(directory: Path) -> set[str]:
    """Names undefined in the torch libraries of a directory that NVIDIA's would define."""
    found: set[str] = set()
    for library in sorted(directory.glob("lib*torch*.so")) + sorted(
        directory.glob("libc10*.so")
    ):
        text = subprocess.run(
            ["nm", "-D", "--undefined-only", str(library)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for name in re.findall(r" U (\w+)", text):
            if re.match(
                r"(__cuda|cu[A-Z]|cu(da|blas|dnn|solver|sparse|fft|rand|pti)|p?nccl|nvml|nvshmem)",
                name,
            ):
                found.add(name)
    return found


def failure(name: str) -> int:
    """The status a function that is not simulated returns."""
    best = max((p for p in FAILURES if name.startswith(p)), key=len)
    return FAILURES[best]


def main(arguments: list[str]) -> int:
    """Writes imports.h beside this file; returns the exit code."""
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    names: set[str] = set()
    for directory in arguments:
        names |= imported(Path(directory))
    lines = [f"    X({name}, {failure(name)})" for name in sorted(names)]
    body = " \\\n".join(lines)
    Path(__file__).with_name("imports.h").write_text(f"{HEADER}{body}\n\n#endif\n")
    print(f"{len(lines)} functions")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
