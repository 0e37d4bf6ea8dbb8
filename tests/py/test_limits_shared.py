"""Several processes with the real PyTorch on one simulated GPU, and one administrator's file."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import simulated
from torcharena.caps import ledgers
from torcharena.top import top

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))

from shared_processes import Shared, shared

pytestmark = pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing())
GIB, MIB = 1 << 30, 1 << 20
UUID = "GPU-746f7263-6861-7265-6e61-2d73696d0000"  # of the first simulated GPU


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Shared]:
    """A simulated GPU of 16 GiB."""
    (tmp_path / "gpu").mkdir()
    environment = simulated.environment(TORCHARENA_SIM_DIR=str(tmp_path / "gpu"))
    with shared(tmp_path, environment) as made:
        yield made


def rows(machine: Shared) -> list[dict[str, Any]]:
    (gpu,) = ledgers.gpus(str(machine.ledger))
    return ledgers.rows(str(machine.ledger), gpu)


def total(machine: Shared) -> int:
    """What the living hold together."""
    return sum(row["bytes"] for row in rows(machine) if row["alive"])


def wait(until: Any, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_one_cap_for_two(machine: Shared) -> None:
    """S26: the sum stays under the cap; a dead one gives its share back. Then the file
    changes while they run."""
    machine.write('[limits]\ndevice = "1GiB"')
    one, other = machine.start(2)
    one.grow(600)
    text = other.refused(600)
    assert "CUDA out of memory. Tried to allocate 600.00 MiB" in text
    assert "shared cap" in text and "1.00 GiB" in text, text
    free, cap = other.ask("room")["room"]  # what frameworks size themselves by
    assert cap == GIB and free == GIB - total(machine)
    other.grow(400)
    assert total(machine) <= GIB
    gpu = machine.gpu()
    assert gpu["cap_bytes"] == GIB and gpu["cap_source"] == f"{machine.file}, line 3"
    assert gpu["counted_bytes"] == total(machine) >= 1000 * MIB
    assert [row["refused"] for row in gpu["processes"]] == [0, 1]
    assert {row["state"] for row in gpu["processes"]} == {"alive"}
    if gpu["used_bytes"] is not None:  # G7: what is over is the contexts
        assert gpu["unaccounted_bytes"] == gpu["used_bytes"] - gpu["counted_bytes"]
    one.kill()
    other.grow(600)
    assert total(machine) <= GIB
    # Lowered under what is held: growth stops, idle memory goes back, nothing is killed.
    assert other.ask("free")["reserved"] >= 1000 * MIB
    other.grow(100)
    machine.write('[limits]\ndevice = "200MiB"')
    wait(lambda: total(machine) <= 200 * MIB)
    assert "200.00 MiB" in other.refused(300)
    machine.write('[limits]\ndevice = "1GiB"\nprocess = "500MiB"')
    wait(lambda: other.ask("limits")["limits"]["limits"][0]["value"] == 500 * MIB)
    other.grow(300)
    assert "500.00 MiB" in other.refused(300)
    shown = other.ask("limits")["text"]
    assert f"process     500 MiB     400 MiB  {machine.file}, line 4" in shown, shown
    assert f"device        1 GiB     400 MiB  {machine.file}, line 3" in shown, shown
    assert other.end() == 0
    assert total(machine) == 0


def test_tenants_and_one_greedy(machine: Shared) -> None:
    """G14: of processes with caps from the environment only the greedy one fails. Two of
    them are one SLURM job, which has a cap of its own."""
    machine.write('[[tenant]]\nslurm_job = "*"\nlimit = "512MiB"')
    job = {"SLURM_JOB_ID": "12", "TORCHARENA_LIMIT": "400MiB"}
    first, second = machine.start(2, **job)
    greedy, alone = machine.start(2, TORCHARENA_LIMIT="2GiB")
    for one in (first, second):
        one.grow(200)
    text = first.refused(150)
    assert "job-12" in text and "512.00 MiB" in text, text
    assert "400.00 MiB" in second.refused(300)
    got = 0
    while "error" not in (answer := greedy.ask("grow 256")):
        got += 256
    assert got == 2048 and "TORCHARENA_LIMIT" in answer["error"], answer
    alone.grow(2000)
    second.grow(100)
    gpu = machine.gpu()
    assert [row["tenant"] for row in gpu["processes"]].count("job-12") == 2
    assert all(row["claimed"] == (row["tenant"] == "job-12") for row in gpu["processes"])
    (tenant,) = [one for one in gpu["tenants"] if one["name"] == "job-12"]
    assert tenant["cap_bytes"] == 512 * MIB and tenant["reserved_bytes"] == 500 * MIB
    assert {row["slurm_job_id"] for row in gpu["processes"]} == {"12", ""}
    assert {row["cap_source"] for row in gpu["processes"]} == {"environment"}
    picture = machine.top("--once")
    assert "job-12" in picture and "shared_cases.py" in picture


def test_a_crowd_that_is_killed(machine: Shared) -> None:
    """S27, small: processes that grow and shrink, killed at random moments; the cap holds
    all the time, and afterwards a new one gets the whole of it at once."""
    machine.write('[limits]\ndevice = "512MiB"')
    crowd = machine.start(2)
    for one in crowd:
        one.tell("work 60")
    highest, begin = 0, time.monotonic()
    while (took := time.monotonic() - begin) < 3 or (highest <= 256 * MIB and took < 60):
        highest = max(highest, total(machine))
        if len(crowd) > 1 and took > 2:
            crowd.pop().kill()
    assert 256 * MIB < highest <= 512 * MIB
    (last,) = crowd
    last.kill()
    (heir,) = machine.start()
    assert heir.grow(512)["seconds"] < 20
    assert total(machine) == 512 * MIB
    assert [row["state"] for row in machine.gpu()["processes"]] == ["alive"]


def test_never_no_limit(machine: Shared) -> None:
    """By TORCHARENA_ENABLE alone, with a ledger that no other user shares: torch fails, and
    the last line says why."""
    machine.write('[limits]\ndevice = "1GiB"')
    machine.ledger.chmod(0o700)
    code = (
        "import os\nfrom torcharena import _autoload; from torcharena.caps import trust\n"
        "trust.TRUSTED = {0, os.getuid()}\n_autoload.load()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=machine.environment | {"TORCHARENA_ENABLE": "1"},
        capture_output=True,
        text=True,
        timeout=simulated.TIMEOUT,
        check=False,
    )
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("torcharena: not enabled: the administrator's caps"), last
    assert "its ledger cannot be used" in last, last


def test_a_hostile_ledger_when_cuda_comes_up(machine: Shared) -> None:
    """The process cannot use CUDA, rather than use it without the cap."""
    machine.write('[limits]\ndevice = "1GiB"')
    path = machine.ledger / f"{UUID}.ledger"
    path.write_bytes(b"\0" * 100)
    path.chmod(0o660)
    (one,) = machine.start()
    assert f"its ledger cannot be used: {UUID}.ledger is no ledger" in one.hello["error"]
    assert "not enabled: the administrator's caps could not hold" in one.said()


# --- hostile files, as onlookers meet them ---------------------------------------------------
@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A sound ledger, alone in its directory."""
    folder = tmp_path / "ledgers"
    folder.mkdir(mode=0o700)
    code = (
        "import sys\nfrom torcharena import _core\n_core.create()\n"
        f"_core.ledger_open(0, sys.argv[1], {UUID!r}, 'x', 'y', False, None, None, 'observe')"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True)
    assert ledgers.gpus(str(folder)) == [UUID]
    assert ledgers.rows(str(folder), UUID) == []
    return folder / f"{UUID}.ledger"


