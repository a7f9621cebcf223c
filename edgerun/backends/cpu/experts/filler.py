"""Puts experts that were read into slots: what that takes is worked out once a layer.

An expert then costs the interpreter one native call, during which it is free for others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.experts.layout import SlotLayout
from edgerun.backends.cpu.experts.source import Content, StoredExpert
from edgerun.formats.base import PackedWeight
from edgerun.graph.mapped_file import ArrayReader
from edgerun.kernels.jit.service import compiled, native_function
from edgerun.kernels.layouts.stream import FLOAT_BITS
from edgerun.kernels.layouts.zero_kinds import NO_GAPS
from edgerun.kernels.run.steps import MOST_STEPS, STEP_WORDS

Steps: TypeAlias = NDArray[np.int64]


class SlotFiller:
    """Fills slots of one layout."""

    def __init__(self, layout: SlotLayout) -> None:
        """Has worked nothing out yet."""
        self._layout = layout
        self._steps: dict[tuple[int, ...], Steps] = {}
        self._fill = native_function("slot-fill", 4, result=True)

    def fill(self, slot: NDArray[np.uint8], content: Content, reader: ArrayReader) -> None:
        """Prepares an expert in a slot, uint8 ``[bytes]``; see ``layout.Form.fill``.

        What native code cannot do, or finds scales in that are no numbers, is done step by step.
        """
        if content.memory is None or not self._is_filled(slot, content.memory, content.stored):
            self._layout.fill(slot, content.matrices, reader, alone=True)

    def steps(self, stored: StoredExpert) -> Steps | None:
        """What puts an expert of a slab in order, int64 ``[steps, STEP_WORDS]``, if it can.

        The first steps, one a matrix, raise a flag where scales are no numbers.
        """
        steps = self._steps.get(stored.places)
        if steps is None:
            words = list(_steps(self._layout, stored))
            steps = self._steps[stored.places] = np.array(words, np.int64).reshape(-1, STEP_WORDS)
        return steps if 0 < len(steps) <= MOST_STEPS else None

    def _is_filled(
        self, slot: NDArray[np.uint8], memory: NDArray[np.uint8], stored: StoredExpert
    ) -> bool:
        steps = self.steps(stored)
        if steps is None:
            return False
        flags = self._fill(steps.ctypes.data, len(steps), memory.ctypes.data, slot.ctypes.data)
        return not flags & (1 << len(stored.matrices)) - 1  # of scales; of codes they mean nothing


def _steps(layout: SlotLayout, stored: StoredExpert) -> Iterator[list[int]]:
    """Steps for scales of all matrices, then for codes and zero points; none unless that is all."""
    forms, places = layout.packed_forms() or [], iter(stored.places)
    others = []
    for (form, offsets), matrix in zip(forms, stored.matrices, strict=bool(forms)):
        assert isinstance(matrix, PackedWeight)
        stream = form.stream
        codes, scales, lanes = offsets["codes"], offsets["scales"], stream.lanes
        panels, tiles, _ = stream.codes_shape
        repack = compiled("repack", bits=matrix.bits, lanes=lanes).address
        sizes = [*_rows(matrix.codes), tiles, tiles, NO_GAPS.group, NO_GAPS.shift, panels]
        others.append([repack, next(places), codes, *sizes])
        vectors, gaps = stream.scales_shape[1], [stream.gaps.group, stream.gaps.shift]
        repack = compiled("repack", bits=FLOAT_BITS, lanes=lanes).address
        sizes = [*_rows(matrix.scales), vectors - stream.words, vectors, *gaps, panels]
        yield [repack, next(places), scales, *sizes]
        if matrix.zeros is not None:
            repack = compiled("repack_zeros", lanes=lanes).address
            sizes = [*_rows(matrix.zeros), stream.words, vectors, *gaps, panels]
            others.append([repack, next(places), scales, *sizes])
    yield from others


def _rows(array: NDArray[Any]) -> tuple[int, int]:
    """How many rows there are, and the bytes of each."""
    return len(array), array.nbytes // len(array)
