"""Rehearsals of small scripts, with the real torch: each way of ending, each exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import simulated
from torcharena.rehearsal import cards, marks, through_torch
from torcharena.rehearsal.launch import Run

pytestmark = pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing())
PACKAGE = simulated.PACKAGE

TRAIN = """
import os, sys, torch
assert __name__ == "__main__" and os.environ["TORCHARENA_REHEARSAL"] == "1"
open("left-behind.txt", "w").write("x")
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for rows in (10_000, 40_000, 20_000):
    hidden = torch.ones(rows, 64, device="cuda")
    model(hidden).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    del hidden
print("args", sys.argv[1:])
sys.exit(int(sys.argv[1]))
"""
FILL = """
import torch
def fill(gib):
    return torch.empty(gib << 30, dtype=torch.uint8, device="cuda")
kept = [fill(1) for _ in range(6)]
"""


def begin(
    folder: Path,
    script: str,
    *options: str,
    args: tuple[str, ...] = (),
    program: Any = None,
) -> subprocess.Popen[str]:
    (folder / "program.py").write_text(script)
    env = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("PYTORCH_", "TORCHARENA_"))
    }
    env["PYTHONPATH"] = str(PACKAGE.parent)
    return subprocess.Popen(
        [
            *(sys.executable, "-W", "ignore", "-m", "torcharena.rehearsal", "--json"),
            *options,
            *(program or ["program.py"]),
            *args,
        ],
        env=env,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def rehearsed(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any], str]:
    """(exit code, the object, all it printed)."""
    with process:
        try:
            out, err = process.communicate(timeout=simulated.TIMEOUT)
        finally:
            process.kill()
    assert out.strip(), err
    return process.returncode, json.loads(out.splitlines()[-1]), out + err


def rehearse(
    folder: Path,
    script: str,
    *options: str,
    args: tuple[str, ...] = (),
    program: Any = None,
) -> tuple[int, dict[str, Any], str]:
    """(exit code, the object, all it printed)."""
    return rehearsed(begin(folder, script, *options, args=args, program=program))


FOREVER = """
import torch, time
{}print("on")
while True:
    time.sleep(0.05)
"""


@pytest.fixture(scope="module", autouse=True)
def forever(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Programs that are ended after a while, which passes beside the other tests."""
    processes = {}
    for name, line in (("cuda", "kept = torch.ones(1 << 20, device='cuda')\n"), ("", "")):
        options = ("--timeout", "40s", *(() if name else ("--allocator", "native")))
        folder = tmp_path_factory.mktemp("forever")
        processes[name] = begin(folder, FOREVER.format(line), *options)
    yield processes
    for process in processes.values():
        with process:
            process.terminate()


def test_all_allocators_fit(tmp_path: Path) -> None:
    trace = tmp_path / "out.trace.xz"
    code, found, said = rehearse(
        tmp_path, TRAIN, "--gpu", "t4", "--record", str(trace), args=("0", "--gpu")
    )
    assert code == 0 and found["verdict"] == "fits"
    assert said.count("args ['0', '--gpu']") == 1  # the first run's output alone
    assert not (tmp_path / "left-behind.txt").exists()
    assert [row["allocator"] for row in found["runs"]] == [
        "arena",
        "expandable",
        "native",
    ]
    assert [row["replayed"] for row in found["runs"]] == [False, True, False]
    assert len({row["peak_requested"] for row in found["runs"]}) == 1
    assert all(row["steps"] == 3 and row["ended"] == "itself" for row in found["runs"])
    peak = found["peak_requested"]
    assert peak <= found["smallest_cap"] <= peak + (24 << 20)
    holders = found["holders"]
    assert abs(holders["requested"] - peak) < peak // 100
    assert holders["step"] == 2 and holders["kinds"]["parameters"] > 0
    assert any(row["place"].startswith("program.py:8 ") for row in holders["places"])
    from torcharena import traces

    (figures,) = traces.replay(trace)
    assert figures["peak_requested"] == peak and figures["steps"] == 3


def recorded(folder: Path, *lines: str) -> Run:
    """A run under the arena that left this trace."""
    trace = folder / "trace.1.trace"
    trace.write_text("".join(f"{line}\n" for line in lines))
    process = {
        "devices": [{"device": 0, "ooms": 0}],
        "steps": 2,
        "ended": "itself",
        "arena": True,
        "oom": None,
    }
    return Run(
        "arena", cards.find("16GiB"), None, processes=[process], traces=[str(trace)]
    )


