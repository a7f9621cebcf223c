"""Text models of Qwen3.5 without experts, by themselves (0.8B to 27B)."""

from __future__ import annotations

from edgerun_export.architectures.decoder.multimodal import Layout, Multimodal
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.linear.parts import hybrid
from edgerun_export.architectures.qwen_vl.layouts import INSIDE

ALONE = Layout("model.", ())


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``qwen3_5_text``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    return hybrid(config, "qwen3_5_text")


# transformers 5.24 reads both (``conversion_mapping.py``, ``qwen3_5_text``).
ARCHITECTURE = Multimodal(texts={"qwen3_5_text": describe}, layouts=(ALONE, INSIDE), is_flat=True)
