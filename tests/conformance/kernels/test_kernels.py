"""Every kernel on every instruction set that is here, against the NumPy definition of its op."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgerun.kernels.jit.catalogue import kernels
from edgerun.kernels.lang.isa import MODELS, isa_of
from edgerun.kernels.lang.tile_registers import TILES
from edgerun.kernels.run.program import ThreadTeam
from tests.conformance.kernels.harness import (
    BFLOAT16_MULTIPLIERS,
    CASES,
    ISAS,
    Call,
    Case,
    float_lanes,
    run,
)

for path in sorted(Path(__file__).parent.glob("cases/**/*.py")):
    where = path.relative_to(Path(__file__).parent).with_suffix("")
    importlib.import_module(".".join(("tests.conformance.kernels", *where.parts)))  # registers them


@pytest.fixture(scope="module")
def teams() -> Iterator[list[ThreadTeam]]:
    pair = [ThreadTeam(1), ThreadTeam(2)]
    yield pair
    for team in pair:
        team.close()


def isas_of(kernel: str) -> list[str]:
    """Instruction sets, or what multiplies bfloat16, that make a difference to a kernel's code."""
    if kernel.startswith("amx"):  # matrix units are there or modelled
        return [isa for isa in TILES if isa in ISAS or isa in MODELS]
    constants = inspect.signature(kernels()[kernel].make).parameters
    if "multiplier" in constants:
        return BFLOAT16_MULTIPLIERS
    return ISAS if {"isa", "lanes"} & constants.keys() else [""]


def is_of(case: Case, isa: str) -> bool:
    """Whether a case says an instruction set, or no more than the length of its vectors."""
    values = [*case.arguments.values()]
    values += [item for value in values if isinstance(value, tuple) for item in value]
    if not isa or isa in values:
        return True
    lanes = case.arguments.get("lanes")
    return lanes is not None and lanes in (isa_of(isa).vector_bytes, float_lanes(isa))


PAIRS = [(kernel, isa) for kernel in kernels() for isa in isas_of(kernel)]


@pytest.mark.parametrize(("kernel", "isa"), PAIRS)
def test_every_kernel_has_cases_on_every_instruction_set(kernel: str, isa: str) -> None:
    assert [case for case in CASES if case.kernel == kernel and is_of(case, isa)]


def test_every_case_is_of_a_kernel() -> None:
    assert {case.kernel for case in CASES} <= set(kernels())


def check_addresses(kernel: str, call: Call) -> None:
    """An address that is declared as a number would be bound to memory of any size."""
    declared = kernels()[kernel].signature
    arrays = {name for name, value in call.fields.items() if isinstance(value, np.ndarray)}
    assert arrays <= declared.memory | declared.cached
    assert declared.memory <= arrays | declared.optional | {"rows"}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernel_agrees_with_reference_on_the_memory_it_declares(
    case: Case, teams: list[ThreadTeam]
) -> None:
    for team in teams:
        call = case.prepare(**case.arguments)
        check_addresses(case.kernel, call)
        run(case.kernel, call, team)
        call.check()
