"""`torcharena top`, `limits` and `metrics`: what they gather, show, and end with."""

from __future__ import annotations

import contextlib
import fcntl
import grp
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import urllib.request
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from fake_core import FakeCore
from torcharena import cli
from torcharena.caps import admin_file, ledgers, trust
from torcharena.top import drawing, metrics, metrics_serving, nvml, top

GIB = 1 << 30
GPU = "GPU-5d0c1a2b-3c4d-5e6f-7081-92a3b4c5d6e7"


def row(slot: int, gib: float, **more: Any) -> dict[str, Any]:
    """A row as the C library gives it."""
    found: dict[str, Any] = {
        "slot": slot,
        "alive": True,
        "bytes": int(gib * GIB),
        "unused": GIB // 4,
        "spilled": 0,
        "peak": int((gib + 1) * GIB),
        "refused": 0,
        "started": 1e9 + slot,
        "pid": 4000 + slot,
        "uid": os.getuid(),
        "label": f"train.py:{slot}",
        "tenant": "vision",
        "claimed": False,
        "mode": "enforce",
        "limit": None,
        "limit_source": "none",
        "device_cap": 72 * GIB,
        "tenant_cap": 40 * GIB,
    }
    return found | more


ROWS = [
    row(0, 20.5, limit=24 * GIB, limit_source="environment", refused=3),
    row(1, 30),
    row(2, 4, alive=False, tenant="nlp", tenant_cap=None),
    row(
        3,
        1,
        label="train.py:3\x1fk8s:ml/train-0",
        tenant="job-12",
        claimed=True,
        tenant_cap=None,
    ),
]


