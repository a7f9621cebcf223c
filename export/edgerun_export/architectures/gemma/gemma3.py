"""Gemma 3 4B, 12B and 27B as they are released: the text model, beside one part for pictures."""

from __future__ import annotations

from edgerun_export.architectures.decoder.multimodal import Multimodal
from edgerun_export.architectures.gemma import gemma3_text
from edgerun_export.architectures.multimodal.layouts import BESIDE, INSIDE

ARCHITECTURE = Multimodal(
    texts={"gemma3_text": gemma3_text.describe},
    layouts=(BESIDE, INSIDE),
    tied=True,
)
