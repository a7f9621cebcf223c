"""Attention to latent rows: the logits of whole heads, a tenth of the memory, and where not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import edgerun
from edgerun.backends.base import Shape, Support
from edgerun.backends.cpu import CpuBackend
from edgerun.errors import BundleError, InputError
from edgerun.formats.registry import dense
from edgerun.graph import constants
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.graph.mapped_file import read_array
from edgerun.kernels.isa import bfloat16_multiplier, selected_isa
from edgerun.llm.llm import LLM
from edgerun.model.bundle import open_bundle
from edgerun.plan import latent_rows
from edgerun.plan.latent_rows import attend_to_latent_rows
from edgerun.state.capacity import token_bytes
from tests.support.bundles import GOLDEN, bundle_of, error_of

NAMES = (
    "deepseek_v2",
    "deepseek_v2-query-rank",
    "deepseek_v3",
    "deepseek_v3-groups",
    "glm4_moe_lite",
)
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
NEEDS_BFLOAT16 = pytest.mark.skipif(
    not bfloat16_multiplier(selected_isa()), reason="no products of bfloat16"
)
HALF = 2e-3  # of the logits' range, for matrices in half precision


def load(name: str, latent: str = "auto", weights: str = "fp32", **options: Any) -> LLM:
    folder = bundle_of(name, weights=weights, activations="fp32")
    options = {"backend": "cpu", "kv_cache": "fp32", **options}
    return edgerun.load(folder, latent=latent, **options)


def graph_of(llm: LLM) -> Graph:
    assert llm.model.bundle is not None
    return llm.model.bundle.graph


def ops(graph: Graph) -> set[str]:
    return {node.op for node in graph.nodes}


def logits(llm: LLM, ids: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.concatenate([block.copy() for block in llm.logits(ids)])


def golden(name: str) -> tuple[list[int], np.ndarray[Any, Any]]:
    with np.load(GOLDEN / name / "golden.npz") as data:
        ids, expected = data["ids"].reshape(-1), data["logits"]
        return ids.tolist(), expected.reshape(-1, expected.shape[-1])


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name: str) -> None:
    ids, expected = golden(name)
    with load(name) as llm:
        assert {"latent_attention"} <= ops(graph_of(llm))
        assert not {"attention", "add_to_heads"} & ops(graph_of(llm))
        assert error_of(logits(llm, ids), expected) < 1e-4
        matrices = [each for each in graph_of(llm).constants if each.endswith(("absorb", "expand"))]
        assert {graph_of(llm).array(each).dtype for each in matrices} == {np.dtype(np.float32)}


@pytest.mark.parametrize("weights", ["int4", "int8"])
@pytest.mark.parametrize("name", ["deepseek_v2-query-rank", "glm4_moe_lite"])
def test_matrices_of_packed_weights_are_halves(name: str, weights: str) -> None:
    ids, _ = golden(name)
    with load(name, "never", weights) as llm:
        assert ops(graph_of(llm)) & {"add_to_heads"}
        expected = logits(llm, ids)
        reply = llm.generate(ids, max_tokens=20, **GREEDY).ids
    with load(name, "auto", weights) as llm:
        stored = graph_of(llm).constants
        matrices = [stored[each] for each in stored if each.endswith(("absorb", "expand"))]
        assert {getattr(each, "dtype", None) for each in matrices} == {np.dtype(np.float16)}
        assert not any("k_proj" in each or "v_proj" in each for each in stored)
        assert error_of(logits(llm, ids), expected) < HALF
        assert llm.generate(ids, max_tokens=20, **GREEDY).ids == reply


@pytest.mark.parametrize("kv_cache", ["fp32", "fp16"])
def test_no_bit_depends_on_threads_calls_or_what_runs_beside(kv_cache: str) -> None:
    rng = np.random.default_rng(5)
    prompts = [rng.integers(2, 250, length).tolist() for length in (90, 66, 3)]
    options = {"weights": "int4", "kv_cache": kv_cache, "context": 128}
    with load("glm4_moe_lite", threads=1, chunk_rows=1, **options) as llm:
        expected = [logits(llm, prompt) for prompt in prompts]
        alone = [llm.generate(prompt, max_tokens=10, **GREEDY).ids for prompt in prompts]
    for threads, rows in ((1, 7), (2, 64)):
        with load("glm4_moe_lite", threads=threads, chunk_rows=rows, **options) as llm:
            for prompt, bits in zip(prompts, expected, strict=True):
                np.testing.assert_array_equal(logits(llm, prompt), bits)
            together = llm.generate_many(prompts, max_tokens=10, **GREEDY)
            assert [reply.ids for reply in together] == alone


def test_a_token_takes_a_row_of_the_cache() -> None:
    with load("deepseek_v2", "never") as llm:
        whole = token_bytes(llm.model.states)
    with load("deepseek_v2") as llm:
        config = open_bundle(bundle_of("deepseek_v2", weights="fp32", activations="fp32")).config
        latent, turned = 32, 8
        assert token_bytes(llm.model.states) == 4 * config.num_layers * (latent + turned)
        assert whole == 4 * config.num_layers * 2 * config.num_heads * config.head_dim


@pytest.mark.parametrize(
    "options",
    [
        {"latent": "never"},
        {"kv_cache": "int8"},
        pytest.param({"attention": "fast"}, marks=NEEDS_BFLOAT16),
        {"backend": "reference"},
        {"backend": None, "place": "prefill=cpu"},
    ],
)
def test_heads_stay_whole_where_something_else_is_asked_for(options: dict[str, Any]) -> None:
    with load("deepseek_v2", **{"weights": "int4", **options}) as llm:
        assert {"attention", "add_to_heads"} <= ops(graph_of(llm))
        assert "latent_attention" not in ops(graph_of(llm))


def test_a_model_whose_cache_has_latent_rows_is_placed_nowhere_else() -> None:
    prompt = list(range(2, 9))
    with load("deepseek_v2", backend=None) as llm:
        expected = llm.generate(prompt, max_tokens=5, **GREEDY).ids
        with pytest.raises(InputError, match="load it with latent='never'"):
            llm.place("prefill=openvino:CPU")
        llm.place("prefill=cpu,decode=cpu")
        assert llm.generate(prompt, max_tokens=5, **GREEDY).ids == expected


def graph() -> Graph:
    """Lowered, with whole heads."""
    return open_bundle(bundle_of("deepseek_v2", weights="fp32", activations="fp32")).graph


def test_other_models_are_what_they_were() -> None:
    other = open_bundle(bundle_of("llama", weights="int4")).graph
    assert attend_to_latent_rows(other) is other


def first(graph: Graph, op: str) -> int:
    return next(index for index, node in enumerate(graph.nodes) if node.op == op)


def changed(op: str, **attributes: Any) -> Callable[[Graph], None]:
    def change(graph: Graph) -> None:
        index = first(graph, op)
        node = graph.nodes[index]
        graph.nodes[index] = node.replace(attrs={**node.attrs, **attributes})

    return change


def other_input(op: str, place: int, name: str) -> Callable[[Graph], None]:
    def change(graph: Graph) -> None:
        index = first(graph, op)
        node = graph.nodes[index]
        inputs = [*node.inputs, *[""] * (place + 1 - len(node.inputs))]
        inputs[place] = name
        graph.nodes[index] = node.replace(inputs=tuple(inputs))

    return change


def turned_keys(graph: Graph) -> None:
    """Keys of a head have something of their own where positions turn them."""
    (name,) = [each for each in graph.constants if "layers.0.self_attn.k_proj" in each]
    weights = dense(graph.matrix(name))
    weights[0] = 1
    graph.constants[name] = weights


def rows_beside_what_turns(graph: Graph) -> None:
    """What all heads have in common has something where positions do not turn it, too."""
    (name,) = [each for each in graph.constants if "layers.0.self_attn.k_rope_proj" in each]
    weights = dense(graph.matrix(name)).copy()
    (resting,) = np.flatnonzero(~weights.any(axis=1))[:1]
    weights[resting] = 1
    graph.constants[name] = weights


def rounded_keys(graph: Graph) -> None:
    """As BitNet rounds rows, which is part of the model."""
    index = linear_of(graph, "layers.0/self_attn/k_proj")
    node = graph.nodes[index]
    graph.nodes[index] = node.replace(attrs={"activations": "int8_row"})


def read_by_another(graph: Graph) -> None:
    index = first(graph, "attention")
    node = graph.nodes[index]
    reader = Node("shared_attention", "reader", node.inputs[:1], ("read",), node.attrs)
    graph.nodes.insert(index + 1, reader)
    graph.outputs.append("read")


def linear_of(graph: Graph, part: str) -> int:
    return next(index for index, node in enumerate(graph.nodes) if part in node.name)


def biased_values(graph: Graph) -> None:
    index = linear_of(graph, "layers.0/self_attn/v_proj")
    node = graph.nodes[index]
    graph.constants["bias"] = np.ones(graph.shapes[node.outputs[0]].width, np.float32)
    graph.nodes[index] = node.replace(inputs=(*node.inputs[:2], "bias"))


def values_of_something_else(graph: Graph) -> None:
    keys = graph.nodes[linear_of(graph, "layers.0/self_attn/kv_a_proj")]
    index = linear_of(graph, "layers.0/self_attn/v_proj")
    node = graph.nodes[index]
    graph.nodes[index] = node.replace(inputs=(keys.outputs[0], *node.inputs[1:]))


def every_element_turns(graph: Graph) -> None:
    name = graph.nodes[first(graph, "rotary")].inputs[2]
    graph.constants[name] = np.ones_like(read_array(graph.array(name)))


@pytest.mark.parametrize(
    "change",
    [
        changed("attention", window=8),
        changed("attention", softcap=8.0),
        other_input("attention", 3, "sinks"),
        turned_keys,
        rows_beside_what_turns,
        rounded_keys,
        read_by_another,
        biased_values,
        values_of_something_else,
    ],
)
def test_a_layer_of_another_form_keeps_whole_heads(change: Callable[[Graph], None]) -> None:
    whole = graph()
    whole.constants["sinks"] = np.zeros(4, np.float32)
    change(whole)
    after = [node.op for node in attend_to_latent_rows(whole).nodes]
    assert (after.count("attention"), after.count("latent_attention")) == (1, 1)


def test_where_positions_turn_everything_heads_stay_whole() -> None:
    whole = graph()
    every_element_turns(whole)
    assert attend_to_latent_rows(whole) is whole
    for name in [each for each in whole.constants if "self_attn.k_proj" in each]:
        whole.constants[name] = np.zeros_like(dense(whole.matrix(name)))
    assert attend_to_latent_rows(whole) is whole


def test_what_positions_multiply_goes_into_the_keys() -> None:
    """YaRN may scale what it turns, and so also what it does not turn."""
    whole = graph()
    for index, node in enumerate(whole.nodes):
        if node.op == "rotary":
            whole.nodes[index] = node.replace(attrs={**node.attrs, "factor": 1.5})
    scaled = attend_to_latent_rows(whole).constants
    before = attend_to_latent_rows(graph()).constants
    names = [each for each in scaled if each.endswith("absorb")]
    assert len(names) == 2
    for name in names:
        np.testing.assert_allclose(scaled[name], 1.5 * before[name])  # type: ignore[operator]


def packed(changed: str, factor: float) -> Graph:
    """With whole heads in int8, and some weights of the first layer times a number."""
    whole = open_bundle(bundle_of("deepseek_v2", weights="int8", activations="fp32")).graph
    (name,) = [each for each in whole.constants if f"layers.0.self_attn.{changed}" in each]
    weight: Any = whole.matrix(name)
    with np.errstate(all="ignore"):
        scales = read_array(weight.scales) * np.float32(factor)
    whole.constants[name] = replace(weight, scales=scales)
    return whole


@pytest.mark.parametrize("factor", [np.inf, np.nan])
def test_values_that_are_no_numbers_are_refused(factor: float) -> None:
    with pytest.raises(BundleError, match="expand' has elements that are infinite or no numbers"):
        attend_to_latent_rows(packed("v_proj", factor))


@pytest.mark.parametrize("factor", [np.inf, np.nan])
def test_keys_that_are_no_numbers_are_whole_heads(factor: float) -> None:
    """Where they should be zeros they are none, too; what runs whole heads refuses them."""
    after = [node.op for node in attend_to_latent_rows(packed("k_proj", factor)).nodes]
    assert after.count("attention") == 1


def test_many_scales_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "FEW_BYTES", 0)
    with pytest.raises(BundleError, match="scales"):
        attend_to_latent_rows(packed("v_proj", np.inf))


def test_what_no_kernel_takes_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    supports = CpuBackend.supports

    def refusing(self: CpuBackend, graph: Graph, node: Node, shape: Shape) -> Support:
        is_latent = node.op == "latent_attention"
        return Support(False, "") if is_latent else supports(self, graph, node, shape)

    monkeypatch.setattr(CpuBackend, "supports", refusing)
    with load("deepseek_v2") as llm:
        assert "add_to_heads" in ops(graph_of(llm))


@pytest.mark.parametrize(
    ("heads", "latent", "plain", "is_supported"),
    [
        (128, 512, 128, True),
        (6, 512, 128, True),
        (30, 512, 128, False),  # all of a row's queries would be one share
        (16, 961, 128, False),
        (16, 511, 127, False),
        (16, 1000, 128, False),
    ],
)
def test_sizes_that_kernels_take(heads: int, latent: int, plain: int, is_supported: bool) -> None:
    shapes = {"q": heads * 192, "latent": latent, "turned": 192}
    attributes = {"layer": 0, "num_heads": heads, "key_dim": latent + 192 - plain, "plain": plain}
    names = (*shapes, "absorb", "expand")
    node = Node("latent_attention", "a", names, ("y",), {**attributes, "scale": 1.0})
    matrices = {
        "absorb": np.zeros((heads * plain, latent), np.float16),
        "expand": np.zeros((heads * latent, 128), np.float16),
    }
    values = {name: ValueShape(width) for name, width in shapes.items()}
    graph = Graph([node], [*shapes], ["y"], {**matrices}, shapes=values)
    assert bool(CpuBackend().supports(graph, node, Shape.of(1))) == is_supported


def test_numbers_beyond_half_precision_stay_in_single() -> None:
    kinds = [
        constant.dtype
        for name, constant in attend_to_latent_rows(packed("k_proj", 1e6)).constants.items()
        if name.endswith("absorb") and isinstance(constant, np.ndarray)
    ]
    assert kinds == [np.float32, np.float16]


@pytest.mark.parametrize("part", ["k_proj", "v_proj"])
def test_sizes_that_contradict_each_other_are_left_to_whoever_refuses_them(part: str) -> None:
    whole = graph()
    (name,) = [each for each in whole.constants if f"layers.0.self_attn.{part}" in each]
    whole.constants[name] = dense(whole.matrix(name))[:1]
    after = [node.op for node in whole_or_latent(whole).nodes]
    assert (after.count("attention"), after.count("latent_attention")) == (1, 1)


def whole_or_latent(graph: Graph) -> Graph:
    """Rewritten, without looking at the sizes of what was left as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latent_rows, "value_shapes", lambda graph: {})
        return attend_to_latent_rows(graph)
