"""The text model of a checkpoint that has parts for pictures and sound beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from edgerun.errors import CheckpointError
from edgerun_export.architectures.decoder.fields import section
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec

_TEXT = "model.language_model."
_OTHERS = (
    "model.vision_tower.",
    "model.vision_embedder.",
    "model.embed_vision.",
    "model.audio_tower.",
    "model.audio_embedder.",
    "model.embed_audio.",
)
LEFT_OUT = "its parts for pictures and sound are left out"


def text_part(
    config: Config, architecture: str, decoder: Callable[[Config], DecoderSpec]
) -> DecoderSpec:
    """Describes the decoder of ``text_config``, whose tensors have a prefix of their own.

    Args:
        config: keys of config.json.
        architecture: the model_type.
        decoder: describes the text model by what the keys of ``text_config`` say.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    text = section(config, "text_config")
    if not text:
        raise CheckpointError(
            f"config.json: a {architecture} has an object 'text_config', and there is none"
        )
    spec = decoder({"tie_word_embeddings": config.get("tie_word_embeddings"), **text})
    names = {
        name: f"{_TEXT}{spec.storage.names.get(name, name).removeprefix('model.')}"
        for name in spec.tensors()
        if name.startswith("model.")
    }
    unused = tuple(f"{_TEXT}{name.removeprefix('model.')}" for name in spec.storage.unused)
    storage = replace(spec.storage, names=names, unused=(*unused, *_OTHERS))
    return replace(spec, architecture=architecture, storage=storage, notes=(*spec.notes, LEFT_OUT))
