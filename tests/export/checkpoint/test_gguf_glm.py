"""GLM 4.5 as GGUF files, whose tensors tell what their metadata does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgerun.errors import EdgerunError
from edgerun_export.architectures import describe
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export
from tests.support.gguf_model import difference, source_of, write_gguf, write_metadata

gguf = pytest.importorskip("gguf")


def write(
    folder: Path,
    name: str = "glm4_moe",
    without: str = "nothing",
    predicting: int = 0,
    **keys: Any,
) -> tuple[Path, dict[str, Any]]:
    """Writes a golden checkpoint as llama.cpp's converter does.

    Args:
        folder: where to.
        name: of the checkpoint.
        without: part of the names of tensors that are left out.
        predicting: layers for multi-token prediction behind the others.
        keys: metadata that is another; None for none.

    Returns:
        the file, and the configuration.
    """
    config, tensors = source_of(name)
    metadata = {
        "rope__dimension_count": len(describe(config).ropes[0].inv_freq.nonzero()[0]) * 2,
        "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_weights_norm": True,
        "expert_gating_func": 2,
        **keys,
    }

    def extra(writer: Any) -> None:
        write_metadata(writer, "glm4moe", metadata)
        for layer in range(config["num_hidden_layers"], config["num_hidden_layers"] + predicting):
            for part in ("attn_q", "nextn.eh_proj", "nextn.embed_tokens"):
                writer.add_tensor(f"blk.{layer}.{part}.weight", np.ones((64, 64), np.float32))

    written = {each: tensors[each] for each in tensors if without not in each}
    config["predicting"] = predicting
    path = folder / "model.gguf"
    return write_gguf(path, "glm4moe", config, written, extra=extra), config


def test_files_of_llama_cpp_compute_what_the_checkpoint_computes(tmp_path: Path) -> None:
    path, config = write(tmp_path, predicting=1, nextn_predict_layers=1)
    assert difference(path, "glm4_moe", config) < 2e-6


def test_files_without_norms_of_heads_compute_the_same_too(tmp_path: Path) -> None:
    scaling = {"type": "yarn", "factor": 8.0, "original_context_length": 16}
    keys = {f"rope__scaling__{key}": value for key, value in scaling.items()}
    # What llama.cpp takes for it where nothing is said.
    keys |= {"leading_dense_block_count": None, "expert_gating_func": None}
    path, config = write(tmp_path, "glm4_moe-yarn", **keys)
    assert difference(path, "glm4_moe-yarn", config) < 2e-6


@pytest.mark.parametrize(
    ("without", "keys", "expected"),
    [
        ("nothing", {}, (True, True, 8, 2.5)),
        ("_norm.weight", {}, (False, True, 8, 2.5)),
        ("_proj.bias", {"expert_gating_func": 0}, (True, False, 8, 2.5)),
        ("nothing", {"rope__dimension_count": 32}, (True, True, 16, 2.5)),
        ("nothing", {"rope__dimension_count": 4}, (True, True, 2, 2.5)),
        ("nothing", {"rope__dimension_count": None}, (True, True, 16, 2.5)),
        ("nothing", {"expert_weights_scale": None}, (True, True, 8, 1.0)),
    ],
)
def test_the_configuration_is_what_tensors_and_metadata_say(
    without: str, keys: dict[str, Any], expected: Any, tmp_path: Path
) -> None:
    path, _ = write(tmp_path, without=without, **keys)
    with open_checkpoint(str(path)) as checkpoint:
        spec = describe(checkpoint.config)
    turned = int((spec.ropes[0].inv_freq > 0).sum())
    part: Any = spec.layers[1].feed_forward
    assert (spec.q_norm is not None, bool(spec.biases), turned, part.scale) == expected


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"expert_gating_func": 1},
            "'expert_gating_func' is 1, .* glm4_moe .*; expected 2 for sig",
        ),
        ({"expert_weights_norm": False}, "'expert_weights_norm' is False"),
        ({"expert_weights_norm": None}, "lacks 'glm4moe.expert_weights_norm', which says whether"),
        ({"expert_group_count": 2}, "lacks 'glm4moe.expert_group_used_count'"),
        ({"expert_group_count": 2, "expert_group_used_count": 3}, "'topk_group' is 3 and"),
        ({"leading_dense_block_count": -1}, "count' is -1; expected 0 to"),
        ({"leading_dense_block_count": 3}, "'first_k_dense_replace' is 3 and"),
        ({"expert_shared_count": 0.5}, "count' is 0.5; expected 0 to"),
        ({"rope__dimension_count": 7}, "heads of 32 with 7 rotated"),
        ({"rope__dimension_count": 34}, "heads of 32 with 34 rotated"),
        ({"nextn_predict_layers": 2}, "'num_hidden_layers' is 0 and must be"),
        ({"nextn_predict_layers": -1}, "layers' is -1; expected 0 to"),
    ],
)
def test_what_such_a_file_cannot_have_is_refused(
    keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path, _ = write(tmp_path, **keys)
    with pytest.raises(EdgerunError, match=message), open_checkpoint(str(path)) as checkpoint:
        describe(checkpoint.config)


@pytest.mark.parametrize("name", ["1.self_attn.q_norm.weight", "1.self_attn.k_proj.bias"])
def test_what_the_first_layer_has_all_must_have(name: str, tmp_path: Path) -> None:
    path, _ = write(tmp_path, without=name)
    with pytest.raises(EdgerunError, match=f"no tensor 'model.layers.{name}', which glm4_moe"):
        export(path, tmp_path / "out", ExportOptions())
