"""Runs commands on the glue unit alone (``hw/tb/units``), and what they must give."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgerun_hw.overlay.glue import Constants, Gate
from edgerun_hw.overlay.glue_layout import LANES, beats, pack_constants, run_glue
from tests.hw.rtl.queued_bench import QueuedBench

FILLS = ("random", "outliers", "extreme", "tiny", "zeros", "wild", "broken")
F32 = NDArray[np.float32]


@dataclass(frozen=True)
class Command:
    """Streams of a command."""

    gate: Gate
    norm: bool
    length: int
    x: F32
    w: F32

    @cached_property
    def expected(self) -> NDArray[np.uint32]:
        """What the definition gives."""
        with np.errstate(invalid="ignore"):  # signalling NaNs become Python's floats
            return run_glue(self.gate, self.norm, self.length, self.x, self.w).view(np.uint32)

    @property
    def fields(self) -> list[int]:
        """Gate, norm, length."""
        return [self.gate, self.norm, self.length]

    @property
    def streams(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Words of x and w."""
        return self.x.view(np.uint32), self.w.view(np.uint32)


@dataclass(frozen=True)
class Report:
    """Cycles of a case."""

    cycles: int
    stall_input: int
    stall_output: int
    faults: int


def random_command(
    rng: np.random.Generator, gate: Gate, norm: bool, length: int, fill: str = "random"
) -> Command:
    """A command on random operands; what fills up last beats is random words, NaN among them.

    Args:
        rng: where to draw from.
        gate: which one.
        norm: whether there is a norm.
        length: elements of the row.
        fill: ``random``; ``outliers``: one element a thousand times the others; ``extreme``: at the
            ends of float32's range; ``tiny``: near its lower end; ``zeros``; ``wild``: any words
            but those that are no numbers; ``broken``: such a word somewhere.
    """
    words = LANES * beats(length)
    rows = int(bool(gate)) + int(norm)
    sizes = np.exp(rng.uniform(-6, 4, 1 + rows))
    data = [_row(rng, words, fill) * size for size in sizes]
    gain = float(np.exp(rng.uniform(-8, 2))) if gate else 1.0
    epsilon = float(10.0 ** rng.integers(-12, -3))
    constants = Constants.make(length, gain=gain, epsilon=epsilon if norm else None)
    x = np.concatenate([pack_constants(constants), data[0]]).astype(np.float32)
    w = np.concatenate([*data[1:], np.zeros(0)]).astype(np.float32)
    if fill == "wild":
        x[2 * LANES :] = _words(rng, words)
        w = _words(rng, w.size)
        x[[0, LANES, LANES + 1, LANES + 2]] = np.abs(_words(rng, LANES))
    if fill == "broken":
        _break(rng, x, w, length)
    for row in (x[2 * LANES :], *w.reshape(-1, words)):
        row[length:] = rng.integers(0, 1 << 32, words - length).astype(np.uint32).view(np.float32)
    return Command(gate, norm, length, x, w)


def _row(rng: np.random.Generator, words: int, fill: str) -> NDArray[np.float64]:
    row = rng.standard_normal(words)
    if fill == "outliers":
        row[rng.integers(words)] *= 1000
    if fill == "extreme":
        row *= 2.0 ** rng.integers(-120, 120, words)
    if fill == "tiny":
        row *= 2.0 ** rng.integers(-140, -110)
    return row * (fill != "zeros")


def _words(rng: np.random.Generator, count: int) -> F32:
    words = rng.integers(0, 1 << 32, count).astype(np.uint32)
    words &= np.where(words >> 23 & 255 == 255, 0xFF7FFFFF, 0xFFFFFFFF).astype(np.uint32)
    return words.view(np.float32)


def _break(rng: np.random.Generator, x: F32, w: F32, length: int) -> None:
    bad = np.float32(rng.choice([np.nan, np.inf, -np.inf]))
    if rng.random() < 0.3:
        x[rng.choice([0, LANES, LANES + 1, LANES + 2])] = bad
    elif w.size and rng.random() < 0.5:
        w.reshape(-1, LANES * beats(length))[-1, rng.integers(length)] = bad
    else:
        x[2 * LANES + rng.integers(length)] = bad


def some_command(rng: np.random.Generator, most: int) -> Command:
    """A command of random sizes, small ones and edges more often."""
    length = int(np.exp(rng.uniform(0, np.log(most + 1))))
    if rng.random() < 0.3:
        length = int(rng.choice([1, 3, 4, 5, 14, 15, 16, 29, 30, 31, 60, 61]))
    gate = Gate(int(rng.integers(len(Gate))))
    chances = np.array([6, 2, 2, 1, 1, 2, 1]) / 15
    fill = str(rng.choice(FILLS, p=chances))
    return random_command(rng, gate, bool(rng.random() < 0.6), length, fill)


class GlueBench(QueuedBench):
    """The compiled bench of the unit."""

    def __init__(self, cache: Path, rtl: list[Path] | None = None) -> None:
        super().__init__("glue", Report, cache, rtl=rtl)
