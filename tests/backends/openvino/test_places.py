"""Prompts here, replies there: what comes out is what the CPU alone computes."""

from __future__ import annotations

import numpy as np
import pytest

import edgerun
from edgerun.backends.base import Shape, Support
from edgerun.backends.openvino import OpenvinoBackend
from edgerun.graph.ir import Graph, Node
from edgerun.model.bundle import open_bundle
from edgerun.plan.places import Places, placed_candidates
from edgerun.plan.routes import plan_for
from edgerun.state import Batch
from tests.backends.openvino.conftest import placed
from tests.support.bundles import GOLDEN, bundle_of, error_of

pytest.importorskip("openvino")

PLACES = ("prefill=openvino:CPU", "prefill=openvino:CPU,decode=openvino:CPU", "decode=openvino:CPU")
# Exports whose activations nobody rounds: a last bit changes no token there. mistral has windows
# of 8 tokens, less than a chunk; qwen2 has biases, qwen3 norms of heads; the others of llama scale
# their angles, gemma2 bounds scores, gpt_neox adds two products with biases to one residual.
QUICK = {
    "llama": ("fp32", "int2"),
    "llama-linear": ("int8",),
    "llama-llama3": ("fp32",),
    "llama-yarn": ("int4",),
    "mistral": ("int8",),
    "qwen2": ("int4",),
    "qwen3": ("int4",),
    "gemma2": ("int8",),
    "gpt_neox": ("fp32",),
    "gemma3n_text": (),  # its networks take longest to make
}
# How angles are scaled is the same wherever a prompt ends and a reply begins.
EVERYWHERE = ("llama", "mistral", "qwen2", "qwen3", "gemma2")
EXACT = [
    pytest.param(
        name,
        weights,
        place,
        marks=[]
        if weights in quick and (name in EVERYWHERE or place == PLACES[1])
        else pytest.mark.slow,
    )
    for name, quick in QUICK.items()
    for weights in ("fp32", "int8", "int4", "int2")
    for place in PLACES
]
# Layers attend to keys of earlier ones.
SHARED = ("gemma4_text-per-layer", pytest.param("gemma3n_text", marks=pytest.mark.slow))
ROUNDED = [
    *(("llama", "int4", place) for place in PLACES),
    *(("bitnet-packed", "ternary", place) for place in PLACES),
    # The same model, stored otherwise.
    *((name, "ternary", PLACES[1]) for name in ("bitnet-master", "bitnet-offline")),
    *(
        pytest.param(*case, place, marks=pytest.mark.slow)
        for case in (("qwen3", "int4"), ("mistral", "int8"))
        for place in PLACES
    ),
]


def ids_of(name: str, count: int = 40) -> list[int]:
    with np.load(GOLDEN / name / "golden.npz") as data:
        return np.resize(data["ids"].reshape(-1), count).tolist()


def exact(name: str, weights: str) -> dict[str, str]:
    """Options of an export whose activations stay as they are."""
    options = {"weights": weights}
    if weights != "fp32":
        options["activations"] = "fp32"
    if (name, weights) == ("qwen3", "int4"):
        options["head_weights"] = weights
    return options


@pytest.mark.parametrize(("name", "weights", "place"), EXACT)
def test_greedy_tokens_are_those_of_the_cpu(name: str, weights: str, place: str) -> None:
    folder, prompt = bundle_of(name, **exact(name, weights)), ids_of(name)
    replies = []
    for each in ("prefill=cpu", place):
        with edgerun.load(folder, place=each, threads=1) as llm:
            replies.append(llm.generate(prompt, temperature=0, max_tokens=64, ignore_eos=True).ids)
            reports = llm.reports()
    assert replies[1] == replies[0]
    assert sum(row["calls"] for row in reports[0].rows) >= 1  # it was the device, too


