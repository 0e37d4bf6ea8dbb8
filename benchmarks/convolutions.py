"""What cuDNN answers about a program's convolutions on a GPU, to hold a rehearsal against.

    python -m benchmarks.convolutions --out FOLDER [--programs a,b] [--seconds 150]

Runs the programs under the arena with a library preloaded (convolutions.c, compiled here by
gcc) that writes down what PyTorch asks of cuDNN's backend and what it answers. Then asks
again, about every operation seen: which engines the heuristics list by the real handle, and
which by the device's own description, with their knobs and workspaces. FOLDER gets

    traces.tar      PROGRAM.trace.xz of each: the arena's recorded allocations
    asked.tar.xz    PROGRAM.PID.log of each: see convolutions.c
    lists.jsonl.xz  an operation a line, with its lists
    calls.json      the machine; the driver's functions that libcudnn calls, by what for

``graphs`` and ``lists`` below read the logs. It runs in a rehearsal too: there the handle's
lists are those of the simulated card."""

from __future__ import annotations

import argparse
import ctypes
import json
import lzma
import random
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .building import ROOT
from .contenders import environment
from .truths import ALONE, PROGRAMS, RECORD

WANTED = ("detector_boxes", "loop:resnet50_multiscale", "unet_denoise", "dqn_replay")
SOURCE = Path(__file__).with_name("convolutions.c")
LOG = "CONVOLUTIONS_LOG"  # the beginning of the name of a process's log

# cudnnBackendDescriptorType_t
ENGINE, CONFIG, HEURISTIC, PLAN, KNOB, GRAPH, DEVICE = 2, 3, 4, 5, 7, 15, 38
CONVOLUTIONS = {10: "forward", 11: "weights", 12: "data"}
# cudnnBackendAttributeName_t
MODE, OF_GRAPH, RESULTS, OF_DEVICE = 200, 201, 202, 204
OF_ENGINE, KNOBS, WORKSPACE = 300, 302, 303
PLAN_HANDLE, PLAN_CONFIG, PLAN_WORKSPACE = 400, 401, 402
KNOB_TYPE, KNOB_VALUE = 600, 601
PLAN_DEVICE, GRAPH_HANDLE, OPERATIONS = 407, 800, 801
ENGINE_GRAPH, INDEX, NOTES, BEHAVIOR, ENGINE_DEVICE = 1300, 1301, 1303, 1305, 1307
DEVICE_ID, DEVICE_JSON = 2700, 2702
# cudnnBackendAttributeType_t: its C type
C_TYPES: dict[int, Any] = {
    0: ctypes.c_void_p,
    2: ctypes.c_bool,
    3: ctypes.c_int64,
    4: ctypes.c_float,
    5: ctypes.c_double,
    15: ctypes.c_void_p,
    24: ctypes.c_char,
}
HANDLE, INT64, NUMERIC, DESCRIPTOR, INT32, CHAR = 0, 3, 11, 15, 23, 24
MODES = {"instant": 0, "b": 1, "fallback": 2, "a": 3}
MOST = 96  # configurations of a list

# A descriptor as a tree: [type, [[attribute, its type, [value or tree, ...]], ...]].
Tree = list[Any]


# --- reading a log -----------------------------------------------------------------------


class Node:
    """A descriptor of a log: what was set, what was got, how finalizing went."""

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.sets: dict[int, tuple[int, list[Any]]] = {}
        self.gets: dict[int, list[Any]] = {}
        self.status: int | None = None
        self.executed = 0
        self.failed = 0  # executions

    def tree(self) -> Tree:
        """Without handles."""
        return [
            self.kind,
            [
                [
                    name,
                    kind,
                    [v.tree() if isinstance(v, Node) else v for v in values],
                ]
                for name, (kind, values) in self.sets.items()
                if kind != HANDLE
            ],
        ]


def nodes(lines: Iterable[str]) -> Iterator[Node]:
    """Every descriptor of a log, in order of creation, as it was at its end."""
    alive: dict[str, Node] = {}
    made: list[Node] = []
    for line in lines:
        what, *words = line.split()
        if what == "C":
            alive[words[1]] = Node(int(words[0]))
            made.append(alive[words[1]])
            continue
        node = alive.get(words[0])
        if node is None:
            continue
        if what == "F":
            node.status = int(words[1])
        elif what == "X":
            node.executed += 1
            node.failed += words[1] != "0"
        elif what == "D":
            del alive[words[0]]
        elif words[3] == "0":
            name, kind = int(words[1]), int(words[2])
            values: list[Any]
            if kind == DESCRIPTOR:
                values = [alive.get(word) for word in words[4:]]
                values = [value for value in values if value is not None]
            elif kind in (4, 5):
                values = [float(word) for word in words[4:]]
            else:
                values = [int(word) for word in words[4:]]
            if what == "S":
                node.sets[name] = kind, values
            elif values or name not in node.gets:
                node.gets[name] = values
    yield from made


