"""Copies and kernels queued by the driver's own functions.

Numba would take 0.2 ms of the processor's time for a launch with the arguments of these kernels, or
for a copy of a few rows, and a layer has seven of them (H100, numba-cuda 0.30: 1.0 ms for one
expert). Here arguments are laid out once, so that a launch is one call.
"""

from __future__ import annotations

import ctypes
import re
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np
from numba import cuda, types
from numba.cuda import compile_ptx_for_current_device
from numba.np.numpy_support import from_dtype
from numpy.typing import NDArray

try:
    from cuda.bindings import driver
except ImportError:  # without the extra `cuda`, of which gpu.py tells who asks for a GPU
    driver = None

# Functions of kernels, by context, kernel and types; a context keeps what it has loaded, so whoever
# comes next gets the same. Contexts stay, too, lest another one gets the number of one that went.
_LOADED: dict[tuple[Any, ...], tuple[Any, Any]] = {}


def checked(result: tuple[Any, ...]) -> Any:
    """What a function of the driver returned.

    Raises:
        RuntimeError: it failed.
    """
    code, *values = result
    if code != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"[{int(code)}] {code.name}")
    return values[0] if values else None


class Context:
    """The context that was current when this was made, as one that is current within ``with``."""

    def __init__(self) -> None:
        """Takes the calling thread's."""
        self._handle = checked(driver.cuCtxGetCurrent())

    def __enter__(self) -> None:
        """Makes it current in this thread."""
        checked(driver.cuCtxPushCurrent(self._handle))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Makes that current again which was."""
        driver.cuCtxPopCurrent()


class Kernel:
    """A kernel with the arguments that it is always given.

    Attributes:
        function: of the driver.
        parameters: address of the addresses of its arguments.
    """

    def __init__(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """Compiles a function for the current GPU, unless it has it.

        Args:
            function: in Numba's CUDA.
            arguments: arrays of the GPU's, contiguous, and integers.
        """
        self._set(_loaded(function, tuple(map(_type_of, arguments))), arguments)

    def bound_to(self, arguments: tuple[Any, ...]) -> Kernel:
        """The same kernel with other arguments of the same types."""
        other = Kernel.__new__(Kernel)
        other._set(self.function, arguments)
        return other

    def _set(self, function: Any, arguments: tuple[Any, ...]) -> None:
        self.function, self._arguments = function, arguments
        words = [word for each in arguments for word in _words_of(each)]
        self._words = (ctypes.c_int64 * len(words))(*words)
        first = ctypes.addressof(self._words)
        places = [first + 8 * index for index in range(len(words))]
        self._places = (ctypes.c_void_p * len(words))(*places)
        self.parameters = ctypes.addressof(self._places)


class Mark:
    """A point of a stream."""

    def __init__(self) -> None:
        """Makes one in the current context; it is past until it is recorded."""
        self._event = checked(driver.cuEventCreate(0))
        _destroy_with(self, driver.cuEventDestroy, self._event)

    def record(self, stream: Stream) -> None:
        """Takes the place behind everything that was queued so far."""
        checked(driver.cuEventRecord(self._event, stream.handle))

    def is_past(self) -> bool:
        """Whether everything before it is done.

        Raises:
            RuntimeError: something before it failed.
        """
        return _is_done(driver.cuEventQuery(self._event))

    def wait(self) -> None:
        """Waits until everything before it is done.

        Raises:
            RuntimeError: something before it failed.
        """
        checked(driver.cuEventSynchronize(self._event))

    def seconds_after(self, other: Mark) -> float:
        """Seconds between two that are past."""
        return float(checked(driver.cuEventElapsedTime(other._event, self._event))) / 1e3


class Recording:
    """Copies and kernels that are queued by one call of the driver (a CUDA graph).

    Attributes:
        handle: of the driver.
    """

    def __init__(self, stream: Stream, queue: Callable[[], None]) -> None:
        """Notes what ``queue`` queues in a stream, of which nothing is done yet.

        Raises:
            RuntimeError: the driver cannot note it.
        """
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        checked(driver.cuStreamBeginCapture(stream.handle, mode))
        try:
            queue()
        finally:  # else the stream would note for ever
            noted = driver.cuStreamEndCapture(stream.handle)
        graph = checked(noted)
        try:
            self.handle = checked(driver.cuGraphInstantiate(graph, 0))
        finally:
            driver.cuGraphDestroy(graph)
        _destroy_with(self, driver.cuGraphExecDestroy, self.handle)


class Stream:
    """Does what is queued, in order; of the current context, as everything that it is given.

    Attributes:
        handle: of the driver.
    """

    def __init__(self) -> None:
        """Does not wait for other streams."""
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        self.handle = checked(driver.cuStreamCreate(int(flags)))
        _destroy_with(self, driver.cuStreamDestroy, self.handle)

    def is_done(self) -> bool:
        """Whether everything that was queued is done.

        Raises:
            RuntimeError: something of it failed.
        """
        return _is_done(driver.cuStreamQuery(self.handle))

    def upload(self, target: Any, source: NDArray[Any], first: int = 0) -> None:
        """Queues a copy of rows to rows ``first`` and following of an array of the GPU's.

        ``source`` is contiguous; if it is pinned, it must stay what it is until that is done.
        """
        place = _address(target) + first * (source.nbytes // max(1, len(source)))
        checked(driver.cuMemcpyHtoDAsync(place, _address_here(source), source.nbytes, self.handle))

    def download(self, target: NDArray[Any], source: Any) -> None:
        """Queues a copy of the first rows of an array of the GPU's."""
        checked(
            driver.cuMemcpyDtoHAsync(
                _address_here(target), _address(source), target.nbytes, self.handle
            )
        )

    def launch(self, kernel: Kernel, grid: tuple[int, int], block: tuple[int, int]) -> None:
        """Queues a kernel."""
        checked(
            driver.cuLaunchKernel(
                kernel.function, *grid, 1, *block, 1, 0, self.handle, kernel.parameters, 0
            )
        )

    def replay(self, recording: Recording) -> None:
        """Queues what was recorded: copies from and to the same memory, as that is by then."""
        checked(driver.cuGraphLaunch(recording.handle, self.handle))


