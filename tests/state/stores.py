"""Stores to test, and what is written into them."""

import numpy as np

from edgerun.state import (
    SequenceStore,
    same_attention,
)

ERRORS = {"fp32": 0.0, "fp16": 5e-4, "int8": 1 / 250, "int4": 1 / 13.9}
LAYERS = 2


def store_of(codec="fp32", context=200, slots=3, window=0, **options):
    return SequenceStore(same_attention(LAYERS, 2, 8, codec, window), context, slots, **options)


def append(store, slot, stop, seed=0, ids=()):
    """Writes random tokens up to ``stop`` as a program and the engine would."""
    start = store.length(slot)
    store.reserve(slot, stop)
    rng = np.random.default_rng(seed)
    for state in store.states:
        block = rng.standard_normal((2, stop - start, state.kv_heads, state.key_dim))
        store.write_block(state.name, slot, start, tuple(block.astype(np.float32)))
    store.commit(slot, stop, ids)


def filled(store, length, seed=0, ids=()):
    slot = store.open()
    append(store, slot, length, seed, ids)
    return slot


def contents(store, slot, start=0):
    blocks = [store.read_block(s.name, slot, start, store.length(slot)) for s in store.states]
    return np.array(blocks)


def pool_of(store):
    return store.pool(store.states[0].name)
