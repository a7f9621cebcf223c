"""InternVL 3 and 3.5 as transformers stores them (``-hf``): the text model, beside pictures."""

from __future__ import annotations

from edgerun_export.architectures import llama, qwen2, qwen3
from edgerun_export.architectures.decoder.multimodal import Multimodal
from edgerun_export.architectures.multimodal.layouts import BESIDE, INSIDE

ARCHITECTURE = Multimodal(
    texts={"qwen2": qwen2.describe, "qwen3": qwen3.describe, "llama": llama.describe},
    layouts=(BESIDE, INSIDE),
)
