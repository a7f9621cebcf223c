"""What a ``tokenizer.json`` would have the tokenizers library do, read before the library does it.

A small file can describe endless work: steps that each write a thousand characters for one, or
affixes that are put to every piece. The steps are few and known, so what each makes of a text is
bounded by what the file says of it (https://huggingface.co/docs/tokenizers/components). The same
bounds tell how few tokens a text can have.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from edgerun.errors import BundleError

MAX_GROWTH = 1 << 14  # bytes for one; SentencePiece's own rules come to 33, and steps multiply
MAX_ADDED_BYTES = 1 << 18  # of an added token when normalised, which loading does
MAX_STEPS = 64
MAX_AFFIX_BYTES = 64
MAX_WORD_CHARACTERS = 1000  # of WordPiece, whose time is quadratic in it; usual is 100
MAX_TOKEN_CHARACTERS = 4096  # of Unigram, whose time is proportional to it

# A repeated group, or so many repetitions that they may follow each other.
REPEATED = re.compile(r"\)[*+{]|(?:[*+][^|]*){5}")
# Bytes that a step makes of one at most, and of how many it makes one at most; None for any
# number. Those of Unicode were counted over all characters and their decompositions.
NORMALIZERS: Mapping[str, tuple[int, float | None]] = {
    "NFC": (3, 3.0),
    "NFD": (3, 3.0),
    "NFKC": (11, 4.0),
    "NFKD": (11, 4.0),
    "Lowercase": (2, 3.0),
    "ByteLevel": (2, 1.0),
    "StripAccents": (1, None),
    "Strip": (1, None),
    "Nmt": (1, None),
    "BertNormalizer": (9, None),
}
# Steps that drop nothing of a text, and what they make of a byte.
PRE_TOKENIZERS: Mapping[str, int] = {
    "ByteLevel": 3,
    "Metaspace": 6,
    "Split": 1,
    "Digits": 1,
    "Punctuation": 1,
    "UnicodeScripts": 1,
}


class _Model(msgspec.Struct):
    type: str | None = None
    vocab: msgspec.Raw = msgspec.Raw(b"{}")
    byte_fallback: bool | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None
    max_input_chars_per_word: int | None = None


class _AddedToken(msgspec.Struct):
    content: Any = None
    normalized: Any = None


class _File(msgspec.Struct):
    model: _Model
    added_tokens: list[_AddedToken] | None = None
    normalizer: Any = None
    pre_tokenizer: Any = None


@dataclass(frozen=True, slots=True)
class TextBounds:
    """How a tokenizer's steps can change the size of a text.

    Attributes:
        growth: bytes that they make of one at most.
        shrinkage: of how many bytes they make one at most; None for any number.
        backtracks: an expression in them may take very long for a short text.
        spelled: how every byte that no other token covers is spelled in the vocabulary, by
            ``"ByteLevel"`` or ``"ByteFallback"``; None where text may be dropped, or any length
            of it may become one unknown token.
    """

    growth: int = 1
    shrinkage: float | None = 1.0
    spelled: str | None = None
    backtracks: bool = False


def check_tokenizer_json(text: str) -> TextBounds:
    """Checks that a tokenizer does what those of language models do.

    Raises:
        BundleError: it is none, or would multiply text or work.
    """
    try:
        file = msgspec.json.decode(text, type=_File)
        steps = [
            *_flat(file.normalizer, "normalizers"),
            *_flat(file.pre_tokenizer, "pretokenizers"),
        ]
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError, AttributeError) as error:
        raise BundleError(f"tokenizer.json cannot be read: {error}") from error
    if len(steps) > MAX_STEPS:
        raise BundleError(f"tokenizer.json has {len(steps)} steps; at most {MAX_STEPS} make sense")
    _check_model(file.model)
    sizes = [_sizes(step) for step in steps]
    growth = math.prod(grown for grown, _ in sizes)
    if growth > MAX_GROWTH:
        raise BundleError(
            f"tokenizer.json makes up to {growth} bytes of one; at most {MAX_GROWTH} make sense"
        )
    _check_added(file.added_tokens or [], growth)
    shrinkage: float | None = 1.0
    for _, shrunk in sizes:
        shrinkage = None if shrinkage is None or shrunk is None else shrinkage * shrunk
    backtracks = any(REPEATED.search(_expression(step)) for step in steps)
    return TextBounds(growth, shrinkage, _spelled(file.model, steps), backtracks)


def _flat(step: Any, key: str) -> list[Mapping[str, Any]]:
    if step is None:
        return []
    if step.get("type") == "Sequence":
        return [each for entry in step.get(key) or () for each in _flat(entry, key)]
    return [step]


def _check_model(model: _Model) -> None:
    for affix in (model.continuing_subword_prefix, model.end_of_word_suffix):
        if affix and len(affix.encode()) > MAX_AFFIX_BYTES:
            raise BundleError(
                f"tokenizer.json puts {len(affix.encode())} bytes to every piece of a word; "
                f"at most {MAX_AFFIX_BYTES} make sense"
            )
    if (model.max_input_chars_per_word or 0) > MAX_WORD_CHARACTERS:
        raise BundleError(
            f"tokenizer.json takes words of {model.max_input_chars_per_word} characters apart; "
            f"at most {MAX_WORD_CHARACTERS} make sense"
        )
    if model.type == "Unigram":
        try:
            vocab = msgspec.json.decode(model.vocab, type=list[tuple[str, float]])
        except msgspec.MsgspecError as error:
            raise BundleError(f"tokenizer.json cannot be read: {error}") from error
        longest = max((len(token) for token, _ in vocab), default=0)
        if longest > MAX_TOKEN_CHARACTERS:
            raise BundleError(
                f"tokenizer.json has a token of {longest} characters; "
                f"at most {MAX_TOKEN_CHARACTERS} make sense"
            )


def _check_added(tokens: list[_AddedToken], growth: int) -> None:
    sizes = [_bytes(token.content) * growth for token in tokens if token.normalized]
    if max(sizes, default=0) > MAX_ADDED_BYTES:
        raise BundleError(
            f"tokenizer.json makes up to {max(sizes)} bytes of an added token; at most "
            f"{MAX_ADDED_BYTES} make sense"
        )


def _expression(step: Mapping[str, Any]) -> str:
    pattern = step.get("pattern")
    return str(pattern.get("Regex") or "") if isinstance(pattern, Mapping) else ""


def _sizes(step: Mapping[str, Any]) -> tuple[int, float | None]:
    """Bytes that a step makes of one at most, and of how many it makes one; None for any."""
    kind = str(step.get("type"))
    if kind == "Replace":
        return _replacing(step.get("pattern"), _bytes(step.get("content")))
    if kind == "Prepend":  # to every part of a text between added tokens
        return 1 + _bytes(step.get("prepend")), 1.0
    if kind == "Precompiled":
        return _longest_rule(step.get("precompiled_charsmap")), None
    if kind in PRE_TOKENIZERS and step.get("behavior", "").lower() != "removed":
        return PRE_TOKENIZERS[kind], 1.0
    return NORMALIZERS.get(kind, (1, None))


def _replacing(pattern: Any, content: int) -> tuple[int, float | None]:
    text = pattern.get("String") if isinstance(pattern, Mapping) else pattern
    size = _bytes(text)
    if not size:  # an expression may match nothing, before every character
        return 1 + content, None
    return max(1, math.ceil(content / size)), max(1.0, size / content) if content else None


def _bytes(text: Any) -> int:
    return len(text.encode("utf-8", "surrogatepass")) if isinstance(text, str) else 0


def _longest_rule(charsmap: Any) -> int:
    """Bytes of the longest replacement in SentencePiece's rules (its ``normalizer.cc``)."""
    if not isinstance(charsmap, str):
        return 1
    try:
        blob = base64.b64decode(charsmap)
    except (binascii.Error, ValueError) as error:
        raise BundleError(f"tokenizer.json has rules that are no base64: {error}") from error
    trie_bytes = int.from_bytes(blob[:4], "little")
    return max(1, *map(len, blob[4 + trie_bytes :].split(b"\0")))


def _spelled(model: _Model, steps: list[Mapping[str, Any]]) -> str | None:
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        return None
    if model.type == "BPE" and any(step.get("type") == "ByteLevel" for step in steps):
        return "ByteLevel"
    if model.type in ("BPE", "Unigram") and model.byte_fallback:
        return "ByteFallback"
    return None
