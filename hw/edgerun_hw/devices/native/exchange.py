"""How native code reaches an overlay: one function, ``exchange(context, request)``.

A request is four words: what is asked, two numbers, and the answer. On a board the function is
native too (``board_exchange``): registers are loads and stores, caches are synchronised by writing
u-dma-buf's attributes. Anything else that has registers and buffers is asked through Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgerun_hw.overlay.port import DevicePort

# What a request asks, and its words.
READ, WRITE, WAIT, FLUSH, INVALIDATE = range(5)
ASKED, FIRST, SECOND, ANSWER, REQUEST_WORDS = range(5)
SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)


@dataclass(frozen=True)
class Exchange:
    """The function and what it is called with.

    Attributes:
        function: its address.
        context: its first argument.
        keep: what must live as long.
        failures: what Python raised meanwhile, in order.
    """

    function: int
    context: int
    keep: tuple[Any, ...]
    failures: list[BaseException]


def python_exchange(
    port: DevicePort,
    flush: Callable[[int, int], None],
    invalidate: Callable[[int, int], None],
) -> Exchange:
    """An exchange with a port of Python.

    ``FLUSH`` and ``INVALIDATE`` name the first byte in the contiguous memory and how many,
    multiples of 16.

    After a failure or Ctrl-C every answer is -1, and nothing is asked of the port any more.
    """
    failures: list[BaseException] = []
    calls: dict[int, Callable[[int, int], int | None]] = {
        READ: lambda offset, _: port.read(offset),
        WRITE: port.write,
        WAIT: lambda cycles, _: port.wait(cycles),
        FLUSH: flush,
        INVALIDATE: invalidate,
    }

    def answer(context: int, request: int) -> None:
        words = np.ctypeslib.as_array((ctypes.c_int64 * REQUEST_WORDS).from_address(request))
        words[ANSWER] = -1
        if failures:
            return
        try:
            result = calls[int(words[ASKED])](int(words[FIRST]), int(words[SECOND]))
            words[ANSWER] = 0 if result is None else result
        except BaseException as error:  # it must not pass through native code
            failures.append(error)

    function = SIGNATURE(answer)
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return Exchange(address, 0, (function, port), failures)


def board_exchange(registers: int, descriptors: tuple[int, int], clock_hz: float) -> Exchange:
    """An exchange with mapped registers and one u-dma-buf device.

    Args:
        registers: address at which they are mapped.
        descriptors: open files, of ``sync_for_device`` and of ``sync_for_cpu``.
        clock_hz: of the logic, by which ``WAIT`` reckons.
    """
    from edgerun_hw.devices.native.board_code import exchange

    nanoseconds = round(1e9 * 1024 / clock_hz)
    context = np.array([registers, *descriptors, nanoseconds], np.int64)
    return Exchange(exchange.address, context.ctypes.data, (context,), [])
