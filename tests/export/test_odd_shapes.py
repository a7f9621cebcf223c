"""Widths that fit no block, no group of rows and no vector: exported, and run by the kernels."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from edgerun_export.pipeline import ExportOptions, export
from tests.support.bundles import GOLDEN, error_of, runner

HIDDEN, WIDE, VOCAB, KV = 48, 85, 267, 24  # K = 48 and 85 of blocks of 32; N = 85 and 267
NORMS = {
    "bitnet-master": {"mlp.ffn_sub_norm": WIDE, "self_attn.attn_sub_norm": HIDDEN},
    "llama": {},
}
LAYER = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (KV, HIDDEN),
    "self_attn.v_proj": (KV, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (WIDE, HIDDEN),
    "mlp.up_proj": (WIDE, HIDDEN),
    "mlp.down_proj": (HIDDEN, WIDE),
}


def odd_checkpoint(source: str, folder: Path) -> Path:
    """A random checkpoint of a golden architecture with other widths."""
    shutil.copytree(GOLDEN / source, folder)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    config |= {"hidden_size": HIDDEN, "intermediate_size": WIDE, "vocab_size": VOCAB}
    config |= {"head_dim": HIDDEN // 4, "attention_bias": False}
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens": (VOCAB, HIDDEN), "norm": (HIDDEN,)}
    for layer in range(config["num_hidden_layers"]):
        inside = LAYER | {name: (width,) for name, width in NORMS[source].items()}
        inside |= {"input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,)}
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in inside.items()}
    tensors = {
        f"model.{name}.weight": rng.standard_normal(shape).astype(np.float32) * 0.2
        + (len(shape) == 1)
        for name, shape in shapes.items()
    }
    tensors = {name: value.astype(np.float32) for name, value in tensors.items()}
    if source == "llama":
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"][::-1].copy()
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("llama", {"weights": "int4", "group_size": 32}),
        ("llama", {"weights": "int8", "group_size": 64}),
        ("bitnet-master", {"weights": "ternary"}),
    ],
    ids=str,
)
def test_odd_widths_give_the_logits_of_the_reference(
    source: str, options: dict[str, Any], tmp_path: Path
) -> None:
    checkpoint = odd_checkpoint(source, tmp_path / "checkpoint")
    export(checkpoint, tmp_path / "bundle", ExportOptions(**options))
    ids = np.random.default_rng(1).integers(0, VOCAB, 37)
    packings = (False, True) if source.startswith("bitnet") else (False,)
    with runner(tmp_path / "bundle", "reference") as reference:
        expected = np.concatenate([reference.run(ids), reference.run([7])])
    for trits in packings:
        with runner(tmp_path / "bundle", "cpu", trits=trits) as model:
            logits = np.concatenate([model.run(ids), model.run([7])])
        assert logits.shape == (38, VOCAB)
        assert error_of(logits, expected) <= 1e-4
