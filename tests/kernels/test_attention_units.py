"""How many rows meet a page of keys at a time, and whether keys are turned for them."""

from __future__ import annotations

import pytest

from edgerun.kernels.attention.units import PROMPT_ROWS, stack_rows, turning_pays

FEW, MANY = 8, 16  # rows of a unit


@pytest.mark.parametrize(
    ("lanes", "rows", "stack", "turns"),
    [
        (16, FEW, MANY, True),
        (16, PROMPT_ROWS, MANY, True),
        (8, PROMPT_ROWS - 1, FEW, False),  # a few rows would take longer
        (8, PROMPT_ROWS, MANY, True),
        (4, PROMPT_ROWS, FEW, False),
    ],
)
def test_keys_are_turned_for_prompts(lanes: int, rows: int, stack: int, turns: bool) -> None:
    assert stack_rows("fp16", 64, 4, lanes, rows) == stack
    assert turning_pays("fp16", 64, 4, stack, lanes) == turns


def test_queries_that_no_cache_holds_and_codes_are_not_stacked() -> None:
    assert stack_rows("fp16", 64, 9, 8, PROMPT_ROWS) == FEW
    assert stack_rows("fp16", 64, 1, 8, PROMPT_ROWS) == FEW
    assert stack_rows("int8", 64, 4, 8, PROMPT_ROWS) == FEW
