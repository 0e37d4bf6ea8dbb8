"""The size grammar: what it takes, what it refuses, and that it says what it takes."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torcharena import sizes

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("16GiB", 16 * GIB),
        ("16Gi", 16 * GIB),
        (" 16GiB ", 16 * GIB),
        ("1.5GiB", 3 * GIB // 2),
        ("512MiB", 512 << 20),
        ("512Mi", 512 << 20),
        ("3KiB", 3 << 10),
        ("2TiB", 2 << 40),
        ("0", 0),
        ("0GiB", 0),
    ],
)
@pytest.mark.parametrize("in_code", [True, False])
def test_accepted_everywhere(text: str, expected: int, in_code: bool) -> None:
    assert sizes.parse(text, in_code=in_code) == sizes.Size(bytes=expected)


@pytest.mark.parametrize("value", [None, "none", "None", "NONE"])
def test_none_means_no_cap(value: object) -> None:
    assert sizes.parse(value) is None
    assert sizes.parse(value, in_code=False) is None


def test_zero_is_zero_and_not_none() -> None:
    assert sizes.parse(0) == sizes.Size(bytes=0)
    assert sizes.parse("0", in_code=False) == sizes.Size(bytes=0)


@given(st.integers(min_value=0, max_value=1 << 62))
def test_a_number_in_code_is_bytes(number: int) -> None:
    assert sizes.parse(number) == sizes.parse(str(number)) == sizes.Size(bytes=number)


@given(st.integers(min_value=1, max_value=1 << 62))
def test_a_number_without_a_unit_is_refused_elsewhere(number: int) -> None:
    with pytest.raises(ValueError, match="unit") as error:
        sizes.parse(str(number), in_code=False, name="TORCHARENA_LIMIT")
    assert "16GiB" in str(error.value) and "TORCHARENA_LIMIT" in str(error.value)


@given(st.integers(min_value=0, max_value=1 << 62))
def test_spelling_is_exact(number: int) -> None:
    assert sizes.parse(sizes.spell(number)) == sizes.Size(bytes=number)


@given(
    st.integers(min_value=0, max_value=1 << 20),
    st.integers(min_value=0, max_value=999),
    st.sampled_from("KMGT"),
)
def test_units_are_exact_and_round_down(
    whole: int, thousandths: int, letter: str
) -> None:
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}[letter]
    text = f"{whole}.{thousandths:03d}"
    size = sizes.parse(f"{text}{letter}iB", in_code=False)
    assert size == sizes.parse(f"{text}{letter}i", in_code=False)
    assert size is not None and size.bytes == int(Fraction(text) * unit)


@pytest.mark.parametrize("number", ["16", "1.5", "007"])
@pytest.mark.parametrize("unit", ["G", "GB", "g", "gb", "Gb", "gib", "gi", "GIB", " GiB"])
@pytest.mark.parametrize("in_code", [True, False])
def test_the_right_spelling_is_shown(number: str, unit: str, in_code: bool) -> None:
    with pytest.raises(ValueError) as error:
        sizes.parse(number + unit, in_code=in_code)
    assert f"write {number}GiB" in str(error.value)


@given(
    st.integers(min_value=0, max_value=100), st.integers(min_value=0, max_value=1 << 44)
)
def test_percent_is_of_the_device(percent: int, total: int) -> None:
    size = sizes.parse(f"{percent}%", in_code=False)
    assert size is not None and size.bytes is None
    assert size.resolve(total) == percent * total // 100


def test_percent_needs_a_device() -> None:
    size = sizes.parse("80%")
    assert size is not None and str(size) == "80%"
    with pytest.raises(ValueError, match="no device"):
        size.resolve(None)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "  ",
        "-1",
        "-1GiB",
        -1,
        "101%",
        "GiB",
        "1e9",
        "1,5GiB",
        "0x10",
        "16GiB!",
        "१GiB",
        True,
        1.5,
        16.0,
        b"16GiB",
        [],
        "16PiB",
        (1 << 62) + 1,
        "99999999TiB",
        "nan",
        "inf",
    ],
)
def test_the_rest_is_refused(value: object) -> None:
    with pytest.raises(ValueError) as error:
        sizes.parse(value, name="limit")
    assert "16GiB" in str(error.value) and str(error.value).startswith("limit=")


@given(st.text(max_size=12), st.booleans())
def test_any_text_is_a_size_or_a_clear_refusal(text: str, in_code: bool) -> None:
    try:
        size = sizes.parse(text, in_code=in_code)
    except ValueError as error:
        assert sizes.ACCEPTED in str(error)
    else:
        assert size is None or (size.bytes is None) != (size.share is None)


@given(st.integers(min_value=0, max_value=1 << 49))
def test_format_is_near_and_short(number: int) -> None:
    text = sizes.format_size(number)
    value, unit = text.split()
    scale = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}[unit]
    assert abs(float(value) * scale - number) <= 0.006 * scale
    assert float(value) < 1024


def test_format_examples() -> None:
    assert sizes.format_size(16 * GIB) == "16 GiB"
    assert sizes.format_size(GIB // 2) == "512 MiB"
    assert sizes.format_size(16 * GIB + 512) == "16.00 GiB"
    assert sizes.format_size(0) == "0 B"
    assert sizes.format_size(1280) == "1.25 KiB"
    assert sizes.format_size(-GIB) == "-1 GiB"
