"""Keys and values in pages of ``PAGE_TOKENS`` tokens, shared by all sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import Full, InputError
from edgerun.state.codecs import codec_named
from edgerun.state.memory import Memory, zeros_at_page
from edgerun.state.policies.base import Policy
from edgerun.state.prefixes import Key, PageIndex
from edgerun.state.spec import AttentionState
from edgerun.state.store import Block, Slot

PAGE_TOKENS = 64
KEY, VALUE = PARTS = ("key", "value")
# Of a windowed layer, beyond its window: where others' prefixes end must be found as well.
RETAINED_TOKENS = 512
ABSENT = -1


class Transfer(Protocol):
    """Moves blocks between float32 and pages faster than NumPy; see ``PagePool.fields``."""

    def write(
        self, state: AttentionState, fields: Mapping[str, int], slot: int, start: int, block: Block
    ) -> bool:
        """Stores a block; False if it has no way for this state."""

    def read(
        self, state: AttentionState, fields: Mapping[str, int], slot: int, start: int, out: Block
    ) -> bool:
        """Fills a block; False if it has no way for this state."""


class PagePool:
    """The pages of layers that keep keys and values of one geometry and see one window.

    Layout: ``arrays["key_data"][page, layer, kv_head, token, width]``, and so on for every array of
    the codec. ``page_table[slot, i]`` is the page that holds tokens ``[i * PAGE_TOKENS, (i + 1) *
    PAGE_TOKENS)``. A page holds all layers, so that memory, which the system commits on first
    write, grows with the tokens and not with the address space.

    Sequences that begin alike have pages in common until one of them writes there: ``reserve``
    gives it a copy first. A page that nobody uses is free, or it is retained until it is needed,
    because it can be found by its key. Pages that have been written are used again before new ones.

    Ctrl-C may come between any two lines here. Users of a page are counted up before a table names
    it and down after, so that a page can be lost, and found again, but never be given to two.

    Where values are keys there are arrays of keys alone, and those of values are the same memory.

    Attributes:
        states: of the layers, in their order in a page.
        window: positions that a row sees; 0 for all.
        arrays: by part and name of the codec's array.
        page_table: int32 ``[slots, pages of a sequence]``, ``ABSENT`` where there is none.
        page_bytes: bytes of a page.
    """

    def __init__(
        self,
        states: Sequence[AttentionState],
        slots: int,
        context: int,
        pages: int,
        memory: Memory,
        policy: Policy,
        transfer: Transfer | None = None,
    ) -> None:
        """Reserves address space for ``pages`` pages.

        Raises:
            MemoryError: the system does not give so much.
        """
        self.states, self.window = tuple(states), states[0].window
        self._codec = codec_named(states[0].codec)
        self._layers = {state.name: layer for layer, state in enumerate(states)}
        self._memory, self._transfer = memory, transfer
        self.arrays: dict[str, NDArray[Any]] = {
            name: zeros_at_page((pages, len(states), *shape), dtype)
            for name, shape, dtype in _page_arrays(states[0])
        }
        self.page_bytes = page_bytes(states)
        self.page_table = np.full((slots, pages_of(context)), ABSENT, np.int32)
        self._users = np.zeros(pages, np.int32)
        self._free: list[int] = []
        self._grown = 0  # pages from here on were never written
        self._index = PageIndex(policy)
        seen = self.window + RETAINED_TOKENS if self.window else context
        self._retained = pages_of(min(context, seen))
        self._fields: dict[str, dict[str, int]] = {}
        self.locate()
        self.reclaim: Callable[[], None] = lambda: None

    def fields(self, name: str) -> dict[str, int]:
        """Where a layer's pages are: addresses and sizes, by the names that kernels give them.

        ``page_heads`` heads of a codec's array lie from one page to the next; addresses are those
        of the layer in page 0.
        """
        return self._fields[name]

    def copied(self) -> PagePool:
        """See ``Part``; pages that were never written stay out."""
        other = copy(self)
        other.arrays = {name: array[: self._grown].copy() for name, array in self.arrays.items()}
        other.locate()
        return other

    def first_page(self, length: int) -> int:
        """The first page that a row behind ``length`` tokens sees."""
        return max(0, length + 1 - self.window) // PAGE_TOKENS if self.window else 0

    def reachable(self, slot: Slot, length: int, current: int, keys: Sequence[Key]) -> int:
        table = self.page_table[slot]
        return self._longest(
            length, lambda page: table[page] >= 0 or self._stored(keys, page) is not None
        )

    def findable(self, keys: Sequence[Key], length: int) -> int:
        return self._longest(length, lambda page: self._stored(keys, page) is not None)

    def _longest(self, length: int, has: Callable[[int], bool]) -> int:
        """The longest length, up to one, all of whose visible pages are there."""
        while length > 0:
            pages = range(self.first_page(length), pages_of(length))
            missing = [page for page in pages if not has(page)]
            if not missing:
                return length
            length = missing[-1 if self.window else 0] * PAGE_TOKENS
        return 0

    def _stored(self, keys: Sequence[Key], page: int) -> int | None:
        return self._index.find(keys[page]) if page < len(keys) else None

    def adopt(self, slot: Slot, length: int, keys: Sequence[Key]) -> None:
        table = self.page_table[slot]
        for index in range(self.first_page(length), pages_of(length)):
            page = self._stored(keys, index)
            if table[index] == ABSENT and page is not None:
                self._use(page)
                table[index] = page

    def share(
        self, source: Slot, slot: Slot, length: int, current: int, keys: Sequence[Key]
    ) -> None:
        seen = slice(self.first_page(length), pages_of(length))
        for index, page in enumerate(self.page_table[source, seen].tolist(), seen.start):
            if page >= 0:
                self._use(page)
                self.page_table[slot, index] = page
        self.adopt(slot, length, keys)

    def cut(self, slot: Slot, length: int, current: int, keys: Sequence[Key]) -> None:
        if length:
            self.adopt(slot, length, keys)
        self._leave(slot, pages_of(length), self.page_table.shape[1])

    def drop(self, slot: Slot) -> None:
        self._leave(slot, 0, self.page_table.shape[1])

    def reserve(self, slot: Slot, current: int, length: int) -> None:
        table = self.page_table[slot]
        for index in range(current // PAGE_TOKENS, pages_of(length)):
            page = int(table[index])
            if page < 0:
                table[index] = self._take_page()
            elif self._is_shared(page):
                table[index] = self._copy_page(page)
                self._release(page)
            else:
                self._index.forget(page)

    def commit(self, slot: Slot, length: int) -> None:
        """Leaves pages that no row sees any more, but for one: a few tokens may be taken back."""
        table, first = self.page_table[slot], self.first_page(length - PAGE_TOKENS)
        begin = first
        while begin and table[begin - 1] >= 0:
            begin -= 1
        if begin < first:
            self._leave(slot, begin, first)

    def checkpoint(self, slot: Slot, length: int) -> None:
        """Nothing to do: pages go back to any length that is still there."""

    def name(self, slot: Slot, page: int, key: Key) -> None:
        stored = int(self.page_table[slot, page])
        if stored >= 0:
            self._index.add(key, stored)

    def holds(self, key: Key) -> bool:
        """Whether a page can be found by a key."""
        return self._index.find(key) is not None

    def spare(self, without: Sequence[Slot]) -> int:
        """Pages that were written and that nobody uses, if some slots were closed."""
        spare = len(self._free) + self._index.unused
        if without:
            held = self.page_table[list(without)]
            users = np.bincount(held[held >= 0], minlength=len(self._users))
            spare += int(np.count_nonzero((users > 0) & (users == self._users)))
        return spare

    @property
    def unwritten(self) -> int:
        """Pages that were never written, for which there may be no memory."""
        return len(self._users) - self._grown

    def write(self, name: str, slot: Slot, start: int, block: Block) -> None:
        layer, tokens = self._layers[name], len(block[0])
        state = self._check_block(name, start, tokens, block)
        spans = list(self._spans(slot, start, start + tokens))
        if any(page < 0 for page, _, _ in spans):
            raise InputError(f"positions {start} to {start + tokens - 1} are not reserved")
        if self._transfer and self._transfer.write(state, self.fields(name), slot, start, block):
            return
        for page, offset, rows in spans:
            for part, vectors in zip(_stored_parts(state), block, strict=False):
                for key, stored in self._codec.encode(vectors[rows]).items():
                    stop = offset + len(stored)
                    self.arrays[f"{part}_{key}"][page, layer, :, offset:stop] = stored.swapaxes(
                        0, 1
                    )

    def read(self, name: str, slot: Slot, start: int, stop: int, out: Block | None = None) -> Block:
        state = self.states[self._layers[name]]
        if out is None:
            shape = (stop - start, state.kv_heads)
            dims = (state.key_dim, state.value_dim)
            out = tuple(np.empty((*shape, dim), np.float32) for dim in dims)
        self._check_block(name, start, stop - start, out)
        if self._transfer and self._transfer.read(state, self.fields(name), slot, start, out):
            return out
        for page, offset, rows in self._spans(slot, start, stop):
            tokens = slice(offset, offset + rows.stop - rows.start)
            for part, vectors in zip(PARTS, out, strict=True):
                absent = page < 0
                stored = part if part in _stored_parts(state) else KEY
                vectors[rows] = (
                    0 if absent else self._decoded(stored, page, self._layers[name], tokens)
                )
        return out

    def _decoded(self, part: str, page: int, layer: int, tokens: slice) -> NDArray[np.float32]:
        stored = {
            key.removeprefix(f"{part}_"): array[page, layer, :, tokens]
            for key, array in self.arrays.items()
            if key.startswith(f"{part}_")
        }
        return self._codec.decode(stored).swapaxes(0, 1)

    def _spans(self, slot: Slot, start: int, stop: int) -> Iterator[tuple[int, int, slice]]:
        """Pages of some positions, the first token in each, and which rows of a block they are."""
        table, position = self.page_table[slot], start
        while position < stop:
            index, offset = divmod(position, PAGE_TOKENS)
            end = min(stop, (index + 1) * PAGE_TOKENS)
            page = int(table[index]) if index < len(table) else ABSENT
            yield page, offset, slice(position - start, end - start)
            position = end

    def locate(self) -> None:
        """Finds out where its arrays are, which stay there."""
        common = {
            "page_table": self.page_table.ctypes.data,
            "pages": self.page_table.shape[1],
            "page_heads": len(self.states) * self.states[0].kv_heads,
        }
        self._fields = {
            name: common
            | {
                field: array.ctypes.data + layer * array.strides[1]
                for key, array in self.arrays.items()
                for field in self._fields_of(key)
            }
            for name, layer in self._layers.items()
        }

    def _fields_of(self, key: str) -> tuple[str, ...]:
        """What an array is called: that of keys also as that of values, where they are the same."""
        is_both = self.states[0].values_are_keys
        return (key, key.replace(KEY, VALUE, 1)) if is_both else (key,)

    def _check_block(self, name: str, start: int, tokens: int, block: Block) -> AttentionState:
        state = self.states[self._layers[name]]
        shapes = [
            (tokens, state.kv_heads, state.key_dim),
            (tokens, state.kv_heads, state.value_dim),
        ]
        if [array.shape for array in block] != shapes or start < 0:
            raise InputError(
                f"{name} got blocks {[array.shape for array in block]} from position {start}; "
                f"expected {shapes}"
            )
        return state

    def _use(self, page: int) -> None:
        """One user more, before a table says so."""
        self._index.take(page)
        self._users[page] += 1

    def _leave(self, slot: Slot, begin: int, end: int) -> None:
        """Takes pages out of a slot's table, the last first, which are then the first to go."""
        table = self.page_table[slot]
        for index in (np.flatnonzero(table[begin:end] >= 0)[::-1] + begin).tolist():
            page = int(table[index])
            table[index] = ABSENT
            self._release(page)

    def _release(self, page: int) -> None:
        self._users[page] -= 1
        if self._users[page] == 0 and not self._index.retain(page):
            self._free.append(page)

    def _is_shared(self, page: int) -> bool:
        """Whether another sequence has a page, too; one that is not in use does not count."""
        if self._users[page] > 1:
            self.reclaim()
        return bool(self._users[page] > 1)

    def _take_page(self) -> int:
        """A page that nobody uses.

        Raises:
            Full: there is none.
        """
        page = self._written_page()
        if page is None:
            self.reclaim()
            page = self._written_page(evict=True)
        if page is None:
            self._recount()  # Ctrl-C came between two of these lines and lost some
            page = self._written_page()
        if page is None:
            raise Full(
                f"all {self._grown} pages of keys and values that memory has room for are in use: "
                "end a session or a stream, or load the model with a smaller context or kv_cache"
            )
        self._users[page] = 1
        return page

    def _written_page(self, *, evict: bool = False) -> int | None:
        """A page that is free, new, or retained for nobody."""
        if self._free:
            return self._free.pop()
        if self._index.unused >= self._retained or evict:
            page = self._index.evict()
            if page is not None:
                return page
        if self._grown < len(self._users) and self._memory.take(self.page_bytes):
            self._grown += 1
            return self._grown - 1
        return None

    def _recount(self) -> None:
        """Finds out from the page table, which is the truth, who uses which page."""
        used = self.page_table[self.page_table >= 0]
        self._users[:] = np.bincount(used, minlength=len(self._users))
        for page in self._index.pages():
            if not self._users[page]:
                self._index.forget(page)
        self._free = np.flatnonzero(self._users[: self._grown] == 0).tolist()

    def _copy_page(self, page: int) -> int:
        copy = self._take_page()
        for array in self.arrays.values():
            array[copy] = array[page]
        return copy


def pages_of(tokens: int) -> int:
    """Pages that hold so many tokens."""
    return -(-tokens // PAGE_TOKENS)


def page_bytes(states: Sequence[AttentionState]) -> int:
    """Bytes of a page of layers of one geometry."""
    shapes = _page_arrays(states[0])
    return len(states) * sum(int(np.prod(s)) * np.dtype(dtype).itemsize for _, s, dtype in shapes)


def _page_arrays(state: AttentionState) -> list[tuple[str, tuple[int, ...], type[np.generic]]]:
    """Name, shape and type of what a layer has in a page."""
    codec = codec_named(state.codec)
    return [
        (f"{part}_{array.name}", (state.kv_heads, PAGE_TOKENS, array.width), array.dtype)
        for part, dim in zip(_stored_parts(state), (state.key_dim, state.value_dim), strict=False)
        for array in codec.arrays(dim)
    ]


def _stored_parts(state: AttentionState) -> tuple[str, ...]:
    return (KEY,) if state.values_are_keys else PARTS
