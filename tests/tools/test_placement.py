"""The table of predicted and measured prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgerun.errors import BackendError
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


def test_a_model_that_fails_does_not_cost_the_others_their_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def measure(folder: Path, *others: object) -> Iterator[Row]:
        if folder.name == "bad":
            raise BackendError("it computes something else")
        yield row(32, (0.1, 0.2), (0.11, 0.3))

    results = tmp_path / "results.json"
    monkeypatch.setattr(placement, "measure", measure)
    monkeypatch.setattr("sys.argv", ["placement", "bad", "good", "--results", str(results)])
    placement.main()
    said = capsys.readouterr()
    assert "bad: it computes something else" in said.err
    assert "| some | 32 | 100 | 110 | 0.91 |" in said.out
    (written,) = json.loads(results.read_text())["rows"]
    assert (written["tokens"], written["chosen"]) == (32, "cpu")
