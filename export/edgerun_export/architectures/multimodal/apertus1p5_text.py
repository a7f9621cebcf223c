"""Apertus 1.5's text model by itself: Apertus, whose head may have fewer rows than its embedding.

Rows of the embedding behind the head's stand for pieces of pictures and sound (Swiss AI 2026).
"""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import CheckpointError
from edgerun_export.architectures.decoder.fields import positive
from edgerun_export.architectures.decoder.multimodal import PICTURES_AND_SOUND, Layout, Multimodal
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.dense import apertus

INSIDE = Layout("model.language_model.", ("model.vision_tokenizer.", "model.audio_tokenizer."))
_ALONE = Layout("model.", ())
_ROWS = "output_vocab_size"


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``apertus1p5_text``.

    Tokens without a row in the head are none that a text has, so they are left out.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = replace(apertus.describe(config), architecture="apertus1p5_text")
    stored = spec.vocab_size
    count = positive(config, _ROWS, stored, limit=stored)
    if count == stored:
        return spec
    if spec.tied:
        raise CheckpointError(
            f"config.json: '{_ROWS}' is {count} of {stored} tokens, and the head is the embedding, "
            "which has a row for each; expected one or the other"
        )
    rows = {spec.embedding_weight: stored}
    return replace(spec, vocab_size=count, storage=replace(spec.storage, rows=rows))


# transformers 5.24 reads both (``conversion_mapping.py``, ``apertus1p5_text``).
ARCHITECTURE = Multimodal(
    texts={"apertus1p5_text": describe},
    layouts=(_ALONE, INSIDE),
    left_out=PICTURES_AND_SOUND,
    is_flat=True,
)
