"""Whose caps hold for a process: sources, scopes, tenants, and a file that changes."""

from __future__ import annotations

import logging
import os
import pwd
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torcharena
from fake_core import TOTAL, FakeCore
from torcharena import installing, state, stats
from torcharena.answers import memory
from torcharena.caps import (
    admin_file,
    caps,
    hardware,
    ledgers,
    reader,
    table,
    tenants,
    trust,
    watching,
)

GIB = 1 << 30


class Machine:
    """A machine with an administrator's file, and one process that enables the arena."""

    def __init__(self, folder: Path, core: FakeCore) -> None:
        self.path = folder / "limits.toml"
        self.core = core
        self.waiting: list[Any] = []

    def write(self, text: str) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.chmod(0o644)
        new.rename(self.path)

    def bring_up_cuda(self) -> None:
        for call in self.waiting:
            call()


@pytest.fixture
def machine(
    fake: FakeCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Machine]:
    made = Machine(tmp_path, fake)
    up: list[bool] = []
    made.waiting.append(lambda: up.append(True))
    torch = SimpleNamespace(
        cuda=SimpleNamespace(
            memory=SimpleNamespace(change_current_allocator=lambda allocator: None),
            _lazy_call=made.waiting.append,
        )
    )
    monkeypatch.setattr(state, "current", state.State())
    monkeypatch.setattr(installing, "_checked_torch", lambda: torch)
    monkeypatch.setattr(installing, "_allocator", lambda torch, library: object())
    monkeypatch.setattr(memory, "install", lambda torch: None)
    monkeypatch.setattr(caps, "_totals", lambda: [TOTAL, TOTAL] if up else None)
    monkeypatch.setattr(caps, "announcement", lambda: "announced")
    for module in (caps, table, stats):
        monkeypatch.setattr(module, "device_index", lambda device: device or 0)
    monkeypatch.setattr(admin_file, "PATH", str(made.path))
    monkeypatch.setattr(trust, "TRUSTED", {0, os.getuid()})
    monkeypatch.setattr(ledgers, "unusable", lambda path: "")
    monkeypatch.setattr(installing, "say_refused", lambda reason: None)
    # No thread: the tests look themselves.
    monkeypatch.setattr(watching.Watcher, "start", lambda self: watchers.append(self))
    watchers.clear()
    yield made


watchers: list[watching.Watcher] = []


def look(times: int = 2) -> None:
    """What the thread does, so many times."""
    for _ in range(times):
        watchers[0].look()


