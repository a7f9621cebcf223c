"""Gemma 4 as it is released: the text model, beside parts for pictures and sound."""

from __future__ import annotations

from edgerun_export.architectures.decoder.multimodal import PICTURES_AND_SOUND, Multimodal
from edgerun_export.architectures.gemma import gemma4_text
from edgerun_export.architectures.gemma.parts import WITH_SOUND

ARCHITECTURE = Multimodal(
    texts={"gemma4_text": gemma4_text.describe},
    layouts=(WITH_SOUND,),
    tied=True,
    left_out=PICTURES_AND_SOUND,
)
