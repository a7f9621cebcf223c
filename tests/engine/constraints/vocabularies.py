"""Vocabularies of a few tokens, choosers for them, and replies by logits of a rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.engine.chooser.chooser import Chooser
from edgerun.engine.chooser.params import SamplingParams
from edgerun.errors import ChooserError

EOS = 0
PROMPT = [1]
PARTS = ("a", "b", "ab", "é", "☃", "\n", "/", '"', " ")


@dataclass(eq=False)
class Spelled:
    """Tokens that are spelled out.

    Attributes:
        tokens: bytes of each id.
        control_ids: of tokens that are no text.
        eos_ids: of those that end a reply.
        hidden_ids: of those that give no text.
    """

    tokens: Sequence[bytes]
    control_ids: frozenset[int] = frozenset()
    eos_ids: tuple[int, ...] = ()
    hidden_ids: frozenset[int] = field(default_factory=frozenset)

    @property
    def vocab_size(self) -> int:
        return len(self.tokens)

    def token_bytes(self, id_: int) -> bytes:
        return self.tokens[id_] if 0 <= id_ < len(self.tokens) else b""


def logits_behind(ids: Sequence[int], vocab_size: int) -> NDArray[np.float32]:
    """What a model would compute: it depends on every id before."""
    random = np.random.default_rng([len(ids), *ids])
    return random.normal(0, 3, vocab_size).astype(np.float32)


def reply(
    chooser: Chooser,
    vocab_size: int,
    stop_ids: Sequence[int],
    most: int,
    watch: Callable[[list[int], NDArray[np.float32]], None] = lambda ids, logits: None,
) -> tuple[list[int], bool]:
    """Draws a reply of at most so many ids; and whether it was ended before that.

    ``watch`` sees the ids and the logits before each draw.
    """
    ids: list[int] = []
    while len(ids) < most and not chooser.is_complete:
        logits = logits_behind(ids, vocab_size)
        watch(ids, logits)
        id_ = chooser.draw(logits)
        if id_ in stop_ids:
            return ids, True
        chooser.accept(id_)
        ids.append(id_)
    return ids, chooser.is_complete


def chooser_for(vocabulary: Any, stop_ids: Sequence[int] = (), **options: Any) -> Chooser:
    params = SamplingParams(**options).with_vocabulary(vocabulary)
    return Chooser(params, PROMPT, vocabulary.vocab_size, stop_ids=stop_ids)


def spelled(extra: list[bytes]) -> Spelled:
    """All bytes of ``PARTS``, other tokens, some of them twice, and one that ends replies."""
    single = sorted({bytes([byte]) for byte in "".join(PARTS).encode()})
    tokens = [b"<end>", *single, *extra, b"", b"<x>"]
    controls = frozenset({EOS, len(tokens) - 1})
    return Spelled(tokens, controls, (EOS,), controls)


def states(chooser: Chooser, vocab_size: int) -> Any:
    """All that can be seen of a chooser."""
    try:
        distribution = chooser.distribution(logits_behind([], vocab_size))
    except ChooserError as error:
        return str(error), chooser.is_complete
    return distribution.ids.tolist(), distribution.probabilities.tolist(), chooser.is_complete
