"""A mixture of experts in edgerun and in onnxruntime, as one compares them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edgerun.formats.stack import ExpertStack
from tests.support.bundles import bundle_of
from tools.bench import experts


@pytest.fixture(scope="module")
def folder() -> Path:
    return bundle_of("olmoe", weights="int4", activations="fp32")


def test_both_compute_the_logits_of_all_rows(folder: Path) -> None:
    ids = np.array([5, 9, 2], np.int32)
    expected = experts.onnxruntime_calls(folder, 1)(ids)()[0][0]
    with experts.edgerun_sides(folder, 1, [3]) as (whole, alone):
        (logits,) = whole.prepare(ids)().values()
        layers = alone.prepare(ids)().values()
    assert logits.shape == expected.shape
    np.testing.assert_allclose(logits, expected, atol=1e-3 * np.abs(expected).max())
    assert len(layers) == 2 and all(each.shape == (3, 64) for each in layers)


def test_rows_read_the_experts_that_they_choose(folder: Path) -> None:
    with experts.edgerun_sides(folder, 1, [1]) as (whole, alone):
        graph = alone.graph
    assert graph is not None and whole.graph is not None
    stacks = [each for each in graph.constants.values() if isinstance(each, ExpertStack)]
    nbytes = sum(matrix.nbytes for stack in stacks for matrix in stack.matrices)
    first = graph.nodes[0]
    share = first.attrs["top_k"] / len(stacks[0].matrices)
    assert experts.read_bytes(graph, 1) == pytest.approx(share * nbytes)
    assert experts.read_bytes(graph, 1) < experts.read_bytes(graph, 4) <= nbytes
    assert experts.read_bytes(whole.graph, 1) > experts.read_bytes(graph, 1)


def test_the_table_has_a_line_for_each_side(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(experts, "PAUSE_S", 0.0)
    meter = SimpleNamespace(measure=lambda passes: 1e10, close=lambda: None)
    monkeypatch.setattr(experts, "BandwidthMeter", lambda threads: meter)
    given = ["experts", str(folder), "--rows", "1", "--rounds", "1", "--calls", "1"]
    monkeypatch.setattr("sys.argv", [*given, "--threads", "1"])
    experts.main()
    lines = capsys.readouterr().out.splitlines()
    names = [line.split(" | ")[1] for line in lines[2:]]
    assert names == ["edgerun", "its experts alone", f"onnxruntime, {folder.name}"]
    assert lines[2].endswith("| 1.00 |")


def test_scales_that_halves_hold_are_read_as_halves() -> None:
    """A tenth less of int4 in blocks of 32, though the file has float32."""
    nbytes = []
    for scales in ("fp32", "fp16"):
        bundle = bundle_of("olmoe", weights="int4", scales=scales)
        with experts.edgerun_sides(bundle, 1, [1]) as (_, alone):
            assert alone.graph is not None
            nbytes.append(experts.read_bytes(alone.graph, 1))
    assert nbytes[1] == pytest.approx(nbytes[0] * (16 + 2) / (16 + 4))