def quiet(action: Any, *arguments: Any, **named: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        action(*arguments, **named)


# --- the least of all sources -----------------------------------------------------------------
def test_the_administrators_cap_holds_over_the_others(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.write('[limits]\nprocess = "8GiB"')
    monkeypatch.setenv("TORCHARENA_LIMIT", "4GiB")
    with pytest.warns() as said:
        torcharena.enable(limit="16GiB")
    assert [str(one.message) for one in said] == [
        "torcharena: a cap of 16 GiB was asked for; the one of 4 GiB from "
        "TORCHARENA_LIMIT or --limit is lower and holds"
    ]
    assert said[0].filename == __file__
    assert torcharena.limit() == 4 * GIB
    machine.bring_up_cuda()
    assert machine.core.limit(0) == machine.core.limit(1) == (4 * GIB, "environment")
    monkeypatch.setenv("TORCHARENA_LIMIT", "64GiB")  # it was read once
    quiet(torcharena.set_limit, "2GiB")
    assert torcharena.limit() == 2 * GIB
    quiet(torcharena.set_limit, "4GiB")  # its own may rise
    assert torcharena.limit() == 4 * GIB
    with pytest.raises(RuntimeError, match="TORCHARENA_LIMIT or --limit is lower"):
        torcharena.set_limit("9GiB", strict=True)
    assert [(one.value, one.source, one.holds) for one in torcharena.limits(0)] == [
        (4 * GIB, "api", True),
        (4 * GIB, "environment", True),  # the same
        (8 * GIB, "admin", False),
    ]


def test_strict_refuses_to_install(machine: Machine) -> None:
    machine.write('[limits]\nprocess = "8GiB"\ndevice = "32GiB"')
    with pytest.raises(RuntimeError, match=r"8 GiB from .*limits.toml, line 2 is lower"):
        torcharena.enable(limit="16GiB", strict=True)
    assert not torcharena.enabled()
    machine.write('[limits]\ndevice = "32GiB"')
    with pytest.raises(RuntimeError) as error:
        torcharena.enable(limit="33GiB", strict=True)
    assert "line 2 (all processes together) is lower and holds" in str(error.value)
    assert not torcharena.enabled()
    quiet(torcharena.enable, limit="32GiB", strict=True)


def test_shares_take_their_size_when_there_is_a_device(machine: Machine) -> None:
    machine.write('[limits]\nprocess = "25%"\ntenant = "50%"')
    quiet(torcharena.enable, limit="20GiB")
    assert torcharena.limit() == 20 * GIB
    with pytest.warns(UserWarning) as said:
        machine.bring_up_cuda()
    assert [str(one.message) for one in said] == [
        "torcharena: a cap of 20 GiB was asked for; the one of 16 GiB from "
        f"{machine.path}, line 2 is lower and holds"
    ]
    assert machine.core.limit(0) == (TOTAL // 4, "admin")
    assert machine.core.ledgers[0][5:] == (None, TOTAL // 2, "enforce")


def test_strict_and_a_share_that_clamps(machine: Machine) -> None:
    machine.write('[limits]\nprocess = "25%"')
    torcharena.enable(limit="20GiB", strict=True)
    with pytest.raises(RuntimeError, match="is lower and holds"):
        machine.bring_up_cuda()


def test_gpus_and_tenants_have_caps_of_their_own(machine: Machine) -> None:
    me = os.getuid()
    machine.write(
        '[limits]\nprocess = "8GiB"\ndevice = "60GiB"\n'
        '[gpu.GPU-0]\ndevice = "40GiB"\nprocess = "10GiB"\n'
        f'[[tenant]]\nuser = {me}\nname = "us"\nlimit = "30GiB"\nprocess = "12GiB"'
    )
    torcharena.enable()
    assert torcharena.limit() == 12 * GIB
    machine.bring_up_cuda()
    assert machine.core.limit(0) == (10 * GIB, "admin")
    directory, uuid, _, tenant, claimed, *held = machine.core.ledgers[0]
    assert (directory, uuid, tenant, claimed) == ("/run/torcharena", "GPU-0", "us", False)
    assert held == [40 * GIB, 30 * GIB, "enforce"]


def test_observe_counts_and_enforces_nothing(machine: Machine) -> None:
    machine.write('mode = "observe"\n[limits]\nprocess = "8GiB"\ndevice = "9GiB"')
    quiet(torcharena.enable, limit="16GiB", strict=True)
    machine.bring_up_cuda()
    assert torcharena.limit() == 16 * GIB
    assert machine.core.ledgers[0][5:] == (9 * GIB, None, "observe")
    shown = str(torcharena.limits(0))
    assert "limits.toml, line 3 (observed, not enforced)" in shown
    assert torcharena.limits(0).least() == 16 * GIB


def test_observe_says_what_it_would_have_done(machine: Machine) -> None:
    machine.write('mode = "observe"\n[limits]\nprocess = "8MiB"')
    torcharena.enable()
    machine.bring_up_cuda()
    machine.core.alloc(8 << 20)
    quiet(watchers[0].observe)
    machine.core.alloc(1)
    with pytest.warns(
        UserWarning, match=r"held 12 MiB on device 0; enforced, .*line 3 would"
    ):
        watchers[0].observe()
    quiet(watchers[0].observe)


def test_off_leaves_the_users_own(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.write('mode = "off"\n[limits]\nprocess = "8GiB"\ndevice = "9GiB"')
    monkeypatch.setenv("TORCHARENA_LEDGER", str(tmp_path))
    torcharena.enable(limit="16GiB")
    machine.bring_up_cuda()
    assert torcharena.limit() == 16 * GIB
    assert machine.core.ledgers[0][0] == str(tmp_path)
    assert machine.core.ledgers[0][5:] == (None, None, "observe")


# --- never "no limit" -----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[limits]\nprocess = 8", "line 2: process=8: a number needs a unit here"),
        ('mode = "observ"', "no such mode"),
        ("[limits", "line 1: expected"),
    ],
)
def test_a_malformed_file_refuses(machine: Machine, text: str, said: str) -> None:
    machine.write(text)
    with pytest.raises(RuntimeError) as error:
        torcharena.enable()
    assert "could not hold, so the arena is not enabled" in str(error.value)
    assert str(machine.path) in str(error.value) and said in str(error.value)
    assert not torcharena.enabled()


def test_an_untrusted_file_refuses_whatever_it_says(machine: Machine) -> None:
    machine.write('mode = "off"')
    machine.path.chmod(0o666)
    with pytest.raises(RuntimeError, match="writable by others than root"):
        torcharena.enable()


def test_a_malformed_file_that_observes_is_a_warning(machine: Machine) -> None:
    machine.write('mode = "observe"\n[limits]\nprocess = 8')
    with pytest.warns(UserWarning, match="nothing of this file is observed"):
        torcharena.enable(limit="16GiB")
    assert torcharena.limit() == 16 * GIB


def test_a_ledger_that_cannot_be_used(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ledgers, "unusable", lambda path: f"{path} is not there (install)"
    )
    machine.write('[limits]\nprocess = "8GiB"')  # nobody needs it
    torcharena.enable()
    monkeypatch.setattr(state, "current", state.State())
    machine.write('[limits]\ndevice = "8GiB"')
    with pytest.raises(
        RuntimeError, match="ledger cannot be used: /run/torcharena is not"
    ):
        torcharena.enable()
    assert not torcharena.enabled()


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_a_ledger_that_breaks_when_cuda_comes_up(machine: Machine, mode: str) -> None:
    machine.write(f'mode = "{mode}"\n[limits]\ndevice = "8GiB"')
    machine.core.ledger_problem = "GPU-0.ledger has 2 names (hard links)"
    torcharena.enable()
    if mode == "enforce":
        with pytest.raises(
            RuntimeError, match=r"cannot be used: GPU-0.ledger has 2 names"
        ):
            machine.bring_up_cuda()
        return
    with pytest.warns(UserWarning, match="not counted with other processes on this GPU"):
        machine.bring_up_cuda()
    shown = torcharena.limits()
    assert shown.ledger == "" and "hard links" in str(shown)


def test_whose_directory_is_usable(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert "is not there (as root: install -d -m 3770" in ledgers.unusable(str(folder))
    folder.mkdir(mode=0o700)
    if os.getuid() != 0:
        assert "belongs to uid" in ledgers.unusable(str(folder))
        return
    assert "shared with no other user, mode 0700" in ledgers.unusable(str(folder))
    folder.chmod(0o3770)
    assert ledgers.unusable(str(folder)) == ""
    folder.chmod(0o2777)
    assert "writable by everybody" in ledgers.unusable(str(folder))
    os.chown(folder, 1234, 0)
    assert "belongs to uid 1234, not to root" in ledgers.unusable(str(folder))
    (tmp_path / "link").symlink_to(folder)
    assert "is a link" in ledgers.unusable(str(tmp_path / "link"))


def test_which_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "DIRECTORY", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "user"))
    none = ledgers.choose(None, None)
    assert none.path == "" and "nor a runtime directory of yours" in none.why
    (tmp_path / "user").mkdir()
    own = ledgers.choose(None, None)
    assert own.path == str(tmp_path / "user" / "torcharena")
    assert Path(own.path).stat().st_mode & 0o777 == 0o700
    (tmp_path / "run").mkdir()
    assert ledgers.choose(None, None).path == str(tmp_path / "run")
    assert ledgers.choose(None, "/x").path == "/x"
    assert ledgers.choose(None, "none").why == "TORCHARENA_LEDGER=none"
    file = reader.parse(b'ledger = "/y"', "limits.toml")
    assert ledgers.choose(file, "/x").path == "/y"


def test_a_ledger_of_ones_own_beside_the_administrators(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.write('ledger = "/y"\n[limits]\nprocess = "1GiB"')
    monkeypatch.setenv("TORCHARENA_LEDGER", "none")
    with pytest.warns(UserWarning, match='TORCHARENA_LEDGER=none has no effect: .* "/y"'):
        torcharena.enable()
    state.current = state.State()
    with pytest.raises(RuntimeError, match="has no effect"):
        torcharena.enable(strict=True)


# --- a file that changes ----------------------------------------------------------------------
def test_a_change_holds_at_once(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.write('[limits]\nprocess = "8GiB"\ndevice = "32GiB"')
    torcharena.enable()
    machine.bring_up_cuda()
    look(8)
    assert machine.core.ledgers[0][5] == 32 * GIB
    machine.write('[limits]\nprocess = "4GiB"\ndevice = "16GiB"\ntenant = "6GiB"')
    with caplog.at_level(logging.INFO, "torcharena"):
        look()
    assert machine.core.limit(0) == machine.core.limit(1) == (4 * GIB, "admin")
    assert machine.core.ledgers[1][5:] == (16 * GIB, 6 * GIB, "enforce")
    assert "says otherwise now: mode enforce, process 4 GiB, tenant 6 GiB" in caplog.text
    machine.write('mode = "observe"\n[limits]\nprocess = "4GiB"')
    look()
    assert machine.core.limit(0) == (None, "none")
    assert machine.core.ledgers[0][5:] == (None, None, "observe")


def test_a_change_that_makes_no_sense_changes_nothing(machine: Machine) -> None:
    machine.write('[limits]\nprocess = "8GiB"')
    torcharena.enable()
    machine.bring_up_cuda()
    machine.write("[limits]\nprocess = 4")
    with pytest.warns(UserWarning, match="line 2: .* what it said before holds on"):
        look()
    quiet(look)  # said once
    assert machine.core.limit(0) == (8 * GIB, "admin")
    machine.write("")  # as an editor that truncates and then writes
    with pytest.warns(UserWarning, match="it says nothing"):
        look()
    machine.write('[limits]\nprocess = "6GiB"')
    look()
    assert machine.core.limit(0) == (6 * GIB, "admin")


def test_a_file_that_is_gone_for_a_moment(machine: Machine) -> None:
    machine.write('[limits]\nprocess = "8GiB"')
    torcharena.enable()
    machine.bring_up_cuda()
    machine.path.unlink()
    look(3)
    assert machine.core.limit(0) == (8 * GIB, "admin")
    look(3)
    assert machine.core.limit(0) == (None, "none")


def test_a_ledger_that_a_change_needs_and_nobody_can_use(machine: Machine) -> None:
    machine.write('mode = "off"')
    torcharena.enable()
    machine.bring_up_cuda()
    machine.core.ledger_problem = "broken"
    machine.write('[limits]\ndevice = "8GiB"')
    with pytest.warns(UserWarning, match="ledger cannot be used: broken; what it said"):
        look()


def test_who_became_another_user_is_that_users(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server enables, forks and gives its rights up; then CUDA comes up."""
    machine.write('[limits]\ntenant = "8GiB"')
    torcharena.enable()
    monkeypatch.setattr(os, "getuid", lambda: 4242424)
    machine.bring_up_cuda()
    assert torcharena.limits().tenant == "uid-4242424"


def test_what_did_not_hold_leaves_nothing_behind(machine: Machine) -> None:
    """Caps, tenant and what `limits` says are the old ones together; and it is tried again."""
    machine.write('mode = "off"')
    torcharena.enable()
    machine.bring_up_cuda()
    machine.core.ledger_problem = "broken"
    before = torcharena.limits().tenant
    text = '[limits]\nprocess = "4GiB"\ndevice = "8GiB"\n[[tenant]]\nuser = "*"\nname = "all"'
    machine.write(text)
    with pytest.warns(UserWarning, match="what it said before holds on"):
        look()
    assert machine.core.limit(0) == (None, "none")
    assert torcharena.limits().tenant == before
    machine.core.ledger_problem = ""
    look(watching._AGAIN + 2)
    assert machine.core.limit(0) == (4 * GIB, "admin")
    assert torcharena.limits().tenant == "all"


@pytest.mark.filterwarnings("error")
def test_nothing_ends_the_thread(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not warnings that are errors, not a file that could not be opened for a moment."""
    machine.write('[limits]\nprocess = "8GiB"')
    torcharena.enable()
    machine.bring_up_cuda()
    (watcher,) = watchers
    machine.write("[limits]\nprocess = 4")
    for _ in range(3):
        watcher.beat(True)
    assert "what it said before holds on" in caplog.text
    machine.write('[limits]\nprocess = "4GiB"')
    with monkeypatch.context() as patch:

        def full(*arguments: Any) -> int:
            raise OSError(24, "Too many open files")

        patch.setattr(trust.os, "open", full)
        for _ in range(3):
            watcher.beat(True)
    assert machine.core.limit(0) == (8 * GIB, "admin")
    for _ in range(watching._AGAIN + 2):
        watcher.beat(True)
    assert machine.core.limit(0) == (4 * GIB, "admin")


def test_a_child_of_fork_has_a_lock_of_its_own() -> None:
    """The thread may hold it at that moment."""
    taken, over = threading.Event(), threading.Event()

    def hold() -> None:
        with state.lock:
            taken.set()
            over.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait(60)
    child = os.fork()
    if child == 0:
        os._exit(0 if state.lock.acquire(timeout=60) else 1)
    over.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_thread_looks_and_ends(machine: Machine) -> None:
    machine.write('[limits]\nprocess = "8GiB"')
    torcharena.enable()
    machine.bring_up_cuda()
    watcher = watchers[0]
    super(watching.Watcher, watcher).start()
    machine.write('[limits]\nprocess = "4GiB"')
    end = time.monotonic() + 60
    while machine.core.limit(0) != (4 * GIB, "admin") and time.monotonic() < end:
        time.sleep(0.05)
    assert machine.core.limit(0) == (4 * GIB, "admin")
    while ("ledger_heed", 1) not in machine.core.calls and time.monotonic() < end:
        time.sleep(0.05)
    assert ("ledger_heed", 1) in machine.core.calls
    watcher.stop()
    assert not watcher.is_alive()


# --- whose process ---------------------------------------------------------------------------
POD = "0f3c9a1e-52b7-4d64-9a0b-c3d2e1f00a11"


@pytest.mark.parametrize(
    ("cgroup", "job", "pod"),
    [
        ("0::/system.slice/slurmstepd.scope/job_417/step_0/user/task_0", "417", ""),
        ("0::/system.slice/n1_slurmstepd.scope/job_417/step_batch", "417", ""),
        ("4:memory:/slurm/uid_1000/job_417/step_0\n0::/", "417", ""),
        ("0::/user.slice/user-1000.slice/slurmstepd.scope/job_9/step_0", "", ""),
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
            f"{POD.replace('-', '_')}.slice/cri-containerd-77.scope",
            "",
            POD,
        ),
        (f"3:memory:/kubepods/besteffort/pod{POD}/77", "", POD),
        (f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/x", "", POD),
        (f"0::/user.slice/kubepods/pod{POD}/x", "", ""),
        ("0::/", "", ""),
    ],
)
def test_jobs_and_pods_by_the_cgroups_path(
    tmp_path: Path, cgroup: str, job: str, pod: str
) -> None:
    (tmp_path / "cgroup").write_text(cgroup + "\n")
    known = tenants.facts({}, proc=str(tmp_path))
    assert (known.slurm_job, known.pod) == (job, pod)
    assert known.uid == os.getuid()


def test_a_pod_that_does_not_see_its_cgroup(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/\n")
    (tmp_path / "uid_map").write_text("         0          0 4294967295\n")
    (tmp_path / "mountinfo").write_text(
        f"9 8 8:1 /var/lib/kubelet/pods/{POD}/etc-hosts /etc/hosts rw - ext4 /dev/sda rw\n"
    )
    assert tenants.facts({}, proc=str(tmp_path)).pod == POD
    (tmp_path / "uid_map").write_text("0 1000 1\n")  # there anybody mounts what he likes
    assert tenants.facts({}, proc=str(tmp_path)).pod == ""


def known(**more: Any) -> tenants.Facts:
    said: dict[str, Any] = {"uid": 1000, "user": "alice"}
    return tenants.Facts(**(said | more))


def chosen(rules: str, facts: tenants.Facts) -> tuple[str, bool]:
    file = reader.parse(rules.encode(), "limits.toml")
    found = tenants.tenant(file.tenants, facts)
    return found.name, found.claimed


def test_who_is_which_tenant() -> None:
    rules = (
        '[[tenant]]\nname = "vision"\nuser = ["bob", 1000]\n'
        '[[tenant]]\nslurm_job = "*"\n[[tenant]]\npod = "*"\n'
        '[[tenant]]\nname = "docker"\ncgroup = "/docker/*"'
    )
    assert chosen(rules, known()) == ("vision", False)
    carol = {"uid": 1002, "user": "carol"}
    assert chosen(rules, known(**carol)) == ("carol", False)
    assert chosen(rules, known(uid=7, user="")) == ("uid-7", False)
    assert chosen(rules, known(**carol, slurm_job="12")) == ("job-12", False)
    assert chosen(rules, known(**carol, pod=POD)) == (f"pod-{POD}", False)
    assert chosen(rules, known(**carol, cgroups=("/docker/77",))) == ("docker", False)


def test_what_the_environment_says_is_a_claim() -> None:
    rules = (
        '[[tenant]]\nslurm_job = "*"\n[[tenant]]\npod = "ml/*"\n[[tenant]]\nuser = "bob"'
    )
    job = tenants.facts({"SLURM_JOB_ID": "12"}).claimed_job
    assert job == "12" and tenants.facts({"SLURM_JOB_ID": "1;2"}).claimed_job == ""
    assert chosen(rules, known(claimed_job="12")) == ("job-12", True)
    assert chosen(rules, known(claimed_pod="ml/train-0")) == ("ml/train-0", True)
    assert chosen(rules, known(claimed_pod="web/train-0")) == ("alice", False)
    # What the kernel says goes before it, wherever its rule stands.
    assert chosen(rules, known(user="bob", claimed_job="12")) == ("bob", False)
    assert chosen(rules, known(slurm_job="3", claimed_job="12")) == ("job-3", False)
    pod = {"POD_NAME": "train-0", "POD_NAMESPACE": "ml"}
    assert tenants.facts(pod).claimed_pod == "ml/train-0"
    assert tenants.facts(pod).place == "k8s:ml/train-0"
    assert tenants.places("k8s:ml/train-0") == ("", "ml", "train-0")
    assert (
        tenants.places("slurm:12") == ("12", "", "") and tenants.places("") == ("",) * 3
    )


def test_a_long_name_keeps_its_end() -> None:
    path = "/machine.slice/" + "x" * 80 + "/é/17"
    name, _ = chosen('[[tenant]]\ncgroup = "/machine.slice/*"', known(cgroups=(path,)))
    assert name.endswith("x/é/17") and len(name.encode()) <= 63


# --- the machine's own -----------------------------------------------------------------------
def test_a_cgroups_cap_on_device_memory(tmp_path: Path) -> None:
    tree, proc = tmp_path / "cgroup", tmp_path / "proc"
    (tree / "a" / "b").mkdir(parents=True)
    proc.mkdir()
    (proc / "cgroup").write_text("0::/a/b\n")

    def cap(bus: str = "0000:3B:00.0") -> int | None:
        return hardware.cgroup_cap(bus, str(tree), str(proc))

    assert cap() is None
    (tree / "a" / "b" / "dmem.max").write_text("drm/0000:3b:00.0/vram0 max\n")
    assert cap() is None
    (tree / "a" / "dmem.max").write_text(
        "drm/0000:3b:00.0/vram0 8589934592\ndrm/0000:5e:00.0/vram0 1024\n"
    )
    assert cap() == 8 * GIB and cap("0000:5e:00.0") == 1024
    (tree / "a" / "b" / "dmem.max").write_text("drm/0000:3b:00.0/vram0 4096\n")
    assert cap() == 4096


def test_the_machines_own_caps_are_sources_too(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.core.facts["mig"] = True
    monkeypatch.setattr(hardware, "cgroup_cap", lambda bus: 6 * GIB)
    machine.write('[limits]\nprocess = "8GiB"')
    torcharena.enable(limit="7GiB")
    with pytest.warns(UserWarning, match=r"6 GiB from the cgroup's dmem.max is lower"):
        machine.bring_up_cuda()
    assert torcharena.limit() == 6 * GIB
    found = [(one.scope, one.value, one.where) for one in torcharena.limits(0)]
    assert found[0] == ("process", 6 * GIB, "the cgroup's dmem.max")
    assert found[-1] == ("device", TOTAL, "the MIG instance's memory")


def test_label_and_place_share_the_ledgers_room() -> None:
    assert ledgers.unpacked(ledgers.packed("train.py", "slurm:12")) == (
        "train.py",
        "slurm:12",
    )
    pod = "k8s:ml/" + "p" * 45
    text = ledgers.packed("é" * 30, pod)
    assert len(text.encode()) <= 63 and ledgers.unpacked(text) == ("é" * 5, pod)
    assert ledgers.packed("train.py", "k8s:" + "x" * 70) == "train.py"
    assert ledgers.unpacked(ledgers.packed("train.py", "")) == ("train.py", "")


# --- what is shown ---------------------------------------------------------------------------
def test_limits_prints_a_table(machine: Machine) -> None:
    me = pwd.getpwuid(os.getuid()).pw_name
    machine.write('[limits]\nprocess = "8GiB"\ndevice = "32GiB"')
    torcharena.enable(limit="6GiB")
    machine.bring_up_cuda()
    machine.core.alloc(100 << 20, 0)
    rows = [
        {"bytes": 100 << 20, "tenant": me, "started": 1.0, "slot": 0, "alive": True},
        {"bytes": 1 << 30, "tenant": "other", "started": 1.0, "slot": 1, "alive": True},
        {"bytes": 9 << 30, "tenant": me, "started": 1.0, "slot": 2, "alive": False},
    ]
    machine.core.ledger_rows["/run/torcharena", "GPU-0"] = rows
    found = torcharena.limits(0)
    assert found.least() == 6 * GIB and found.mode == "enforce"
    assert str(found[0]) == "process 6 GiB from torcharena.enable(limit=) or set_limit()"
    assert str(found) == (
        "device 0, Model 64, 64 GiB\n"
        "  scope           cap    held now  from\n"
        "  process       6 GiB     100 MiB  torcharena.enable(limit=) or set_limit()\n"
        f"  process       8 GiB              {machine.path}, line 2 (a lower one holds)\n"
        f"  device       32 GiB    1.10 GiB  {machine.path}, line 3\n"
        "\n"
        f"tenant   {me}\n"
        "ledger   /run/torcharena\n"
        "mode     enforce: growth over a cap is refused"
    )
    assert len(torcharena.limits()) == 2 * len(found)
    room = table.room(0)
    assert room == [(6 * GIB - (100 << 20), 6 * GIB), (31 * GIB - (100 << 20), 32 * GIB)]
    line = f"cap: 32 GiB from {machine.path}, line 3 (all processes together); 30.90 GiB left"
    assert line in torcharena.memory_summary(0).splitlines()
