"""Norms of heads behind the rotary embedding, as Hunyuan has them: what is read, and what not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from onnx import helper

from edgerun.errors import UnsupportedError
from edgerun.graph.ir import Graph
from edgerun.graph.lower import lower
from edgerun.graph.onnx_reader import read_graph
from tests.support.altered import AlteredBundle
from tests.support.bundles import bundle_of

AT = "/model/layers.0/self_attn"
NORM = f"{AT}/query_layernorm/RMSNormalization"


@pytest.fixture
def altered(tmp_path: Path) -> AlteredBundle:
    return AlteredBundle(bundle_of("hunyuan_v1_dense", weights="int4"), tmp_path / "bundle")


def lowered(bundle: AlteredBundle) -> Graph:
    path = bundle.save() / "model.onnx"
    return lower(read_graph(path, path.read_bytes()))


def test_heads_are_turned_and_then_normalised(altered: AlteredBundle) -> None:
    graph = lowered(altered)
    makers = graph.producers()
    attention = next(node for node in graph.nodes if node.op == "attention")
    for rows in attention.inputs[:2]:
        norm = makers[rows]
        rotary = makers[norm.inputs[0]]
        assert [norm.op, rotary.op, makers[rotary.inputs[0]].op] == ["rms_norm", "rotary", "linear"]
        assert graph.array(norm.inputs[1]).shape == (32,)


def without_rope(bundle: AlteredBundle) -> None:
    bundle.node(NORM).input[0] = bundle.value(f"{AT}/q_proj/Transpose")


def normalised(bundle: AlteredBundle, node: str) -> None:
    """Puts another norm before what a node reads."""
    reader = bundle.node(node)
    inputs = [reader.input[0], bundle.node(NORM).input[1]]
    norm = helper.make_node(
        "RMSNormalization", inputs, ["normed"], "another", axis=-1, epsilon=1e-5
    )
    bundle.model.graph.node.insert(list(bundle.model.graph.node).index(reader), norm)
    bundle.node(node).input[0] = "normed"


def normalised_twice(bundle: AlteredBundle) -> None:
    normalised(bundle, NORM)


def normalised_before_too(bundle: AlteredBundle) -> None:
    normalised(bundle, f"{AT}/q_proj/Transpose")


@pytest.mark.parametrize("alter", [without_rope, normalised_twice, normalised_before_too])
def test_other_orders_are_no_form(
    alter: Callable[[AlteredBundle], None], altered: AlteredBundle
) -> None:
    alter(altered)
    with pytest.raises(UnsupportedError, match="neither an op nor a form"):
        lowered(altered)
