"""A Llama whose config.json has other names."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec


def describe(config: Config) -> DecoderSpec:
    renamed = {"hidden_size": config["width"], "num_hidden_layers": config["depth"]}
    return replace(llama.describe({**config, **renamed}), architecture="toylm")


ARCHITECTURE = describe