def test_a_trace_stands_for_the_program_under_torchs_allocators(tmp_path: Path) -> None:
    mib = 1 << 20
    run = recorded(
        tmp_path,
        f"a 0 {12 * mib} 0",
        f"a 1 {2 * mib} 3",
        "f 0",
        marks.EMPTIED,
        f"a 2 {30 * mib} 0",
        "m step",
    )
    assert through_torch.whole(run)
    done = through_torch.again(run, "native", run.card, None)
    assert done is not None and done.replayed and done.exit_code == 0 and done.steps == 2
    assert done.figure("peak_requested") == 32 * mib and done.figure("allocations") == 3
    # 2 MiB come in a segment of 20; what was given back is not there any more.
    assert done.peak_reserved == (20 + 30) * mib
    short = through_torch.again(run, "expandable", run.card, 24 * mib)
    assert short is not None and short.oom and short.exit_code == 1


def test_a_trace_that_does_not_say_all_stands_for_nothing(tmp_path: Path) -> None:
    for silent in ("r 0 1", *marks.SILENT):
        assert not through_torch.whole(recorded(tmp_path, "a 0 512 0", silent))
    many = [f"a {i} 512 {i}" for i in range(33)]
    assert not through_torch.whole(recorded(tmp_path, *many))
    run = recorded(tmp_path, *many[:32])
    assert through_torch.whole(run)
    run.processes *= 2
    assert not through_torch.whole(run)


def test_it_ends_after_some_steps(tmp_path: Path) -> None:
    code, found, _ = rehearse(
        tmp_path, TRAIN, "--allocator", "native", "--steps", "2", args=("9",)
    )
    assert code == 0 and found["steps"] == 2 and found["ended"] == "steps"
    assert found["not_seen"] == ["an evaluation", "a save"]


def test_it_does_not_fit(tmp_path: Path) -> None:
    code, found, said = rehearse(tmp_path, FILL, "--gpu", "4GiB", "--allocator", "native")
    assert code == 3 and found["verdict"] == "does not fit" and found["oom"]
    assert found["need"] == 6 << 30
    assert found["margin"] == (4 << 30) - (530 << 20) - (6 << 30)
    last = [frame for frame in found["where"] if frame["file"].endswith("program.py")][-1]
    assert (last["line"], last["function"]) == (4, "fill")
    assert found["holders"]["now"] and found["holders"]["requested"] == 3 << 30
    assert "torch.OutOfMemoryError" in said  # the script's own traceback


def test_it_is_too_close_to_tell_on_either_side(tmp_path: Path) -> None:
    code, found, _ = rehearse(tmp_path, FILL, "--limit", "6GiB", "--allocator", "native")
    assert code == 4 and found["verdict"] == "too close to tell" and not found["oom"]
    assert found["margin"] == 0
    code, found, _ = rehearse(
        tmp_path, FILL, "--limit", "6140MiB", "--allocator", "arena"
    )
    assert code == 4 and found["verdict"] == "too close to tell" and found["oom"]
    assert found["margin"] == -(4 << 20)


def test_the_script_fails(tmp_path: Path) -> None:
    code, found, _ = rehearse(tmp_path, TRAIN, "--allocator", "native", args=("5",))
    assert (
        code == 1 and found["exit_code"] == 5 and found["verdict"] == "the script failed"
    )
    script = "import torch\ntorch.ones(1, device='cuda')\nraise KeyError('mine')\n"
    code, found, said = rehearse(tmp_path, script)
    assert code == 1 and "KeyError: 'mine'" in found["error"] and "mine" in said
    assert len(found["runs"]) == 1  # the other allocators would tell nothing


def test_a_module_and_a_program_without_cuda(tmp_path: Path) -> None:
    (tmp_path / "mod.py").write_text("import sys\nprint('mod', sys.argv[1:], __name__)\n")
    code, found, said = rehearse(
        tmp_path, "", "--allocator", "native", program=["-m", "mod"], args=("-m", "x")
    )
    assert code == 0 and "mod ['-m', 'x'] __main__" in said
    assert found["peak_requested"] == 0 and found["command"] == ["-m", "mod", "-m", "x"]


