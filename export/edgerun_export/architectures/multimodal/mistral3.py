"""Mistral Small 3.1 and what comes from it, Ministral 3: the text model, beside pictures.

The text model is ``mistral`` in Mistral Small 3.1 and what comes from it, and ``ministral3`` in
what comes from Ministral 3 (transformers, ``convert_mistral3_weights_to_hf.py`` and
``convert_ministral3_weights_to_hf.py``). Of the former no key says whether head and embedding are
one, and the head is stored; of the latter ``text_config`` says it.
"""

from __future__ import annotations

from edgerun_export.architectures import ministral3, mistral
from edgerun_export.architectures.decoder.multimodal import Multimodal
from edgerun_export.architectures.multimodal.layouts import BESIDE, INSIDE

ARCHITECTURE = Multimodal(
    texts={"mistral": mistral.without_types, "ministral3": ministral3.describe},
    layouts=(BESIDE, INSIDE),
    tied=True,
)
