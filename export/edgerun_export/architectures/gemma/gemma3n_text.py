"""Gemma 3n (text): several residual streams, a way past attention, activations that are cut off.

Layers have inputs of their own, and the last ones attend to keys of earlier ones, as in Gemma 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import activation, flag, positive, typed_windows
from edgerun_export.architectures.decoder.layer import Dense, LayerSpec
from edgerun_export.architectures.decoder.rope import rope_of_type
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage
from edgerun_export.architectures.decoder.streams import AltUp, Laurel
from edgerun_export.architectures.gemma.parts import (
    MAX_WIDTH,
    like_llama,
    per_layer_inputs,
    softcap,
    sources,
    stored_factors,
    unused_keys,
)

_GLOBAL_THETA, _LOCAL_THETA = 1000000.0, 10000.0
_PATTERN = 5  # every so many layers one has no window
_USUALLY_SHARED = 15
_USUALLY_CUT, _USUAL_SHARE = 10, 0.95  # of a model with more layers, those that come first
_MAX_STREAMS = 16


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``gemma3n_text``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    plain = like_llama(config, head_dim=256, kv_heads=2, context=32768)
    widths = config.get("intermediate_size")
    if isinstance(widths, list):  # one for each layer
        plain["intermediate_size"] = max(_each_positive(widths))
    spec = llama.describe(plain)
    width = positive(config, "hidden_size_per_layer_input", 256, limit=MAX_WIDTH)
    spec = replace(
        spec,
        architecture="gemma3n_text",
        activation=activation(plain),
        layers=_layers(config, spec),
        ropes=(
            rope_of_type(config, "full_attention", spec.head_dim, _GLOBAL_THETA),
            rope_of_type(config, "sliding_attention", spec.head_dim, _LOCAL_THETA),
        ),
        biases=declared_biases(config, ("attention_bias",)),
        score_scale=1.0,
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
        normalises_values=True,
        attention_out_norm="post_attention_layernorm",
        feed_forward_norm="pre_feedforward_layernorm",
        feed_forward_out_norm="post_feedforward_layernorm",
        per_layer=per_layer_inputs(spec, width),
        altup=_altup(config),
        laurel=Laurel(positive(config, "laurel_rank", 64, limit=MAX_WIDTH)),
        softcap=softcap({"final_logit_softcapping": 30.0, **config}),
    )
    return replace(spec, storage=_storage(config, spec))


def _altup(config: Config) -> AltUp:
    if config.get("altup_active_idx"):
        raise UnsupportedError(
            f"config.json: by altup_active_idx {config['altup_active_idx']!r} layers see another "
            "residual stream than the first, which is not supported"
        )
    count = positive(config, "altup_num_inputs", 4, limit=_MAX_STREAMS)
    if count == 1:
        raise UnsupportedError(
            "config.json: 'altup_num_inputs' is 1; supported are two residual streams and more"
        )
    return AltUp(count, scales_output=flag(config, "altup_correct_scale", True))


def _layers(config: Config, spec: DecoderSpec) -> tuple[LayerSpec, ...]:
    """What differs between layers."""
    count = spec.num_layers
    window = positive(config, "sliding_window", 512)
    windows = typed_windows(config, window, [(layer + 1) % _PATTERN != 0 for layer in range(count)])
    parts = zip(
        _widths(config, count),
        _shares(config, count),
        windows,
        sources(config, windows, _USUALLY_SHARED),
        strict=True,
    )
    return tuple(
        LayerSpec(
            Dense(width, NormalDist().inv_cdf(share) if share else None),
            window=size,
            rope=1 if size else 0,
            kv_source=source,
        )
        for width, share, size, source in parts
    )


def _widths(config: Config, count: int) -> Sequence[int]:
    """Widths of the feed-forward parts, which are the same or listed layer by layer."""
    widths = config.get("intermediate_size")
    if not isinstance(widths, list):
        return [positive(config, "intermediate_size")] * count
    if len(widths) != count:
        raise CheckpointError(
            f"config.json: intermediate_size names {len(widths)} layers, the model has {count}"
        )
    return _each_positive(widths)


def _each_positive(widths: Sequence[object]) -> list[int]:
    key = "intermediate_size"
    return [positive({key: width}, key) for width in widths] or [positive({}, key)]


def _shares(config: Config, count: int) -> Sequence[float]:
    """Which share of the gate's elements is cut off in each layer."""
    key = "activation_sparsity_pattern"
    shares = config.get(key)
    if shares is None:
        cut = _USUALLY_CUT if count > _USUALLY_CUT else 0
        return [_USUAL_SHARE] * cut + [0.0] * (count - cut)
    if not isinstance(shares, list) or len(shares) != count:
        raise CheckpointError(f"config.json: '{key}' must be a list of {count} shares")
    for share in shares:
        is_number = isinstance(share, (int, float)) and not isinstance(share, bool)
        if not is_number or not 0 <= share < 1:
            raise CheckpointError(
                f"config.json: '{key}' has {share!r}; expected shares from 0 to less than 1"
            )
    return [float(share) for share in shares]


def _storage(config: Config, spec: DecoderSpec) -> Storage:
    assert spec.per_layer is not None and spec.altup is not None
    factors, unused = stored_factors(spec), unused_keys(spec)
    for layer in range(spec.num_layers):  # a router reads its norm divided by the hidden size
        module = f"model.layers.{layer}"
        factors[f"{module}.{AltUp.norm}.weight"] = 1 / spec.hidden_size
        if not spec.altup.scales_output:
            unused = (*unused, f"{module}.{AltUp.output_scale}")
    key = "vocab_size_per_layer_input"
    rows = positive(config, key, 262144)
    if rows > spec.vocab_size:
        raise UnsupportedError(
            f"config.json: {key} is {rows} and vocab_size {spec.vocab_size}; expected no more"
        )
    # Tokens for which there is no row read the first.
    fewer = {spec.per_layer.table: rows} if rows < spec.vocab_size else {}
    return Storage(factors=factors, rows=fewer, unused=unused)


ARCHITECTURE = describe
