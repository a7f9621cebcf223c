"""Layers of experts as files say them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from edgerun.errors import BundleError, UnsupportedError
from edgerun.formats.base import PackedWeight
from edgerun.formats.stack import ExpertStack
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.graph.lower import lower
from edgerun.graph.onnx_reader import read_graph
from edgerun.graph.passes.experts.experts import fuse_experts
from edgerun.graph.passes.experts.groups import NO_GROUPS
from edgerun.graph.slabs import slab
from edgerun.ops.registry import OPS
from tests.support.altered import AlteredBundle
from tests.support.bundles import bundle_of, tiny_experts

EXPERTS, TOP_K = 8, 3  # of the golden olmoe
MLP = "/model/layers.0/mlp"


@pytest.fixture
def altered(tmp_path: Path) -> AlteredBundle:
    return AlteredBundle(bundle_of("olmoe", weights="int4"), tmp_path / "bundle")


def lowered(bundle: AlteredBundle) -> Graph:
    path = bundle.save() / "model.onnx"
    return lower(read_graph(path, path.read_bytes()))


def layer_nodes(graph: Graph, op: str) -> list[Node]:
    return [node for node in graph.nodes if node.op == op]


@pytest.mark.parametrize("weights", ["fp32", "int8", "int4", "ternary"])
def test_experts_of_a_layer_become_one_node(weights: str) -> None:
    path = bundle_of("olmoe", weights=weights) / "model.onnx"
    graph = lower(read_graph(path, path.read_bytes()))
    routes, layers = layer_nodes(graph, "route"), layer_nodes(graph, "experts")
    assert len(routes) == len(layers) == 2
    for route, node in zip(routes, layers, strict=True):
        plain = {
            "scoring": "softmax",
            "biased": "scores",
            "normalise": 0,
            "epsilon": 0.0,
            "scale": 1.0,
            "margin": 0.0,
        }
        assert route.attrs == plain | {"top_k": TOP_K, **NO_GROUPS}
        rounding = "float" if weights == "fp32" else "int8_block"
        assert node.attrs == {"top_k": TOP_K, "activation": "silu", "activations": rounding}
        shapes = [graph.constants[name].shape for name in node.inputs[2:]]
        assert shapes == [(EXPERTS, 32, 64), (EXPERTS, 32, 64), (EXPERTS, 64, 32)]
    assert len(graph.nodes) < 50


@pytest.mark.parametrize("weights", ["fp32", "int4", "int4_asym"])
def test_an_expert_is_one_piece_of_the_file(weights: str) -> None:
    path = bundle_of("olmoe", weights=weights) / "model.onnx"
    graph = lower(read_graph(path, path.read_bytes()))
    ends = []
    for node in layer_nodes(graph, "experts"):
        stacks = [graph.constants[name] for name in node.inputs[2:]]
        assert all(isinstance(stack, ExpertStack) for stack in stacks)
        for expert in range(EXPERTS):
            place = slab([stack.matrices[expert] for stack in stacks])  # type: ignore[union-attr]
            assert place is not None
            stored = sum(stack.nbytes for stack in stacks) // EXPERTS
            assert place.offset % 64 == 0
            assert stored <= place.length < stored + 9 * 64
            ends.append((place.offset, place.offset + place.length))
    assert sorted(ends) == ends
    assert all(end <= start for (_, end), (start, _) in zip(ends, ends[1:], strict=False))


def test_memory_is_no_piece_of_a_file() -> None:
    assert slab([np.zeros((4, 4), np.float32)]) is None


def test_experts_are_found_in_any_order_of_nodes(altered: AlteredBundle) -> None:
    """Nothing depends on where nodes stand, as long as each follows those it reads."""
    nodes = altered.model.graph.node
    moved = [node for node in nodes if node.name.startswith(f"{MLP}/experts.")]
    late = ("weights", "Unsqueeze", "MatMulNBits", "activation", "Mul", "weighted", "ScatterND")
    early = [node for node in moved if not any(part in node.name for part in late)]
    rest = [node for node in moved if node not in early]
    first = min(index for index, node in enumerate(nodes) if node in moved)
    others = [node for node in nodes if node not in moved]
    ordered = [*others[:first], *early, *rest, *others[first:]]
    del nodes[:]
    nodes.extend(ordered)
    assert len(layer_nodes(lowered(altered), "experts")) == 2


def rename_input(bundle: AlteredBundle, node: str, index: int, name: str) -> None:
    bundle.node(node).input[index] = name


def swap_experts(bundle: AlteredBundle) -> None:
    first, second = (bundle.node(f"{MLP}/experts.{e}/route") for e in (1, 2))
    first.input[1], second.input[1] = second.input[1], first.input[1]


def twice_the_same(bundle: AlteredBundle) -> None:
    route = bundle.node(f"{MLP}/experts.2/route")
    route.input[1] = bundle.node(f"{MLP}/experts.1/route").input[1]


def other_activation(bundle: AlteredBundle) -> None:
    bundle.node(f"{MLP}/experts.3/activation/Sigmoid").op_type = "Relu"


def other_size(bundle: AlteredBundle) -> None:
    bundle.resize("layers.0/mlp/experts.5/up_proj", n=48)


def other_format(bundle: AlteredBundle) -> None:
    node = bundle.node(f"{MLP}/experts.5/up_proj/MatMulNBits")
    node.metadata_props[0].value = "int8"


def zero_points_of_one(bundle: AlteredBundle) -> None:
    zeros = numpy_helper.from_array(np.zeros((32, 1), np.uint8), "zeros")
    bundle.model.graph.initializer.append(zeros)
    bundle.node(f"{MLP}/experts.5/up_proj/MatMulNBits").input.append("zeros")


def weights_twice(bundle: AlteredBundle) -> None:
    gate, up = (bundle.node(f"{MLP}/experts.4/{x}_proj/MatMulNBits") for x in ("gate", "up"))
    up.input[1], up.input[2] = gate.input[1], gate.input[2]


def other_axis(bundle: AlteredBundle) -> None:
    """The same node, but for the content of a constant that is no weight."""
    axis = numpy_helper.from_array(np.array([0], np.int64), "axis")
    bundle.model.graph.initializer.append(axis)
    rename_input(bundle, f"{MLP}/experts.6/Unsqueeze", 1, "axis")


def only_some_experts(bundle: AlteredBundle) -> None:
    rename_input(bundle, f"{MLP}/experts", 0, bundle.value(f"{MLP}/experts.5/ScatterND"))


def other_rows(bundle: AlteredBundle) -> None:
    shape = numpy_helper.from_array(np.array([-1, 32], np.int64), "narrow")
    bundle.model.graph.initializer.append(shape)
    rename_input(bundle, f"{MLP}/rows/Reshape", 1, "narrow")


def too_many_chosen(bundle: AlteredBundle) -> None:
    count = numpy_helper.from_array(np.array([EXPERTS + 1], np.int64), "many")
    bundle.model.graph.initializer.append(count)
    rename_input(bundle, f"{MLP}/router/TopK", 1, "many")


def smallest_first(bundle: AlteredBundle) -> None:
    bundle.set(f"{MLP}/router/TopK", largest=0)


def replaced_instead_of_added(bundle: AlteredBundle) -> None:
    for node in bundle.model.graph.node:
        if node.op_type == "ScatterND":
            node.attribute[0].CopyFrom(helper.make_attribute("reduction", "none"))


def begins_with_something(bundle: AlteredBundle) -> None:
    value = numpy_helper.from_array(np.ones(1, np.float32))
    bundle.node(f"{MLP}/sum/ConstantOfShape").attribute.append(
        helper.make_attribute("value", value)
    )


REFUSED: list[tuple[Callable[[AlteredBundle], None], type[Exception], str]] = [
    (swap_experts, UnsupportedError, "expert 2.* where that of expert 1 belongs"),
    (twice_the_same, UnsupportedError, "expert 1.* where that of expert 2 belongs"),
    (other_activation, UnsupportedError, r"experts.3/activation.*\(Relu\) of expert 3"),
    (other_size, UnsupportedError, "experts.5/up_proj.*of expert 5.*differ in weights alone"),
    (other_format, UnsupportedError, "experts.5/up_proj.*of expert 5"),
    (zero_points_of_one, UnsupportedError, "experts.5/up_proj.*of expert 5"),
    (weights_twice, UnsupportedError, "experts.4/.*of expert 4.*differ in weights alone"),
    (other_axis, UnsupportedError, "experts.6/Unsqueeze.*of expert 6.*differ in weights alone"),
    (only_some_experts, UnsupportedError, "neither an op nor a form"),
    (other_rows, BundleError, r"rows of 32 go into expert 0"),
    (too_many_chosen, BundleError, "top_k is 9 of no more than experts = 8"),
    (smallest_first, UnsupportedError, "neither an op nor a form"),
    (replaced_instead_of_added, UnsupportedError, "none that edgerun knows"),
    (begins_with_something, UnsupportedError, "ConstantOfShape with value"),
]


@pytest.mark.parametrize(
    ("alter", "error", "message"), REFUSED, ids=[alter.__name__ for alter, *_ in REFUSED]
)
def test_what_is_no_layer_of_experts_is_refused(
    alter: Callable[[AlteredBundle], None],
    error: type[Exception],
    message: str,
    altered: AlteredBundle,
) -> None:
    alter(altered)
    with pytest.raises(error, match=message):
        lowered(altered)


def test_offsets_of_an_only_expert_are_not_left_out(tmp_path: Path) -> None:
    """They are no constants that tell experts apart, so nothing else would be unlike."""
    sizes = {"num_hidden_layers": 1, "num_experts": 1, "num_experts_per_tok": 1}
    bundle = AlteredBundle(tiny_experts(tmp_path / "tiny", "int4", **sizes), tmp_path / "altered")
    assert len(layer_nodes(lowered(bundle), "experts")) == 1
    product = bundle.node("experts.0/gate_proj/MatMulNBits")
    n, k = (next(a.i for a in product.attribute if a.name == name) for name in "NK")
    constants = {
        "blocks": np.array([0, 0, k // 32, 32]),
        "last": np.array([-1]),
        "offsets": np.ones((k // 32, n), np.float16),
    }
    bundle.model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in constants.items()
    )
    output, product.output[0] = product.output[0], "product"
    nodes = [
        helper.make_node("Reshape", [product.input[0], "blocks"], ["cut"], "cut"),
        helper.make_node("ReduceSum", ["cut", "last"], ["sums"], "sums", keepdims=0),
        helper.make_node("Cast", ["offsets"], ["floats"], "floats", to=1),
        helper.make_node("MatMul", ["sums", "floats"], ["offset"], "offset"),
        helper.make_node("Add", ["product", "offset"], [output], "added"),
    ]
    place = list(bundle.model.graph.node).index(product) + 1
    for node in nodes[::-1]:
        bundle.model.graph.node.insert(place, node)
    with pytest.raises(UnsupportedError, match="offsets"):
        lowered(bundle)


def stack(count: int = 2, block: int = 32) -> ExpertStack:
    scales = np.ones((16, 64 // block), np.float32)
    codes = np.zeros((16, 64 // block, block // 2), np.uint8)
    return ExpertStack((PackedWeight("int4", (16, 64), block, codes, scales),) * count)


def test_a_stack_is_checked_matrix_by_matrix() -> None:
    good = stack()
    node = Node(
        "experts",
        "layer",
        ("x", "routes", "gate", "up", "down"),
        ("out",),
        {"top_k": 1, "activation": "silu", "activations": "float"},
    )
    down = ExpertStack((np.ones((64, 16), np.float32),) * 2)
    shapes = {"x": ValueShape(64), "routes": ValueShape(2)}

    def refused(message: str, **changes: object) -> None:
        constants = {"gate": good, "up": good, "down": down} | changes
        graph = Graph([node], [], ["out"], constants, shapes=shapes)  # type: ignore[arg-type]
        with pytest.raises(BundleError, match=message):
            check_node(graph)

    refused("'up' is one matrix; expected one of each expert", up=good.matrices[0])
    mixed = ExpertStack((good.matrices[0], stack(1, 16).matrices[0]))
    refused("blocks of 16 of expert 1 and .* blocks of 32 of expert 0", up=mixed)
    plain = good.matrices[0]
    assert isinstance(plain, PackedWeight)
    points = replace(plain, zeros=np.zeros((16, 1), np.uint8))
    mixed = ExpertStack((plain, points))
    refused("with zero points of expert 1 and .* 32 of expert 0; expected the same", up=mixed)
    for zeros in (np.zeros((16, 2), np.uint8), np.zeros((16, 1), np.float32)):
        wrong = replace(plain, zeros=zeros)
        for experts, number in (((wrong, wrong), 0), ((points, wrong), 1)):
            told = rf"zero points of weight 'up\[{number}\]' are {zeros.dtype} .* needs uint8"
            refused(told, up=ExpertStack(experts))
    bad = np.ones((64, 16), np.float64)
    refused("float64", down=ExpertStack((bad, bad)))  # type: ignore[arg-type]
    refused("experts = 3", up=stack(3))
    nan = PackedWeight("int4", (16, 64), 32, good.matrices[0].codes, np.full((16, 2), np.nan, "f4"))  # type: ignore[union-attr]
    refused("infinite or no numbers", up=ExpertStack((good.matrices[0], nan)))


def check_node(graph: Graph) -> None:
    """Checks constants and sizes of a node that reads values from outside."""
    from edgerun.graph.constants import check_constant
    from edgerun.graph.shapes import node_sizes

    (node,) = graph.nodes
    for operand, name in zip(OPS[node.op].inputs, node.inputs, strict=False):
        if name in graph.constants:
            check_constant(name, graph.constants[name], operand)
    node_sizes(graph, node, graph.shapes)


@pytest.mark.parametrize("is_last", [True, False])
def test_sums_that_are_read_often_are_followed_once(
    is_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reshapes of a long chain, or of each of its places, take as long as the chain and they."""
    count = 3000
    sums = [
        Node("ScatterND", f"s{n}", (f"sum{n}", "places", "rows"), (f"sum{n + 1}",), {})
        for n in range(count)
    ]
    readers = [
        Node("Reshape", f"r{n}", (f"sum{count if is_last else n + 1}", "shape"), (f"out{n}",))
        for n in range(count)
    ]
    graph = Graph([*sums, *readers], ["sum0", "places", "rows"], ["out0"], {})
    looked_up = []

    class Counting(dict):  # type: ignore[type-arg]
        def get(self, name: str, default: Any = None) -> Any:
            looked_up.append(name)
            return super().get(name, default)

    producers = graph.producers()
    monkeypatch.setattr(Graph, "producers", lambda _: Counting(producers))
    assert fuse_experts(graph).nodes == graph.nodes
    assert len(looked_up) < 4 * count
