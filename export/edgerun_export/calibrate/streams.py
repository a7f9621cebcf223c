"""What flows between layers, a file on disk: of 64 windows it is as large as a layer's weights."""

from __future__ import annotations

import tempfile
from pathlib import Path
from threading import Lock
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import StorageError

F32 = NDArray[np.float32]


class Stream:
    """The residual stream of windows, by number; the file has no name and is gone when closed.

    Args:
        folder: on the disk that takes it.

    Raises:
        StorageError: no file can be made there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        except OSError as error:
            raise self._refused(error) from error
        self._places: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._end = 0
        self._lock = Lock()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def windows(self) -> list[int]:
        """Numbers of all that were put."""
        return list(self._places)

    def __getitem__(self, window: int) -> F32:
        """Float32 ``[tokens, hidden_size]``."""
        start, shape = self._places[window]
        values = np.empty(shape, np.float32)
        left = values.data.cast("B")
        with self._lock:
            self._file.seek(start)
            while left.nbytes:
                count = self._file.readinto(left)
                assert count, "it was written before"
                left = left[count:]
        return values

    def __setitem__(self, window: int, values: F32) -> None:
        """Puts float32 ``[tokens, hidden_size]``, always as many as the first time.

        Raises:
            StorageError: the disk is full.
        """
        with self._lock:
            if window not in self._places:
                self._places[window] = self._end, values.shape
                self._end += values.nbytes
            start, shape = self._places[window]
            assert shape == values.shape
            left = np.ascontiguousarray(values).data.cast("B")
            try:
                self._file.seek(start)
                while left.nbytes:
                    left = left[self._file.write(left) :]
            except OSError as error:
                raise self._refused(error) from error

    def _refused(self, error: OSError) -> StorageError:
        return StorageError(
            f"cannot write the activations of windows to '{self._folder}': {error.strerror}; fewer "
            "windows take less"
        )
