"""Qwen3-VL with experts as it is released: likewise."""

from __future__ import annotations

from edgerun_export.architectures.decoder.multimodal import Multimodal
from edgerun_export.architectures.qwen_vl.layouts import INSIDE
from edgerun_export.architectures.qwen_vl.text import of_qwen3_moe

ARCHITECTURE = Multimodal(texts={"qwen3_vl_moe_text": of_qwen3_moe}, layouts=(INSIDE,))