def graphs(lines: Iterable[str]) -> list[Tree]:
    """The operation graphs of one convolution each that a log has, each once."""
    found: dict[str, Tree] = {}
    for node in nodes(lines):
        _, operations = node.sets.get(OPERATIONS, (0, []))
        if len(operations) == 1 and operations[0].kind in CONVOLUTIONS:
            tree = node.tree()
            found.setdefault(json.dumps(tree), tree)
    return list(found.values())


# --- asking cuDNN ------------------------------------------------------------------------


class Failed(RuntimeError):
    """cuDNN's status is not 0."""


class Backend:
    """cuDNN's backend interface, of the library that torch has loaded."""

    def __init__(self) -> None:
        import torch

        torch.empty(1, device="cuda")
        front = ctypes.CDLL(None)
        self.library = (
            front if hasattr(front, "cudnnBackendFinalize") else self._library(torch)
        )
        self.handle = ctypes.c_void_p()
        self.call("cudnnCreate", ctypes.byref(self.handle))
        self.device = self.make(DEVICE)
        self.set(self.device, DEVICE_ID, INT32, [0])
        self.finalize(self.device)
        self.text = bytes(self.get(self.device, DEVICE_JSON, CHAR, 8192)).split(b"\0")[0]
        # The description that a rehearsal gives: from its text, without an id.
        self.described = self.make(DEVICE)
        self.set(self.described, DEVICE_JSON, CHAR, list(self.text + b"\0"))
        self.finalize(self.described)

    @staticmethod
    def _library(torch: Any) -> ctypes.CDLL:
        torch.backends.cudnn.version()
        with open("/proc/self/maps") as file:
            for line in file:
                if "libcudnn.so.9" in line:
                    return ctypes.CDLL(line.split()[-1])
        return ctypes.CDLL("libcudnn.so.9")

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.library, name)(*arguments)
        if status:
            raise Failed(f"{name}: {status}")

    def make(self, kind: int) -> Any:
        made = ctypes.c_void_p()
        self.call("cudnnBackendCreateDescriptor", kind, ctypes.byref(made))
        return made

    def drop(self, *descriptors: Any) -> None:
        for descriptor in descriptors:
            self.library.cudnnBackendDestroyDescriptor(descriptor)

    def set(self, d: Any, name: int, kind: int, values: list[Any]) -> None:
        made = (C_TYPES.get(kind, ctypes.c_int) * max(1, len(values)))()
        for i, value in enumerate(values):
            made[i] = value.value if isinstance(value, ctypes.c_void_p) else value
        count = ctypes.c_int64(len(values))
        self.call("cudnnBackendSetAttribute", d, name, kind, count, made)

    def get(self, d: Any, name: int, kind: int, most: int) -> list[Any]:
        made = (C_TYPES.get(kind, ctypes.c_int) * most)()
        count = ctypes.c_int64()
        self.call(
            "cudnnBackendGetAttribute",
            *(d, name, kind, ctypes.c_int64(most), ctypes.byref(count), made),
        )
        values = list(made)[: count.value]
        return [v[0] for v in values] if kind == CHAR else values

    def fill(self, d: Any, name: int, kind: int, most: int) -> list[Any]:
        """Descriptors of ``kind`` that another one has; the caller drops them."""
        made = [self.make(kind) for _ in range(most)]
        array = (ctypes.c_void_p * most)(*(m.value for m in made))
        count = ctypes.c_int64()
        try:
            self.call(
                "cudnnBackendGetAttribute",
                *(d, name, DESCRIPTOR, ctypes.c_int64(most), ctypes.byref(count), array),
            )
        except Failed:
            self.drop(*made)
            raise
        self.drop(*made[count.value :])
        return made[: count.value]

    def finalize(self, d: Any) -> None:
        self.call("cudnnBackendFinalize", d)

    def build(self, tree: Tree, by_handle: bool, made: list[Any]) -> Any:
        """The descriptor of a tree, and all below it, also put into ``made``."""
        kind, sets = tree
        d = self.make(kind)
        made.append(d)
        for name, value_kind, values in sets:
            if value_kind == DESCRIPTOR:
                values = [self.build(value, by_handle, made) for value in values]
            self.set(d, name, value_kind, values)
        if kind == GRAPH and by_handle:
            self.set(d, GRAPH_HANDLE, HANDLE, [self.handle])
        self.finalize(d)
        return d

    def config(self, config: Any) -> dict[str, Any]:
        """What a configuration says of itself."""
        said: dict[str, Any] = {}
        engines = knobs = []
        try:
            engines = self.fill(config, OF_ENGINE, ENGINE, 1)
            said["engine"] = self.get(engines[0], INDEX, INT64, 1)[0]
            said["behavior"] = self.get(engines[0], BEHAVIOR, 19, 16)
            said["notes"] = self.get(engines[0], NOTES, NUMERIC, 16)
            knobs = self.fill(config, KNOBS, KNOB, 32)
            said["knobs"] = [
                [
                    self.get(knob, KNOB_TYPE, 9, 1)[0],
                    self.get(knob, KNOB_VALUE, INT64, 1)[0],
                ]
                for knob in knobs
            ]
            said["workspace"] = self.get(config, WORKSPACE, INT64, 1)[0]
        except Failed as error:
            said["error"] = str(error)
        self.drop(*engines, *knobs)
        return said

    def list(
        self, graph: Any, mode: int, by_handle: bool, plans: int = 0
    ) -> list[dict[str, Any]]:
        """A heuristic's configurations; of the first ``plans`` that need no compiler also
        what finalizing the plan gives: ``plan`` is its workspace or the status."""
        heuristic = self.make(HEURISTIC)
        rows: list[dict[str, Any]] = []
        try:
            self.set(heuristic, OF_GRAPH, DESCRIPTOR, [graph])
            self.set(heuristic, MODE, 8, [mode])
            if not by_handle:
                self.set(heuristic, OF_DEVICE, DESCRIPTOR, [self.described])
            self.finalize(heuristic)
            configs = self.fill(heuristic, RESULTS, CONFIG, MOST)
            for config in configs:
                row = self.config(config)
                if len(rows) < plans and 0 not in row.get("behavior", [0]):
                    row["plan"] = self.plan(config, by_handle)
                rows.append(row)
            self.drop(*configs)
        except Failed as error:
            rows.append({"error": str(error)})
        self.drop(heuristic)
        return rows

    def plan(self, config: Any, by_handle: bool) -> int | str:
        plan = self.make(PLAN)
        try:
            self.set(plan, PLAN_CONFIG, DESCRIPTOR, [config])
            if by_handle:
                self.set(plan, PLAN_HANDLE, HANDLE, [self.handle])
            else:
                self.set(plan, PLAN_DEVICE, DESCRIPTOR, [self.described])
            self.finalize(plan)
            return int(self.get(plan, PLAN_WORKSPACE, INT64, 1)[0])
        except Failed as error:
            return str(error)
        finally:
            self.drop(plan)

    def same(self, graph: Any, row: dict[str, Any]) -> int | str:
        """The workspace that the described device has for a configuration of the handle's
        list."""
        made: list[Any] = []
        try:
            engine = self.make(ENGINE)
            made.append(engine)
            self.set(engine, ENGINE_GRAPH, DESCRIPTOR, [graph])
            self.set(engine, INDEX, INT64, [row["engine"]])
            self.set(engine, ENGINE_DEVICE, DESCRIPTOR, [self.described])
            self.finalize(engine)
            knobs = []
            for kind, value in row["knobs"]:
                knob = self.make(KNOB)
                made.append(knob)
                self.set(knob, KNOB_TYPE, 9, [kind])
                self.set(knob, KNOB_VALUE, INT64, [value])
                self.finalize(knob)
                knobs.append(knob)
            config = self.make(CONFIG)
            made.append(config)
            self.set(config, OF_ENGINE, DESCRIPTOR, [engine])
            if knobs:
                self.set(config, KNOBS, DESCRIPTOR, knobs)
            self.finalize(config)
            return int(self.get(config, WORKSPACE, INT64, 1)[0])
        except (Failed, KeyError) as error:
            return str(error)
        finally:
            self.drop(*reversed(made))


