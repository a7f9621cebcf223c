"""Gemma 4 (text): heads of two widths, layers that scale the residual stream, inputs of layers.

What multiplies the residual stream stays an operator: in released models the product of all these
factors is 1e-13 and less, and a stream that is kept divided by it would leave float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import (
    activation,
    experts_chosen,
    flag,
    natural,
    positive,
    section,
    typed_windows,
)
from edgerun_export.architectures.decoder.layer import (
    Dense,
    Experts,
    FeedForward,
    LayerSpec,
    NormsBeside,
    Rope,
    SharedExpert,
)
from edgerun_export.architectures.decoder.rope import by_type_alone, rope_of_type
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage
from edgerun_export.architectures.decoder.streams import PerLayerInputs
from edgerun_export.architectures.gemma.parts import (
    MAX_WIDTH,
    like_llama,
    per_layer_inputs,
    softcap,
    sources,
    stored_factors,
    unused_keys,
)

_FULL, _SLIDING = "full_attention", "sliding_attention"
_THETA = {_FULL: 1000000.0, _SLIDING: 10000.0}
_USUAL_ROPES = {
    _FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25},
    _SLIDING: {"rope_type": "default"},
}
_PATTERN = 6  # every so many layers one has no window
_SIZES = ("head_dim", "num_key_value_heads")


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``gemma4_text``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    return decoder(config, Defaults("gemma4_text"))


@dataclass(frozen=True, slots=True)
class Defaults:
    """What stands for absent keys, by the model_type.

    Attributes:
        architecture: the model_type.
        window: ``sliding_window``.
        context: ``max_position_embeddings``.
        per_layer_width: ``hidden_size_per_layer_input``.
    """

    architecture: str
    window: int = 512
    context: int = 131072
    per_layer_width: int = 256


def decoder(config: Config, usual: Defaults) -> DecoderSpec:
    """Describes the text model of a checkpoint.

    Args:
        config: keys of config.json that concern it.
        usual: what stands for absent ones.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    config = _with_plain_numbers(config)
    plain = like_llama(config, head_dim=256, kv_heads=4, context=usual.context)
    spec = llama.describe(plain)
    _check(config, usual.architecture, spec.num_layers)
    spec = replace(
        spec,
        architecture=usual.architecture,
        activation=activation(plain),
        layers=_layers(config, spec, usual),
        biases=declared_biases(config, ("attention_bias",)),
        score_scale=1.0,
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
        normalises_values=True,
        layer_scale="layer_scalar",
        attention_out_norm="post_attention_layernorm",
        feed_forward_norm="pre_feedforward_layernorm",
        feed_forward_out_norm="post_feedforward_layernorm",
        per_layer=_per_layer(config, spec, usual),
        softcap=softcap(config),
    )
    return replace(spec, ropes=_ropes(config, spec), storage=_storage(spec))


def _with_plain_numbers(config: Config) -> Config:
    """With layers numbered as they are counted, where transformers writes 5 as "05"."""
    own = config.get("per_layer_config")
    if not isinstance(own, Mapping):
        return config
    plain = {key.lstrip("0") or "0" if key.isdecimal() else key: own[key] for key in own}
    return {**config, "per_layer_config": plain}


def _check(config: Config, name: str, count: int) -> None:
    numbers = {str(layer) for layer in range(count)}
    if others := sorted({*section(config, "per_layer_config")} - numbers):
        raise CheckpointError(
            f"config.json: per_layer_config names layer '{others[0]}', and there are layers 0 to "
            f"{count - 1}"
        )
    if config.get("use_bidirectional_attention") == "all":
        raise UnsupportedError(f"{name} checkpoints with bidirectional attention are not supported")


def _layers(config: Config, spec: DecoderSpec, usual: Defaults) -> tuple[LayerSpec, ...]:
    """What differs between layers; the last has no window, whatever the configuration says."""
    count = spec.num_layers
    window = positive(config, "sliding_window", usual.window)
    windows = typed_windows(config, window, [(layer + 1) % _PATTERN != 0 for layer in range(count)])
    windows = (*windows[:-1], None)
    kv_sources = sources(config, windows)
    wide = flag(config, "use_double_wide_mlp")
    own_values = not flag(config, "attention_k_eq_v")
    layers = []
    for layer, (size, source) in enumerate(zip(windows, kv_sources, strict=True)):
        head_dim, kv_heads = _sizes(config, layer, is_global=size is None, spec=spec)
        width = positive(config, "intermediate_size") * (2 if wide and source is not None else 1)
        part = LayerSpec(
            _feed_forward(config, width),
            window=size,
            rope=1 if size else 0,
            head_dim=head_dim,
            num_kv_heads=kv_heads,
            keys_are_values=size is None and not own_values and source is None,
            kv_source=source,
        )
        layers.append(part)
    for layer, source in enumerate(kv_sources):
        if source is not None:
            _check_shared(layers, layer, source)
    return tuple(layers)


