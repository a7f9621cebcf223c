"""Muse Glimmer 30B's text model: Gemma 2's norms, gated attention, windows with rope (Meta 2026).

Norms of heads have no weights, and queries a factor after theirs, which is in that of the scores.
Norms of what layers add have an epsilon of their own, which is that of the others where what they
read is multiplied by the root of the ratio.
"""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import UnsupportedError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import (
    layer_thetas,
    number,
    positive,
    said_of_rope,
    typed_windows,
)
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage

# MuseGlimmerTextConfig's, where what is reused has others or none.
_USUAL = {
    "head_dim": 128,
    "num_key_value_heads": 2,
    "hidden_activation": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
}


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``muse_glimmer_text``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    said = _USUAL | {key: value for key, value in config.items() if value is not None}
    spec = llama.describe({**said, "hidden_act": said["hidden_activation"]})
    if spec.tied:
        raise UnsupportedError(
            "muse_glimmer checkpoints whose head is the embedding are not supported, since the "
            "rows of the embedding are normalised"
        )
    count = spec.num_layers
    slides = [(count - 1 - layer) % 4 != 0 for layer in range(count)]
    windows = typed_windows({**config, **said}, positive(said, "sliding_window", 2048), slides)
    turns = _turns(said, slides)
    return replace(
        spec.with_windows(windows).with_ropes([0 if each else None for each in turns]),
        architecture="muse_glimmer_text",
        biases=declared_biases(said, ("attention_bias",)),
        attention_out_norm="post_attention_layernorm",
        feed_forward_norm="pre_feedforward_layernorm",
        feed_forward_out_norm="post_feedforward_layernorm",
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
        gates_attention=True,
        softcap=number(said, "final_logit_softcapping", 20.0),
        score_scale=number(said, "qk_scale_factor", 3.87) * spec.head_dim**-0.5,
        storage=_storage(spec, said),
    )


def _storage(spec: DecoderSpec, config: Config) -> Storage:
    own, stored = "self_attn.attention_gate.weight", "self_attn.gate_proj.weight"
    layers = [f"model.layers.{layer}." for layer in range(spec.num_layers)]
    growth = (spec.norm_eps / number(config, "post_norm_eps", 1e-8)) ** 0.5
    added = ("self_attn.o_proj.weight", "self_attn.o_proj.bias", "mlp.down_proj.weight")
    factors = {f"{layer}{name}": growth for layer in layers for name in added}
    multiplier = number(config, "output_multiplier", 26**-0.5)  # 26 times 256 is the usual width
    return Storage(
        names={f"{layer}{own}": f"{layer}{stored}" for layer in layers},
        factors={**factors, spec.final_norm_weight: multiplier},
        norm_offset=1.0,
        plain_norms=("model.norm",),
        bare_norms=("self_attn.q_norm", "self_attn.k_norm"),
        normalised={spec.embedding_weight: spec.norm_eps},
    )


def _turns(config: Config, usual: list[bool]) -> list[bool]:
    """Of each layer whether its queries and keys are turned."""
    thetas = layer_thetas(config, len(usual))
    if thetas is None:
        return usual
    base = said_of_rope(config).get("rope_theta") or config.get("rope_theta") or 10000.0
    others = [theta for theta in thetas if theta not in (0, base)]
    if others:
        raise UnsupportedError(
            f"muse_glimmer checkpoints with a layer_rope_theta of {others[0]:g} are not supported; "
            f"those with 0, or with the rope_theta of all layers, which is {base}, are"
        )
    return [theta != 0 for theta in thetas]


ARCHITECTURE = describe
