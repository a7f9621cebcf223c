"""Attention to the past, which comes from the pages, and to the rows of the call.

Buffers have room for a static number of tokens: the past lies at the beginning of its part, and a
mask hides what is no token, what comes later, and what a window has passed. New keys and values
leave as they were computed, and so the rows of their call see them; later calls see what pages
hold. OpenVINO takes out what would round them in between.

A layer that attends to keys and values of an earlier one sees those of the same network. Where
an earlier network computed them, they are an input, from the sequence's first token to the last
of the call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.openvino.translate.translator import Translator
from edgerun.backends.openvino.translation import Piece, Translation
from edgerun.errors import BackendError
from edgerun.graph.ir import Node
from edgerun.state import AttentionState
from edgerun.state.spec import attention_of

HIDDEN = np.float32(-65504)  # the least number in half precision, which devices compute in


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a layer's queries may attend to.

    Attributes:
        keys: of all tokens, ``[tokens, kv_heads * key_dim]``.
        values: the same.
        tokens: how many there are.
        past: of these, those before the rows of the call; all, if the rows have no place apart.
    """

    keys: Any
    values: Any
    tokens: int
    past: int


def _translate(translation: Translation, node: Node) -> Any:
    state = _state_of(translation, node)
    k, v = (translation.value(name) for name in node.inputs[1:3])
    past = translation.extend_cache(state, k, v)
    return _attend(translation, node, _joined(translation, past, (k, v)))


def translate_shared(translation: Translation, node: Node) -> Any:
    """Attention to the keys and values that another node keeps."""
    state, extent = _state_of(translation, node), translation.extent
    if new := translation.new_rows(state):
        return _attend(translation, node, _joined(translation, translation.past(state), new))
    tokens = extent.past + extent.rows
    return _attend(translation, node, _Seen(*translation.written(state), tokens, tokens))


def _state_of(translation: Translation, node: Node) -> AttentionState:
    state = attention_of(translation.states, node.attrs["layer"])
    if state is None:
        raise BackendError(f"{node.name} reads keys and values that the store does not know")
    return state


def _joined(translation: Translation, past: tuple[Any, Any], new: tuple[Any, Any]) -> _Seen:
    """The past, and behind its room the rows of the call."""
    extent = translation.extent
    keys, values = (
        translation.ops.concat([before, after], 0) for before, after in zip(past, new, strict=True)
    )
    return _Seen(keys, values, extent.past + extent.rows, extent.past)


def _attend(translation: Translation, node: Node, seen: _Seen) -> Any:
    q = translation.value(node.inputs[0])
    if q is None or not translation.is_read(node.outputs[0]):
        return None
    ops, reshape, attrs = translation.ops, translation.reshape, node.attrs
    _, rows, _ = translation.sized(node.inputs[0])
    tokens = seen.tokens
    is_selected = translation.is_selected(node.inputs[0])
    heads, head_dim = attrs["num_kv_heads"], attrs["head_dim"]
    group = attrs["num_heads"] // heads
    keys, values = (
        ops.transpose(reshape(part, (tokens, heads, head_dim)), translation.integers(1, 0, 2))
        for part in (seen.keys, seen.values)
    )
    by_head = ops.transpose(
        reshape(q, (rows, heads, group, head_dim)), translation.integers(1, 2, 0, 3)
    )
    queries = ops.multiply(
        reshape(by_head, (heads, group * rows, head_dim)),
        translation.constant(np.float32(attrs["scale"])),
    )
    scores = reshape(ops.matmul(queries, keys, False, True), (heads, group, rows, tokens))
    if attrs["softcap"]:
        bound = translation.constant(np.float32(attrs["softcap"]))
        scores = ops.multiply(ops.tanh(ops.divide(scores, bound)), bound)
    mask = _mask_input(translation, seen, attrs["window"], rows, is_selected)
    weights = reshape(
        _softmax(translation, ops.add(scores, mask), node, (heads, group, rows, tokens)),
        (heads, group * rows, tokens),
    )
    summed = reshape(ops.matmul(weights, values, False, False), (heads, group, rows, head_dim))
    return reshape(
        ops.transpose(summed, translation.integers(2, 0, 1, 3)),
        (rows, attrs["num_heads"] * head_dim),
    )


def _mask_input(
    translation: Translation, seen: _Seen, window: int, rows: int, is_selected: bool
) -> Any:
    """The mask, which layers of the same window share."""
    kind = " of selected rows" * is_selected + " of what is written" * (seen.past == seen.tokens)
    return translation.feed(
        f"mask {window}{kind}",
        (1, 1, rows, seen.tokens),
        lambda piece: _mask(piece, seen.tokens, seen.past, window, is_selected),
    )


def _softmax(
    translation: Translation, scores: Any, node: Node, shape: tuple[int, int, int, int]
) -> Any:
    """Weights of all tokens: less than 1 together where a head has a sink."""
    ops = translation.ops
    if not any(node.inputs[3:]):
        return ops.softmax(scores, 3)
    *sizes, tokens = shape
    sinks = translation.segment.array(node.inputs[3]).reshape(sizes[0], sizes[1], 1, 1)
    column = translation.constant(np.broadcast_to(sinks, (*sizes, 1)).copy())
    weights = ops.softmax(ops.concat([scores, column], 3), 3)
    lengths = translation.integers(tokens, 1)
    return ops.variadic_split(weights, translation.integers(3), lengths).output(0)


def _mask(
    piece: Piece, room: int, past: int, window: int, is_selected: bool
) -> NDArray[np.float32]:
    """What queries may attend to, float32 ``[1, 1, queries, room]``: 0, or ``HIDDEN``.

    Columns from ``past`` on are the rows of the call. A row of no token attends to itself at
    least, since nothing has no weights that add up to one.
    """
    column = np.arange(room)
    is_new = column >= past
    tokens = np.where(is_new, piece.start + column - past, column)
    row = piece.positions_of(is_selected)[:, None]
    seen = tokens <= row
    if past < room:  # what is behind the past in its room is not of this sequence's tokens
        seen &= is_new | (column < piece.start)
    if window:
        seen &= tokens > row - window
    return np.where(seen, np.float32(0), HIDDEN)[None, None]


TRANSLATOR = Translator(_translate)
