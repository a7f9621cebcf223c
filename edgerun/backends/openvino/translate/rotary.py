"""Rotary position embedding, by tables that the host computes.

An angle is a position times a frequency: in half precision, which devices compute in, that of
position 4,097 would be that of 4,096.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.openvino.translate.translator import Translator
from edgerun.backends.openvino.translation import Piece, Translation
from edgerun.graph.ir import Node


def _translate(translation: Translation, node: Node) -> Any:
    ops, head_dim = translation.ops, node.attrs["head_dim"]
    x, rows, width = translation.sized(node.inputs[0])
    frequencies = np.array(translation.segment.array(node.inputs[2]), np.float32)
    is_selected = translation.is_selected(node.inputs[0])
    name = f"{node.inputs[2]} times {node.attrs['factor']}{' of wanted rows' * is_selected}"
    cos, sin = (
        translation.feed(
            f"{function.__name__} {name}",
            (rows, 1, head_dim // 2),
            _table(function, frequencies, node.attrs["factor"], is_selected),
        )
        for function in (np.cos, np.sin)
    )
    heads = translation.reshape(x, (rows, width // head_dim, head_dim))
    first, second = ops.split(heads, translation.integers(2), 2).outputs()
    rotated = [
        ops.subtract(ops.multiply(first, cos), ops.multiply(second, sin)),
        ops.add(ops.multiply(second, cos), ops.multiply(first, sin)),
    ]
    return translation.reshape(ops.concat(rotated, 2), (rows, width))


def _table(
    function: Callable[[Any], Any],
    frequencies: NDArray[np.float32],
    factor: float,
    is_selected: bool,
) -> Callable[[Piece], NDArray[np.float32]]:
    def fill(piece: Piece) -> NDArray[np.float32]:
        angles = piece.positions_of(is_selected)[:, None, None].astype(np.float32) * frequencies
        table: NDArray[np.float32] = function(angles) * np.float32(factor)
        return table

    return fill


TRANSLATOR = Translator(_translate)
