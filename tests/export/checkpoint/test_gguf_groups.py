"""GGUF files of mixtures whose experts are in groups: what is read is what was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgerun.errors import CheckpointError
from edgerun_export.architectures import Experts, describe
from edgerun_export.checkpoint import open_checkpoint
from tests.support.gguf_model import difference, stored_of, write_gguf, write_metadata

gguf = pytest.importorskip("gguf")


def write(folder: Path, name: str, **keys: Any) -> tuple[Path, dict[str, Any]]:
    """Writes a golden checkpoint as llama.cpp's converter does.

    Args:
        folder: where to.
        name: of the checkpoint.
        keys: metadata that is another; None for none.

    Returns:
        the file, and the configuration.
    """
    config, stored = stored_of(name)
    config["rope_parameters"] |= {"mscale": 0.5}  # of which files say one alone
    metadata = {
        "kv_lora_rank": config["kv_lora_rank"],
        "q_lora_rank": config["q_lora_rank"],
        "key_length_mla": 32,
        "value_length_mla": 16,
    }
    metadata = {f"attention__{key}": value for key, value in metadata.items()}
    metadata |= {
        "rope__dimension_count": config["qk_rope_head_dim"],
        "rope__scaling__type": "yarn",
        "rope__scaling__factor": 8.0,
        "rope__scaling__original_context_length": 16,
        "rope__scaling__yarn_log_multiplier": 0.05,
        "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
    }
    if name.startswith("deepseek_v3"):
        metadata |= {"expert_gating_func": 2, "expert_weights_norm": True}

    def extra(writer: Any) -> None:
        write_metadata(writer, "deepseek2", {**metadata, **keys})

    tensors = {key.replace("correction_bias", "correction.bias"): stored[key] for key in stored}
    return write_gguf(folder / "model.gguf", "deepseek2", config, tensors, extra=extra), config


NAMES = ("deepseek_v2-groups", "deepseek_v3-groups")


@pytest.mark.parametrize("name", NAMES)
def test_files_of_llama_cpp_compute_what_the_checkpoint_computes(name: str, tmp_path: Path) -> None:
    path, config = write(tmp_path, name)
    assert difference(path, name, config) < 2e-6


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [None, 0, 1])
def test_files_without_groups_have_none(name: str, count: int | None, tmp_path: Path) -> None:
    path, _ = write(tmp_path, name, expert_group_count=count, expert_group_used_count=None)
    with open_checkpoint(str(path)) as checkpoint:
        part = describe(checkpoint.config).layers[1].feed_forward
    assert isinstance(part, Experts) and part.groups is None


@pytest.mark.parametrize("count", [0, None, 0.5])
def test_files_that_do_not_say_how_many_are_chosen_are_refused(
    count: float | None, tmp_path: Path
) -> None:
    path, _ = write(tmp_path, NAMES[0], expert_group_used_count=count)
    with pytest.raises(CheckpointError, match="deepseek2.expert_group_used_count"):
        open_checkpoint(str(path)).close()
