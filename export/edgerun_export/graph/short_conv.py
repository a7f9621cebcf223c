"""Short convolutions with what they remember, in elementary ops."""

from __future__ import annotations

from edgerun_export.architectures import DecoderSpec
from edgerun_export.graph.blocks import FLOAT, INT64_MAX
from edgerun_export.graph.onnx_graph import OnnxGraph, node_path
from edgerun_export.graph.weight_store import WeightStore

_CHANNELS_FIRST = [0, 2, 1]  # and back


class ConvBuilder:
    """Adds the convolutions of a decoder.

    A layer remembers its inputs of as many tokens as it reads beside a row's own,
    ``[batch, hidden_size, taps - 1]``, zeros before the first, as onnxruntime-genai has them.
    Tokens that are padding count as zeros.
    """

    def __init__(self, graph: OnnxGraph, store: WeightStore, spec: DecoderSpec) -> None:
        self._graph, self._store, self._spec = graph, store, spec
        self._mask: str | None = None

    def mix(self, layer: int, gate: str, out: str, value: str) -> str:
        """Adds ``out * convolution(gate * value)``, all ``[batch, sequence, hidden_size]``."""
        conv, add = self._spec.layers[layer].conv, self._graph.node
        assert conv is not None
        at = node_path(f"model.layers.{layer}.{conv.module}")
        gated = add("Mul", [gate, value], f"{at}/gated")
        width = self._spec.hidden_size
        rows = self.convolve(layer, gated, at, conv.weight, width, conv.taps)
        return add("Mul", [out, rows], f"{at}/Mul")

    def convolve(
        self, layer: int, value: str, at: str, weight: str, width: int, taps: int, bias: str = ""
    ) -> str:
        """Adds a convolution of each element with its latest values, and what it remembers.

        Args:
            layer: its number.
            value: ``[batch, sequence, width]``.
            at: path of the nodes.
            weight: path of the weight below the layer.
            width: elements of a token.
            taps: tokens that a row reads.
            bias: likewise of what is added for tokens that are no padding; empty for nothing.

        Returns:
            ``[batch, sequence, width]``.
        """
        add, integers, number = self._graph.node, self._graph.integers, self._spec.state(layer)
        turned = add("Transpose", [value], f"{at}/Transpose", perm=_CHANNELS_FIRST)
        inputs = add("Mul", [turned, self._tokens()], f"{at}/inputs")
        seen = add("Concat", [f"past_key_values.{number}.conv", inputs], f"{at}/Concat", axis=2)
        add(
            "Slice",
            [seen, integers(1 - taps), integers(INT64_MAX), integers(2)],
            f"{at}/Slice",
            outputs=[f"present.{number}.conv"],
        )
        paths = [weight, bias] if bias else [weight]
        stored = [self._store.vector(f"model.layers.{layer}.{path}") for path in paths]
        mixed = add("Conv", [seen, *stored], f"{at}/Conv", group=width, kernel_shape=[taps])
        if bias:
            mixed = add("Mul", [mixed, self._tokens()], f"{at}/biased")
        return add("Transpose", [mixed], f"{at}/Transpose_back", perm=_CHANNELS_FIRST)

    def _tokens(self) -> str:
        """Ones for tokens and zeros for padding, ``[batch, 1, sequence]``; made once."""
        if self._mask is None:
            add, integers, at = self._graph.node, self._graph.integers, "/model/tokens"
            total = add("Shape", ["attention_mask"], f"{at}/total", start=1, end=2)
            length = add("Shape", ["input_ids"], f"{at}/sequence", start=1, end=2)
            past = add("Sub", [total, length], f"{at}/past")
            end, axis = integers(INT64_MAX), integers(1)
            new = add("Slice", ["attention_mask", past, end, axis], f"{at}/new")
            new = add("Cast", [new], f"{at}/Cast", to=FLOAT)
            self._mask = add("Unsqueeze", [new, axis], f"{at}/Unsqueeze")
        return self._mask
