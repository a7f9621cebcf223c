"""Runs commands on the engine alone (``hw/tb/units/engine.cpp``), without memory and registers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgerun_hw.overlay.definition import run_command
from edgerun_hw.overlay.geometry import Geometry
from edgerun_hw.overlay.packing import (
    LookupMode,
    pack_activations,
    pack_multiples,
    pack_scales,
    pack_ternary,
)
from tests.hw.rtl.unit_bench import ALWAYS, build_bench, run_bench


@dataclass(frozen=True)
class Command:
    """Packed operands of a command.

    Attributes:
        mode: ternary or multiples.
        weights: uint8 ``[ports, tiles, row_beats, 16]``.
        activations: int8 ``[tiles, columns, 16]``.
        scales: float32 ``[row_beats * rows_per_beat]``, whole beats of four, or None.
    """

    mode: LookupMode
    weights: NDArray[np.uint8]
    activations: NDArray[np.int8]
    scales: NDArray[np.float32] | None = None

    @cached_property
    def expected(self) -> NDArray[np.uint32]:
        """What the definition gives."""
        return run_command(self.mode, self.weights, self.activations, self.scales)

    @property
    def fields(self) -> list[int]:
        """Mode, scale, row beats, tiles, columns."""
        _, tiles, row_beats, _ = self.weights.shape
        scaled = int(self.scales is not None)
        return [int(self.mode), scaled, row_beats, tiles, self.activations.shape[1]]

    @property
    def beats(self) -> NDArray[np.uint8]:
        """Weights as the engine takes them: ``[tiles, row_beats, ports, 16]``."""
        return np.ascontiguousarray(self.weights.transpose(1, 2, 0, 3))


@dataclass(frozen=True)
class Case:
    """Commands one after another, and how often each stream moves, of 256 cycles."""

    commands: list[Command]
    seed: int = 1
    x: int = ALWAYS
    w: int = ALWAYS
    s: int = ALWAYS
    y: int = ALWAYS
    reset_at: int = 0


@dataclass(frozen=True)
class Report:
    """Cycles of a case; ``lookup_span`` is from the first beat of weights to the last."""

    cycles: int
    lookup_span: int
    lookups: int
    stall_weights: int
    stall_tables: int
    stall_output: int
    faults: int


def random_command(
    random: np.random.Generator,
    geometry: Geometry,
    *,
    rows: int,
    K: int,
    columns: int,
    mode: LookupMode,
    scaled: bool,
) -> Command:
    """A command on random operands, the extreme ones among them."""
    limit, pack = {
        LookupMode.TERNARY: (1, pack_ternary),
        LookupMode.MULTIPLES: (13, pack_multiples),
    }[mode]
    weights = random.integers(-limit, limit + 1, (rows, K), np.int8)
    activations = random.integers(-128, 128, (columns, K)).astype(np.int8)
    if random.random() < 0.2:
        weights[:], activations[:] = limit, -128
    scales = None
    if scaled:
        exponents = random.integers(-150, 128, rows)
        scales = np.ldexp(random.uniform(-2, 2, rows), exponents).astype(np.float32)
        scales[~np.isfinite(scales)] = np.float32(-3.4e38)
        scales = pack_scales(scales, geometry.ports)
    packed = pack_activations(activations, mode)
    return Command(mode, pack(weights, geometry.ports), packed, scales)


class EngineBench:
    """The compiled bench of one geometry."""

    def __init__(self, geometry: Geometry, cache: Path) -> None:
        self.geometry = geometry
        parameters = geometry.parameters()
        names = ("PORTS", "COLUMNS", "NB_MAX", "ROW_SCALE")
        self._binary = build_bench(
            "tlmm_engine",
            "engine.cpp",
            {name: parameters[name] for name in names},
            cache,
            defines={"PORTS": geometry.ports},
        )

    def run(self, cases: list[Case]) -> list[Report]:
        """Runs the cases; compares every word of the results with the definition.

        Raises:
            AssertionError: a result differs, or the bench saw the engine break a rule.
        """
        results = run_bench(self._binary, [_words(case) for case in cases])
        reports = []
        for number, case in enumerate(cases):
            report, results = _check(case, results, f"case {number}")
            reports.append(report)
        assert not results.size
        return reports


def _words(case: Case) -> NDArray[np.uint32]:
    commands = case.commands
    x = [command.activations.tobytes() for command in commands]
    w = [command.beats.tobytes() for command in commands]
    s = [command.scales.tobytes() for command in commands if command.scales is not None]
    y = sum(command.expected.size for command in commands)
    ports = commands[0].weights.shape[0]
    beats = [len(b"".join(part)) // 16 for part in (x, w, s)]
    beats[1] //= ports
    work = sum(beats) + y
    slowest = max(1, min(case.x, case.w, case.s, case.y))
    most_cycles = 2000 + 60 * work * ALWAYS // slowest
    head = [case.seed, case.x, case.w, case.s, case.y, case.reset_at, most_cycles]
    head += [len(commands), *beats, y // 4]
    head += [field for command in commands for field in command.fields]
    data = np.frombuffer(b"".join(x + w + s), np.uint32)
    return np.concatenate([np.array(head, np.uint32), data])


def _check(case: Case, results: NDArray[np.uint32], name: str) -> tuple[Report, NDArray[np.uint32]]:
    expected = np.concatenate([command.expected for command in case.commands])
    lasts = np.zeros(expected.size // 4, np.uint32)
    ends = np.cumsum([command.expected.size // 4 for command in case.commands])
    lasts[ends - 1] = 1
    report = Report(*map(int, results[:7]))
    words, rest = results[7 : 7 + expected.size], results[7 + expected.size :]
    what = f"{name}: {report}, {[command.fields for command in case.commands]}"
    assert report.faults == 0, what
    assert (words == expected).all(), f"{what}, word {np.flatnonzero(words != expected)[:8]}"
    assert (rest[: lasts.size] == lasts).all(), what
    return report, rest[lasts.size :]