def ask(backend: Backend, tree: Tree, thorough: bool) -> dict[str, Any]:
    """Both ways' lists of one operation; ``thorough``: of all modes, with plans."""
    found: dict[str, Any] = {"graph": tree}
    made: list[Any] = []
    try:
        own = backend.build(tree, True, made)
        other = backend.build(tree, False, made)
        plans = 12 if thorough else 1
        for name in MODES if thorough else ("instant",):
            found[name] = backend.list(own, MODES[name], True, plans)
            found[f"{name}_described"] = backend.list(other, MODES[name], False, plans)
        for row in found["instant"][: 12 if thorough else 2]:
            row["same_described"] = backend.same(other, row)
    except Failed as error:
        found["error"] = str(error)
    backend.drop(*reversed(made))
    return found


# --- the children ------------------------------------------------------------------------


def child_program(program: str) -> None:
    from .truths import child

    child(program, "arena")


def child_lists(
    folder: Path, programs: list[str], part: int, parts: int, seconds: float, out: Path
) -> None:
    """One process's share of the operations, until its time is up."""
    end = time.monotonic() + seconds
    trees: dict[str, tuple[str, Tree]] = {}
    for program in programs:
        for log in sorted(folder.glob(f"{program}.*.log")):
            with open(log, errors="replace") as file:
                for tree in graphs(file):
                    trees.setdefault(json.dumps(tree), (program, tree))
    chosen = list(trees.values())
    random.Random(0).shuffle(chosen)
    backend = Backend()
    with open(out, "w") as file:
        for i, (program, tree) in enumerate(chosen):
            if i % parts != part:
                continue
            if time.monotonic() > end:
                break
            row = {"program": program, "of": len(chosen)}
            row |= ask(backend, tree, i // parts % 6 == 0)
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
            file.flush()


class Calls:
    """Counts the driver's functions by CUPTI."""

    def __init__(self) -> None:
        import torch

        place = Path(torch.__file__).parent.parent / "nvidia"
        found = sorted(place.glob("**/libcupti.so.1*"))
        self.library = ctypes.CDLL(str(found[-1]) if found else "libcupti.so")
        self.counts: dict[str, int] = {}
        kind = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p
        )
        self.hook = kind(self._note)
        self.subscriber = ctypes.c_void_p()
        for status in (
            self.library.cuptiSubscribe(ctypes.byref(self.subscriber), self.hook, None),
            self.library.cuptiEnableDomain(1, self.subscriber, 1),  # the driver's
        ):
            if status:
                raise Failed(f"CUPTI: {status}")

    def _note(self, data: Any, domain: int, which: int, call: Any) -> None:
        # CUpti_CallbackData: site (4), function's name, ...
        site = ctypes.c_int.from_address(call).value
        if site == 0:
            name = ctypes.c_char_p.from_address(call + 8).value or b""
            text = f"{name.decode(errors='replace')}#{which}"
            self.counts[text] = self.counts.get(text, 0) + 1

    def take(self) -> dict[str, int]:
        taken, self.counts = self.counts, {}
        return taken


