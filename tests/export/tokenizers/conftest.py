"""Small vocabularies to convert."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

SPACE = "\u2581"


def spm_reference(text: str, pieces: Sequence[str], scores: Sequence[float]) -> list[str]:
    """Sentencepiece's merging as ``encode`` in llama2.c's run.c does it: best neighbours first.

    Characters that are no piece stay as they are; the tests draw none.
    """
    ranks = dict(zip(pieces, scores, strict=True))
    symbols = list(SPACE + text.replace(" ", SPACE)) if text else []
    while True:
        best, where = None, -1
        for index in range(len(symbols) - 1):
            score = ranks.get(symbols[index] + symbols[index + 1])
            if score is not None and (best is None or score > best):
                best, where = score, index
        if best is None:
            return symbols
        symbols[where : where + 2] = [symbols[where] + symbols[where + 1]]


def random_pieces(seed: int, alphabet: str = "ab" + SPACE, merges: int = 12) -> list[str]:
    """A vocabulary as training would make it: letters, then concatenations of earlier pieces."""
    draw = random.Random(seed)
    pieces = list(alphabet)
    while len(pieces) < len(alphabet) + merges:
        merged = draw.choice(pieces) + draw.choice(pieces)
        if merged not in pieces:
            pieces.append(merged)
    return pieces


@pytest.fixture
def reference() -> Callable[..., list[str]]:
    return spm_reference


@pytest.fixture
def make_pieces() -> Callable[..., list[str]]:
    return random_pieces
