"""What a ``tokenizer.json`` would have the tokenizers library do, read before the library does it.

Steps that each write a thousand characters for one multiply what they are given. The steps are few,
so what each makes of a text is bounded by what the file says of it
(https://huggingface.co/docs/tokenizers/components). Such files are refused with a reason; what they
could do nevertheless the sandbox limits. The same bounds tell how few tokens a text can have.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from edgerun.errors import BundleError
from edgerun.model.text.detokenizer import BYTE_SPELLING
from edgerun.values import shown

MAX_GROWTH = 1 << 14  # bytes for one; SentencePiece's own rules come to 33, and steps multiply
MAX_ADDED_BYTES = 1 << 18  # of an added token when normalised, which loading does
MAX_AFFIX_BYTES = 64

# Bytes that a step makes of one at most, and of how many it makes one at most; None for any
# number. Those of Unicode were counted over all characters and their decompositions.
STEPS: Mapping[str, tuple[int, float | None]] = {
    "NFC": (3, 3.0),
    "NFD": (3, 3.0),
    "NFKC": (11, 4.0),
    "NFKD": (11, 4.0),
    "Lowercase": (2, 3.0),
    "StripAccents": (1, None),
    "Strip": (1, None),
    "Nmt": (1, None),
    "BertNormalizer": (9, None),
    "Metaspace": (6, 1.0),
    "Split": (1, 1.0),
    "Digits": (1, 1.0),
    "Punctuation": (1, 1.0),
    "UnicodeScripts": (1, 1.0),
    "BertPreTokenizer": (1, None),
    "CharDelimiterSplit": (1, None),
    "FixedLength": (1, None),
    "Whitespace": (1, None),
    "WhitespaceSplit": (1, None),
    "ByteLevel": (3, 1.0),
}
CUTTING = ("Split", "Digits", "Punctuation", "UnicodeScripts", "ByteLevel")


class _Model(msgspec.Struct):
    type: str | None = None
    byte_fallback: bool | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None


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
        spelled: how every byte that no other token covers is spelled in the vocabulary, by
            ``"ByteLevel"`` or ``"ByteFallback"``; None where text may be dropped, or any length
            of it may become one unknown token.
        changes_text: whether steps do more than cut a text and spell its bytes.
    """

    growth: int = 1
    shrinkage: float | None = 1.0
    spelled: str | None = None
    changes_text: bool = False

    def span(self, vocabulary: Collection[str], added: Iterable[str]) -> Span | None:
        """How much text a token can stand for.

        A token stands for no more bytes than it is long, but for what steps before it shrink.

        Args:
            vocabulary: how the tokens of the model are spelled.
            added: tokens beside it that text can give.

        Returns:
            None where one token may stand for any length of text.
        """
        if self.shrinkage is None or self.spelled is None:
            return None
        if self.spelled == "ByteLevel":
            dropped = bytes(
                byte for spelling, byte in BYTE_SPELLING.items() if spelling not in vocabulary
            )
            longest = max(map(len, vocabulary), default=0)
        else:
            dropped = bytes(byte for byte in range(256) if f"<0x{byte:02X}>" not in vocabulary)
            longest = max((len(token.encode()) for token in vocabulary), default=0)
        # Bytes that are in no token are dropped, which is known of the text's own bytes alone.
        if dropped and (self.spelled != "ByteLevel" or self.changes_text):
            return None
        longest = max([longest, 1, *(len(token.encode()) for token in added)])
        return Span(self.shrinkage * longest, dropped)


class Span(NamedTuple):
    """How much text a token can stand for.

    Attributes:
        size: the most bytes, spaces and those that are dropped aside.
        dropped: bytes of text that may give no token, in any number.
    """

    size: float
    dropped: bytes

    def fewest_tokens(self, text: str) -> int:
        """A bound from below of the tokens of a text without spaces."""
        encoded = text.encode("utf-8", "surrogatepass")
        return math.ceil(len(encoded.translate(None, self.dropped)) / self.size)


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
    changes_text = not all(step.get("type") in CUTTING for step in steps)
    return TextBounds(growth, shrinkage, _spelled(file.model, steps), changes_text)


def _flat(step: Any, key: str) -> list[Mapping[str, Any]]:
    if step is None:
        return []
    if step.get("type") == "Sequence":
        return [inner for entry in step.get(key) or () for inner in _flat(entry, key)]
    return [step]


def _check_model(model: _Model) -> None:
    for affix in (model.continuing_subword_prefix, model.end_of_word_suffix):
        if affix and len(affix.encode()) > MAX_AFFIX_BYTES:
            raise BundleError(
                f"tokenizer.json puts {len(affix.encode())} bytes to every piece of a word; "
                f"at most {MAX_AFFIX_BYTES} make sense"
            )


def _check_added(tokens: list[_AddedToken], growth: int) -> None:
    sizes = [_bytes(token.content) * growth for token in tokens if token.normalized]
    if max(sizes, default=0) > MAX_ADDED_BYTES:
        raise BundleError(
            f"tokenizer.json makes up to {max(sizes)} bytes of an added token; at most "
            f"{MAX_ADDED_BYTES} make sense"
        )


def _sizes(step: Mapping[str, Any]) -> tuple[int, float | None]:
    """Bytes that a step makes of one at most, and of how many it makes one; None for any."""
    kind = str(step.get("type"))
    if kind == "Replace":
        return _replacing(step.get("pattern"), _bytes(step.get("content")))
    if kind == "Prepend":  # to every part of a text between added tokens
        return 1 + _bytes(step.get("prepend")), 1.0
    if kind == "Precompiled":
        return _longest_rule(step.get("precompiled_charsmap")), None
    if kind not in STEPS:  # the library would take it for another one with the same fields
        raise BundleError(
            f"tokenizer.json has a step of type {shown(kind)}; known are "
            f"Precompiled, Prepend, Replace, {', '.join(STEPS)}"
        )
    growth, shrinkage = STEPS[kind]
    return growth, None if str(step.get("behavior")).lower() == "removed" else shrinkage


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
