"""Other weights of the same function."""

import json

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from edgerun.errors import UnsupportedError
from edgerun_export.calibrate import observed
from edgerun_export.calibrate.moments import Moments
from edgerun_export.calibrate.step import CalibrationOptions
from edgerun_export.calibrate.text import CalibrationText
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.quantize import block_layout, quantise_rows
from edgerun_export.recipe import make_recipe
from edgerun_export.source.model import interpret
from edgerun_export.transforms import check_unchanged, transformed
from edgerun_export.transforms.awq import _pairs
from edgerun_export.transforms.registry import BOUND
from edgerun_export.transforms.weights import Change, TransformedWeights
from edgerun_export.verify.compare import VerificationError, relative_error
from edgerun_export.verify.numpy_model import forward
from tests.support.bundles import GOLDEN, config_of

NAMES = ["llama", "qwen2", "qwen3", "mixtral", "olmoe", "gpt_oss", "lfm2", "lfm2_moe"]
NAMES += [
    "qwen3_5_text",
    "qwen3_next",
    "granitemoehybrid-mamba",
    "granitemoehybrid-experts",
    "nemotron_h",
    "falcon_h1-norm",
    "ernie4_5_moe",
    "deepseek_v2-query-rank",
    "deepseek_v2",
    "qwen2_moe",
    "glm4_moe",
]
# One after the other, of all layers that are turned at once: attention, experts, what is recurrent.
BOTH = ["llama", "gpt_oss", "lfm2_moe", "qwen3_next", "nemotron_h", "deepseek_v2"]
TRANSFORMED = [(name, (transform,)) for name in NAMES for transform in ("rotate", "awq")]
TRANSFORMED += [(name, ("awq",)) for name in ("cohere2", "gpt_neox", "phi", "stablelm")]
TRANSFORMED += [(name, ("awq",)) for name in ("cohere2_moe", "olmo_hybrid")]
TRANSFORMED += [
    pytest.param(name, ("rotate", "awq"), marks=[] if name in BOTH else pytest.mark.slow)
    for name in NAMES
]


def naming(value):
    return value if isinstance(value, str) else "+".join(value)


def text_of(spec):
    ids = np.random.default_rng(0).integers(0, spec.vocab_size, (4, 24))
    return CalibrationText(("text",), ids)


def apply(names, source):
    return transformed(names, source, make_recipe("int4"), text_of(source.spec))


@pytest.mark.parametrize(("name", "transforms"), TRANSFORMED, ids=naming)
def test_float_logits_stay_what_they_were(name, transforms, golden, source_weights):
    reference = golden(name)
    source = source_weights(reference)
    after = apply(transforms, source)
    logits = forward(after.spec, after, reference.ids)
    assert relative_error(logits, forward(source.spec, source, reference.ids)) < BOUND
    names = [f"model.layers.0.{each.path}.weight" for each in source.spec.mixer(0).values()]
    assert any(np.abs(after.matrix(each) - source.matrix(each)).max() > 1e-3 for each in names)


@pytest.mark.parametrize("transforms", [("rotate",), ("awq",)], ids="+".join)
def test_experts_and_attention_may_read_the_same_norm(transforms):
    """Command A+ with RMS norms, which a rotation passes."""
    with open_checkpoint(str(GOLDEN / "cohere2_moe")) as checkpoint:
        checkpoint.config = config_of("cohere2_moe", rms_norm_eps=1e-5)
        source, _ = interpret(checkpoint)
        ids = np.arange(9)
        after = apply(transforms, source)
        logits = forward(after.spec, after, ids)
        assert relative_error(logits, forward(source.spec, source, ids)) < BOUND


@pytest.mark.parametrize("transforms", [("rotate",), ("awq",)], ids="+".join)
def test_rows_are_those_of_the_whole_matrix(transforms, golden, source_weights):
    after = apply(transforms, source_weights(golden("qwen2")))
    for name, shape in after.spec.tensors().items():
        if len(shape) == 2:
            some = np.concatenate([after.rows(name, slice(0, 5)), after.rows(name, slice(5, None))])
            # Products of few rows may be summed in another order.
            np.testing.assert_allclose(some, after.matrix(name), atol=2e-6)


def test_all_layers_share_one_rotation(golden, source_weights):
    """Copies of it took as much memory as the matrices of all layers."""
    source = source_weights(golden("llama"))
    changes = apply(("rotate",), source)._changes.values()
    sides = [side for each in changes for side in (each.inputs, each.outputs) if side is not None]
    sizes = [len(side) for side in {id(side): side for side in sides}.values()]
    hidden, heads = source.spec.hidden_size, [source.spec.head_dim] * 2 * source.spec.num_layers
    assert sorted(sizes) == sorted([hidden, hidden, *heads])


