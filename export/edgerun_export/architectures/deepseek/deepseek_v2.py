"""DeepSeek V2: keys and values made of narrow rows, experts and a network for all tokens.

DeepSeek-V2 (2024), sections 2.1 and 2.2. All but V2 Lite choose groups of experts first.
"""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun.values import shown
from edgerun_export.architectures.decoder.fields import (
    experts_chosen,
    flag,
    natural,
    number,
    positive,
)
from edgerun_export.architectures.decoder.latent import with_latent_attention
from edgerun_export.architectures.decoder.layer import (
    Dense,
    ExpertGroups,
    Experts,
    FeedForward,
    SharedExpert,
)
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec

_METHODS = ("greedy", "group_limited_greedy")  # the second chooses groups by their largest score


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``deepseek_v2``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    method = config.get("topk_method") or "greedy"
    if method not in _METHODS and positive(config, "n_group", 1) > 1:
        raise UnsupportedError(
            f"deepseek_v2 checkpoints with a topk_method of {shown(method)} are not supported; "
            f"those with {' or '.join(_METHODS)} are"
        )
    check_scoring(config, "softmax")
    if flag(config, "norm_topk_prob"):
        raise UnsupportedError("deepseek_v2 checkpoints with norm_topk_prob are not supported")
    spec = with_latent_attention(config)
    first = natural(config, "first_k_dense_replace", 0, limit=spec.num_layers)
    experts = experts_beside_shared(config)
    if method != "greedy":
        experts = replace(experts, groups=expert_groups(config, (1, 1), best=1))
    parts: list[FeedForward] = [Dense(positive(config, "intermediate_size"))] * first
    parts += [experts] * (spec.num_layers - first)
    return replace(spec.with_feed_forward(parts), architecture="deepseek_v2")


def experts_beside_shared(config: Config) -> Experts:
    """Experts chosen by a softmax, and a network of several widths of theirs for all tokens.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: layers without experts stand between those that have some.
    """
    if positive(config, "moe_layer_freq", 1) > 1:
        raise UnsupportedError(
            f"{config['model_type']} checkpoints with a moe_layer_freq of "
            f"{config['moe_layer_freq']} are not supported; those with 1 are"
        )
    count, top_k = experts_chosen(config, "n_routed_experts")
    width = positive(config, "moe_intermediate_size")
    shared = natural(config, "n_shared_experts", 0, limit=count)
    return Experts(
        count=count,
        top_k=top_k,
        width=width,
        normalise=False,
        scale=number(config, "routed_scaling_factor", 1.0),
        shared=SharedExpert(shared * width, "mlp.shared_experts", gate="") if shared else None,
    )


def expert_groups(config: Config, usual: tuple[int, int], *, best: int) -> ExpertGroups | None:
    """Groups of experts of which some are chosen first; None where experts of all may be chosen.

    Args:
        config: keys of config.json.
        usual: how many groups there are, and how many are chosen, unless ``config`` says it.
        best: how many experts a group is chosen by.

    Raises:
        CheckpointError: groups are not of one size, or have too few experts.
    """
    experts, top_k = experts_chosen(config, "n_routed_experts")
    count = positive(config, "n_group", usual[0], limit=experts)
    chosen = positive(config, "topk_group", min(usual[1], count), limit=count)
    if chosen == count:
        return None
    size = experts // count
    if experts % count or size < best or size * chosen < top_k:
        raise CheckpointError(
            f"config.json: of {experts} experts (n_routed_experts) in {count} groups (n_group) "
            f"{top_k} (num_experts_per_tok) of {chosen} groups (topk_group) are chosen; expected "
            f"groups of one size, of {best} experts or more, and as many as are chosen in these"
        )
    return ExpertGroups(count, chosen, best)


def check_scoring(config: Config, expected: str) -> None:
    """Refuses scores of experts that are made by another function than a family's.

    Raises:
        UnsupportedError: ``scoring_func`` names another.
    """
    scoring = config.get("scoring_func") or expected
    if scoring != expected:
        raise UnsupportedError(
            f"{config['model_type']} checkpoints with a scoring_func of {shown(scoring)} are not "
            f"supported; those with {expected} are"
        )


ARCHITECTURE = describe
