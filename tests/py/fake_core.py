"""A model of the C library: the same functions, and counters that are plain sums.

Where a test needs no allocator it puts this in torcharena._core's place (see conftest.py)
and drives it by `alloc` and `free`. Its blocks lie one after another in pages of their own,
so that every number can be told from the list of blocks."""

from __future__ import annotations

from types import ModuleType
from typing import Any

PAGE = 4 << 20
TOTAL = 64 << 30
SMALL_MAX = 1 << 20
KINDS = ("all", "small", "large")


class Gauge:
    """current = increased - decreased; peak is the highest current since the last reset."""

    def __init__(self) -> None:
        self.current = self.peak = self.increased = self.decreased = 0

    def add(self, by: int) -> None:
        self.current += by
        if by > 0:
            self.increased += by
        else:
            self.decreased -= by
        self.peak = max(self.peak, self.current)

    def tuple(self) -> tuple[int, int, int, int]:
        return self.current, self.peak, self.increased, self.decreased


class Device:
    def __init__(self) -> None:
        self.gauges = {
            name: {kind: Gauge() for kind in KINDS}
            for name in (
                "allocations",
                "allocated",
                "requested",
                "active_blocks",
                "active",
                "mapped",
            )
        }
        self.sums = {n: Gauge() for n in ("reserved", "pages", "pending", "addresses")}
        self.blocks: dict[int, tuple[int, int, int]] = {}  # address: size, pages, stream
        self.next = 0x7F0000000000
        self.serial = 0


