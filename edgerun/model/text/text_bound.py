"""How few tokens a text can have: what decides about a long prompt before it is encoded.

Only tokenizers that spell every byte have such a bound. A token then stands for no more bytes of
text than it is long, but for what steps before it shrink.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from edgerun.model.text.detokenizer import BYTE_SPELLING
from edgerun.model.text.tokenizer_check import TextBounds


def longest_span(
    bounds: TextBounds, vocabulary: Collection[str], added: Iterable[str]
) -> float | None:
    """The most bytes of text, spaces aside, that one token can stand for.

    Args:
        bounds: of the tokenizer's steps.
        vocabulary: how its tokens are spelled.
        added: tokens beside it that text can give.

    Returns:
        the number, or None where one token may stand for any length of text.
    """
    if bounds.shrinkage is None or bounds.spelled is None:
        return None
    if bounds.spelled == "ByteLevel":
        complete = all(character in vocabulary for character in BYTE_SPELLING)
        longest = max(map(len, vocabulary), default=0)
    else:
        complete = all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
        longest = max((len(token.encode()) for token in vocabulary), default=0)
    if not complete:
        return None
    return bounds.shrinkage * max([longest, 1, *(len(token.encode()) for token in added)])


def solid_bytes(text: str) -> int:
    """Bytes of a text without the spaces between its words, which tokens may swallow."""
    return sum(len(word.encode("utf-8", "surrogatepass")) for word in text.split())
