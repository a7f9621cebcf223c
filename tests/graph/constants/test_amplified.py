"""Small files that would take much time or memory: what is said many times, and read as often."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgerun.errors import BundleError, UnsupportedError
from edgerun.graph import external_data
from edgerun.graph.attributes import read_attributes
from edgerun.graph.ir import Graph
from edgerun.graph.lower import _widened, lower
from edgerun.graph.onnx_reader import read_graph
from edgerun.graph.passes.experts import fused_experts, route
from edgerun.graph.passes.pointwise import altup
from edgerun.graph.passes.registry import ATTRIBUTES
from tests.support.altered import AlteredBundle
from tests.support.bundles import bundle_of

QMOE = "mlp/QMoE"


def lowered(folder: Path) -> Graph:
    path = folder / "model.onnx"
    return lower(read_graph(path, path.read_bytes()))


def genai(folder: Path) -> AlteredBundle:
    return AlteredBundle(bundle_of("gpt_oss", weights="int4", profile="genai"), folder / "bundle")


def test_streams_have_few_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of n parts, put together pair by pair, n * (n + 1) / 2 would lie in memory."""
    folder = bundle_of("gemma3n_text", weights="int8")
    monkeypatch.setattr(altup, "MOST_PARTS", 4)
    lowered(folder)
    monkeypatch.setattr(altup, "MOST_PARTS", 3)
    with pytest.raises(UnsupportedError, match="neither an op nor a form"):
        lowered(folder)


def test_experts_are_chosen_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = bundle_of("deepseek_v3", weights="int4")
    monkeypatch.setattr(route, "MOST_CHOICES", 1)
    lowered(folder)
    monkeypatch.setattr(route, "MOST_CHOICES", 0)
    with pytest.raises(UnsupportedError, match="1 nodes of ScatterElements; expected at most 0"):
        lowered(folder)


def test_layers_of_experts_are_few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = genai(tmp_path).save()
    monkeypatch.setattr(fused_experts, "MOST_LAYERS", 1)
    with pytest.raises(UnsupportedError, match="2 nodes of .*QMoE; expected at most 1"):
        lowered(folder)


def test_experts_of_a_layer_are_few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = genai(tmp_path).save()
    monkeypatch.setattr(fused_experts, "MOST_EXPERTS", 3)
    with pytest.raises(BundleError, match="has 4 experts; expected at most 3"):
        lowered(folder)


def test_layers_that_share_experts_share_their_copies(tmp_path: Path) -> None:
    bundle = genai(tmp_path)
    first, second = (bundle.node(f"layers.{layer}/{QMOE}") for layer in (0, 1))
    second.input[2:] = first.input[2:]
    graph = lowered(bundle.save())
    layers = [node for node in graph.nodes if node.op == "experts"]
    assert len(layers) == 2
    assert layers[0].inputs[2:] == layers[1].inputs[2:]


def test_halves_that_many_read_are_widened_once() -> None:
    halves = numpy_helper.from_array(np.ones((4, 4), np.float16), "halves")
    nodes = [helper.make_node("Cast", ["halves"], [f"wide{n}"], to=1) for n in range(3)]
    outputs = [helper.make_tensor_value_info(f"wide{n}", TensorProto.FLOAT, [4, 4]) for n in (0, 2)]
    model = helper.make_model(helper.make_graph(nodes, "graph", [], outputs, [halves]))
    graph = read_graph(Path("model.onnx"), model.SerializeToString())
    graph, _ = _widened(read_attributes(graph, ATTRIBUTES))
    assert graph.constants["wide0"] is graph.constants["wide2"]


@pytest.mark.parametrize("readers", [2, 3])
def test_tensors_read_the_same_bytes_twice_at_most(
    readers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_data, "FREE_BYTES", 0)
    (tmp_path / "data").write_bytes(bytes(64))
    tensors = []
    for number in range(readers):
        tensor = TensorProto(name=f"tensor{number}", data_type=TensorProto.FLOAT, dims=[16])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {"location": "data", "length": "64"}.items():
            tensor.external_data.add(key=key, value=value)
        tensors.append(tensor)
    output = helper.make_tensor_value_info("tensor0", TensorProto.FLOAT, [16])
    model = helper.make_model(helper.make_graph([], "graph", [], [output], tensors))
    data = model.SerializeToString()
    if readers == 2:
        assert len(read_graph(tmp_path / "model.onnx", data).constants) == 2
        return
    with pytest.raises(BundleError, match="'tensor2' read 192 bytes of data, which has 64"):
        read_graph(tmp_path / "model.onnx", data)
