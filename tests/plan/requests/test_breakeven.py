"""From how many tokens on prompts go elsewhere: the sum of its terms, and no other number."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest

from edgerun.plan.requests.breakeven import Side, Split

HERE = Side(("cpu",), {1: 1e-3, 1024: 1.024})


def split(**terms: float) -> Split:
    there = Side(("npu",), {64: terms.pop("call", 16e-3)}, is_padded=True)
    return Split(there, HERE, longest=1024, **terms)  # type: ignore[arg-type]


def test_the_terms_are_those_of_the_formula() -> None:
    terms = split(launch_s=20e-3, handover_s=5e-6, decode_s=3e-3)
    for tokens in (2, 64, 65, 66, 500, 1024):
        before_last = tokens - 1
        expected = 20e-3 + ceil(before_last / 64) * 16e-3 + before_last * 5e-6 + 3e-3
        assert terms.seconds_there(tokens) == pytest.approx(expected)
        assert terms.seconds_here(tokens) == pytest.approx(tokens * 1e-3)


def test_calls_have_several_sizes() -> None:
    there = Side(("npu",), {64: 10e-3, 256: 30e-3}, is_padded=True)
    assert [there.seconds(tokens) for tokens in (1, 64, 65, 129, 256, 300, 520)] == pytest.approx(
        [10e-3, 10e-3, 20e-3, 30e-3, 30e-3, 40e-3, 70e-3]
    )


def test_between_sizes_that_were_estimated_seconds_are_in_proportion() -> None:
    side = Side(("cpu",), {1: 1.0, 16: 4.0, 17: 6.0, 64: 20.0})
    assert [side.seconds(tokens) for tokens in (1, 4, 16, 17, 64)] == pytest.approx(
        [1.0, 1.0 + 3 * 3 / 15, 4.0, 6.0, 20.0]
    )
    assert side.seconds(2 * 64 + 16) == pytest.approx(44.0)
    assert side.scaled(3).seconds(40) == pytest.approx(3 * side.seconds(40))
    assert side.seconds(0) == 0.0


@pytest.mark.parametrize(
    ("terms", "tokens"),
    [
        ({}, 17),
        ({"launch_s": 100e-3}, 149),  # 100 + 3 * 16 ms
        ({"launch_s": 100e-3, "decode_s": 4e-3}, 153),
        ({"call": 70e-3}, None),  # 64 tokens take longer than here
        ({"call": 64e-3, "handover_s": 2e-6}, None),
        ({"call": 60e-3, "launch_s": 5e-3, "handover_s": 1e-4}, None),
    ],
    ids=str,
)
def test_it_pays_from_so_many_tokens_on(terms: dict[str, float], tokens: int | None) -> None:
    assert split(**terms).from_tokens() == tokens


@pytest.mark.parametrize("seed", range(50))
def test_from_there_on_it_always_pays_and_just_before_it_does_not(seed: int) -> None:
    rng = np.random.default_rng(seed)
    there = Side(
        ("npu",), {64: rng.uniform(5e-3, 80e-3), 256: rng.uniform(20e-3, 260e-3)}, is_padded=True
    )
    terms = Split(there, HERE, *rng.uniform(0, [50e-3, 1e-4, 5e-3]), longest=512)
    wins = [terms.seconds_there(n) < terms.seconds_here(n) for n in range(1, 513)]
    tokens = terms.from_tokens()
    if tokens is None:
        assert not wins[-1]
    else:
        assert all(wins[tokens - 1 :])
        assert tokens == 1 or not wins[tokens - 2]


def test_the_reverse_has_the_same_form() -> None:
    """Replies on a device whose calls are padded, prompts where any number of rows is possible."""
    device = Side(("igpu",), {64: 64e-3}, is_padded=True)
    terms = Split(HERE, device, decode_s=1e-3, longest=256)
    assert terms.from_tokens() is None  # 64 tokens are as fast on the device
    faster = Split(HERE.scaled(0.5), device, decode_s=1e-3, longest=256)
    assert faster.from_tokens() == 1
    slower = Split(HERE.scaled(2), device, decode_s=1e-3, longest=256)
    assert slower.from_tokens() is None
