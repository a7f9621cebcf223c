"""Norms of heads whose weights differ from head to head (Command R+, StableLM 2 12B)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from edgerun.errors import CheckpointError
from edgerun.graph.lower import lower
from edgerun.graph.onnx_reader import read_graph
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.source.model import interpret
from tests.support.bundles import GOLDEN, bundle_of

gguf = pytest.importorskip("gguf")

from tests.support.gguf_model import (  # noqa: E402
    difference,
    source_of,
    write_gguf,
    write_metadata,
)

AT = "model.layers.0.self_attn"
# Of each golden checkpoint its name in GGUF files, and what these say beside what all do.
IN_GGUF: dict[str, tuple[str, dict[str, Any]]] = {
    "cohere-norms": ("command-r", {"logit_scale": 0.25, "rope__scaling__type": "none"}),
    "stablelm-norms": ("stablelm", {"rope__dimension_count": 4, "use_parallel_residual": "True"}),
}


@pytest.mark.parametrize("profile", ["portable", "genai"])
@pytest.mark.parametrize(("name", "layers"), [("cohere-norms", 2), ("stablelm-norms", 1)])
def test_norms_of_heads_are_those_of_groups(name: str, layers: int, profile: str) -> None:
    path = bundle_of(name, weights="int4", profile=profile) / "model.onnx"
    graph = lower(read_graph(path, path.read_bytes()))
    norms = [node for node in graph.nodes if node.op == "layer_norm" and node.attrs["groups"] > 1]
    assert [node.attrs["groups"] for node in norms] == [4, 2] * layers
    assert [len(graph.array(node.inputs[1])) for node in norms] == [64, 32] * layers
    assert {len(node.inputs) for node in norms} == {2}  # no biases


@pytest.mark.parametrize("name", IN_GGUF)
def test_files_of_llama_cpp_have_a_matrix_of_all_heads(name: str, tmp_path: Path) -> None:
    architecture, metadata = IN_GGUF[name]
    config, tensors = source_of(name, rope_parameters=None, rope_theta=10000.0)
    if "partial_rotary_factor" in (source_of(name)[0].get("rope_parameters") or {}):
        config["partial_rotary_factor"] = 0.25
    for key in [each for each in tensors if ".self_attn." in each and "norm" in each]:
        tensors[key] = tensors[key].reshape(-1, 16)
    path = write_gguf(
        tmp_path / "model.gguf", architecture, config, tensors,
        extra=lambda writer: write_metadata(writer, architecture, metadata),
    )  # fmt: skip
    assert difference(path, name, config) < 2e-6


def changed(folder: Path, name: str, tensors: dict[str, np.ndarray | None]) -> Path:
    """A golden checkpoint with other tensors; None for none."""
    copy = Path(shutil.copytree(GOLDEN / name, folder / "checkpoint"))
    stored = load_file(copy / "model.safetensors") | tensors
    tensors = {key: value for key, value in stored.items() if value is not None}
    save_file(tensors, copy / "model.safetensors")
    return copy


def test_a_head_without_its_norm_is_named(tmp_path: Path) -> None:
    name = f"{AT}.q_layernorm.norms"
    folder = changed(tmp_path, "stablelm-norms", {f"{name}.2.weight": None})
    said = rf"has norms of 3 heads at '{name}' and none of head 2"
    with pytest.raises(CheckpointError, match=said):
        open_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("name", "tensor", "values", "message"),
    [
        ("cohere-norms", "q_norm", np.ones((2, 32)), "of 2 heads at '.*q_norm'; .* asks for 4"),
        ("cohere-norms", "k_norm", np.ones((4, 8)), "of 4 heads at '.*k_norm'; .* asks for 2"),
        ("stablelm-norms", "k_layernorm.norms.1", None, "of 1 heads at '.*'; .* asks for 2"),
    ],
)
def test_norms_of_another_number_of_heads_are_refused(
    name: str, tensor: str, values: np.ndarray | None, message: str, tmp_path: Path
) -> None:
    other = None if values is None else values.astype(np.float32)
    folder = changed(tmp_path, name, {f"{AT}.{tensor}.weight": other})
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {"q_norm": np.ones((4, 20), np.float32)},
            r"has shape \[80\]; config.json asks for \[64\]",
        ),
        ({"q_norm": None}, "has no tensor '.*q_norm.weight', which cohere needs"),
    ],
)
def test_norms_of_other_heads_are_refused(
    tensors: dict[str, Any], message: str, tmp_path: Path
) -> None:
    other = {f"{AT}.{name}.weight": value for name, value in tensors.items()}
    with (
        open_checkpoint(str(changed(tmp_path, "cohere-norms", other))) as checkpoint,
        pytest.raises(CheckpointError, match=message),
    ):
        interpret(checkpoint)


def test_norms_that_the_configuration_does_not_say_are_not_left_out(tmp_path: Path) -> None:
    more = {f"{AT}.q_norm.weight": np.ones((4, 16), np.float32)}
    with (
        open_checkpoint(str(changed(tmp_path, "cohere", more))) as checkpoint,
        pytest.raises(CheckpointError, match=r"q_norm\.weight' has no place"),
    ):
        interpret(checkpoint)
