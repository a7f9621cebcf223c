"""LFM2: short gated convolutions in most layers, attention in the others.

``experts/lfm2_moe.py`` describes the models with experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import flag, names, number, positive
from edgerun_export.architectures.decoder.layer import ShortConv
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage

_TYPES = ("conv", "full_attention")
_MAX_TAPS = 64  # more than any model has; as far back as a page of tokens
# What parts of layers are called in checkpoints.
NETWORK = {
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
}
_NAMES = {"self_attn.o_proj": "self_attn.out_proj", **NETWORK}


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``lfm2``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    return hybrid(config, "lfm2", _width(config))


def hybrid(config: Config, name: str, width: int) -> DecoderSpec:
    """Describes a decoder of convolutions and attention with dense feed-forward parts.

    Args:
        config: keys of config.json.
        name: the model_type.
        width: of the feed-forward parts.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    if flag(config, "conv_bias"):
        raise UnsupportedError(f"{name} checkpoints with biases in convolutions are not supported")
    plain = {
        **config,
        "intermediate_size": width,
        "tie_word_embeddings": flag(
            config, "tie_embedding", flag(config, "tie_word_embeddings", True)
        ),
        "rope_theta": number(config, "rope_theta", 1000000.0),
        "hidden_act": "silu",
    }
    spec = llama.describe(plain)
    conv = ShortConv(_taps(config, name))
    types = _layer_types(config, name, spec.num_layers)
    return replace(
        spec,
        architecture=name,
        layers=tuple(
            replace(layer, conv=conv if kind == "conv" else None)
            for layer, kind in zip(spec.layers, types, strict=True)
        ),
        norm_eps=number(config, "norm_eps", 1e-5),
        biases=frozenset(),
        input_norm="operator_norm",
        feed_forward_norm="ffn_norm",
        q_norm="self_attn.q_layernorm",
        k_norm="self_attn.k_layernorm",
        storage=Storage(
            joined={f"{conv.module}.in_proj": ("b_proj", "c_proj", "x_proj")},
            names=stored_names(spec, _NAMES),
        ),
    )


def stored_names(spec: DecoderSpec, modules: Mapping[str, str]) -> Mapping[str, str]:
    """Names of tensors in checkpoints, by what they are called here.

    Args:
        spec: the decoder.
        modules: paths of modules below ``model.layers.N``, likewise.
    """
    names = {spec.final_norm_weight: "model.embedding_norm.weight"}
    for layer in range(spec.num_layers):
        module = f"model.layers.{layer}"
        names |= {
            f"{module}.{name}.weight": f"{module}.{stored}.weight"
            for name, stored in modules.items()
        }
    return names


def _width(config: Config) -> int:
    """Of the feed-forward part; released models state what it is derived from."""
    width = positive(config, "block_ff_dim", positive(config, "intermediate_size", 12288))
    if not flag(config, "block_auto_adjust_ff_dim", True):
        return width
    width = int(2 * width / 3)
    if config.get("block_ffn_dim_multiplier", 1.0) is None:
        return width
    width = int(number(config, "block_ffn_dim_multiplier", 1.0) * width)
    multiple = positive(config, "block_multiple_of", 256)
    return -(-width // multiple) * multiple


def _taps(config: Config, name: str) -> int:
    taps = positive(config, "conv_L_cache", 3, limit=_MAX_TAPS)
    if taps == 1:
        raise UnsupportedError(
            f"{name} checkpoints with a conv_L_cache of 1, whose convolutions read no earlier "
            "token, are not supported; those with 2 and more are"
        )
    return taps


def _layer_types(config: Config, name: str, num_layers: int) -> list[str]:
    """What each layer has.

    Raises:
        CheckpointError: other layers are named than there are, or none that attends.
        UnsupportedError: a type has no implementation.
    """
    types = names(config, "layer_types")
    if not types:
        types = _of_indices(config, num_layers)
    others = sorted({*types} - {*_TYPES})
    if others:
        raise UnsupportedError(
            f"{name} checkpoints with layers of '{others[0]}' are not supported; those with "
            f"{' and '.join(_TYPES)} are"
        )
    if len(types) != num_layers:
        raise CheckpointError(
            f"config.json: layer_types names {len(types)} layers, the model has {num_layers}"
        )
    if "full_attention" not in types:
        raise UnsupportedError(f"{name} checkpoints without a layer of attention are not supported")
    return types


def _of_indices(config: Config, num_layers: int) -> list[str]:
    indices = config.get("full_attn_idxs")
    indices = [*range(num_layers)] if indices is None else indices
    if not isinstance(indices, list) or not all(type(each) is int for each in indices):
        raise CheckpointError(
            f"config.json: 'full_attn_idxs' is {indices!r} and must be a list of layers' numbers"
        )
    if beyond := [each for each in indices if not 0 <= each < num_layers]:
        raise CheckpointError(
            f"config.json: 'full_attn_idxs' names layer {beyond[0]}, and there are layers 0 to "
            f"{num_layers - 1}"
        )
    return ["full_attention" if each in indices else "conv" for each in range(num_layers)]


ARCHITECTURE = describe
