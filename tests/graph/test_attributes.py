"""An attribute that no pass reads is a refusal that names it, and never ignored."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import defs, helper, numpy_helper

from edgerun.backends import make_backend
from edgerun.errors import BundleError, UnsupportedError
from edgerun.graph.attributes import Read
from edgerun.graph.lower import lower
from edgerun.graph.onnx_reader import read_graph
from edgerun.graph.passes.registry import ATTRIBUTES, PASSES
from edgerun.llm.loading import prepare
from edgerun.llm.options import LoadOptions
from edgerun.model.bundle import open_bundle
from edgerun.ops.registry import OPS
from edgerun.plan.planner import make_plan
from tests.support.altered import AlteredBundle
from tests.support.bundles import bundle_of

OPSET = 23
ATTENTION = "layers.0/self_attn/Attention"
# Together they have every form that the exporter writes.
SOURCES = {
    "llama": {"weights": "int4"},
    "qwen2": {"weights": "int4_offset"},
    "mistral": {"weights": "fp32"},
    "llama-yarn": {"weights": "fp32"},
    "bitnet-packed": {"weights": "ternary"},
    "mixtral": {"weights": "int4"},
    "gpt_oss": {"weights": "int4"},
    "olmoe": {"weights": "int4", "profile": "genai"},
    "deepseek_v3-groups": {"weights": "int4"},
    "lfm2": {"weights": "int4", "head_weights": "int4", "embedding_weights": "int4"},
    "lfm2_moe": {"weights": "int4"},
    "gemma3n_text": {"weights": "int4"},
    "qwen3_5_text": {"weights": "int4"},
    "apertus": {"weights": "int4"},
    "gpt_neox": {"weights": "int4"},
}

# Ops of which no attribute is read.
PLAIN = (
    *("Abs", "Add", "And", "Clip", "ConstantOfShape", "Cos", "Div", "Erf", "Exp", "Floor"),
    *("Greater", "LessOrEqual", "MatMul", "Max", "Min", "Mul", "Neg", "NonZero", "Range", "Relu"),
    *("Round", "Sigmoid", "Sin", "Slice", "Softplus", "Sqrt", "Squeeze", "Sub", "Tanh"),
    *("Unsqueeze", "Where"),
)


def altered(folder, name="llama"):
    return AlteredBundle(bundle_of(name, **SOURCES[name]), folder / "bundle")


def is_lowered(folder):
    graph = open_bundle(folder).graph
    assert bool(graph.refusal) == bool({node.op for node in graph.nodes} - set(OPS))
    return not graph.refusal


def read(folder):
    path = folder / "model.onnx"
    return read_graph(path, path.read_bytes())


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_refusal_names_node_and_attribute(backend, tmp_path):
    bundle = altered(tmp_path)
    bundle.set(ATTENTION, softmax_precision=11)
    expected = r"layers\.0/self_attn/Attention' is 'Attention with softmax_precision=11'"
    with pytest.raises(UnsupportedError, match=expected):
        prepare(bundle.save(), LoadOptions(backend=backend, threads=1))


def test_a_back_end_that_runs_the_file_itself_may_have_it(tmp_path):
    pytest.importorskip("onnxruntime")
    bundle = altered(tmp_path)
    bundle.set(ATTENTION, softmax_precision=11)
    graph = open_bundle(bundle.save()).graph
    plan = make_plan(graph, [make_backend("onnxruntime")])
    assert {segment.backend for phase in plan.segments.values() for segment in phase} == {
        "onnxruntime"
    }


def test_every_op_that_the_passes_read_is_in_the_table(tmp_path):
    ops = set()
    for index, name in enumerate(SOURCES):
        model = altered(tmp_path / str(index), name).model
        ops |= {f"{node.domain}.{node.op_type}".lstrip(".") for node in model.graph.node}
    assert ops == {*ATTRIBUTES, *PLAIN}


@pytest.mark.parametrize("op", [*ATTRIBUTES, *PLAIN])
def test_an_unknown_attribute_is_never_ignored(op, tmp_path):
    for index, name in enumerate(SOURCES):
        bundle = altered(tmp_path / str(index), name)
        nodes = [node for node in bundle.model.graph.node if node.op_type == op.split(".")[-1]]
        if nodes:
            break
    nodes[0].attribute.append(helper.make_attribute("mystery", 1))
    graph = read(bundle.save())
    with pytest.raises(UnsupportedError, match=f"node '{nodes[0].name}' is '{op} with mystery=1'"):
        lower(graph)


def test_defaults_that_are_spelled_out_change_nothing(tmp_path):
    bundle = altered(tmp_path)
    bundle.set(ATTENTION, softcap=0.0, qk_matmul_output_mode=0, is_causal=0, softmax_precision=1)
    bundle.set("mask/padding", saturate=1)
    bundle.set("q_proj/Reshape", allowzero=0)
    bundle.set("norm/RMSNormalization", stash_type=1)
    plain = open_bundle(bundle_of("llama", weights="int4")).graph
    assert open_bundle(bundle.save()).graph.nodes == plain.nodes


@pytest.mark.parametrize(
    ("source", "node", "attributes"),
    [
        ("llama", ATTENTION, {"is_causal": 1}),
        ("llama", ATTENTION, {"softmax_precision": 10}),
        ("llama", "mask/total", {"start": 0}),
        ("llama", "mask/sequence", {"end": 1}),
        ("llama", "mask/padding", {"to": 7}),
        ("llama", "rotary/position", {"to": 7}),
        ("llama", "rotary/embedding", {"axis": 0}),
        ("llama", "q_rotary/Concat", {"axis": 1}),
        ("llama", "v_proj/Transpose", {"perm": [0, 1, 2, 3]}),
        ("llama", "self_attn/Transpose", {"perm": [0, 1, 2, 3]}),
        ("llama", "embed_tokens/codes", {"axis": 1}),
        ("llama", "embed_tokens/scales", {"axis": 1}),
        ("llama", "embed_tokens/Cast", {"to": 10}),
        ("llama", "norm/RMSNormalization", {"axis": 1}),
        ("llama", "norm/RMSNormalization", {"stash_type": 10}),
        ("mistral", "embed_tokens/Gather", {"axis": 1}),
        ("lfm2", "embed_tokens/both", {"axis": 1}),
        ("qwen3_5_text", "linear_attn/Split", {"axis": 1}),
        ("qwen3_5_text", "linear_attn/Scan", {"scan_input_axes": [1, 1, 1, 1, 0]}),
        ("qwen3_5_text", "linear_attn/Scan", {"scan_output_axes": [0]}),
        ("qwen3_5_text", "linear_attn/Scan", {"scan_input_directions": [1] * 5}),
        ("bitnet-packed", "ReduceMax", {"keepdims": 0}),
        ("bitnet-packed", "ReduceMax", {"noop_with_empty_axes": 1}),
    ],
)
def test_other_values_of_known_attributes_are_another_form(source, node, attributes, tmp_path):
    bundle = altered(tmp_path, source)
    bundle.set(bundle.node(node).name, **attributes)
    assert not is_lowered(bundle.save())


def steps(bundle):
    bundle.node("q_rotary/upper").input.append("constants/int64_3")


def clipped(bundle):
    node = next(node for node in bundle.model.graph.node if node.name.endswith("/largest"))
    node.input.append(node.input[1])


def normed_bias(bundle):
    bundle.node("norm/RMSNormalization").input.append("model.norm.weight")


def other_value_heads(bundle):
    """As wide as before, in other heads."""
    bundle.node("v_proj/Reshape").input[1] = bundle.node("q_proj/Reshape").input[1]
    name = bundle.node("q_proj/Reshape").input[1]
    shape = bundle.array(name)
    assert shape.tolist() == [0, 0, 4, 16]


def other_halves(bundle):
    """The upper half of a byte before the lower one."""
    node = bundle.node("embed_tokens/both")
    low, high = node.input
    node.input[:] = [high, low]


def scales_by_column(bundle):
    """As many of them, but not those of the row that is looked up."""
    scales = bundle.array(bundle.node("embed_tokens/scales").input[0])
    put_for(bundle, "embed_tokens/scales", 0, np.ascontiguousarray(scales.T))


def rows_by_position(bundle):
    for part in ("codes", "scales"):
        bundle.node(f"embed_tokens/{part}").input[1] = "position_ids"


def put_for(bundle, node, place, values):
    """Has a node alone read other values."""
    name = f"{node} reads {place}"
    bundle.model.graph.initializer.append(numpy_helper.from_array(values, name))
    bundle.node(node).input[place] = name


def shape_of(node, *shape):
    return lambda bundle: put_for(bundle, node, 1, np.int64(shape))


def short_slice(bundle):
    bundle.put("constants/int64_12", np.array([9], np.int64))


def turned_values(bundle):
    """Values that positions turn, as keys are."""
    attention = bundle.node("layers.0/self_attn/Attention")
    attention.input[2] = attention.input[1]


@pytest.mark.parametrize(
    ("source", "change"),
    [
        ("llama", steps),
        ("bitnet-packed", clipped),
        ("llama", normed_bias),
        ("llama", turned_values),
        ("llama", short_slice),
        ("llama", shape_of("layers.0/self_attn/Reshape", 0, 0, 32)),
        ("llama", shape_of("layers.0/self_attn/Reshape", 0, -1, 64)),
        ("llama", shape_of("layers.0/self_attn/q_proj/Reshape", 1, 0, 4, 16)),
        ("llama", shape_of("embed_tokens/Reshape", 0, 0, 32)),
        ("lfm2", shape_of("embed_tokens/halves", 0, 0, 4, 16)),
        ("lfm2", other_halves),
        ("llama", rows_by_position),
        ("llama", scales_by_column),
        ("lfm2", scales_by_column),
    ],
)
def test_further_inputs_and_other_shapes_are_another_form(source, change, tmp_path):
    bundle = altered(tmp_path, source)
    change(bundle)
    assert not is_lowered(bundle.save())


@pytest.mark.parametrize("shape", [(0, 0, 4, 8), (0, 0, 1, 32), (0, 0, 4, 16)])
def test_values_have_the_heads_of_the_keys(shape, tmp_path):
    """Their number and width were taken from the keys."""
    bundle = altered(tmp_path)
    shape_of("layers.0/self_attn/v_proj/Reshape", *shape)(bundle)
    with pytest.raises(BundleError, match=f"values of {shape[2]} of {shape[3]}; expected"):
        open_bundle(bundle.save())


def test_a_window_of_nothing_is_refused(tmp_path):
    bundle = altered(tmp_path, "mistral")
    window = next(node for node in bundle.model.graph.node if node.name.endswith("/oldest"))
    for size in (0, -1):
        bundle.put(window.input[1], np.array(size, np.int64))
        with pytest.raises(BundleError, match=f"window of {size} positions"):
            open_bundle(bundle.save())


@pytest.mark.parametrize(
    ("node", "attributes", "message"),
    [
        (ATTENTION, {"scale": 1}, "scale = 1; expected a number"),
        (ATTENTION, {"scale": "0.25"}, "scale = '0.25'; expected a number"),
        (ATTENTION, {"softcap": 0}, "softcap = 0; expected a number"),
        *(
            (ATTENTION, {"softcap": bound}, "softcap = .*; expected 0 or a number from 1.17549e-38")
            for bound in (-5.0, 1e-39, 1e31, float("inf"), float("nan"))
        ),
        (ATTENTION, {"is_causal": 0.0}, "is_causal = 0.0; expected a whole number"),
        ("norm/RMSNormalization", {"epsilon": [1e-5]}, "epsilon = .*; expected a number"),
        ("norm/RMSNormalization", {"epsilon": 0.0}, "epsilon = 0.0; expected a number from"),
        ("norm/RMSNormalization", {"epsilon": float("nan")}, "epsilon = nan; expected"),
        ("v_proj/Transpose", {"perm": 3}, "perm = 3; expected a list"),
        ("q_proj/MatMulNBits", {"K": 64.0}, "K = 64.0; expected a whole number"),
        ("q_proj/MatMulNBits", {"bits": "4"}, "bits = '4'; expected a whole number"),
        ("q_proj/MatMulNBits", {"block_size": 0}, "."),
        ("q_proj/MatMulNBits", {"block_size": -32}, "."),
        ("q_proj/MatMulNBits", {"N": -64}, "."),
        ("q_proj/MatMulNBits", {"bits": 3}, "bits=3"),
        (ATTENTION, {"scale": float("inf")}, "scale = inf; expected a number from"),
    ],
)
def test_attributes_of_another_type_are_refused(node, attributes, message, tmp_path):
    bundle = altered(tmp_path)
    bundle.set(bundle.node(node).name, **attributes)
    with pytest.raises(BundleError, match=message):
        open_bundle(bundle.save())


@pytest.mark.parametrize("name", ["K", "N", "bits", "block_size"])
def test_attributes_that_must_be_there_are_named(name, tmp_path):
    bundle = altered(tmp_path)
    node = bundle.node("q_proj/MatMulNBits")
    node.attribute.remove(next(attribute for attribute in node.attribute if attribute.name == name))
    with pytest.raises(BundleError, match=rf"q_proj/MatMulNBits' .* has no {name}"):
        open_bundle(bundle.save())


def test_metadata_overrides_no_attribute(tmp_path):
    bundle = altered(tmp_path)
    for node in bundle.model.graph.node:
        for key in ("scale", "N", "axis", "perm", "softcap"):
            node.metadata_props.add(key=key, value="7")
    plain = open_bundle(bundle_of("llama", weights="int4")).graph
    graph = open_bundle(bundle.save()).graph
    assert [node.attrs for node in graph.nodes] == [node.attrs for node in plain.nodes]


def test_an_attribute_twice_is_refused(tmp_path):
    bundle = altered(tmp_path)
    bundle.node(ATTENTION).attribute.append(helper.make_attribute("scale", 2.0))
    with pytest.raises(BundleError, match="has an attribute twice"):
        open_bundle(bundle.save())


def test_tables_say_a_type_for_every_attribute_that_is_read():
    rules = [rule for table in ATTRIBUTES.values() for rule in table.values()]
    for rule in rules:
        assert not isinstance(rule, Read) or rule.default is None or type(rule.default) is rule.kind


@pytest.mark.parametrize("op", [op for op in ATTRIBUTES if "." not in op])
def test_what_is_left_out_means_what_onnx_says(op):
    stated = defs.get_schema(op, OPSET).attributes
    for name, rule in ATTRIBUTES[op].items():
        needed, default = (rule.needed, rule.default) if isinstance(rule, Read) else (False, rule)
        assert needed == stated[name].required, name
        if stated[name].default_value.name:
            value = helper.get_attribute_value(stated[name].default_value)
            if isinstance(value, bytes):
                assert default == value.decode(), name
            else:
                assert np.float32(default) == np.float32(value), name


@pytest.mark.parametrize("values", [np.zeros(0), np.array([8, 8]), np.array([8.5])])
@pytest.mark.parametrize("name", ["constants/int64_11", "constants/int64_12"])
def test_numbers_of_a_form_have_one_element(name, values, tmp_path):
    bundle = altered(tmp_path)
    bundle.put(name, values)
    assert not is_lowered(bundle.save())


@pytest.mark.parametrize("values", [np.zeros(0), np.array([8, 8])])
def test_a_window_of_several_numbers_is_another_form(values, tmp_path):
    bundle = altered(tmp_path, "mistral")
    window = next(node for node in bundle.model.graph.node if node.name.endswith("/oldest"))
    bundle.put(window.input[1], values)
    assert not is_lowered(bundle.save())


@pytest.mark.parametrize(
    ("zeros", "named"),
    [
        (np.zeros(3, np.uint8), r"uint8 \(3,\)"),
        (np.zeros((64, 2), np.float32), r"float32 \(64, 2\)"),
        (np.zeros((64, 1), np.int8), r"int8 \(64, 1\)"),
        (np.zeros((1, 64), np.float16), r"float16 \(64, 1\)"),
    ],
)
def test_zero_points_of_another_size_or_type_are_refused_by_name(zeros, named, tmp_path):
    bundle = altered(tmp_path)
    bundle.model.graph.initializer.append(numpy_helper.from_array(zeros, "zeros"))
    bundle.node("q_proj/MatMulNBits").input[3] = "zeros"
    with pytest.raises(
        BundleError, match=rf"the zero points of weight .* are {named}; int4 .* needs"
    ):
        open_bundle(bundle.save())


@pytest.mark.parametrize("shape", [(64, 1), (64,), (1, 64)])
def test_zero_points_may_lie_in_any_order_of_axes(shape, tmp_path):
    bundle = altered(tmp_path)
    points = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    bundle.model.graph.initializer.append(numpy_helper.from_array(points, "zeros"))
    bundle.node("q_proj/MatMulNBits").input[3] = "zeros"
    graph = open_bundle(bundle.save()).graph
    weights = [graph.constants[n.inputs[1]] for n in graph.nodes if n.op == "linear"]
    (stored,) = [each.zeros for each in weights if getattr(each, "zeros", None) is not None]
    np.testing.assert_array_equal(stored, points.reshape(64, 1))


def test_sums_of_one_are_none(tmp_path):
    bundle = altered(tmp_path)
    del bundle.node("layers.0/mlp_residual").input[1]
    with pytest.raises(BundleError, match="has 1 of the 2 inputs that it needs"):
        is_lowered(bundle.save())


def test_passes_agree_on_what_they_read_of_an_op():
    for step in PASSES:
        assert all(ATTRIBUTES[op] == rules for op, rules in step.reads.items())
