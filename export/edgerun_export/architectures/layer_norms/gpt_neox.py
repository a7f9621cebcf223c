"""GPT-NeoX and Pythia 14M to 12B: joined projections, parts beside each other (2022, 2023)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures.decoder.fields import flag
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import picked_in_turns, stored_modules
from edgerun_export.architectures.layer_norms.parts import QKV, described, turned_in_part, ungated

_PREFIX = "gpt_neox."
_MODULES = {
    "self_attn.o_proj": "attention.dense",
    "mlp.up_proj": "mlp.dense_h_to_4h",
    "mlp.down_proj": "mlp.dense_4h_to_h",
}
# What checkpoints hold that follows from the configuration.
_BUFFERS = ("attention.bias", "attention.masked_bias", "attention.rotary_emb.")


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``gpt_neox``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    own = {"num_key_value_heads": None, "head_dim": None}
    spec = ungated(described({**config, **own}, "gpt_neox"), config, "gelu")
    spec = turned_in_part(spec, _with_usual_keys(config), 0.25)
    of_attention = (*QKV, "o_proj") if flag(config, "attention_bias", True) else ()
    of_heads = [(name, spec.head_dim) for name in QKV]
    names = {spec.embedding_weight: "model.embed_in.weight"}
    names |= {f"model.norm.{kind}": f"model.final_layer_norm.{kind}" for kind in ("weight", "bias")}
    names |= stored_modules(spec.num_layers, _MODULES)
    layers = [f"{_PREFIX}layers.{layer}." for layer in range(spec.num_layers)]
    return replace(
        spec,
        biases=frozenset((*of_attention, "up_proj", "down_proj")),
        norm_biases=True,
        parallel=flag(config, "use_parallel_residual", True),
        storage=replace(
            spec.storage,
            names=names,
            picked=picked_in_turns("attention.query_key_value", spec.num_heads, of_heads),
            unused=tuple(f"{layer}{buffer}" for layer in layers for buffer in _BUFFERS),
            prefix=_PREFIX,
            head="embed_out.weight",
        ),
    )


def _with_usual_keys(config: Config) -> Config:
    """The configuration with what it says of the rope under the names that others have.

    Those names themselves mean nothing beside the parameters of the rope.
    """
    return {
        **config,
        "rope_theta": config.get("rotary_emb_base"),
        "partial_rotary_factor": config.get("rotary_pct"),
    }


ARCHITECTURE = describe
