"""Model architectures: one file per ``model_type``, each a function from config.json to a spec."""

from edgerun_export.architectures.decoder.layer import Experts, Projection, Rope
from edgerun_export.architectures.decoder.spec import DecoderSpec
from edgerun_export.architectures.registry import architecture_names, describe, text_keys

__all__ = [
    "DecoderSpec",
    "Experts",
    "Projection",
    "Rope",
    "architecture_names",
    "describe",
    "text_keys",
]
