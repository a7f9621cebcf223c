"""Gemma 3n as it is released: the text model, beside parts for pictures and sound."""

from __future__ import annotations

from edgerun_export.architectures.decoder.multimodal import PICTURES_AND_SOUND, Multimodal
from edgerun_export.architectures.gemma import gemma3n_text
from edgerun_export.architectures.gemma.parts import WITH_SOUND

ARCHITECTURE = Multimodal(
    texts={"gemma3n_text": gemma3n_text.describe},
    layouts=(WITH_SOUND,),
    tied=True,
    left_out=PICTURES_AND_SOUND,
)
