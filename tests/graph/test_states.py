"""Tokens, keys and values: files take them as inputs, and give back what was computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

from edgerun.errors import BundleError, UnsupportedError
from edgerun.graph.ir import Graph
from edgerun.graph.lower import _check_states, lower
from edgerun.graph.onnx_reader import read_graph
from edgerun.model.bundle import open_bundle
from tests.support.altered import Alteration, AlteredBundle, gives_no
from tests.support.bundles import bundle_of

# By profile, the operator that attends and what its past keys and values are among its inputs.
ATTENTION = {"portable": ("Attention", 4), "genai": ("GroupQueryAttention", 3)}


@pytest.fixture(params=sorted(ATTENTION))
def altered(request: pytest.FixtureRequest, tmp_path: Path) -> AlteredBundle:
    folder = bundle_of("llama", weights="int8", profile=request.param)
    return AlteredBundle(folder, tmp_path / "bundle")


def lowered(folder: Path) -> Graph:
    path = folder / "model.onnx"
    return lower(read_graph(path, path.read_bytes()))


def past_of(places: dict[int, int]) -> Alteration:
    """All layers read other pasts: by place, the place of what is there now."""

    def alter(bundle: AlteredBundle) -> None:
        for op, first in ATTENTION.values():
            for node in bundle.model.graph.node:
                if node.op_type == op:
                    before = list(node.input)
                    for place, source in places.items():
                        node.input[first + place] = before[first + source]

    return alter


def attention(bundle: AlteredBundle, layer: int = 0):
    ops = {op for op, _ in ATTENTION.values()}
    nodes = [node for node in bundle.model.graph.node if node.op_type in ops]
    return nodes[layer]


def exchanged_outputs(bundle: AlteredBundle) -> None:
    attention(bundle).output[1:3] = ["present.0.value", "present.0.key"]


def outputs_of_another_layer(bundle: AlteredBundle) -> None:
    for layer, other in ((0, 1), (1, 0)):
        names = [f"present.{other}.{kind}" for kind in ("key", "value")]
        attention(bundle, layer).output[1:3] = names


def halved_keys(bundle: AlteredBundle) -> None:
    node, graph = attention(bundle), bundle.model.graph
    graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "half"))
    node.output[1] = "whole"
    graph.node.append(helper.make_node("Mul", ["whole", "half"], ["present.0.key"], "halved"))


def no_outputs(bundle: AlteredBundle) -> None:
    for layer in (0, 1):
        del attention(bundle, layer).output[1:]
    for kind in ("key", "value"):
        gives_no(kind)(bundle)


def constant_past(bundle: AlteredBundle) -> None:
    """An input that is none: there it is always the same."""
    graph, name = bundle.model.graph, "past_key_values.0.key"
    (place,) = (i for i, value in enumerate(graph.input) if value.name == name)
    del graph.input[place]
    graph.initializer.append(numpy_helper.from_array(np.zeros((1, 2, 0, 16), "f"), name))


def past_of_another_layer(bundle: AlteredBundle) -> None:
    node = attention(bundle, 1)
    for place, name in enumerate(node.input):
        node.input[place] = name.replace("past_key_values.1.", "past_key_values.0.")


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (past_of({0: 1, 1: 0}), "neither an op nor a form"),
        (past_of({0: 1}), "neither an op nor a form"),
        (past_of({1: 0}), "neither an op nor a form"),
        (constant_past, "neither an op nor a form"),
        (past_of_another_layer, r"'present\.0\.key' what the layer of node .*layers\.1"),
        (exchanged_outputs, r"does not give back as 'present\.0\.key' what .*layers\.0"),
        (outputs_of_another_layer, r"does not give back as 'present\.0\.key' what .*layers\.0"),
        (halved_keys, r"does not give back as 'present\.0\.key' what the layer of .*layers\.0"),
        (gives_no("value"), r"does not give back as 'present\.0\.value' what .*layers\.0"),
        (no_outputs, r"does not give back as 'present\.0\.key' what the layer of .*layers\.0"),
    ],
)
def test_other_keys_and_values_are_none_of_ours(
    alter: Alteration, message: str, altered: AlteredBundle
) -> None:
    alter(altered)
    with pytest.raises(UnsupportedError, match=message):
        lowered(altered.save())


def test_the_bundle_itself_is_read(altered: AlteredBundle) -> None:
    graph = lowered(altered.save())
    layers = [node.attrs["layer"] for node in graph.nodes if node.op == "attention"]
    assert layers == [0, 1]


@pytest.mark.parametrize(
    ("changes", "there"),
    [
        ({"num_kv_heads": 1}, "AttentionState"),
        ({"head_dim": 8}, "AttentionState"),
        ({"layer": 99}, "nothing of that name"),
    ],
)
def test_who_reads_the_state_of_another_layer_reads_what_that_keeps(
    changes: dict[str, int], there: str
) -> None:
    """Kernels would take it for larger than it is."""
    graph = open_bundle(bundle_of("gemma3n_text", weights="int4")).graph
    _check_states([], graph)
    nodes = [
        node.replace(attrs={**node.attrs, **changes}) if node.op == "shared_attention" else node
        for node in graph.nodes
    ]
    message = f"reads .*, and of the layers before it one keeps {there}"
    with pytest.raises(BundleError, match=message):
        _check_states([], replace(graph, nodes=nodes))


def test_a_state_is_read_after_it_was_written() -> None:
    graph = open_bundle(bundle_of("gemma3n_text", weights="int4")).graph
    early = sorted(graph.nodes, key=lambda node: node.op != "shared_attention")
    with pytest.raises(BundleError, match="one keeps nothing of that name"):
        _check_states([], replace(graph, nodes=early))


TOKENS = ("input_ids", "attention_mask", "position_ids")


def constant_tokens(bundle: AlteredBundle, name: str) -> None:
    values = numpy_helper.from_array(np.ones((1, 1), np.int64), name)
    bundle.model.graph.initializer.append(values)


def made_tokens(bundle: AlteredBundle, name: str) -> None:
    graph = bundle.model.graph
    next(value for value in graph.input if value.name == name).name = "given"
    graph.node.insert(0, helper.make_node("Identity", ["given"], [name], "maker"))


@pytest.mark.parametrize("alter", [constant_tokens, made_tokens])
@pytest.mark.parametrize("name", TOKENS)
def test_tokens_are_inputs(
    name: str, alter: Callable[[AlteredBundle, str], None], altered: AlteredBundle
) -> None:
    if all(value.name != name for value in altered.model.graph.input):
        return  # this operator counts positions by itself
    alter(altered, name)
    with pytest.raises(UnsupportedError, match=f"reads '{name}', which is no input"):
        lowered(altered.save())
