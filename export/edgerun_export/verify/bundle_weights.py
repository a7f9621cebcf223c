"""Reads the weights back out of a bundle, dequantised, to verify what was written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from edgerun_export.architectures import DecoderSpec, Experts
from edgerun_export.architectures.decoder.storage import HEAD_WEIGHT
from edgerun_export.bundle_files import MODEL_FILE
from edgerun_export.graph.external_data import find_data
from edgerun_export.graph.fused_experts import STACKS

F32 = NDArray[np.float32]


class BundleWeights:
    """The tensors of a bundle by Hugging Face name, as float32.

    The bits are unpacked here by other code than the one that packed them.
    """

    def __init__(self, folder: Path, spec: DecoderSpec) -> None:
        model = onnx.load(str(folder / MODEL_FILE), load_external_data=False)
        self._spec = spec
        self._shapes = spec.tensors()
        (location,) = {where.location for where in find_data(model.graph.initializer)}
        self._data = np.memmap(folder / location, np.uint8, "r")
        self._bits = _bits(model)
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self._places = dict(_places(spec))

    def head_name(self) -> str:
        """Name of the head's tensor; a tied head may be stored in a format of its own."""
        own = any(name.startswith(HEAD_WEIGHT) for name in self._tensors)
        return HEAD_WEIGHT if own else self._spec.embedding_weight

    def vector(self, name: str) -> F32:
        """Reads a bias, the weight of a norm, or sinks, whatever their axes."""
        if name in self._tensors:
            vector: F32 = self._view(name).reshape(-1)
            return vector
        module, _, kind = name.rpartition(".")
        stack, expert, outputs = self._places[module]
        part: F32 = self._view(f"{stack}.{kind}")[expert][outputs]
        return part

    def matrix(self, name: str) -> F32:
        """Reads a whole matrix ``[N, K]``."""
        return self.rows(name, slice(None))

    def rows(self, name: str, rows: slice) -> F32:
        """Reads some rows of a matrix ``[N, K]``."""
        if name in self._tensors:
            return np.asarray(self._view(name)[rows])
        if f"{name}.transposed" in self._tensors:
            return np.asarray(self._view(f"{name}.transposed")[:, rows].T)
        zeros = offsets = None
        if f"{name}.codes" in self._tensors:
            stored = name
            if f"{name}.zeros" in self._tensors:
                zeros = self._view(f"{name}.zeros")[rows]
            if f"{name}.offsets" in self._tensors:
                offsets = self._view(f"{name}.offsets")[:, rows].T
            codes, scales = self._view(f"{name}.codes"), self._view(f"{name}.scales")
        else:
            stack, expert, outputs = self._places[name.removesuffix(".weight")]
            stored = f"{stack}.weight"
            codes, scales = (
                self._view(f"{stored}.{part}")[expert][outputs] for part in ("codes", "scales")
            )
            if f"{stored}.zeros" in self._tensors:
                zeros = self._view(f"{stored}.zeros")[expert][outputs][rows]
        blocks = codes[rows].reshape(*scales[rows].shape, -1)
        columns = self._columns(name)
        # Codes that no product reads belong to an embedding, whose rows are whole blocks.
        row_bits = 8 * blocks.shape[1] * blocks.shape[2]
        bits = self._bits.get(f"{stored}.codes", row_bits // columns)
        weights = _dequantise(blocks, scales[rows], zeros, bits, columns)
        if offsets is None:
            return weights
        return weights + np.repeat(offsets.astype(np.float32), blocks.shape[2] * 8 // bits, axis=1)

    def _columns(self, name: str) -> int:
        return self._shapes.get(name, (0, self._spec.hidden_size))[1]

    def _view(self, name: str) -> NDArray[Any]:
        tensor = self._tensors[name]
        (where,) = find_data([tensor])
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        piece = self._data[where.offset : where.offset + where.length]
        return piece.view(dtype).reshape(tensor.dims)


def _places(spec: DecoderSpec) -> Iterator[tuple[str, tuple[str, int, slice]]]:
    """By the path of an expert's projection: a stack, the expert, and which rows are its own."""
    for layer in range(spec.num_layers):
        part = spec.layers[layer].feed_forward
        if not isinstance(part, Experts):
            continue
        for expert, network in enumerate(spec.feed_forward(layer)):
            for stack, names in STACKS.items():
                whole = f"model.layers.{layer}.{part.module}.experts.{stack}"
                for first, name in enumerate(names if part.gated else ()):
                    path = f"model.layers.{layer}.{network[name].path}"
                    yield path, (whole, expert, slice(first, None, len(names)))


def _bits(model: onnx.ModelProto) -> dict[str, int]:
    """Maps the codes of every product to their width."""
    return {
        node.input[place]: next(a.i for a in node.attribute if a.name == key)
        for node in model.graph.node
        for op, key, places in (
            ("MatMulNBits", "bits", (1,)),
            ("QMoE", "expert_weight_bits", (2, 5)),
        )
        if node.op_type == op
        for place in places
    }


def _dequantise(
    codes: NDArray[np.uint8],
    scales: F32,
    zeros: NDArray[np.uint8] | None,
    bits: int,
    columns: int,
) -> F32:
    """Turns codes ``[n, blocks, bytes]`` into float32 ``[n, columns]``."""
    n, blocks, _ = codes.shape
    points = np.full((n, blocks), 1 << (bits - 1)) if zeros is None else _digits(zeros, bits)
    values = _digits(codes.reshape(n, -1), bits).reshape(n, blocks, -1).astype(np.float32)
    centred = values - points[:, :blocks, None].astype(np.float32)
    return np.ascontiguousarray((centred * scales[..., None]).reshape(n, -1)[:, :columns])


def _digits(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Numbers of so many bits, lowest first, from bytes ``[n, bytes]``."""
    parts = [(packed >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(len(packed), -1)
