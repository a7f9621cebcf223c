"""A compiled network: inputs are gathered from batch and pages, outputs handed over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.openvino.mirror import PARTS, Mirror
from edgerun.backends.openvino.translation import Extent, Fill, Piece, Translation
from edgerun.errors import BackendError
from edgerun.state import AttentionState
from edgerun.state.store import Block


class Request(Protocol):
    """What a compiled network does."""

    def start(self, arrays: list[NDArray[Any]]) -> None:
        """Begins to compute from the inputs, in order, which must not change until it has ended.

        Raises:
            RuntimeError: the device failed.
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
        """Ends what was started; the outputs are lost."""
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


@dataclass(frozen=True, slots=True)
class Interface:
    """What goes in and out of a network, in order.

    Attributes:
        extent: its static sizes.
        inputs: names.
        fills: of the inputs that are computed for every call, how.
        past: of the inputs that come out of pages, the layer's state and 0 for keys, 1 for values.
        outputs: names of the segment's outputs.
        present: states of the layers whose new keys and values follow, in turn.
        passed: of outputs, keys and values that are an input as it came, by their place, the
            input's name: no device copies them, and the NPU's partitioner cannot.
    """

    extent: Extent
    inputs: tuple[str, ...]
    fills: dict[str, Fill]
    past: dict[str, tuple[AttentionState, int]]
    outputs: tuple[str, ...]
    present: tuple[AttentionState, ...]
    passed: dict[int, str] = field(default_factory=dict)


def results_of(translation: Translation) -> list[Any]:
    """What a network computes of the segment's outputs and of new keys and values."""
    passed = _passed(translation)
    values = (value for place, value in enumerate(_values_of(translation)) if place not in passed)
    return [translation.ops.result(value) for value in values]


def _values_of(translation: Translation) -> list[Any]:
    """The segment's outputs, then new keys and values."""
    rows = [part for layer in translation.present for part in layer.rows]
    return [*translation.outputs.values(), *rows]


def _passed(translation: Translation) -> dict[int, str]:
    """See ``Interface``; none if nothing else would be left to compute."""
    values = _values_of(translation)
    names = {
        place: value.get_friendly_name()
        for place, value in enumerate(values)
        if value.get_type_name() == "Parameter"
    }
    return names if len(names) < len(values) else {}


def interface_of(translation: Translation, results: list[Any]) -> Interface:
    """What goes into a network, without what no result needs, and what comes out."""
    read = _reachable(results)
    return Interface(
        translation.extent,
        tuple(name for name in translation.inputs if name in read),
        translation.fills,
        {
            f"{layer.state.name}.{part}": (layer.state, index)
            for layer in translation.present
            for index, part in enumerate(PARTS)
        },
        tuple(translation.outputs),
        tuple(layer.state for layer in translation.present),
        _passed(translation),
    )


def model_of(translation: Translation) -> Any:
    """OpenVINO's model of a translation."""
    from openvino import Model

    results = results_of(translation)
    inputs = interface_of(translation, results).inputs
    return Model(results, [translation.inputs[name] for name in inputs], "segment")


def _reachable(results: list[Any]) -> set[str]:
    """Names of all nodes that results depend on."""
    names: set[str] = set()
    waiting = list(results)
    while waiting:
        node = waiting.pop()
        if node.get_name() in names:
            continue
        names |= {node.get_name(), node.get_friendly_name()}
        waiting += [source.get_node() for source in node.input_values()]
    return names


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
        """
        began = time.perf_counter()
        past = self._past(piece, mirror)
        self.tally.moving_s += time.perf_counter() - began
        fills = self._interface.fills
        arrays = [
            past[name] if name in past else fills[name](piece) for name in self._interface.inputs
        ]
        passed = {place: fills[name](piece) for place, name in self._interface.passed.items()}
        return Running(self._interface, self._request, self.tally, piece, arrays, passed, began)

    def _past(self, piece: Piece, mirror: Mirror) -> dict[str, NDArray[np.float32]]:
        """What came before the piece, by input."""
        arrays: dict[str, NDArray[np.float32]] = {}
        for state in dict.fromkeys(state for state, _ in self._interface.past.values()):
            names = [f"{state.name}.{part}" for part in PARTS]
            if names[0] in self._interface.inputs:
                rows = mirror.past(state, piece.start, self.extent.past)
                arrays.update(zip(names, rows, strict=True))
        return arrays


class Running:
    """A piece that a device computes; leaving the block before it has ended stops it."""

    def __init__(
        self,
        interface: Interface,
        request: Request,
        tally: Tally,
        piece: Piece,
        arrays: list[NDArray[Any]],
        passed: dict[int, NDArray[np.float32]],
        began: float,
    ) -> None:
        """Starts the request.

        Args:
            interface: of the network.
            request: of the network, which is idle.
            tally: of the network.
            piece: what is computed.
            arrays: the network's inputs, in order.
            passed: results that are inputs, by their place; see ``Interface``.
            began: when the first of them was prepared, by ``time.perf_counter``.

        Raises:
            RuntimeError: the device failed.
        """
        self._interface, self._request, self._tally = interface, request, tally
        self._piece, self._passed = piece, passed
        self._began, self._is_over = began, False
        request.start(arrays)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_over:
            self._request.cancel()  # it reads the inputs

    def has_ended(self) -> bool:
        """Whether the device has nothing to do any more."""
        return self._request.has_ended()

    def wait(self) -> Results:
        """What the device computed; nothing is in the pages yet.

        Raises:
            RuntimeError: the device failed.
            TimeoutError: it does not answer.
            BackendError: it computed what is no number.
        """
        computed = self._request.wait()
        self._is_over = True
        for place, array in sorted(self._passed.items()):
            computed.insert(place, array)
        count = len(self._interface.outputs)
        blocks = dict(self._blocks(computed[count:]))
        checked = [part for block in blocks.values() for part in block]
        for array in (*computed[:count], *checked):
            if not np.isfinite(array).all():
                raise BackendError("it computed NaN or infinity")
        outputs = dict(zip(self._interface.outputs, computed[:count], strict=True))
        self._tally.calls += 1
        self._tally.tokens += self._piece.length
        self._tally.seconds += time.perf_counter() - self._began
        return Results(outputs, blocks)

    def _blocks(self, rows: list[NDArray[np.float32]]) -> Iterator[tuple[AttentionState, Block]]:
        parts, length = iter(rows), self._piece.length
        for state in self._interface.present:
            keys, values = (next(parts)[:length] for _ in range(2))
            yield (
                state,
                (
                    keys.reshape(length, state.kv_heads, state.key_dim),
                    values.reshape(length, state.kv_heads, state.value_dim),
                ),
            )
