"""Model folders that another exporter wrote: described by ``genai_config.json``, no manifest.

They run on whichever back-end takes the graph, onnxruntime's only if it is named. Nothing vouches
for their files, so sizes and digests are taken as found; all other checks stay.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from edgerun.errors import BundleError, UnsupportedError
from edgerun.files.plain import is_plain_name
from edgerun.model.bundle_files import GENAI_CONFIG, read_unlisted
from edgerun.model.manifest import FORMAT, FORMAT_VERSION, FileEntry, Manifest, ModelConfig

TEXT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "config.json",
    "generation_config.json",
    "chat_template.jinja",
    GENAI_CONFIG,
)


class _Decoder(msgspec.Struct):
    filename: str
    num_hidden_layers: int
    num_key_value_heads: int
    head_size: int
    num_attention_heads: int = 0
    hidden_size: int = 0


class _Model(msgspec.Struct):
    decoder: _Decoder
    vocab_size: int
    context_length: int
    type: str = "unknown"
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    embedding: Any = None


class _GenaiConfig(msgspec.Struct):
    model: _Model


@dataclass(frozen=True, slots=True)
class ForeignModel:
    """What was found in a folder.

    Attributes:
        manifest: as if the folder had one.
        name: of the model file.
        data: its content.
    """

    manifest: Manifest
    name: str
    data: bytes


def read_foreign(folder: Path) -> ForeignModel:
    """Describes a folder by its ``genai_config.json``.

    Raises:
        BundleError: the configuration is damaged, or a file is not a plain one of the folder.
        UnsupportedError: the model consists of several graphs.
    """
    path = folder / GENAI_CONFIG
    try:
        model = msgspec.json.decode(read_unlisted(path, alone=True), type=_GenaiConfig).model
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError(f"{path} is damaged: {error}") from error
    if model.embedding is not None:
        raise UnsupportedError(
            f"{folder} holds several graphs (type '{model.type}'): only single decoders run"
        )
    decoder, eos = model.decoder, model.eos_token_id
    config = ModelConfig(
        architecture=model.type,
        context_length=model.context_length,
        hidden_size=decoder.hidden_size,
        intermediate_size=0,
        num_layers=decoder.num_hidden_layers,
        num_heads=decoder.num_attention_heads or decoder.num_key_value_heads,
        num_kv_heads=decoder.num_key_value_heads,
        head_dim=decoder.head_size,
        vocab_size=model.vocab_size,
        bos_token_id=model.bos_token_id,
        eos_token_ids=() if eos is None else tuple(eos) if isinstance(eos, list) else (eos,),
        pad_token_id=model.pad_token_id,
    )
    name = decoder.filename
    if not is_plain_name(name):
        raise BundleError(
            f"{path} names the model '{name}': only a file in the same folder is allowed"
        )
    present = [text for text in TEXT_FILES if os.path.lexists(folder / text)]
    contents = {file: read_unlisted(folder / file, alone=True) for file in (*present, name)}
    files = {file: _entry(data) for file, data in contents.items()}
    return ForeignModel(Manifest(FORMAT, FORMAT_VERSION, files, config), name, contents[name])


def _entry(data: bytes) -> FileEntry:
    return FileEntry(hashlib.sha256(data).hexdigest(), len(data))
