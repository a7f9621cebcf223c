"""The table of predicted and measured prompts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.bundles import bundle_of
from tools.bench import placement
from tools.bench.placement import Row, table

DEVICE = "openvino:CPU"


def row(tokens: int, predicted: tuple[float, float], measured: tuple[float, float]) -> Row:
    places = ("cpu", DEVICE)
    by_place = [dict(zip(places, each, strict=True)) for each in (predicted, measured)]
    return Row("some", tokens, *by_place, chosen="cpu")


def test_the_table_is_markdown_and_says_what_it_comes_to() -> None:
    rows = [
        row(32, (0.1, 0.2), (0.11, 0.3)),
        row(2048, (2.0, 1.0), (1.0, 0.96)),
        row(512, (1.0, 1.0), (1.0, 0.9)),
    ]
    assert [each.is_well_chosen for each in rows] == [True, True, False]
    lines = list(table(rows))
    assert lines[0].count("|") == lines[1].count("|") == lines[2].count("|")
    assert lines[2] == "| some | 32 | 100 | 110 | 0.91 | 200 | 300 | 0.67 | cpu | cpu |"
    assert lines[3].startswith("| some | 2,048 | 2000 | 1000 | 2.00 | 1000 | 960 | 1.04 | cpu |")
    assert lines[-3:] == [
        "cpu: 2 of 3 predictions within 15%",
        f"{DEVICE}: 2 of 3 predictions within 15%",
        "chosen is the best, or within 5% of it: 2 of 3",
    ]


def test_prompts_are_measured_in_both_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device of this test is the processor, and what is predicted is made up."""

    class Known:
        def seconds_here(self, tokens: int) -> float:
            return 1.0 * tokens

        def seconds_there(self, tokens: int) -> float:
            return 2.0 * tokens

    monkeypatch.setattr(placement, "predict", lambda folder, device, tokens: (Known(), "cpu"))
    folder = Path(bundle_of("llama", weights="int4"))
    rows = list(placement.measure(folder, "reference", [5, 10**6], 0.0))
    assert [each.tokens for each in rows][0] == 5
    assert len(rows) == 2 and rows[1].tokens < 10**6  # as long as the context allows
    for each in rows:
        assert each.predicted == {"cpu": 1.0 * each.tokens, "reference": 2.0 * each.tokens}
        assert min(each.measured.values()) > 0
