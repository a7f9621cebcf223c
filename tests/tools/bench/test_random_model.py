"""Random checkpoints in the shapes of models that store tensors otherwise than they compute."""

from __future__ import annotations

from pathlib import Path

import edgerun
from edgerun_export.pipeline import ExportOptions, export
from tools.bench import random_model
from tools.golden.byte_tokenizer import BOS, EOS

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 1,
    "vocab_size": 264,
    "max_position_embeddings": 64,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}


def test_layers_with_state_spaces_are_exported_and_run(tmp_path: Path) -> None:
    small = {
        **SMALL,
        "shared_intermediate_size": 128,
        "layer_types": ["mamba", "mamba", "attention", "mamba"],
        "mamba_n_heads": 4,
        "mamba_d_head": 32,
    }
    random_model.write({**random_model.PRESETS["granite-4-h-1b"], **small}, tmp_path / "checkpoint")
    export(tmp_path / "checkpoint", tmp_path / "bundle", ExportOptions(weights="int4"))
    with edgerun.load(tmp_path / "bundle", backend="cpu") as llm:
        assert [node.op for node in llm.model.bundle.graph.nodes].count("state_space") == 3
        assert len(llm.generate([1, 2, 3], max_tokens=4, ignore_eos=True).ids) == 4


def test_layers_of_linear_attention_are_exported_and_run(tmp_path: Path) -> None:
    random_model.write({**random_model.PRESETS["qwen3.5-0.8b"], **SMALL}, tmp_path / "checkpoint")
    export(tmp_path / "checkpoint", tmp_path / "bundle", ExportOptions(weights="int4"))
    with edgerun.load(tmp_path / "bundle", backend="cpu") as llm:
        assert [node.op for node in llm.model.bundle.graph.nodes].count("gated_delta") == 3
        assert len(llm.generate([1, 2, 3], max_tokens=4, ignore_eos=True).ids) == 4
