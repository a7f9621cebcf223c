"""Names in a model file mean one thing each."""

from __future__ import annotations

import tracemalloc

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edgerun.errors import BundleError, UnsupportedError
from edgerun.graph import onnx_nodes
from edgerun.graph.onnx_reader import read_graph
from edgerun.model.bundle import open_bundle
from tests.support.altered import AlteredBundle
from tests.support.bundles import bundle_of


@pytest.fixture
def bundle(tmp_path):
    return AlteredBundle(bundle_of("llama", weights="int4"), tmp_path / "bundle")


def add(bundle, name, values):
    bundle.model.graph.initializer.append(numpy_helper.from_array(values, name))


def test_a_tensor_twice_is_refused(bundle):
    add(bundle, "model.norm.weight", np.zeros(64, np.float32))
    with pytest.raises(BundleError, match="two tensors called 'model.norm.weight'"):
        open_bundle(bundle.save())


def test_tensors_without_a_name_are_read_by_nobody(bundle):
    for _ in range(2):
        add(bundle, "", np.zeros(64, np.float32))
    assert "" not in open_bundle(bundle.save()).graph.constants


def test_a_value_made_twice_is_refused(bundle):
    first, second = (
        bundle.node("layers.0/mlp/up_proj/MatMulNBits"),
        bundle.node("model/norm/RMSNormalization"),
    )
    second.output[0] = first.output[0]
    with pytest.raises(BundleError, match=r"model/norm.* makes 'v\d+', which is there already"):
        open_bundle(bundle.save())


def test_a_value_that_is_an_input_too_is_refused(bundle):
    bundle.node("layers.0/mlp/up_proj/MatMulNBits").output[0] = "attention_mask"
    with pytest.raises(BundleError, match="makes 'attention_mask', which is there already"):
        open_bundle(bundle.save())


def test_a_value_is_made_before_it_is_read(bundle):
    nodes = bundle.model.graph.node
    last = nodes.pop()
    nodes.insert(0, last)
    with pytest.raises(BundleError, match=r"lm_head.* reads 'v\d+', which nothing before it makes"):
        open_bundle(bundle.save())


def test_a_circle_is_refused(bundle):
    norm = bundle.node("model/norm/RMSNormalization")
    norm.input[0] = norm.output[0]
    with pytest.raises(BundleError, match="which nothing before it makes"):
        open_bundle(bundle.save())


def test_names_of_nodes_carry_nothing(bundle):
    """ONNX does not ask for them; passes and plans tell nodes apart by them."""
    plain = open_bundle(bundle_of("llama", weights="int4")).graph
    for node in bundle.model.graph.node:
        node.name = "node" if len(node.name) % 2 else ""
    graph = open_bundle(bundle.save()).graph
    assert len({node.name for node in graph.nodes}) == len(graph.nodes) == len(plain.nodes)
    assert [(node.op, node.inputs) for node in graph.nodes] == [
        (node.op, node.inputs) for node in plain.nodes
    ]


@pytest.mark.parametrize("name", ["lm_head.weight.codes/weight", "model.embed_tokens.weight.codes"])
def test_a_name_that_a_pass_makes_is_not_taken_from_the_file(name, bundle):
    """The weight that the file calls so would be multiplied in place of the other."""
    taken = name if name.endswith("/weight") else f"{name}/table"
    add(bundle, taken, np.zeros((264, 64), np.float32))
    bundle.model.graph.output.append(bundle.model.graph.output[0])
    node = bundle.node("lm_head/MatMulNBits")
    extra = type(node)(op_type="MatMul", name="extra", input=[node.input[0], taken])
    extra.output.append("unused")
    bundle.model.graph.node.append(extra)
    with pytest.raises(BundleError, match=f"two different constants .* called '{taken}'"):
        open_bundle(bundle.save())


