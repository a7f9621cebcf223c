"""Mistral Small 3.1, what comes from it, 4, and Ministral 3: the text model, beside pictures.

The text model is ``mistral`` in Mistral Small 3.1 and what comes from it, ``mistral4`` in Mistral
Small 4, and ``ministral3`` in what comes from Ministral 3 (transformers,
``convert_mistral3_weights_to_hf.py`` and ``convert_ministral3_weights_to_hf.py``). Of the first no
key says whether head and embedding are one, and the head is stored; of the last ``text_config``
says it.
"""

from __future__ import annotations

from edgerun_export.architectures import ministral3, mistral
from edgerun_export.architectures.decoder.multimodal import Multimodal
from edgerun_export.architectures.deepseek import mistral4
from edgerun_export.architectures.multimodal.layouts import BESIDE, INSIDE

ARCHITECTURE = Multimodal(
    texts={
        "mistral": mistral.without_types,
        "ministral3": ministral3.describe,
        "mistral4": mistral4.describe,
    },
    layouts=(BESIDE, INSIDE),
    tied=True,
)
