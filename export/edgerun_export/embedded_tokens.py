"""The ids of a tokenizer, which need a row each in the model's embedding."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from edgerun.errors import CheckpointError
from edgerun.values import shown
from edgerun_export.architectures import DecoderSpec
from edgerun_export.bundle_files import parse_object
from edgerun_export.tokenizers.named_tokens import named_tokens

_MAX_IDS = 1 << 31
_TOKENIZER, _CONFIG = "tokenizer.json", "tokenizer_config.json"
_NEEDED = ("bos_token", "eos_token", "chat_template")


def with_embeddings(
    spec: DecoderSpec, files: Mapping[str, bytes]
) -> tuple[dict[str, bytes], list[str]]:
    """The files of a tokenizer all of whose tokens have an embedding.

    Added tokens behind the embedding's last row, which no text model is ever given, are left out:
    Gemma 3's smaller models come with the tokenizer of those that see pictures, whose token for one
    is the first that has no row. Those that begin or end texts, or stand in the chat template,
    would be missed.

    Returns:
        the files, and warnings where something was left out.

    Raises:
        CheckpointError: it has no vocabulary, an id is none, or words of its own have no embedding.
    """
    tokenizer = parse_object(_TOKENIZER, files[_TOKENIZER])
    settings = parse_object(_CONFIG, files.get(_CONFIG, b"{}"))
    needed = [json.dumps(settings.get(key), ensure_ascii=False) for key in _NEEDED]
    behind = _without_embedding(spec, tokenizer)
    names = [name for name in behind if not any(name in text for text in needed)]
    fitting = {**files, **_without_tokens(names, files)} if names else dict(files)
    _check_vocabulary(spec, parse_object(_TOKENIZER, fitting[_TOKENIZER]))
    lost = _unlisted(settings, tokenizer, names)
    warnings = [f"tokens of the tokenizer are without a row in the embedding, {_left_out(names)}"]
    others = [
        f"tokens that {_CONFIG} names have no id in the model's vocabulary, {_left_out(lost)}"
    ]
    return fitting, warnings * bool(names) + others * bool(lost)


def _left_out(names: Sequence[str]) -> str:
    others = f" and {len(names) - 3} others" if len(names) > 3 else ""
    return f"and left out: {', '.join(names[:3])}{others}"


def vocabulary_size(tokenizer: Mapping[str, Any]) -> int:
    """Returns one more than the largest id of a tokenizer.json.

    Raises:
        CheckpointError: there is no vocabulary in it, or an id is none.
    """
    try:
        vocabulary = tokenizer["model"]["vocab"]
        # Unigram models have a list of [piece, score] instead of a mapping to ids.
        ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
        added = [token["id"] for token in tokenizer.get("added_tokens") or []]
    except (KeyError, TypeError) as error:
        raise CheckpointError("tokenizer.json holds no vocabulary that can be read") from error
    size = 0
    for number in (*ids, *added):
        if type(number) is not int or not 0 <= number < _MAX_IDS:
            raise CheckpointError(
                f"tokenizer.json gives a token the id {shown(number)}; expected a whole number "
                f"from 0 to {_MAX_IDS - 1}"
            )
        size = max(size, number + 1)
    return size


def _without_embedding(spec: DecoderSpec, tokenizer: Mapping[str, Any]) -> list[str]:
    vocabulary_size(tokenizer)  # which checks the ids
    vocabulary = tokenizer["model"]["vocab"]
    own = vocabulary if isinstance(vocabulary, dict) else _pieces(vocabulary)
    added = tokenizer.get("added_tokens") or []
    behind = [token.get("content") for token in added if token["id"] >= spec.vocab_size]
    return [text for text in behind if isinstance(text, str) and text not in own]


def _unlisted(
    settings: Mapping[str, Any], tokenizer: Mapping[str, Any], but: Collection[str]
) -> list[str]:
    """Tokens that tokenizer_config.json names and tokenizer.json has not, but those in ``but``."""
    vocabulary = tokenizer["model"]["vocab"]
    texts = {*(vocabulary if isinstance(vocabulary, dict) else _pieces(vocabulary))}
    texts |= {token.get("content") for token in tokenizer.get("added_tokens") or []}
    names = [each.text for each in named_tokens(settings, {})]
    return [name for name in names if name and name not in texts and name not in but]


def _pieces(vocabulary: Iterable[Any]) -> set[str]:
    """The pieces of a Unigram model; what else stands among them is nobody's token."""
    pieces = (each[0] for each in vocabulary if isinstance(each, list) and each)
    return {piece for piece in pieces if isinstance(piece, str)}


def _without_tokens(names: Collection[str], files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a tokenizer that name added tokens, without some of them."""
    tokenizer = parse_object(_TOKENIZER, files[_TOKENIZER])
    added = tokenizer["added_tokens"]
    tokenizer["added_tokens"] = [token for token in added if token.get("content") not in names]
    changed = {_TOKENIZER: tokenizer}
    config = parse_object(_CONFIG, files.get(_CONFIG, b"{}"))
    described = config.get("added_tokens_decoder")
    if isinstance(described, dict):
        config["added_tokens_decoder"] = {
            id_: token
            for id_, token in described.items()
            if not (isinstance(token, dict) and token.get("content") in names)
        }
        changed[_CONFIG] = config
    return {name: json.dumps(value, ensure_ascii=False).encode() for name, value in changed.items()}


def _check_vocabulary(spec: DecoderSpec, tokenizer: Mapping[str, Any]) -> None:
    """Checks that the model has an embedding for every token.

    Raises:
        CheckpointError: the tokenizer knows more ids.
    """
    size = vocabulary_size(tokenizer)
    if size > spec.vocab_size:
        raise CheckpointError(
            f"the tokenizer has {size} tokens and the model's embedding {spec.vocab_size} rows; "
            "they do not belong together"
        )
