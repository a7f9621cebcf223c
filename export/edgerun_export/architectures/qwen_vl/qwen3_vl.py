"""Qwen3-VL as it is released: the text model, beside one part for pictures and videos.

That part adds to the residual stream behind the first layers, too (DeepStack), where there is a
picture.
"""

from __future__ import annotations

from edgerun_export.architectures.decoder.multimodal import Multimodal
from edgerun_export.architectures.qwen_vl.layouts import INSIDE
from edgerun_export.architectures.qwen_vl.text import of_qwen3

ARCHITECTURE = Multimodal(texts={"qwen3_vl_text": of_qwen3}, layouts=(INSIDE,))
