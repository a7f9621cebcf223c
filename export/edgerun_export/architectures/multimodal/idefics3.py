"""Idefics 3, the first SmolVLM, Granite Docling: a Llama, beside one part for pictures."""

from __future__ import annotations

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.multimodal import Layout, Multimodal

# transformers, ``modeling_idefics3.py`` and ``modeling_smolvlm.py``; nothing there renames them.
ARCHITECTURE = Multimodal(
    texts={"llama": llama.describe},
    layouts=(Layout("model.text_model.", ("model.vision_model.", "model.connector.")),),
)
