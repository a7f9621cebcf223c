"""A device's copy of the keys and values of one sequence, so that a call reads new ones only.

The pages of the store are the truth (docs/adr/0019-pages-are-the-truth.md). Of what lies here, as
many tokens of each layer are valid as were read out of pages in which they were committed, and
only while ``SequenceStore.version`` is the one that the sequence had then. Rows that the device
computed are added for the pieces of the same call that follow them, as they were computed; the
next call reads them again, as they were stored.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.state import AttentionState, SequenceStore
from edgerun.state.store import Block, Slot

Rows: TypeAlias = NDArray[np.float32]


class Mirror:
    """Keys and values of one sequence, float32 ``[tokens, heads * dim]`` by layer and part.

    All networks of a device share it, so its memory is that of the longest sequence.
    """

    def __init__(self) -> None:
        """Holds nothing, and no memory."""
        self._arrays: dict[AttentionState, tuple[Rows, Rows]] = {}
        self._valid: dict[AttentionState, int] = {}  # tokens
        self._version = self._committed = 0
        self._store: SequenceStore | None = None
        self._slot: Slot = 0

    @property
    def nbytes(self) -> int:
        """Bytes of its memory."""
        return sum(part.nbytes for parts in self._arrays.values() for part in parts)

    def turn_to(self, store: SequenceStore, slot: Slot) -> None:
        """Prepares for a call that continues a sequence; what is not valid for it is forgotten."""
        version = store.version(slot)
        is_same = version == self._version
        self._valid = {
            state: min(tokens, self._committed) for state, tokens in self._valid.items() if is_same
        }
        self._version, self._committed = version, store.length(slot)
        self._store, self._slot = store, slot

    def past(self, state: AttentionState, tokens: int, room: int) -> tuple[Rows, Rows]:
        """Keys and values of a layer, of the sequence's first tokens; reads what is missing.

        Args:
            state: of the layer.
            tokens: before the rows that are to be computed; in the pages, or added.
            room: tokens for which the network has room. What lies behind the first ``tokens`` is
                of other calls, and hidden by the network's mask.

        Returns:
            arrays ``[room, heads * dim]``, which a network may read until the next call of this
            or of ``add``.
        """
        assert self._store is not None
        parts = self._memory(state, room)
        valid = self._valid.get(state, 0)
        if valid < tokens:
            out = _heads(state, parts, slice(valid, tokens))
            self._store.read_block(state.name, self._slot, valid, tokens, out)
            self._valid[state] = tokens
        return parts[0][:room], parts[1][:room]

    def add(self, state: AttentionState, start: int, block: Block) -> Block:
        """Takes what a piece computed of a layer from a position on, for the pieces that follow.

        A network without logits does not read its last layer's past; one that follows may.

        Returns:
            the same rows, which stay here until another sequence comes.
        """
        stop = start + len(block[0])
        mirrored = _heads(state, self.past(state, start, stop), slice(start, stop))
        for here, computed in zip(mirrored, block, strict=True):
            here[:] = computed
        self._valid[state] = stop
        return mirrored

    def _memory(self, state: AttentionState, tokens: int) -> tuple[Rows, Rows]:
        """Memory for so many tokens at least, with what was in it."""
        parts = self._arrays.get(state)
        if parts is None or len(parts[0]) < tokens:
            widths = (state.kv_heads * state.key_dim, state.kv_heads * state.value_dim)
            larger = tuple(np.zeros((tokens, width), np.float32) for width in widths)
            valid = self._valid.get(state, 0)
            for old, new in zip(parts or (), larger, strict=False):
                new[:valid] = old[:valid]
            parts = self._arrays[state] = larger[0], larger[1]
        return parts


def _heads(state: AttentionState, parts: tuple[Rows, Rows], tokens: slice) -> Block:
    """Some tokens of both parts, as the store has them: ``[tokens, heads, dim]``."""
    return tuple(
        part[tokens].reshape(-1, state.kv_heads, dim)
        for part, dim in zip(parts, (state.key_dim, state.value_dim), strict=True)
    )
