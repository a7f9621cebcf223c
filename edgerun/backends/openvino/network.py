"""A compiled network: inputs are gathered from batch and mirror, outputs handed over."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.openvino.interface import Interface
from edgerun.backends.openvino.mirror import Mirror
from edgerun.backends.openvino.translation import Extent, Piece, part_names
from edgerun.errors import BackendError
from edgerun.state import AttentionState
from edgerun.state.store import Block


class Request(Protocol):
    """What a compiled network does."""

    def start(self, arrays: list[NDArray[Any]]) -> None:
        """Begins to compute from the inputs, in order, which must not change until it has ended.

        What was cancelled, and is still computed, is waited for.

        Raises:
            RuntimeError: the device failed.
            TimeoutError: it does not answer.
        """
        ...

    def has_ended(self) -> bool:
        """Whether the device has nothing to do any more."""
        ...

    def wait(self) -> list[NDArray[np.float32]]:
        """The outputs, in order, once they are computed; valid until the next start.

        Raises:
            RuntimeError: the device failed.
            TimeoutError: it does not answer.
        """
        ...

    def cancel(self) -> None:
        """Asks what was started to end, which may take a while; the outputs are lost."""
        ...

    def export(self) -> bytes:
        """The compiled network as a blob.

        Raises:
            RuntimeError: the device's compiler has none.
        """
        ...


@dataclass(frozen=True, slots=True)
class Results:
    """What a call computed; nothing is in the pages yet.

    Attributes:
        outputs: of the segment, by name, padded rows included.
        blocks: new keys and values by the state of their layer, those of tokens only.
    """

    outputs: dict[str, NDArray[np.float32]]
    blocks: dict[AttentionState, Block]


@dataclass(slots=True)
class Tally:
    """What one network did.

    Attributes:
        extent: of the network.
        compile_s: seconds until it could be used, checks included.
        calls: of the device.
        tokens: in these calls, without those that pad.
        seconds: of these calls, copies in and out included.
        moving_s: of these, to move keys and values out of pages and into them.
        overlapped_s: of those, while the device computed.
    """

    extent: Extent
    compile_s: float = 0.0
    calls: int = 0
    tokens: int = 0
    seconds: float = 0.0
    moving_s: float = 0.0
    overlapped_s: float = 0.0


class Network:
    """Runs pieces on a device.

    Attributes:
        extent: its static sizes.
        tally: what it did so far.
    """

    def __init__(self, interface: Interface, request: Request) -> None:
        """Takes what was compiled."""
        self.extent = interface.extent
        self.tally = Tally(interface.extent)
        self._interface, self._request = interface, request

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs of the segment that it computes."""
        return self._interface.outputs

    def export(self) -> bytes:
        """The network as a blob; see ``Request``."""
        return self._request.export()

    def start(self, piece: Piece, mirror: Mirror) -> Running:
        """Lets the device compute a piece; the mirror must not change until it has ended.

        Raises:
            RuntimeError: the device failed.
            TimeoutError: it does not answer.
        """
        began = time.perf_counter()
        past = self._past(piece, mirror)
        self.tally.moving_s += time.perf_counter() - began
        fills = self._interface.fills
        arrays = [
            past[name] if name in past else fills[name](piece) for name in self._interface.inputs
        ]
        passed = {place: fills[name](piece) for place, name in self._interface.passed.items()}
        self._request.start(arrays)
        return Running(self._interface, self._request, self.tally, piece, passed, began)

    def _past(self, piece: Piece, mirror: Mirror) -> dict[str, NDArray[np.float32]]:
        """Keys and values that are there already, by input."""
        before, room = piece.start, self.extent.past
        reads = [(state, before, room) for state in self._interface.past]
        reads += [
            (state, before + piece.length, room + self.extent.rows)
            for state in self._interface.written
        ]
        arrays: dict[str, NDArray[np.float32]] = {}
        for read in reads:
            arrays.update(zip(part_names(read[0]), mirror.past(*read), strict=True))
        return arrays


@dataclass(slots=True)
class Running:
    """A piece that a device computes; leaving the block before it has ended stops it.

    Attributes:
        interface: of the network.
        request: of the network, which was started.
        tally: of the network.
        piece: what is computed.
        passed: results that are inputs, by their place; see ``Interface``.
        began: when the first input was prepared, by ``time.perf_counter``.
        is_over: whether the outputs were taken.
    """

    interface: Interface
    request: Request
    tally: Tally
    piece: Piece
    passed: Mapping[int, NDArray[np.float32]]
    began: float
    is_over: bool = False

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.is_over:
            self.request.cancel()  # it reads the inputs

    def has_ended(self) -> bool:
        """Whether the device has nothing to do any more."""
        return self.request.has_ended()

    def wait(self) -> Results:
        """What the device computed; nothing is in the pages yet.

        Raises:
            RuntimeError: the device failed.
            TimeoutError: it does not answer.
            BackendError: it computed what is no number.
        """
        computed = self.request.wait()
        self.is_over = True
        for place, array in sorted(self.passed.items()):
            computed.insert(place, array)
        count = len(self.interface.outputs)
        blocks = dict(self._blocks(computed[count:]))
        checked = [part for block in blocks.values() for part in block]
        for array in (*computed[:count], *checked):
            if not np.isfinite(array).all():
                raise BackendError("it computed NaN or infinity")
        outputs = dict(zip(self.interface.outputs, computed[:count], strict=True))
        self.tally.calls += 1
        self.tally.tokens += self.piece.length
        self.tally.seconds += time.perf_counter() - self.began
        return Results(outputs, blocks)

    def _blocks(self, rows: list[NDArray[np.float32]]) -> Iterator[tuple[AttentionState, Block]]:
        parts, length = iter(rows), self.piece.length
        for state in self.interface.present:
            keys, values = (next(parts)[:length] for _ in range(2))
            yield (
                state,
                (
                    keys.reshape(length, state.kv_heads, state.key_dim),
                    values.reshape(length, state.kv_heads, state.value_dim),
                ),
            )
