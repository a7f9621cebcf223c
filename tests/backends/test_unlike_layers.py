"""Layers that differ in heads, size of heads and window: everything follows the graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import edgerun
from edgerun.errors import BundleError
from tests.support.altered import Alteration, AlteredBundle
from tests.support.bundles import bundle_of, error_of, runner
from tests.support.unlike import unlike, unlike_of

IDS = [1, *(5 + 7 * place % 250 for place in range(150))]


def logits(folder: Path, backend: str, step: int) -> np.ndarray:
    """Of all ids, so many in a call."""
    with runner(folder, backend, max_rows=64) as run:
        return np.concatenate([run.run(IDS[at : at + step]) for at in range(0, len(IDS), step)])


EXACT = {"activations": "fp32"}  # or back-ends round rows of another last bit to other integers


@pytest.mark.parametrize("weights", ["fp32", "int4"])
def test_unlike_layers_compute_what_the_definitions_and_onnxruntime_do(weights: str) -> None:
    folder = unlike_of("llama", weights=weights, **EXACT)
    expected, computed = logits(folder, "reference", 60), logits(folder, "cpu", 60)
    assert error_of(computed, expected) < 1e-5
    np.testing.assert_array_equal(computed.argmax(axis=-1), expected.argmax(axis=-1))
    np.testing.assert_array_equal(logits(folder, "cpu", 7), computed)
    if weights == "fp32":
        assert error_of(logits(folder, "onnxruntime", 60), expected) < 1e-5
        plain = logits(bundle_of("llama", weights="fp32", **EXACT), "cpu", 60)
        assert error_of(plain, expected) > 1e-3


def test_unlike_layers_have_pools_of_their_own_and_leave_pages_by_their_own_windows() -> None:
    with runner(unlike_of("llama", weights="int4"), "cpu") as run:
        for at in range(0, len(IDS), 50):
            run.run(IDS[at : at + 50])
        full, windowed = (run.cache.pool(state.name) for state in run.cache.states)
        assert full.page_table[run.sequence].clip(-1, 0).tolist() == [0, 0, 0, -1]
        assert windowed.page_table[run.sequence].clip(-1, 0).tolist() == [-1, 0, 0, -1]


def test_the_greedy_ids_of_unlike_layers_are_the_same_everywhere() -> None:
    said = []
    for backend in ("cpu", "reference"):
        with edgerun.load(unlike_of("llama", weights="int4", **EXACT), backend=backend) as llm:
            said.append(llm.generate(IDS[:20], temperature=0, max_tokens=20, ignore_eos=True).ids)
    assert said[0] == said[1]
    assert len(said[0]) == 20


def stated(**sizes: int) -> Alteration:
    return lambda bundle: bundle.manifest["model"].update(sizes)


def put(name: str, *values: int) -> Alteration:
    return lambda bundle: bundle.put(name, np.array(values, np.int64))


def few_frequencies(bundle: AlteredBundle) -> None:
    bundle.put("unlike/inv_freq", np.ones(4, np.float32))
    bundle.put("unlike/middle", np.array([4], np.int64))


def huge_heads(bundle: AlteredBundle) -> None:
    for name in ("q_proj", "k_proj", "v_proj"):
        bundle.put(f"unlike/{name}", np.array([0, 0, 1, 2**31], np.int64))


CASES: dict[str, tuple[Callable[[AlteredBundle], None], str]] = {
    "heads of the first": (stated(num_heads=4), "num_heads 4, but its graph has 4 and 2"),
    "heads of the second": (stated(num_kv_heads=1), "num_kv_heads 1, but its graph has 2 and 1"),
    "size of the first": (stated(head_dim=16), "head_dim 16, but its graph has 16 and 32"),
    "less than nothing": (stated(head_dim=-1), "head_dim -1; expected 0 to"),
    "no layers": (stated(num_layers=0), "num_layers 0; expected 1 to"),
    "other gates": (stated(intermediate_size=32), "intermediate_size 32, but its graph has 64"),
    "more queries": (put("unlike/q_proj", 0, 0, 3, 32), "expected|form"),
    "more keys": (put("unlike/k_proj", 0, 0, 2, 32), "one size, and as many heads"),
    "more keys and values": (
        lambda bundle: [put(f"unlike/{n}_proj", 0, 0, 2, 32)(bundle) for n in "kv"],
        "num_kv_heads",
    ),
    "huge heads": (huge_heads, "2147483648|form"),
    "few frequencies": (few_frequencies, "heads of 32 elements are turned by angles for 8"),
    "no window": (
        lambda bundle: bundle.put("unlike/window", np.array(0, np.int64)),
        "window of 0 positions",
    ),
    "huge window": (
        lambda bundle: bundle.put("unlike/window", np.array(2**40, np.int64)),
        "window = 1099511627776",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_that_do_not_fit_one_layer_are_refused_in_one_sentence(
    name: str, tmp_path: Path
) -> None:
    alteration, expected = CASES[name]
    bundle = unlike(bundle_of("llama", weights="int4"), tmp_path / "bundle")
    alteration(bundle)
    with pytest.raises(BundleError, match=expected) as refusal:
        edgerun.load(bundle.save(), backend="cpu")
    assert "\n" not in str(refusal.value)


def test_heads_that_nobody_states_are_needed_where_the_graph_cannot_say_them(
    tmp_path: Path,
) -> None:
    bundle = unlike(bundle_of("llama", weights="int4"), tmp_path / "bundle")
    bundle.set("layers.1/self_attn/Attention", softmax_precision=11)
    with pytest.raises(BundleError, match="says num_kv_heads 0 .* softmax_precision"):
        edgerun.load(bundle.save(), backend="onnxruntime")
