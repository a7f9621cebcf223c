"""The graph as docs/bundle.md describes it."""

from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest

from edgerun_export.bundle_files import MODEL_FILE
from edgerun_export.recipe import make_recipe
from tests.support.peers import needs_complete_onnxruntime

NAMES = ["llama", "mistral", "qwen2", "qwen3", "bitnet-packed"]


def load(result):
    return onnx.load(str(result.folder / MODEL_FILE), load_external_data=False)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("weights", ["fp32", "int4"])
def test_model_passes_the_onnx_checker(name, weights, exported):
    onnx.checker.check_model(str(exported(name, weights=weights).folder / MODEL_FILE))


def test_versions_are_those_every_runtime_reads(exported):
    model = load(exported("llama", weights="int4"))
    assert model.ir_version == 11
    assert {(o.domain, o.version) for o in model.opset_import} == {("", 23), ("com.microsoft", 1)}


def test_only_documented_operators_occur(exported):
    used = set()
    for name in NAMES:
        for weights in ("fp32", "int4"):
            used |= {node.op_type for node in load(exported(name, weights=weights)).graph.node}
    assert used <= {
        *("Abs", "Add", "And", "Attention", "Cast", "Clip", "Concat", "Cos", "Div", "Gather"),
        *("Greater", "LessOrEqual", "MatMul", "MatMulNBits", "Mul", "Neg", "RMSNormalization"),
        *("Range", "ReduceMax", "Relu", "Reshape", "Round", "Shape", "Sigmoid", "Sin", "Slice"),
        *("Squeeze", "Sub", "Transpose", "Unsqueeze"),
    }


def test_every_quantised_node_names_its_format(exported):
    model = load(exported("bitnet-packed"))
    tags = Counter(
        prop.value
        for node in model.graph.node
        if node.op_type == "MatMulNBits"
        for prop in node.metadata_props
        if prop.key == "edgerun.format"
    )
    assert tags == {"ternary": 14, "int8": 1}


def test_ternary_codes_stand_for_minus_one_zero_and_one(exported):
    result = exported("bitnet-packed")
    data = (result.folder / "model.onnx.data").read_bytes()
    for tensor in load(result).graph.initializer:
        if tensor.name.endswith("_proj.weight.codes"):
            where = {entry.key: int(entry.value) for entry in tensor.external_data[1:]}
            codes = np.frombuffer(data, np.uint8, where["length"], where["offset"])
            fields = np.stack([(codes >> shift) & 3 for shift in range(0, 8, 2)])
            assert fields.min() == 1
            assert fields.max() == 3


def test_tied_head_stores_nothing_twice(exported):
    model = load(exported("qwen3", weights="int4"))
    names = [tensor.name for tensor in model.graph.initializer]
    assert not any(name.startswith("lm_head") for name in names)
    head = next(node for node in model.graph.node if node.name == "/lm_head/MatMulNBits")
    lookup = next(node for node in model.graph.node if node.name == "/model/embed_tokens/codes")
    assert head.input[1] == lookup.input[0] == "model.embed_tokens.weight.codes"


def test_tensors_are_aligned_inside_the_file_and_do_not_overlap(exported):
    result = exported("llama", weights="int4")
    end = 0
    for tensor in load(result).graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        where = {entry.key: entry.value for entry in tensor.external_data}
        assert where["location"] == "model.onnx.data"
        assert int(where["offset"]) % 64 == 0
        assert int(where["offset"]) >= end
        end = int(where["offset"]) + int(where["length"])
    assert end <= (result.folder / "model.onnx.data").stat().st_size


def test_large_tensors_start_on_a_page(tmp_path):
    from edgerun_export.graph.external_data import DataWriter

    with DataWriter(tmp_path / "data") as data:
        data.add("small", np.dtype(np.uint8), (3,), [np.ones(3, np.uint8)])
        large = data.add("large", np.dtype(np.uint8), (1 << 20,), [np.ones(1 << 20, np.uint8)])
    assert {e.key: e.value for e in large.external_data}["offset"] == "4096"


@pytest.mark.parametrize(("weights", "offset"), [(1 << 18, 4096), ((1 << 18) - 1, 64)])
def test_large_experts_start_on_a_page(tmp_path, weights, offset):
    from edgerun_export.graph.external_data import DataWriter
    from edgerun_export.graph.onnx_graph import OnnxGraph
    from edgerun_export.graph.weight_store import WeightStore

    with DataWriter(tmp_path / "data") as data:
        store = WeightStore(None, make_recipe("int4"), data, OnnxGraph())
        store.derived("before", np.ones(3, np.float32))
        store.begin_expert(weights)
        store.derived("expert", np.ones(3, np.float32))
    assert data.size == offset + 3 * 4


def test_masks_are_shared_between_layers_with_the_same_window(exported):
    names = [node.name for node in load(exported("qwen2", weights="int4")).graph.node]
    assert "/model/mask/full" in names
    assert "/model/mask/window_8/mask" in names


@needs_complete_onnxruntime
@pytest.mark.parametrize(
    "name", ["mistral", "lfm2", "qwen3_5_text", "granitemoehybrid-mamba", "nemotron_h", "falcon_h1"]
)
def test_left_padded_batch_gives_each_row_its_own_logits(name, golden, exported):
    model = golden(name)
    bundle = exported(name, weights="fp32").folder
    session = onnxruntime.InferenceSession(str(bundle / MODEL_FILE))
    long, short = model.ids, model.ids[:10]
    padding = len(long) - len(short)
    ids = np.stack([long, np.concatenate([np.zeros(padding, np.int64), short])])
    mask = np.ones_like(ids)
    mask[1, :padding] = 0
    positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    feeds = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    for value in session.get_inputs()[3:]:
        sizes = [size if isinstance(size, int) else 0 for size in value.shape[1:]]
        feeds[value.name] = np.zeros((2, *sizes), np.float32)
    (logits,) = session.run(["logits"], feeds)
    scale = np.ptp(model.logits)
    assert np.abs(logits[0] - model.logits).max() <= 1e-4 * scale
    assert np.abs(logits[1, padding:] - model.logits[:10]).max() <= 1e-4 * scale
