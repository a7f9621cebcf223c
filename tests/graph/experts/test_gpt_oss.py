"""Sinks of attention and biases of experts as files say them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

from edgerun.errors import BundleError, UnsupportedError
from edgerun.graph.ir import Graph, Node
from edgerun.graph.lower import lower
from edgerun.graph.onnx_reader import read_graph
from edgerun.graph.slabs import slab
from tests.support.altered import AlteredBundle
from tests.support.bundles import bundle_of, runner

HEADS, EXPERTS = 4, 4
ATTENTION, MLP = "/model/layers.0/self_attn", "/model/layers.0/mlp"
SINKS = "model.layers.0.self_attn.sinks"
BIAS = "model.layers.0.mlp.experts.2.up_proj.bias"


@pytest.fixture
def altered(tmp_path: Path) -> AlteredBundle:
    return AlteredBundle(bundle_of("gpt_oss", weights="int4"), tmp_path / "bundle")


def lowered(folder: Path) -> Graph:
    path = folder / "model.onnx"
    return lower(read_graph(path, path.read_bytes()))


def nodes_of(graph: Graph, op: str) -> list[Node]:
    return [node for node in graph.nodes if node.op == op]


@pytest.mark.parametrize("weights", ["fp32", "int8", "int4", "ternary"])
def test_sinks_and_biases_are_operands(weights: str) -> None:
    graph = lowered(bundle_of("gpt_oss", weights=weights))
    attentions, layers = nodes_of(graph, "attention"), nodes_of(graph, "experts")
    assert [node.attrs["window"] for node in attentions] == [8, 0]
    for node in attentions:
        assert graph.constants[node.inputs[3]].shape == (HEADS,)
    for node in layers:
        assert node.attrs["activation"] == "clamped_swiglu"
        shapes = [graph.constants[name].shape for name in node.inputs[2:]]
        assert shapes == [
            *[(EXPERTS, 32, 64), (EXPERTS, 32, 64), (EXPERTS, 64, 32)],
            *[(EXPERTS, 32), (EXPERTS, 32), (EXPERTS, 64)],
        ]
        for expert in range(EXPERTS):
            stacks = [graph.constants[name] for name in node.inputs[2:]]
            place = slab([stack.matrices[expert] for stack in stacks])  # type: ignore[union-attr]
            assert place is not None and place.offset % 64 == 0
    assert {node.op for node in graph.nodes} <= {
        *("embedding", "rms_norm", "linear", "rotary", "attention", "add", "route", "experts"),
        "select_rows",
    }


def other_number_of_sinks(bundle: AlteredBundle) -> None:
    bundle.put(SINKS, np.ones((1, 2, 1, 1), np.float32))


def infinite_sink(bundle: AlteredBundle) -> None:
    bundle.put(SINKS, np.full((1, HEADS, 1, 1), np.inf, np.float32))


def mask_of_another_layer(bundle: AlteredBundle) -> None:
    where = bundle.node("/model/layers.1/self_attn/sinks/Where")
    where.input[0] = bundle.node(f"{ATTENTION}/sinks/Where").input[0]


def scores_of_another_layer(bundle: AlteredBundle) -> None:
    nodes = bundle.model.graph.node
    share = [node for node in nodes if "/layers.1/self_attn/sinks/" in node.name]
    share[0].input[1] = bundle.value(f"{ATTENTION}/Attention", 3)


def hidden_tokens_that_count(bundle: AlteredBundle) -> None:
    zero = numpy_helper.from_array(np.array(0, np.float32), "zero")
    bundle.model.graph.initializer.append(zero)
    bundle.node(f"{ATTENTION}/sinks/Where").input[2] = "zero"


def scores_after_the_softmax(bundle: AlteredBundle) -> None:
    bundle.set(f"{ATTENTION}/Attention", qk_matmul_output_mode=3)


def scores_that_are_bounded_later(bundle: AlteredBundle) -> None:
    bundle.set(f"{ATTENTION}/Attention", softcap=5.0)


def totals_without_an_axis(bundle: AlteredBundle) -> None:
    bundle.set(f"{ATTENTION}/sinks/total", keepdims=0)


def another_limit(bundle: AlteredBundle) -> None:
    five = numpy_helper.from_array(np.array(5, np.float32), "five")
    bundle.model.graph.initializer.append(five)
    for node in bundle.model.graph.node:
        if node.name.startswith(MLP) and node.op_type == "Min":
            node.input[1] = "five"


def expert_without_a_bias(bundle: AlteredBundle) -> None:
    del bundle.node(f"{MLP}/experts.2/up_proj/MatMulNBits").input[3:]


def bias_of_another_width(bundle: AlteredBundle) -> None:
    bundle.put(BIAS, np.ones(48, np.float32))


def bias_in_two_axes(bundle: AlteredBundle) -> None:
    bundle.put(BIAS, np.ones((1, 32), np.float32))


def bias_without_numbers(bundle: AlteredBundle) -> None:
    bundle.put(BIAS, np.full(32, np.nan, np.float32))


def bias_used_twice(bundle: AlteredBundle) -> None:
    gate, up = (bundle.node(f"{MLP}/experts.2/{x}_proj/MatMulNBits") for x in ("gate", "up"))
    up.input[5] = gate.input[5]


def router_bias_of_another_width(bundle: AlteredBundle) -> None:
    bundle.put("model.layers.0.mlp.router.bias", np.ones(3, np.float32))


REFUSED: list[tuple[Callable[[AlteredBundle], None], type[Exception], str]] = [
    (other_number_of_sinks, BundleError, r"sinks of shape \(1, 2, 1, 1\) for 4 heads"),
    (infinite_sink, BundleError, "infinite or no numbers"),
    (mask_of_another_layer, UnsupportedError, "neither an op nor a form"),
    (scores_of_another_layer, UnsupportedError, "neither an op nor a form"),
    (hidden_tokens_that_count, UnsupportedError, "neither an op nor a form"),
    (scores_after_the_softmax, UnsupportedError, "Attention with qk_matmul_output_mode=3"),
    (scores_that_are_bounded_later, UnsupportedError, "neither an op nor a form"),
    (totals_without_an_axis, UnsupportedError, "neither an op nor a form"),
    (another_limit, UnsupportedError, "none that edgerun knows"),
    (expert_without_a_bias, UnsupportedError, "of expert 2 .*differ in weights alone"),
    (bias_of_another_width, BundleError, r"float32 48 of expert 2 and float32 32 of expert 0"),
    (bias_in_two_axes, BundleError, r"float32 \(1, 32\); expected float32 with 1 dimension"),
    (bias_without_numbers, BundleError, "infinite or no numbers"),
    (bias_used_twice, UnsupportedError, "of expert 2 .*differ in weights alone"),
    (router_bias_of_another_width, BundleError, "N = 3"),
]


@pytest.mark.parametrize(
    ("alter", "error", "message"), REFUSED, ids=[alter.__name__ for alter, *_ in REFUSED]
)
def test_what_is_none_of_its_forms_is_refused(
    alter: Callable[[AlteredBundle], None],
    error: type[Exception],
    message: str,
    altered: AlteredBundle,
) -> None:
    alter(altered)
    with pytest.raises(error, match=message):
        lowered(altered.save())


def test_many_biases_are_looked_at_when_they_are_prepared(
    altered: AlteredBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgerun.graph.constants.FEW_BYTES", 0)
    bias_without_numbers(altered)
    folder = altered.save()
    lowered(folder)
    with (
        pytest.raises(BundleError, match="elements that are infinite or no numbers"),
        runner(folder, "cpu"),
    ):
        pass