def test_a_launcher_with_two_ranks(tmp_path: Path) -> None:
    script = (
        "import os, torch, torch.distributed as dist\n"
        "rank = int(os.environ['LOCAL_RANK'])\ntorch.cuda.set_device(rank)\n"
        "dist.init_process_group('nccl')\n"
        "m = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())\n"
        "o = torch.optim.SGD(m.parameters(), 0.1)\n"
        "for _ in range(3):\n"
        "    m(torch.ones(1024 * (1 + rank), 64, device='cuda')).sum().backward(); o.step()\n"
        "dist.destroy_process_group()\n"
    )
    code, found, said = rehearse(
        tmp_path, script, "--gpus", "2", "--allocator", "native",
        program=["torchrun", "--nproc-per-node", "2", "--master-port", simulated.port(), "program.py"],
    )  # fmt: skip
    assert code == 0, said
    assert sorted(p["rank"] for p in found["processes"]) == ["0", "1"]
    devices = {p["rank"]: [d["device"] for d in p["devices"]] for p in found["processes"]}
    assert devices == {"0": [0], "1": [1]} and found["steps"] == 3


def test_one_rank_of_many(tmp_path: Path) -> None:
    script = (
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"
        "gloo = dist.new_group(backend='gloo')\n"
        "dist.barrier()\n"
        "seen = [None] * dist.get_world_size()\n"
        "dist.all_gather_object(seen, {'a': 1})\n"
        "assert seen == [{'a': 1}] * 64\n"
        "print('rank', dist.get_rank(), torch.cuda.current_device())\n"
    )
    code, found, said = rehearse(
        tmp_path, script, "--gpus", "8", "--world-size", "64", "--rank", "9",
        "--allocator", "native",
    )  # fmt: skip
    assert code == 0, said
    assert "rank 9 1" in said and found["processes"][0]["rank"] == "9"


