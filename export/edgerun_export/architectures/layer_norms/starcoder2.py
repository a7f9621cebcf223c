"""StarCoder2 3B, 7B and 15B: networks without a gate, biases everywhere (Lozhkov et al. 2024)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures.decoder.fields import flag, positive
from edgerun_export.architectures.decoder.rope import rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage, stored_modules
from edgerun_export.architectures.layer_norms.parts import QKV, described, ungated

_MODULES = {"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"}


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``starcoder2``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = described(config, "starcoder2", epsilon="norm_epsilon")
    if config.get("sliding_window") is not None:
        spec = spec.with_windows([positive(config, "sliding_window")] * spec.num_layers)
    every = (*QKV, "o_proj", "up_proj", "down_proj")
    return replace(
        ungated(spec, config, "gelu_pytorch_tanh"),
        ropes=(rope(config, spec.head_dim),),
        tied=flag(config, "tie_word_embeddings", True),
        biases=frozenset(every if flag(config, "use_bias", True) else ()),
        norm_biases=True,
        storage=Storage(names=stored_modules(spec.num_layers, _MODULES)),
    )


ARCHITECTURE = describe
