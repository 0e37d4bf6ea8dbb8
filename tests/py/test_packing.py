"""Functions that are taken to another process from where they stand: a notebook's cells."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# What a kernel does to the cells it runs: a file of their own that is not there, kept sources,
# a __main__ without a file.
KERNEL = """
import linecache, pickle, subprocess, sys, types
class Shell: pass
shell = Shell()
shell.compile = Shell()
shell.compile._filename_map = {}
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell)
if "WITHOUT" in sys.argv: sys.modules["cloudpickle"] = None
def run_cells(cells):
    space = vars(sys.modules["__main__"])
    del space["__file__"]
    for number, cell in enumerate(cells, 1):
        name = f"/tmp/ipykernel_1/{number}.py"
        linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)
        shell.compile._filename_map[name] = number
        exec(compile(cell, name, "exec"), space)
def call(fn, *args):
    from torcharena.rehearsal import packing
    try:
        packed = packing.packed(fn, args, {})
    except TypeError as error:
        print("refused:", error, flush=True)
        return
    open("call", "wb").write(packed)
    run = [sys.executable, "-m", "torcharena.rehearsal.calling", "call"]
    subprocess.run(run, stderr=subprocess.STDOUT)
"""

CELLS = [
    "import math, threading\nfrom dataclasses import dataclass\nimport json as j\nlock = threading.Lock()\n",
    """
@dataclass
class Config:
    width: int = 7

class Base:
    def of(self, n):
        return n * self.config.width

class Model(Base):
    def __init__(self, config):
        self.config = config
CONFIG = Config(3)
""",
    """
def fails():
    raise ValueError("it would not")
def train(n, config=CONFIG):
    print("got", Model(config).of(n) + math.floor(1.5), j.dumps([1]))
    if n < 0:
        fails()
def holds():
    return lock
""",
    "call(train, 5)\ncall(train, 2, Config(10))\ncall(train, -1)\ncall(holds)\ncall(train, lock)\n",
]


@pytest.mark.parametrize("way", ["cloudpickle", "WITHOUT"])
def test_a_notebooks_functions(tmp_path: Path, way: str) -> None:
    if way == "cloudpickle":
        pytest.importorskip("cloudpickle")
    (tmp_path / "kernel.py").write_text(f"{KERNEL}\nrun_cells({CELLS!r})\n")
    done = subprocess.run(
        [sys.executable, "kernel.py", way],
        cwd=tmp_path,
        env={"PYTHONPATH": ":".join([str(ROOT / "python"), *sys.path[1:]])},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout
    assert done.returncode == 0 and "got 16 [1]" in said, said + done.stderr
    assert "got 21 [1]" in said
    # A traceback of the cells alone, with their lines.
    start = said.index("Traceback")
    trace = said[start : said.index("ValueError: it would not", start)]
    assert 'File "In[3]", line 7, in train' in trace and "fails()" in trace, trace
    assert "calling.py" not in trace and "runpy" not in trace
    refused = [line for line in said.splitlines() if line.startswith("refused")]
    assert len(refused) == 2, said
    assert "`lock`" in refused[0] if way == "cloudpickle" else "lock" in refused[0]
    assert "argument" in refused[1]
