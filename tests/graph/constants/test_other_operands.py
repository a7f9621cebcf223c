"""What looks like a form of ours, but for what one of its nodes reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgerun.errors import UnsupportedError
from edgerun.graph.lower import lower
from edgerun.graph.onnx_reader import read_graph
from tests.support.altered import AlteredBundle
from tests.support.bundles import bundle_of


def refusal(bundle: AlteredBundle) -> str:
    path = bundle.save() / "model.onnx"
    with pytest.raises(UnsupportedError) as refused:
        lower(read_graph(path, path.read_bytes()))
    return str(refused.value)


def test_a_bound_is_what_is_divided_by_and_multiplied_with(tmp_path: Path) -> None:
    bundle = AlteredBundle(bundle_of("gemma2", weights="fp32"), tmp_path / "bundle")
    (tanh,) = [node for node in bundle.model.graph.node if node.op_type == "Tanh"]
    (divided,) = [node for node in bundle.model.graph.node if node.output[0] == tanh.input[0]]
    wider = np.float32(2) * bundle.array(divided.input[1])
    bundle.model.graph.initializer.add(name="wider")
    bundle.put("wider", wider)
    divided.input[1] = "wider"
    assert f"node '{divided.name}' is 'Div'" in refusal(bundle)


def test_what_is_looked_up_are_tokens(tmp_path: Path) -> None:
    bundle = AlteredBundle(bundle_of("llama", weights="fp32"), tmp_path / "bundle")
    lookups = [node for node in bundle.model.graph.node if "input_ids" in node.input]
    (lookup,) = [node for node in lookups if node.op_type == "Gather"]
    lookup.input[1] = "position_ids"
    assert f"node '{lookup.name}' is 'Gather'" in refusal(bundle)
