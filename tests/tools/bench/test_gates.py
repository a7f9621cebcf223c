"""What later routers foresee, on a model whose routes are known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgerun.model.bundle import open_bundle
from tests.support.bundles import bundle_of
from tools.bench.offload.gates import computed, main, routers_of

TEXT = "Once upon a time there was a cat."


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "story.txt"
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize(
    ("name", "layers"), [("olmoe", [0, 1]), ("lfm2_moe", [1, 2, 3]), ("deepseek_v3-groups", [1])]
)
def test_a_router_foresees_itself(name: str, layers: list[int]) -> None:
    bundle = open_bundle(bundle_of(name, weights="int4"))
    routers = routers_of(bundle.graph)
    assert [router.layer for router in routers] == layers
    names = [name for router in routers for name in (router.x, router.routes)]
    (values,) = computed(bundle, names, iter([TEXT]))
    for router in routers:
        needed = np.sort(np.nonzero(values[router.routes])[1].reshape(-1, router.top_k), axis=1)
        chosen = np.sort(router.chosen(values[router.x]), axis=1)
        np.testing.assert_array_equal(chosen, needed)


def test_layers_are_foreseen_from_those_before(
    text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = bundle_of("olmoe", weights="int4")
    assert main([str(folder), str(text), "--json"]) == 0
    shares = json.loads(capsys.readouterr().out)
    assert list(shares) == ["1"] and list(shares["1"]) == ["1"]
    assert 0.2 < shares["1"]["1"] < 1  # of 8 experts 3, by chance 0.375
    assert main([str(folder), str(text)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| layers ahead | layer 1 | mean |"
    assert lines[2] == f"| 1 | {shares['1']['1']:.3f} | {shares['1']['1']:.3f} |"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("llama", "fewer than two layers with experts"),
        ("qwen3_moe", "fewer than two layers with experts"),
        ("gpt_oss", "is no router that this tool knows"),
    ],
)
def test_models_without_routers_to_foresee_are_refused(
    name: str, message: str, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(bundle_of(name, weights="int4")), str(text)]) == 2
    assert message in capsys.readouterr().err


def test_a_text_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(bundle_of("olmoe", weights="int4")), "/nowhere/story.txt"]) == 2
    assert "cannot read /nowhere/story.txt" in capsys.readouterr().err
