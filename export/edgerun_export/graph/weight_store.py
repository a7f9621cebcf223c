"""Streams a decoder's weights into the data file, in the formats that a recipe asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import UnsupportedError
from edgerun.formats.base import PackedWeight, unpack_bits
from edgerun_export.checkpoint.base import Integers
from edgerun_export.graph.external_data import DataWriter
from edgerun_export.graph.onnx_graph import OnnxGraph, node_path
from edgerun_export.quantize import (
    block_layout,
    encode_affine,
    encode_integers,
    fits,
    quantise_rows,
)
from edgerun_export.quantize.blocks import are_halves, halved, slab
from edgerun_export.recipe import Recipe, TensorRecipe, vocabulary_block
from edgerun_export.source.weights import SourceWeights

F32 = NDArray[np.float32]
Number = TypeVar("Number", np.float32, np.uint8)
_FLOAT = np.dtype(np.float32)
_HALF = np.dtype(np.float16)
_BYTE = np.dtype(np.uint8)
_ONNX_FLOAT = 1  # onnx.TensorProto
_LARGE_EXPERT = 1 << 18  # weights, 64 KiB of 2 bits each


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A quantised matrix in the data file.

    Attributes:
        format: name of the weight format.
        block: weights that share a scale.
        codes: initializer, uint8 ``[N, blocks, block * bits / 8]``.
        scales: initializer, float32 ``[N, blocks]``.
        zeros: initializer, zero points packed like codes, uint8 ``[N, ceil(blocks * bits / 8)]``;
            empty where all are the middle of the codes.
        offsets: value, float32 ``[blocks, N]``: what is added to every weight of a block; empty
            where nothing is.
    """

    format: str
    block: int
    codes: str
    scales: str
    zeros: str = ""
    offsets: str = ""

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return block_layout(self.format).bits


@dataclass(slots=True)
class Damage:
    """Sums over weights that were stored.

    Attributes:
        error: of squared differences.
        energy: of squared weights.
    """

    error: float = 0.0
    energy: float = 0.0

    @property
    def relative(self) -> float:
        """Root mean square of the differences relative to that of the weights."""
        return float(np.sqrt(self.error / self.energy)) if self.energy else 0.0


