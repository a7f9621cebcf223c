"""Metadata of GGUF files: every reader takes what it says, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.checkpoint.kinds.keys import Keys

MOST = (1 << 31) - 1


def keys(value: Any) -> Keys:
    return Keys({"llama.key": value}, "llama")


@pytest.mark.parametrize(
    ("reader", "value"),
    [
        ("number", 0),
        ("number", -1.5),
        ("positive", 1),
        ("positive", 1e-9),
        ("size", 1),
        ("size", 2.0),
        ("size", MOST),
        ("count", 0),
        ("count", MOST),
    ],
)
def test_numbers_are_read(reader: str, value: float) -> None:
    assert getattr(keys(value), reader)("key") == value


@pytest.mark.parametrize("reader", ["number", "positive", "size", "count"])
@pytest.mark.parametrize("value", [True, False, "1", [1, 2], np.uint32([1, 2])])
def test_what_is_no_single_number_is_refused(reader: str, value: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"metadata 'llama\.key' is .*; expected one number"):
        getattr(keys(value), reader)("key")


@pytest.mark.parametrize(
    ("reader", "value"),
    [
        *((reader, value) for reader in ("number", "size", "count") for value in ("inf", "nan")),
        ("positive", 0),
        ("positive", -1e-9),
        ("size", 0),
        ("size", -1),
        ("size", 1.5),
        ("size", MOST + 1),
        ("count", -1),
        ("count", 0.5),
        ("count", MOST + 1),
    ],
)
def test_numbers_out_of_range_are_refused(reader: str, value: Any) -> None:
    value = float(value) if isinstance(value, str) else value
    with pytest.raises(CheckpointError, match=rf"metadata 'llama\.key' is {value}"):
        getattr(keys(value), reader)("key")


@pytest.mark.parametrize(
    ("reader", "value", "expected"),
    [
        ("by_layer", 3, [3, 3]),
        ("by_layer", [0, MOST], [0, MOST]),
        ("by_layer", np.uint32([1, 2]), [1, 2]),
        ("numbers", [-1, 0.5], [-1.0, 0.5]),
        ("numbers", np.float32([0.5, np.inf]), [0.5, float("inf")]),
        ("flags", [True, False], [True, False]),
        ("flags", np.array([True, False]), [True, False]),
    ],
)
def test_values_of_layers_are_read(reader: str, value: Any, expected: list[Any]) -> None:
    assert getattr(keys(value), reader)("key", 2) == expected


@pytest.mark.parametrize(
    ("reader", "value"),
    [
        ("by_layer", [1]),
        ("by_layer", [1, 2, 3]),
        ("by_layer", [1, -1]),
        ("by_layer", [1, MOST + 1]),
        ("by_layer", [1, 1.5]),
        ("by_layer", [1, True]),
        ("by_layer", "12"),
        ("numbers", 1.5),
        ("numbers", [1.5]),
        ("numbers", [1.5] * 3),
        ("numbers", [1, float("nan")]),
        ("numbers", [1, True]),
        ("numbers", ["1", "2"]),
        ("flags", True),
        ("flags", [True]),
        ("flags", [True] * 3),
        ("flags", [1, 0]),
    ],
)
def test_values_of_other_layers_are_refused(reader: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"metadata 'llama\.key' is .* for each of 2 layers"):
        getattr(keys(value), reader)("key", 2)


@pytest.mark.parametrize("reader", ["number", "positive", "size", "count"])
def test_what_is_missing_is_missed_unless_it_has_a_default(reader: str) -> None:
    with pytest.raises(CheckpointError, match=r"metadata lacks 'llama\.other'"):
        getattr(keys(1), reader)("other")
    assert getattr(keys(1), reader)("other", 7) == 7


@pytest.mark.parametrize("reader", ["by_layer", "numbers", "flags"])
def test_lists_that_are_missing_are_missed(reader: str) -> None:
    with pytest.raises(CheckpointError, match=r"metadata lacks 'llama\.other'"):
        getattr(keys([1]), reader)("other", 1)
