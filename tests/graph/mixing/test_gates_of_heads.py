"""Gates of heads, as files say them, and what is no such form."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgerun.errors import BundleError, UnsupportedError
from edgerun.graph.ir import Graph
from edgerun.graph.lower import lower
from edgerun.graph.onnx_reader import read_graph
from tests.support.altered import AlteredBundle
from tests.support.bundles import bundle_of

AT = "layers.1/self_attn/gate"


@pytest.fixture
def altered(tmp_path: Path) -> AlteredBundle:
    return AlteredBundle(bundle_of("lfm3", weights="int8"), tmp_path / "bundle")


def lowered(folder: Path) -> Graph:
    path = folder / "model.onnx"
    return lower(read_graph(path, path.read_bytes()))


@pytest.mark.parametrize(("name", "activation"), [("lfm3", "sigmoid"), ("laguna", "softplus")])
def test_they_are_an_op_of_their_own(name: str, activation: str) -> None:
    graph = lowered(bundle_of(name, weights="int4"))
    nodes = [node for node in graph.nodes if node.op == "gate_heads"]
    assert nodes and {node.attrs["activation"] for node in nodes} == {activation}
    producers = graph.producers()
    for node in nodes:
        gate, up = (graph.shapes[name].width for name in node.inputs)
        assert (gate, up) == (node.attrs["heads"], gate * node.attrs["head_dim"])
        assert [producers[name].op for name in node.inputs] == ["linear", "attention"]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Reshape", [0, 0, 2, 32]),
        ("Reshape", [0, 0, 4, -1]),
        ("Reshape", [0, 0, 64]),
        ("Reshape", [1, 0, 4, 16]),
        ("Reshape_flat", [0, 0, 32]),
        ("Reshape_flat", [0, -1, 64]),
        ("Unsqueeze", [2]),
    ],
)
def test_another_form_is_refused(name: str, values: list[int], altered: AlteredBundle) -> None:
    lowered(altered.folder)
    altered.give(f"{AT}/{name}", 1, values)
    altered.save()
    with pytest.raises((UnsupportedError, BundleError)):
        lowered(altered.folder)
