"""Every registered kernel against the NumPy definition of its op."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgerun.kernels.jit.registry import kernels
from edgerun.kernels.run.program import ThreadTeam
from tests.kernels.harness import CASES, ISAS, Case, run

for path in sorted(Path(__file__).parent.glob("cases/*.py")):
    importlib.import_module(f"tests.kernels.cases.{path.stem}")  # which registers them


@pytest.fixture(scope="module")
def teams() -> Iterator[list[ThreadTeam]]:
    made = [ThreadTeam(1), ThreadTeam(2)]
    yield made
    for team in made:
        team.close()


def test_every_kernel_has_cases() -> None:
    assert set(kernels()) == {case.kernel for case in CASES}


def test_kernels_made_for_an_instruction_set_have_cases_of_every_one() -> None:
    for name, kernel in kernels().items():
        made_for = "isa" in inspect.signature(kernel.make).parameters
        arguments = [value for case in CASES if case.kernel == name for value in _flat(case)]
        # Matrix units are there or modelled; other kernels have no use for them.
        if made_for and not name.startswith("amx"):
            assert set(ISAS) <= set(arguments), name


def _flat(case: Case) -> Iterator[Any]:
    """The arguments of a case, and what tuples among them consist of."""
    for value in case.arguments.values():
        yield from value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernel_agrees_with_reference(case: Case, teams: list[ThreadTeam]) -> None:
    for team in teams:
        call = case.prepare(**case.arguments)
        run(case.kernel, call, team)
        call.check()
