"""Numbers, snapshots and histories in torch's shape, against a plain model."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torcharena
from fake_core import PAGE, TOTAL, FakeCore
from hypothesis import given
from hypothesis import strategies as st
from torcharena.answers import memory, stats
from torcharena.answers.snapshot import Mapped, trace

GIB = 1 << 30


@pytest.fixture
def torch_(arena: FakeCore, monkeypatch: pytest.MonkeyPatch) -> Any:
    stand_in = SimpleNamespace(
        cuda=SimpleNamespace(
            device_count=lambda: 2,
            is_initialized=lambda: True,
        ),
        _C=SimpleNamespace(),
    )
    monkeypatch.setattr(memory, "_torch", stand_in)
    monkeypatch.setattr(memory, "when_cuda_is_up", lambda call: call())
    monkeypatch.setattr(memory._History, "enabled", None)
    monkeypatch.setattr(memory._History, "skip", frozenset())
    return stand_in


def test_counters_equal_sums_over_live_blocks(arena: FakeCore, torch_: Any) -> None:
    rng = random.Random(1)
    live: dict[int, int] = {}
    highest = 0
    for _ in range(300):
        if live and rng.random() < 0.45:
            address = rng.choice(sorted(live))
            arena.free(address)
            del live[address]
        else:
            size = rng.choice([1, 512, 513, 1 << 20, (1 << 20) + 1, 7 << 20])
            live[arena.alloc(size)] = size
        found = memory._memory_stats(0)
        for pool, keep in (
            ("all", lambda size: True),
            ("small_pool", lambda size: size <= 1 << 20),
            ("large_pool", lambda size: size > 1 << 20),
        ):
            sizes = [size for size in live.values() if keep(size)]
            assert found["requested_bytes"][pool]["current"] == sum(sizes)
            assert found["allocation"][pool]["current"] == len(sizes)
            assert found["allocated_bytes"][pool]["current"] == sum(
                -(-size // 512) * 512 for size in sizes
            )
            pages = [-(-size // PAGE) for size in sizes]
            assert found["segment"][pool]["current"] == sum(pages)
            assert found["reserved_bytes"][pool]["current"] == sum(pages) * PAGE
            assert found["inactive_split"][pool]["current"] == sum(
                size % PAGE != 0 for size in sizes
            )
        for key in ("reserved_bytes", "segment"):
            now = {pool: gauge["current"] for pool, gauge in found[key].items()}
            assert now["small_pool"] + now["large_pool"] == now["all"]
            peaks = {pool: gauge["peak"] for pool, gauge in found[key].items()}
            assert peaks["large_pool"] <= peaks["all"]
            assert peaks["small_pool"] + peaks["large_pool"] >= peaks["all"]
        highest = max(highest, sum(live.values()))
        assert found["requested_bytes"]["all"]["peak"] == highest
        for stat in found.values():
            for gauge in stat.values() if isinstance(stat, dict) else []:
                if isinstance(gauge, dict):
                    assert gauge["current"] == gauge["allocated"] - gauge["freed"]
                    assert gauge["current"] <= gauge["peak"]


def test_resets_reach_the_core(arena: FakeCore, torch_: Any) -> None:
    address = arena.alloc(GIB)
    arena.free(address)
    arena.alloc(PAGE)
    memory._reset_peak(0)
    found = memory._memory_stats(0)
    assert found["requested_bytes"]["all"]["peak"] == PAGE
    memory._reset_accumulated(0)
    found = memory._memory_stats(0)
    assert found["allocation"]["all"] == {
        "current": 1,
        "peak": 1,
        "allocated": 1,
        "freed": 0,
    }


def test_another_device_has_its_own_numbers(arena: FakeCore, torch_: Any) -> None:
    arena.alloc(GIB, index=1)
    assert memory._memory_stats(0)["requested_bytes"]["all"]["current"] == 0
    assert memory._memory_stats(1)["requested_bytes"]["all"]["current"] == GIB
    for device in (-1, 2):
        with pytest.raises(RuntimeError, match="there are 2"):
            memory._memory_stats(device)


def test_mem_get_info_under_a_cap_is_of_the_cap(arena: FakeCore, torch_: Any) -> None:
    arena.alloc(GIB)
    assert memory.mem_get_info(0) == (TOTAL - GIB, TOTAL)
    arena.set_limit(-1, "api", 16 * GIB)
    assert memory.mem_get_info(0) == (15 * GIB, 16 * GIB)
    assert memory.mem_get_info(1) == (16 * GIB, 16 * GIB)
    assert torcharena.device_memory(0) == (TOTAL - GIB, TOTAL)
    arena.set_limit(-1, "api", GIB // 2)  # lowered below what is held
    assert memory.mem_get_info(0) == (0, GIB // 2)
    arena.set_limit(-1, "api", 2 * TOTAL)
    assert memory.mem_get_info(0) == (TOTAL - GIB, TOTAL)


def test_the_fraction_is_a_cap_of_its_own(arena: FakeCore, torch_: Any) -> None:
    assert memory._get_fraction(1) == 1.0
    memory._set_fraction(0.25, 1)
    assert memory._get_fraction(1) == 0.25
    assert arena.limit(1) == (TOTAL // 4, "fraction") and arena.limit(0)[0] is None
    memory._set_fraction(1.0, 1)
    assert arena.limit(1)[0] is None


# --- snapshots -----------------------------------------------------------------------------


def test_blocks_tile_their_segments(arena: FakeCore, torch_: Any) -> None:
    arena.alloc(1000)
    arena.alloc(PAGE)
    arena.alloc(9 << 20, index=1, stream=7)
    snapshot = memory.memory_snapshot(None)
    assert [segment["device"] for segment in snapshot["segments"]] == [0, 0, 1]
    for segment in snapshot["segments"]:
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at
            assert block["state"] in (
                "active_allocated",
                "active_pending_free",
                "inactive",
            )
            at += block["size"]
        assert at == segment["address"] + segment["total_size"]
    assert snapshot["segments"][2]["stream"] == 7
    assert len(snapshot["device_traces"]) == 2


def test_a_pools_snapshot_has_the_pools_segments(arena: FakeCore, torch_: Any) -> None:
    arena.alloc(1000)
    assert memory.memory_snapshot((0, 0))["segments"]
    assert memory.memory_snapshot((3, 0))["segments"] == []
    assert memory.memory_snapshot((0, 0, False))["device_traces"] == [[], []]


def test_history_is_what_was_asked_for(arena: FakeCore, torch_: Any) -> None:
    memory._record_history("all", None, "python", 1000)
    assert arena.calls[-1] == ("history_start", 1000) and memory._history_enabled()
    first = arena.alloc(1000)
    arena.free(first)
    second = arena.alloc(PAGE + 1, index=1)
    (zero, one) = memory.memory_snapshot(None)["device_traces"]
    assert [(e["action"], e["addr"]) for e in zero] == [
        ("segment_map", first),
        ("alloc", first),
        ("free_requested", first),
        ("free_completed", first),
        ("segment_unmap", first),
    ]
    assert [(e["action"], e["size"]) for e in one] == [
        ("segment_map", 2 * PAGE),
        ("alloc", PAGE + 1),
    ]
    assert one[1]["addr"] == second
    memory._record_history("all", None, skip_actions=["segment_map", "segment_unmap"])
    (zero, _) = memory.memory_snapshot(None)["device_traces"]
    assert [e["action"] for e in zero] == ["alloc", "free_requested", "free_completed"]
    memory._record_history(None)
    assert not memory._history_enabled() and arena.events is None


def test_history_says_that_it_has_no_stacks(arena: FakeCore, torch_: Any) -> None:
    with pytest.warns(UserWarning, match="no stack traces"):
        memory._record_history("all", "all")
    with pytest.raises(RuntimeError, match="record_pinned_host_memory"):
        memory._record_history("all", None, record_pinned_host_memory=True)
    with pytest.raises(RuntimeError, match="expected state"):
        memory._record_history("some", None)


def test_an_unbounded_history_is_bounded(arena: FakeCore, torch_: Any) -> None:
    import sys

    memory._record_history("all", None, "python", sys.maxsize)
    assert arena.calls[-1] == ("history_start", memory._LONGEST_HISTORY)


PAGES = st.integers(min_value=0, max_value=40)


@given(st.lists(st.tuples(st.booleans(), PAGES, st.integers(min_value=1, max_value=12))))
def test_mapped_ranges_against_a_set_of_pages(steps: list[tuple[bool, int, int]]) -> None:
    mapped, model = Mapped(), set[int]()
    for add, start, length in steps:
        pages = set(range(start, start + length))
        if add:
            mapped.add(start, start + length)
            model |= pages
        else:
            mapped.remove(start, start + length)
            model -= pages
        assert {page for page in range(60) if page in mapped} == model
        ranges = mapped.ranges()
        assert all(a < b for a, b in ranges)
        assert all(left[1] < right[0] for left, right in itertools.pairwise(ranges))


@given(st.integers(min_value=0, max_value=2**32), st.integers(min_value=0, max_value=200))
def test_every_traced_address_was_mapped_then(seed: int, dropped: int) -> None:
    core, rng = FakeCore(), random.Random(seed)
    live = [
        core.alloc(rng.randrange(1, 9 << 20)) for _ in range(3)
    ]  # older than the history
    core.history_start(1)
    for _ in range(40):
        if live and rng.random() < 0.5:
            core.free(live.pop(rng.randrange(len(live))))
        else:
            live.append(core.alloc(rng.randrange(1, 9 << 20)))
    events = core.history()[dropped:]
    now = [(r["address"], r["address"] + r["size"]) for r in core.snapshot(0)]
    entries = trace(events, 0, Mapped(now))
    assert len(entries) <= len(events)
    # Walk back from now, as the viewer does, and forth again.
    mapped = Mapped(now)
    for entry in reversed(entries):
        start, end = entry["addr"], entry["addr"] + entry["size"]
        if entry["action"] == "segment_unmap":
            mapped.add(start, end)
        assert start in mapped
        if entry["action"] == "segment_map":
            mapped.remove(start, end)
    for entry in entries:
        start, end = entry["addr"], entry["addr"] + entry["size"]
        if entry["action"] == "segment_map":
            mapped.add(start, end)
        assert start in mapped
        if entry["action"] == "segment_unmap":
            mapped.remove(start, end)
    assert mapped.ranges() == Mapped(now).ranges()


# --- what is refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "remedy"),
    [
        ("_cuda_attach_out_of_memory_observer", (print,), "OutOfMemoryError"),
        ("_cuda_getCheckpointState", (0, (0, 1)), "cudagraph_trees"),
        ("_cuda_setCheckpointPoolState", (0, None, [], []), "cudagraph_trees"),
        ("_cuda_changeCurrentAllocator", (None,), "do not enable"),
        ("_cuda_cudaCachingAllocator_enable", (False,), "without torcharena"),
        ("_accelerator_setAllocatorSettings", ("expandable_segments:True",), "pinned_"),
    ],
)
def test_what_has_no_meaning_names_the_remedy(
    name: str, arguments: tuple[Any, ...], remedy: str
) -> None:
    with pytest.raises(RuntimeError, match=remedy):
        memory._REPLACED[name](*arguments)


def test_metadata_is_kept_and_said_to_have_no_effect(
    arena: FakeCore, torch_: Any
) -> None:
    with pytest.warns(UserWarning, match="torcharena.mark"):
        memory._set_metadata("step 1")
    assert memory._get_metadata() == "step 1"
    assert memory._REPLACED["_cuda_memoryMetadataSupported"]() is False


def test_live_blocks_of_a_pool(arena: FakeCore, torch_: Any) -> None:
    address = arena.alloc(1000)
    assert memory._check_pool(0, (0, 0), {address})
    assert not memory._check_pool(0, (0, 0), {address, 1})
    assert memory._check_pool(0, (9, 0), set())


# --- our own reports -----------------------------------------------------------------------


def test_memory_stats_of_ours(arena: FakeCore) -> None:
    arena.free(arena.alloc(3 * GIB))
    arena.alloc(GIB + 1)
    arena.set_limit(-1, "environment", 16 * GIB)
    found = torcharena.memory_stats(0)
    assert found["cap_bytes"] == 16 * GIB and found["cap_source"] == "environment"
    assert found["requested_bytes"] == GIB + 1
    assert found["requested_bytes.peak"] == 3 * GIB
    assert found["reserved_bytes"] == GIB + PAGE
    assert found["partly_used_bytes"] == PAGE - 512
    assert (
        found["page_moves"] == 3 and found["waits"] == 4 and found["wait_seconds"] == 0.5
    )
    assert found["slow_seconds"] == 0.75
    assert found["driver_calls"] == 70
    assert found["device_bytes"] == TOTAL


def test_memory_summary_is_a_table_for_people(arena: FakeCore) -> None:
    arena.alloc(GIB + 1)
    text = torcharena.memory_summary(0)
    assert "cap: none" in text
    arena.set_limit(-1, "api", 16 * GIB)
    text = torcharena.memory_summary(0)
    assert "cap: 16 GiB from torcharena.enable(limit=)" in text
    assert "the CUDA context comes on top" in text
    assert "page moves 3; waits 4;" in text
    assert "bringing pages took 0.750 s, of it waiting for streams 0.500 s" in text
    assert max(len(line) for line in text.splitlines()) <= 120


def test_newer_torch_gets_its_entries(arena: FakeCore) -> None:
    older = stats.nested(arena.stats(0))
    newer = stats.nested(arena.stats(0), newer=True)
    assert set(newer) - set(older) == {
        "num_oom_rejections",
        "reserved_bytes_by_private_pools",
    }


def test_pages_that_pass_between_pools_keep_the_books(arena: FakeCore) -> None:
    """A page kept ready counts as large; one that goes to a small place leaves the large."""
    raw = arena.stats(0)
    # Three pages came from the driver; two went to small places, one of them came back.
    raw["reserved"] = raw["pages"] = (3 * PAGE, 3 * PAGE, 3 * PAGE, 0)
    small, large = (PAGE, 2 * PAGE, 2 * PAGE, PAGE), (PAGE, PAGE, PAGE, 0)
    raw["mapped"] = ((2 * PAGE, 2 * PAGE, 3 * PAGE, PAGE), small, large)
    found = stats.nested(raw)
    assert found["segment"] == {
        "all": {"current": 3, "peak": 3, "allocated": 3, "freed": 0},
        "small_pool": {"current": 1, "peak": 2, "allocated": 2, "freed": 1},
        "large_pool": {"current": 2, "peak": 2, "allocated": 4, "freed": 2},
    }


def test_bytes_by_private_pool(arena: FakeCore) -> None:
    runs = [
        {"pool": pool, "small": small, "size": pages * PAGE}
        for pool, small, pages in (
            ((0, 0), False, 9),
            ((0, 7), True, 1),
            ((0, 7), False, 2),
            ((0, 7), False, 3),
            ((5, 0), False, 4),
        )
    ]
    found = stats.nested(arena.stats(0), newer=True, segments=runs)
    by_pool = found["reserved_bytes_by_private_pools"]
    assert list(by_pool) == [(0, 7), (5, 0)]
    now = {pool: gauge["current"] // PAGE for pool, gauge in by_pool[0, 7].items()}
    assert now == {"all": 6, "small_pool": 1, "large_pool": 5}
    assert by_pool[5, 0]["all"] == dict.fromkeys(
        ("current", "peak", "allocated"), 4 * PAGE
    ) | {"freed": 0}
