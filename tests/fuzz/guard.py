"""Puts buffers against pages that nobody may touch, so that a write past an end is a signal.

Memory from the heap lies beside other memory, and what is written behind its end is noticed later
or never. Here every array that kernels read or write gets pages of its own: its last element ends
within a cache line of a page that is neither readable nor writable, and so does its first begin
behind one, if it fills its pages.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu import buffers, weights
from edgerun.graph.ir import Graph
from edgerun.kernels.layouts import stream as layout
from edgerun.model import bundle
from edgerun.state.memory import Memory
from edgerun.state.paged import PagePool

PAGE = mmap.PAGESIZE
LINE = 64
PROT_NONE = 0
_libc = ctypes.CDLL(None, use_errno=True)


def guarded_zeros(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """A zeroed array on a cache line that ends at a forbidden page, but for less than a line."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    room = -(-size // LINE) * LINE
    pages = -(-room // PAGE) * PAGE
    area = mmap.mmap(-1, pages + 2 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    raw = np.frombuffer(area, np.uint8)
    for start in (0, PAGE + pages):
        if _libc.mprotect(ctypes.c_void_p(raw.ctypes.data + start), PAGE, PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect failed")
    first = PAGE + pages - room
    array: NDArray[Any] = raw[first : first + size].view(kind).reshape(shape)
    return array


def guarded_copy(array: NDArray[Any]) -> NDArray[Any]:
    """A copy of an array that ends at a forbidden page."""
    copy = guarded_zeros(array.shape, array.dtype)
    copy[...] = array
    copy.flags.writeable = False
    return copy


@contextmanager
def guard_pages() -> Iterator[None]:
    """All that the CPU back-end hands to kernels has guard pages while this lasts."""
    make_pool, read_graph = PagePool.__init__, bundle.read_graph

    def init_pool(self: PagePool, *arguments: Any, **named: Any) -> None:
        make_pool(self, *arguments, **named)
        for name, array in self.arrays.items():
            self.arrays[name] = guarded_zeros(array.shape, array.dtype)
        table = self.page_table
        self.page_table = guarded_zeros(table.shape, table.dtype)
        self.page_table[...] = table
        self.locate()

    def read(*arguments: Any, **named: Any) -> Graph:
        graph = read_graph(*arguments, **named)
        copies: dict[int, NDArray[Any]] = {}
        for name, constant in graph.constants.items():
            if isinstance(constant, np.ndarray):
                copies[id(constant)] = copies.get(id(constant), guarded_copy(constant))
                graph.constants[name] = copies[id(constant)]
        return graph

    def arena_zeros(self: layout.Arena, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        return guarded_zeros(shape, np.uint8)

    def state_zeros(self: Memory, shape: tuple[int, ...], dtype: Any, _: int) -> NDArray[Any]:
        return guarded_zeros(shape, dtype)

    with (
        mock.patch.object(Memory, "zeros", state_zeros),
        mock.patch.object(PagePool, "__init__", init_pool),
        mock.patch.object(bundle, "read_graph", read),
        mock.patch.object(layout.Arena, "zeros", arena_zeros),
        mock.patch.object(buffers, "aligned_zeros", guarded_zeros),
        mock.patch.object(weights, "aligned_zeros", guarded_zeros),
    ):
        yield
