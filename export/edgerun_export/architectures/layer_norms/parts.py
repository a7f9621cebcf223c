"""What decoders with layer norms share."""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import UnsupportedError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import (
    activation,
    check_off,
    flag,
    number,
    positive,
)
from edgerun_export.architectures.decoder.layer import Dense
from edgerun_export.architectures.decoder.rope import partial, rope_of_part
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec

QKV = ("q_proj", "k_proj", "v_proj")
_ROPE = ("rope_parameters", "rope_scaling", "partial_rotary_factor")
# By the activation of a network without a gate the factor that makes it, of what it is made of.
_FACTORS = {
    "gelu": "normal_cdf",
    "gelu_fast": "normal_cdf_tanh",
    "gelu_new": "normal_cdf_tanh",
    "gelu_pytorch_tanh": "normal_cdf_tanh",
    "relu2": "relu",
}


def described(config: Config, name: str, *, epsilon: str = "layer_norm_eps") -> DecoderSpec:
    """Describes a decoder of Llama's parts with layer norms, whatever it does with ropes.

    Args:
        config: keys of config.json.
        name: of the architecture.
        epsilon: the key of the epsilon of norms.

    Raises:
        CheckpointError: a key is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    check_off(config, name, ("qk_layernorm", "use_qk_norm"))
    own = {"hidden_act": "silu", **dict.fromkeys(_ROPE)}
    return replace(
        llama.describe({**config, **own}),
        architecture=name,
        norm_eps=number(config, epsilon, 1e-5),
        centres=True,
    )


def with_head_norms(spec: DecoderSpec, config: Config, key: str, path: str) -> DecoderSpec:
    """The same decoder with norms of queries and keys, if a key of the configuration says so.

    Args:
        spec: the decoder, described as if the key were not there.
        config: keys of config.json.
        key: says whether there are such norms; every head has weights of its own.
        path: of the norms below ``model.layers.N``, with ``{}`` for ``q`` and ``k``.
    """
    if not flag(config, key):
        return spec
    queries, keys = (path.format(kind) for kind in "qk")
    return replace(spec, q_row_norm=queries, k_row_norm=keys, row_norms_by_head=True)


def turned_in_part(spec: DecoderSpec, config: Config, usual_part: float) -> DecoderSpec:
    """The same decoder with a rope of the first elements of heads.

    Raises:
        CheckpointError: a parameter is missing or out of range.
        UnsupportedError: a scaling variant without an implementation.
    """
    turning = rope_of_part(config, spec.head_dim, usual_part)
    turning, head_rows = partial(turning, spec.head_dim)
    return replace(spec, ropes=(turning,), storage=replace(spec.storage, head_rows=head_rows))


def gated(spec: DecoderSpec, config: Config) -> DecoderSpec:
    """The same decoder with the gate's activation that a configuration says.

    Raises:
        UnsupportedError: there is no implementation of it.
    """
    return replace(spec, activation=activation(config))


def ungated(spec: DecoderSpec, config: Config, usual: str) -> DecoderSpec:
    """The same decoder with networks that have no gate.

    Args:
        spec: the decoder.
        config: keys of config.json.
        usual: the activation, unless ``config`` names another.

    Raises:
        CheckpointError: ``intermediate_size`` is missing or out of range.
        UnsupportedError: there is no implementation of the activation.
    """
    said = str(config.get("hidden_act") or usual)
    if said not in _FACTORS:
        raise UnsupportedError(
            f"{spec.architecture} checkpoints with a hidden_act of '{said}' are not supported; "
            f"those with {', '.join(_FACTORS)} are"
        )
    network = Dense(positive(config, "intermediate_size"), gated=False)
    spec = spec.with_feed_forward([network] * spec.num_layers)
    return replace(spec, activation=_FACTORS[said], biases=spec.biases - {"gate_proj"})