def _loaded(function: Callable[..., None], kinds: tuple[Any, ...]) -> Any:
    """The driver's function of a kernel whose arguments have some types."""
    context = cuda.current_context()
    key = id(context), function, kinds
    if key not in _LOADED:
        text, _ = compile_ptx_for_current_device(function, kinds)
        (name,) = re.findall(r"\.visible \.entry (\w+)\(", text)
        module = checked(driver.cuModuleLoadData(text.encode() + b"\0"))
        _LOADED[key] = checked(driver.cuModuleGetFunction(module, name.encode())), context
    return _LOADED[key][0]


def _is_done(result: tuple[Any, ...]) -> bool:
    """What a query returned; raises ``RuntimeError`` if it is a failure."""
    if result[0] == driver.CUresult.CUDA_ERROR_NOT_READY:
        return False
    checked(result)
    return True


def _destroy_with(owner: object, destroy: Callable[[Any], Any], handle: Any) -> None:
    """Gives a handle back when its owner is garbage; the driver waits for what is under way."""
    weakref.finalize(owner, destroy, handle).atexit = False  # the driver may have gone before


def _address(array: Any) -> int:
    return int(array.__cuda_array_interface__["data"][0])


def _address_here(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _type_of(argument: Any) -> Any:
    if isinstance(argument, int):
        return types.int64
    return types.Array(from_dtype(argument.dtype), argument.ndim, "C")


def _words_of(argument: Any) -> list[int]:
    """An argument as kernels take it: of an array two that are none, sizes, address and shape."""
    if isinstance(argument, int):
        return [argument]
    itemsize, shape = argument.dtype.itemsize, list(argument.shape)
    strides = [itemsize * int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    return [0, 0, int(np.prod(shape)), itemsize, _address(argument), *shape, *strides]
