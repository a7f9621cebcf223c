"""Puts experts that were read into slots: what that takes is worked out once a layer.

An expert then costs the interpreter one native call, during which it is free for others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.experts.layout import SlotLayout
from edgerun.backends.cpu.experts.source import Content, StoredExpert
from edgerun.formats.base import PackedWeight
from edgerun.graph.mapped_file import ArrayReader
from edgerun.kernels.jit.service import compiled, native_function
from edgerun.kernels.layouts.stream import FLOAT_BITS
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

    def _is_filled(
        self, slot: NDArray[np.uint8], memory: NDArray[np.uint8], stored: StoredExpert
    ) -> bool:
        steps = self._steps.get(stored.places)
        if steps is None:
            words = _codes_last(_steps(self._layout, stored))
            steps = self._steps[stored.places] = np.array(words, np.int64).reshape(-1, STEP_WORDS)
        count = len(steps)
        if not count:
            return False
        flags = self._fill(steps.ctypes.data, count, memory.ctypes.data, slot.ctypes.data)
        return not flags & (1 << count // 2) - 1  # of codes they mean nothing


def _codes_last(steps: Iterable[list[int]]) -> list[list[int]]:
    """Steps of codes and of scales in turns, those of scales first."""
    listed = list(steps)
    return [*listed[1::2], *listed[::2]]


def _steps(layout: SlotLayout, stored: StoredExpert) -> Iterator[list[int]]:
    """Steps for codes and scales of each matrix; none unless all can be done so."""
    forms = layout.packed_forms()
    if forms is None or len(forms) > MOST_STEPS // 2:
        return
    places = iter(stored.places)
    for (form, offsets), matrix in zip(forms, stored.matrices, strict=True):
        assert isinstance(matrix, PackedWeight)
        rows = len(matrix.scales)
        for name, bits, array in (
            ("codes", matrix.bits, matrix.codes),
            ("scales", FLOAT_BITS, matrix.scales),
        ):
            panels, tiles, _ = form.sizes[name][0]
            lanes = form.stream.lanes
            repack = compiled("repack", bits=bits, lanes=lanes).address
            sizes = [rows, array.nbytes // rows, tiles, panels]
            yield [repack, next(places), offsets[name], *sizes]
