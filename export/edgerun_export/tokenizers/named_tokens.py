"""Tokens that the files beside a tokenizer.json name, and that it leaves out itself.

transformers adds them as it loads a tokenizer (``tokenization_utils_base.py``, ``from_pretrained``,
and ``tokenization_utils_tokenizers.py``, ``__init__``): those with an id first, in the order of
their ids, and then those that have a role. A token of the vocabulary keeps its id, any other gets
the next free one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from edgerun.errors import CheckpointError

_ROLES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_LISTS = ("extra_special_tokens", "additional_special_tokens")
_DECODER = "added_tokens_decoder"
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_TOKENS = "added_tokens"


@dataclass(frozen=True, slots=True)
class NamedToken:
    """A token that a file names.

    Attributes:
        text: as it stands in texts.
        index: its id, where that is said.
        flags: how it is searched for, as tokenizer.json has it; what is not said is usual.
    """

    text: str
    index: int | None = None
    flags: Mapping[str, bool] = field(default_factory=dict)


def with_roles(config: Mapping[str, Any], roles: Mapping[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json with the roles of special_tokens_map.json, as transformers has them.

    Those count more, but only where tokenizer_config.json does not list added tokens.
    """
    if _DECODER in config:
        return dict(config)
    said = {key: value for key, value in roles.items() if key.endswith("_token") or key in _LISTS}
    changed = {key: value for key, value in said.items() if _text(config.get(key)) != _text(value)}
    return {**config, **changed}


def named_tokens(config: Mapping[str, Any], added: Mapping[str, Any]) -> list[NamedToken]:
    """All tokens that files beside tokenizer.json name, in the order in which they get ids.

    Args:
        config: tokenizer_config.json.
        added: added_tokens.json, which counts where ``config`` does not list added tokens.

    Raises:
        CheckpointError: tokens or ids are not of the form expected.
    """
    roles = {token.text: token for token in _roles(config)}
    tokens = {token.text: token for token in _with_ids(config, added)}
    for text, token in tokens.items():
        if text in roles:
            tokens[text] = NamedToken(text, token.index, {**token.flags, "special": True})
    return [*tokens.values(), *(token for text, token in roles.items() if text not in tokens)]


def with_named(data: bytes, tokens: Sequence[NamedToken], rows: int | None) -> bytes:
    """tokenizer.json with those tokens that it leaves out; the same bytes where there are none.

    A token is left out if the model has no row for it, or if it would get another id than the one
    that is said.

    Args:
        data: tokenizer.json.
        tokens: that files name, in the order in which they get ids.
        rows: of the model's embedding; None if that is not known.
    """
    parts = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    listed = _decoded(parts.get(_TOKENS)) or []
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        return data  # which is not judged here
    texts = {each.get("content") for each in listed}
    missing = [token for token in tokens if token.text and token.text not in texts]
    vocabulary = _vocabulary(_decoded(parts.get("model"))) if missing else None
    if vocabulary is None:
        return data
    numbers = (each["id"] + 1 for each in listed if type(each.get("id")) is int)
    free = max(len(vocabulary), max(numbers, default=0))
    more: list[dict[str, Any]] = []
    for token in missing:
        index = vocabulary.get(token.text, free)
        fits = type(index) is int and (rows is None or index < rows)
        if fits and token.index in (None, index):
            more.append(_entry(token, index))
            free = max(free, index + 1)
    if not more:
        return data
    parts[_TOKENS] = msgspec.Raw(msgspec.json.encode([*listed, *more]))
    return msgspec.json.encode(parts)


def _entry(token: NamedToken, index: int) -> dict[str, Any]:
    special = token.flags.get("special", True)
    usual = {**dict.fromkeys(_FLAGS, False), "normalized": not special, "special": special}
    return {"id": index, "content": token.text, **usual, **token.flags}


def _with_ids(config: Mapping[str, Any], added: Mapping[str, Any]) -> list[NamedToken]:
    listed = config.get(_DECODER)
    tokens: list[NamedToken] = []
    try:
        for key, value in (listed or {}).items():
            flags = {name: bool(value[name]) for name in _FLAGS if name in value}
            tokens.append(NamedToken(str(value["content"]), int(key), {"special": False, **flags}))
        if listed is None:
            tokens += [
                NamedToken(text, int(id_), {"special": False}) for text, id_ in added.items()
            ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            "the added tokens in tokenizer_config.json or added_tokens.json are not of the form "
            "expected"
        ) from error
    return sorted(tokens, key=lambda token: token.index or 0)


def _roles(config: Mapping[str, Any]) -> Iterator[NamedToken]:
    others = [key for key in config if key.endswith("_token") and key not in _ROLES]
    values = [config.get(key) for key in (*_ROLES, *others)]
    more = next((config[key] for key in _LISTS if config.get(key)), ())
    values += more.values() if isinstance(more, Mapping) else more if isinstance(more, list) else ()
    for value in values:
        text = _text(value)
        if isinstance(text, str):
            said = value if isinstance(value, Mapping) else {}
            flags = {name: bool(said[name]) for name in _FLAGS if name in said}
            yield NamedToken(text, flags={**flags, "special": True})


def _text(value: Any) -> Any:
    """The text of a token that may be described by an object, and what is none as it is."""
    return value.get("content") if isinstance(value, Mapping) else value


def _decoded(part: msgspec.Raw | None) -> Any:
    return None if part is None else msgspec.json.decode(part)


def _vocabulary(model: Any) -> Mapping[str, Any] | None:
    """The ids of a model's tokens; None where it has none that can be read."""
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    if isinstance(vocabulary, list):  # of Unigram: pieces with scores
        pieces = [each[0] if isinstance(each, list) and each else None for each in vocabulary]
        return {piece: index for index, piece in enumerate(pieces) if isinstance(piece, str)}
    return vocabulary if isinstance(vocabulary, dict) else None
