"""Takes the calls of the conformance cases, instead of running them here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from edgerun.kernels.jit.catalogue import kernels as registered
from edgerun.kernels.lang.isa import ISAS
from edgerun.kernels.run.instructions import Instruction, Loaded
from edgerun.kernels.run.program import Program

from .build import Kernels
from .image import Memory, Region
from .machine import PAGE_FAULT, Trap
from .processors import EMULATOR_DEFECTS, Processor

_ERRORS: list[float] = []  # of the comparisons with a bound, since the list was emptied


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case.

    Attributes:
        case: the case.
        failure: what went wrong, or nothing.
        excuse: why the emulator is to blame for that, or nothing.
        errors: of comparisons with a bound, relative to the largest value.
    """

    case: Any
    failure: str = ""
    excuse: str = ""
    errors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """A case and the call that it makes.

    Attributes:
        case: the case.
        call: its arrays and its check.
        program: its one step, whose ``function`` is a number of ``Kernels``.
        regions: where its arrays lie.
    """

    case: Any
    call: Any
    program: Program
    regions: list[Region]

    @property
    def step(self) -> Instruction:
        """What is to be called."""
        return self.program.instructions[0]

    @property
    def chunks(self) -> int:
        """How often it is to be called."""
        units = int(self.program.frame[self.step.size]) * self.step.times
        return -(-units // self.step.divide)

    @property
    def kernel(self) -> int:
        """The kernel's number."""
        return self.step.function

    @property
    def arguments(self) -> NDArray[np.int64]:
        """The kernel's argument block, with this process's addresses."""
        return self.step.arguments

    def judge(self, trap: Trap | None, damaged: set[int]) -> Outcome:
        """Checks the results, which are in the call's arrays by now."""
        _ERRORS.clear()
        failure = self._failure(trap, damaged)
        return Outcome(
            self.case, failure, excuse(str(self.case)) if failure else "", tuple(_ERRORS)
        )

    def _failure(self, trap: Trap | None, damaged: set[int]) -> str:
        if trap is not None:
            return f"{trap}{self._place(trap)}"
        if hurt := [self._field(region) for region in self.regions if region.guest in damaged]:
            return f"wrote before the start of {', '.join(hurt)}"
        try:
            self.call.check()
        except AssertionError as error:
            return " ".join(str(error).split())[:200] or "assertion failed"
        return ""

    def _field(self, region: Region) -> str:
        """Names of the arguments that point into a region."""
        words = zip(self.step.fields, self.arguments.tolist(), strict=True)
        return "/".join(name for name, word in words if region.start <= word < region.end)

    def _place(self, trap: Trap) -> str:
        """Which array a page fault was about."""
        if trap.exception != PAGE_FAULT or not self.regions:
            return ""

        def distance(region: Region) -> int:
            return max(region.guest - trap.address, trap.address - region.guest_end)

        nearest = min(self.regions, key=distance)
        return f", {trap.address - nearest.guest_end} bytes behind {self._field(nearest)}"


def excuse(case: str) -> str:
    """Why the emulator is to blame when a case fails; empty where it is not."""
    reasons = (why for name, why in EMULATOR_DEFECTS.items() if fnmatchcase(case, name))
    return next(reasons, "")


class Recorder:
    """Stands for a team of threads: keeps the program that it is to run."""

    def __init__(self) -> None:
        self.program: Program | None = None

    def run(self, program: Program) -> None:
        """Takes a program."""
        self.program = program

    def settle(self) -> None:
        """Nothing runs."""


def find_cases(processor: Processor, only: Sequence[str]) -> list[Any]:
    """The tests' cases for that processor whose names contain one of the texts."""
    features = frozenset(feature for name in processor.isas for feature in ISAS[name].features)
    with (
        mock.patch("edgerun.kernels.isa.available_isas", lambda: list(processor.isas)),
        mock.patch("edgerun.kernels.isa.host_features", lambda: features),
    ):
        from tests.conformance.kernels import harness

        exact = harness.assert_near

        def assert_near(actual: Any, expected: Any, bound: float) -> None:
            largest = max(float(np.abs(expected).max(initial=0)), 1e-30)
            difference = np.abs(actual.astype(np.float64) - expected)
            _ERRORS.append(float(difference.max(initial=0)) / largest)
            exact(actual, expected, bound)

        with mock.patch.object(harness, "assert_near", assert_near):
            from tests.conformance.kernels import test_kernels  # noqa: F401  (imports all cases)
    return [case for case in harness.CASES if any(text in str(case) for text in only)]


def record(
    cases: Sequence[Any], kernels: Kernels, memory: Memory
) -> tuple[list[Run], list[Outcome]]:
    """Prepares the calls of cases; also returns what became of those that cannot be prepared."""
    from tests.conformance.kernels import harness

    def instruction(name: str, *, params: Any, fields: dict[str, int], **rest: Any) -> Instruction:
        names, (size, times, divide) = registered()[name].signature.names, rest["chunks"]
        if set(names) != set(fields):
            raise KeyError(f"kernel {name} takes {names}, got {tuple(fields)}")
        block = np.array([fields[field] for field in names], np.int64)
        none: frozenset[str] = frozenset()
        number = kernels.number(name, params)
        return Instruction(Loaded(number), block, names, size, times, divide, none, none, name)

    recorder: Any = Recorder()
    runs: list[Run] = []
    broken: list[Outcome] = []
    with mock.patch.object(harness, "instruction", instruction):
        for case in cases:
            try:
                call = case.prepare(**case.arguments)
                harness.run(case.kernel, call, recorder)
            except Exception as error:  # of any kind: the other cases can still run
                broken.append(Outcome(case, f"not prepared: {error!r}"[:160]))
                continue
            program = recorder.program
            assert program is not None and len(program.instructions) == 1
            arrays = [value for value in call.fields.values() if isinstance(value, np.ndarray)]
            runs.append(Run(case, call, program, memory.add([program.frame, *arrays])))
    return runs, broken
