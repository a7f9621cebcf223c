"""Mixtures that GPTQ and AWQ checkpoints pack, expert by expert, beside a router that stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgerun.formats import dense
from edgerun.formats.base import PackedWeight, zero_points
from edgerun.formats.stack import ExpertStack
from edgerun.graph.lower import lower
from edgerun.graph.onnx_reader import read_graph
from edgerun_export.pipeline import ExportOptions, export
from tests.export.checkpoint.integers.layouts import (
    AWQ,
    GPTQ,
    Tensors,
    pack_awq,
    pack_gptq,
    packed_model,
)
from tests.export.test_runtimes import check
from tests.support.peers import needs_complete_onnxruntime

MIXTURES = [
    ("olmoe", AWQ | {"modules_to_not_convert": ["gate"]}, pack_awq, 32),
    ("qwen3_moe", GPTQ | {"group_size": 16}, pack_gptq, 16),
    ("mixtral", AWQ, pack_awq, 32),  # whose down projections have 40 inputs, and stay floats
    ("qwen3_moe", GPTQ | {"group_size": 16, "sym": True}, pack_gptq, 16),
]


def stacks_of(folder: Path) -> list[ExpertStack]:
    """Matrices of the experts of all layers, as edgerun reads them."""
    path = folder / "model.onnx"
    graph = lower(read_graph(path, path.read_bytes()))
    names = [name for node in graph.nodes if node.op == "experts" for name in node.inputs[2:5]]
    stacks = [graph.constants[name] for name in names]
    return [each for each in stacks if isinstance(each, ExpertStack)]


@pytest.mark.parametrize(("model", "settings", "pack", "group"), MIXTURES, ids=list("abcd"))
def test_experts_keep_codes_scales_and_zero_points(
    model: str, settings: dict[str, Any], pack: Any, group: int, tmp_path: Path
) -> None:
    weights = packed_model(tmp_path / "packed", settings, pack, model=model, group=group)
    # Projections of a layer see their inputs alike, floats as they are.
    options = {"weights": "source", "activations": "fp32"}
    result = export(tmp_path / "packed", tmp_path / "out", ExportOptions(**options))
    matrices = [matrix for stack in stacks_of(result.folder) for matrix in stack.matrices]
    packed = [matrix for matrix in matrices if isinstance(matrix, PackedWeight)]
    experts = {name: weight for name, weight in weights.items() if ".experts." in name}
    assert len(packed) == len(experts)
    assert (len(packed) < len(matrices)) == (model == "mixtral")
    assert result.manifest["quality"]["relative_weight_error"] == 0
    assert {dense(each).tobytes() for each in packed} == {w.tobytes() for w in experts.values()}
    for each in packed:
        assert each.block == group
        assert each.is_centred == settings.get("sym", False)


def test_an_expert_whose_zero_points_are_all_the_middle_has_them_as_the_others_do(
    tmp_path: Path,
) -> None:
    """Experts of a layer are alike, so none may do without."""

    def centre(tensors: Tensors) -> None:
        for name in tensors:
            if "experts.3." in name and name.endswith("qzeros"):
                tensors[name][:] = np.uint32(0x88888888).view(np.int32)

    packed_model(tmp_path / "packed", AWQ, pack_awq, model="olmoe", alter=centre)
    for profile in ("portable", "genai"):
        out = tmp_path / profile
        export(tmp_path / "packed", out, ExportOptions(weights="source", profile=profile))
        matrices = [matrix for stack in stacks_of(out) for matrix in stack.matrices]
        assert all(isinstance(m, PackedWeight) and m.zeros is not None for m in matrices)
        assert sum((zero_points(m) == 8).all() for m in matrices) == 6  # type: ignore[arg-type]


@pytest.mark.peers
@needs_complete_onnxruntime
@pytest.mark.parametrize("runtime", ["edgerun", "openvino"])
def test_a_packed_mixture_continues_alike_in_all_runtimes(
    runtime: str, tmp_path: Path, golden: Any
) -> None:
    packed_model(tmp_path / "packed", AWQ, pack_awq, model="olmoe")
    options = ExportOptions(weights="source", activations="fp32")
    bundle = export(tmp_path / "packed", tmp_path / "out", options).folder
    check(runtime, bundle, golden("olmoe").ids.tolist())
