"""cuDNN asked through its backend interface, by the real handle and by a device's description.
Needs a GPU, or a rehearsal."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from .logs import DESCRIPTOR, HANDLE, Tree

__all__ = ["Backend", "Calls", "Failed", "ask"]

# cudnnBackendDescriptorType_t
ENGINE, CONFIG, HEURISTIC, PLAN, KNOB, GRAPH, DEVICE = 2, 3, 4, 5, 7, 15, 38
# cudnnBackendAttributeName_t
MODE, OF_GRAPH, RESULTS, OF_DEVICE = 200, 201, 202, 204
OF_ENGINE, KNOBS, WORKSPACE = 300, 302, 303
PLAN_HANDLE, PLAN_CONFIG, PLAN_WORKSPACE = 400, 401, 402
KNOB_TYPE, KNOB_VALUE = 600, 601
PLAN_DEVICE, GRAPH_HANDLE = 407, 800
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
INT64, NUMERIC, INT32, CHAR = 3, 11, 23, 24
MODES = {"instant": 0, "b": 1, "fallback": 2, "a": 3}
MOST = 96  # configurations of a list


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
