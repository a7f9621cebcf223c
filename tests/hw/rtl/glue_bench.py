"""Runs commands on the glue unit alone (``hw/tb/units``), and what they must give."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgerun_hw.overlay.glue import Constants, Gate
from edgerun_hw.overlay.glue_layout import LANES, beats, pack_constants, run_glue
from tests.hw.rtl.unit_bench import build_bench

ALWAYS = 256  # of 256
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


@dataclass(frozen=True)
class Case:
    """Commands one after another, and how often each stream moves, of 256 cycles."""

    commands: list[Command]
    seed: int = 1
    x: int = ALWAYS
    w: int = ALWAYS
    y: int = ALWAYS
    reset_at: int = 0


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


class GlueBench:
    """The compiled bench of the unit."""

    def __init__(self, cache: Path, rtl: list[Path] | None = None) -> None:
        self._cache = cache
        self._binary = build_bench("tlmm_glue", "glue.cpp", {}, cache, rtl=rtl)

    def run(self, cases: list[Case]) -> list[Report]:
        """Runs the cases; compares every word of the results with the definition.

        Raises:
            AssertionError: a result differs, or the bench saw the unit break a rule.
        """
        data = b"".join(_input(case).tobytes() for case in cases)
        (self._cache / "in").write_bytes(data)
        command = [str(self._binary), str(self._cache / "in"), str(self._cache / "out")]
        subprocess.run(command, check=True, timeout=900)
        words = np.fromfile(self._cache / "out", np.uint32)
        reports = []
        for number, case in enumerate(cases):
            report, words = _check(case, words, f"case {number}")
            reports.append(report)
        assert not words.size
        return reports


def _input(case: Case) -> NDArray[np.uint32]:
    commands = case.commands
    x, w = (np.concatenate([getattr(command, name) for command in commands]) for name in "xw")
    y = sum(command.expected.size for command in commands)
    counts = [words // LANES for words in (x.size, w.size, y)]
    slowest = max(1, min(case.x, case.w, case.y))
    most_cycles = 2000 * len(commands) + 8 * sum(counts) * ALWAYS // slowest
    head = [case.seed, case.x, case.w, case.y, case.reset_at, most_cycles, len(commands), *counts]
    for command in commands:
        head += [command.gate, command.norm, command.length]
    return np.concatenate([np.array(head, np.uint32), x.view(np.uint32), w.view(np.uint32)])


def _check(case: Case, words: NDArray[np.uint32], name: str) -> tuple[Report, NDArray[np.uint32]]:
    expected = np.concatenate([command.expected for command in case.commands])
    report = Report(*map(int, words[:4]))
    got, rest = words[4 : 4 + expected.size], words[4 + expected.size :]
    fields = [(command.gate.name, command.norm, command.length) for command in case.commands]
    what = f"{name}: {report}, {fields}"
    assert report.faults == 0, what
    assert (got == expected).all(), f"{what}, word {np.flatnonzero(got != expected)[:8]}"
    return report, rest
