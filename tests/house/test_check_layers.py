"""scripts/check_layers.py: what the layers allow passes, what they forbid is named."""

from __future__ import annotations

from pathlib import Path

import check_layers
import pytest

ROOT = Path(__file__).resolve().parents[2]


def tree(root: Path, files: dict[str, str]) -> Path:
    """A checkout with these files under csrc/, and a header in each layer."""
    for layer in check_layers.MAY_INCLUDE:
        path = root / "csrc" / layer / f"{layer}.h"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n")
    for name, text in files.items():
        (root / "csrc" / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("place", "include"),
    [
        ("core/a.c", '"core.h"'),
        ("core/a.c", '"../include/include.h"'),
        ("core/a.c", "<pthread.h>"),
        ("driver/a.c", '"../core/core.h"'),
        ("driver/cuda.c", "<cuda.h>"),
        ("py/a.c", "<Python.h>"),
        ("py/a.c", '"../torch/torch.h"'),
        ("simcuda/a.c", '"../driver/driver.h"'),
        ("simcuda/a.c", "<cuda_runtime_api.h>"),
        ("simcuda/a.c", "<cudnn.h>"),
    ],
)
def test_allowed(tmp_path: Path, place: str, include: str) -> None:
    assert check_layers.check(tree(tmp_path, {place: f"#include {include}\n"})) == []


@pytest.mark.parametrize(
    ("place", "include", "word"),
    [
        ("include/a.h", '"../core/core.h"', "csrc/core"),
        ("core/a.c", '"../driver/driver.h"', "csrc/driver"),
        ("core/a.c", '"driver/driver.h"', "csrc/driver"),  # by -Icsrc
        ("core/a.c", "<Python.h>", "Python.h"),
        ("core/a.c", "<cuda.h>", "cuda.h"),
        ("core/a.c", "<torch/extension.h>", "torch/extension.h"),
        ("driver/sim.c", "<cuda.h>", "cuda.h"),
        ("driver/cuda.c", "<cuda_runtime_api.h>", "cuda_runtime_api.h"),
        ("driver/a.c", '"../torch/torch.h"', "csrc/torch"),
        ("torch/a.c", "<Python.h>", "Python.h"),
        ("torch/a.c", '"../py/py.h"', "csrc/py"),
        ("py/a.c", '"../simcuda/simcuda.h"', "csrc/simcuda"),
        ("simcuda/a.c", '"../torch/torch.h"', "csrc/torch"),
        ("simcuda/a.c", '"../py/py.h"', "csrc/py"),
        ("core/a.c", '"../gone/gone.h"', "no such file"),
    ],
)
def test_forbidden(tmp_path: Path, place: str, include: str, word: str) -> None:
    root = tree(tmp_path, {place: f"/* text */\n#  include {include}\n"})
    (message,) = check_layers.check(root)
    assert message.startswith(f"csrc/{place}:2:")
    assert word in message
    assert check_layers.main([str(root)]) == 1


def test_unknown_layer(tmp_path: Path) -> None:
    root = tree(tmp_path, {})
    (root / "csrc" / "attic").mkdir()
    (root / "csrc" / "attic" / "a.c").write_text("\n")
    (message,) = check_layers.check(root)
    assert "csrc/attic/a.c" in message


def test_nothing_to_check_is_an_error(tmp_path: Path) -> None:
    assert check_layers.main([str(tmp_path)]) == 1


def test_this_checkout() -> None:
    assert check_layers.check(ROOT) == []
