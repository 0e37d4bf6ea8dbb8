"""Builds the package's two libraries; the rest of its description is in pyproject.toml.

    torcharena/_core.abi3.so      the Python extension, which is also the library that torch
                                  is given: the allocator, the driver, the hooks
    torcharena/lib/libcuda.so.1   simcuda, the simulated GPU that a rehearsal preloads

                                  (libnvidia-ml.so.1 beside it is another name for it)

Both link the C library alone. Of CUDA only headers are needed, and nothing of torch. Set
TORCHARENA_CHECKS=1 for a build whose structures check themselves (slow).
"""

from __future__ import annotations

import glob
import os
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
SIMULATED = "torcharena.lib.libcuda"
# Programs open NVIDIA's management library by name: an empty library that needs the other
# one, so that what is looked up in it is found there. (A wheel holds no links.)
MANAGEMENT = "torcharena.lib.libnvidia-ml"
OUTPUTS = {
    SIMULATED: os.path.join("torcharena", "lib", "libcuda.so.1"),
    MANAGEMENT: os.path.join("torcharena", "lib", "libnvidia-ml.so.1"),
}

COMPILE = ["-O2", "-g0", "-std=c11", "-fvisibility=hidden", "-fexceptions"]
LINK = ["-Wl,--as-needed", "-Wl,-z,relro,-z,now"]


def header_folders() -> list[tuple[str, Path]]:
    """Where CUDA's headers may be: (what the place is, the folder), the best first."""
    found: list[tuple[str, Path]] = []
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            found.append((variable, Path(os.environ[variable]) / "include"))
    found.append(("system", Path("/usr/local/cuda/include")))
    for folder in sorted(glob.glob("/usr/local/cuda-1[2-9]*/include"), reverse=True):
        found.append(("system", Path(folder)))
    found.append(("system", Path("/opt/cuda/include")))
    found.append(("system", Path("/usr/include")))
    places = dict.fromkeys([*sys.path, *sysconfig.get_paths().values()])
    for place in places:
        for folder in sorted(Path(place or ".").glob("nvidia/*/include"), reverse=True):
            found.append(("NVIDIA's wheel", folder))
    return found


def cuda_headers() -> tuple[str | None, str]:
    """The folder that holds cuda.h, and what was tried, for an error's text."""
    tried = []
    for what, folder in header_folders():
        if (folder / "cuda.h").is_file():
            return str(folder), ""
        tried.append(f"  {folder} ({what}): no cuda.h")
    return None, "\n".join(tried)


def sources(*patterns: str) -> list[str]:
    return sorted(
        os.path.relpath(name, ROOT)
        for pattern in patterns
        for name in glob.glob(str(ROOT / "csrc" / pattern))
    )


HEADERS, TRIED = cuda_headers()


class Build(build_ext):
    """Knows the name of a library that is no Python module."""

    def get_ext_filename(self, fullname: str) -> str:
        if fullname in OUTPUTS:
            return OUTPUTS[fullname]
        # setuptools asks for the name's last part alone when it builds in place.
        for name, output in OUTPUTS.items():
            if fullname == name.rsplit(".", 1)[1]:
                return os.path.basename(output)
        return super().get_ext_filename(fullname)

    def run(self) -> None:
        if HEADERS is None:
            raise SystemExit(
                "torcharena needs CUDA's header cuda.h, of the CUDA Toolkit 12 or 13, to "
                "build. Install the toolkit, set CUDA_HOME, or `pip install "
                f"nvidia-cuda-runtime`. Tried:\n{TRIED}"
            )
        if self.inplace:
            (ROOT / "python" / "torcharena" / "lib").mkdir(exist_ok=True)
        super().run()

    def build_extension(self, ext: Extension) -> None:
        if ext.name == MANAGEMENT:
            empty = Path(self.build_temp) / "nothing.c"
            empty.parent.mkdir(parents=True, exist_ok=True)
            empty.write_text("typedef int ta_nothing;\n")
            target = Path(self.build_lib) / OUTPUTS[SIMULATED]
            ext.sources = [str(empty)]
            ext.extra_link_args = [
                "-Wl,-soname,libnvidia-ml.so.1",
                "-Wl,--no-as-needed",
                str(target),
            ]
        super().build_extension(ext)


CHECKS = [("TA_CHECKING", "1")] if os.environ.get("TORCHARENA_CHECKS") == "1" else []


def extension(name: str, files: list[str], link: list[str], limited: bool) -> Extension:
    macros: list[tuple[str, str | None]] = [("_GNU_SOURCE", ""), *CHECKS]
    if limited:
        macros.append(("Py_LIMITED_API", "0x030A0000"))
    return Extension(
        name,
        files,
        include_dirs=["csrc/core", *([HEADERS] if HEADERS else [])],
        define_macros=macros,
        extra_compile_args=COMPILE,
        extra_link_args=[*LINK, *link],
        libraries=["pthread", "dl", "m"],
        py_limited_api=limited,
        depends=sources("*/*.h", "core/*/*.h", "*/*.inc"),
    )


def extensions() -> list[Extension]:
    core = extension(
        "torcharena._core",
        sources("core/*.c", "core/*/*.c", "driver/*.c", "torch/*.c", "py/*.c"),
        [],
        limited=True,
    )
    simulated = extension(
        SIMULATED,
        sources("simcuda/*.c", "driver/sim*.c", "driver/oracle*.c"),
        ["-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic", "-Wl,-z,defs"],
        limited=False,
    )
    return [core, simulated, Extension(MANAGEMENT, [])]


setup(
    license="Apache-2.0",
    ext_modules=extensions(),
    cmdclass={"build_ext": Build},
    # The build's front end installs these before it builds: headers are a requirement only
    # where the machine has none.
    setup_requires=[] if HEADERS else ["nvidia-cuda-runtime>=13"],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
