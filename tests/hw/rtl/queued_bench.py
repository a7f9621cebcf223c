"""Runs commands on a unit whose bench is ``hw/tb/units/queued.h``: streams x and w in, y out."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgerun_hw.synthesis.hierarchy import needed_files
from tests.hw.rtl.unit_bench import ALWAYS, build_bench, run_bench

BEAT_WORDS = 4
U32 = NDArray[np.uint32]


class Command(Protocol):
    """Operands of a command."""

    @property
    def expected(self) -> U32:
        """What the definition gives."""

    @property
    def fields(self) -> list[int]:
        """As the bench's file names them."""

    @property
    def streams(self) -> tuple[U32, U32]:
        """Words of x and w."""


@dataclass(frozen=True)
class Case:
    """Commands one after another, and how often each stream moves, of 256 cycles."""

    commands: Sequence[Command]
    seed: int = 1
    x: int = ALWAYS
    w: int = ALWAYS
    y: int = ALWAYS
    reset_at: int = 0


def random_case(rng: np.random.Generator, commands: Sequence[Command], last_reset: int) -> Case:
    """Commands with streams that hesitate, and now and then a reset before cycle ``last_reset``."""
    x, w, y = map(int, rng.choice([256, 256, 200, 80, 20], 3))
    reset_at = int(rng.integers(1, last_reset)) if rng.random() < 0.2 else 0
    return Case(commands, int(rng.integers(1, 1 << 31)), x, w, y, reset_at)


class QueuedBench:
    """The compiled bench of a unit.

    Args:
        unit: its name without ``tlmm_``.
        report: a dataclass of what its bench reports of a case, ``faults`` among it.
        cache: folder.
        ports: of a beat of w.
        parameters: of the module.
        rtl: the module's sources, if not those of the checkout.
    """

    def __init__(
        self,
        unit: str,
        report: type,
        cache: Path,
        *,
        ports: int = 1,
        parameters: Mapping[str, int] | None = None,
        rtl: list[Path] | None = None,
    ) -> None:
        self._report, self._ports = report, ports
        self._binary = build_bench(f"tlmm_{unit}", f"{unit}.cpp", parameters or {}, cache, rtl=rtl)

    def run(self, cases: list[Case]) -> list[Any]:
        """Runs the cases; compares every word of the results with the definition.

        Raises:
            AssertionError: a result differs, or the bench saw the unit break a rule.
            subprocess.CalledProcessError: an assertion of the RTL failed.
        """
        words = run_bench(self._binary, [self._input(case) for case in cases])
        reports = []
        for number, case in enumerate(cases):
            report, words = self._check(case, words, f"case {number}")
            reports.append(report)
        assert not words.size
        return reports

    def _input(self, case: Case) -> U32:
        commands = case.commands
        x, w = (
            np.concatenate(stream)
            for stream in zip(*(command.streams for command in commands), strict=True)
        )
        y = sum(command.expected.size for command in commands)
        beats = [words // BEAT_WORDS for words in (x.size, w.size // self._ports, y)]
        slowest = max(1, min(case.x, case.w, case.y))
        most_cycles = 3000 * len(commands) + 8 * sum(beats) * ALWAYS // slowest
        head = [case.seed, case.x, case.w, case.y, case.reset_at, most_cycles, len(commands)]
        head += [*beats, *(field for command in commands for field in command.fields)]
        return np.concatenate([np.array(head, np.uint32), x, w])

    def _check(self, case: Case, words: U32, name: str) -> tuple[Any, U32]:
        expected = np.concatenate([command.expected for command in case.commands])
        counts = len(fields(self._report))
        report = self._report(*map(int, words[:counts]))
        got, rest = np.split(words[counts:], [expected.size])
        what = f"{name}: {report}, {[command.fields for command in case.commands]}"
        assert report.faults == 0, what
        assert (got == expected).all(), f"{what}, word {np.flatnonzero(got != expected)[:8]}"
        return report, rest


# ---- mistakes made on purpose
SEES_MISTAKE = (AssertionError, subprocess.CalledProcessError)


def with_mistake(unit: str, part: str, old: str, new: str, folder: Path) -> list[Path]:
    """Copies the sources of a unit, with ``new`` once in place of ``old`` in one of its modules."""
    module = f"tlmm_{unit}_{part}.sv" if part else f"tlmm_{unit}.sv"
    copies = []
    for file in needed_files(f"tlmm_{unit}"):
        text = file.read_text("utf-8")
        if file.name == module:
            assert old in text, "the mistake's place is gone"
            text = text.replace(old, new, 1)
        copies.append(folder / file.name)
        copies[-1].write_text(text, "utf-8")
    return copies