class WeightStore:
    """Turns tensors of the source into initializers of the graph.

    Attributes:
        damage: what rounding did to the projections.
        whole_scales: scales that were to be halves and are not, which half precision cannot hold.
    """

    def __init__(
        self,
        source: SourceWeights,
        recipe: Recipe,
        data: DataWriter,
        graph: OnnxGraph,
        progress: Callable[[int], None] = lambda weights: None,
        fitted: Callable[[str], PackedWeight | None] = lambda name: None,
    ) -> None:
        self.damage = Damage()
        self.whole_scales: list[str] = []
        self._source = source
        self._recipe = recipe
        self._data = data
        self._graph = graph
        self._progress = progress
        self._fitted = fitted
        self._halves_scales, self._is_expert = recipe.scales == "fp16", False

    def vector(self, name: str) -> str:
        """Writes a bias or a norm's weight as float32."""
        return self._add(name, self._source.vector(name))

    def read_vector(self, name: str) -> F32:
        """A vector of the checkpoint, for what is derived from it."""
        return self._source.vector(name)

    def derived(self, name: str, value: F32) -> str:
        """Writes a float32 array that is not in the checkpoint."""
        return self._add(name, value.astype(np.float32, copy=False))

    def table(self, name: str, stored_as: str) -> str:
        """Writes a matrix as float32, rows as they are."""
        shape = self._source.shape(name)
        pieces = (self._counted(self._source.rows(name, rows)) for rows in self._source.slabs(name))
        return self._graph.initializer(self._data.add(stored_as, _FLOAT, shape, pieces))

    def transposed(self, name: str) -> str:
        """Writes a matrix ``[N, K]`` as float32 ``[K, N]``."""
        weight = self._source.matrix(name)
        step = max(1, (1 << 20) // len(weight))
        columns = range(0, weight.shape[1], step)
        pieces = (self._counted(weight[:, at : at + step]).T for at in columns)
        shape = (weight.shape[1], weight.shape[0])
        proto = self._data.add(f"{name}.transposed", _FLOAT, shape, pieces)
        return self._graph.initializer(proto)

    def begin_expert(self, weights: int) -> None:
        """Starts on a page: what follows belongs to one expert and can be read at once.

        One of few weights begins where the last one ended: padding would be up to a tenth of it.
        Until ``end_experts`` scales are float32, since what is read while a model runs is as
        kernels need it, and zero points are there even where all are the middle, since they are
        elsewhere and experts have to be alike.
        """
        self._halves_scales, self._is_expert = False, True
        if weights >= _LARGE_EXPERT:
            self._data.begin_page()

    def end_experts(self) -> None:
        """Ends what ``begin_expert`` began last."""
        self._halves_scales, self._is_expert = self._recipe.scales == "fp16", False

    def projection(self, name: str) -> StoredMatrix:
        """Writes a projection in the recipe's weight format."""
        recipe = self._recipe.tensor(name.removesuffix(".weight"))
        parts = self._parts(name, recipe, self.damage)
        return self._store(name, name, recipe, parts)

    def stack(self, stored_as: str, experts: Sequence[Sequence[str]]) -> StoredMatrix:
        """Writes matrices of all experts, those of one named together, their rows in turns.

        The rows are whole blocks, and all are stored alike.

        Returns:
            codes uint8 ``[experts, rows, K * bits / 8]``, scales ``[experts, rows, blocks]``, and
            where the format has them zero points ``[experts, rows, ceil(blocks * bits / 8)]``.
        """
        recipe = self._recipe.tensor(experts[0][0].removesuffix(".weight"))
        rows, columns = self._source.shape(experts[0][0])
        scales: list[F32] = []
        zeros: list[NDArray[np.uint8]] = []

        def codes() -> Iterator[NDArray[np.uint8]]:
            for names in experts:
                parts = [[*self._parts(name, recipe, self.damage)] for name in names]
                scales.append(_in_turns([[part.scales for part in each] for each in parts]))
                points = [[z for part in each if (z := part.zeros) is not None] for each in parts]
                zeros.extend([_in_turns(points)] if points[0] else [])
                self._progress(len(names) * rows * columns)
                yield _in_turns([[part.codes for part in each] for each in parts])

        height = rows * len(experts[0])
        shape = (len(experts), height, columns * recipe.bits // 8)
        stored_codes = self._data.add(f"{stored_as}.codes", _BYTE, shape, codes())
        shape = (len(experts), height, columns // recipe.group_size)
        stored_scales = self._data.add(f"{stored_as}.scales", _FLOAT, shape, scales)
        names = [self._graph.initializer(stored) for stored in (stored_codes, stored_scales)]
        if zeros:
            shape = (len(experts), *zeros[0].shape)
            stored_zeros = self._data.add(f"{stored_as}.zeros", _BYTE, shape, zeros)
            names.append(self._graph.initializer(stored_zeros))
        return StoredMatrix(recipe.weights, recipe.group_size, *names)

    def stack_vectors(self, stored_as: str, experts: Sequence[Sequence[str]]) -> str:
        """Writes vectors of all experts as float32 ``[experts, n]``, in turns likewise."""
        vectors = [_in_turns([[self._source.vector(name)] for name in names]) for names in experts]
        return self.derived(stored_as, np.stack(vectors))

    def vocabulary(self, name: str, format_name: str, stored_as: str) -> StoredMatrix:
        """Writes an embedding or head in a block format whose blocks fill the rows exactly.

        Raises:
            UnsupportedError: the rows cannot be cut into whole blocks.
        """
        block = vocabulary_block(self._source.shape(name)[1], self._recipe.group_size)
        recipe = TensorRecipe(format_name, block)
        return self._store(name, stored_as, recipe, self._parts(name, recipe, Damage()))

    def _parts(self, name: str, recipe: TensorRecipe, damage: Damage) -> Iterator[PackedWeight]:
        """Packs a matrix slab by slab, and adds what that does to it to ``damage``."""
        layout, block = block_layout(recipe.weights), recipe.group_size
        # Ternary values are never fitted anew: a block that is too large for them is refused.
        exact = recipe.weights == "ternary" and self._source.is_ternary(name)
        in_halves = self._halves_scales
        fitted = self._fitted(name)
        for rows in self._source.slabs(name):
            affine = self._source.affine(name, rows) if layout.has_offsets else None
            encoded = affine and encode_affine(affine, layout, block)
            stored = self._source.integers(name, rows) if fitted is None else None
            if stored is not None and (exact or fits(*stored, layout, block)):
                encoded = encode_integers(*stored, layout, block)
                if exact or not in_halves or are_halves(encoded.scales):
                    damage.energy += _energy(*stored)
                    yield encoded
                    continue
            weights = self._source.rows(name, rows)
            if encoded:
                packed = encoded
            elif fitted is None:
                packed = quantise_rows(weights, recipe.weights, block, recipe.method)
            else:
                packed = slab(fitted, rows)
            if self._recipe.scales == "fp16":
                packed = halved(packed)
            _check_halves(name, packed)
            with np.errstate(over="ignore"):  # infinity is refused
                difference = layout.unpack(packed) - weights
            error = _square_sum(difference)
            if not math.isfinite(error):
                raise UnsupportedError(
                    f"tensor '{name}' has weights that are too large to be rounded to "
                    f"{recipe.weights}; give it fp32, with a --rule that names it"
                )
            damage.error += error
            damage.energy += _square_sum(weights)
            yield packed

    def _store(
        self, name: str, stored_as: str, recipe: TensorRecipe, parts: Iterator[PackedWeight]
    ) -> StoredMatrix:
        """Writes codes as they come; the scales, being few, wait until the codes are out."""
        rows, columns = self._source.shape(name)
        block = recipe.group_size
        blocks = -(-columns // block)
        scales: list[F32] = []
        zeros: list[NDArray[np.uint8]] = []
        offsets: list[NDArray[np.float16]] = []

        def codes() -> Iterator[NDArray[np.uint8]]:
            for part in parts:
                scales.append(part.scales)
                zeros.extend([] if part.zeros is None else [part.zeros])
                offsets.extend([] if part.offsets is None else [part.offsets])
                self._progress(part.shape[0] * columns)
                yield part.codes

        shape = (rows, blocks, block * recipe.bits // 8)
        stored_codes = self._data.add(f"{stored_as}.codes", _BYTE, shape, codes())
        return StoredMatrix(
            recipe.weights,
            block,
            self._graph.initializer(stored_codes),
            self._store_scales(f"{stored_as}.scales", (rows, blocks), scales, bool(offsets)),
            self._store_zeros(f"{stored_as}.zeros", zeros, blocks, recipe.bits),
            self._store_offsets(f"{stored_as}.offsets", offsets),
        )

    def _store_scales(
        self, name: str, shape: tuple[int, int], scales: Sequence[F32], has_offsets: bool
    ) -> str:
        """Writes scales, in half precision if it holds them all and is asked for or offsets are."""
        asked = has_offsets or self._halves_scales
        if asked and all(map(are_halves, scales)):
            return self._store_halves(name, shape, scales)
        self.whole_scales += [name] * asked
        return self._graph.initializer(self._data.add(name, _FLOAT, shape, scales))

    def _store_offsets(self, name: str, parts: Sequence[NDArray[np.float16]]) -> str:
        """Writes offsets ``[blocks, N]``, if there are any."""
        if not parts:
            return ""
        offsets = np.concatenate(parts, axis=1)
        return self._store_halves(name, offsets.shape, [offsets])

    def _store_halves(
        self, name: str, shape: tuple[int, ...], parts: Iterable[NDArray[Any]]
    ) -> str:
        """Writes numbers in half precision, which holds them, and makes them float32 by a Cast."""
        stored = self._graph.initializer(self._data.add(name, _HALF, shape, parts))
        return self._graph.node("Cast", [stored], f"{node_path(name)}/Cast", to=_ONNX_FLOAT)

    def _store_zeros(
        self, name: str, parts: Sequence[NDArray[np.uint8]], blocks: int, bits: int
    ) -> str:
        """Writes zero points, unless all are the middle of the codes and of no expert."""
        middle = 1 << (bits - 1)
        is_middle = all((unpack_bits(part, bits)[:, :blocks] == middle).all() for part in parts)
        if is_middle and not (parts and self._is_expert):
            return ""
        shape = (sum(map(len, parts)), parts[0].shape[1])
        return self._graph.initializer(self._data.add(name, _BYTE, shape, parts))

    def _add(self, name: str, value: F32) -> str:
        return self._graph.initializer(self._data.add(name, _FLOAT, value.shape, [value]))

    def _counted(self, piece: F32) -> F32:
        self._progress(piece.size)
        return piece


def _check_halves(name: str, packed: PackedWeight) -> None:
    """Checks that half precision holds scales and offsets, if there are any.

    Raises:
        UnsupportedError: one is too large.
    """
    if packed.offsets is None:
        return
    if not (np.isfinite(packed.scales).all() and np.isfinite(packed.offsets).all()):
        raise UnsupportedError(
            f"tensor '{name}' has weights that are too large for offsets in half precision; give "
            "it a format without, with --rule '*=int8' or one that names it alone"
        )


def _in_turns(matrices: Sequence[Sequence[NDArray[Number]]]) -> NDArray[Number]:
    """Joins the pieces of each matrix, and then the matrices row by row."""
    whole = [np.concatenate(pieces) for pieces in matrices]
    return np.stack(whole, axis=1).reshape(-1, *whole[0].shape[1:])


def _energy(values: Integers, scales: F32) -> float:
    """Sum of the squares of integers ``[n, K]`` times scales ``[n, g]``."""
    groups = values.reshape(*scales.shape, -1).astype(np.float32)
    wide = scales.astype(np.float64)
    return float(np.vdot(np.einsum("ngk,ngk->ng", groups, groups) * wide, wide))


def _square_sum(values: F32) -> float:
    """Sum of squares, in double precision where it is beyond single."""
    total = float(np.vdot(values, values))
    return total if math.isfinite(total) else float(np.square(values, dtype=np.float64).sum())
