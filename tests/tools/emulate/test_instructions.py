"""Counting instructions of innermost loops."""

from __future__ import annotations

import pytest

from edgerun.kernels.lang.dot import X86
from tools.emulate_isa import instructions

ASSEMBLY = """
outer:
.LBB0_1:
\tmovq\t%rax, %rbx
.LBB0_2:
\tvpmaddubsw\t%ymm0, %ymm1, %ymm2
\tvpaddw\t%ymm2, %ymm3, %ymm3
\tdecq\t%rcx
\tjne\t.LBB0_2
\tjne\t.LBB0_1
"""


def test_only_the_innermost_loop_counts() -> None:
    (body,) = instructions.loops(ASSEMBLY)
    assert len(body) == 4
    assert instructions.costs([ASSEMBLY]) == [4 / 32]


@pytest.mark.slow
@pytest.mark.skipif(not X86, reason="Numba writes code for this machine's own architecture")
def test_every_form_is_compiled_and_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["instructions", "avx2"])
    instructions.main()
    rows = [line.split("|")[-3:-1] for line in capsys.readouterr().out.splitlines()[2:]]
    assert len(rows) == len(instructions.KERNELS)
    assert all(0 < float(cell) < 1 for row in rows for cell in row)
