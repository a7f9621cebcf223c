"""Phi-3, Phi-3.5 and Phi-4 mini: joined projections, partial rope, and rope for long texts.

Long rope has one set of divisors for texts within the original context and another for longer ones
(Ding et al. 2024). A bundle has the first, and that context.
"""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import number, positive
from edgerun_export.architectures.decoder.rope import long_rope, partial
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage

_JOINED = {
    "self_attn.qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "mlp.gate_up_proj": ("gate_proj", "up_proj"),
}

_ORIGINAL = "original_max_position_embeddings"
_ROPE = ("rope_parameters", "rope_scaling", "partial_rotary_factor")


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``phi3``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = llama.describe({**config, **dict.fromkeys(_ROPE)})
    if config.get("sliding_window") is not None:
        spec = spec.with_windows([positive(config, "sliding_window")] * spec.num_layers)
    # What the class says, even where the parameters of the rope say something else.
    original = positive(config, _ORIGINAL, 4096)
    turned, context = long_rope({**config, _ORIGINAL: original}, spec.head_dim)
    turned, head_rows = partial(turned, spec.head_dim)
    notes: tuple[str, ...] = ()
    if context < spec.context_length:
        notes = (
            f"the context is {context} tokens: for longer ones, up to {spec.context_length}, this "
            "model has another rotary embedding, and a bundle has one",
        )
    return replace(
        spec,
        architecture="phi3",
        context_length=min(context, spec.context_length),
        norm_eps=number(config, "rms_norm_eps", 1e-5),
        ropes=(turned,),
        biases=frozenset(),
        storage=Storage(joined=_JOINED, head_rows=head_rows),
        notes=notes,
    )


ARCHITECTURE = describe
