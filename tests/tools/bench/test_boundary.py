"""What shared layers cost beside their products: measured without the products."""

from __future__ import annotations

import argparse

import pytest

from edgerun.kernels.run.program import ThreadTeam
from tests.support.bundles import bundle_of
from tools.bench.offload import boundary, boundary_model

CALLS = 140


@pytest.mark.parametrize(("share", "there"), [("half", 0.5), ("none", 0.0)])
def test_of_a_call_the_products_of_both_sides_are_subtracted(share: str, there: float) -> None:
    options = argparse.Namespace(experts=8, top_k=2, hidden=64, width=64, calls=CALLS)
    figures = boundary.measure(options, 1, 1, share)
    assert figures.there == there
    assert len(figures.boundary) == CALLS - boundary.WARM_CALLS
    assert (figures.boundary > 0).all() and (figures.boundary < figures.whole).all()


def test_of_a_reply_all_layers_are_shared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ThreadTeam, "run", ThreadTeam.run)  # the tool's own is taken back
    bundle = bundle_of("olmoe", weights="int4")
    monkeypatch.setattr("sys.argv", ["boundary_model", str(bundle), "--calls", "45"])
    boundary_model.main()
    half, none = capsys.readouterr().out.splitlines()
    assert none.startswith("2 layers, 0% of the experts there: ")
    assert half.startswith("2 layers, ") and not half.startswith("2 layers, 0%")
