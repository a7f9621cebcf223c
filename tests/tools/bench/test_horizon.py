"""The least time of a token whose experts are known a few layers ahead."""

from __future__ import annotations

import pytest

from tools.bench.offload.horizon import token_s


def test_the_farther_one_sees_the_nearer_one_comes_to_disk_and_memory() -> None:
    seconds = [token_s(48, 8, 0.21, 0.6e-3, 33e-3, reach) for reach in (0, 1, 2, 48)]
    limit = max(48 * 8 * 0.21 * 0.6e-3, 33e-3)
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] > 1.1 * limit
    assert limit * 0.99 < seconds[-1] < 1.03 * limit


def test_nothing_missing_is_the_computing_and_everything_missing_the_reading() -> None:
    assert token_s(4, 2, 0.0, 1.0, 8.0, 1) == pytest.approx(8)
    assert token_s(4, 2, 1.0, 1.0, 4.0, 0) == pytest.approx(8)
    assert token_s(4, 2, 1.0, 1.0, 12.0, 0) == pytest.approx(12)
    assert token_s(1, 2, 1.0, 3.0, 1.0, 5) == pytest.approx(6)


def test_the_disk_rests_after_the_last_layer() -> None:
    without, behind = (token_s(4, 2, 1.0, 1.0, 12.0, 2, after) for after in (0.0, 6.0))
    assert without == pytest.approx(12)
    assert behind == pytest.approx(4 * 2 * 1.0 + 6.0), "all reads, then the rest"
