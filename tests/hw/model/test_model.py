"""Modelled cycles against the simulator, and tokens per second whose terms add up."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from edgerun_hw.backend.matrix import DeviceMatrix
from edgerun_hw.backend.products import Multiplier, Product, quantise_activations
from edgerun_hw.devices.registry import find_device
from edgerun_hw.model.cycles import (
    Assumptions,
    command_cycles,
    matrix_seconds,
    matrix_work,
    sequence_cycles,
)
from edgerun_hw.model.tokens import (
    HEADS,
    LABEL,
    SHAPES,
    comparison,
    prefill_rates,
    term_table,
    token_terms,
    tokens_per_second,
)
from edgerun_hw.overlay.cut import FILL_CYCLES, cut_matrix
from edgerun_hw.overlay.geometry import PRESETS, capabilities_of
from edgerun_hw.overlay.port import Counters
from tests.hw.support.overlays import normal, random_weight

KV260 = PRESETS["decode-300"]


def test_shapes_have_the_parameters_of_their_models():
    assert SHAPES["bitnet-0.73b"].parameters == pytest.approx(0.73e9, rel=0.01)
    assert SHAPES["bitnet-2b-4t"].parameters == pytest.approx(2.41e9, rel=0.01)
    assert all(shape.source for shape in SHAPES.values())


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("head", HEADS)
def test_every_term_is_listed_and_they_add_up(name, head):
    rows = term_table(token_terms(SHAPES[name], KV260, Assumptions(), head=head))
    assert [row["term"] for row in rows] == [
        *("qkv", "o", "gate/up", "down", f"head ({head})"),
        *("attention (processor)", "launches", "processor", "all"),
    ]
    assert rows[-1]["ms"] == pytest.approx(sum(row["ms"] for row in rows[:-1]), abs=0.01)
    assert LABEL in rows[-1]["basis"]
    assert "no board" in LABEL
    assert all(row["basis"] for row in rows)


def test_ternary_weights_cost_what_their_codes_take_and_little_more():
    shape = SHAPES["bitnet-0.73b"]
    terms = token_terms(shape, KV260, Assumptions())
    body = sum(term.nbytes for term in terms[:4])
    weights = (shape.parameters - shape.vocabulary * shape.hidden) * 128 / 75 / 8
    assert weights < body < 1.03 * weights


def test_more_of_anything_is_not_slower():
    shape, base = SHAPES["bitnet-0.73b"], Assumptions()
    usual = tokens_per_second(token_terms(shape, KV260, base))
    for change in ({"memory_gb_per_s": 40.0, "clock_mhz": 600.0}, {"attention_gb_per_s": 12.0}):
        assert tokens_per_second(token_terms(shape, KV260, replace(base, **change))) > usual
    assert tokens_per_second(token_terms(shape, KV260, base, context=128)) > usual
    assert tokens_per_second(token_terms(shape, PRESETS["decode-75"], base)) < usual


def test_the_comparison_covers_every_choice():
    rows = comparison(KV260, Assumptions())
    assert len(rows) == len(SHAPES) * len(HEADS) * 2
    assert all(row["tokens/s"] > row["tokens/s, Python host"] > 0 for row in rows)


def test_columns_speed_up_prompts():
    geometries = {name: PRESETS[name] for name in ("decode-300", "prefill-1500")}
    rows = prefill_rates(geometries, Assumptions())
    rates = {(row["model"], row["geometry"]): row["tokens/s, fabric alone"] for row in rows}
    for name in SHAPES:
        assert rates[name, "prefill-1500"] > 4 * rates[name, "decode-300"]
    assert all(row["multiply-adds a cycle"] > 1300 for row in rows[1::2])


def test_columns_share_a_weight_stream():
    can = capabilities_of(PRESETS["prefill-1500"])
    cut = cut_matrix((1536, 1536), 1, 1536, can)
    single, five, six = (matrix_work(cut, can, rows) for rows in (1, 5, 6))
    assert single.weight_bytes == five.weight_bytes
    assert six.weight_bytes == 2 * five.weight_bytes
    assert five.commands == single.commands
    assert matrix_seconds(cut, can, 5, Assumptions()) < 1.5 * matrix_seconds(
        cut, can, 1, Assumptions()
    )


def test_short_commands_wait_for_tables_or_results():
    assert command_cycles(10, 4) == 10 * FILL_CYCLES
    assert command_cycles(10, 100) == 1000
    long, short = (20, 100, 1), (20, 20, 1)
    assert sequence_cycles([long], 20) == (2000, 2500)
    assert sequence_cycles([long, short], 20) == (2400, 2600)
    # The third waits for the half that the first drains from.
    assert sequence_cycles([long, short, short], 20) == (2900, 3000)


CASES = {
    "one piece": ("ternary", (640, 304), 16, 1),
    "with a tail": ("ternary", (1536, 1536), 16, 1),
    "short": ("ternary", (160, 304), 16, 1),
    "several pieces": ("ternary", (11000, 304), 16, 1),
    "prefill": ("ternary", (1536, 304), 16, 7),
    "int4 head": ("int4", (2048, 256), 128, 1),
    "int8 head": ("int8", (6000, 256), 128, 1),
}


@pytest.mark.fpga
@pytest.mark.timeout(900)
@pytest.mark.parametrize("device", ["decode-300", "tiny-prefill"])
def test_modelled_cycles_are_the_simulated_ones(device):
    rng = np.random.default_rng(0)
    overlay = find_device(f"cosim:{device}").open()
    multiplier = Multiplier(overlay)
    for name, (form, shape, block, rows) in CASES.items():
        weight = random_weight(rng, form, shape, block, row_scales=form == "ternary")
        matrix = DeviceMatrix(weight, overlay)
        product = Product(matrix, quantise_activations(normal(rng, rows, shape[1]), "int8_row", 0))
        before = overlay.counters()
        multiplier.multiply([product])
        after = overlay.counters()
        matrix.free()
        counted = {
            field.name: getattr(after, field.name) - getattr(before, field.name)
            for field in fields(Counters)
        }
        work = matrix_work(matrix.cut, overlay.capabilities, rows)
        modelled = pytest.approx(work.cycles + work.exposed, rel=0.01, abs=30)
        assert counted["busy"] == modelled, name
        assert counted["read_beats"] * 16 == pytest.approx(work.weight_bytes, rel=0.1), name
        assert counted["write_beats"] * 16 <= work.other_bytes
    overlay.close()