@pytest.fixture
def machine(
    fake: FakeCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SimpleNamespace:
    """A machine with one GPU, its ledger and an administrator's file."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o770)
    (folder / f"{GPU}.ledger").touch(mode=0o600)
    (folder / f".{GPU}.ledger.0123").touch()  # one that is being made
    fake.ledger_rows[str(folder), GPU] = ROWS
    file = tmp_path / "limits.toml"
    file.write_text(f'ledger = "{folder}"\n[limits]\ndevice = "64GiB"\n')
    file.chmod(0o644)
    card = nvml.Card(GPU, 0, "Model 140", 140 * GIB, 60 * GIB, {4000: 21 * GIB, 7: GIB})
    made = SimpleNamespace(folder=folder, file=file, cards=([card], ""), core=fake)
    monkeypatch.setattr(admin_file, "PATH", str(file))
    monkeypatch.setattr(trust, "TRUSTED", {0, os.getuid()})
    monkeypatch.setattr(nvml, "cards", lambda: made.cards)
    return made


def test_what_is_gathered(machine: SimpleNamespace) -> None:
    view = top.look()
    assert (view.mode, view.problem, view.nvml) == ("enforce", "", "")
    (gpu,) = view.gpus
    assert [one.pid for one in gpu.processes] == [4001, 4000, 4003, 4002]
    assert [one.state for one in gpu.processes] == ["alive", "alive", "alive", "draining"]
    assert gpu.counted == int(51.5 * GIB)  # the dead count no more
    assert gpu.used == 60 * GIB and gpu.unaccounted == int(8.5 * GIB)
    assert gpu.cap == 64 * GIB and gpu.cap_source == f"{machine.file}, line 3"
    assert [(one.name, one.reserved, one.cap) for one in gpu.tenants] == [
        ("vision", int(50.5 * GIB), 40 * GIB),
        ("job-12", GIB, None),
        ("nlp", 0, None),
    ]
    assert gpu.processes[1].context == GIB // 2 and gpu.strangers == {7: GIB}
    assert gpu.processes[2].k8s_pod == "train-0" and gpu.processes[2].claimed
    # What the driver has back does not drain any more.
    machine.cards[0][0] = nvml.Card(GPU, 0, "Model 140", 140 * GIB, 52 * GIB)
    assert len(top.look().gpus[0].processes) == 3
    machine.file.unlink()  # then what the processes go by
    (gpu,) = top.look(str(machine.folder)).gpus
    assert (gpu.cap, gpu.cap_source) == (72 * GIB, "admin")


def test_without_nvml_and_without_a_file(machine: SimpleNamespace) -> None:
    machine.cards = [], "nvidia-ml-py is not installed"
    machine.file.unlink()
    view = top.look(str(machine.folder))
    (gpu,) = view.gpus
    assert (gpu.used, gpu.unaccounted, gpu.index) == (None, None, None)
    shown = drawing.plain(drawing.lines(view, 80))
    assert "used unknown" in shown and "device memory unknown: nvidia-ml-py" in shown


def test_ledgers_that_are_not_to_be_trusted(machine: SimpleNamespace) -> None:
    machine.core.ledger_problem = f"{GPU}.ledger has 2 names (hard links)"
    view = top.look()
    assert "2 names" in view.gpus[0].problem and not view.gpus[0].processes
    assert "2 names" in drawing.plain(drawing.lines(view, 120))
    assert cli.main(["top", "--once"]) == 1


def test_a_file_that_makes_no_sense_is_no_missing_one(machine: SimpleNamespace) -> None:
    machine.file.write_text("[limits]\ndevice = 76\n")
    view = top.look(str(machine.folder))
    shown = drawing.plain(drawing.lines(view, 200))
    assert view.mode == "malformed" and "no administrator's file" not in shown
    assert "line 2: device=76" in shown and "train.py:1" in shown


def test_a_directory_that_one_may_not_read(
    machine: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.folder.chmod(0o3770)
    real = os.listdir

    def listdir(path: str) -> list[str]:
        if path == str(machine.folder):
            raise PermissionError(13, "Permission denied")
        return real(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "listdir", listdir)
        assert cli.main(["top", "--once"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    group = grp.getgrgid(machine.folder.stat().st_gid).gr_name
    assert f"Permission denied (members of the group {group} may look)" in shown


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(machine: SimpleNamespace, width: int) -> None:
    machine.core.ledger_rows[str(machine.folder), GPU] = [
        *ROWS,
        row(5, 1, label="x" * 63, tenant="t" * 63, pid=4194304, limit=GIB),
    ]
    found = drawing.lines(top.look(), width)
    assert max(sum(len(text) for text, _ in line) for line in found) <= width


def test_the_picture(machine: SimpleNamespace) -> None:
    shown = drawing.plain(drawing.lines(top.look(), 80, unicode=False))
    head, *rest = shown.splitlines()
    assert head.startswith("torcharena top  ") and f"ledger {machine.folder}"[:20] in head
    assert rest[0].startswith("cooperative: counts only processes that load torcharena")
    assert rest[2] == f"GPU 0  Model 140  {GPU}"
    bar = rest[3].strip()
    assert len(bar) == 76 and bar.count("#") == 28 and bar[34] == "|"
    assert rest[4] == f"  counted 51.5G of a cap of 64.0G ({machine.file}, line 3)"[:80]
    assert rest[5] == (
        "  device  used 60.0G of 140G, 8.5G unaccounted for: contexts 512M, others 1.0G"
    )
    assert rest[6] == "  tenants vision 50.5G of 40.0G, job-12 1.0G, nlp 0"
    assert rest[7:] == [
        "   PID  TENANT   LABEL       RESERVED   PEAK        CAP  REFUSED  STATE",
        "  4001  vision   train.py:1     30.0G  31.0G       none        0  alive",
        "  4000  vision   train.py:0     20.5G  21.5G  24.0G env        3  alive",
        "  4003  job-12?  train.py:3      1.0G   2.0G       none        0  alive",
        "  4002  nlp      train.py:2      4.0G   5.0G       none        0  draining",
    ]
    wide = drawing.plain(drawing.lines(top.look(), 140, unicode=False))
    for word in ("USER", "IDLE", "SPILLED", "job-12 (claimed)"):
        assert word in wide and word not in shown


def test_sizes_are_short() -> None:
    texts = {0: "0", 1: "1B", 1023: "1023B", 1024: "1.0K", GIB - 1: "1.0G", None: "-"}
    texts |= {int(99.96 * GIB): "100G", 512 << 20: "512M", 1 << 40: "1.0T"}
    assert {size: drawing.short(size) for size in texts} == texts


# --- the commands ----------------------------------------------------------------------------
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_top_as_json(
    machine: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["top", "--json"]) == 0
    found = said(capsys)
    (gpu,) = found["gpus"]
    assert gpu["uuid"] == GPU and gpu["counted_bytes"] == int(51.5 * GIB)
    assert gpu["cap_bytes"] == 64 * GIB and gpu["unaccounted_bytes"] == int(8.5 * GIB)
    first = gpu["processes"][1]
    assert first["reserved_bytes"] == int(20.5 * GIB) and first["refused"] == 3
    assert first["cap_source"] == "environment" and first["state"] == "alive"
    assert {"peak_bytes", "spilled_bytes", "label", "tenant", "claimed"} <= first.keys()


def test_top_where_nobody_is(
    fake: FakeCore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_file, "PATH", "/nonexistent/limits.toml")
    monkeypatch.setattr(nvml, "cards", lambda: ([], "NVML: no driver"))
    monkeypatch.setenv("TORCHARENA_LEDGER", "none")
    assert cli.main(["top", "--once"]) == 0
    shown = capsys.readouterr().out
    assert "no ledger" in shown and "TORCHARENA_LEDGER=none" in shown


def test_top_redraws_in_place(machine: SimpleNamespace, tmp_path: Path) -> None:
    """In a terminal of 80 columns, until it is interrupted."""
    pytest.importorskip("rich")
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    code = (
        "import sys\nfrom torcharena import cli\n"
        "sys.exit(cli.main(['top', '--interval', '0.1', '--ledger', sys.argv[1]]))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(machine.folder)],
        stdin=slave,
        stdout=slave,
        env={**os.environ, "TERM": "xterm", "PYTHONUTF8": "1"},
    )
    os.close(slave)
    said = b""
    with contextlib.suppress(OSError):  # of a terminal whose other end is closed
        while part := os.read(master, 65536):
            said += part
            if said.count(b"torcharena top") == 3:
                child.send_signal(signal.SIGINT)
    os.close(master)
    assert child.wait(60) == 0
    shown = said.decode()
    assert "\x1b[1A" in shown, "it goes up again"
    assert "is no ledger" in shown and f"GPU  {GPU}" in re.sub(
        r"\x1b\[[0-9;]*m", "", shown
    )


def test_limits_command(
    machine: SimpleNamespace,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledgers, "unusable", lambda path: "")
    monkeypatch.setenv("TORCHARENA_LIMIT", "50%")
    assert cli.main(["limits"]) == 0
    shown = capsys.readouterr().out
    assert "device 0, Model 140, 140 GiB" in shown
    assert "process      70 GiB              TORCHARENA_LIMIT" in shown
    assert f"device       64 GiB              {machine.file}, line 3" in shown
    assert cli.main(["limits", "--json"]) == 0
    assert [one["scope"] for one in said(capsys)["limits"]] == ["process", "device"]
    machine.cards = [], "NVML: no driver"
    assert cli.main(["limits"]) == 0
    shown = capsys.readouterr().out
    assert "any device" in shown and "devices  unknown: NVML: no driver" in shown
    machine.file.write_text("[limits]\nprocess = 3\n")
    assert cli.main(["limits"]) == 1
    assert "line 2: process=3: a number needs a unit" in capsys.readouterr().out


def test_check_of_a_file(
    machine: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["limits", "--check", str(machine.file)]) == 0
    assert capsys.readouterr().out == f"{machine.file}: sound, mode enforce\n"
    machine.file.chmod(0o666)
    assert cli.main(["limits", "--check", str(machine.file)]) == 1
    assert "would not be trusted as it is" in capsys.readouterr().err
    machine.file.write_text("[limits]\nprocess = 3\n")
    assert cli.main(["limits", "--check", str(machine.file)]) == 1
    assert "line 2: process=3" in capsys.readouterr().err
    assert cli.main(["limits", "--check", str(tmp_path / "none")]) == 1
    assert "No such file" in capsys.readouterr().err


# --- metrics ---------------------------------------------------------------------------------
def test_names_and_labels() -> None:
    names = [metric.name for metric in metrics.METRICS]
    assert len(set(names)) == len(names)
    for metric in metrics.METRICS:
        assert metric.name.startswith("torcharena_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.labels[0] == "UUID"
        assert not {"job", "pod", "instance"} & set(metric.labels)
    assert {"slurm_job_id", "k8s_pod", "k8s_namespace"} <= set(metrics.METRICS[0].labels)


def test_the_manual_has_every_metric() -> None:
    text = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
    for metric in metrics.METRICS:
        assert f"| `{metric.name}` | {metric.meaning} |" in text


def test_the_text(machine: SimpleNamespace, tmp_path: Path) -> None:
    rows = [row(0, 1, label='a "b"\\\x1fslurm:12', refused=7)]
    machine.core.ledger_rows[str(machine.folder), GPU] = rows
    found = metrics.text(top.look()).splitlines()
    labels = (
        f'UUID="{GPU}",slot="0",pid="4000",uid="{os.getuid()}",label="a \\"b\\"\\\\",tenant="vision",'
        'claimed="false",state="alive",slurm_job_id="12",k8s_namespace="",k8s_pod=""'
    )
    assert f"torcharena_process_reserved_bytes{{{labels}}} {GIB}" in found
    assert f"torcharena_process_refused_total{{{labels}}} 7" in found
    assert "# TYPE torcharena_process_refused_total counter" in found
    device = f'UUID="{GPU}",gpu="0",modelName="Model 140"'
    assert f"torcharena_device_cap_bytes{{{device}}} {64 * GIB}" in found
    assert not any(line.startswith("torcharena_process_cap_bytes") for line in found)
    file = tmp_path / "torcharena.prom"
    assert cli.main(["metrics", "--textfile", str(file)]) == 0
    assert file.read_text().splitlines() == found
    assert file.stat().st_mode & 0o777 == 0o644
    assert [p.name for p in tmp_path.glob(".torch*")] == []


def test_two_of_one_name_are_two_samples(machine: SimpleNamespace) -> None:
    """Process 1 of two containers, of one user and one program."""
    alike = [row(0, 1, pid=1), row(1, 2, pid=1), row(2, 1, pid=1, alive=False)]
    machine.core.ledger_rows[str(machine.folder), GPU] = [
        *alike,
        row(3, 1, pid=1, alive=False),
    ]
    found = [(one.metric.name, one.labels) for one in metrics.samples(top.look())]
    assert len(found) == len(set(found))


def test_what_others_wrote_does_not_steer_the_terminal(machine: SimpleNamespace) -> None:
    wild = "\x1b]0;x\x07\x1b[2J\n"
    bad = row(0, 1, label=f"a{wild}\x1fk8s:ml/{wild}", tenant=f"t{wild}")
    machine.core.ledger_rows[str(machine.folder), GPU] = [bad]
    (machine.folder / "GPU-\x1b[2J.ledger").touch()
    view = top.look()
    (gpu,) = view.gpus
    (one,) = gpu.processes
    texts = (one.label, one.tenant, one.k8s_pod, gpu.tenants[0].name)
    assert all(text.isprintable() for text in texts), texts
    assert drawing.plain(drawing.lines(view, 120)).replace("\n", "").isprintable()


def test_a_textfile_that_cannot_be_written(
    machine: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "none" / "x.prom")
    assert cli.main(["metrics", "--textfile", path]) == 1
    assert f"torcharena: {path}: No such file" in capsys.readouterr().err
    (tmp_path / "x.prom").mkdir()
    assert cli.main(["metrics", "--textfile", str(tmp_path / "x.prom")]) == 1
    assert [p.name for p in tmp_path.glob(".x*")] == []


def test_over_http_the_same(machine: SimpleNamespace) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    ports: list[int] = []
    Thread(
        target=metrics_serving.serve,
        args=(("127.0.0.1", 0), top.look, ports.append),
        daemon=True,
    ).start()
    while not ports:
        pass
    with urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/metrics") as answer:
        served = answer.read().decode()

    def all_of(text: str) -> set[Any]:
        return {
            (sample.name, *sorted(sample.labels.items()), sample.value)
            for family in parser.text_string_to_metric_families(text)
            for sample in family.samples
        }

    assert all_of(served) == all_of(metrics.text(top.look()))


def test_where_it_listens(
    machine: SimpleNamespace,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert metrics_serving.address(":9445") == ("127.0.0.1", 9445)
    assert metrics_serving.address("9445") == ("127.0.0.1", 9445)
    assert metrics_serving.address("0.0.0.0:9445") == ("0.0.0.0", 9445)
    assert metrics_serving.address("[::1]:9445") == ("::1", 9445)
    for bad in ("localhost", "1.2.3.4:99999", ":", ":x"):
        assert cli.main(["metrics", "--listen", bad]) == 2
        assert "accepted: 127.0.0.1:9445" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert cli.main(["metrics", "--listen", ":0"]) == 2
    assert "pip install 'torcharena[metrics]'" in capsys.readouterr().err


# --- NVML ------------------------------------------------------------------------------------
def test_nvml_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found, why = nvml.cards()
    assert found == [] and "pip install nvidia-ml-py" in why


def test_mig_instances_stand_for_their_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Error(Exception):
        pass

    def memory(handle: str, version: int = 0) -> SimpleNamespace:
        return SimpleNamespace(total=10 * GIB, used=GIB)

    def instance(handle: str, place: int) -> str:
        if place:
            raise Error
        return "MIG-1"

    def running(handle: str) -> list[Any]:
        if handle == "MIG-1":
            raise Error
        return [SimpleNamespace(pid=5, usedGpuMemory=None)]

    fake = SimpleNamespace(
        NVMLError=Error,
        nvmlMemory_v2=2,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: f"GPU-{index}",
        nvmlDeviceGetMigMode=lambda handle: (int(handle == "GPU-1"), 0),
        nvmlDeviceGetMaxMigDeviceCount=lambda handle: 7,
        nvmlDeviceGetMigDeviceHandleByIndex=instance,
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetComputeRunningProcesses=running,
        nvmlDeviceGetUUID=lambda handle: handle.encode(),
        nvmlDeviceGetName=lambda handle: "Model",
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    found, why = nvml.cards()
    assert why == ""
    assert [(one.uuid, one.index, one.used) for one in found] == [
        ("GPU-0", 0, GIB),
        ("MIG-1", 1, GIB),
    ]
