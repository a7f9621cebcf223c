"""Granite 3 with experts beside a network that all tokens go through."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures.decoder.fields import natural
from edgerun_export.architectures.decoder.layer import Experts, SharedExpert
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.experts import granitemoe

_MAX_WIDTH = 1 << 24
_MODULE = "shared_mlp"


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``granitemoeshared``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = replace(granitemoe.describe(config), architecture="granitemoeshared")
    width = natural(config, "shared_intermediate_size", 0, limit=_MAX_WIDTH)
    if width == 0:
        return spec
    shared = SharedExpert(width, _MODULE, gate="")
    parts = [
        replace(part, shared=shared)
        for layer in spec.layers
        if isinstance(part := layer.feed_forward, Experts)
    ]
    # Short names of a layer with experts are those of the network beside them.
    joined = {
        f"{_MODULE}.input_linear": ("gate_proj", "up_proj"),
        f"{_MODULE}.output_linear": ("down_proj",),
    }
    return replace(spec.with_feed_forward(parts), storage=replace(spec.storage, joined=joined))


ARCHITECTURE = describe
