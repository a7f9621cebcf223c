"""Qwen3.5 with experts as it is released: likewise."""

from __future__ import annotations

from edgerun_export.architectures.decoder.multimodal import Multimodal
from edgerun_export.architectures.linear.qwen3_5_moe_text import describe
from edgerun_export.architectures.qwen_vl.layouts import INSIDE

ARCHITECTURE = Multimodal(texts={"qwen3_5_moe_text": describe}, layouts=(INSIDE,))
