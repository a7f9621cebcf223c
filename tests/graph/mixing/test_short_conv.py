"""Convolutions as files say them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgerun.errors import BundleError, UnsupportedError
from edgerun.graph.ir import Graph
from edgerun.graph.lower import lower
from edgerun.graph.onnx_reader import read_graph
from tests.support.altered import AlteredBundle, gives_no
from tests.support.bundles import bundle_of

CONV, TOKENS = "layers.0/conv", "/model/tokens"
TAPS = "model.layers.0.conv.conv.weight"


@pytest.fixture
def altered(tmp_path: Path) -> AlteredBundle:
    return AlteredBundle(bundle_of("lfm2", weights="int8"), tmp_path / "bundle")


def lowered(folder: Path) -> Graph:
    path = folder / "model.onnx"
    return lower(read_graph(path, path.read_bytes()))


@pytest.mark.parametrize("profile", ["portable", "genai"])
@pytest.mark.parametrize("weights", ["fp32", "int4"])
def test_a_convolution_is_an_op(weights: str, profile: str) -> None:
    graph = lowered(bundle_of("lfm2", weights=weights, profile=profile))
    nodes = [node for node in graph.nodes if node.op == "short_conv"]
    assert [node.attrs for node in nodes] == [
        {"layer": layer, "width": 64, "count": 3} for layer in (0, 2)
    ]
    assert {node.op for node in graph.nodes} == {
        *("embedding", "rms_norm", "linear", "rotary", "attention", "gate", "short_conv"),
        *{"add"} & {node.op for node in graph.nodes},
        "select_rows",
    }


def test_taps_are_the_stored_ones_by_token(altered: AlteredBundle) -> None:
    stored, graph = altered.array(TAPS), lowered(altered.folder)
    node = next(node for node in graph.nodes if node.op == "short_conv")
    taps = graph.array(node.inputs[3]).reshape(3, 64)
    np.testing.assert_array_equal(taps, stored[:, 0].T)


def rewired(name: str, place: int, value: str) -> Callable[[AlteredBundle], None]:
    def alter(bundle: AlteredBundle) -> None:
        bundle.node(name).input[place] = value

    return alter


def one_more(constant: str, values: np.ndarray, name: str, place: int) -> Callable:
    """Gives a node a constant of its own."""

    def alter(bundle: AlteredBundle) -> None:
        from onnx import numpy_helper

        bundle.model.graph.initializer.append(numpy_helper.from_array(values, constant))
        bundle.node(name).input[place] = constant

    return alter


@pytest.mark.parametrize(
    "alter",
    [
        rewired(f"{TOKENS}/new", 0, "position_ids"),
        rewired(f"{TOKENS}/sequence", 0, "attention_mask"),
        rewired(f"{CONV}/Concat", 0, "past_key_values.1.key"),
        rewired("layers.2/conv/Concat", 0, "past_key_values.0.conv"),
        rewired(f"{CONV}/Slice", 0, "past_key_values.0.conv"),
        one_more("begin", np.array([-1], np.int64), f"{CONV}/Slice", 1),
        one_more("begin", np.array([-3], np.int64), f"{CONV}/Slice", 1),
        one_more("last", np.array([3], np.int64), f"{CONV}/Slice", 2),
        lambda bundle: bundle.node(f"{CONV}/Slice").output.__setitem__(0, "seen"),
        gives_no("conv"),
        one_more("soon", np.array([5], np.int64), f"{TOKENS}/new", 2),
        one_more("last", np.array([0], np.int64), f"{TOKENS}/new", 3),
        lambda bundle: bundle.set(f"{CONV}/Concat", axis=1),
        lambda bundle: bundle.set(f"{CONV}/Transpose", perm=[1, 0, 2]),
        lambda bundle: bundle.set(f"{CONV}/Conv", pads=[1, 1]),
        lambda bundle: bundle.set(f"{CONV}/Conv", dilations=[2]),
    ],
    ids=lambda _: "",
)
def test_other_forms_are_none_of_ours(
    alter: Callable[[AlteredBundle], None], altered: AlteredBundle
) -> None:
    alter(altered)
    with pytest.raises((UnsupportedError, BundleError)):
        lowered(altered.save())


def taps_of(shape: tuple[int, ...]) -> Callable[[AlteredBundle], None]:
    """Gives a convolution that says nothing of its size other weights."""

    def alter(bundle: AlteredBundle) -> None:
        node = bundle.node(f"{CONV}/Conv")
        (place,) = (i for i, each in enumerate(node.attribute) if each.name == "kernel_shape")
        del node.attribute[place]
        bundle.put(TAPS, np.ones(shape, "f"))

    return alter


def keys_of_a_convolution(bundle: AlteredBundle) -> None:
    """The keys and values of layer 1 are called as if they were those of layer 0."""
    graph = bundle.model.graph
    for node in graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                names[place] = name.replace("past_key_values.1.", "past_key_values.0.").replace(
                    "present.1.", "present.0."
                )
    for value in (*graph.input, *graph.output):
        value.name = value.name.replace("values.1.", "values.0.").replace("sent.1.", "sent.0.")


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (lambda bundle: bundle.set(f"{CONV}/Conv", group=32), "in groups of 32; expected one"),
        (lambda bundle: bundle.set(f"{CONV}/Conv", kernel_shape=[2]), "of shape"),
        (lambda bundle: bundle.put(TAPS, np.array(1, "f")), r"of shape \(\) in groups of 64"),
        (lambda bundle: bundle.put(TAPS, np.ones((64, 3), "f")), r"of shape \(64, 3\)"),
        (taps_of((64, 1)), r"of shape \(64, 1\)"),
        (taps_of((64, 1, 3, 1)), r"of shape \(64, 1, 3, 1\)"),
        (lambda bundle: bundle.put(TAPS, np.ones((64, 2, 3), "f")), r"of shape \(64, 2, 3\)"),
        (lambda bundle: bundle.put(TAPS, np.ones((32, 1, 3), "f")), "groups of 64; expected"),
        (lambda bundle: bundle.put(TAPS, np.ones((64, 1, 65), "f")), "of shape|count = 65"),
        (keys_of_a_convolution, r"keeps past_key_values\.0, which is that of .*layers\.0/conv"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    alter: Callable[[AlteredBundle], None], message: str, altered: AlteredBundle
) -> None:
    alter(altered)
    with pytest.raises(BundleError, match=message):
        lowered(altered.save())


def test_weights_for_another_width_are_refused(altered: AlteredBundle) -> None:
    altered.put(TAPS, np.ones((32, 1, 3), "f"))
    altered.set(f"{CONV}/Conv", group=32)
    with pytest.raises(BundleError, match="width = 64"):
        lowered(altered.save())


def test_more_tokens_than_a_page_are_refused(altered: AlteredBundle) -> None:
    altered.put(TAPS, np.ones((64, 1, 65), "f"))
    altered.set(f"{CONV}/Conv", kernel_shape=[65])
    one_more("begin", np.array([-64], np.int64), f"{CONV}/Slice", 1)(altered)
    with pytest.raises(BundleError, match="count = 65; expected a whole number from 1 to 64"):
        lowered(altered.save())
