"""Attention to the past, which comes from the pages, and to the rows of the call.

Buffers have room for a static number of tokens: the past lies at the beginning of its part, and a
mask hides what is no token, what comes later, and what a window has passed. New keys and values
leave as they were computed, and so the rows of their call see them; later calls see what pages
hold. OpenVINO takes out what would round them in between.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.openvino.translate.translator import Translator
from edgerun.backends.openvino.translation import Piece, Translation
from edgerun.errors import BackendError
from edgerun.graph.ir import Node
from edgerun.state.spec import attention_of

HIDDEN = np.float32(-65504)  # the least number in half precision, which devices compute in


def _translate(translation: Translation, node: Node) -> Any:
    state = attention_of(translation.states, node.attrs["layer"])
    if state is None:
        raise BackendError(f"{node.name} keeps keys and values that the store does not know")
    q, k, v = (translation.value(name) for name in node.inputs[:3])
    past = translation.extend_cache(state, k, v)
    if q is None or not translation.is_read(node.outputs[0]):
        return None
    return _attend(translation, node, q, past, (k, v))


def _attend(
    translation: Translation, node: Node, q: Any, past: tuple[Any, Any], new: tuple[Any, Any]
) -> Any:
    ops, reshape, attrs = translation.ops, translation.reshape, node.attrs
    _, rows, _ = translation.sized(node.inputs[0])
    tokens = translation.extent.past + translation.extent.rows
    is_selected = translation.is_selected(node.inputs[0])
    heads, head_dim = attrs["num_kv_heads"], attrs["head_dim"]
    group = attrs["num_heads"] // heads
    keys, values = (
        ops.transpose(
            reshape(ops.concat([before, after], 0), (tokens, heads, head_dim)),
            translation.integers(1, 0, 2),
        )
        for before, after in zip(past, new, strict=True)
    )
    by_head = ops.transpose(
        reshape(q, (rows, heads, group, head_dim)), translation.integers(1, 2, 0, 3)
    )
    queries = ops.multiply(
        reshape(by_head, (heads, group * rows, head_dim)),
        translation.constant(np.float32(attrs["scale"])),
    )
    scores = reshape(ops.matmul(queries, keys, False, True), (heads, group, rows, tokens))
    mask = translation.feed(
        f"mask {attrs['window']}{' of wanted rows' * is_selected}",
        (1, 1, rows, tokens),
        lambda piece: _mask(piece, translation.extent.past, attrs["window"], is_selected),
    )
    weights = reshape(
        _softmax(translation, ops.add(scores, mask), node, (heads, group, rows, tokens)),
        (heads, group * rows, tokens),
    )
    seen = reshape(ops.matmul(weights, values, False, False), (heads, group, rows, head_dim))
    return reshape(
        ops.transpose(seen, translation.integers(2, 0, 1, 3)), (rows, attrs["num_heads"] * head_dim)
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


def _mask(piece: Piece, past: int, window: int, is_selected: bool) -> NDArray[np.float32]:
    """What queries may attend to, float32 ``[1, 1, queries, past + rows]``: 0, or ``HIDDEN``.

    A row of no token attends to itself at least, since nothing has no weights that add up to one.
    """
    rows = piece.rows
    tokens = np.concatenate([np.arange(past), piece.start + np.arange(rows)])
    row = piece.positions_of(is_selected)[:, None]
    seen = (tokens <= row) & (
        (np.arange(past + rows) < piece.start) | (np.arange(past + rows) >= past)
    )
    if window:
        seen &= tokens > row - window
    return np.where(seen, np.float32(0), HIDDEN)[None, None]


TRANSLATOR = Translator(_translate)