def test_functions_from_python(tmp_path: Path) -> None:
    program = tmp_path / "notebook.py"
    program.write_text(
        "import torch, torcharena\n"
        "def fn(n, extra=0):\n"
        "    kept = torch.empty((n << 28) + extra, dtype=torch.uint8, device='cuda')\n"
        "if __name__ == '__main__':\n"
        "    report = torcharena.rehearse(fn, 2, extra=1 << 20, allocator='native', gpu='4GiB')\n"
        "    assert report.fits, report\n"
        "    assert report.peak_requested == (1 << 29) + (1 << 20)\n"
        "    place = report.holders['places'][0]['place']\n"
        "    assert place == 'notebook.py:3 fn', place\n"
        "    found = torcharena.find_batch_size(\n"
        "        fn, start=4, max=16, gpu='h100', limit='2GiB', multiple=2)\n"
        "    assert found == 6, found.table()\n"
        "    assert found.peaks()[4] == 1 << 30\n"
        "    print(found.table())\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=3 * simulated.TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "largest batch size" in done.stdout


def test_the_plugin_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("pytest_plugins = ['torcharena.testing']\n")
    (tmp_path / "test_mine.py").write_text(
        "import torch, torcharena\n"
        "def test_peak(cuda_memory):\n"
        "    assert torcharena.is_rehearsal()\n"
        "    a = torch.empty(1 << 20, dtype=torch.uint8, device='cuda'); del a\n"
        "    assert (cuda_memory.peak, cuda_memory.left) == (1 << 20, 0)\n"
        "    assert torch.cuda.get_device_properties(0).name == 'Tesla T4'\n"
        "    cuda_memory.restart()\n"
        "    assert cuda_memory.peak == 0\n"
        "def test_values():\n"
        "    assert torch.arange(5, device='cuda').sum().item() == 10\n"
    )

    def pytest_of(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
            capture_output=True,
            text=True,
            timeout=simulated.TIMEOUT,
            check=False,
        )

    done = pytest_of("--simulated-gpu", "t4")
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr
    wrong = pytest_of("--simulated-gpu", "moon")
    assert wrong.returncode == 4 and "no card of the catalogue" in wrong.stderr


def test_a_script_that_enables_the_arena_itself(tmp_path: Path) -> None:
    """Under every allocator that is what it runs on, and the report says so."""
    script = tmp_path / "enables.py"
    script.write_text(
        "import torch, torcharena\n"
        "torcharena.enable()\n"
        "kept = torch.empty(1 << 20, device='cuda')\n"
        "print(torcharena.report().data['now']['bytes'])\n"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torcharena", "rehearse", "--gpu", "16GiB"),
            *("--allocator", "native", str(script)),
        ],
        env={**os.environ, "PYTHONPATH": str(simulated.PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(4 << 20) in done.stdout
    assert "the script enables torcharena itself, so this is the arena" in done.stdout


SETTINGS = """
import os
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:{},max_split_size_mb:32"
import torch
torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
segments = torch.cuda.memory_snapshot()
print("expandable", [s.get("is_expandable") for s in segments])
print("settings", os.environ.get("PYTORCH_CUDA_ALLOC_CONF"))
torch.cuda.set_per_process_memory_fraction(1.0)
kept = [torch.empty(30 << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
"""


def test_the_allocator_is_the_rehearsals_whatever_the_script_asks_for(
    tmp_path: Path,
) -> None:
    """Its other settings hold; and its own share of the device raises no limit."""
    for allocator, asks in (("native", True), ("expandable", False)):
        code, found, said = rehearse(
            tmp_path, SETTINGS.format(asks), "--allocator", allocator, "--limit", "80MiB"
        )
        assert f"expandable [{not asks}" in said
        assert "max_split_size_mb:32" in said.split("settings ")[1].split("\n")[0]
        assert code == 3 and any(f["line"] == 10 for f in found["where"])


def test_what_may_take_another_course_is_no_trace_to_replay(tmp_path: Path) -> None:
    run = recorded(tmp_path, "a 0 512 0", marks.ASKED)
    assert through_torch.whole(run)  # it only printed it
    assert not through_torch.whole(recorded(tmp_path, marks.ASKED, "a 0 512 0"))
    run = recorded(tmp_path, "a 0 512 0")
    run.processes[0]["devices"][0]["ooms"] = 1  # refused, and it went on
    assert not through_torch.whole(run)
    run = recorded(tmp_path, "a 0 512 0")
    run.processes[0]["ended"] = "killed"  # by os._exit: the trace is cut short
    assert not through_torch.whole(run)


def test_a_trace_is_replayed_with_the_scripts_own_settings(tmp_path: Path) -> None:
    mib = 1 << 20
    run = recorded(tmp_path, f"a 0 {300 * mib} 0", "f 0", f"a 1 {150 * mib} 0")
    run.processes[0]["conf"] = "max_split_size_mb:32"
    done = through_torch.again(run, "native", run.card, None)
    assert done is not None and done.peak_reserved == 450 * mib


GONE = """
import os, signal, sys, time, torch
kept = [torch.ones(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
if sys.argv[1] == "exit":
    os._exit(0)
time.sleep(3)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_goes_without_a_word_has_left_its_figures(tmp_path: Path) -> None:
    code, found, _ = rehearse(
        tmp_path, GONE, "--allocator", "native", "--gpu", "4GiB", args=("exit",)
    )
    assert code == 0 and found["peak_requested"] == 256 << 20
    code, found, _ = rehearse(
        tmp_path, GONE, "--allocator", "native", "--gpu", "4GiB", args=("kill",)
    )
    assert code == 1 and found["peak_requested"] == 256 << 20


SPARSE = """
import torch
ones = torch.ones(2)
coo = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), ones).cuda()
print(coo.to_dense().sum().item())
print((coo @ torch.ones(2, 2, device="cuda")).tolist())
print(coo.coalesce().values().tolist())
"""


def test_what_kernels_for_sparse_tensors_make_is_told_as_not_computed(
    tmp_path: Path,
) -> None:
    code, found, _ = rehearse(tmp_path, SPARSE, "--allocator", "native")
    assert code == 0
    assert [place["line"] for place in found["values"]["places"]] == [5, 6]


def test_time_runs_out(forever: dict[str, subprocess.Popen[str]]) -> None:
    code, found, _ = rehearsed(forever["cuda"])
    assert code == 4 and found["timed_out"] and found["verdict"] == "cannot tell"
    assert found["where"][-1]["line"] == 6
    assert found["peak_requested"] == 4 << 20


def test_a_launching_process_that_never_uses_cuda_runs_out_of_time(
    forever: dict[str, subprocess.Popen[str]],
) -> None:
    code, found, _ = rehearsed(forever[""])
    assert code == 4 and found["timed_out"] and found["verdict"] == "cannot tell"
