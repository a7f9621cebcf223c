"""Gemma 3 4B, 12B and 27B as they are released: the text model, beside one part for pictures."""

from __future__ import annotations

from edgerun_export.architectures.decoder.layouts import BESIDE, INSIDE
from edgerun_export.architectures.decoder.multimodal import Multimodal
from edgerun_export.architectures.decoder.spec import Config
from edgerun_export.architectures.gemma import gemma3_text

# Of transformers' Gemma3TextConfig: what config.json of 4B leaves out, and of 12B in part. The
# others are those of ``gemma3_text``.
_USUAL: Config = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
}

ARCHITECTURE = Multimodal(
    texts={"gemma3_text": gemma3_text.describe},
    layouts=(BESIDE, INSIDE),
    tied=True,
    defaults={"gemma3_text": _USUAL},
)