def _feed_forward(config: Config, width: int) -> FeedForward:
    """A network that all tokens go through, and beside it experts where the model has such."""
    if not flag(config, "enable_moe_block"):
        return Dense(width)
    count, top_k = experts_chosen(config, "num_experts", "top_k_experts")
    return Experts(
        count=count,
        top_k=top_k,
        width=positive(config, "moe_intermediate_size"),
        normalise=True,
        router="router.proj",
        shared=SharedExpert(width, module="mlp", gate=""),
        beside=NormsBeside(),
    )


def _check_shared(layers: Sequence[LayerSpec], layer: int, source: int) -> None:
    """A layer has heads as those are to which it attends."""
    own, read = ((layers[each].head_dim, layers[each].num_kv_heads) for each in (layer, source))
    if own != read:
        raise CheckpointError(
            f"config.json: layer {layer} has {own[1]} key heads of {own[0]} elements and attends "
            f"to those of layer {source}, which has {read[1]} of {read[0]}"
        )


def _sizes(config: Config, layer: int, *, is_global: bool, spec: DecoderSpec) -> tuple[int, int]:
    """Width of a layer's heads, and its key and value heads.

    Transformers 5 writes them layer by layer, and released models those of all global layers.
    """
    usual = {"head_dim": spec.head_dim, "num_key_value_heads": spec.num_kv_heads}
    own: dict[str, Any] = {}
    if config.get("per_layer_config") is not None:
        own = dict(section(section(config, "per_layer_config"), str(layer)))
        if others := sorted({*own} - {*_SIZES}):
            raise UnsupportedError(
                f"config.json: per_layer_config gives layer {layer} a '{others[0]}' of its own, "
                f"which is not supported; {' and '.join(_SIZES)} are"
            )
    elif is_global:
        own = {"head_dim": positive(config, "global_head_dim", 512, limit=MAX_WIDTH)}
        if flag(config, "attention_k_eq_v"):
            own["num_key_value_heads"] = config.get("num_global_key_value_heads")
    head_dim = positive(own, "head_dim", usual["head_dim"], limit=MAX_WIDTH)
    kv_heads = positive(own, "num_key_value_heads", usual["num_key_value_heads"])
    if spec.num_heads % kv_heads or head_dim % 2:
        raise CheckpointError(
            f"config.json: layer {layer} has {spec.num_heads} query heads for {kv_heads} key heads "
            f"of {head_dim} elements; expected a multiple, and an even number of elements"
        )
    return head_dim, kv_heads


def _ropes(config: Config, spec: DecoderSpec) -> tuple[Rope, ...]:
    """Of layers without a window, and of those with one.

    Raises:
        CheckpointError: a parameter is missing or out of range.
        UnsupportedError: a variant has no implementation, or layers of a type differ.
    """
    given = section(config, "rope_parameters") or _USUAL_ROPES
    ropes = []
    for kind, is_global in ((_FULL, True), (_SLIDING, False)):
        of_kind = [part for part in spec.layers if (part.window is None) == is_global]
        if of_kind and not isinstance(given.get(kind), Mapping):
            raise CheckpointError(
                f"config.json: 'rope_parameters' has no object for {kind}, which layers are"
            )
        widths = {part.head_dim or spec.head_dim for part in of_kind}
        if len(widths) > 1:
            raise UnsupportedError(
                f"config.json: layers of {kind} have heads of {sorted(widths)} elements; only "
                "those of different types may differ"
            )
        width = widths.pop() if widths else spec.head_dim
        ropes.append(rope_of_type(by_type_alone(config, given), kind, width, _THETA[kind]))
    return tuple(ropes)


def _per_layer(config: Config, spec: DecoderSpec, usual: Defaults) -> PerLayerInputs | None:
    key = "hidden_size_per_layer_input"
    width = natural(config, key, usual.per_layer_width, limit=MAX_WIDTH)
    if not width:
        return None
    rows = positive(config, "vocab_size_per_layer_input", 262144)
    if rows != spec.vocab_size:
        raise UnsupportedError(
            f"config.json: vocab_size_per_layer_input is {rows} and vocab_size {spec.vocab_size}; "
            "expected the same"
        )
    return per_layer_inputs(spec, width)


def _storage(spec: DecoderSpec) -> Storage:
    names, factors_of_routers = _experts_stored(spec)
    factors = stored_factors(spec) | factors_of_routers
    return Storage(names=names, factors=factors, unused=unused_keys(spec))


def _experts_stored(spec: DecoderSpec) -> tuple[dict[str, str], dict[str, float]]:
    """What experts and routers are stored as, and factors of the norms before routers.

    A norm without a weight, a vector and the root of the hidden size make one norm.
    """
    names, factors = {}, {}
    for layer, part in enumerate(spec.layers):
        if not isinstance(part.feed_forward, Experts):
            continue
        module, router = f"model.layers.{layer}", NormsBeside().router
        paths = [each.path for net in spec.feed_forward(layer) for each in net.values()]
        for path in (*paths, "mlp.router.proj"):
            names[f"{module}.{path}.weight"] = f"{module}.{path.removeprefix('mlp.')}.weight"
        names[f"{module}.{router}.weight"] = f"{module}.router.scale"
        factors[f"{module}.{router}.weight"] = float(spec.hidden_size) ** -0.5
    return names, factors


ARCHITECTURE = describe
