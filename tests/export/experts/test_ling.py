"""Ling 2.0: what its configurations say, and that its layers are those of GLM 4.5."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from edgerun.errors import CheckpointError, EdgerunError, UnsupportedError
from edgerun_export.architectures import Experts, describe
from edgerun_export.architectures.decoder.layer import ExpertGroups
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.source.model import interpret
from edgerun_export.verify.compare import relative_error
from edgerun_export.verify.numpy_model import forward
from tests.support.bundles import GOLDEN
from tests.support.gguf_model import IDS, write_gguf, write_metadata

LAYERS = 2
# As quoted in SGLang's tests from Ling-mini-2.0, at other sizes.
KEYS: dict[str, Any] = {
    "model_type": "bailing_moe",
    "architectures": ["BailingMoeV2ForCausalLM"],
    "num_shared_experts": 1,
    "moe_router_enable_expert_bias": True,
    "score_function": "sigmoid",
    "router_dtype": "fp32",
    "partial_rotary_factor": 0.5,
    "use_qk_norm": True,
    "use_qkv_bias": True,
    "use_bias": False,
    "n_group": 3,
    "topk_group": 2,
    "norm_topk_prob": True,
}


def config_of(**changes: Any) -> dict[str, Any]:
    """Of the golden GLM 4.5, in Ling's words."""
    config = json.loads((GOLDEN / "glm4_moe" / "config.json").read_text())
    for key in ("n_shared_experts", "rope_parameters", "attention_bias"):
        del config[key]
    config |= KEYS | {"num_experts": config.pop("n_routed_experts"), "rope_theta": 10000.0}
    return {**config, **changes}


def tensors() -> dict[str, Any]:
    """Of the golden GLM 4.5, under Ling's names."""
    stored = load_file(GOLDEN / "glm4_moe" / "model.safetensors")
    names = {
        "model.embed_tokens": "model.word_embeddings",
        "self_attn.o_proj": "attention.dense",
        "self_attn.q_norm": "attention.query_layernorm",
        "self_attn.k_norm": "attention.key_layernorm",
        "e_score_correction_bias": "expert_bias",
    }
    for layer in range(LAYERS):
        for kind in ("weight", "bias"):
            at = f"model.layers.{layer}."
            parts = [stored.pop(f"{at}self_attn.{each}_proj.{kind}") for each in "qkv"]
            stored[f"{at}attention.query_key_value.{kind}"] = np.concatenate(parts)
    for old, new in names.items():
        stored = {name.replace(old, new): value for name, value in stored.items()}
    return stored


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "ling"
    shutil.copytree(GOLDEN / "glm4_moe", folder)
    save_file(tensors(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_of()))
    return folder


def of_glm(**changes: Any) -> NDArray[np.float32]:
    """Logits of the golden GLM 4.5 if its configuration said something else."""
    with open_checkpoint(str(GOLDEN / "glm4_moe")) as glm:
        glm.config = {**glm.config, **changes}
        weights, _ = interpret(glm)
        return forward(weights.spec, weights, IDS)


def test_layers_are_those_of_glm_with_experts_in_groups(checkpoint: Path) -> None:
    without, expected = (of_glm(n_group=groups, topk_group=2) for groups in (2, 3))
    with open_checkpoint(str(checkpoint)) as ling:
        weights, notes = interpret(ling)
        assert not notes
        computed = forward(weights.spec, weights, IDS)
    np.testing.assert_array_equal(computed, expected)
    assert relative_error(computed, without) > 1e-3


def test_configurations_without_such_keys_have_those_of_its_class() -> None:
    usual = ("n_group", "topk_group", "routed_scaling_factor", "norm_topk_prob", "rms_norm_eps")
    spec = describe(config_of(**dict.fromkeys(usual), num_experts=32, use_qk_norm=None))
    part = spec.layers[1].feed_forward
    assert isinstance(part, Experts)
    assert (part.groups, part.scale, part.normalise) == (ExpertGroups(8, 4, best=2), 2.5, True)
    assert (spec.norm_eps, spec.q_norm, spec.architecture) == (1e-5, None, "bailing_moe")
    named = describe(config_of(model_type="bailing_moe_v2", architectures=None))
    assert named.architecture == "bailing_moe_v2"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"architectures": ["BailingMoeForCausalLM"]}, UnsupportedError, "class 'BailingMoeFor"),
        ({"architectures": None}, UnsupportedError, "those of BailingMoeV2ForCausalLM"),
        ({"use_bias": None}, UnsupportedError, "bailing_moe checkpoints with use_bias"),
        ({"use_sliding_window": True}, UnsupportedError, "with use_sliding_window"),
        ({"norm_head": True}, UnsupportedError, "with norm_head"),
        ({"norm_topk_prob": False}, UnsupportedError, "do not add up to 1"),
        ({"num_experts_per_tok": 1}, UnsupportedError, "num_experts_per_tok of 1"),
        ({"score_function": "softmax"}, UnsupportedError, "scoring_func of 'softmax'"),
        ({"num_experts": None}, CheckpointError, "'n_routed_experts' is None"),
        ({"n_group": 4}, CheckpointError, "of 6 experts .* in 4 groups"),
    ],
)
def test_configurations_of_another_kind_are_refused(
    changes: dict[str, Any], error: type[EdgerunError], message: str
) -> None:
    with pytest.raises(error, match=message):
        describe(config_of(**changes))


def write(folder: Path, **keys: Any) -> Path:
    """Writes a GGUF file with other metadata, None for none."""
    metadata = {
        "rope__dimension_count": 16,
        "leading_dense_block_count": 1,
        "expert_shared_count": 1,
        "expert_weights_scale": 2.5,
        "expert_weights_norm": True,
        "expert_gating_func": 2,
        "expert_group_count": 3,
        "expert_group_used_count": 2,
        **keys,
    }

    def extra(writer: Any) -> None:
        write_metadata(writer, "bailingmoe2", metadata)

    stored = {name: np.asarray(value, np.float32) for name, value in tensors().items()}
    path = folder / "model.gguf"
    return write_gguf(path, "bailingmoe2", config_of(), stored, extra=extra)


def test_files_of_llama_cpp_compute_the_same(tmp_path: Path) -> None:
    path = write(tmp_path)
    with open_checkpoint(str(path)) as checkpoint:
        weights, _ = interpret(checkpoint)
        computed = forward(weights.spec, weights, IDS)
    assert relative_error(computed, of_glm(n_group=3, topk_group=2)) < 2e-6


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"expert_gating_func": 1}, "'expert_gating_func' is 1, .* bailing_moe_v2 .*; expected 2"),
        ({"expert_weights_norm": None}, "lacks 'bailingmoe2.expert_weights_norm', which says"),
        ({"expert_group_used_count": None}, "lacks 'bailingmoe2.expert_group_used_count'"),
    ],
)
def test_what_such_a_file_cannot_have_is_refused(
    keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, **keys)
    with pytest.raises(EdgerunError, match=message):
        open_checkpoint(str(path)).close()
