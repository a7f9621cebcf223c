"""The paged KV cache: fp32, fp16 or int8, one pool of pages shared by all sequences."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import InputError, PromptError
from edgerun.state.fair_lock import FairLock
from edgerun.state.store import Block, Holder, Owner, Room

CacheDType = Literal["fp32", "fp16", "int8"]
PAGE_TOKENS = 64
STORAGE = {"fp32": np.float32, "fp16": np.float16, "int8": np.int8}


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """Shape of what one model caches.

    Attributes:
        num_layers: attention layers.
        num_kv_heads: key/value heads a layer.
        head_dim: elements a head.
        dtype: storage type; ``"int8"`` keeps one float32 scale per token and head.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: CacheDType = "fp16"

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys, values and scales that one token occupies over all layers."""
        element = np.dtype(STORAGE[self.dtype]).itemsize
        scale = 4 if self.dtype == "int8" else 0
        return 2 * self.num_layers * self.num_kv_heads * (self.head_dim * element + scale)


class KVCache:
    """Keys and values of several sequences in pages of ``PAGE_TOKENS`` tokens.

    Layout: ``keys[page, layer, kv_head, token, head_dim]``, ``values`` likewise, and for int8
    ``key_scales[page, layer, kv_head, token]``. ``page_table[sequence, i]`` is the page that
    holds tokens ``[i * PAGE_TOKENS, (i + 1) * PAGE_TOKENS)``. A page holds all layers, so that
    memory, which the system commits on first write, grows with the tokens and not with the
    capacity.

    The executable writes keys and values (natively, or through ``write``); the engine moves the
    lengths with ``commit`` and ``rewind``. Sequences made by ``fork`` have pages in common
    until one of them writes there: ``reserve`` gives it a copy first.

    Any thread may open, fork, rewind and close sequences. Whoever computes holds ``lock`` from
    ``reserve`` to ``commit``, and until the logits are used: the executable has buffers for one
    call at a time. Ctrl-C may come between any two lines here; users of a page are counted up
    before a table names it and down after, so that a page can be lost, and found again, but never
    be given to two.

    Attributes:
        spec: what a token occupies.
        context: most tokens of a sequence.
        lock: held by the thread that changes anything here.
    """

    def __init__(self, spec: CacheSpec, context: int, max_sequences: int = 1) -> None:
        """Reserves room for ``max_sequences`` sequences of ``context`` tokens.

        Raises:
            InputError: ``context`` or ``max_sequences`` is not positive.
        """
        if context < 1 or max_sequences < 1:
            raise InputError(
                f"cache of {max_sequences} sequences of {context} tokens: both must be at least 1"
            )
        self.spec = spec
        self.context = context
        self.lock = FairLock()
        pages_each = -(-context // PAGE_TOKENS)
        num_pages = pages_each * max_sequences
        storage = STORAGE[spec.dtype]
        shape = (num_pages, spec.num_layers, spec.num_kv_heads, PAGE_TOKENS, spec.head_dim)
        self.keys = np.zeros(shape, storage)
        self.values = np.zeros(shape, storage)
        scales = shape[:-1] if spec.dtype == "int8" else (0,)
        self.key_scales = np.zeros(scales, np.float32)
        self.value_scales = np.zeros(scales, np.float32)
        self.page_table = np.full((max_sequences, pages_each), -1, np.int32)
        self.lengths = np.zeros(max_sequences, np.int64)
        self._page_users = np.zeros(num_pages, np.int32)
        self._free_pages = list(range(num_pages - 1, -1, -1))
        self._holders: list[Holder] = [_nobody] * max_sequences
        self._changes = itertools.count(1)
        self._versions = [0] * max_sequences

    def room(self) -> Room:
        """See ``StateStore``."""
        return self.lock.run(self._room)

    def _room(self) -> Room:
        self._collect()
        slots = sum(not self._in_use(sequence) for sequence in range(len(self._holders)))
        return Room(slots, len(self._free_pages), PAGE_TOKENS)

    def length(self, slot: int) -> int:
        """Tokens that a sequence holds."""
        return int(self.lengths[slot])

    def version(self, slot: int) -> int:
        """See ``StateStore``."""
        return self._versions[slot]

    def checkpoint(self, slot: int) -> None:
        """Nothing to do: keys and values go back to any length."""

    def match(self, ids: Sequence[int], owner: Owner | None = None) -> tuple[int, int]:
        """See ``StateStore``; nothing is found yet."""
        return self.open(owner), 0

    def open(self, owner: Owner | None = None) -> int:
        """Takes a free sequence number; its length is 0.

        Args:
            owner: the sequence is free again as soon as this object is garbage, or its ``is_open``
                is false. Both need no lock, so they may happen anywhere, in a finaliser too.
                Without an owner it is in use until ``close``.

        Raises:
            InputError: every sequence is in use.
        """
        return self.lock.run(self._open, owner)

    def _open(self, owner: Owner | None) -> int:
        self._collect()
        for sequence in range(len(self._holders)):
            if not self._in_use(sequence):
                self.lengths[sequence] = 0
                self._versions[sequence] = next(self._changes)
                self._holders[sequence] = weakref.ref(owner) if owner else _caller
                return sequence
        raise InputError(
            f"all {len(self.lengths)} sequences of the KV cache are in use: close a session "
            "or a stream, or load the model with a larger max_sessions"
        )

    def fork(
        self, source: int, length: int | None = None, owner: Owner | None = None
    ) -> tuple[int, int]:
        """Opens a sequence that begins with another's tokens, without copying them.

        Attention to the pages in common is computed for all sequences of a batch in one pass
        where their rows are neighbours.

        Args:
            source: an open sequence; it may be extended, rewound or closed afterwards.
            length: how many of its tokens to begin with; all of them unless given.
            owner: see ``open``.

        Returns:
            the new sequence, and its length.

        Raises:
            InputError: every sequence is in use, or ``length`` is not between 0 and the length of
                ``source``.
        """
        return self.lock.run(self._fork, source, length, owner)

    def _fork(self, source: int, length: int | None, owner: Owner | None) -> tuple[int, int]:
        available = int(self.lengths[source])
        kept = available if length is None else length
        if not 0 <= kept <= available:
            raise InputError(
                f"a fork of {kept} tokens from a sequence of {available}; expected 0 to {available}"
            )
        sequence = self._open(owner)
        pages = self.page_table[source, : -(-kept // PAGE_TOKENS)]
        self._page_users[pages] += 1
        self.page_table[sequence, : len(pages)] = pages
        self.lengths[sequence] = kept
        return sequence, kept

    def close(self, sequence: int) -> None:
        """Gives back a sequence that has no owner, and its pages."""
        self._holders[sequence] = _nobody

    def reserve(self, sequence: int, length: int) -> None:
        """Makes sure that the pages of the first ``length`` tokens exist.

        Those from the sequence's present length on may then be written: no other sequence has
        them.

        Raises:
            PromptError: ``length`` exceeds the context.
        """
        if length > self.context:
            raise PromptError(
                f"{length} tokens do not fit the context of {self.context}: "
                "shorten the prompt or load the model with a larger context",
                tokens=length,
                context=self.context,
            )
        table = self.page_table[sequence]
        for index in range(int(self.lengths[sequence]) // PAGE_TOKENS, -(-length // PAGE_TOKENS)):
            page = int(table[index])
            if page < 0:
                table[index] = self._take_page()
            elif self._is_shared(page):
                table[index] = self._copy_page(page)
                self._leave_page(page)

    def commit(self, slot: int, length: int, ids: Sequence[int] = ()) -> None:
        """Records that the first ``length`` tokens of the sequence are written."""
        self.lengths[slot] = length
        self._versions[slot] = next(self._changes)

    def rewind(self, slot: int, length: int) -> int:
        """Forgets all tokens from position ``length`` on and frees their pages."""
        self.lock.run(self._truncate, slot, length)
        self._versions[slot] = next(self._changes)
        return self.length(slot)

    def _truncate(self, sequence: int, length: int) -> None:
        table = self.page_table[sequence]
        for index in range(-(-length // PAGE_TOKENS), len(table)):
            page = int(table[index])
            if page >= 0:
                table[index] = -1
                self._leave_page(page)
        self.lengths[sequence] = min(int(self.lengths[sequence]), length)

    def write(
        self,
        layer: int,
        sequence: int,
        start: int,
        keys: NDArray[np.float32],
        values: NDArray[np.float32],
    ) -> None:
        """Stores float32 keys and values ``[tokens, num_kv_heads, head_dim]`` from ``start`` on."""
        for offset in range(len(keys)):
            page, slot = divmod(start + offset, PAGE_TOKENS)
            index = (self.page_table[sequence, page], layer, slice(None), slot)
            self._store(self.keys, self.key_scales, index, keys[offset])
            self._store(self.values, self.value_scales, index, values[offset])

    def read(
        self, layer: int, sequence: int, length: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Returns the first ``length`` keys and values, float32 ``[length, num_kv_heads, D]``."""
        pages = self.page_table[sequence, : -(-length // PAGE_TOKENS)]
        return (
            self._load(self.keys, self.key_scales, layer, pages)[:length],
            self._load(self.values, self.value_scales, layer, pages)[:length],
        )

    def read_block(self, name: str, slot: int, start: int, stop: int) -> Block:
        """See ``StateStore``."""
        keys, values = self.read(_layer(name), slot, stop)
        return keys[start:], values[start:]

    def write_block(self, name: str, slot: int, start: int, block: Block) -> None:
        """See ``StateStore``."""
        keys, values = block
        self.write(_layer(name), slot, start, keys, values)
        self._versions[slot] = next(self._changes)

    def _in_use(self, sequence: int) -> bool:
        owner = self._holders[sequence]()
        return owner is not None and owner.is_open

    def _collect(self) -> None:
        """Takes back the pages of sequences that are not in use."""
        for sequence in np.flatnonzero(self.page_table[:, 0] >= 0).tolist():
            if not self._in_use(sequence):
                self._truncate(sequence, 0)

    def _is_shared(self, page: int) -> bool:
        """Whether another sequence has a page, too; one that is not in use does not count."""
        if self._page_users[page] > 1:
            self._collect()
        return bool(self._page_users[page] > 1)

    def _take_page(self) -> int:
        """A page that nobody uses. There is one: a sequence has no more than its share."""
        if not self._free_pages:  # Ctrl-C came between two of these lines and lost some
            self._recount()
        page = self._free_pages.pop()
        self._page_users[page] = 1
        return page

    def _recount(self) -> None:
        """Finds out from the page table, which is the truth, who uses which page."""
        used = self.page_table[self.page_table >= 0]
        self._page_users[:] = np.bincount(used, minlength=len(self._page_users))
        self._free_pages = np.flatnonzero(self._page_users == 0).tolist()

    def _leave_page(self, page: int) -> None:
        self._page_users[page] -= 1
        if self._page_users[page] == 0:
            self._free_pages.append(page)

    def _copy_page(self, page: int) -> int:
        copy = self._take_page()
        for pool in (self.keys, self.values, self.key_scales, self.value_scales):
            if pool.size:
                pool[copy] = pool[page]
        return copy

    def _store(
        self,
        pool: NDArray[np.generic],
        scales: NDArray[np.float32],
        index: tuple[np.int32, int, slice, int],
        heads: NDArray[np.float32],
    ) -> None:
        if self.spec.dtype != "int8":
            pool[index] = heads.astype(pool.dtype)
            return
        scale = np.abs(heads).max(axis=-1) / np.float32(127)
        inverse = np.where(scale > 0, 1 / np.where(scale > 0, scale, 1), 0).astype(np.float32)
        pool[index] = np.rint(heads * inverse[:, None]).astype(np.int8)
        scales[index] = scale

    def _load(
        self,
        pool: NDArray[np.generic],
        scales: NDArray[np.float32],
        layer: int,
        pages: NDArray[np.int32],
    ) -> NDArray[np.float32]:
        block = pool[pages, layer].astype(np.float32)
        if self.spec.dtype == "int8":
            block *= scales[pages, layer][..., None]
        by_token: NDArray[np.float32] = block.transpose(0, 2, 1, 3)
        return by_token.reshape(-1, self.spec.num_kv_heads, self.spec.head_dim)


def _layer(name: str) -> int:
    return int(name.rpartition(".")[2])


class _Caller:
    is_open = True


_CALLER = _Caller()


def _caller() -> Owner:
    """Holds a sequence that has no owner, until its caller closes it."""
    return _CALLER


def _nobody() -> None:
    """Holds a sequence that is not in use."""
