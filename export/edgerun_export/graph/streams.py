"""Residual streams beside the first (AltUp), and a way past attention, in elementary ops."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun_export.architectures import DecoderSpec
from edgerun_export.architectures.decoder.streams import AltUp, Laurel
from edgerun_export.graph.linear import LinearBuilder
from edgerun_export.graph.onnx_graph import OnnxGraph, node_path
from edgerun_export.graph.per_layer import Norm
from edgerun_export.graph.weight_store import WeightStore

F32 = NDArray[np.float32]


class StreamsBuilder:
    """Adds what becomes of all streams, ``[batch, sequence, streams, hidden]``."""

    def __init__(
        self,
        graph: OnnxGraph,
        store: WeightStore,
        spec: DecoderSpec,
        linear: LinearBuilder,
        norm: Norm,
    ) -> None:
        self._graph, self._store, self._spec = graph, store, spec
        self._linear, self._norm = linear, norm
        self._router: tuple[int, str, str] | None = None  # of the layer that was met last

    def begin(self, embedded: str, altup: AltUp) -> str:
        """Adds the streams that begin with what tokens are embedded as."""
        hidden, add = self._spec.hidden_size, self._graph.node
        size = self._magnitude(embedded, "/model/altup/magnitude")
        others = [
            self._matched(self._linear.vocabulary_projection(name, embedded, hidden), size, name)
            for name in altup.begins
        ]
        joined = add("Concat", [embedded, *others], "/model/altup/Concat", axis=-1)
        shape = self._graph.integers(0, 0, altup.count, hidden)
        return add("Reshape", [joined, shape], "/model/altup/Reshape")

    def predict(self, streams: str, layer: int, altup: AltUp) -> str:
        """Adds the streams as a layer expects them, each a sum of all."""
        add, at = self._graph.node, node_path(f"model.layers.{layer}.altup.predict")
        first = self.first(streams, f"{at}/first")
        # One product makes the sums; the stream itself is added by the identity.
        unchanged = np.eye(altup.count, dtype=np.float32).ravel()
        coefs = self._coefs(first, layer, altup.prediction, unchanged, at)
        shape = self._graph.integers(0, 0, altup.count, altup.count)
        matrices = add("Reshape", [coefs, shape], f"{at}/Reshape")
        return add("MatMul", [matrices, streams], f"{at}/MatMul")

    def correct(
        self, predictions: str, activated: str, layer: int, altup: AltUp
    ) -> tuple[str, str]:
        """Adds the streams behind a layer that made ``activated`` of the first, and that scaled."""
        module, integers = f"model.layers.{layer}", self._graph.integers
        add, at = self._graph.node, node_path(f"{module}.altup.correct")
        ones = np.ones(altup.count, np.float32)
        coefs = self._coefs(activated, layer, altup.correction, ones, at)
        change = self.first(predictions, f"{at}/predicted")
        change = add("Sub", [activated, change], f"{at}/Sub")
        change = add("Unsqueeze", [change, integers(2)], f"{at}/change")
        coefs = add("Unsqueeze", [coefs, integers(3)], f"{at}/column")
        changes = add("Mul", [change, coefs], f"{at}/Mul")
        streams = add("Add", [predictions, changes], f"{at}/Add")
        first = self.first(streams, f"{at}/first")
        if altup.scales_output:
            scale = self._store.vector(f"{module}.{altup.output_scale}")
            first = add("Mul", [first, scale], f"{at}/scale")
        return streams, first

    def add_to_others(self, streams: str, added: str, layer: int, altup: AltUp) -> str:
        """Adds a row to all streams but the first."""
        add, at = self._graph.node, node_path(f"model.layers.{layer}.altup.others")
        others = np.ones((altup.count, 1), np.float32)
        others[0] = 0
        row = add("Unsqueeze", [added, self._graph.integers(2)], f"{at}/Unsqueeze")
        rows = add("Mul", [row, self._graph.constant(others)], f"{at}/Mul")
        return add("Add", [streams, rows], f"{at}/Add")

    def end(self, streams: str, altup: AltUp) -> str:
        """Adds the mean of all streams, multiplied back and as large as the first."""
        add, total = self._graph.node, self.first(streams, "/model/altup/first")
        size, hidden = self._magnitude(total, "/model/altup/end_magnitude"), self._spec.hidden_size
        for number, name in enumerate(altup.ends, 1):
            stream = self.first(streams, f"/model/altup/stream_{number}", number)
            product = self._linear.vocabulary_projection(name, stream, hidden)
            matched = self._matched(product, size, name)
            total = add("Add", [total, matched], f"/model/altup/sum_{number}")
        return add("Mul", [total, self._graph.scalar(1 / altup.count)], "/model/altup/mean")

    def first(self, streams: str, name: str, number: int = 0) -> str:
        """Adds the first stream, or that of a number."""
        return self._graph.node("Gather", [streams, self._graph.integer(number)], name, axis=2)

    def laurel(self, hidden: str, normed: str, layer: int, laurel: Laurel) -> str:
        """Adds to what attention made of a stream what goes past it, and scales the sum."""
        module = f"model.layers.{layer}"
        add, at, value = self._graph.node, node_path(f"{module}.laurel"), normed
        for projection in laurel.projections(self._spec.hidden_size).values():
            value = self._linear.projection(value, module, projection)
        value = self._norm(value, f"{module}.{laurel.norm}", self._spec.norm_eps)
        value = add("Add", [normed, value], f"{at}/Add")
        total = add("Add", [hidden, value], f"{at}/residual")
        return add("Mul", [total, self._graph.scalar(0.5**0.5)], f"{at}/Mul")

    def _coefs(self, value: str, layer: int, name: str, bias: F32, at: str) -> str:
        """Adds what a layer's router says of a stream, times a matrix, plus a constant."""
        add = self._graph.node
        norm, router = self._router_weights(layer)
        normed = add(
            "RMSNormalization",
            [value, norm],
            f"{at}/RMSNormalization",
            axis=-1,
            epsilon=self._spec.norm_eps,
        )
        routed = add("MatMul", [normed, router], f"{at}/router")
        routed = add("Tanh", [routed], f"{at}/Tanh")
        weight = self._store.transposed(f"model.layers.{layer}.{name}.weight")
        coefs = add("MatMul", [routed, weight], f"{at}/coefs")
        return add("Add", [coefs, self._graph.constant(bias)], f"{at}/bias")

    def _router_weights(self, layer: int) -> tuple[str, str]:
        """The norm and the matrix of a layer's router, which are there once and read twice."""
        if self._router is None or self._router[0] != layer:
            module = f"model.layers.{layer}"
            norm = self._store.vector(f"{module}.{AltUp.norm}.weight")
            self._router = layer, norm, self._store.transposed(f"{module}.{AltUp.router}.weight")
        return self._router[1:]

    def _magnitude(self, value: str, at: str, floor: float | None = None) -> str:
        """Adds the root of the mean of squares, of no less than ``floor``."""
        add, axis = self._graph.node, self._graph.integers(-1)
        squares = add("Mul", [value, value], f"{at}/Mul")
        mean = add("ReduceMean", [squares, axis], f"{at}/ReduceMean", keepdims=1)
        if floor is not None:
            mean = add("Clip", [mean, self._graph.scalar(floor)], f"{at}/Clip")
        return add("Sqrt", [mean], f"{at}/Sqrt")

    def _matched(self, value: str, size: str, name: str) -> str:
        """Adds a value that is made as large as another, whose magnitude is given."""
        add, at = self._graph.node, node_path(name.removesuffix(".weight"))
        own = self._magnitude(value, f"{at}/magnitude", AltUp.floor)
        factor = add("Div", [size, own], f"{at}/Div")
        return add("Mul", [value, factor], f"{at}/Mul")
