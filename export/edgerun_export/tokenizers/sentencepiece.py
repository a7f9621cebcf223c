"""Sentencepiece models (``tokenizer.model``) that come without a ``tokenizer.json``.

Field numbers: ``sentencepiece_model.proto`` of https://github.com/google/sentencepiece.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.tokenizers import spm
from edgerun_export.tokenizers.protobuf import fields, float32, signed
from edgerun_export.tokenizers.vocabulary import Kind, Vocabulary

_BPE = 2
_MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
_MAX_PIECES = 1 << 20
# How transformers finds an added token in text. Whether it is normalised first does not count: the
# only normaliser here is the space in front, which is not one of the token's.
_MATCHING = ("lstrip", "rstrip", "single_word")
# Field numbers, per message.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE_TEXT, _PIECE_SCORE, _PIECE_TYPE = 1, 2, 3
_MODEL_TYPE, _UNK, _BOS, _EOS, _PAD = 3, 40, 41, 42, 43
_CHARSMAP, _DUMMY_PREFIX, _SQUEEZE = 2, 3, 4


@dataclass(frozen=True, slots=True)
class Model:
    """A parsed model.

    Attributes:
        pieces: (text, score, kind), by id.
        trainer: integer fields of the trainer's settings, by number.
        normalizer: fields of the normaliser's settings, by number.
    """

    pieces: list[tuple[str, float, int]]
    trainer: Mapping[int, int]
    normalizer: Mapping[int, int | bytes]


@dataclass(frozen=True, slots=True)
class _Added:
    """A token that transformers adds; see ``Vocabulary`` for ``matching``."""

    index: int
    text: str
    kind: Kind = Kind.USER_DEFINED
    matching: Mapping[str, bool] = field(default_factory=dict)


def parse(data: bytes) -> Model:
    """Parse a ``tokenizer.model``.

    Raises:
        CheckpointError: it is truncated or damaged.
    """
    pieces: list[tuple[str, float, int]] = []
    trainer: dict[int, int] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in fields(data):
        if number not in (_PIECES, _TRAINER, _NORMALIZER) or not isinstance(value, bytes):
            continue
        if number == _PIECES:
            if len(pieces) >= _MAX_PIECES:
                raise CheckpointError(f"the sentencepiece model has more than {_MAX_PIECES} pieces")
            pieces.append(_piece(value))
        elif number == _TRAINER:
            trainer.update((key, signed(item)) for key, item in fields(value) if type(item) is int)
        else:
            normalizer.update(fields(value))
    if not pieces:
        raise CheckpointError("'tokenizer.model' holds no pieces; it is not a sentencepiece model")
    return Model(pieces, trainer, normalizer)


def _piece(data: bytes) -> tuple[str, float, int]:
    values: dict[int, int | bytes] = dict(fields(data))
    text = values.get(_PIECE_TEXT, b"")
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else ""
    except UnicodeDecodeError as error:
        raise CheckpointError("the sentencepiece model has a piece that is not UTF-8") from error
    score = float32(values.get(_PIECE_SCORE, bytes(4)))
    return decoded, score, signed(values.get(_PIECE_TYPE, int(Kind.NORMAL)))


def convert(
    data: bytes, config: Mapping[str, Any], added: Mapping[str, Any], template: str | None
) -> dict[str, bytes]:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` for a sentencepiece model.

    The other files would say by the model alone which tokens begin and end texts, where the
    checkpoint's own files may say otherwise.

    Args:
        data: ``tokenizer.model``.
        config: ``tokenizer_config.json``; its ``added_tokens_decoder``, ``add_*_token``,
            ``add_prefix_space`` and ``legacy`` count.
        added: ``added_tokens.json``: further texts and their ids.
        template: chat template.

    Raises:
        CheckpointError: it is damaged, or ids of added tokens leave holes.
        UnsupportedError: it is not BPE, or normalises text in ways that cannot be carried over.
    """
    model = parse(data)
    _require_plain_bpe(model)
    # User-defined pieces are looked for in the text as it is, where spaces are spaces.
    texts = [
        text.replace(spm.SPACE, " ") if kind == Kind.USER_DEFINED else text
        for text, _, kind in model.pieces
    ]
    kinds = [kind for _, _, kind in model.pieces]
    scores = [score for _, score, _ in model.pieces]
    additions = _added(config, added)
    for token in additions:
        _put(texts, kinds, scores, token)
    bos, eos = _role(model, _BOS, 1, len(texts)), _role(model, _EOS, 2, len(texts))
    vocabulary = Vocabulary(
        texts,
        kinds,
        bos=bos,
        eos=eos,
        unk=_role(model, _UNK, 0, len(texts)),
        pad=_role(model, _PAD, -1, len(texts)),
        add_bos=bool(config.get("add_bos_token", True)) and bos is not None,
        add_eos=bool(config.get("add_eos_token", False)) and eos is not None,
        chat_template=template,
        matching={token.index: token.matching for token in additions},
    )
    said = config.get("add_prefix_space")
    prefix = bool(model.normalizer.get(_DUMMY_PREFIX, 1) if said is None else said)
    files = spm.build(vocabulary, scores, prefix=prefix, once=config.get("legacy") is False)
    return {name: files[name] for name in ("tokenizer.json", "tokenizer_config.json")}


def _require_plain_bpe(model: Model) -> None:
    kind = model.trainer.get(_MODEL_TYPE, 1)
    if kind != _BPE:
        raise UnsupportedError(
            f"'tokenizer.model' is of type {_MODEL_TYPES.get(kind, kind)}; without a "
            "tokenizer.json only bpe can be converted: add the model's tokenizer.json"
        )
    if model.normalizer.get(_CHARSMAP) or model.normalizer.get(_SQUEEZE, 1):
        raise UnsupportedError(
            "'tokenizer.model' normalises text (a character map or removal of spaces); add the "
            "model's tokenizer.json"
        )


def _role(model: Model, number: int, default: int, count: int) -> int | None:
    index = model.trainer.get(number, default)
    return index if 0 <= index < count else None


def _added(config: Mapping[str, Any], added: Mapping[str, Any]) -> list[_Added]:
    """Tokens that transformers adds, by id."""
    listed = config.get("added_tokens_decoder")
    rows: dict[int, _Added] = {}
    try:
        for text, index in added.items():
            rows[int(index)] = _Added(int(index), text)
        for key, entry in (listed or {}).items():
            kind = Kind.CONTROL if entry.get("special") else Kind.USER_DEFINED
            matching = {name: bool(entry.get(name)) for name in _MATCHING}
            rows[int(key)] = _Added(int(key), str(entry["content"]), kind, matching)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            "the added tokens in tokenizer_config.json or added_tokens.json are not of the form "
            "expected"
        ) from error
    return [rows[index] for index in sorted(rows)]


def _put(texts: list[str], kinds: list[int], scores: list[float], token: _Added) -> None:
    if 0 <= token.index < len(texts):
        texts[token.index], kinds[token.index] = token.text, token.kind
    elif token.index == len(texts):
        texts.append(token.text)
        kinds.append(token.kind)
        scores.append(0.0)
    else:
        raise CheckpointError(
            f"added token '{token.text[:60]}' has id {token.index}, but the next free one is "
            f"{len(texts)}"
        )
