"""Helium 1 2B: Llama with neighbours in a head turned together (Kyutai 2025)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import number
from edgerun_export.architectures.decoder.rope import partial, rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``helium``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = llama.describe({"head_dim": 128, **config})
    turning = rope(config, spec.head_dim, default_theta=100000.0)
    turning, head_rows = partial(turning, spec.head_dim, interleaved=True)
    return replace(
        spec,
        architecture="helium",
        norm_eps=number(config, "rms_norm_eps", 1e-8),
        ropes=(turning,),
        biases=spec.biases - {"o_proj"},
        storage=Storage(head_rows=head_rows),
    )


ARCHITECTURE = describe
