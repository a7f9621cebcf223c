"""Linear attention as files say it, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from edgerun.errors import BundleError, UnsupportedError
from tests.graph.mixing.changes import (
    constant,
    lowered,
    one_more_constant,
    one_more_sparse_constant,
    op,
    other_mask,
    read,
    rewired,
    swapped,
    token,
)
from tests.support.altered import Alteration, AlteredBundle, gives_no
from tests.support.bundles import bundle_of

LINEAR, SCAN = "layers.0/linear_attn", "layers.0/linear_attn/Scan"
OWN = "model.layers.0.linear_attn"
SIZES = {"key_heads": 2, "value_heads": 4, "key_dim": 16, "value_dim": 32, "count": 4}


@pytest.fixture
def altered(tmp_path: Path) -> AlteredBundle:
    return AlteredBundle(bundle_of("qwen3_5_text", weights="int8"), tmp_path / "bundle")


@pytest.mark.parametrize("profile", ["portable", "genai"])
@pytest.mark.parametrize("weights", ["fp32", "int4"])
def test_linear_attention_is_an_op(weights: str, profile: str) -> None:
    graph = lowered(bundle_of("qwen3_5_text", weights=weights, profile=profile))
    nodes = [node for node in graph.nodes if node.op == "gated_delta"]
    epsilon = float(np.float32(1e-6))
    assert [node.attrs for node in nodes] == [
        {"layer": layer, **SIZES, "epsilon": epsilon, "strength": 1.0} for layer in (0, 2)
    ]
    assert {node.op for node in graph.nodes} - {"add"} == {
        *("embedding", "rms_norm", "linear", "rotary", "attention", "gate", "gated_delta"),
        "select_rows",
    }


def test_constants_are_the_stored_ones(altered: AlteredBundle) -> None:
    graph = lowered(altered.folder)
    node = next(node for node in graph.nodes if node.op == "gated_delta")
    taps, rate, offset = (graph.array(name) for name in node.inputs[3:])
    stored = altered.array(f"{OWN}.conv1d.weight")
    np.testing.assert_array_equal(taps.reshape(4, -1), stored[:, 0].T)
    np.testing.assert_array_equal(rate, altered.array(f"{OWN}.rate"))
    np.testing.assert_array_equal(offset, altered.array(f"{OWN}.dt_bias"))


def twice(graph: onnx.GraphProto) -> None:
    """A value that is made twice, of which the second counts."""
    graph.node[7].output[0] = graph.output[1].name = "known"


@pytest.mark.parametrize(
    "alter",
    [
        read(1, 1, "state"),  # what a key finds before the decay
        read(2, 0, "known"),
        read(3, 1, "decay"),
        read(7, 1, "decayed"),  # what a query finds before the change
        read(0, 1, "elsewhere"),
        op(0, "Add"),
        op(6, "Sub"),
        token(lambda graph: setattr(graph.node[0], "domain", "com.microsoft")),
        token(lambda graph: graph.node[0].attribute.append(helper.make_attribute("axis", 1))),
        token(lambda graph: graph.node[4].attribute[0].ints.__setitem__(0, 1)),
        token(lambda graph: graph.node[4].attribute.append(graph.node[4].attribute[0])),
        token(lambda graph: graph.node.append(helper.make_node("Neg", ["next"], ["other"]))),
        token(lambda graph: graph.input.pop() and graph.input.pop()),
        token(lambda graph: setattr(graph.output[0], "name", "decayed")),
        token(one_more_constant),
        token(one_more_sparse_constant),
        token(twice),
        swapped(SCAN, 1, 2),
        swapped(SCAN, 4, 5),
        rewired(SCAN, 0, "past_key_values.2.recurrent"),
        rewired(f"{LINEAR}/Concat", 0, "past_key_values.2.conv"),
        other_mask,
        lambda bundle: constant("model/tokens/new", 2, 5)(bundle),
        rewired(f"{LINEAR}/key/squares", 1, "past_key_values.0.conv"),
        rewired(f"{LINEAR}/Slice", 0, "past_key_values.0.conv"),
        lambda bundle: constant(f"{LINEAR}/Slice", 1, -2)(bundle),
        lambda bundle: constant(f"{LINEAR}/Slice", 2, 3)(bundle),
        lambda bundle: bundle.node(f"{LINEAR}/Slice").output.__setitem__(0, "past"),
        lambda bundle: bundle.node(SCAN).output.__setitem__(0, "next"),
        lambda bundle: bundle.node(SCAN).input.append("past_key_values.0.conv"),
        lambda bundle: bundle.node(SCAN).output.append("more"),
        gives_no("recurrent"),
        gives_no("conv"),
        lambda bundle: bundle.set(SCAN, num_scan_inputs=4),
        lambda bundle: bundle.set(f"{LINEAR}/query/Gather", axis=1),
        lambda bundle: bundle.set(f"{LINEAR}/Conv", pads=[1, 1]),
        lambda bundle: bundle.set(SCAN, body=1),
    ],
)
def test_other_forms_are_none_of_ours(alter: Alteration, altered: AlteredBundle) -> None:
    alter(altered)
    with pytest.raises((UnsupportedError, BundleError)):
        lowered(altered.save())


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (constant(f"{LINEAR}/*/Reshape", 1, 0, 0, 4, 8), r"by \[0, 0, 4, 8\] and of values by"),
        (constant(f"{LINEAR}/*/Reshape", 1, 0, 0, 2, 16, dtype=np.float32), "do not fit"),
        (constant(f"{LINEAR}/*/Reshape", 1, 0, 0, 0, 16), "do not fit"),
        (constant(f"{LINEAR}/*/Gather", 1, 0, 1, 0, 1), "do not fit"),
        (constant(f"{LINEAR}/value/row", 1, 0, 0, 2**40, 1, 32), r"1099511627776, 1, 32\], which"),
        (constant(f"{LINEAR}/value/row", 1, 0, 0, 4), r"values by \[0, 0, 4\]"),
        (constant(f"{LINEAR}/Split", 1, 32, 64, 128), "do not fit"),
        (constant(f"{LINEAR}/query/scaled", 1, 1.0, dtype=np.float32), "expected 0.25"),
        (constant(f"{LINEAR}/query/scaled", 1, 0.1, dtype=np.float32), "expected 0.25"),
        (constant(f"{LINEAR}/query/scaled", 1, 0.25, 0.5, dtype=np.float32), "expected 0.25"),
        (constant(f"{LINEAR}/norm/RMSNormalization", 1, *range(16), dtype=np.float32), "of 32"),
        (constant(f"{LINEAR}/norm/RMSNormalization", 1, *range(48), dtype=np.float32), "of 32"),
        (lambda bundle: bundle.put(f"{OWN}.rate", np.ones(3, "f")), "value_heads = 3"),
        (lambda bundle: bundle.put(f"{OWN}.dt_bias", np.ones((4, 1), "f")), "dt_bias"),
        (lambda bundle: bundle.put(f"{OWN}.conv1d.weight", np.ones((192, 2, 4), "f")), "of shape"),
        (lambda bundle: bundle.put(f"{OWN}.conv1d.weight", np.ones((192, 1, 65), "f")), "shape"),
        (lambda bundle: bundle.set(f"{LINEAR}/Conv", group=96), "in groups of 96"),
        (
            lambda bundle: [
                bundle.set(f"{LINEAR}/Conv", group=96),
                bundle.put(f"{OWN}.conv1d.weight", np.ones((96, 1, 4), "f")),
            ],
            "convolves 96 values of a token",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    alter: Alteration, message: str, altered: AlteredBundle
) -> None:
    alter(altered)
    with pytest.raises(BundleError, match=message):
        lowered(altered.save())


def test_a_graph_in_an_attribute_is_no_long_message(altered: AlteredBundle) -> None:
    altered.node(SCAN).op_type = "Loop"
    with pytest.raises(UnsupportedError, match="with body=a graph of 8 nodes"):
        lowered(altered.save())
