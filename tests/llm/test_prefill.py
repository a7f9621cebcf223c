"""Prompts by weights of their own: what is asked for, what it costs, and where it is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import edgerun
from edgerun.backends import CompileOptions, Shape, make_backend
from edgerun.backends.base import Phase
from edgerun.backends.cpu.regroup import GROUP, has_faster_form, regrouped
from edgerun.cli.main import main
from edgerun.errors import BundleError, InputError
from edgerun.formats import dense
from edgerun.formats.base import PackedWeight
from edgerun.graph import constants
from edgerun.graph.ir import Graph, Node
from edgerun.kernels import isa as isa_module
from edgerun.kernels.isa import selected_isa
from edgerun.kernels.lang.isa import ISAS
from edgerun.llm import experts
from edgerun.llm.options import LoadOptions
from edgerun.model.bundle import open_bundle
from edgerun.plan.calibration.loads import random_weight
from edgerun.plan.plans import Plan, Route, Segment
from edgerun.plan.streaming import prompt_bytes
from edgerun.state import Batch, SequenceStore, same_attention
from edgerun.values import Notice
from tests.conformance.kernels.cases.linear import packed_weight
from tests.support.bundles import bundle_of

F32 = NDArray[np.float32]
SPEC = same_attention(1, 1, 16, "fp32")
gains = pytest.mark.skipif(not selected_isa().regroups, reason="nothing is faster by it here")
LONG, SHORT = [3 + index % 50 for index in range(40)], [1, 5, 9, 2]


def logits(prefill: str, ids: list[int]) -> F32:
    options: dict[str, Any] = {"backend": "cpu", "threads": 1, "prefill": prefill}
    with edgerun.load(bundle_of("llama", weights="int4"), **options) as llm:
        return np.concatenate([block.copy() for block in llm.logits(ids)])


@gains
def test_prompts_are_nearly_the_same_and_short_ones_wholly() -> None:
    exact, fast = logits("exact", LONG), logits("fast", LONG)
    error = np.sqrt(np.mean((fast - exact) ** 2)) / exact.std()
    assert 0 < error < 0.05
    np.testing.assert_array_equal(logits("fast", SHORT), logits("exact", SHORT))


@gains
def test_what_it_costs_is_said() -> None:
    said: list[str] = []
    bundle = bundle_of("llama", weights="int4")
    edgerun.load(bundle, backend="cpu", prefill="fast", progress=said.append).close()
    (notice,) = [text for text in said if isinstance(text, Notice)]
    assert "int8 with a scale for 128: " in notice


@pytest.mark.parametrize(
    ("weights", "backend"), [("ternary", "cpu"), ("fp32", "cpu"), ("int4", "reference")]
)
def test_it_is_refused_where_nothing_would_be_faster(weights: str, backend: str) -> None:
    name = "bitnet-packed" if weights == "ternary" else "llama"
    with pytest.raises(InputError, match="which makes nothing of this model faster"):
        edgerun.load(bundle_of(name, weights=weights), backend=backend, prefill="fast")


def test_it_is_refused_on_a_processor_that_is_not_faster_by_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(isa_module, "selected_isa", lambda: ISAS["portable"])
    with pytest.raises(InputError, match="AVX-512 VNNI or AMX"):
        edgerun.load(bundle_of("llama", weights="int4"), backend="cpu", prefill="fast")


@gains
def test_weights_that_two_routes_share_count_once() -> None:
    backend = make_backend("cpu", given={"prefill": "fast"})
    graph = open_bundle(bundle_of("llama", weights="int4")).graph
    here = {Phase.PREFILL: (Segment("cpu", graph, 1.0),)}
    both = Plan(here, {}, prompts=Route(here[Phase.PREFILL]))
    assert prompt_bytes(both, [backend]) == prompt_bytes(Plan(here, {}), [backend]) > 0
    elsewhere = Plan({Phase.PREFILL: ()}, {}, prompts=Route((Segment("other", graph, 1.0),)))
    assert prompt_bytes(elsewhere, [backend]) == 0


@gains
def test_experts_leave_room_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = open_bundle(bundle_of("olmoe", weights="int4"))
    rooms: dict[str, int] = {}

    def note(layers: Any, asked: Any, free_bytes: int, other_bytes: int) -> None:
        rooms[prefill] = other_bytes

    monkeypatch.setattr(experts, "budget_for", note)
    for prefill in ("exact", "fast"):
        experts.expert_budget(bundle, LoadOptions(prefill=prefill), 0)
    backend = make_backend("cpu", given={"prefill": "fast"})
    more = sum(backend.prompt_bytes(bundle.graph).values())
    assert rooms["fast"] - rooms["exact"] == more > 0


def test_another_word_is_refused() -> None:
    with pytest.raises(InputError, match=r"prefill is 'faster'; expected one of exact, fast"):
        edgerun.load(bundle_of("llama"), prefill="faster")


@gains
def test_the_plan_says_what_memory_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    plan = ["plan", str(bundle_of("llama", weights="int4")), "--explain", "--backend", "cpu"]
    assert main([*plan, "--prefill", "fast"]) == 0
    assert "of prompts alone" in capsys.readouterr().out
    assert main(plan) == 0
    assert "of prompts alone" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "form", [("int4", 32), ("int4+", 32), ("int4^", 32), ("int2", 16), ("int8", 32)]
)
def test_weights_are_rounded_again_to_half_a_step(form: tuple[str, int]) -> None:
    weight = packed_weight(form, 37, 352, row_scale=False)
    again = regrouped(weight)
    assert (again.format, again.block, again.shape) == ("int8", GROUP, weight.shape)
    exact, rounded = dense(weight), dense(again)
    step = np.repeat(again.scales, GROUP, axis=1)[:, : exact.shape[1]]
    assert (np.abs(rounded - exact) <= 0.5001 * step).all()
    largest = np.pad(np.abs(exact), ((0, 0), (0, -exact.shape[1] % GROUP)))
    np.testing.assert_allclose(again.scales * 127, largest.reshape(37, -1, GROUP).max(axis=2))


def test_which_weights_gain() -> None:
    block = packed_weight(("int4", 32), 4, 256, row_scale=False)
    row = packed_weight(("int8", 32), 4, 256, row_scale=True)
    assert has_faster_form(block, "int8_block") and has_faster_form(block, "int8_row")
    assert has_faster_form(row, "int8_block")
    assert not has_faster_form(row, "int8_row")
    assert not has_faster_form(block, "float")
    assert not has_faster_form(packed_weight(("int4", 128), 4, 256, row_scale=False), "int8_block")
    assert not has_faster_form(np.zeros((4, 4), np.float32), "int8_block")


def product(weight: PackedWeight, x: F32, given: dict[str, Any]) -> F32:
    """A layer's output for a prompt."""
    node = Node("linear", "layer", ("x", "w"), ("y",), {"activations": "int8_block"})
    backend = make_backend("cpu", given={"threads": 1, **given})
    graph = Graph([node], ["x"], ["y"], {"w": weight})
    program = backend.compile(graph, Shape.of(len(x)), CompileOptions(SPEC))
    batch = Batch.of([0] * len(x), 0, 0, logits="none")
    output = program(batch, SequenceStore(SPEC, len(x)), {"x": x})["y"].copy()
    program.close()
    backend.close()
    return output


@gains
def test_scales_that_are_no_numbers_are_found_before_they_are_rounded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = random_weight("int4", (352, 70), 3)
    assert isinstance(weight, PackedWeight)
    weight.scales[3, 2] = np.inf
    monkeypatch.setattr(constants, "FEW_BYTES", weight.scales.nbytes - 1)
    with pytest.raises(BundleError, match="scales"):
        product(weight, np.ones((33, 352), np.float32), {"prefill": "fast"})


@gains
def test_prompts_have_the_bits_of_the_weights_that_were_rounded_again() -> None:
    x = np.random.default_rng(2).standard_normal((33, 352)).astype(np.float32)
    weight = random_weight("int4", (352, 70), 3)
    assert isinstance(weight, PackedWeight)
    many = product(weight, x, {"prefill": "fast"})
    np.testing.assert_array_equal(many, product(regrouped(weight), x, {}))
    few = product(weight, x[:16], {"prefill": "fast"})
    np.testing.assert_array_equal(few, product(weight, x[:16], {}))
