"""ERNIE 4.5 without experts (0.3B): Llama with neighbours in a head turned together."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import flag, number
from edgerun_export.architectures.decoder.rope import partial, rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``ernie4_5``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    tied = flag(config, "tie_word_embeddings", True)
    spec = llama.describe({"head_dim": 128, **config, "tie_word_embeddings": tied})
    turning = rope(config, spec.head_dim, default_theta=500000.0)
    turning, head_rows = partial(turning, spec.head_dim, interleaved=True)
    biases = dict.fromkeys(("attention_bias", "mlp_bias"), flag(config, "use_bias"))
    return replace(
        spec,
        architecture="ernie4_5",
        norm_eps=number(config, "rms_norm_eps", 1e-5),
        ropes=(turning,),
        biases=declared_biases(biases),
        storage=Storage(head_rows=head_rows),
    )


ARCHITECTURE = describe
