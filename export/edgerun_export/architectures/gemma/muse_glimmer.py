"""Muse Glimmer 30B as it is released: the text model, beside a part for pictures and videos."""

from __future__ import annotations

from edgerun_export.architectures.decoder.multimodal import Layout, Multimodal
from edgerun_export.architectures.gemma.muse_glimmer_text import describe

# transformers 5.24 saves it so, and renames nothing that it reads.
_INSIDE = Layout(
    "model.language_model.",
    ("model.vision_tower.", "model.vision_adapter.", "model.vision_projection."),
)

ARCHITECTURE = Multimodal(texts={"muse_glimmer_text": describe}, layouts=(_INSIDE,))
