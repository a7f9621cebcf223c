"""Apertus 1.5 8B as it is released: the text model, beside parts for pictures and sound."""

from __future__ import annotations

from edgerun_export.architectures.decoder.multimodal import PICTURES_AND_SOUND, Multimodal
from edgerun_export.architectures.multimodal.apertus1p5_text import INSIDE, describe

ARCHITECTURE = Multimodal(
    texts={"apertus1p5_text": describe}, layouts=(INSIDE,), left_out=PICTURES_AND_SOUND
)
