"""enable() and the caps, on a model of the library and a stand-in for torch."""

from __future__ import annotations

import logging
import os
import signal
import time
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torcharena
from fake_core import PAGE, TOTAL, FakeCore
from hypothesis import given
from hypothesis import strategies as st
from torcharena import installing, state
from torcharena.answers import memory
from torcharena.caps import caps

GIB = 1 << 30


class FakeTorch(SimpleNamespace):
    """As much of torch as enable() touches before CUDA is up."""

    def __init__(self) -> None:
        super().__init__()
        self.installed: list[Any] = []
        self.waiting: list[Any] = []
        self.cuda = SimpleNamespace(
            memory=SimpleNamespace(change_current_allocator=self.installed.append),
            _lazy_call=self.waiting.append,
        )

    def bring_up_cuda(self) -> None:
        for call in self.waiting:
            call()


@pytest.fixture
def torch_(fake: FakeCore, monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    stand_in = FakeTorch()
    up: list[bool] = []
    monkeypatch.setattr(state, "current", state.State())
    monkeypatch.setattr(installing, "_checked_torch", lambda: stand_in)
    monkeypatch.setattr(installing, "_allocator", lambda torch, library: object())
    monkeypatch.setattr(caps, "_totals", lambda: [TOTAL, TOTAL] if up else None)
    monkeypatch.setattr(caps, "announcement", lambda: "announced")
    monkeypatch.setattr(caps, "device_index", lambda device: device or 0)
    monkeypatch.setattr(memory, "install", lambda torch: None)
    stand_in.waiting.append(lambda: up.append(True))
    return stand_in


def test_enable_installs_once(fake: FakeCore, torch_: FakeTorch) -> None:
    assert not torcharena.enabled()
    torcharena.enable(limit="16GiB")
    assert torcharena.enabled() and len(torch_.installed) == 1
    assert torcharena.limit() == 16 * GIB
    assert fake.calls == [("torch_install",)]
    torch_.bring_up_cuda()
    assert fake.calls == [("torch_install",), ("create", False, 0)]
    assert fake.limit(0) == fake.limit(1) == (16 * GIB, "api")
    torcharena.enable(limit="16GiB")
    torcharena.enable(limit=16 * GIB)  # the same, otherwise written
    assert len(torch_.installed) == 1


def test_other_settings_are_an_error_that_says_what_holds(
    fake: FakeCore, torch_: FakeTorch
) -> None:
    torcharena.enable(limit="16GiB")
    with pytest.raises(RuntimeError) as error:
        torcharena.enable(limit="8GiB")
    assert "limit='16GiB'" in str(error.value) and "limit='8GiB'" in str(error.value)
    assert "set_limit" in str(error.value)
    assert torcharena.limit() == 16 * GIB


@pytest.mark.parametrize("limit", ["16GB", "16 GiB", -1, True, 1.5, "lots"])
def test_a_bad_limit_changes_nothing(
    fake: FakeCore, torch_: FakeTorch, limit: Any
) -> None:
    with pytest.raises(ValueError, match="accepted"):
        torcharena.enable(limit=limit)
    assert not torcharena.enabled() and not fake.is_created


def test_a_bad_environment_changes_nothing(
    fake: FakeCore, torch_: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHARENA_LIMT", "16GiB")
    with pytest.raises(ValueError, match="TORCHARENA_LIMT"):
        torcharena.enable()
    assert not torcharena.enabled()


def test_spill_is_told_to_the_library(fake: FakeCore, torch_: FakeTorch) -> None:
    torcharena.enable(limit="16GiB", spill="64GiB")
    assert fake.spill is None
    torch_.bring_up_cuda()
    assert fake.spill == 64 * GIB
    torcharena.enable(limit="16GiB", spill="64GiB")
    with pytest.raises(RuntimeError, match=r"spill='64GiB'.*cannot become"):
        torcharena.enable(limit="16GiB", spill="32GiB")


def test_spill_by_the_environment_and_then_by_the_program(
    fake: FakeCore, torch_: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHARENA_LIMIT", "16GiB")
    installing.enable_from_environment()
    torch_.bring_up_cuda()
    torcharena.enable(spill="8GiB")
    assert fake.spill == 8 * GIB
    monkeypatch.setattr(state, "current", state.State())
    monkeypatch.setenv("TORCHARENA_SPILL", "8GiB")
    installing.enable_from_environment()
    assert state.current.spill == 8 * GIB
    with pytest.raises(RuntimeError, match="cannot become"):
        torcharena.enable(spill="9GiB")


@pytest.mark.parametrize(
    ("fact", "said"), [("vmm", "virtual memory"), ("host_pages", "pages of host memory")]
)
def test_spill_is_refused_where_it_cannot_be(
    fake: FakeCore, torch_: FakeTorch, fact: str, said: str
) -> None:
    fake.facts[fact] = False
    with pytest.raises(RuntimeError, match=f"spill=64GiB.*{said}"):
        torcharena.enable(spill="64GiB", fallback=True)
    assert not torcharena.enabled()
    torcharena.enable(fallback=True)


def test_more_than_the_machine_has_warns_or_raises(
    fake: FakeCore, torch_: FakeTorch
) -> None:
    fake.host = 20 * GIB
    torcharena.enable(spill="64GiB")
    with pytest.warns(UserWarning, match="64GiB was asked for.*20 GiB"):
        torch_.bring_up_cuda()
    assert fake.spill == 64 * GIB
    fake.is_created = False
    state.current.strict = True
    with pytest.raises(RuntimeError, match="20 GiB"):
        torch_.bring_up_cuda()


@pytest.mark.parametrize("spill", ["50%", "64GB", -1])
def test_a_spill_that_makes_no_sense(
    fake: FakeCore, torch_: FakeTorch, spill: str
) -> None:
    with pytest.raises(ValueError, match="spill="):
        torcharena.enable(spill=spill)


def test_without_vmm_it_raises_and_names_the_way_out(
    fake: FakeCore, torch_: FakeTorch
) -> None:
    fake.facts["vmm"] = False
    with pytest.raises(RuntimeError, match="fallback=True"):
        torcharena.enable()
    assert not torcharena.enabled() and not torch_.installed
    torcharena.enable(fallback=True)
    torch_.bring_up_cuda()
    assert ("create", True, 0) in fake.calls and torcharena.enabled()


def test_without_a_gpu_it_raises_and_says_why(fake: FakeCore, torch_: FakeTorch) -> None:
    fake.problem = "libcuda.so.1 is not there"
    for fallback in (False, True):
        with pytest.raises(
            RuntimeError, match=r"no NVIDIA GPU.*libcuda.so.1 is not there"
        ):
            torcharena.enable(fallback=fallback)
    assert not torcharena.enabled()


def test_zero_is_a_cap_and_none_is_not(fake: FakeCore, torch_: FakeTorch) -> None:
    torcharena.enable(limit=0)
    assert torcharena.limit() == 0
    torcharena.set_limit(None)
    assert torcharena.limit() is None


def test_a_share_waits_for_the_device(fake: FakeCore, torch_: FakeTorch) -> None:
    torcharena.enable(limit="80%")
    assert torcharena.limit() is None
    torch_.bring_up_cuda()
    assert torcharena.limit(0) == torcharena.limit(1) == TOTAL * 4 // 5 // PAGE * PAGE
    torcharena.set_limit("50%", device=1)
    assert torcharena.limit(1) == TOTAL // 2
    assert torcharena.limit(0) == TOTAL * 4 // 5 // PAGE * PAGE


def test_a_cap_set_before_the_device_is_there_takes_the_shares_place(
    fake: FakeCore, torch_: FakeTorch
) -> None:
    torcharena.enable(limit="80%")
    torcharena.set_limit("1GiB")
    torch_.bring_up_cuda()
    assert torcharena.limit(0) == torcharena.limit(1) == GIB


def test_environment_enables_and_code_adds_its_own(
    fake: FakeCore, torch_: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHARENA_ENABLE", "1")
    monkeypatch.setenv("TORCHARENA_LIMIT", "8GiB")
    installing.enable_from_environment()
    installing.enable_from_environment()
    assert torcharena.limit() == 8 * GIB
    torcharena.enable(limit="4GiB")  # the program's own cap, lower
    assert torcharena.limit() == 4 * GIB
    with pytest.raises(RuntimeError, match="4GiB"):
        torcharena.enable(limit="2GiB")
    assert len(torch_.installed) == 1


def test_environment_starts_no_driver(
    fake: FakeCore, torch_: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHARENA_ENABLE", "1")
    fake.facts["vmm"] = False
    installing.enable_from_environment()
    with pytest.raises(RuntimeError, match="fallback"):
        torch_.bring_up_cuda()


def test_another_sources_cap_clamps_and_is_named(
    fake: FakeCore, torch_: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHARENA_LIMIT", "8GiB")
    with pytest.warns(UserWarning, match="16 GiB.*8 GiB from TORCHARENA_LIMIT") as warned:
        torcharena.enable(limit="16GiB")
    assert len(warned) == 1
    assert torcharena.limit() == 8 * GIB
    with warnings.catch_warnings():  # said once
        warnings.simplefilter("error")
        torcharena.set_limit("16GiB")
        torcharena.set_limit("2GiB")
    assert torcharena.limit() == 2 * GIB
    with pytest.warns(UserWarning, match="no cap was asked for"):
        torcharena.set_limit(None)
    assert torcharena.limit() == 8 * GIB


def test_strict_raises_and_changes_nothing(
    fake: FakeCore, torch_: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHARENA_LIMIT", "8GiB")
    torcharena.enable(strict=True)
    torcharena.set_limit("4GiB")
    with pytest.raises(RuntimeError, match="TORCHARENA_LIMIT"):
        torcharena.set_limit("16GiB")
    assert torcharena.limit() == 4 * GIB
    torcharena.set_limit("6GiB")
    assert torcharena.limit() == 6 * GIB


def test_a_clamp_under_strict_installs_nothing(
    fake: FakeCore, torch_: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHARENA_LIMIT", "8GiB")
    with pytest.raises(RuntimeError, match="TORCHARENA_LIMIT"):
        torcharena.enable(limit="16GiB", strict=True)
    assert not torcharena.enabled() and not torch_.installed


def test_what_code_says_goes_before_the_environment(
    fake: FakeCore, torch_: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHARENA_FALLBACK", "1")
    monkeypatch.setenv("TORCHARENA_PAGE", "8MiB")
    torcharena.enable(fallback=False)
    torch_.bring_up_cuda()
    assert ("create", False, 8 << 20) in fake.calls


def test_slack_reaches_the_library(
    fake: FakeCore, torch_: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHARENA_SLACK", "1.5")
    torcharena.enable(slack=1.02)
    with pytest.raises(RuntimeError, match=r"slack=1\.02.*slack=1\.1"):
        torcharena.enable(slack=1.1)
    torch_.bring_up_cuda()
    assert ("create", False, 0, 1.02) in fake.calls


def test_the_environments_slack_cannot_become_another(
    fake: FakeCore, torch_: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHARENA_SLACK", "1.5")
    installing.enable_from_environment()
    with pytest.raises(RuntimeError, match=r"environment's.*slack=1.5.*slack=1.1"):
        torcharena.enable(slack=1.1)
    torcharena.enable(slack=1.5)
    torch_.bring_up_cuda()
    assert ("create", False, 0, 1.5) in fake.calls


@pytest.mark.parametrize("slack", [0.99, 0, -1, float("nan"), float("inf"), True, "1.02"])
def test_a_bad_slack_changes_nothing(
    fake: FakeCore, torch_: FakeTorch, slack: Any
) -> None:
    with pytest.raises(ValueError, match=r"slack=.*1\.0"):
        torcharena.enable(slack=slack)
    assert not torcharena.enabled()


@given(
    st.lists(
        st.tuples(
            st.sampled_from([-1, 0, 1]),
            st.sampled_from(["api", "environment", "fraction"]),
            st.none() | st.integers(min_value=0, max_value=1 << 40),
        ),
        max_size=12,
    )
)
def test_caps_that_wait_are_the_librarys(
    steps: list[tuple[int, str, int | None]],
) -> None:
    waiting, kept, handed = state.Waiting(), FakeCore(), FakeCore()
    for device, source, size in steps:
        waiting.set_limit(device, source, size)
        kept.set_limit(device, source, size)
        for one in (0, 1):
            assert waiting.limit(one)[0] == kept.limit(one)[0]
    waiting.hand_over(handed)
    assert handed.limits == kept.limits


def test_caps_round_down_without_complaint(fake: FakeCore, torch_: FakeTorch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torcharena.enable(limit=PAGE + 1)
    assert torcharena.limit() == PAGE


def test_the_line_is_logged_once_by_the_first_rank(
    fake: FakeCore,
    torch_: FakeTorch,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torcharena.enable()
    with caplog.at_level(logging.INFO, logger="torcharena"):
        torch_.bring_up_cuda()
    assert [record.message for record in caplog.records] == ["announced"]
    caplog.clear()
    monkeypatch.setattr(state.current, "announced", False)
    monkeypatch.setenv("LOCAL_RANK", "3")
    with caplog.at_level(logging.INFO, logger="torcharena"):
        installing._cuda_is_up()
    assert not caplog.records


def test_what_the_library_says_is_passed_on(arena: FakeCore) -> None:
    arena.said.append("a stream was lost")
    with pytest.warns(UserWarning, match="a stream was lost"):
        torcharena.memory_stats(0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: torcharena.set_limit("1GiB"),
        lambda: torcharena.limit(),
        lambda: torcharena.memory_stats(),
        lambda: torcharena.memory_summary(),
        lambda: torcharena.record("x"),
    ],
)
def test_before_enable_it_says_what_is_missing(
    call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "current", state.State())
    with pytest.raises(RuntimeError, match=r"after torcharena.enable\(\)"):
        call()


class Probe:
    """A library whose driver answers, late or not at all."""

    def __init__(self, seconds: float) -> None:
        self.here = os.getpid()
        self.seconds = seconds

    def probe(self, index: int) -> dict[str, Any]:
        if os.getpid() != self.here:
            time.sleep(self.seconds)
        return {"reason": "", "asked_in_the_process": os.getpid() == self.here}


def test_the_driver_is_asked_where_children_are_reaped_by_the_kernel() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        found = installing.probed(Probe(0))
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert found == {"reason": "", "asked_in_the_process": False}


def test_a_driver_that_hangs_in_a_child_is_asked_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(installing, "_PROBE_SECONDS", 0.1)
    assert installing.probed(Probe(60))["asked_in_the_process"]


def test_a_forked_child_is_told(fake: FakeCore, torch_: FakeTorch) -> None:
    torcharena.enable()
    state.current.creator = os.getpid() + 1
    with pytest.raises(RuntimeError, match="spawn"):
        torcharena.enable(limit="1GiB")


@pytest.mark.parametrize("device", [-1, 8, "cuda:9", "cpu"])
def test_devices_that_are_not_there(arena: FakeCore, device: int | str) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: torcharena.set_limit("1GiB", device=device),
        lambda: torcharena.limit(device),
        lambda: torcharena.memory_stats(device),
        lambda: torcharena.device_memory(device),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=f"device={device}: "):
            call()


def test_marks_are_text() -> None:
    for wrong in (b"x", 3, None):
        with pytest.raises(TypeError, match="one line of text, a str"):
            torcharena.mark(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 16, "3MiB", PAGE - 1])
def test_a_cap_below_a_page_would_refuse_everything(
    arena: FakeCore, size: int | str
) -> None:
    with pytest.raises(ValueError, match=r"is less than a page of 4 MiB"):
        torcharena.set_limit(size)
    assert torcharena.limit(0) is None
    torcharena.set_limit(0)
    assert torcharena.limit(0) == 0