def child_calls(folder: Path) -> None:
    """The driver's calls of a handle, a heuristic, a plan; the machine."""
    import torch

    from .machine import machine

    told: dict[str, Any] = {}
    trees: list[Tree] = []
    for log in sorted(folder.glob("*.log")):
        with open(log, errors="replace") as file:
            trees += graphs(file)[:12]
    torch.empty(1, device="cuda")
    try:
        calls = Calls()
    except (Failed, OSError, AttributeError) as error:
        told["error"] = str(error)[:200]
        calls = None
    backend = Backend()
    told["machine"] = machine() | {"cudnn": torch.backends.cudnn.version()}
    told["description"] = json.loads(backend.text)
    if not told["machine"]["simulated"]:
        # The devices as the library knows them: more than the text says (cudnn_real.c).
        for name, d in (("device", backend.device), ("described", backend.described)):
            told[name] = ctypes.string_at(d.value or 0, 0x228).hex()
    steps: list[Any] = []
    if calls:
        steps.append({"create": calls.take()})
    for tree in trees[::6]:
        made: list[Any] = []
        step: dict[str, Any] = {"operation": tree[1][0][2][0][0]}
        try:
            for by_handle in (True, False):
                graph = backend.build(tree, by_handle, made)
                way = "handle" if by_handle else "described"
                if calls:
                    step[f"graph_{way}"] = calls.take()
                backend.list(graph, 0, by_handle)
                if calls:
                    step[f"list_{way}"] = calls.take()
                backend.list(graph, 0, by_handle, 8)
                if calls:
                    step[f"list_and_plans_{way}"] = calls.take()
        except Failed as error:
            step["error"] = str(error)
        backend.drop(*reversed(made))
        steps.append(step)
    told["calls"] = steps
    print(json.dumps(told))


# --- the command -------------------------------------------------------------------------


def start(
    arguments: list[str], env: dict[str, str], log: Path
) -> subprocess.Popen[bytes]:
    with open(log, "wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.convolutions", *arguments],
            env=env,
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def wait(processes: dict[str, subprocess.Popen[bytes]], until: float) -> dict[str, int]:
    """Exit codes, of those that were still running -1."""
    codes = {}
    for name, process in processes.items():
        try:
            codes[name] = process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            codes[name] = -1
    return codes


