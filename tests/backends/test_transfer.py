"""Blocks moved by kernels have the bits of blocks moved in NumPy; what has no kernel is left."""

import numpy as np
import pytest

from edgerun.backends.cpu.transfer import NativeTransfer
from edgerun.state import AttentionState, SequenceStore

STATES = {
    "fp32": AttentionState("a", 2, 16, 16, 0, "fp32"),
    "fp16": AttentionState("a", 2, 16, 16, 0, "fp16"),
    "int8": AttentionState("a", 3, 16, 16, 0, "int8"),
    "window": AttentionState("a", 2, 16, 16, 90, "fp16"),
    "int4": AttentionState("a", 2, 16, 16, 0, "int4"),
    "values are keys": AttentionState("a", 1, 48, 48, 0, "fp16", values_are_keys=True),
    "and int8": AttentionState("a", 1, 48, 48, 0, "int8", values_are_keys=True),
    "unequal": AttentionState("a", 2, 16, 8, 0, "fp16"),
}


@pytest.mark.parametrize("name", list(STATES))
def test_kernels_move_what_numpy_moves(name):
    state = STATES[name]
    stores = [SequenceStore([state], 400, 2, transfer=each) for each in (NativeTransfer(), None)]
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((400, state.kv_heads, d)) for d in (state.key_dim, state.value_dim)]
    rows = [rows[0]] * 2 if state.values_are_keys else rows
    blocks = []
    for store in stores:
        store.open()
        slot = store.open()
        for start, stop in ((0, 30), (30, 170), (170, 400)):
            store.reserve(slot, stop)
            part = tuple(row[start:stop].astype(np.float32)[:, :, :] for row in rows)
            store.write_block("a", slot, start, part)
            store.commit(slot, stop)
        blocks.append(store.read_block("a", slot, 20, 390))
    for key, array in stores[0].pool("a").arrays.items():
        np.testing.assert_array_equal(array, stores[1].pool("a").arrays[key])
    for native, plain in zip(*blocks, strict=True):
        np.testing.assert_array_equal(native, plain)
        assert plain[-50:].any()


def test_rows_that_do_not_lie_in_order_are_moved_too():
    store = SequenceStore([STATES["fp32"]], 64, 1, transfer=NativeTransfer())
    slot = store.open()
    store.reserve(slot, 5)
    rows = np.random.default_rng(0).standard_normal((2, 5, 16))  # by head, and float64
    store.write_block("a", slot, 0, (rows.transpose(1, 0, 2), rows.transpose(1, 0, 2)))
    for block in store.read_block("a", slot, 0, 5):
        np.testing.assert_array_equal(block, rows.transpose(1, 0, 2).astype(np.float32))
