"""Rows of a large table, read from its file as they are needed.

A mapped table of embeddings is read a row here and a row there, and each time the system may map
the two megabytes around the row (a large folio of the page cache): a prompt of ordinary length
makes most of the table resident; and should the file be cut off, the system ends the process.
Reading the rows instead costs some microseconds each. Scales that a pass has made, which lie in
memory, are copied from there; those that are halves in the file are widened.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import BackendError
from edgerun.formats.base import PackedWeight
from edgerun.formats.stack import Matrix
from edgerun.graph.mapped_file import find_file, read_array

LARGE_BYTES = 4 << 20  # smaller tables may as well be copied whole


class StagedRows:
    """The rows that a run looks up, copied in front of it.

    Attributes:
        table: the copies as a table of their own; its row i is that of the run's i-th id.
        ids: int32 ``[max_rows]``, ``0, 1, 2, ...``: what a program looks up in it.
    """

    def __init__(self, table: Matrix, max_rows: int) -> None:
        """Makes room for ``max_rows`` rows of a table that ``can_stage``."""
        arrays = (table.codes, table.scales) if isinstance(table, PackedWeight) else (table,)
        copies = [np.zeros((max_rows, *array.shape[1:]), array.dtype) for array in arrays]
        self._sources = [find_file(array) or _rows_of_bytes(array) for array in arrays]
        self._copies = [copy.reshape(max_rows, -1).view(np.uint8) for copy in copies]
        self._stored, self._scales = copies[-1], copies[-1]  # scales as they lie there, and wide
        self._size = table.shape[0]
        self.ids = np.arange(max_rows, dtype=np.int32)
        self.table: Matrix = copies[0]
        if isinstance(table, PackedWeight):
            shape = (max_rows, table.shape[1])
            self._scales = self._stored.astype(np.float32, copy=False)
            self.table = replace(table, shape=shape, codes=copies[0], scales=self._scales)

    def fetch(self, ids: NDArray[np.int32]) -> None:
        """Reads the rows ``ids``.

        Raises:
            BackendError: an id is outside of the table, or the file was changed or cut off.
        """
        check_ids(ids, self._size)
        for source, copies in zip(self._sources, self._copies, strict=True):
            if isinstance(source, np.ndarray):
                copies[: len(ids)] = source[ids]
                continue
            file, start = source
            file.check()
            width = copies.shape[1]
            for row, index in zip(copies, ids.tolist(), strict=False):
                file.read_into(start + index * width, row.data)
        if self._scales is not self._stored:
            self._scales[: len(ids)] = self._stored[: len(ids)]


def _rows_of_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.reshape(len(array), -1).view(np.uint8)


def copied(table: Matrix) -> Matrix:
    """A table in memory of its own.

    Raises:
        BackendError: the file that it lies in has become shorter.
    """
    if not isinstance(table, PackedWeight):
        return read_array(table)
    scales = read_array(table.scales).astype(np.float32, copy=False)
    return replace(table, codes=read_array(table.codes), scales=scales)


def check_ids(ids: NDArray[np.int32], rows: int) -> None:
    """Makes sure that a table has the rows ``ids``.

    Raises:
        BackendError: it has not.
    """
    lowest, highest = (ids[0], ids[0]) if len(ids) == 1 else (ids.min(), ids.max(initial=0))
    if not 0 <= lowest <= highest < rows:
        raise BackendError(f"a token id is outside of 0..{rows - 1}")


def can_stage(table: Matrix) -> bool:
    """Whether a table is large, lies in a mapped file, row after row, and may be staged.

    Scales may lie in memory.
    """
    if table.nbytes < LARGE_BYTES:
        return False
    if not isinstance(table, PackedWeight):
        return table.flags.c_contiguous and find_file(table) is not None
    is_in_rows = table.codes.flags.c_contiguous and table.scales.flags.c_contiguous
    return is_in_rows and find_file(table.codes) is not None
