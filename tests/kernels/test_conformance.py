"""Every registered kernel against the NumPy definition of its op."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edgerun.kernels.jit.registry import kernels
from edgerun.kernels.run.program import ThreadTeam
from tests.kernels import (  # noqa: F401  (importing registers the cases)
    cases_amx,
    cases_attention,
    cases_elementwise,
    cases_gemm,
    cases_linear,
    cases_lookup,
    cases_measure,
    cases_memory,
    cases_rounding,
    cases_trits,
)
from tests.kernels.harness import CASES, Case, run


@pytest.fixture(scope="module")
def teams() -> Iterator[list[ThreadTeam]]:
    made = [ThreadTeam(1), ThreadTeam(2)]
    yield made
    for team in made:
        team.close()


def test_every_kernel_has_cases() -> None:
    assert set(kernels()) == {case.kernel for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernel_agrees_with_reference(case: Case, teams: list[ThreadTeam]) -> None:
    for team in teams:
        call = case.prepare(**case.arguments)
        run(case.kernel, call, team)
        call.check()
