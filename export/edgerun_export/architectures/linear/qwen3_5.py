"""Qwen3.5 as it is released: the text model, beside one part for pictures and videos."""

from __future__ import annotations

from edgerun_export.architectures.decoder.multimodal import Multimodal
from edgerun_export.architectures.linear.qwen3_5_text import describe
from edgerun_export.architectures.qwen_vl.layouts import INSIDE

ARCHITECTURE = Multimodal(texts={"qwen3_5_text": describe}, layouts=(INSIDE,))
