"""Phi-1, 1.5 and 2: both parts of a layer read the same norm, biases everywhere (2023)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import stored_modules
from edgerun_export.architectures.layer_norms.parts import QKV, described, turned_in_part, ungated

_MODULES = {
    "self_attn.o_proj": "self_attn.dense",
    "mlp.up_proj": "mlp.fc1",
    "mlp.down_proj": "mlp.fc2",
}


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``phi``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = ungated(described(config, "phi"), config, "gelu_new")
    spec = turned_in_part(spec, config, 0.5)
    last = {f"model.norm.{kind}": f"model.final_layernorm.{kind}" for kind in ("weight", "bias")}
    names = {**last, **stored_modules(spec.num_layers, _MODULES)}
    return replace(
        spec,
        biases=frozenset((*QKV, "o_proj", "up_proj", "down_proj")),
        head_bias=True,
        norm_biases=True,
        parallel=True,
        feed_forward_norm=spec.input_norm,
        storage=replace(spec.storage, names=names),
    )


ARCHITECTURE = describe
