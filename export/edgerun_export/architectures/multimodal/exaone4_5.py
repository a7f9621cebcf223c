"""EXAONE 4.5 33B as it is released: the text model, beside a part for pictures and videos."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures.decoder.multimodal import Multimodal
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import MTP_LEFT_OUT, Storage
from edgerun_export.architectures.decoder.usual_texts import USUAL
from edgerun_export.architectures.dense import exaone4
from edgerun_export.architectures.qwen_vl.layouts import INSIDE


def _text(config: Config) -> DecoderSpec:
    """EXAONE 4.0's decoder, beside layers that predict several tokens.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    # The first configurations call it exaone4_5_text, which leaves out the same sizes.
    spec = exaone4.describe({**USUAL["exaone4"], **config})
    storage = Storage(unused=("mtp.",), said_of_unused={"mtp.": MTP_LEFT_OUT})
    return replace(spec, storage=storage)


ARCHITECTURE = Multimodal(texts={"exaone4": _text, "exaone4_5_text": _text}, layouts=(INSIDE,))
