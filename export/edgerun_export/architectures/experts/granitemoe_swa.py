"""Granite 3 with experts, windows and sinks, and ropes that differ from layer to layer."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures.decoder.layer import Experts
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.experts import granitemoeshared
from edgerun_export.architectures.scaled.granite_swa import with_sinks


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``granitemoe_swa``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = with_sinks(granitemoeshared.describe(config), config)
    parts = [
        replace(part, router="router")  # other kinds of Granite call it router.layer
        for layer in spec.layers
        if isinstance(part := layer.feed_forward, Experts)
    ]
    return replace(spec.with_feed_forward(parts), architecture="granitemoe_swa")


ARCHITECTURE = describe
