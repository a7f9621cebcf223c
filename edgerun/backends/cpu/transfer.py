"""Blocks of keys and values by kernels: what ``PagePool`` asks before it does it in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.kernels.attention.units import CODECS
from edgerun.kernels.isa import selected_isa
from edgerun.kernels.jit.service import compiled, native
from edgerun.state import AttentionState
from edgerun.state.store import Block


class NativeTransfer:
    """Moves blocks of states that have kernels, which are compiled when one is first moved."""

    def write(
        self, state: AttentionState, fields: Mapping[str, int], slot: int, start: int, block: Block
    ) -> bool:
        """See ``state.paged.Transfer``."""
        if not _has_kernels(state):
            return False
        rows = tuple(np.ascontiguousarray(array, np.float32) for array in block)
        _call("block_write", state, fields, slot, start, rows)
        return True

    def read(
        self, state: AttentionState, fields: Mapping[str, int], slot: int, start: int, out: Block
    ) -> bool:
        """See ``state.paged.Transfer``."""
        if not (_has_kernels(state) and all(map(_is_filled_in_order, out))):
            return False
        _call("block_read", state, fields, slot, start, out)
        return True


def _is_filled_in_order(array: NDArray[np.float32]) -> bool:
    return bool(array.dtype == np.float32 and array.flags.carray)


def _has_kernels(state: AttentionState) -> bool:
    return state.codec in CODECS and state.key_dim == state.value_dim


def _call(
    kernel: str,
    state: AttentionState,
    fields: Mapping[str, int],
    slot: int,
    start: int,
    block: Block,
) -> None:
    keys, values = block
    lanes = gcd(state.key_dim, selected_isa().float_lanes)
    names, function = _kernel(kernel, state.codec, lanes)
    words = {
        **fields,
        "kv_heads": state.kv_heads,
        "head_dim": state.key_dim,
        "tokens": len(keys),
        "start": start,
        "slot": slot,
        "k": keys.ctypes.data,
        "v": values.ctypes.data,
    }
    arguments = np.array([words.get(name, 0) for name in names], np.int64)
    function(arguments.ctypes.data, 0)


@cache
def _kernel(
    kernel: str, codec: str, lanes: int
) -> tuple[tuple[str, ...], Callable[[int, int], None]]:
    params: dict[str, Any] = {"dtype": codec, "lanes": lanes}
    return compiled(kernel, **params).signature.names, native(kernel, **params)