def refused(ledger: Path, said: str) -> None:
    with pytest.raises(RuntimeError) as error:
        ledgers.rows(str(ledger.parent), UUID)
    assert (
        said in str(error.value) and ledger.parent.name in f"{error.value}{ledger.parent}"
    )
    (gpu,) = top.look(str(ledger.parent)).gpus
    assert said in gpu.problem


def test_hostile_ledgers(ledger: Path) -> None:
    """Refused with the reason, never a crash."""
    sound = ledger.read_bytes()
    ledger.rename(ledger.with_name("moved"))
    ledger.symlink_to("moved")
    refused(ledger, "is a link")
    ledger.unlink()
    ledger.hardlink_to(ledger.with_name("moved"))
    refused(ledger, "has 2 names (hard links)")
    ledger.with_name("moved").unlink()
    ledger.chmod(0o644)
    refused(ledger, "open to everybody (mode 644)")
    ledger.chmod(0o600)
    ledger.write_bytes(sound[:-8])
    refused(ledger, "this version of torcharena has layout")
    ledger.write_bytes(sound[:4])
    refused(ledger, "is no ledger")
    ledger.write_bytes(
        sound.replace(UUID.encode(), UUID.replace("746f", "0000").encode())
    )
    refused(ledger, "is the ledger of another GPU")
    ledger.unlink()
    os.mkfifo(ledger, 0o600)  # an open must not wait for a writer
    refused(ledger, "is no regular file")
    ledger.unlink()
    ledger.write_bytes(sound)
    ledger.chmod(0o600)
    assert ledgers.rows(str(ledger.parent), UUID) == []
    ledger.parent.chmod(0o777)
    refused(ledger, "is writable by everybody")
    ledger.parent.chmod(0o700)
    if os.getuid() == 0:
        os.chown(ledger, 1234, 1234)
        refused(ledger, "belongs to uid 1234, neither root nor us")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be two other users")
def test_two_users_and_root_share_a_ledger(tmp_path: Path) -> None:
    """As /run/torcharena is: root's, and its group's. Each sees the others, and nobody who
    is not in the group sees anything."""
    group = 4321
    code = f"""
import os, sys
from torcharena import _core; from torcharena.caps import ledgers
user, group = map(int, sys.argv[2:])
os.setgroups([])
os.setresgid(group, group, group)
os.setresuid(user, user, user)
_core.create()
caps = (None, None, "enforce")
found = _core.ledger_open(0, sys.argv[1], {UUID!r}, "x", "y", False, *caps)
print(found["shared"], ledgers.unusable(sys.argv[1]))
"""
    folder = tmp_path / "run"
    folder.mkdir()
    os.chown(folder, 0, group)
    folder.chmod(0o3770)
    for at in (tmp_path, *tmp_path.parents):  # others may pass
        if not at.stat().st_mode & 0o001:
            at.chmod(at.stat().st_mode & 0o7777 | 0o011)

    def tried(user: int, gid: int) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder), str(user), str(gid)],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip() or done.stderr.strip().splitlines()[-1]

    assert tried(1234, group) == "True"
    assert tried(1235, group) == "True"
    assert tried(0, 0) == "True"
    assert "Permission denied" in tried(1236, 5)
    assert (folder / f"{UUID}.ledger").stat().st_mode & 0o777 == 0o660