@pytest.mark.parametrize(("name", "weights", "place"), ROUNDED)
def test_logits_are_close_where_activations_are_rounded(
    name: str, weights: str, place: str
) -> None:
    ids, logits = ids_of(name, 96), []
    for each in ("prefill=cpu", place):
        with placed(bundle_of(name, weights=weights), each) as model:
            store = model.store()
            slot = store.open()
            assert not model.run(store, Batch.of(ids[:64], 0, slot, logits="none")).size
            steps = [model.run(store, Batch.of([ids[at]], at, slot)) for at in range(64, 96)]
            logits.append(np.concatenate(steps))
            calls = model.calls()
    assert error_of(logits[1], logits[0]) <= 3e-2
    assert calls


@pytest.mark.parametrize("place", PLACES)
def test_ragged_batches_equal_one_at_a_time(place: str) -> None:
    """Replies, prompts with and without logits, and rows of all logits in one call."""
    ids = np.resize(ids_of("qwen3"), 200).tolist()
    folder = bundle_of("qwen3", weights="int4", activations="fp32")
    parts = [(3, 1, "last"), (0, 70, "last"), (5, 40, "none"), (0, 20, "all"), (0, 18, "none")]
    with placed(folder, place) as model:
        results = []
        for together in (True, False):
            store, batches = model.store(len(parts)), []
            for cached, new, logits in parts:
                slot = store.open()
                if cached:
                    model.run(store, Batch.of(ids[:cached], 0, slot, logits="none"))
                batches.append(Batch.of(ids[cached : cached + new], cached, slot, logits=logits))
            calls = [Batch.join(batches)] if together else batches
            rows = [model.run(store, batch) for batch in calls]
            blocks = [
                part
                for state in store.states
                for slot, (cached, new, _) in enumerate(parts)
                for part in store.read_block(state.name, slot, 0, cached + new)
            ]
            results.append((np.concatenate(rows), blocks))
        assert error_of(results[0][0], results[1][0]) <= 1e-5
        assert len(results[0][0]) == 22
        for block, expected in zip(results[0][1], results[1][1], strict=True):
            assert error_of(block, expected) <= 1e-5


@pytest.fixture
def without_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that has no gates, so that networks end within every layer."""
    supports = OpenvinoBackend.supports

    def refuse(self: OpenvinoBackend, graph: Graph, node: Node, shape: Shape) -> Support:
        return Support(False, "none") if node.op == "gate" else supports(self, graph, node, shape)

    monkeypatch.setattr(OpenvinoBackend, "supports", refuse)


def segments_of(name: str, place: str) -> set[int]:
    """How many segments there are in each phase."""
    graph = open_bundle(bundle_of(name, weights="fp32")).graph
    plan = plan_for(graph, placed_candidates(Places.read(place), {"threads": 1}))
    return {len(segments) for segments in plan.segments.values()}


def assert_same_logits(name: str) -> None:
    """Compares sequences of all kinds in one call with what the processor computes."""
    ids, computed = np.resize(ids_of(name), 200).tolist(), []
    parts = [(70, 20, "last"), (0, 24, "last"), (5, 10, "none"), (130, 1, "last"), (0, 9, "all")]
    for place in (PLACES[1], "prefill=cpu"):
        with placed(bundle_of(name, weights="fp32"), place, rows=64) as model:
            store, batches = model.store(len(parts)), []
            for cached, new, logits in parts:
                slot = store.open()
                for start in range(0, cached, 64):
                    past = ids[start : min(start + 64, cached)]
                    model.run(store, Batch.of(past, start, slot, logits="none"))
                batches.append(Batch.of(ids[cached : cached + new], cached, slot, logits=logits))
            computed.append(model.run(store, Batch.join(batches)))
            assert (model.calls() > 0) == (place != "prefill=cpu")
    assert error_of(*computed) <= 1e-5


@pytest.mark.parametrize("name", SHARED)
def test_keys_of_an_earlier_layer_of_the_same_network(name: str) -> None:
    assert segments_of(name, PLACES[1]) == {1}
    assert_same_logits(name)


@pytest.mark.parametrize("name", SHARED)
def test_keys_of_an_earlier_network(name: str, without_gates: None) -> None:
    assert min(segments_of(name, PLACES[1])) > 3
    assert_same_logits(name)
