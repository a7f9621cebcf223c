"""Layers that attend to keys and values of others: one cache, however it is gone back in."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun.backends import make_backend
from edgerun.backends.base import buckets
from edgerun.errors import BundleError
from edgerun.graph.shapes import value_shapes
from edgerun.model.bundle import open_bundle
from edgerun.plan.early_rows import select_early
from edgerun.plan.states import states_of
from edgerun.state import Batch
from edgerun.state.capacity import sequence_bytes, token_bytes
from tests.support.altered import AlteredBundle
from tests.support.bundles import bundle_of, error_of, runner

NAME = "gemma4_text-per-layer"
IDS = np.random.default_rng(3).integers(0, 256, 170).astype(np.int32)
OTHERS = IDS[::-1].copy()
# NumPy's products depend on how many rows there are; kernels' do not, by a bit.
ALLOWED = {"reference": 1e-5, "cpu": 0.0}


@pytest.fixture(params=ALLOWED)
def model(request):
    bundle = bundle_of(NAME, weights="int8", activations="fp32")
    with runner(bundle, request.param, threads=2, max_rows=32, sequences=3) as opened:
        yield opened


@pytest.fixture
def check_same(request):
    backend = request.node.callspec.params["model"]

    def check(computed, expected):
        assert error_of(computed, expected) <= ALLOWED[backend]

    return check


class Texts:
    """Appends to sequences of a model, and remembers what they are."""

    def __init__(self, model):
        self._model, self._ids = model, {}

    def run(self, slot, start, ids):
        """The logits behind the last of ``ids``, which come after ``start`` tokens."""
        cache, end = self._model.cache, start
        history = [*self._ids.get(slot, [])[:start], *ids.tolist()]
        for first in range(0, len(ids), 32):
            part = ids[first : first + 32]
            end += len(part)
            cache.reserve(slot, end)
            batch = Batch.of(part, end - len(part), slot)
            logits = self._model.programs.run(batch, cache)["logits"].copy()
            cache.commit(slot, end, history)
        self._ids[slot] = history
        return logits

    def begin(self, slot, ids):
        """Says what a slot holds already."""
        self._ids[slot] = ids.tolist()


@pytest.mark.parametrize("length", [169, 128, 127, 66, 64, 1, 0])
def test_what_was_taken_back_is_forgotten(model, check_same, length):
    texts, first, second = Texts(model), model.sequence, model.cache.open()
    texts.run(first, 0, IDS)
    reached = model.cache.rewind(first, length)
    assert reached <= length
    text = np.concatenate([IDS[:length], OTHERS[:9]])
    check_same(texts.run(first, reached, text[reached:]), texts.run(second, 0, text))


@pytest.mark.parametrize("length", [170, 128, 70, 5])
def test_a_fork_goes_on_from_where_it_begins(model, check_same, length):
    texts, first, third = Texts(model), model.sequence, model.cache.open()
    texts.run(first, 0, IDS)
    second, reached = model.cache.fork(first, length)
    texts.begin(second, IDS[:reached])
    text = np.concatenate([IDS[:length], OTHERS[:3]])
    check_same(texts.run(second, reached, text[reached:]), texts.run(third, 0, text))
    expected = texts.run(first, len(IDS), OTHERS[:2])
    model.cache.rewind(third, 0)
    check_same(expected, texts.run(third, 0, np.append(IDS, OTHERS[:2])))


def test_sequences_of_a_batch_know_nothing_of_each_other(model, check_same):
    texts = Texts(model)
    slots = [model.sequence, model.cache.open(), model.cache.open()]
    parts = [IDS[:70], OTHERS[:3], IDS[40:41]]
    for slot, text in zip(slots[:2], parts[:2], strict=True):
        texts.run(slot, 0, text[:-2])
    rows = [Batch.of(parts[0][-2:], 68, slots[0]), Batch.of(parts[1][-2:], 1, slots[1])]
    rows.append(Batch.of(parts[2], 0, slots[2]))
    for slot, text in zip(slots, parts, strict=True):
        model.cache.reserve(slot, len(text))
    together = model.programs.run(Batch.join(rows), model.cache)["logits"].copy()
    for slot, text, logits in zip(slots, parts, together, strict=True):
        model.cache.commit(slot, len(text))
        model.cache.rewind(slot, 0)
        check_same(logits, texts.run(slot, 0, text)[0])


@pytest.mark.parametrize(("kv_cache", "bound"), [("fp16", 1e-4), ("int8", 5e-2)])
def test_small_caches_are_read_as_by_the_definition(kv_cache, bound):
    """Over int8, attention rounds queries and weights to 16 bits."""
    folder = bundle_of(NAME, weights="fp32")
    with runner(folder, "cpu", kv_cache=kv_cache) as model:
        computed = model.run(IDS[:24])
    with runner(folder, "reference", kv_cache=kv_cache) as model:
        assert error_of(computed, model.run(IDS[:24])) <= bound


def test_memory_is_that_of_the_layers_with_keys_of_their_own():
    bundle = open_bundle(bundle_of(NAME, weights="int8"))
    states = states_of(bundle.graph, bundle.config, "fp16")
    assert [(state.key_dim, state.window) for state in states] == [(16, 8), (32, 0), (16, 8)]
    assert token_bytes(states) == 2 * 2 * (16 + 32 + 16)
    # Those with a window stop growing.
    grown = sequence_bytes(states, 16384) - sequence_bytes(states, 8192)
    assert grown == 8192 * 2 * 2 * 32


def test_prompts_go_through_the_layers_that_share_keys_for_the_wanted_rows_alone():
    graph = open_bundle(bundle_of(NAME, weights="int8")).graph
    early = select_early(graph)
    shapes = value_shapes(early)
    attending = [node for node in early.nodes if "attention" in node.op]
    assert [node.op for node in attending] == ["attention"] * 3 + ["shared_attention"] * 3
    assert [shapes[node.outputs[0]].selected for node in attending] == [False] * 2 + [True] * 4
    linear = [node for node in early.nodes if node.op == "linear"]
    selected = [node for node in linear if shapes[node.outputs[0]].selected]
    assert len(selected) == 4 * 7 + 1  # of the last layers but for keys and values, and the head


@pytest.mark.parametrize("name", [NAME, "gemma3n_text", "gemma4_text"])
@pytest.mark.parametrize("weights", ["fp32", "int8", "int4", "int2", "ternary"])
def test_every_node_has_kernels(name, weights):
    graph = open_bundle(bundle_of(name, weights=weights)).graph
    assert not graph.refusal
    backend = make_backend("cpu", given={"threads": 1})
    for shape in buckets(64):
        assert all(backend.supports(graph, node, shape) for node in graph.nodes)
    backend.close()


def altered(tmp_path, change):
    bundle = AlteredBundle(bundle_of(NAME, weights="int8"), tmp_path / "altered")
    change(bundle)
    return bundle.save()


def attention(bundle, layer):
    return bundle.node(f"layers.{layer}/self_attn/Attention")


def other_values(bundle):
    attention(bundle, 3).input[2] = "present.0.value"


def other_window(bundle):
    """That of a layer with a window, over keys of one without; and the other way round."""
    attention(bundle, 3).input[3] = attention(bundle, 0).input[3]


def wider_window(bundle):
    attention(bundle, 4).input[3] = attention(bundle, 1).input[3]


def other_heads(bundle):
    for place, kind in ((1, "key"), (2, "value")):
        attention(bundle, 3).input[place] = f"present.0.{kind}"


def own_scale(bundle):
    del attention(bundle, 3).attribute[:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_window, "reads AttentionState.* and of the layers before it one keeps"),
        (wider_window, "reads AttentionState.* and of the layers before it one keeps"),
        (other_heads, "has queries of 32 elements for keys of .* which have 16"),
    ],
)
def test_layers_that_read_what_no_layer_keeps_are_refused(change, message, tmp_path):
    with pytest.raises(BundleError, match=message):
        open_bundle(altered(tmp_path, change))


@pytest.mark.parametrize("change", [other_values, own_scale])
def test_other_forms_are_not_lowered(change, tmp_path):
    assert open_bundle(altered(tmp_path, change)).graph.refusal