def tail(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return " | ".join(lines[-3:])[:400]


def measure(out: Path, programs: list[str], seconds: float, parts: int) -> int:
    begin = time.monotonic()
    until = begin + seconds
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shim = folder / "convolutions.so"
        command = ["gcc", "-O2", "-std=c11", "-shared", "-fPIC", "-fvisibility=hidden"]
        subprocess.run([*command, "-o", shim, SOURCE, "-ldl", "-lpthread"], check=True)
        plain = environment("arena")
        before = plain.get("LD_PRELOAD")
        told: dict[str, Any] = {}

        def program(name: str) -> subprocess.Popen[bytes]:
            env = plain | {
                "LD_PRELOAD": ":".join(filter(None, [str(shim), before])),
                LOG: str(folder / name),
                RECORD: str(folder / f"{name}.trace.xz"),
            }
            return start(["--child", "program", name], env, folder / f"{name}.out")

        def logged(names: list[str]) -> None:
            for name in names:
                for log in folder.glob(f"{name}.[0-9]*[0-9]"):
                    log.rename(log.with_name(log.name + ".log"))

        def lists(names: list[str], spare: float) -> dict[str, subprocess.Popen[bytes]]:
            left = str(max(5.0, until - spare - time.monotonic()))
            return {
                f"lists-{names[0]}-{part}": start(
                    [
                        *("--child", "lists", str(folder), ",".join(names)),
                        *(str(part), str(parts), left),
                        str(folder / f"{names[0]}-{part}.jsonl"),
                    ],
                    plain,
                    folder / f"lists-{names[0]}-{part}.out",
                )
                for part in range(parts)
            }

        together = [name for name in programs if name not in ALONE]
        alone = [name for name in programs if name in ALONE]
        codes = wait({name: program(name) for name in together}, begin + seconds * 0.4)
        logged(together)
        asking = lists(together, 12 + seconds * 0.2) if together else {}
        for name in alone:
            codes |= wait({name: program(name)}, until - 30)
            logged([name])
        asking |= lists(alone, 16) if alone else {}
        calls = start(["--child", "calls", str(folder)], plain, folder / "calls.out")
        codes |= wait(asking | {"calls": calls}, until - 10)
        for line in (folder / "calls.out").read_text(errors="replace").splitlines():
            if line.startswith("{"):
                told = json.loads(line)
        told["codes"] = codes
        told["failed"] = {
            name: tail(folder / f"{name}.out") for name, code in codes.items() if code
        }
        told["said"] = {name: tail(folder / f"{name}.out") for name in programs}
        told["seconds"] = round(time.monotonic() - begin, 1)
        (out / "calls.json").write_text(json.dumps(told, indent=1) + "\n")
        with tarfile.open(out / "traces.tar", "w") as tar:
            for path in sorted(folder.glob("*.trace.xz")):
                tar.add(path, path.name)
        with lzma.open(out / "lists.jsonl.xz", "wb", preset=1) as file:
            for path in sorted(folder.glob("*.jsonl")):
                file.write(path.read_bytes())
        with tarfile.open(out / "asked.tar.xz", "w:xz", preset=1) as tar:
            for path in sorted(folder.glob("*.log")):
                tar.add(path, path.name)
    for name, code in codes.items():
        print(f"{name:<32} exit code {code} {told['failed'].get(name, '')}")
    print(f"{time.monotonic() - begin:.0f} s")
    return 1 if any(codes.values()) else 0


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 where a part failed; what the others found is there."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.convolutions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, help="a folder for the four files")
    parser.add_argument("--programs", default=",".join(WANTED), help="by commas")
    parser.add_argument("--seconds", type=float, default=150, help="in all (150)")
    parser.add_argument("--parts", type=int, default=5, help="processes that ask (5)")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        what, *words = options.child
        if what == "program":
            child_program(*words)
        elif what == "calls":
            child_calls(Path(words[0]))
        else:
            folder, names, part, parts, seconds, out = words
            child_lists(
                *(Path(folder), names.split(","), int(part), int(parts)),
                *(float(seconds), Path(out)),
            )
        return 0
    programs = options.programs.split(",")
    unknown = set(programs) - set(PROGRAMS)
    if options.out is None or unknown:
        parser.error(f"no such program: {unknown}" if unknown else "--out is wanted")
    return measure(options.out, programs, options.seconds, options.parts)


if __name__ == "__main__":
    sys.exit(main())
