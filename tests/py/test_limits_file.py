"""limits.toml: what it may say, who may have written it, and what the errors say."""

from __future__ import annotations

import importlib
import os
import socket
from pathlib import Path

import pytest
from torcharena.caps import admin_file, reader, trust
from torcharena.caps.admin_file import AdminFile, Malformed
from torcharena.caps.trust import Untrusted

GIB = 1 << 30
GPU = "GPU-5d0c1a2b-3c4d-5e6f-7081-92a3b4c5d6e7"
GOOD = f"""\
# What the cards of this machine may be used for.
mode = "observe"
ledger = "/run/gpus"

[limits]
process = "24GiB"
tenant = "50%"
device = "none"

[gpu.{GPU}]
process = "1.5Gi"
device = 0

[[tenant]]
user = ["alice", 1004]
limit = "30GiB"

[[tenant]]
name = "jobs"
slurm_job = "*"
process = "0"
"""


def read(text: str | bytes) -> AdminFile:
    raw = text if isinstance(text, bytes) else text.encode()
    return reader.parse(raw, "limits.toml")


def sizes_of(file: AdminFile, scope: str, gpu: str, rule: int | None) -> list[str]:
    chosen = None if rule is None else file.tenants[rule]
    return [f"{cap.size}" for cap in file.caps(scope, gpu, chosen)]


def test_all_that_it_may_say() -> None:
    file = read(GOOD)
    assert (file.mode, file.ledger) == ("observe", "/run/gpus")
    assert [rule.kind for rule in file.tenants] == ["user", "slurm_job"]
    assert file.tenants[0].values == ("alice", "1004") and file.tenants[0].name == ""
    assert file.tenants[1].name == "jobs"
    # What is said of a GPU or a tenant stands in place of [limits]; of both the least counts.
    assert sizes_of(file, "process", "GPU-other", None) == ["24GiB"]
    assert sizes_of(file, "process", GPU, None) == ["1536MiB"]
    assert sizes_of(file, "process", "GPU-other", 1) == ["0"]
    assert sizes_of(file, "process", GPU, 1) == ["0", "1536MiB"]
    assert sizes_of(file, "tenant", GPU, None) == ["50%"]
    assert sizes_of(file, "tenant", GPU, 0) == ["30GiB"]
    assert sizes_of(file, "device", "GPU-other", 0) == ["None"]
    assert sizes_of(file, "device", GPU, 0) == ["0"]
    assert file.where(file.limits["tenant"]) == "limits.toml, line 7"
    assert file.where(file.gpus[GPU]["device"]) == "limits.toml, line 12"
    assert file.shares()


def test_whether_the_ledger_is_needed() -> None:
    assert not read('[limits]\nprocess = "1GiB"').shares()
    assert not read('[limits]\ndevice = "none"').shares()
    assert read('[limits]\ndevice = "1GiB"').shares()
    assert read(f'[gpu.{GPU}]\ntenant = "0"').shares()
    assert read('[[tenant]]\nuser = "a"\nlimit = "1GiB"').shares()


