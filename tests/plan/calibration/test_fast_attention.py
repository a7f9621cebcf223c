"""What ``doctor --calibrate`` measures of attention in bfloat16."""

from __future__ import annotations

from typing import Any

import pytest

from edgerun.backends.cpu.emit.attention import seen_in_pages
from edgerun.errors import UnsupportedError
from edgerun.plan.calibration import kernels
from edgerun.plan.calibration.kernels import compiled, every_trial

ROWS = 32


@pytest.mark.parametrize("multiplier", ["", "avx512bf16"])
def test_attention_in_bfloat16_is_measured_where_there_is_such(
    multiplier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By programs that attend so; what starting their kernels takes is left out."""
    small = {"FAST_ROWS": (ROWS,), "HEAD_DIMS": (64,), "HEADS": 2, "LAYERS": 1, "CACHED": 64}
    for name, value in small.items():
        monkeypatch.setattr(kernels, name, value)
    monkeypatch.setattr(kernels, "bfloat16_multiplier", lambda isa: multiplier)
    trials = [each for each in every_trial() if each.name == "attention_bfloat16/64"]
    assert [each.rows for each in trials] == ([ROWS] if multiplier else [])
    forms = []

    def make(name: str, *, given: Any) -> Any:
        forms.append(given["attention"])
        raise UnsupportedError("no kernels here")

    monkeypatch.setattr(kernels, "make_backend", make)
    for trial in [*trials, *(each for each in every_trial() if each.name == "attention/64")]:
        with pytest.raises(UnsupportedError), compiled(trial, 1):
            pass
    assert forms == (["fast"] if multiplier else []) + 2 * ["exact"]
    seconds = {("attention_bfloat16/64", ROWS): 1e-6 + 5e-9 + 2.0}
    work = 2 * 2 * 64 * seen_in_pages(64, ROWS, 0)
    rates = kernels._attention_rates(seconds, 1e-6, 1e-9)
    assert rates == {"attention_bfloat16/64": {ROWS: pytest.approx(work / 2, rel=1e-12)}}
