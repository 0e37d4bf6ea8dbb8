"""The table of settings, PyTorch's own settings, and the entry point that reads them."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torcharena
from fake_core import FakeCore
from torcharena import _autoload, conf, loading, settings, sizes


def test_every_variable_is_read() -> None:
    found = settings.from_environment(
        {
            "TORCHARENA_ENABLE": "1",
            "TORCHARENA_LIMIT": "16GiB",
            "TORCHARENA_SPILL": "64GiB",
            "TORCHARENA_FALLBACK": "yes",
            "TORCHARENA_STRICT": "0",
            "TORCHARENA_RECORD": "x.trace.xz",
            "TORCHARENA_PAGE": "8MiB",
            "TORCHARENA_SLACK": "1.02",
            "TORCHARENA_LABEL": "mine",
            "TORCHARENA_LEDGER": "/run/x",
            "TORCHARENA_LOG": "info",
            "TORCHARENA_DEBUG": "guard",
            "PATH": "/bin",
        }
    )
    assert found == {
        "enable": True,
        "limit": sizes.Size(bytes=16 << 30),
        "spill": 64 << 30,
        "fallback": True,
        "strict": False,
        "record": "x.trace.xz",
        "page": 8 << 20,
        "slack": 1.02,
        "label": "mine",
        "ledger": "/run/x",
        "log": "INFO",
        "debug": "guard",
    }
    assert set(found) == {setting.name for setting in settings.SETTINGS}
    assert settings.from_environment({}) == {}


@pytest.mark.parametrize(
    "variable", ["TORCHARENA_LIMT", "TORCHARENA_LIMITS", "TORCHARENA_X"]
)
def test_an_unknown_variable_is_an_error_that_names_it(variable: str) -> None:
    with pytest.raises(ValueError, match=variable) as error:
        settings.from_environment({variable: "16GiB", "TORCHARENA_ENABLE": "1"})
    assert "TORCHARENA_LIMIT" in str(error.value)


def test_the_nearest_name_is_offered() -> None:
    assert settings.unknown({"TORCHARENA_LIMT": ""}) == [
        "TORCHARENA_LIMT (do you mean TORCHARENA_LIMIT?)"
    ]
    assert settings.unknown({"TORCHARENA_X": ""}) == ["TORCHARENA_X"]
    others = ("SIM_DIR", "REHEARSAL", "REHEARSAL_JOB", "VALUES_LIMIT")
    theirs = {f"TORCHARENA_{name}": "/x" for name in others}
    assert settings.unknown({**theirs, "TORCH_X": ""}) == []


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("TORCHARENA_LIMIT", ""),
        ("TORCHARENA_LIMIT", "16"),
        ("TORCHARENA_LIMIT", "16GB"),
        ("TORCHARENA_ENABLE", "maybe"),
        ("TORCHARENA_RECORD", ""),
        ("TORCHARENA_PAGE", "3MiB"),
        ("TORCHARENA_PAGE", "6MiB"),
        ("TORCHARENA_PAGE", "512MiB"),
        ("TORCHARENA_PAGE", "50%"),
        ("TORCHARENA_SPILL", "64GB"),
        ("TORCHARENA_SPILL", "50%"),
        ("TORCHARENA_SLACK", ""),
        ("TORCHARENA_SLACK", "0.99"),
        ("TORCHARENA_SLACK", "nan"),
        ("TORCHARENA_SLACK", "2%"),
        ("TORCHARENA_LABEL", ""),
        ("TORCHARENA_LABEL", "two\nlines"),
        ("TORCHARENA_LEDGER", "run"),
        ("TORCHARENA_LEDGER", ""),
        ("TORCHARENA_LOG", "loud"),
    ],
)
def test_a_value_that_makes_no_sense_names_variable_and_remedy(
    variable: str, text: str
) -> None:
    with pytest.raises(ValueError, match=variable):
        settings.from_environment({variable: text})


def test_the_default_slack_is_the_librarys() -> None:
    source = Path(__file__).parents[2] / "csrc" / "core" / "pages" / "gather.c"
    (setting,) = (s for s in settings.SETTINGS if s.name == "slack")
    (value,) = re.findall(r"#define SLACK ([0-9.]+)", source.read_text())
    assert value == setting.usual


def test_the_table_shows_every_variable() -> None:
    shown = " ".join(settings.table().split())
    for setting in settings.SETTINGS:
        assert f"{setting.variable} {setting.meaning}; default {setting.usual}" in shown
    assert max(map(len, settings.table().splitlines())) <= 78


DOCS = Path(__file__).parents[2] / "docs"


def test_the_documentation_has_the_table_as_it_is() -> None:
    """After a change paste what `python -c 'from torcharena import settings;
    print(settings.markdown())'` prints into docs/settings.md."""
    assert f"\n{settings.markdown()}\n" in (DOCS / "settings.md").read_text()


def test_what_enable_takes_are_settings() -> None:
    given = set(inspect.signature(torcharena.enable).parameters)
    assert given == {s.name for s in settings.SETTINGS} - {
        "enable",
        "label",
        "ledger",
        "log",
        "debug",
    }


def test_the_documentation_has_every_public_name(arena: FakeCore) -> None:
    text = (DOCS / "api.md").read_text()
    for name in set(torcharena.__all__) - {"__version__"}:
        assert f"`{name}" in text, name
    for key in torcharena.memory_stats(0):
        assert f"`{key.removesuffix('.peak').split('.')[0]}" in text, key


# --- PYTORCH_ALLOC_CONF --------------------------------------------------------------------


def test_keys_without_meaning_are_named_in_one_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "_said", set())
    environment = {
        "PYTORCH_ALLOC_CONF": "expandable_segments:True,pinned_use_background_threads:True",
        "PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:[256:1,512:2,>:8],"
        "max_split_size_mb:128,backend:native",
    }
    with pytest.warns(UserWarning) as warned:
        conf.check(environment)
    assert len(warned) == 1
    text = str(warned[0].message)
    assert "expandable_segments (PYTORCH_ALLOC_CONF)" in text
    assert "max_split_size_mb (PYTORCH_CUDA_ALLOC_CONF)" in text
    assert "roundup_power2_divisions" in text and "pinned" not in text


@pytest.mark.parametrize("variable", conf.VARIABLES)
def test_another_backend_is_an_error(variable: str) -> None:
    with pytest.raises(RuntimeError, match=r"cudaMallocAsync.*do not enable"):
        conf.check({variable: "backend:cudaMallocAsync"})


def test_no_caching_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="PYTORCH_NO_CUDA_MEMORY_CACHING"):
        conf.check({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        conf.check({"PYTORCH_NO_CUDA_MEMORY_CACHING": "0"})


def test_only_the_first_rank_of_a_node_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_said", set())
    monkeypatch.setenv("LOCAL_RANK", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loading.warn("said by a second rank")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.warns(UserWarning, match="by the first"):
        loading.warn("said by the first")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loading.warn("said by the first")


# --- the entry point and the import --------------------------------------------------------


def test_the_entry_point_does_nothing_unless_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never() -> None:
        raise AssertionError("enabled without being asked")

    monkeypatch.setattr("torcharena.installing.enable_from_environment", never)
    _autoload.load()
    monkeypatch.setenv("TORCHARENA_ENABLE", "0")
    _autoload.load()
    monkeypatch.setenv("TORCHARENA_ENABLE", "1")
    with pytest.raises(AssertionError, match="without being asked"):
        _autoload.load()


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("TORCHARENA_LIMIT", "1GB", "TORCHARENA_LIMIT='1GB': write 1GiB"),
        ("TORCHARENA_LIMT", "1GiB", "do you mean TORCHARENA_LIMIT?"),
        ("TORCHARENA_ENABLE", "maybe", "TORCHARENA_ENABLE='maybe'"),
    ],
)
def test_why_it_is_not_enabled_is_the_last_line(
    variable: str, text: str, said: str
) -> None:
    program = (
        "import os\n"
        "from torcharena import _autoload\n"
        f"os.environ.update({{'TORCHARENA_ENABLE': '1', {variable!r}: {text!r}}})\n"
        "try:\n"
        "    _autoload.load()\n"
        "except Exception as error:\n"
        "    raise RuntimeError('as torch has it: try without') from error\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("torcharena: not enabled: ") and said in last


def test_the_entry_point_names_a_misspelt_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "_said", set())
    monkeypatch.setenv("TORCHARENA_ENABEL", "1")
    monkeypatch.setenv("TORCHARENA_ENABLE", "0")
    with pytest.warns(UserWarning, match="TORCHARENA_ENABEL"):
        _autoload.load()


def test_importing_the_package_changes_nothing() -> None:
    program = (
        "import sys, signal, warnings, atexit\n"
        "before = set(sys.modules), signal.getsignal(signal.SIGSEGV)\n"
        "import torcharena\n"
        "assert not [m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy')]\n"
        "assert 'torcharena._core' not in sys.modules\n"
        "assert not torcharena.enabled()\n"
        "assert signal.getsignal(signal.SIGSEGV) == before[1]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