SIZES = "(accepted: 16GiB or 16Gi (likewise KiB, MiB, TiB), 1.5GiB, 80%, 0, none)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('mode = "on"', "line 1: mode='on': no such mode (accepted: \"off\","),
        ("mode = enforce", 'line 1: a text needs quotes: "enforce": mode = enforce'),
        ("[limits]\nprocess = 16GiB", 'line 2: a text needs quotes: "16GiB"'),
        ("[limits]\nprocess = none", 'line 2: a text needs quotes: "none"'),
        (
            "[limits]\nprocess = 16",
            f"line 2: process=16: a number needs a unit here {SIZES}",
        ),
        (
            '[limits]\nprocess = "16"',
            "line 2: process='16': a number needs a unit here: 16MiB",
        ),
        ('[limits]\nprocess = "16GB"', f"line 2: process='16GB': write 16GiB {SIZES}"),
        (
            '[limits]\nprocess = "150%"',
            "line 2: process='150%': more than the whole device",
        ),
        ("[limits]\nprocess = -1", "line 2: process=-1: a number needs a unit"),
        ("[limits]\nprocess = true", "line 2: process=True: it is a bool"),
        ("[limits]\nprocess = 0.5", "line 2: process=0.5: it is a float"),
        ('limits.process = "5"', "limits.toml: [limits] process='5': a number needs"),
        (
            '\n[limits]\nproces = "1GiB"',
            "line 3: unknown key 'proces' (do you mean process?)",
        ),
        (
            '[limits]\nx = "1GiB"',
            "line 2: unknown key 'x' (accepted: process, tenant, device)",
        ),
        (
            '[limit]\nprocess = "1GiB"',
            "line 1: unknown key 'limit' (do you mean limits?)",
        ),
        ("limits = 3", "line 1: limits=3: it is a table, [limits]"),
        ("[limits\nprocess", "line 1: expected ']' at the end of a table declaration"),
        ('[limits]\nprocess="1GiB"\nprocess="2GiB"', "line 3: cannot overwrite a value"),
        ('[limits]\nprocess = "1GiB', "line 2: unterminated string"),
        ('ledger = "run"', "line 1: ledger='run': not a directory's whole path"),
        (
            '[gpu.0]\ndevice = "1GiB"',
            "line 1: [gpu.0]: no UUID of a GPU (accepted: [gpu.GPU-",
        ),
        ("[gpu]\nGPU-a = 3", "line 2: GPU-a=3: it is a table, [gpu.GPU-a]"),
        (
            '[tenant]\nuser = "a"',
            "line 1: tenant: each is a table of its own, [[tenant]]",
        ),
        (
            '[[tenant]]\nlimit = "1GiB"',
            "line 1: [[tenant]]: nobody is named (accepted: one of",
        ),
        ('[[tenant]]\nuser = "a"\npod = "*"', "line 3: [[tenant]]: both user and pod"),
        ("[[tenant]]\nuser = true", "line 2: user=True: nobody (accepted: a name, a uid"),
        ("[[tenant]]\nuser = []", "line 2: user=[]: nobody"),
        ('[[tenant]]\nuser = ""', "line 2: user='': nobody"),
        ("[[tenant]]\npod = 3", "line 2: pod=3: nobody (accepted: a pod's UID"),
        ('[[tenant]]\ncgroup = "docker"', "line 2: cgroup='docker': no path"),
        (
            '[[tenant]]\nuser = "a"\nname = "ü b"',
            "line 3: name='ü b': no name of a tenant",
        ),
        (
            '[[tenant]]\nuser="a"\n[[tenant]]\nuser="b"\nlimit=7',
            "line 5: limit=7: a number",
        ),
        ("", 'limits.toml: it says nothing (mode = "off" is how'),
        ("# process = 16GiB", "it says nothing"),
        (b'\nmode = "\xff"', "line 2: not UTF-8"),
    ],
)
def test_errors_name_line_and_remedy(text: str | bytes, said: str) -> None:
    with pytest.raises(Malformed) as error:
        read(text)
    assert said in str(error.value) and str(error.value).startswith("limits.toml")
    assert error.value.mode == "enforce"


def test_an_error_keeps_the_mode_that_is_clear() -> None:
    for mode in admin_file.MODES:
        with pytest.raises(Malformed) as error:
            read(f'mode = "{mode}"\n[limits]\nprocess = 16')
        assert error.value.mode == mode


