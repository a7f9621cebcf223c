"""A row that is added to every head of another, as files say it, and what is no such form."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgerun.errors import BundleError, UnsupportedError
from edgerun.graph.ir import Graph
from edgerun.graph.lower import lower
from edgerun.graph.onnx_reader import read_graph
from tests.support.altered import AlteredBundle
from tests.support.bundles import bundle_of

AT = "layers.1/self_attn/k_rope_proj"


@pytest.fixture
def altered(tmp_path: Path) -> AlteredBundle:
    return AlteredBundle(bundle_of("deepseek_v2", weights="int8"), tmp_path / "bundle")


def lowered(folder: Path) -> Graph:
    path = folder / "model.onnx"
    return lower(read_graph(path, path.read_bytes()))


@pytest.mark.parametrize("profile", ["portable", "genai"])
def test_the_sum_is_an_op_of_its_own(profile: str) -> None:
    graph = lowered(bundle_of("deepseek_v2", weights="int4", profile=profile))
    nodes = [node for node in graph.nodes if node.op == "add_to_heads"]
    assert [node.attrs for node in nodes] == [{"heads": 4}] * 2
    producers = graph.producers()
    sources = [[producers[name].name for name in node.inputs] for node in nodes]
    assert all("k_proj" in key and "k_rope_proj" in turned for key, turned in sources)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Reshape", [0, 0, 2, 64]),
        ("Reshape", [0, 0, 4, -1]),
        ("Reshape", [0, 0, 128]),
        ("Reshape", [1, 0, 4, 32]),
        ("Reshape_flat", [0, 0, 64]),
        ("Reshape_flat", [0, -1, 128]),
        ("Unsqueeze", [1]),
    ],
)
def test_another_form_is_refused(name: str, values: list[int], altered: AlteredBundle) -> None:
    altered.give(f"{AT}/{name}", 1, values)
    altered.save()
    with pytest.raises((UnsupportedError, BundleError)):
        lowered(altered.folder)
