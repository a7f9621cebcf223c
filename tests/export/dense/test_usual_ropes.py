"""Ropes of which config.json says a part: the rest is what transformers 5.24 takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgerun_export.architectures import describe
from tests.support.bundles import config_of

FULL, SLIDING = "full_attention", "sliding_attention"
PLAIN = {"rope_type": "default"}
BY_TYPE = {FULL: PLAIN, SLIDING: PLAIN}


def bases(name: str, *absent: str, **changes: Any) -> list[float]:
    """The base of each rope of a golden checkpoint whose configuration is changed."""
    config = {key: value for key, value in config_of(name).items() if key not in absent}
    ropes = describe({**config, **changes}).ropes
    return [round(float(rope.inv_freq[1]) ** -len(rope.inv_freq)) for rope in ropes]


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("gemma3_text", {"rope_theta": 500, "rope_local_base_freq": 90}, [500, 90]),
        ("gemma3_text", {"rope_theta": 500}, [500, 10000]),
        ("gemma3n_text", {"rope_local_base_freq": 90}, [1000000, 90]),
        ("lfm3", {}, [1000000, 1000000]),
        ("lfm3", {"rope_theta": 500}, [500, 500]),
        ("olmo3", {"rope_theta": 600}, [600, 500000]),
        ("mellum", {"rope_theta": 500, "rope_local_base_freq": 90}, [500000, 10000]),
    ],
)
def test_bases_that_parameters_by_type_leave_out(
    name: str, changes: dict[str, Any], expected: list[int]
) -> None:
    np.testing.assert_allclose(bases(name, rope_parameters=BY_TYPE, **changes), expected, rtol=1e-3)


def test_mellum_reads_parameters_by_type_alone() -> None:
    old = {"rope_theta": 500.0, "rope_local_base_freq": 90.0, "rope_scaling": {"type": "yarn"}}
    usual = bases("mellum", "rope_parameters", **old)
    np.testing.assert_allclose(usual, [500000, 10000], rtol=1e-3)


@pytest.mark.parametrize(("name", "base"), [("apertus", 1.2e7), ("cwm", 1e6), ("ministral3", 1e4)])
def test_parameters_that_say_nothing_mean_the_plain_rope(name: str, base: float) -> None:
    """Those that are absent, or null, mean that of Llama 3.1, or YaRN."""
    (empty,) = describe(config_of(name, rope_parameters={})).ropes
    (plain,) = describe(config_of(name, rope_parameters={**PLAIN, "rope_theta": base})).ropes
    np.testing.assert_array_equal(empty.inv_freq, plain.inv_freq)
    (null,) = describe(config_of(name, rope_parameters=None)).ropes
    assert not np.array_equal(null.inv_freq, plain.inv_freq)


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_ministral_has_a_large_base_only_where_nothing_is_said(key: str) -> None:
    assert bases("ministral3", "rope_parameters", **{key: PLAIN}) == pytest.approx([1e4], rel=1e-3)
    said = {**PLAIN, "rope_theta": 300.0}
    assert bases("ministral3", "rope_parameters", **{key: said}) == pytest.approx([300], rel=1e-3)


@pytest.mark.parametrize(("said", "context"), [({}, 4096), ({"rope_scaling": None}, 4096)])
def test_the_original_context_of_phi_is_that_of_its_class(said: Any, context: int) -> None:
    key = "original_max_position_embeddings"
    config = config_of("phi3", max_position_embeddings=131072, **said)
    config["rope_parameters"] = {**config["rope_parameters"], key: 8192}
    silent = {name: value for name, value in config.items() if name != key}
    assert describe(silent).context_length == context
    assert describe({**config, key: 64}).context_length == 64


def test_lfm3_has_two_names_of_one_epsilon() -> None:
    config = config_of("lfm3")
    config.pop("norm_eps", None)
    assert describe({**config, "rms_norm_eps": 1e-3}).norm_eps == 1e-3
    assert describe({**config, "rms_norm_eps": 1e-3, "norm_eps": 1e-4}).norm_eps == 1e-3
    assert describe({**config, "norm_eps": 1e-4}).norm_eps == 1e-4


def test_gpt_neox_reads_its_own_names_alone() -> None:
    said = {"rope_type": "default", "rope_theta": 500.0}
    plain = describe(config_of("gpt_neox", rope_parameters=said)).ropes[0]
    others = {"partial_rotary_factor": 1.0, "rope_theta": 90.0}
    rope = describe(config_of("gpt_neox", rope_parameters=said, **others)).ropes[0]
    np.testing.assert_array_equal(rope.inv_freq, plain.inv_freq)
    half = describe(config_of("gpt_neox", rope_parameters=said, rotary_pct=0.5)).ropes[0]
    assert np.count_nonzero(half.inv_freq) == 2 * np.count_nonzero(plain.inv_freq)


def test_null_is_false_where_transformers_takes_it() -> None:
    """Flags that are true where they are absent."""
    experts = describe(config_of("deepseek_v3", norm_topk_prob=None)).layers[-1].feed_forward
    assert not experts.normalise  # type: ignore[union-attr]
    of_null, of_false, usual = (
        describe(config_of("deepseek_v3", rope_interleave=value)).storage.head_rows.order  # type: ignore[union-attr]
        for value in (None, False, True)
    )
    assert np.array_equal(of_null, of_false) and not np.array_equal(of_null, usual)
    gated = config_of("falcon_h1", mamba_rms_norm=True)
    first, last = (
        describe({**gated, "mamba_norm_before_gate": value}).layers[0].space
        for value in (None, True)
    )
    assert first != last
