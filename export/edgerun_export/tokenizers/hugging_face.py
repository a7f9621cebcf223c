"""Tokenizers of Hugging Face folders: passed through where they can be."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from edgerun.errors import CheckpointError
from edgerun_export.nesting import check_nesting
from edgerun_export.tokenizers import sentencepiece
from edgerun_export.tokenizers.named_tokens import named_tokens, with_named, with_roles
from edgerun_export.tokenizers.vocabulary import dump

ReadFile = Callable[[str], bytes | None]
_ROLES, _ADDED = "special_tokens_map.json", "added_tokens.json"
_PASSED = (_ROLES, "generation_config.json")
_PROCESSOR = ("chat_template.json", "processor_config.json")
_TEKKEN = "tekken.json"


def from_hugging_face(read: ReadFile) -> dict[str, bytes]:
    """Collect a folder's tokenizer.

    ``tokenizer.json`` is passed on byte for byte, unless other files name tokens that it leaves out
    (``named_tokens.py``). A ``chat_template.jinja`` is put into
    ``tokenizer_config.json``, where it wins over the template there, as in transformers. Where
    there is neither, the template of a processor, which reads pictures, is taken
    (``chat_template.json``, ``processor_config.json``; transformers, ``processing_utils.py``).

    Args:
        read: returns a file of the folder by name, or ``None`` where there is none.

    Returns:
        File contents by name; see ``Checkpoint.tokenizer_files``.

    Raises:
        CheckpointError: there is no tokenizer, or a file is not JSON.
        UnsupportedError: only a sentencepiece model is there, of a kind that cannot be converted.
    """
    config_bytes = read("tokenizer_config.json")
    config = _json(config_bytes, "tokenizer_config.json")
    jinja = _text(read("chat_template.jinja"))
    if jinja is None and not config.get("chat_template"):
        jinja = _of_processor(read)
    said = with_roles(config, _json(read(_ROLES), _ROLES))
    files = _tokenizer(read, config, jinja)
    implied = _json(files.get("tokenizer_config.json"), "tokenizer_config.json")
    tokens = named_tokens(said, _json(read(_ADDED), _ADDED))
    files["tokenizer.json"] = with_named(files["tokenizer.json"], tokens, _rows(read))
    whole = implied | said | ({} if jinja is None else {"chat_template": jinja})
    if config_bytes is not None and whole == config:
        files["tokenizer_config.json"] = config_bytes
    elif whole:
        files["tokenizer_config.json"] = dump(whole)
    for name in _PASSED:
        data = read(name)
        if data is not None:
            _json(data, name)
            files[name] = data
    return files


def _tokenizer(read: ReadFile, config: dict[str, Any], jinja: str | None) -> dict[str, bytes]:
    data = read("tokenizer.json")
    if data is not None:
        # Parsed only at the top: the rest may be 30 MB, and is not ours to judge.
        if "model" not in _json(data, "tokenizer.json", dict[str, msgspec.Raw]):
            raise CheckpointError("'tokenizer.json' has no 'model'; it is not a tokenizer")
        return {"tokenizer.json": data}
    pieces = read("tokenizer.model")
    if pieces is None and read(_TEKKEN) is not None:
        raise CheckpointError(
            f"the folder has its tokenizer as {_TEKKEN} alone, which is not read; put "
            "tokenizer.json and tokenizer_config.json beside it, from a copy of the model that has "
            "them, or as transformers.integrations.mistral.convert_tekken_tokenizer makes them"
        )
    if pieces is None:
        raise CheckpointError(
            "the folder has neither tokenizer.json nor tokenizer.model; save the tokenizer with "
            "transformers' save_pretrained first"
        )
    added = _json(read(_ADDED), _ADDED)
    return sentencepiece.convert(pieces, config, added, jinja)


def _rows(read: ReadFile) -> int | None:
    """How many tokens have an embedding; None where config.json does not say it."""
    try:  # as the checkpoint reads it, where numbers may be infinite
        config = json.loads(read("config.json") or b"{}")
    except (ValueError, RecursionError):
        return None
    if not isinstance(config, dict):
        return None
    parts = (config, config.get("text_config"), config.get("llm_config"))
    sizes = (part.get("vocab_size") for part in parts if isinstance(part, dict))
    return next((size for size in sizes if type(size) is int), None)


def _of_processor(read: ReadFile) -> str | None:
    """The template of a processor; None without one."""
    templates = (_json(read(name), name).get("chat_template") for name in _PROCESSOR)
    return next((each for each in templates if isinstance(each, str)), None)


def _json(data: bytes | None, name: str, kind: Any = dict[str, Any]) -> Any:
    """Parse a file's contents; a file that is not there counts as an empty object."""
    if data is None:
        return {}
    try:
        value = msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CheckpointError(f"'{name}' is not the JSON expected: {error}") from error
    check_nesting(value, name)
    return value


def _text(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError("'chat_template.jinja' is not UTF-8") from error
