"""GLM-4 9B and GLM Edge: neighbours in a part of each head are turned together."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import flag, number
from edgerun_export.architectures.decoder.rope import partial, rope_of_part
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage

_ROPE = ("rope_parameters", "rope_scaling", "partial_rotary_factor")
_QKV = ("q_proj", "k_proj", "v_proj")


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``glm``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = llama.describe({"head_dim": 128, **config, **dict.fromkeys(_ROPE)})
    turning = rope_of_part(config, spec.head_dim, 0.5)
    turning, head_rows = partial(turning, spec.head_dim, interleaved=True)
    return replace(
        spec,
        architecture="glm",
        norm_eps=number(config, "rms_norm_eps", 1.5625e-7),
        ropes=(turning,),
        biases=frozenset(_QKV if flag(config, "attention_bias", True) else ()),
        storage=Storage(joined={"mlp.gate_up_proj": ("gate_proj", "up_proj")}, head_rows=head_rows),
    )


ARCHITECTURE = describe
