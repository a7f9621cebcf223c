"""A compiled network: inputs are gathered from batch and pages, outputs handed over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.openvino.translation import Extent, Fill, Piece, Translation
from edgerun.errors import BackendError
from edgerun.state import AttentionState, SequenceStore
from edgerun.state.store import Block


class Request(Protocol):
    """What a compiled network does."""

    def __call__(self, arrays: list[NDArray[Any]]) -> list[NDArray[np.float32]]:
        """Computes the outputs from the inputs, both in order.

        Raises:
            RuntimeError: the device failed.
            TimeoutError: it does not answer.
        """
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
        blocks: new keys and values by layer, those of tokens only.
    """

    outputs: dict[str, NDArray[np.float32]]
    blocks: dict[str, Block]


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
    """

    extent: Extent
    inputs: tuple[str, ...]
    fills: dict[str, Fill]
    past: dict[str, tuple[AttentionState, int]]
    outputs: tuple[str, ...]
    present: tuple[AttentionState, ...]


def results_of(translation: Translation) -> list[Any]:
    """What a network computes: the segment's outputs, then new keys and values."""
    rows = [part for layer in translation.present for part in layer.rows]
    return [translation.ops.result(value) for value in (*translation.outputs.values(), *rows)]


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
            for index, part in enumerate(("key", "value"))
        },
        tuple(translation.outputs),
        tuple(layer.state for layer in translation.present),
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
        moving_s: of these, to copy keys and values out of pages and into them.
    """

    extent: Extent
    compile_s: float = 0.0
    calls: int = 0
    tokens: int = 0
    seconds: float = 0.0
    moving_s: float = 0.0


class PastBuffers:
    """Memory for keys and values before a call, float32 ``[tokens, heads * dim]`` by input.

    The networks of a segment share it: each fills in what its call needs.
    """

    def __init__(self) -> None:
        """Has none yet."""
        self._arrays: dict[str, NDArray[np.float32]] = {}

    def of(self, name: str, tokens: int, width: int) -> NDArray[np.float32]:
        """Memory for so many tokens, with what was left in it; grows to the largest of a name."""
        array = self._arrays.get(name)
        if array is None or len(array) < tokens:
            array = self._arrays[name] = np.zeros((tokens, width), np.float32)
        return array[:tokens]


class Network:
    """Runs pieces on a device.

    Attributes:
        extent: its static sizes.
        tally: what it did so far.
    """

    def __init__(self, interface: Interface, request: Request, buffers: PastBuffers) -> None:
        """Takes what was compiled, and memory for the past."""
        self.extent = interface.extent
        self.tally = Tally(interface.extent)
        self._interface, self._request, self._buffers = interface, request, buffers

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs of the segment that it computes."""
        return self._interface.outputs

    def export(self) -> bytes:
        """The network as a blob; see ``Request``."""
        return self._request.export()

    def run(self, piece: Piece, cache: SequenceStore) -> Results:
        """Computes a piece; changes nothing.

        Raises:
            RuntimeError: the device failed.
            TimeoutError: it does not answer.
            BackendError: it computed what is no number.
        """
        began = time.perf_counter()
        past = self._read_past(piece, cache)
        self.tally.moving_s += time.perf_counter() - began
        fills = self._interface.fills
        arrays = [
            past[name] if name in past else fills[name](piece) for name in self._interface.inputs
        ]
        computed = self._request(arrays)
        count = len(self._interface.outputs)
        blocks = dict(self._blocks(piece, computed[count:]))
        checked = [part for block in blocks.values() for part in block]
        for array in (*computed[:count], *checked):
            if not np.isfinite(array).all():
                raise BackendError("it computed NaN or infinity")
        outputs = dict(zip(self._interface.outputs, computed[:count], strict=True))
        self.tally.calls += 1
        self.tally.tokens += piece.length
        self.tally.seconds += time.perf_counter() - began
        return Results(outputs, blocks)

    def _read_past(self, piece: Piece, cache: SequenceStore) -> dict[str, NDArray[np.float32]]:
        """What came before the piece, out of the pages, dequantised, by input.

        What lies behind it is of other calls, and hidden by the mask.
        """
        arrays: dict[str, NDArray[np.float32]] = {}
        for state in dict.fromkeys(state for state, _ in self._interface.past.values()):
            names = [f"{state.name}.{part}" for part in ("key", "value")]
            if names[0] not in self._interface.inputs:
                continue
            block = cache.read_block(state.name, piece.slot, 0, piece.start)
            for name, part in zip(names, block, strict=True):
                width = part.shape[1] * part.shape[2]
                arrays[name] = self._buffers.of(name, self.extent.past, width)
                arrays[name][: piece.start] = part.reshape(piece.start, width)
        return arrays

    def _blocks(self, piece: Piece, rows: list[NDArray[np.float32]]) -> Iterator[tuple[str, Block]]:
        parts = iter(rows)
        for state in self._interface.present:
            keys, values = (next(parts)[: piece.length] for _ in range(2))
            yield (
                state.name,
                (
                    keys.reshape(piece.length, state.kv_heads, state.key_dim),
                    values.reshape(piece.length, state.kv_heads, state.value_dim),
                ),
            )
