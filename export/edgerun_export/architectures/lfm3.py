"""LFM3: LFM2 with windows, norms of what layers add, and a gate for each head (Liquid AI 2026)."""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.architectures import lfm2
from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import flag, names, positive
from edgerun_export.architectures.decoder.rope import rope_of_type
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import stored_modules

_CONV, _FULL, _SLIDING = "conv", "full_attention", "sliding_attention"
# Lfm3Config's, where what is reused has others or none.
_USUAL = {"conv_L_cache": 7, "head_dim": 128}
_USUAL_ROPES = {
    _SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
    _FULL: {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.5},
}


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``lfm3``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    said = _USUAL | {key: value for key, value in config.items() if value is not None}
    kinds = _kinds(said)
    plain = {
        **said,
        "layer_types": [_CONV if kind == _CONV else _FULL for kind in kinds],
        "rope_parameters": None,
        "rope_scaling": None,
        "block_ff_dim": None,
        "block_auto_adjust_ff_dim": False,
        "norm_eps": said.get("rms_norm_eps", said.get("norm_eps")),  # two names of one number
    }
    spec = lfm2.hybrid(plain, "lfm3", positive(said, "intermediate_size"))
    # A key that is null means no window, an absent one this.
    window = None if _has_no_window(config) else positive(said, "sliding_window", 256)
    spec = spec.with_windows([window if kind == _SLIDING else None for kind in kinds])
    theta = said.get("rope_theta")  # of both types, where they have none
    ropes = {"rope_parameters": _USUAL_ROPES, **said, "rope_local_base_freq": theta}
    after, gated = flag(said, "use_sandwich_norm", True), flag(said, "use_attention_gate", True)
    stored = lfm2.stored_names(spec, lfm2.NETWORK)
    gates = stored_modules(spec.num_layers, {"self_attn.attention_gate": "self_attn.gate_proj"})
    return replace(
        spec.with_ropes([1 if kind == _SLIDING else 0 for kind in kinds]),
        ropes=(
            rope_of_type(ropes, _FULL, spec.head_dim, 1000000.0),
            rope_of_type(ropes, _SLIDING, spec.head_dim, 1000000.0),
        ),
        biases=declared_biases(said, ("attention_bias",)),
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
        attention_out_norm="post_operator_norm" if after else None,
        feed_forward_out_norm="post_ffn_norm" if after else None,
        gates_attention=gated,
        gates_by_head=gated,
        storage=replace(spec.storage, names={**stored, **(gates if gated else {})}),
    )


def _has_no_window(config: Config) -> bool:
    return "sliding_window" in config and config["sliding_window"] is None


def _kinds(config: Config) -> list[str]:
    """What each layer has, which is every fourth time attention to all, or to a window."""
    count = positive(config, "num_hidden_layers")
    kinds = names(config, "layer_types")
    if not kinds:
        order = (_SLIDING, _CONV, _FULL, _CONV)
        kinds = [_CONV, *(order[layer % 4] for layer in range(1, count))]
    if others := sorted({*kinds} - {_CONV, _FULL, _SLIDING}):
        raise UnsupportedError(
            f"lfm3 checkpoints with layers of '{others[0]}' are not supported; those with {_CONV}, "
            f"{_FULL} and {_SLIDING} are"
        )
    if len(kinds) != count:
        raise CheckpointError(
            f"config.json: layer_types names {len(kinds)} layers, the model has {count}"
        )
    return kinds


ARCHITECTURE = describe
