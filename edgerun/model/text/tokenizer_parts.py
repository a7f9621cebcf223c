"""What the tokenizers library takes for granted in a ``tokenizer.json``, and panics without.

A panic is caught, but it has already written its trace to the user's terminal; what can be seen
without reading whole vocabularies is refused before. And a step whose type the library does not
know it takes for another one with the same fields, so that nothing said of steps by their type
would hold (https://huggingface.co/docs/tokenizers/components).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from edgerun.errors import BundleError


class Part(NamedTuple):
    """Steps of one kind: where a sequence has its steps, and the types there are."""

    sequence: str
    types: frozenset[str]


def _types(names: str) -> frozenset[str]:
    return frozenset(names.split())


PARTS: Mapping[str, Part] = {
    "normalizer": Part(
        "normalizers",
        _types(
            "BertNormalizer ByteLevel Lowercase NFC NFD NFKC NFKD Nmt Precompiled Prepend Replace "
            "Strip StripAccents"
        ),
    ),
    "pre_tokenizer": Part(
        "pretokenizers",
        _types(
            "BertPreTokenizer ByteLevel CharDelimiterSplit Digits FixedLength Metaspace "
            "Punctuation Split UnicodeScripts Whitespace WhitespaceSplit"
        ),
    ),
    "post_processor": Part(
        "processors", _types("BertProcessing ByteLevel RobertaProcessing TemplateProcessing")
    ),
    "decoder": Part(
        "decoders",
        _types("BPEDecoder ByteFallback ByteLevel CTC Fuse Metaspace Replace Strip WordPiece"),
    ),
}
Step = Mapping[str, Any]
LOOK_AROUND = re.compile(r"\(\?<?[=!][^()]*\)")  # parts of an expression that match no character


class _Model(msgspec.Struct):
    type: str | None = None
    vocab: msgspec.Raw = msgspec.Raw(b"{}")
    unk_token: str | None = None


class _File(msgspec.Struct):
    model: _Model
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    post_processor: dict[str, Any] | None = None
    decoder: dict[str, Any] | None = None


def check_parts(text: str) -> None:
    """Checks that all steps are of types that there are, and have what the library relies on.

    Raises:
        BundleError: one is not, or has not.
    """
    try:
        file = msgspec.json.decode(text, type=_File)
        for name, part in PARTS.items():
            for step in _steps(name, part, getattr(file, name)):
                RULES.get(step["type"], _anything)(step)
        _check_model(file.model)
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError) as error:
        raise BundleError(f"tokenizer.json cannot be read: {error}") from error


def _steps(name: str, part: Part, step: object) -> Iterator[Step]:
    if step is None:
        return
    kind = step.get("type") if isinstance(step, Mapping) else None
    if isinstance(step, Mapping) and kind == "Sequence":
        entries = step.get(part.sequence)
        if not isinstance(entries, list):
            raise BundleError(f"tokenizer.json has a {name} sequence without '{part.sequence}'")
        for entry in entries:
            yield from _steps(name, part, entry)
    elif isinstance(step, Mapping) and isinstance(kind, str) and kind in part.types:
        yield step
    else:
        raise BundleError(
            f"tokenizer.json has a {name} of type {kind!r}; expected one of "
            f"{', '.join(sorted(part.types))}"
        )


def _anything(step: Step) -> None:
    """Whatever else is wrong with a step, the library says without a panic."""


def _check_precompiled(step: Step) -> None:
    """SentencePiece's rules: a table's size in bytes, the table, and text (spm_precompiled)."""
    try:
        rules = base64.b64decode(step["precompiled_charsmap"], validate=True)
        table_bytes = int.from_bytes(rules[:4], "little")
        whole = len(rules) >= 4 + table_bytes and table_bytes and table_bytes % 4 == 0
        rules[4 + table_bytes :].decode("utf-8")
    except (KeyError, TypeError, ValueError, binascii.Error):
        whole = False
    if not whole:
        raise BundleError("tokenizer.json has a Precompiled normalizer whose rules are damaged")


def _check_replace(step: Step) -> None:
    pattern = step.get("pattern")
    texts = pattern.values() if isinstance(pattern, Mapping) else ()
    if any(isinstance(text, str) and not LOOK_AROUND.sub("", text) for text in texts):
        raise BundleError("tokenizer.json replaces an empty text; expected at least one character")


def _check_fixed_length(step: Step) -> None:
    length = step.get("length")
    if type(length) is int and length < 1:
        raise BundleError(f"tokenizer.json cuts text into pieces of {length}; expected 1 or more")


def _check_template(step: Step) -> None:
    known = step.get("special_tokens")
    for side in ("single", "pair"):
        entries = step.get(side)
        for piece in entries if isinstance(entries, list) else ():
            token = piece.get("SpecialToken") if isinstance(piece, Mapping) else None
            name = token.get("id") if isinstance(token, Mapping) else None
            if isinstance(name, str) and (not isinstance(known, Mapping) or name not in known):
                raise BundleError(
                    f"tokenizer.json puts the token {name!r} around a text and does not say its id"
                )


RULES: Mapping[str, Callable[[Step], None]] = {
    "Precompiled": _check_precompiled,
    "Replace": _check_replace,
    "FixedLength": _check_fixed_length,
    "TemplateProcessing": _check_template,
}


def _check_model(model: _Model) -> None:
    if model.type in ("WordPiece", "WordLevel"):
        vocab = msgspec.json.decode(model.vocab, type=dict[str, Any])
        if model.unk_token not in vocab:
            raise BundleError(
                f"tokenizer.json names {model.unk_token!r} for unknown words, "
                "which its vocabulary does not have"
            )
