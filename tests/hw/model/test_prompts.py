"""Prompts with measured rates: every term, and where the time goes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgerun_hw.backend import attention
from edgerun_hw.model import unit
from edgerun_hw.model.attention import attention_bytes, attention_cycles
from edgerun_hw.model.measured import measured_terms
from edgerun_hw.model.profile import load_profile
from edgerun_hw.model.prompts import TOKENS, prompt_terms
from edgerun_hw.model.tokens import SHAPES
from edgerun_hw.overlay.geometry import PRESETS

PROFILE = load_profile()
SMALL, LARGE = SHAPES["bitnet-0.73b"], SHAPES["bitnet-2b-4t"]
NAMES = ("decode-300", "attention-300", "prefill-1500", "attention-1500")


def seconds(terms, prefix=""):
    return sum(term.seconds for term in terms if term.name.startswith(prefix))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_term_of_a_prompt_says_what_it_stands_on(name, shape):
    terms = prompt_terms(SHAPES[shape], PRESETS[name], PROFILE, 250.0)
    assert all(term.seconds > 0 for term in terms)
    assert all("published" in term.basis or "assumed" in term.basis for term in terms)
    assert len({term.name for term in terms}) == len(terms)
    assert any(term.name.startswith("attention") for term in terms)


def test_the_unit_and_columns_speed_up_prompts_and_the_rest_is_the_processors():
    rates = {
        (model, name): TOKENS / seconds(prompt_terms(shape, PRESETS[name], PROFILE, 250.0))
        for model, shape in SHAPES.items()
        for name in NAMES
    }
    for model in SHAPES:
        assert rates[model, "decode-300"] < rates[model, "attention-300"]
        assert rates[model, "prefill-1500"] < rates[model, "attention-1500"]
        assert 2 * rates[model, "attention-300"] < rates[model, "attention-1500"]
    assert 120 < rates["bitnet-0.73b", "attention-1500"] < 160  # TeLLMe publishes 143


@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_commands_of_a_prompt_read_what_their_rows_see(shape):
    """Within a block of tokens all of them read the same."""
    terms = unit.unit_terms(shape, PRESETS["attention-300"], PROFILE, 250.0, range(1, 65))
    commands = 64 * (shape.heads // shape.kv_heads) // 2
    cycles = commands * attention_cycles(shape.kv_heads, shape.head_dim, 64)
    assert terms[0].cycles == shape.layers * cycles
    nbytes = commands * attention_bytes(shape.kv_heads, shape.head_dim, 64)
    assert terms[0].nbytes == shape.layers * nbytes


def test_a_token_is_a_prompt_of_one():
    geometry = PRESETS["attention-300"]
    token = measured_terms(SMALL, geometry, PROFILE, 250.0, context=300)
    alone = unit.unit_terms(SMALL, geometry, PROFILE, 250.0, [300])
    assert [term for term in token if term.name.startswith("attention")] == alone


def test_results_that_are_computed_again_are_counted_as_the_host_does():
    assert unit.CHECK_EVERY == attention.CHECK_EVERY
    geometry = PRESETS["attention-300"]
    slow = unit.unit_terms(LARGE, geometry, PROFILE, 250.0, [4096])
    assert seconds(slow, "attention: results again") > 0
    fast = replace(PROFILE, figures={**PROFILE.figures})
    figure = fast.figures["attention_int8_gmac_per_s"]
    fast.figures["attention_int8_gmac_per_s"] = replace(figure, value=1000.0)  # type: ignore[index]
    hidden = unit.unit_terms(LARGE, geometry, fast, 250.0, [4096])
    assert seconds(hidden, "attention: results again") == 0
