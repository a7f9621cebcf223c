"""DeepSeek V3 and R1, and what is built as they are (Moonlight 16B A3B, Kimi K2).

DeepSeek-V3 (2024), section 2.1: experts are chosen by sigmoids with a bias that only the choice
sees, from groups that are chosen first by the sum of two each.
"""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures.decoder.fields import natural, nullable_flag, number, positive
from edgerun_export.architectures.decoder.latent import with_latent_attention
from edgerun_export.architectures.decoder.layer import Dense, FeedForward
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import MTP_LEFT_OUT
from edgerun_export.architectures.deepseek.deepseek_v2 import (
    check_scoring,
    expert_groups,
    experts_beside_shared,
)


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``deepseek_v3``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = with_latent_attention(config)
    first = natural(config, "first_k_dense_replace", 3, limit=spec.num_layers)
    are_sparse = [layer >= first for layer in range(spec.num_layers)]
    return with_experts(spec, config, are_sparse, usual_groups=(8, 4))


def with_experts(
    spec: DecoderSpec,
    config: Config,
    are_sparse: list[bool],
    *,
    usual_groups: tuple[int, int] = (1, 1),
) -> DecoderSpec:
    """The same decoder with experts in some layers, chosen as DeepSeek V3 chooses them.

    Args:
        spec: the decoder.
        config: keys of config.json.
        are_sparse: of each layer whether it has experts.
        usual_groups: groups of experts, and how many of them are chosen first, unless ``config``
            says it.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: scores are no sigmoids, or some layers of many have experts.
    """
    name = str(config["model_type"])
    check_scoring(config, "sigmoid")
    experts = replace(
        experts_beside_shared(config),
        scoring="sigmoid",
        normalise=nullable_flag(config, "norm_topk_prob"),
        groups=expert_groups(config, usual_groups, best=2),
        selection_bias="mlp.gate.e_score_correction_bias",
        scale=number(config, "routed_scaling_factor"),
    )
    dense = Dense(positive(config, "intermediate_size"))
    parts: list[FeedForward] = [experts if is_sparse else dense for is_sparse in are_sparse]
    count = natural(config, "num_nextn_predict_layers", 0, limit=spec.num_layers)
    predicting = range(spec.num_layers, spec.num_layers + count)  # layers behind the others
    return replace(
        spec.with_feed_forward(parts),
        architecture=name,
        storage=replace(
            spec.storage, unused=tuple(f"model.layers.{layer}." for layer in predicting)
        ),
        notes=(MTP_LEFT_OUT,) if count else (),
    )


ARCHITECTURE = describe