class FakeCore(ModuleType):
    Error = RuntimeError

    def __init__(self) -> None:
        super().__init__("torcharena._core")
        self.calls: list[tuple[Any, ...]] = []
        self.devices: dict[int, Device] = {}
        self.limits: dict[tuple[int, str], int] = {}
        self.said: list[str] = []
        self.is_created = False
        self.spill: int | None = None
        self.host: int | None = 1 << 40
        self.problem: str | None = None
        self.facts: dict[str, Any] = {
            "reason": "",
            "driver_version": 13000,
            "devices": 2,
            "name": "Model 64",
            "uuid": "GPU-0",
            "compute_capability": (9, 0),
            "multiprocessors": 132,
            "total": TOTAL,
            "granularity": 2 << 20,
            "peers": [1],
            "numa_node": -1,
            "vmm": True,
            "host_pages": True,
            "rdma": False,
            "wsl2": False,
            "mig": False,
            "context": False,
        }
        self.ledgers: dict[int, tuple[Any, ...]] = {}  # the arguments, by device
        self.ledger_rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self.ledger_problem = ""
        self.events: list[dict[str, Any]] | None = None
        self.recording: str | None = None

    # --- what the tests drive ---

    def device(self, index: int) -> Device:
        return self.devices.setdefault(index, Device())

    def alloc(self, size: int, index: int = 0, stream: int = 0) -> int:
        device = self.device(index)
        granules = -(-size // 512) * 512
        pages = -(-granules // PAGE)
        address, device.next = device.next, device.next + pages * PAGE
        device.serial += 1
        device.blocks[address] = (size, pages, stream)
        self._count(device, size, granules, 1)
        for name, by in (
            ("reserved", pages * PAGE),
            ("pages", pages),
            ("addresses", pages * PAGE),
        ):
            device.sums[name].add(by)
        self._count_mapped(device, size, pages * PAGE)
        self._event("map", index, address, pages * PAGE, stream)
        self._event("alloc", index, address, size, stream)
        return address

    def free(self, address: int, index: int = 0) -> None:
        device = self.device(index)
        size, pages, stream = device.blocks.pop(address)
        self._count(device, size, -(-size // 512) * 512, -1)
        self._event("free", index, address, size, stream)
        self._event("free_done", index, address, size, stream)
        for name, by in (("reserved", pages * PAGE), ("pages", pages)):
            device.sums[name].add(-by)
        self._count_mapped(device, size, -pages * PAGE)
        self._event("unmap", index, address, pages * PAGE, stream)

    def _count(self, device: Device, size: int, granules: int, sign: int) -> None:
        for kind in ("all", "small" if size <= SMALL_MAX else "large"):
            for name, by in (
                ("allocations", 1),
                ("allocated", granules),
                ("requested", size),
                ("active_blocks", 1),
                ("active", granules),
            ):
                device.gauges[name][kind].add(sign * by)

    def _count_mapped(self, device: Device, size: int, by: int) -> None:
        for kind in ("all", "small" if size <= SMALL_MAX else "large"):
            device.gauges["mapped"][kind].add(by)

    def _event(self, kind: str, index: int, address: int, size: int, stream: int) -> None:
        if self.events is not None:
            self.events.append(
                {
                    "kind": kind,
                    "device": index,
                    "address": address,
                    "size": size,
                    "stream": stream,
                    "serial": 0,
                    "free": 0,
                    "time_us": 1 + len(self.events),
                }
            )

    # --- the library's functions ---

    def hooks(self) -> dict[str, int]:
        names = (
            "alloc free init empty_cache memory_fraction base_address record_stream "
            "pool_begin pool_end pool_release"
        )
        return {name: 4096 + place for place, name in enumerate(names.split())}

    def library_path(self) -> str:
        return "libc.so.6"

    def create(
        self,
        fallback: bool = False,
        page_bytes: int = 0,
        slack: float = 0.0,
        guard: bool = False,
    ) -> None:
        more = [slack] if slack else []
        self.calls.append(("create", fallback, page_bytes, *more, *([guard] * guard)))
        self.is_created = True

    def set_spill(self, size: int | None, net: bool = True) -> None:
        self.spill = size

    def host_memory(self) -> int | None:
        return self.host

    def host_trim(self) -> int:
        self.calls.append(("host_trim",))
        return 1 << 30

    def step(self, index: int = -1) -> dict[str, Any]:
        self.calls.append(("step", index))
        return {"status": 0, "text": "ok"}

    def created(self) -> bool:
        return self.is_created

    def forked(self) -> bool:
        return False

    def driver_problem(self) -> str | None:
        return self.problem

    def probe(self, index: int) -> dict[str, Any]:
        return self.facts | {"reason": self.problem or ""}

    def ledger_open(self, index: int, *arguments: Any) -> dict[str, Any]:
        if self.ledger_problem:
            raise self.Error(self.ledger_problem)
        directory, uuid = arguments[:2]
        self.ledgers[index] = arguments
        return {"path": f"{directory}/{uuid}.ledger", "shared": True}

    def ledger_caps(
        self, index: int, device: int | None, tenant: int | None, mode: str
    ) -> int:
        self.ledgers[index] = (*self.ledgers[index][:5], device, tenant, mode)
        return 0

    def ledger_heed(self, index: int) -> int:
        self.calls.append(("ledger_heed", index))
        return 0

    def ledger_state(self, index: int) -> dict[str, Any]:
        return {"open": index in self.ledgers, "problem": ""}

    def ledger_read(self, directory: str, uuid: str) -> list[dict[str, Any]]:
        if self.ledger_problem:
            raise self.Error(self.ledger_problem)
        return list(self.ledger_rows.get((directory, uuid), []))

    def keep(self, kept: object) -> None:
        self.kept = kept

    def torch_install(self) -> None:
        self.calls.append(("torch_install",))

    def torch_status(self) -> dict[str, str]:
        return {
            "out_of_memory_error": "ok",
            "cacheInfo": "not exported; torch's own stays",
        }

    def messages(self) -> list[str]:
        said, self.said = self.said, []
        return said

    def set_limit(self, index: int, source: str, value: int | None) -> None:
        for one in range(self.facts["devices"]) if index < 0 else [index]:
            if value is None:
                self.limits.pop((one, source), None)
            else:
                self.limits[one, source] = value // PAGE * PAGE

    def limit(self, index: int) -> tuple[int | None, str]:
        found = [(value, s) for (one, s), value in self.limits.items() if one == index]
        return min(found, default=(None, "none"))

    def stats(self, index: int) -> dict[str, Any]:
        device = self.device(index)
        limit, source = self.limit(index)
        found: dict[str, Any] = {
            name: tuple(gauge.tuple() for gauge in kinds.values())
            for name, kinds in device.gauges.items()
        }
        found |= {name: gauge.tuple() for name, gauge in device.sums.items()}
        partly = device.sums["reserved"].current - device.gauges["active"]["all"].current
        split = [
            size
            for size, pages, _ in device.blocks.values()
            if size <= pages * PAGE - 512
        ]
        small = sum(size <= SMALL_MAX for size in split)
        holes = (len(split), small, len(split) - small)
        found |= {
            "idle": 0,
            "partly_used": partly,
            "largest_idle_partly_used": partly,
            "limit": limit,
            "limit_source": source,
            "page_bytes": PAGE,
            "oom_count": 1,
            "retry_count": 2,
            "page_moves": 3,
            "waits": 4,
            "wait_us": 5e5,
            "slow_us": 7.5e5,
            "slow_allocs": device.serial,
            "arenas": 1,
            "streams": 1,
            "pool_arenas": 0,
            "holes": holes,
            "host": (3 << 30, 4 << 30, 4 << 30, 1 << 30),
            "spilled": (2 << 30, 3 << 30, 3 << 30, 1 << 30),
            "dropped": (0, 0, 0, 0),
            "spill_allocs": 5,
            "spill_bytes": 6 << 30,
            "to_host": 8 << 30,
            "to_device": 4 << 30,
            "spill_wait_us": 250e3,
            "host_budget": self.spill or 0,
            "host_held": 3 << 30,
        }
        for call in ("reserve", "create", "release", "map", "unmap", "access", "event"):
            found[f"calls_{call}"] = 10
        return found

    def reset_peaks(self, index: int) -> None:
        device = self.device(index)
        for kinds in [*device.gauges.values(), device.sums]:
            for gauge in kinds.values():
                gauge.peak = gauge.current

    def reset_accumulated(self, index: int) -> None:
        device = self.device(index)
        for kinds in [*device.gauges.values(), device.sums]:
            for gauge in kinds.values():
                gauge.increased, gauge.decreased = gauge.current, 0

    def device_memory(self, index: int) -> tuple[int, int]:
        return TOTAL - self.device(index).sums["reserved"].current, TOTAL

    def device_used(self, index: int) -> bool:
        return index in self.devices

    def trim(self, index: int = -1) -> int:
        return 0

    def check(self) -> str | None:
        return None

    def mark(self, text: str) -> None:
        self.calls.append(("mark", text))

    def snapshot(self, index: int = -1) -> list[dict[str, Any]]:
        runs = []
        for one, device in sorted(self.devices.items()):
            if index not in (-1, one):
                continue
            for address, (size, pages, stream) in sorted(device.blocks.items()):
                used, whole = -(-size // 512) * 512, pages * PAGE
                blocks = [(address, used, size, "live")]
                if used < whole:
                    blocks.append((address + used, whole - used, 0, "free"))
                keys = ("address", "size", "requested", "state")
                runs.append(
                    {
                        "device": one,
                        "stream": stream,
                        "small": size <= SMALL_MAX,
                        "pool": (0, 0),
                        "address": address,
                        "size": whole,
                        "allocated": used,
                        "active": used,
                        "requested": size,
                        "page_bytes": PAGE,
                        "blocks": [
                            dict(zip(keys, block, strict=True)) for block in blocks
                        ],
                    }
                )
        return runs

    def history_start(self, longest: int) -> None:
        self.calls.append(("history_start", longest))
        self.events = self.events or []

    def history_stop(self) -> None:
        self.events = None

    def history_seen(self) -> int:
        return len(self.history())

    def history(self) -> list[dict[str, Any]]:
        return list(self.events or [])

    def record_start(self, path: str) -> None:
        if self.recording is not None:
            raise RuntimeError("one at a time")
        self.recording = path
        with open(path, "w") as file:
            file.write("a 1 512 0\nf 1\n")

    def record_stop(self) -> None:
        self.recording = None
