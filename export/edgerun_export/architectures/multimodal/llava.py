"""LLaVA 1.5 and what is stored like it, such as Pixtral 12B: the text model, beside pictures."""

from __future__ import annotations

from edgerun_export.architectures import llama, mistral, qwen2
from edgerun_export.architectures.decoder.multimodal import Multimodal
from edgerun_export.architectures.multimodal.layouts import BESIDE, INSIDE

ARCHITECTURE = Multimodal(
    texts={"llama": llama.describe, "mistral": mistral.without_types, "qwen2": qwen2.describe},
    layouts=(BESIDE, INSIDE),
)
