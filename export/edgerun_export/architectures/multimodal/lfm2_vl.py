"""LFM2-VL and LFM2.5-VL: the text model, beside one part for pictures."""

from __future__ import annotations

from edgerun_export.architectures import lfm2
from edgerun_export.architectures.decoder.multimodal import Multimodal
from edgerun_export.architectures.multimodal.layouts import INSIDE

# transformers, ``modeling_lfm2_vl.py``; nothing there renames them.
ARCHITECTURE = Multimodal(texts={"lfm2": lfm2.describe}, layouts=(INSIDE,), tied=True)
