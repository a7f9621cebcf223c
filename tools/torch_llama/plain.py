"""What a decoder may be that torch computes here; needs no torch."""

from __future__ import annotations

from dataclasses import fields

from edgerun.errors import UnsupportedError
from edgerun_export.architectures import DecoderSpec
from edgerun_export.architectures.decoder.layer import Dense, LayerSpec

# What may differ between plain Llamas; all else of a decoder is as it is unless told.
SIZES = frozenset(
    [
        *("architecture", "hidden_size", "layers", "num_heads", "num_kv_heads", "head_dim"),
        *("vocab_size", "context_length", "norm_eps", "ropes", "tied", "notes", "score_scale"),
    ]
)
PLAIN = {"activation": "silu"}


def check(spec: DecoderSpec) -> None:
    """Raises UnsupportedError for decoders that are more than these functions compute."""
    more = [
        each.name
        for each in fields(spec)
        if each.name not in SIZES and getattr(spec, each.name) != PLAIN.get(each.name, each.default)
    ]
    if not all(map(_is_plain, spec.layers)):
        more.append("layers")
    if more:
        raise UnsupportedError(
            f"this {spec.architecture} is more than a plain Llama ({', '.join(more)}); only those "
            "are trained here"
        )


def _is_plain(layer: LayerSpec) -> bool:
    """Whether a layer is attention to all positions and a gated network."""
    part = layer.feed_forward
    return isinstance(part, Dense) and layer == LayerSpec(Dense(part.width), rope=layer.rope)