def test_two_layers_share_codes_only_with_all_that_belongs_to_them(bundle):
    gate = bundle.node("layers.0/mlp/gate_proj/MatMulNBits")
    up = bundle.node("layers.0/mlp/up_proj/MatMulNBits")
    up.input[1] = gate.input[1]
    with pytest.raises(BundleError, match="two different constants .*gate_proj"):
        open_bundle(bundle.save())
    up.input[2] = gate.input[2]
    graph = open_bundle(bundle.save()).graph
    weights = [node.inputs[1] for node in graph.nodes if "layers.0/mlp" in node.name]
    assert len(weights) == 4 and len(set(weights)) == 3


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[2J", "\u202ereversed", "x" * 1001])
@pytest.mark.parametrize("place", ["name", "op_type", "domain", "output"])
def test_names_that_cannot_be_shown_are_refused(name, place, bundle):
    node = bundle.model.graph.node[-1]
    if place == "output":
        node.output[0] = name
    else:
        setattr(node, place, name)
    with pytest.raises(BundleError, match="a name that cannot be shown") as caught:
        open_bundle(bundle.save())
    assert str(caught.value).isprintable() and len(str(caught.value)) < 300


def test_of_nodes_that_are_alike_all_have_names_that_can_be_shown(bundle):
    bundle.node("layers.1/mlp/up_proj/MatMulNBits").name = "\x1b[2J"
    with pytest.raises(BundleError, match="a name that cannot be shown"):
        open_bundle(bundle.save())


def test_names_of_attributes_can_be_shown(bundle):
    bundle.model.graph.node[-1].attribute[0].name = "\x1b[2J"
    with pytest.raises(BundleError, match="a name that cannot be shown"):
        open_bundle(bundle.save())


def test_outputs_may_be_absent(bundle):
    for node in bundle.model.graph.node[-3:]:
        node.output.append("")
    path = bundle.save() / "model.onnx"
    outputs = [node.outputs for node in read_graph(path, path.read_bytes()).nodes[-3:]]
    assert {names[-1] for names in outputs} == {""}


@pytest.mark.parametrize("name", ["\x1b[2J", "x" * 1001])
@pytest.mark.parametrize("place", ["initializer", "input", "output"])
def test_names_outside_of_nodes_can_be_shown_too(name, place, bundle):
    getattr(bundle.model.graph, place)[0].name = name
    with pytest.raises(BundleError, match="a name that cannot be shown"):
        open_bundle(bundle.save())


def test_a_value_made_twice_by_one_node_is_refused(bundle):
    node = bundle.node("layers.0/mlp/up_proj/MatMulNBits")
    node.output.append(node.output[0])
    with pytest.raises(BundleError, match=r"up_proj.* makes 'v\d+', which is there already"):
        open_bundle(bundle.save())


@pytest.mark.parametrize("source", ["llama", "olmoe", "bitnet-packed"])
def test_nodes_that_share_what_they_are_have_all_of_it(source):
    """Each has its own op, attributes and notes, whichever were read before it."""
    weights = "ternary" if source == "bitnet-packed" else "int4"
    path = bundle_of(source, weights=weights) / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    nodes = read_graph(path, path.read_bytes()).nodes
    assert len({id(node.attrs) for node in nodes}) < len(nodes) == len(model.graph.node)
    for node, proto in zip(nodes, model.graph.node, strict=True):
        assert node.op == ".".join(filter(None, (proto.domain, proto.op_type)))
        assert (node.inputs, node.outputs) == (tuple(proto.input), tuple(proto.output))
        assert node.name == proto.name
        assert node.metadata == {entry.key: entry.value for entry in proto.metadata_props}
        assert node.attrs.keys() == {attribute.name for attribute in proto.attribute}
        for attribute in proto.attribute:
            value = helper.get_attribute_value(attribute)
            value = value.decode() if isinstance(value, bytes) else value
            value = tuple(value) if isinstance(value, list) else value
            assert node.attrs[attribute.name] == value


def test_nodes_of_large_kinds_are_not_kept_for_others(monkeypatch):
    """One may hold a tensor of a gigabyte."""
    path = bundle_of("llama", weights="int4") / "model.onnx"
    shared = read_graph(path, path.read_bytes()).nodes
    monkeypatch.setattr(onnx_nodes, "LONGEST_KIND", 0)
    nodes = read_graph(path, path.read_bytes()).nodes
    assert nodes == shared
    assert len({id(node.attrs) for node in nodes}) == len(nodes)


NUMBERS = [
    np.float32([[1.5, -2], [0, 1e-30]]),
    np.float64([1.5, -2]),
    np.float16([1, -2.5, 65504, 6e-8]),
    np.int8([-128, 127]),
    np.uint8([0, 255]),
    np.int16([-32768, 5]),
    np.int32([-(2**31), 7]),
    np.int64([-(2**63), 2**63 - 1]),
    np.array([True, False]),
]


def alone(tensor):
    """A file with one constant."""
    graph = helper.make_graph([], "graph", [], [onnx.ValueInfoProto(name="x")], [tensor])
    return helper.make_model(graph).SerializeToString()


def read_alone(tensor, path):
    return read_graph(path, alone(tensor)).constants["x"]


@pytest.mark.parametrize("values", NUMBERS, ids=lambda values: values.dtype.name)
def test_tensors_that_are_lists_of_numbers_are_what_onnx_says(values, tmp_path):
    kind = helper.np_dtype_to_tensor_dtype(values.dtype)
    tensor = helper.make_tensor("x", kind, values.shape, values.reshape(-1).tolist())
    assert not tensor.raw_data
    read = read_alone(tensor, tmp_path / "model.onnx")
    assert read.dtype == values.dtype
    np.testing.assert_array_equal(read, values)
    np.testing.assert_array_equal(read, numpy_helper.to_array(tensor))


@pytest.mark.parametrize("count", [1, 3])
def test_a_list_of_another_length_is_refused(count, tmp_path):
    tensor = onnx.TensorProto(name="x", data_type=1, dims=[2], float_data=[0.5] * count)
    with pytest.raises(BundleError, match=rf"'x' of shape \(2,\) holds {count} elements"):
        read_alone(tensor, tmp_path / "model.onnx")


@pytest.mark.parametrize("nbytes", [7, 9])
def test_raw_bytes_of_another_length_are_refused(nbytes, tmp_path):
    tensor = onnx.TensorProto(name="x", data_type=1, dims=[2], raw_data=bytes(nbytes))
    with pytest.raises(BundleError, match=f"needs 8 bytes and has {nbytes}"):
        read_alone(tensor, tmp_path / "model.onnx")


@pytest.mark.parametrize(("number", "name"), [(16, "bfloat16"), (99, "99")])
def test_types_that_no_kernel_reads_are_refused(number, name, tmp_path):
    tensor = onnx.TensorProto(name="x", data_type=number, dims=[1], raw_data=bytes(2))
    with pytest.raises(UnsupportedError, match=f"the element type {name}, supported are float32"):
        read_alone(tensor, tmp_path / "model.onnx")


def test_a_file_without_outputs_is_no_model(tmp_path):
    """An empty one is a message without fields, and so is many another file."""
    with pytest.raises(BundleError, match="is no ONNX model: it has no outputs"):
        read_graph(tmp_path / "model.onnx", b"")


def test_halves_have_16_bits(tmp_path):
    tensor = onnx.TensorProto(name="x", data_type=10, dims=[1], int32_data=[1 << 16])
    with pytest.raises(BundleError, match="'x' holds a half of more than 16 bits"):
        read_alone(tensor, tmp_path / "model.onnx")


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
def test_lists_of_numbers_are_copied_once(dtype, tmp_path):
    values = np.arange(200_000).astype(dtype)
    kind = helper.np_dtype_to_tensor_dtype(values.dtype)
    data = alone(helper.make_tensor("x", kind, values.shape, values.tolist()))
    tracemalloc.start()
    try:
        read = read_graph(tmp_path / "model.onnx", data).constants["x"]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(read, values)
    assert peak < 1.5 * values.nbytes


@pytest.mark.parametrize(
    ("dims", "fault"),
    [
        ([-1], "the impossible shape"),
        ([1 << 62], "the impossible shape"),
        ([1 << 40, 1 << 40], "the impossible shape"),
        ([0, 1 << 40, 1 << 40], "the impossible shape"),
        ([1] * 65, "65 axes; expected at most 64"),
        ([1 << 62] * 50_000, "50000 axes"),  # whose product takes minutes
    ],
)
@pytest.mark.parametrize("raw", [b"", None])
def test_impossible_shapes_are_refused_at_once(dims, fault, raw, tmp_path):
    tensor = onnx.TensorProto(name="x", data_type=1, dims=dims, raw_data=raw)
    with pytest.raises(BundleError, match=f"'x' has {fault}"):
        read_alone(tensor, tmp_path / "model.onnx")


def test_tensors_may_be_empty(tmp_path):
    tensor = onnx.TensorProto(name="x", data_type=1, dims=[2, 0], raw_data=b"")
    assert read_alone(tensor, tmp_path / "model.onnx").shape == (2, 0)


def test_tensors_have_as_many_axes_as_arrays(tmp_path):
    tensor = onnx.TensorProto(name="x", data_type=1, dims=[1] * 64, raw_data=bytes(4))
    assert read_alone(tensor, tmp_path / "model.onnx").ndim == 64