@pytest.mark.parametrize("size", [4, 12])
def test_a_small_matrix_changes_block_by_block(size):
    draw = np.random.default_rng(0)
    whole, part = (
        draw.standard_normal(shape).astype(np.float32) for shape in ((12, 12), (size,) * 2)
    )
    columns, blocks = np.arange(1, 13, dtype=np.float32), np.kron(np.eye(12 // size), part)
    np.testing.assert_allclose(Change(inputs=part).of_inputs(whole), whole @ blocks, atol=1e-5)
    np.testing.assert_allclose(Change(outputs=part).of_outputs(whole), blocks @ whole, atol=1e-5)
    scaled = Change(inputs=whole, columns=columns).of_inputs(whole)
    np.testing.assert_allclose(scaled, (whole * columns) @ whole, atol=1e-4)


def test_a_rotation_spreads_what_stands_out(golden, source_weights):
    source = source_weights(golden("llama"))
    read = source.rows
    source.rows = lambda name, rows: (
        read(name, rows)
        * (
            np.where(np.arange(source.shape(name)[1]) == 7, 30, 1) if "q_proj" in name else 1
        ).astype(np.float32)
    )
    name = "model.layers.0.self_attn.q_proj.weight"
    before, after = source.matrix(name), apply(("rotate",), source).matrix(name)

    def lost(rows):
        restored = block_layout("int4").unpack(quantise_rows(rows, "int4", 64, "rtn"))
        return np.square(restored - rows).sum() / np.square(rows).sum()

    assert lost(after) < 0.7 * lost(before)


def test_awq_lowers_the_error_of_outputs_where_few_inputs_are_large(golden, source_weights):
    source = source_weights(golden("llama"))
    norm = "model.layers.0.input_layernorm.weight"
    read = source.vector
    big = np.where(np.arange(source.spec.hidden_size) % 16 == 3, 20, 1).astype(np.float32)
    source.vector = lambda name: read(name) * (big if name == norm else 1)
    after = apply(("awq",), source)
    rows = "model.layers.0.self_attn.q_proj.weight"
    x = np.random.default_rng(0).standard_normal((64, source.spec.hidden_size)).astype(np.float32)
    errors = []
    for weights in (source, after):
        rounded = block_layout("int4").unpack(
            quantise_rows(weights.matrix(rows), "int4", 32, "mse")
        )
        outputs = (x * source.vector(norm)) @ source.matrix(rows).T
        errors.append(float(np.square((x * weights.vector(norm)) @ rounded.T - outputs).sum()))
    assert errors[1] < 0.7 * errors[0]


def test_awq_sums_products_of_what_it_scales_alone(golden, source_weights, monkeypatch):
    """Those of experts would fill the memory; of few at a time nothing changes."""
    source, sums = source_weights(golden("qwen2_moe")), []

    class Counted(Moments):
        def __init__(self, needs, width):
            sums.append(width)
            super().__init__(needs, width)

    monkeypatch.setattr(observed, "Moments", Counted)
    many = apply(("awq",), source)
    pairs = [pair for layer in range(source.spec.num_layers) for pair in _pairs(source.spec, layer)]
    assert sorted(sums) == sorted(pair.readers[0].in_features for pair in pairs)
    monkeypatch.setattr(observed, "_MOMENTS_BYTES", 1)
    few = apply(("awq",), source)
    for name in many._changes:
        np.testing.assert_array_equal(few.matrix(name), many.matrix(name))


def test_awq_rounds_on_trial_as_a_format_is_rounded(golden, source_weights):
    source = source_weights(golden("llama"))
    after = transformed(["awq"], source, make_recipe("int4_offset"), text_of(source.spec))
    name = "model.layers.0.self_attn.q_proj.weight"
    assert (after.matrix(name) != source.matrix(name)).any()


def test_weights_that_are_something_else_are_found_out(golden, source_weights):
    source = source_weights(golden("llama"))
    name = "model.layers.1.mlp.down_proj.weight"
    wrong = Change(outputs=np.full(source.shape(name)[0], 1.01, np.float32))
    after = TransformedWeights(source, source.spec, {name: wrong}, {}, {})
    with pytest.raises(VerificationError, match="transformed weights change the logits by"):
        check_unchanged(source, after, golden("llama").ids)


@pytest.mark.parametrize(
    ("name", "transform", "message"),
    [
        ("bitnet-packed", "rotate", "--transform rotate: .* ternary already"),
        ("llama", "awq", "--transform awq looks at activations; .* --calibrate"),
        ("olmo2", "rotate", "have norms behind their parts"),
        ("olmo_hybrid", "rotate", "have norms behind their parts"),
        ("stablelm", "rotate", "norms of this stablelm subtract the mean"),
    ],
)
def test_what_cannot_be_transformed_is_refused(name, transform, message, golden, source_weights):
    with pytest.raises(UnsupportedError, match=message):
        transformed([transform], source_weights(golden(name)), make_recipe("int4"), None)


def test_a_transformed_bundle_computes_what_its_manifest_says(golden, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a house. " * 100, encoding="utf-8")
    given = ExportOptions(
        weights="int8", transforms=("rotate", "awq"), verify=True, activations="fp32",
        calibration=CalibrationOptions((text,), 8, 16),
    )  # fmt: skip
    export(golden("llama").folder, tmp_path / "out", given)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["recipe"]["transforms"] == ["rotate", "awq"]
    assert manifest["quality"]["max_error"] < 1e-3
    assert manifest["quality"]["kl_divergence"] < 1e-3
    assert (
        json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is False
    )
    with pytest.raises(UnsupportedError, match="--transform turn is not supported; choose one of"):
        export(golden("llama").folder, tmp_path / "no", ExportOptions(transforms=("turn",)))


def test_transformed_weights_are_multiplied_on_one_core(golden, tmp_path):
    """Products that several cores share are summed in another order, and bundles would differ."""
    threads = set()

    def note(step, fraction):
        if step == "weights" and 0 < fraction < 1:
            pools = [each for each in threadpool_info() if each["user_api"] == "blas"]
            threads.update(each["num_threads"] for each in pools)

    with threadpool_limits(2, "blas"):
        given = ExportOptions(weights="int4", transforms=("rotate",))
        export(golden("llama").folder, tmp_path / "out", given, note)
    assert threads == {1}
