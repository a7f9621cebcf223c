"""What ``driver.py`` has, in Numba's simulator, which does everything at once."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

from numba import cuda
from numpy.typing import NDArray

# Numba's advice at every launch for few rows, of which there are no more.
warnings.filterwarnings("ignore", message=".*Grid size .* GPU under-utilization")


class Context:
    """A GPU that is made a thread's; there is one."""

    def __enter__(self) -> None:
        """Nothing is to be done."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is to be done."""


class Kernel:
    """A kernel with the arguments that it is always given."""

    def __init__(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """Takes arrays of the GPU and integers."""
        self.function, self.arguments = cuda.jit(function), arguments

    def bound_to(self, arguments: tuple[Any, ...]) -> Kernel:
        """The same kernel with other arguments of the same types."""
        return Kernel(self.function.py_func, arguments)


class Mark:
    """A point of a stream."""

    def __init__(self) -> None:
        """Has not been recorded."""
        self._at_s = 0.0

    def record(self, stream: Stream) -> None:
        """Everything that was queued has been done."""
        self._at_s = time.perf_counter()

    def is_past(self) -> bool:
        """Whether everything before it is done."""
        return True

    def wait(self) -> None:
        """Nothing is to be waited for."""

    def seconds_after(self, other: Mark) -> float:
        """Seconds between two that are past."""
        return self._at_s - other._at_s


class Recording:
    """Copies and kernels that are queued by one call."""

    def __init__(self, stream: Stream, queue: Callable[[], None]) -> None:
        """Keeps what queues them, in that stream."""
        self.queue = queue


class Stream:
    """Does what is queued, in order."""

    def is_done(self) -> bool:
        """Whether everything that was queued is done."""
        return True

    def upload(self, target: Any, source: NDArray[Any], first: int = 0) -> None:
        """Copies rows to rows ``first`` and following of an array of the GPU's."""
        target[first : first + len(source)].copy_to_device(source)

    def download(self, target: NDArray[Any], source: Any) -> None:
        """Copies the first rows of an array of the GPU's."""
        source[: len(target)].copy_to_host(target)

    def launch(self, kernel: Kernel, grid: tuple[int, int], block: tuple[int, int]) -> None:
        """Runs a kernel."""
        kernel.function[grid, block](*kernel.arguments)

    def replay(self, recording: Recording) -> None:
        """Does what was recorded: copies from and to the same memory, as that is by then."""
        recording.queue()
