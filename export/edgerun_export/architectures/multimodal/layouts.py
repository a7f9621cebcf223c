"""How tensors are named in checkpoints that several architectures with pictures have in common.

Sources: transformers 5.24, ``conversion_mapping.py``, ``llava`` and ``LlavaModel``: what it reads
and, unless ``save_original_format=False``, writes is ``BESIDE``, what it computes with ``INSIDE``.
Releases of Gemma 3, Mistral Small 3.1 and LLaVA are named as ``BESIDE`` (mergekit,
``_data/architectures/gemma3vl.json`` and ``mistral3.json``).
"""

from __future__ import annotations

from edgerun_export.architectures.decoder.multimodal import Layout

BESIDE = Layout(
    "language_model.model.",
    ("vision_tower.", "multi_modal_projector."),
    "language_model.lm_head.weight",
)
INSIDE = Layout(
    "model.language_model.",
    ("model.vision_tower.", "model.multi_modal_projector."),
)
