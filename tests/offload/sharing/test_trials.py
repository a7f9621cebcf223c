"""Whether cutting experts pays is decided by what calls took."""

from __future__ import annotations

import pytest

from edgerun.offload.sharing.trials import ENOUGH, LOOK, TRIAL, Trials


def run(trials: Trials, rows: int, calls: int, whole_s: float, cut_s: float) -> int:
    """How many of the calls are cut, where either way takes so long."""
    cuts = 0
    for _ in range(calls):
        is_cut = trials.favours_other(rows)
        trials.observe(rows, cut_s if is_cut else whole_s, rows, is_other=is_cut)
        cuts += is_cut
    return cuts


@pytest.mark.parametrize(("whole_s", "cut_s", "share"), [(1.0, 0.9, 1.0), (1.0, 1.1, 0.0)])
def test_the_faster_way_is_taken_and_the_other_tried_now_and_then(
    whole_s: float, cut_s: float, share: float
) -> None:
    trials = Trials()
    assert run(trials, 4, 2 * ENOUGH, whole_s, cut_s) == ENOUGH
    cuts = run(trials, 4, 10 * TRIAL, whole_s, cut_s) / (10 * TRIAL)
    assert abs(cuts - share) == pytest.approx(1 / TRIAL)


def test_what_turns_out_otherwise_later_is_followed() -> None:
    trials = Trials()
    run(trials, 4, 10 * TRIAL, 1.0, 1.1)
    run(trials, 4, 50 * TRIAL, 1.0, 0.5)
    assert run(trials, 4, TRIAL, 1.0, 0.5) == TRIAL - 1


def test_calls_of_other_sizes_are_compared_among_themselves() -> None:
    trials = Trials()
    run(trials, 1, 4 * TRIAL, 1.0, 2.0)
    assert run(trials, 64, 2 * ENOUGH, 1.0, 0.5) == ENOUGH
    assert run(trials, 64, TRIAL, 1.0, 0.5) >= TRIAL - 1


def test_the_slower_way_is_seldom_looked_at() -> None:
    """For that takes time itself."""
    trials = Trials()
    assert all(trials.weighs(4) for _ in range(9))
    run(trials, 4, 2 * ENOUGH, 1.0, 2.0)
    assert sum(trials.weighs(4) for _ in range(10 * LOOK)) == 10
    assert all(trials.weighs(64) for _ in range(9))
    run(trials, 64, 2 * ENOUGH, 2.0, 1.0)
    assert all(trials.weighs(64) for _ in range(9))
