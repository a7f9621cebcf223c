"""How well a text is predicted, without logits of a whole vocabulary in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun_export.architectures import DecoderSpec
from edgerun_export.source.weights import SourceWeights
from edgerun_export.verify.numpy_ends import predicted_parts

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cost:
    """How well a text is predicted that weights were not fitted to.

    Attributes:
        name: of the text.
        tokens: that were predicted.
        bytes: UTF-8 bytes that they spell.
        source_nats: sum of ``-ln p`` by the source's weights.
        nats: by quantised ones, with the source's embedding and head.
    """

    name: str
    tokens: int
    bytes: int
    source_nats: float
    nats: float

    @property
    def source_bits_per_byte(self) -> float:
        """Bits per byte with the source's weights."""
        return self.source_nats / math.log(2) / self.bytes

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte with quantised weights."""
        return self.nats / math.log(2) / self.bytes


class _Softmax:
    """Sums of ``exp(logits)`` of rows, as parts of the vocabulary come by."""

    def __init__(self, rows: int) -> None:
        self._highest = np.full(rows, -np.inf)
        self._total = np.zeros(rows)

    def add(self, logits: F32) -> tuple[F64, F64]:
        """Adds a part ``[rows, n]``.

        Returns:
            ``exp(logits - m)``, m being the highest so far, and what sums that were made with
            such terms before are to be multiplied by, ``[rows]``.
        """
        highest = np.maximum(self._highest, logits.max(axis=1))
        shrink = np.exp(self._highest - highest)
        terms = np.exp(logits.astype(np.float64) - highest[:, None])
        self._total = self._total * shrink + terms.sum(axis=1)
        self._highest = highest
        return terms, shrink

    def log_total(self) -> F64:
        return np.asarray(self._highest + np.log(self._total))

    def mean(self, total: F64) -> F64:
        """Of sums of ``exp(logits - m) x``, the mean of x by the distribution."""
        return np.asarray(total / self._total)


def surprise(
    spec: DecoderSpec, source: SourceWeights, hidden: F32, ids: NDArray[np.int64]
) -> float:
    """Sum of ``-ln p`` of ids ``[tokens]``.

    Args:
        spec: the decoder.
        source: its embedding and head.
        hidden: what the last layer gives of the token before each, ``[tokens, hidden_size]``.
        ids: of the text.
    """
    softmax, chosen = _Softmax(len(ids)), np.zeros(len(ids))
    for part, logits in predicted_parts(spec, source, hidden):
        softmax.add(logits)
        rows = np.flatnonzero((ids >= part.start) & (ids < part.stop))
        chosen[rows] = logits[rows, ids[rows] - part.start]
    return float((softmax.log_total() - chosen).sum())


def stream_divergence(spec: DecoderSpec, source: SourceWeights, first: F32, second: F32) -> float:
    """Mean KL divergence in nats between what is predicted from two streams ``[tokens, hidden]``.

    Args:
        spec: the decoder.
        source: its embedding and head.
        first: what the last layer should give.
        second: what it gives.
    """
    expected, actual = _Softmax(len(first)), _Softmax(len(first))
    apart = np.zeros(len(first))
    both = np.concatenate([first, second])
    for _, logits in predicted_parts(spec, source, both):
        ours, theirs = logits[: len(first)], logits[len(first) :]
        terms, shrink = expected.add(ours)
        apart = apart * shrink + np.einsum("tv,tv->t", terms, (ours - theirs).astype(np.float64))
        actual.add(theirs)
    nats = expected.mean(apart) - expected.log_total() + actual.log_total()
    return float(nats.mean())
