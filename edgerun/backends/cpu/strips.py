"""Memory in which threads unpack strips of weights for the matrix unit (``tile_order.py``)."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.buffers import aligned_zeros
from edgerun.forks import each_in_forked_child
from edgerun.formats.base import PackedWeight
from edgerun.formats.stack import ExpertStack
from edgerun.graph.ir import Graph
from edgerun.kernels.host.huge_pages import zeroed_memory
from edgerun.kernels.layouts.tile_order import area_bytes

LINE_WORDS = 8
PAGE = 4096
UNITS = (16, 32, 64, 128, 256)  # to one of which rows are filled up, as blocks go

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Areas:
    """Memory of a team of threads.

    Attributes:
        memory: uint8 ``[threads, bytes]``.
        taken: int64 ``[threads, 8]``, on cache lines; the first word is not 0 while it is in use.
    """

    memory: NDArray[np.uint8]
    taken: NDArray[np.int64]


class StripMemory:
    """What the programs of a team share, which runs one at a time; taken when one needs it."""

    def __init__(self, threads: int) -> None:
        """Takes nothing yet."""
        self._threads = threads
        self._areas: Areas | None = None
        self._refused = False
        _MEMORIES.add(self)

    def for_graph(self, graph: Graph, lengths: Collection[int] = ()) -> Areas | None:
        """Areas for every linear layer of a graph; None, with a warning once, without memory.

        Args:
            graph: whose constants are to have room.
            lengths: elements of rows of other matrices that its nodes multiply by.
        """
        each = -(-bytes_a_thread(graph, lengths) // PAGE) * PAGE
        if self._refused or (self._areas is not None and self._areas.memory.shape[1] >= each):
            return None if self._refused else self._areas
        try:
            memory = zeroed_memory(self._threads * each).reshape(self._threads, each)
        except (MemoryError, OSError):
            self._refused = True
            logger.warning(
                "no memory for %.1f MB of unpacked weights a thread: prompts are multiplied "
                "without the matrix unit, with the same results",
                each / 1e6,
            )
            return None
        self._areas = Areas(memory, aligned_zeros((self._threads, LINE_WORDS), "int64"))
        return self._areas

    def begin_child(self) -> None:
        """In a forked child: nobody unpacks, for the parent's threads are not there."""
        if self._areas is not None:
            self._areas.taken[:] = 0


def bytes_a_thread(graph: Graph, lengths: Collection[int] = ()) -> int:
    """What every packed matrix of a graph has room in: strips of longer rows may be smaller."""
    matrices = (
        constant.matrices[0] if isinstance(constant, ExpertStack) else constant
        for constant in graph.constants.values()
    )
    rows = {each.shape[1] for each in matrices if isinstance(each, PackedWeight)}
    rows = rows.union(lengths) or {1}
    filled = {-(-k // unit) * unit for k in rows for unit in UNITS}
    return max(area_bytes(k, k // UNITS[0], packed=False) for k in filled)


_MEMORIES = each_in_forked_child(StripMemory.begin_child)
