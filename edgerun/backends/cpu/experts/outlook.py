"""What later layers will need by all appearances, and whether it is in memory.

Routers that choose by their logits are run natively (``kernels/experts/foresee.py``), others by
their gates in NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.experts.gate import Gate
from edgerun.backends.cpu.experts.prefetch import REACH
from edgerun.backends.cpu.experts.protocol import Post
from edgerun.backends.cpu.experts.words import LayerWords, SharedWords
from edgerun.kernels.jit.service import native_function
from edgerun.kernels.run.gates import GATE_BYTES, GATE_WORDS, GUESSED, NUMBER, TILE
from edgerun.ops.route import ALL

MOST_CODE = 127


@dataclass(frozen=True, slots=True)
class Coded:
    """The router of a gate in 8 bits.

    Attributes:
        weight: float32 ``[experts, width]`` or wider, of which it is made.
        codes: int8 ``[experts, padded width]``, zero in the padding.
        scales: float32 ``[experts]``, what codes are multiplied with.
    """

    weight: NDArray[np.float32]
    codes: NDArray[np.int8]
    scales: NDArray[np.float32]

    @classmethod
    def of(cls, weight: NDArray[np.float32]) -> Coded:
        """Rounds each row to the nearest of 255 steps; what is no number becomes 0."""
        finite = np.nan_to_num(weight, nan=0.0, posinf=0.0, neginf=0.0)
        scales = np.abs(finite).max(axis=1, initial=0.0) / np.float32(MOST_CODE)
        codes = np.zeros((len(weight), -(-weight.shape[1] // TILE) * TILE), np.int8)
        steps = np.where(scales > 0, scales, 1)[:, None]
        codes[:, : weight.shape[1]] = np.rint(finite / steps)
        return cls(weight, codes, scales)


@dataclass(frozen=True, slots=True)
class _Memory:
    """What native code looks at.

    Attributes:
        gates: int64 ``[layers, GATE_WORDS]``.
        guesses: int64 ``[REACH, words]``.
        addresses: of the gates, of room for a row and for logits, and of the guesses; for NumPy
            takes a while to tell.
        held: whose memory that is.
    """

    gates: NDArray[np.int64]
    guesses: NDArray[np.int64]
    addresses: tuple[int, ...]
    held: Sequence[object]

    @classmethod
    def of(
        cls, layers: Sequence[LayerWords], gates: dict[int, Gate], coded: dict[int, Coded]
    ) -> _Memory:
        """Takes the layers and, by their numbers, what there is of gates."""
        words = np.zeros((len(layers), GATE_WORDS), np.int64)
        for number, each in coded.items():
            words[number] = _words(gates[number], each, layers[number])
        experts, padded = np.max([each.codes.shape for each in coded.values()] or [(0, 0)], axis=0)
        most = GUESSED + max((gate.top_k for gate in gates.values()), default=0)
        row, logits = np.zeros(padded, np.float32), np.zeros(experts, np.float32)
        guesses = np.zeros((REACH, most), np.int64)
        places = [each.ctypes.data for each in (words, row, logits, guesses)]
        held = [row, logits, *gates.values(), *coded.values()]
        return cls(words, guesses, tuple(places), held)


class Outlook:
    """The gates of a model's layers; for one thread at a time."""

    def __init__(self, words: SharedWords) -> None:
        """Knows no gate yet."""
        self._words, self._control = words, int(words.control.ctypes.data)
        self._gates: dict[int, Gate] = {}
        self._coded: dict[int, Coded] = {}
        self._memory: _Memory | None = None
        self._at_hand = native_function("experts-at-hand", 8, result=True)
        self._foresee = native_function("experts-foresee", 5, result=False)

    def add(self, layer: LayerWords, gate: Gate) -> None:
        """Takes what says where the rows of a layer go."""
        coded = self._coded.pop(layer.number, None)
        if _is_native(gate, layer):
            if coded is None or coded.weight is not gate.weight:
                coded = Coded.of(gate.weight)
            self._coded[layer.number] = coded
        self._gates[layer.number] = gate
        self._memory = None

    def is_at_hand(self) -> bool:
        """Whether all is in memory that the last post needs, and what later layers will need.

        False also where that cannot be said.
        """
        memory = self._native()
        layers, size = len(memory.gates), memory.guesses.shape[1]
        gates, *room = memory.addresses
        return bool(self._at_hand(self._control, gates, layers, REACH, *room, size))

    def guess(self, post: Post, layer: int) -> Sequence[int]:
        """Experts that a layer will need, the likeliest first, as its router says of a single row.

        Of a batch that needs nearly all experts of a layer, those of the others are all.
        """
        if not post.has_input:
            return range(len(self._words.layers[layer].table))
        here, there = self._gates.get(post.layer), self._gates.get(layer)
        if here is None or there is None:
            return ()
        memory = self._native()
        if post.layer in self._coded and layer in self._coded:
            return self._guess(memory, post, layer, there.top_k)
        row = self._words.input(post)
        return () if row is None else there.guess(row, here)

    def _guess(self, memory: _Memory, post: Post, layer: int, top_k: int) -> Sequence[int]:
        """Likewise; of a post that another has replaced anything, which comes too late anyway."""
        place = layer - post.layer - 1
        guess = memory.guesses[place]
        if guess[NUMBER] != post.number:
            gates, row, logits, guesses = memory.addresses
            here, there = gates + post.layer * GATE_BYTES, gates + layer * GATE_BYTES
            guess[NUMBER] = 0
            self._foresee(here, there, row, logits, guesses + place * guess.nbytes)
        experts: list[int] = guess[GUESSED : GUESSED + top_k].tolist()
        return experts

    def _native(self) -> _Memory:
        if self._memory is None:
            self._memory = _Memory.of(self._words.layers, self._gates, self._coded)
        return self._memory


def _is_native(gate: Gate, layer: LayerWords) -> bool:
    """Whether native code knows what a gate chooses: the largest logits."""
    experts, padded = gate.weight.shape
    vectors = (gate.bias, experts), (gate.norm, len(layer.input))
    return (
        gate.selection_bias is None
        and gate.groups == ALL
        and gate.top_k <= experts == len(layer.table)
        and len(layer.input) <= padded
        and all(each is None or _is_plain(each, size) for each, size in vectors)
    )


def _is_plain(array: NDArray[np.float32], size: int) -> bool:
    return array.shape == (size,) and array.dtype == np.float32 and array.flags.c_contiguous


def _words(gate: Gate, coded: Coded, layer: LayerWords) -> list[int]:
    codes, scales = coded.codes.ctypes.data, coded.scales.ctypes.data
    experts, tiles = len(coded.codes), coded.codes.shape[1] // TILE
    bias, norm = (0 if each is None else each.ctypes.data for each in (gate.bias, gate.norm))
    memory = [each.ctypes.data for each in (layer.input, layer.post, layer.table)]
    return [codes, scales, tiles, bias, norm, experts, gate.top_k, len(layer.input), *memory]
