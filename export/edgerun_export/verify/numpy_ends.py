"""The decoder in NumPy before its first layer and behind its last."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from edgerun_export.architectures import DecoderSpec
from edgerun_export.architectures.decoder.storage import HEAD_BIAS
from edgerun_export.verify.numpy_ops import normed
from edgerun_export.verify.numpy_streams import begin_streams, end_streams, layer_inputs, rows_of
from edgerun_export.verify.parts import Weights
from edgerun_export.verify.stream import stream_of

F32 = NDArray[np.float32]
_HEAD_ROWS = 8192


def embedded(spec: DecoderSpec, weights: Weights, ids: NDArray[np.int64]) -> F32:
    """What the first layer gets, ``[tokens, width]``; ``stream.py`` tells what that consists of."""
    stream, hidden = stream_of(spec), rows_of(weights, spec.embedding_weight, ids)
    room = np.zeros((len(ids), stream.width - spec.hidden_size), np.float32)
    values = np.concatenate([hidden, room], axis=1)
    if spec.per_layer is not None:
        values[:, stream.inputs] = layer_inputs(spec, spec.per_layer, weights, hidden, ids)
    if spec.altup is not None:
        values[:, stream.streams] = begin_streams(spec.altup, _square(spec, weights), hidden)
    return values


def _square(spec: DecoderSpec, weights: Weights) -> Callable[[str], F32]:
    return lambda name: weights.rows(name, slice(0, spec.hidden_size))


def predicted(spec: DecoderSpec, weights: Weights, hidden: F32) -> F32:
    """Logits ``[tokens, vocab]`` of what the last layer gives."""
    parts = [logits for _, logits in predicted_parts(spec, weights, hidden)]
    return np.concatenate(parts, axis=1)


def predicted_parts(
    spec: DecoderSpec, weights: Weights, hidden: F32
) -> Iterator[tuple[slice, F32]]:
    """The same for one part of the vocabulary after the other, ``[tokens, n]`` with its ids."""
    if spec.altup is None:
        hidden = hidden[:, : spec.hidden_size]
    else:
        streams = hidden[:, stream_of(spec).streams]
        hidden = end_streams(spec.altup, _square(spec, weights), streams)
    final_norm = spec.final_norm_weight.removesuffix(".weight")
    hidden = normed(spec, weights, final_norm, hidden, spec.norm_eps)
    bias = weights.vector(HEAD_BIAS) if spec.head_bias else np.zeros(spec.vocab_size, np.float32)
    head, bound = weights.head_name(), spec.softcap
    for start in range(0, spec.vocab_size, _HEAD_ROWS):
        part = slice(start, min(start + _HEAD_ROWS, spec.vocab_size))
        logits = hidden @ weights.rows(head, part).T + bias[part]
        yield part, logits if bound is None else np.tanh(logits / bound) * np.float32(bound)
