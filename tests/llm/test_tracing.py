"""The routes that come out are those that the definitions say, and tracing changes no bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import edgerun
from edgerun.backends import CompileOptions, make_backend
from edgerun.backends.base import Progress, Values, buckets
from edgerun.errors import InputError, UnsupportedError
from edgerun.graph.ir import Node
from edgerun.llm import tracing
from edgerun.llm.llm import LLM
from edgerun.llm.tracing import Recorder, choices_of, layer_numbers, load_traced, route_nodes
from edgerun.model.bundle import Bundle, open_bundle
from edgerun.offload.trace_file import CHOICE, NO_EXPERT
from edgerun.plan.planner import make_plan
from edgerun.plan.programs import Programs, compile_plan
from edgerun.plan.states import states_of
from edgerun.state import Batch, SequenceStore, same_attention
from tests.support.bundles import GOLDEN, bundle_of

MODELS = ["mixtral", "olmoe", "qwen2_moe", "qwen3_moe", "bitnet_moe", "lfm2_moe"]
F32 = NDArray[np.float32]


def golden_ids(name: str) -> list[int]:
    with np.load(GOLDEN / name / "golden.npz") as data:
        ids: list[int] = data["ids"].tolist()
    return ids


def by_definition(folder: Path, ids: list[int]) -> list[F32]:
    """The routes of each layer, ``[tokens, experts]``, in NumPy."""
    bundle, backend = open_bundle(folder), make_backend("reference")
    names = [node.outputs[0] for node in route_nodes(bundle.graph)]
    bundle.graph.outputs += names
    states = states_of(bundle.graph, bundle.config, "fp32")
    plan = make_plan(bundle.graph, [backend])
    programs = compile_plan(plan, [backend], buckets(len(ids)), CompileOptions(states))
    store = SequenceStore(states, len(ids), 1)
    slot = store.open()
    store.reserve(slot, len(ids))
    values = programs.run(Batch.of(ids, 0, slot), store)
    programs.close()
    return [values[name] for name in names]


@pytest.mark.parametrize("name", MODELS)
def test_routes_are_those_of_the_definition(name: str) -> None:
    folder, prompt = bundle_of(name, weights="fp32", head_weights="fp32"), golden_ids(name)
    with load_traced(folder, threads=2, kv_cache="fp32", chunk_rows=16) as llm:
        completion = llm.generate(prompt, temperature=0, max_tokens=9, ignore_eos=True)
        trace = llm.trace(completion.prompt_tokens)
    expected = by_definition(folder, [*prompt, *completion.ids[:-1]])
    assert (trace.tokens, trace.prompt_tokens) == (len(prompt) + 8, len(prompt))
    assert len(trace.layers) == len(expected)
    assert trace.model == open_bundle(folder).digest
    for place, routes in enumerate(expected):
        experts = trace.choices["expert"][:, place].astype(np.int64)
        weights = trace.choices["weight"][:, place].astype(np.float32)
        assert (np.diff(weights, axis=1) <= 0).all()
        traced = np.zeros_like(routes)
        np.put_along_axis(traced, experts, weights, axis=1)
        assert ((traced != 0) == (routes != 0)).all()
        assert np.abs(traced - routes).max() < 1e-3  # of float16


@pytest.mark.parametrize("name", MODELS)
def test_tracing_changes_neither_tokens_nor_logits(name: str) -> None:
    folder, ids = bundle_of(name), golden_ids(name)

    def computed(llm: LLM) -> tuple[list[int], list[int], F32]:
        greedy = llm.generate(ids[:20], temperature=0, max_tokens=20, ignore_eos=True).ids
        drawn = llm.generate(ids[1:21], temperature=1, seed=3, max_tokens=20, ignore_eos=True).ids
        return greedy, drawn, np.concatenate([block.copy() for block in llm.logits(ids)])

    with edgerun.load(folder, threads=2) as llm:
        greedy, drawn, logits = computed(llm)
    with load_traced(folder, threads=2) as llm:
        traced = computed(llm)
    assert (greedy, drawn) == traced[:2]
    assert np.array_equal(logits, traced[2])


def test_chunks_and_threads_change_no_choice() -> None:
    folder, prompt = bundle_of("olmoe"), golden_ids("olmoe")
    traces = []
    for rows, threads in [(256, 1), (7, 2), (1, 1)]:
        with load_traced(folder, threads=threads, chunk_rows=rows) as llm:
            traces.append(llm.trace(llm.generate(prompt, max_tokens=1).prompt_tokens))
    for other in traces[1:]:
        assert np.array_equal(other.choices, traces[0].choices)


def test_a_second_reply_is_traced_anew() -> None:
    with load_traced(bundle_of("mixtral"), threads=1) as llm:
        long, short = golden_ids("mixtral"), [9, 8, 7]
        llm.trace(llm.generate(long, max_tokens=5).prompt_tokens)
        second = llm.trace(llm.generate(short, max_tokens=1).prompt_tokens)
    with load_traced(bundle_of("mixtral"), threads=1) as llm:
        alone = llm.trace(llm.generate(short, max_tokens=1).prompt_tokens)
    assert second.tokens == 3
    assert np.array_equal(second.choices, alone.choices)


def test_several_texts_at_a_time_are_no_trace() -> None:
    """Nor is nothing."""
    with load_traced(bundle_of("mixtral"), threads=1) as llm:
        with pytest.raises(InputError, match="nothing was traced yet"):
            llm.trace(0)
        replies = llm.generate_many([[9, 8, 7], [4, 5]], max_tokens=3, ignore_eos=True)
        assert {reply.finish_reason for reply in replies} == {"error"}
        with pytest.raises(InputError, match="nothing was traced yet"):
            llm.trace(3)


class SomeRoutes(Programs):
    """Sends every row to the first of two experts."""

    def run(self, batch: Batch, cache: SequenceStore) -> Values:
        return {"routes": np.array([[1.0, 0.0]] * batch.rows, np.float32)}


def test_texts_in_turns_are_no_trace() -> None:
    """One goes on where another, of the same length, was noted meanwhile."""
    recorder, cache = (
        Recorder(SomeRoutes({}), {"routes": 1}),
        SequenceStore(same_attention(1, 1, 16, "fp32"), 1),
    )
    recorder.run(Batch.of([9, 8, 7], 0, 0), cache)
    recorder.run(Batch.of([4, 5, 6], 0, 1), cache)
    recorder.run(Batch.of([7], 3, 1), cache)
    assert len(recorder.choices()) == 4
    with pytest.raises(InputError, match="the beginning of this text"):
        recorder.run(Batch.of([1], 4, 0), cache)


def test_a_text_that_the_cache_remembers_is_not_traced_in_part() -> None:
    with load_traced(bundle_of("mixtral"), threads=1) as llm:
        prompt = golden_ids("mixtral") * 4  # more than a page of the cache
        llm.generate(prompt, max_tokens=5)
        with pytest.raises(InputError, match="load the model anew to trace it"):
            llm.generate(prompt, max_tokens=5)


def test_options_are_those_of_other_models(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no option 'treads': did you mean 'threads'"):
        load_traced(bundle_of("mixtral"), treads=2)
    said: list[str] = []
    told = "a bundle is made"

    def opened(path: Path, *, verify: bool, progress: Progress) -> Bundle:
        progress(told)
        return open_bundle(path)

    monkeypatch.setattr(tracing, "open_model", opened)
    with load_traced(bundle_of("mixtral"), threads=1, backend="reference", progress=said.append):
        assert told in said


def test_a_dense_model_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="is a dense model: it has no layers of experts"):
        load_traced(bundle_of("llama"))


def test_choices_go_by_weight() -> None:
    routes = np.array([[0, 0.25, 0.5, 0.25], [0, 0, 1e-30, 0], [0, 0, 0, 0]], np.float32)
    choices = choices_of(routes, 3)
    assert choices.dtype == CHOICE
    none = NO_EXPERT
    assert choices["expert"].tolist() == [[2, 1, 3], [2, none, none], [none, none, none]]
    assert choices["weight"].tolist() == [[0.5, 0.25, 0.25], [0, 0, 0], [0, 0, 0]]
    assert choices_of(-routes, 3)["expert"].tolist() == choices["expert"].tolist()
    assert choices_of(routes, 5)["expert"][0].tolist() == [2, 1, 3, none, none]


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (["/model/layers.1/mlp/route", "/model/layers.10/mlp/route"], (1, 10)),
        (["route_a", "route_b"], (0, 1)),
        (["layers.3/route", "route_b"], (0, 1)),
        (["layers.3/route", "layers.3/other"], (0, 1)),
        (["layers.3/route", "layers.2/route"], (0, 1)),
    ],
)
def test_layers_have_the_numbers_that_their_nodes_say(
    names: list[str], numbers: tuple[int, ...]
) -> None:
    assert layer_numbers([Node("route", name, (), ()) for name in names]) == numbers
