"""A segment on the device, and its stand-in when the device fails."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.base import NO_VALUES, CompileOptions, Executable, Shape, Values
from edgerun.errors import BackendError
from edgerun.formats.base import PackedWeight
from edgerun.graph.ir import Graph, Node
from edgerun.state import Batch, SequenceStore
from edgerun_hw.backend.attention import FabricAttention
from edgerun_hw.backend.matrix import DeviceMatrix, stack_key
from edgerun_hw.backend.products import Product, Quantised, quantise_activations
from edgerun_hw.backend.session import Session
from edgerun_hw.backend.tally import Tally
from edgerun_hw.overlay.attention import OutsideFormatError

logger = logging.getLogger(__name__)
F32: TypeAlias = NDArray[np.float32]
FULL = "its memory is full"


class DeviceExecutable(Executable):
    """Runs a segment on the device; if that fails, on the back-end that stands in for it."""

    def __init__(
        self, segment: Graph, shape: Shape, session: Session, tally: Tally, options: CompileOptions
    ) -> None:
        """Uses the session until it is closed."""
        self._segment, self._shape = segment, shape
        self._session, self._tally = session, tally
        self._fallback = None if options.required else options.fallback
        self._stand_in: Executable | None = None
        self._open = True
        self._obstacle = ""  # why the device has not run the segment, where it did not fail
        session.acquire()

    def __call__(self, batch: Batch, cache: SequenceStore, values: Values = NO_VALUES) -> Values:
        """Runs the segment; see ``Executable``.

        Raises:
            BackendError: the device failed and no back-end stands in for it.
        """
        self._tally.tokens += batch.rows
        outputs = self._on_device(batch, cache, values)
        if outputs is not None:
            return outputs
        if self._stand_in is None:
            if self._fallback is None:
                failure = self._session.failure
                what = f"failed ({failure})" if failure else f"cannot run this ({self._obstacle})"
                raise BackendError(
                    f"the FPGA device {what} and no other back-end was given to take over, or may"
                )
            self._stand_in = self._fallback(self._segment, self._shape)
        return self._stand_in(batch, cache, values)

    def close(self) -> None:
        """Closes the device when no other segment uses it."""
        if not self._open:
            return
        self._open = False
        if self._stand_in is not None:
            self._stand_in.close()
        self._session.release()

    @abstractmethod
    def _on_device(self, batch: Batch, cache: SequenceStore, values: Values) -> Values | None:
        """The segment's outputs, or None if the device cannot be used."""


class FabricExecutable(DeviceExecutable):
    """Runs linear layers and attention on the device, and what they need on the host, in NumPy."""

    def __init__(
        self, segment: Graph, shape: Shape, session: Session, tally: Tally, options: CompileOptions
    ) -> None:
        """Packs the weights and writes them to the device, unless another phase has done it."""
        super().__init__(segment, shape, session, tally, options)
        self._waves: list[list[_Group]] = []
        self._attention: dict[int, tuple[Node, FabricAttention]] = {}  # by wave
        self._fits = True
        for nodes in _waves(segment):
            if nodes[0].op == "attention":
                attention = FabricAttention(nodes[0], session)
                self._attention[len(self._waves)] = nodes[0], attention
                self._waves.append([])
                continue
            self._waves.append(list(_groups(segment, nodes)))
            for group in self._waves[-1]:
                by_block = group.quantisation[1] == "int8_block"
                group.matrix = session.matrix(group.weights, by_block)
                self._fits &= group.matrix is not None

    def _on_device(self, batch: Batch, cache: SequenceStore, values: Values) -> Values | None:
        if not self._fits:
            self._obstacle = FULL
            return None
        try:
            return self._session.attempt(lambda: self._run(batch, cache, values))
        except OutsideFormatError as error:  # of this call; the next may be another
            logger.debug("attention is the CPU's: %s", error)
            self._obstacle = str(error)
            return None
        except MemoryError:
            self._session.say_full()
            self._obstacle, self._fits = FULL, False
            return None

    def _run(self, batch: Batch, cache: SequenceStore, values: Values) -> Values:
        """All waves, each after the one that it reads from.

        Raises:
            OutsideFormatError: attention is beyond the unit's format.
            OverlayError: the device failed.
        """
        values_by_name = dict(values)
        for number, wave in enumerate(self._waves):
            if number in self._attention:
                node, attention = self._attention[number]
                values_by_name[node.outputs[0]] = attention.run(batch, cache, values_by_name)
                continue
            products = self._products(wave, values_by_name)
            self._session.multiplier.multiply(products)
            for group, product in zip(wave, products, strict=True):
                ends = np.cumsum([weight.shape[0] for weight in group.weights])
                outs = np.split(product.out, ends[:-1], axis=1)
                for node, out in zip(group.nodes, outs, strict=True):
                    values_by_name[node.outputs[0]] = self._finish(node, out, values_by_name)
        self._tally.add(*self._session.spent())
        return {name: values_by_name[name] for name in self._segment.outputs}

    def _products(self, wave: Sequence[_Group], values: dict[str, F32]) -> list[Product]:
        """What a wave multiplies; groups that read the same value share its quantised form."""
        quantised: dict[tuple[str, str, int], Quantised] = {}
        products = []
        for group in wave:
            source, activations, block = group.quantisation
            key = (source, activations, block if activations == "int8_block" else 0)
            if key not in quantised:
                quantised[key] = quantise_activations(values[source], activations, block)
            assert group.matrix is not None
            products.append(Product(group.matrix, quantised[key]))
        return products

    def _finish(self, node: Node, out: F32, values: dict[str, F32]) -> F32:
        """Adds bias and residual, in the order of the CPU's kernels."""
        _, _, bias, residual = (*node.inputs, "", "")[:4]
        if bias:
            out = out + self._segment.array(bias)
        if residual:
            out = out + values[residual]
        return out


@dataclass
class _Group:
    """Layers of a wave that read the same value and lie on the device as one matrix.

    Attributes:
        nodes: in the order of the matrix's rows.
        weights: of the nodes.
        quantisation: the value's name, how it is quantised, and the block.
        matrix: on the device, or None if it is not there.
    """

    nodes: list[Node]
    weights: list[PackedWeight]
    quantisation: tuple[str, str, int]
    matrix: DeviceMatrix | None = None


def _groups(segment: Graph, wave: Sequence[Node]) -> Iterator[_Group]:
    together: dict[tuple[Any, ...], _Group] = {}
    for node in wave:
        weight = _weight(segment, node)
        quantisation = (node.inputs[0], str(node.attrs["activations"]), weight.block)
        group = together.setdefault((quantisation, stack_key(weight)), _Group([], [], quantisation))
        group.nodes.append(node)
        group.weights.append(weight)
    yield from together.values()


def _weight(segment: Graph, node: Node) -> PackedWeight:
    weight = segment.constants[node.inputs[1]]
    assert isinstance(weight, PackedWeight)
    return weight


def _waves(segment: Graph) -> Iterator[list[Node]]:
    """Runs of nodes that do not read one another's outputs; attention is a run by itself."""
    wave: list[Node] = []
    written: set[str] = set()
    for node in segment.nodes:
        alone = wave and "attention" in (node.op, wave[-1].op)
        if alone or written.intersection(node.inputs):
            yield wave
            wave, written = [], set()
        wave.append(node)
        written.update(node.outputs)
    yield wave
