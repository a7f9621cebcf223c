"""LLaVA 1.6 (NeXT): LLaVA with a vector for the end of each row of pictures.

Not for a text model of Granite, as Granite Vision 3 has: transformers does not divide logits there
by ``logits_scaling``, other runtimes do.
"""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures.multimodal import llava
from edgerun_export.architectures.multimodal.layouts import BESIDE, INSIDE

# transformers 5.24, ``conversion_mapping.py``, ``llava_next``.
ARCHITECTURE = replace(
    llava.ARCHITECTURE,
    layouts=(
        replace(BESIDE, others=(*BESIDE.others, "image_newline")),
        replace(INSIDE, others=(*INSIDE.others, "model.image_newline")),
    ),
)
