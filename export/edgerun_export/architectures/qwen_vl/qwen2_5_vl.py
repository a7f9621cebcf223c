"""Qwen2.5-VL as it is released: stored as Qwen2-VL is, with the same text model."""

from __future__ import annotations

from edgerun_export.architectures.decoder.multimodal import Multimodal
from edgerun_export.architectures.qwen_vl.layouts import AS_RELEASED, INSIDE
from edgerun_export.architectures.qwen_vl.text import of_qwen2

ARCHITECTURE = Multimodal(
    texts={"qwen2_5_vl_text": of_qwen2}, layouts=(AS_RELEASED, INSIDE), is_flat=True
)
