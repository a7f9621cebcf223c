"""Granite 4: Granite 3 with state spaces in most layers, experts beside a network, or neither."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import experts_chosen, natural, number, positive
from edgerun_export.architectures.decoder.layer import Dense, Experts, FeedForward, SharedExpert
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.scaled import granite
from edgerun_export.architectures.state_spaces.parts import (
    SPACES,
    expanded,
    layer_kinds,
    state_space,
    with_state_spaces,
)

_NAME, _MODULE = "granitemoehybrid", "shared_mlp"
_MAX_EXPERTS = 4096
# GraniteMoeHybridConfig's, where what is reused has others or none.
_USUAL = {"intermediate_size": 11008, "num_local_experts": 8, "num_experts_per_tok": 2}
_WIDTH = 1024


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``granitemoehybrid``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    config = {**_USUAL, **{key: value for key, value in config.items() if value is not None}}
    width = positive(config, "shared_intermediate_size", _WIDTH)
    spec = granite.describe({**config, "intermediate_size": width})
    layers = spec.num_layers
    has_space = layer_kinds(config, _NAME, layers, [SPACES[0]] * layers)
    rope = 0 if config.get("position_embedding_type") == "rope" else None
    spec = replace(
        spec.with_feed_forward([_feed_forward(config, width)] * layers).with_ropes([rope] * layers),
        architecture=_NAME,
        biases=declared_biases(config, ("attention_bias",)),
        # Short names of a layer with experts are those of the network beside them.
        storage=replace(
            spec.storage,
            joined={
                f"{_MODULE}.input_linear": ("gate_proj", "up_proj"),
                f"{_MODULE}.output_linear": ("down_proj",),
            },
        ),
    )
    if not any(has_space):
        return spec
    norm_eps = number(config, "rms_norm_eps", 1e-6)  # not of the residual stream, and not divided
    space = state_space(config, _NAME, expanded(config, spec.hidden_size), norm_eps)
    return with_state_spaces(spec, [space if each else None for each in has_space])


def _feed_forward(config: Config, width: int) -> FeedForward:
    """A network of this width, beside experts if there are any."""
    if natural(config, "num_local_experts", 0, limit=_MAX_EXPERTS) == 0:
        return Dense(width)
    count, top_k = experts_chosen(config, "num_local_experts")
    return Experts(
        count=count,
        top_k=top_k,
        width=positive(config, "intermediate_size"),
        normalise=True,
        module="block_sparse_moe",
        router="router.layer",
        shared=SharedExpert(width, _MODULE, gate=""),
    )


ARCHITECTURE = describe
