"""Plans mend themselves: profiles that are wrong by three times, within twenty requests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgerun.backends.base import FEW_ROWS
from edgerun.plan.requests.breakeven import Side, Split
from edgerun.plan.requests.correction import (
    FEWEST,
    LATEST,
    MOST,
    MOST_LOST,
    MOST_TRIED,
    NEVER,
    TRIED_AFTER,
    Correction,
    Factor,
    LateCorrection,
)

SEEDS = [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 40))]


def test_the_median_of_the_latest_counts_within_limits() -> None:
    factor = Factor()
    for ratio in (3.0, 100.0):
        factor.add(1.0, ratio)
        assert factor.value == 1.0  # too few
    factor.add(2.0, 6.0)
    assert factor.value == 3.0
    for _ in range(LATEST):
        factor.add(1.0, 100.0)
    assert factor.value == MOST
    for _ in range(LATEST):
        factor.add(100.0, 1.0)
    assert factor.value == 1 / MOST
    Factor().add(0.0, 1.0)  # a split without a cost says nothing


def npu(calls: dict[int, float]) -> Side:
    return Side(("npu",), calls, is_padded=True)


def cpu(token_s: float) -> Side:
    return Side(("cpu",), {1: token_s, 256: 256 * token_s})


def real(rng: np.random.Generator) -> Split:
    """What a machine really does: a device that pays for some prompts, or for none."""
    here = cpu(1e-3)
    there = Side(
        ("npu",), {64: rng.uniform(45e-3, 90e-3), 256: rng.uniform(120e-3, 300e-3)}, is_padded=True
    )
    return Split(there, here, 2e-3, 1e-6, 1e-3, longest=256)


def requests(correction: Correction, machine: Split, count: int, rng: np.random.Generator) -> None:
    """Prompts of all lengths, each timed where it goes, with noise."""
    for _ in range(count):
        rows, noise = int(rng.integers(17, 256)), rng.uniform(0.9, 1.1)
        if correction.goes_there(rows):
            seconds = machine.seconds_there(rows + 1) - machine.launch_s - machine.decode_s
            correction.went_there(rows, seconds * noise)
        else:
            correction.stayed_here(rows, machine.seconds_here(rows) * noise)


def regret(from_rows: int, machine: Split) -> float:
    """By how much prompts of all lengths take longer than where they are fastest."""
    lengths = range(17, 256)
    taken = best = 0.0
    for rows in lengths:
        there, here = machine.seconds_there(rows + 1), machine.seconds_here(rows + 1)
        taken += there if rows >= from_rows else here
        best += min(there, here)
    return taken / best - 1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("device", "processor"),
    [(1 / 3, 1), (1, 3), (1 / 3, 3), (3, 1), (1, 1 / 3), (3, 1 / 3), (3, 3)],
    ids=str,
)
def test_a_profile_that_is_wrong_by_three_times_mends_itself(
    device: float, processor: float, seed: int
) -> None:
    """Both ways: what was believed to lose is tried, what was believed to win is found out."""
    rng = np.random.default_rng(seed)
    machine = real(rng)
    there, here = machine.there.scaled(device), machine.here.scaled(processor)
    believed = Split(there, here, 2e-3, 1e-6, 1e-3, longest=256)
    correction = Correction(believed)
    right = Correction(machine).from_rows
    requests(correction, machine, 20, rng)
    assert regret(correction.from_rows, machine) <= regret(right, machine) + 0.1


def test_without_correction_they_would_not() -> None:
    """The cases above are such that it matters."""
    lost = []
    for seed in range(40):
        machine = real(np.random.default_rng(seed))
        believed = Split(machine.there.scaled(1 / 3), machine.here, 2e-3, 1e-6, 1e-3, longest=256)
        lost.append(regret(Correction(believed).from_rows, machine))
    assert np.mean(lost) > 0.1


def test_prompts_stay_sometimes_until_it_is_known_what_they_take_here() -> None:
    close = Correction(
        Split(
            Side(("npu",), {256: 10e-3}, is_padded=True),
            Side(("cpu",), {256: 0.0256, 1: 1e-4}),
            longest=256,
        )
    )
    went = [close.goes_there(250) for _ in range(8)]
    assert went == [True, False] * 4
    for _ in range(FEWEST):
        close.stayed_here(250, 25e-3)
    assert all(close.goes_there(250) for _ in range(4))
    far = Correction(replace(close._split, there=npu({256: 1e-3})))
    assert all(far.goes_there(250) for _ in range(8))


def test_a_device_that_loses_is_used_no_more() -> None:
    rng = np.random.default_rng(0)
    here = cpu(1e-3)
    believed = Split(npu({64: 30e-3}), here, longest=256)
    machine = Split(npu({64: 90e-3}), here, longest=256)
    assert machine.from_tokens() is None
    correction = Correction(believed)
    assert correction.from_rows < NEVER
    requests(correction, machine, 20, rng)
    assert correction.from_rows == NEVER


def test_a_right_profile_stays() -> None:
    rng = np.random.default_rng(0)
    machine = real(rng)
    correction = Correction(machine)
    before = correction.from_rows
    assert before >= FEW_ROWS + 1
    for _ in range(FEWEST * 10):
        rows = int(rng.integers(17, 256))
        seconds = machine.seconds_there(rows + 1) - machine.launch_s - machine.decode_s
        correction.went_there(rows, seconds)
        correction.stayed_here(rows, machine.seconds_here(rows))
    assert correction.from_rows == before


def believed_slow(factor: float = 3.0) -> tuple[Split, Split]:
    """What is believed, and what is: a device that is faster from 65 tokens on, by so much."""
    machine = Split(npu({64: 60e-3, 256: 80e-3}), cpu(1e-3), 2e-3, 1e-6, 1e-3, longest=256)
    return replace(machine, there=machine.there.scaled(factor * 4)), machine


def test_what_loses_is_tried_after_some_prompts_and_used_if_it_wins() -> None:
    believed, machine = believed_slow(0.9)
    correction = Correction(believed)
    assert correction.from_rows == NEVER
    went = []
    for _ in range(TRIED_AFTER + FEWEST + 4):
        went.append(correction.goes_there(250))
        if went[-1]:
            seconds = machine.seconds_there(251) - machine.launch_s - machine.decode_s
            correction.went_there(250, seconds)
        else:
            correction.stayed_here(250, machine.seconds_here(250))
    assert went == [False] * TRIED_AFTER + [True] * (FEWEST + 4)
    assert correction.from_rows == Correction(machine).from_rows


def test_what_loses_in_trials_is_left_alone_for_good() -> None:
    believed, _ = believed_slow(0.9)
    correction = Correction(believed)
    trials = 0
    for _ in range(100):
        if correction.goes_there(250):
            trials += 1
            correction.went_there(250, believed.there.seconds(250))
        else:
            correction.stayed_here(250, 0.25)
    assert trials == MOST_LOST and correction.from_rows == NEVER


def test_what_could_not_win_is_not_tried() -> None:
    believed, _ = believed_slow(3.3)
    correction = Correction(believed)
    for _ in range(100):
        assert not correction.goes_there(250)  # not even if it were four times as fast
        correction.stayed_here(250, 0.25)
    some = Correction(believed_slow(0.9)[0])
    for _ in range(100):
        assert not some.goes_there(FEW_ROWS)
        assert not some.goes_there(70)  # two calls, padded to 64 rows each
        some.stayed_here(70, 0.07)


def test_a_device_that_never_answers_is_not_asked_for_ever() -> None:
    """Its network is never ready, so a substitute computes and nothing is measured."""
    correction = Correction(believed_slow(0.9)[0])
    for _ in range(TRIED_AFTER):
        correction.stayed_here(250, 0.25)
    assert sum(correction.goes_there(250) for _ in range(100)) == MOST_TRIED


def test_nothing_is_weighed_before_some_prompts_have_stayed() -> None:
    believed, weighed = believed_slow(0.9)[0], []

    def weigh() -> Split:
        weighed.append(True)
        return believed

    late = LateCorrection(weigh)
    late.went_there(250, 1.0)  # nothing went
    for count in range(TRIED_AFTER):
        assert not late.goes_there(250) and len(weighed) == 0, count
        late.stayed_here(250, 0.25)
    assert late.goes_there(250) and len(weighed) == 1
    late.went_there(250, 0.05)
    late.stayed_here(250, 0.25)
    never = LateCorrection(lambda: None)
    for _ in range(3 * TRIED_AFTER):
        assert not never.goes_there(250)
        never.stayed_here(250, 0.25)
