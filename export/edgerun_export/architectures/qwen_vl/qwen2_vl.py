"""Qwen2-VL as it is released: the text model, beside one part for pictures and videos.

Releases have the keys of the text model in ``config.json`` itself; transformers writes them into
``text_config`` (``configuration_qwen2_vl.py``).
"""

from __future__ import annotations

from edgerun_export.architectures.decoder.multimodal import Multimodal
from edgerun_export.architectures.qwen_vl.layouts import AS_RELEASED, INSIDE
from edgerun_export.architectures.qwen_vl.text import of_qwen2

ARCHITECTURE = Multimodal(
    texts={"qwen2_vl_text": of_qwen2}, layouts=(AS_RELEASED, INSIDE), is_flat=True
)