def test_without_a_parser_of_toml(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(Malformed, match="pip install tomli"):
        read(GOOD)


# --- whose file ----------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is as trusted as /etc: who runs the tests stands for root."""
    monkeypatch.setattr(trust, "TRUSTED", {0, os.getuid()})
    folder = tmp_path / "etc"
    folder.mkdir(mode=0o755)
    return folder


def write(path: Path, text: str = 'mode = "off"\n', mode: int = 0o644) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def refused(path: Path, said: str) -> None:
    with pytest.raises(Untrusted) as error:
        trust.read(str(path))
    assert said in str(error.value) and str(path) in str(error.value)
    with pytest.raises(Malformed) as malformed:
        admin_file.load(str(path))
    assert malformed.value.mode == "enforce"


def test_a_sound_file_and_none(place: Path) -> None:
    assert admin_file.load(str(place / "limits.toml")) is None
    assert admin_file.load(str(place / "no" / "limits.toml")) is None
    file = admin_file.load(str(write(place / "limits.toml")))
    assert file is not None and file.mode == "off"
    assert file.mark == trust.mark(str(place / "limits.toml"))
    write(place / "new", 'mode = "observe"\n').rename(place / "limits.toml")
    assert file.mark != trust.mark(str(place / "limits.toml"))


def test_files_that_others_can_write(place: Path) -> None:
    path = write(place / "limits.toml", mode=0o666)
    refused(path, "writable by others than root: mode 0666")
    if os.getuid() == 0:
        os.chown(path, 0, 1234)
        path.chmod(0o664)
        refused(path, "mode 0664, group 1234 (chmod 0644")
        os.chown(path, 1234, 0)
        path.chmod(0o644)
        refused(path, "belongs to uid 1234, not to root (chown root")
    place.chmod(0o777)
    write(path, mode=0o644)
    refused(path, f"the directory {place} is writable by others than root (mode 0777)")
    place.chmod(0o1777)  # sticky: what is root's there nobody else replaces
    if os.getuid() == 0:
        os.chown(path, 0, 0)
    assert admin_file.load(str(path)) is not None


def test_links_are_followed_where_root_made_them(place: Path, tmp_path: Path) -> None:
    """As a mounted ConfigMap has them: limits.toml -> ..data/limits.toml, ..data -> ..1."""
    (place / "..1").mkdir()
    write(place / "..1" / "limits.toml")
    (place / "..data").symlink_to("..1")
    (place / "limits.toml").symlink_to("..data/limits.toml")
    file = admin_file.load(str(place / "limits.toml"))
    assert file is not None and file.mode == "off"
    before = trust.mark(str(place / "limits.toml"))
    (place / "..2").mkdir()
    write(place / "..2" / "limits.toml", 'mode = "observe"\n')
    (place / "..new").symlink_to("..2")
    (place / "..new").rename(place / "..data")  # as the kubelet changes it
    assert trust.mark(str(place / "limits.toml")) != before
    absolute = tmp_path / "absolute"
    absolute.symlink_to(place / "limits.toml")
    file = admin_file.load(str(absolute))
    assert file is not None and file.mode == "observe"
    if os.getuid() == 0:
        os.lchown(place / "..data", 1234, 1234)
        refused(place / "limits.toml", "..data belongs to uid 1234, not to root")


def test_hostile_links(place: Path) -> None:
    (place / "limits.toml").symlink_to("nowhere")
    refused(place / "limits.toml", "which is not there")
    (place / "a").symlink_to("b")
    (place / "b").symlink_to("a")
    refused(place / "a", "too many links")


def test_what_is_no_file(place: Path) -> None:
    (place / "folder").mkdir()
    refused(place / "folder", "is no regular file")
    os.mkfifo(place / "pipe")  # opening it must not wait for a writer
    refused(place / "pipe", "is no regular file")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place / "s"))
        refused(place / "s", "cannot be read")
    refused(write(place / "file") / "limits.toml", "is no directory")
    large = write(place / "large", "#" * (trust.LARGEST + 1))
    refused(large, "no such file needs as many")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be another user")
def test_a_file_that_cannot_be_read(place: Path, tmp_path: Path) -> None:
    path = write(place / "limits.toml", mode=0o600)
    for at in (tmp_path, *tmp_path.parents):  # others may pass
        if not at.stat().st_mode & 0o001:
            at.chmod(at.stat().st_mode & 0o7777 | 0o011)
    before = os.geteuid()
    os.seteuid(65534)
    try:
        refused(path, "cannot be read: Permission denied")
    finally:
        os.seteuid(before)


def test_in_a_user_namespace_root_has_the_overflow_uid(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is mounted read-only: then whoever that uid stands for does not write it here."""
    path = write(place / "limits.toml")
    monkeypatch.setattr(trust, "TRUSTED", {4242})
    monkeypatch.setattr(trust, "_overflow_uid", os.getuid)
    monkeypatch.setattr(trust, "_check_directory", lambda path, directory: None)
    refused(path, "not to root")  # no user namespace
    monkeypatch.setattr(trust, "_in_user_namespace", lambda: True)
    refused(path, "not to root")  # mounted writable
    real = os.fstatvfs

    class ReadOnly:
        f_flag = os.ST_RDONLY

    monkeypatch.setattr(os, "fstatvfs", lambda fd: ReadOnly)
    assert admin_file.load(str(path)) is not None
    monkeypatch.setattr(os, "fstatvfs", real)
