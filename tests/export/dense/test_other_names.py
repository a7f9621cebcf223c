"""nanochat, MiniCPM, InternLM2, IQuest Coder, Jais 2 and Sarvam: what configurations say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgerun.errors import CheckpointError, EdgerunError, UnsupportedError
from edgerun_export.architectures import Experts, describe
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.source.model import interpret
from tests.support.bundles import GOLDEN, config_of, spec_without


@pytest.mark.parametrize(
    ("name", "changes", "error", "message"),
    [
        ("iquestcoder", {"use_sliding_window": True}, UnsupportedError, "with use_sliding_window"),
        ("iquestcoder", {"clip_qkv": 4.0}, UnsupportedError, "with clip_qkv 4.0"),
        ("jais2", {"hidden_act": "silu"}, UnsupportedError, "jais2 .* hidden_act of 'silu'"),
        ("minicpm", {"num_experts": 8}, UnsupportedError, "minicpm checkpoints with experts"),
        ("minicpm", {"scale_emb": 0}, CheckpointError, "'scale_emb' is 0"),
        ("minicpm", {"dim_model_base": -1}, CheckpointError, "'dim_model_base' is -1"),
        ("minicpm3", {"v_head_dim": 0}, CheckpointError, "'v_head_dim' is 0"),
        ("minicpm3", {"scale_depth": "x"}, CheckpointError, "'scale_depth' is 'x'"),
        ("nanochat", {"tie_word_embeddings": True}, UnsupportedError, "whose head is the embedd"),
        ("nanochat", {"hidden_act": "silu"}, UnsupportedError, "of 'silu' .* with relu2 are"),
        ("sarvam_moe", {"routed_scaling_factor": 0}, CheckpointError, "scaling_factor' is 0"),
    ],
)
def test_configurations_that_are_none_are_refused(
    name: str, changes: dict[str, Any], error: type[EdgerunError], message: str
) -> None:
    with pytest.raises(error, match=message):
        describe(config_of(name, **changes))


def test_keys_that_are_left_out_mean_what_their_classes_take_them_for() -> None:
    coder = spec_without("iquestcoder", "head_dim", "num_key_value_heads", num_attention_heads=16)
    assert (coder.head_dim, coder.num_kv_heads) == (128, 8)
    assert spec_without("nanochat", "final_logit_softcapping").softcap == 15.0
    assert describe(config_of("nanochat", final_logit_softcapping=None)).softcap is None
    assert spec_without("jais2", "attention_bias", "mlp_bias").biases >= {"q_proj", "up_proj"}
    assert spec_without("internlm2", "bias").biases == {"q_proj", "k_proj", "v_proj", "o_proj"}
    sarvam = spec_without("sarvam_moe", "num_experts_per_tok", "use_qk_norm", "n_routed_experts")
    part = sarvam.layers[0].feed_forward
    assert isinstance(part, Experts)
    assert (part.count, part.top_k, sarvam.q_norm) == (128, 6, "attention.query_layernorm")


def test_old_names_of_sarvams_keys_are_read() -> None:
    newer = ("n_routed_experts", "n_shared_experts", "attention_bias")
    said = {"num_experts": 12, "num_shared_experts": 2, "use_qkv_bias": True}
    spec = spec_without("sarvam_moe", *newer, **said)
    part = spec.layers[0].feed_forward
    assert isinstance(part, Experts)
    assert part.shared is not None
    assert (part.count, part.shared.width) == (12, 2 * part.width)
    assert spec.biases == {"q_proj", "k_proj", "v_proj"}


def test_factors_of_minicpm_follow_from_depth_and_width() -> None:
    untied = {"tie_word_embeddings": False, "num_hidden_layers": 4, "scale_depth": 1.0}
    spec = describe(config_of("minicpm", **untied, scale_emb=6, dim_model_base=32))
    assert spec.storage.factors == {spec.embedding_weight: 12.0, spec.final_norm_weight: 0.5}
    none = {"scale_depth": None, "dim_model_base": None, "scale_emb": 1}
    assert describe(config_of("minicpm3", **none)).storage.factors == {}


def test_a_context_beyond_the_original_is_said_to_be_left_out() -> None:
    spec = describe(config_of("minicpm"))
    assert spec.context_length == 64
    assert "the context is 64 tokens" in spec.notes[0]


def test_embedded_tokens_of_nanochat_are_normalised_rows() -> None:
    with open_checkpoint(str(GOLDEN / "nanochat")) as checkpoint:
        source, _ = interpret(checkpoint)
        rows = source.rows(source.spec.embedding_weight, slice(3, 9))
        stored = checkpoint.read(source.spec.embedding_weight, slice(3, 9)).astype(np.float32)
    np.testing.assert_allclose((rows**2).mean(axis=1), 1, rtol=1e-4)
    np.testing.assert_allclose(rows / rows[:, :1], stored / stored[:, :1], rtol=1e-4)
