"""The verilated overlay against the NumPy definition: a seeded share of the random cases.

All of them: ``python -m edgerun_hw.simulate.fuzz --cases 2000 --mishaps 10``.
"""

from __future__ import annotations

import pytest

from edgerun_hw.overlay.geometry import PRESETS
from edgerun_hw.overlay.packing import LookupMode
from edgerun_hw.simulate.coverage import cover, summarise
from edgerun_hw.simulate.fuzz import BATCH, Setting, run_setting, settings
from edgerun_hw.simulate.measure import measure_matrix
from edgerun_hw.simulate.memory import DDR_PRESETS

pytestmark = [pytest.mark.fpga, pytest.mark.timeout(900)]  # the first one compiles

CASES = 300
SEED = 2026
GEOMETRIES = ("tiny", "tiny-prefill", "decode-300")
DECODE = PRESETS["decode-300"]


def chosen() -> list[Setting]:
    return list(settings(CASES, SEED, GEOMETRIES, max_lookups=2000, mishaps=5))


@pytest.mark.parametrize(
    "setting", chosen(), ids=lambda setting: f"{setting.geometry}-{setting.seed}"
)
def test_random_commands_are_bit_exact_and_mishaps_harmless(setting: Setting) -> None:
    assert run_setting(setting).failures == ()


def test_settings_are_as_many_as_asked_and_repeat() -> None:
    assert sum(setting.cases for setting in chosen()) == CASES
    assert chosen() == chosen()
    assert all(setting.cases <= BATCH for setting in chosen())
    assert {setting.geometry for setting in chosen()} == set(GEOMETRIES)


def test_decode_reaches_its_peak_with_ideal_memory() -> None:
    measured = measure_matrix(DECODE, 2560, 2560, None)
    assert measured.exact
    assert measured.efficiency >= 0.95
    # Filling tables costs cycles before the first lookup only.
    assert measured.stall_tables < 64
    assert measured.stall_weights < 64


def test_decode_takes_what_the_modelled_memory_gives() -> None:
    # Several, because the last one's drain leaves the memory idle.
    measured = measure_matrix(DECODE, 2560, 2560, DDR_PRESETS["kv260"], products=4)
    assert measured.exact
    assert measured.ddr_efficiency is not None
    assert measured.ddr_efficiency >= 0.9


def test_products_back_to_back_hide_their_drains() -> None:
    single, four = (measure_matrix(DECODE, 2560, 640, None, products=count) for count in (1, 4))
    assert four.exact
    assert four.efficiency > single.efficiency
    assert four.cycles < 4 * single.cycles - 3 * 500  # of about 640 cycles a drain


def test_matrices_beyond_the_accumulators_are_divided() -> None:
    geometry = PRESETS["tiny"]
    measured = measure_matrix(
        geometry, geometry.max_rows + 7, 50, None, mode=LookupMode.MULTIPLES, products=2
    )
    assert measured.exact


def test_products_need_sensible_sizes() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        measure_matrix(DECODE, 0, 10, None)
    with pytest.raises(ValueError, match="1 to 1 columns"):
        measure_matrix(DECODE, 10, 10, None, columns=2)


def test_random_cases_reach_nearly_every_line() -> None:
    files = summarise(cover(20, names=("tiny",)))
    covered, everything = (sum(file.lines[i] for file in files) for i in (0, 1))
    assert {file.name for file in files} >= {"tlmm_top.sv", "tlmm_engine.sv", "tlmm_reader.sv"}
    assert covered >= 0.97 * everything
