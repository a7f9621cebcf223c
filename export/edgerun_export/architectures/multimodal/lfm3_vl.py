"""LFM3-VL: the text model, beside one part for pictures and films."""

from __future__ import annotations

from edgerun_export.architectures import lfm3
from edgerun_export.architectures.decoder.multimodal import Multimodal
from edgerun_export.architectures.multimodal.layouts import INSIDE

# transformers, ``modeling_lfm3_vl.py``; nothing there renames them.
ARCHITECTURE = Multimodal(texts={"lfm3": lfm3.describe}, layouts=(INSIDE,), tied=True)
