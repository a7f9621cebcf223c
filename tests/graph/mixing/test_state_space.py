"""State spaces as files say them, norms of groups behind them, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

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

NAME = "granitemoehybrid-mamba"
SPACE, SCAN = "layers.0/mamba", "layers.0/mamba/Scan"
OWN = "model.layers.0.mamba"
SIZES = {"heads": 8, "groups": 2, "head_dim": 16, "state_dim": 32, "count": 4}


@pytest.fixture
def altered(tmp_path: Path) -> AlteredBundle:
    return AlteredBundle(bundle_of(NAME, weights="int8"), tmp_path / "bundle")


@pytest.mark.parametrize("profile", ["portable", "genai"])
@pytest.mark.parametrize("weights", ["fp32", "int4"])
def test_a_state_space_is_an_op_and_its_norm_another(weights: str, profile: str) -> None:
    graph = lowered(bundle_of(NAME, weights=weights, profile=profile))
    spaces = [node for node in graph.nodes if node.op == "state_space"]
    assert [node.attrs for node in spaces] == [{"layer": layer, **SIZES} for layer in (0, 2)]
    norms = [node for node in graph.nodes if node.op == "group_rms_norm"]
    epsilon = float(np.float32(1e-6))  # of the file, while those of the stream are divided
    assert [node.attrs for node in norms] == [{"groups": 2, "epsilon": epsilon}] * 2
    assert {node.op for node in graph.nodes} - {"add"} == {
        *("embedding", "rms_norm", "linear", "attention", "gate", "state_space"),
        *("group_rms_norm", "select_rows"),
    }


def test_a_single_group_has_a_norm_like_others() -> None:
    graph = lowered(bundle_of("granitemoehybrid-experts", weights="int4"))
    (node,) = (node for node in graph.nodes if node.op == "state_space")
    assert (node.attrs["groups"], node.attrs["count"]) == (1, 3)
    assert not any(node.op == "group_rms_norm" for node in graph.nodes)
    assert len(graph.array(f"{OWN}.norm.weight")) == 128


def test_constants_are_the_stored_ones(altered: AlteredBundle) -> None:
    graph = lowered(altered.folder)
    node = next(node for node in graph.nodes if node.op == "state_space")
    taps, *vectors = (graph.array(name) for name in node.inputs[2:])
    stored = altered.array(f"{OWN}.conv1d.weight")
    np.testing.assert_array_equal(taps.reshape(4, -1), stored[:, 0].T)
    for values, name in zip(vectors, ("conv1d.bias", "rate", "dt_bias", "D"), strict=True):
        np.testing.assert_array_equal(values, altered.array(f"{OWN}.{name}"))


@pytest.mark.parametrize(
    "alter",
    [
        read(3, 1, "state"),  # what a query finds before the change
        read(2, 0, "state"),  # without the decay
        read(1, 1, "decay"),
        read(0, 1, "elsewhere"),
        op(2, "Sub"),
        token(one_more_constant),
        token(one_more_sparse_constant),
        swapped(SCAN, 1, 2),
        swapped(SCAN, 3, 4),
        rewired(SCAN, 0, "past_key_values.2.recurrent"),
        rewired(f"{SPACE}/Concat", 0, "past_key_values.2.conv"),
        other_mask,
        constant("model/tokens/new", 2, 5),
        rewired(f"{SPACE}/skip/Mul", 0, "past_key_values.0.conv"),
        rewired(f"{SPACE}/decay/Mul", 0, "past_key_values.0.conv"),
        rewired(f"{SPACE}/biased", 1, "attention_mask"),
        lambda bundle: bundle.node(f"{SPACE}/Conv").input.pop() and None,  # no bias
        rewired(f"{SPACE}/Slice", 0, "past_key_values.0.conv"),
        constant(f"{SPACE}/Slice", 1, -2),
        lambda bundle: bundle.node(SCAN).output.__setitem__(0, "next"),
        lambda bundle: bundle.node(SCAN).output.append("more"),
        gives_no("recurrent"),
        gives_no("conv"),
        lambda bundle: bundle.set(SCAN, num_scan_inputs=3),
        lambda bundle: bundle.set(f"{SPACE}/query/Gather", axis=1),
        constant(f"{SPACE}/key/column", 1, 3),
        constant(f"{SPACE}/norm/RMSNormalization", 1, *[2] * 64, dtype=np.float32),
        constant(f"{SPACE}/norm/joined", 1, 0, -1, 128),
    ],
)
def test_other_forms_are_none_of_ours(alter: Alteration, altered: AlteredBundle) -> None:
    alter(altered)
    with pytest.raises((UnsupportedError, BundleError)):
        lowered(altered.save())


def test_keys_that_no_layer_attends_to_are_refused(altered: AlteredBundle) -> None:
    """A state space has a convolution and matrices of the same number, and no keys."""
    past = altered.model.graph.input.add()
    past.CopyFrom(altered.model.graph.input[-1])
    past.name = "past_key_values.0.key"
    with pytest.raises(BundleError, match=r"takes past_key_values\.0\.key, which no layer reads"):
        lowered(altered.save())


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (constant(f"{SPACE}/*/Reshape", 1, 0, 0, 4, 16), r"of keys by \[0, 0, 4, 16\]"),
        (constant(f"{SPACE}/*/Reshape", 1, 0, 0, 2, 32, dtype=np.float32), "do not fit"),
        (constant(f"{SPACE}/*/Reshape", 1, 0, 0, 0, 32), "do not fit"),
        (constant(f"{SPACE}/*/Gather", 1, 0, 1, 0, 1, 0, 1, 0, 1), "do not fit"),
        (constant(f"{SPACE}/input/row", 1, 0, 0, 4), r"inputs by \[0, 0, 4\]"),
        (constant(f"{SPACE}/input/row", 1, 0, 0, 4, 1, 32), "do not fit"),
        (constant(f"{SPACE}/Split", 1, 64, 64, 128), "do not fit"),
        (constant(f"{SPACE}/Reshape", 1, 0, 0, 64), "do not fit"),
        (lambda bundle: bundle.put(f"{OWN}.rate", np.ones(3, "f")), "heads = 3"),
        (lambda bundle: bundle.put(f"{OWN}.D", np.ones(3, "f")), "heads = 3"),
        (lambda bundle: bundle.put(f"{OWN}.conv1d.bias", np.ones(3, "f")), "bias"),
        (lambda bundle: bundle.put(f"{OWN}.conv1d.weight", np.ones((256, 1, 65), "f")), "shape"),
        (
            lambda bundle: [
                bundle.set(f"{SPACE}/Conv", group=96),
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
