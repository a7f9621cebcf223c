"""Convolutions remember what a sequence was: going back, sharing and batching change no bit."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun.errors import EdgerunError
from edgerun.llm.loading import prepare
from edgerun.llm.options import LoadOptions
from edgerun.state import Batch
from tests.support.bundles import bundle_of, error_of, runner

IDS = np.random.default_rng(3).integers(0, 256, 170).astype(np.int32)
OTHERS = IDS[::-1].copy()
# NumPy's products depend on how many rows there are; kernels' do not, by a bit.
ALLOWED = {"reference": 1e-6, "cpu": 0.0}


@pytest.fixture(params=ALLOWED)
def model(request):
    bundle = bundle_of("lfm2", weights="int8")
    with runner(bundle, request.param, threads=2, max_rows=32, sequences=3) as opened:
        yield opened


@pytest.fixture
def check_same(request, model):
    backend = request.node.callspec.params["model"]
    return lambda computed, expected: np.testing.assert_array_less(
        error_of(computed, expected), ALLOWED[backend] + np.finfo(float).tiny
    )


def run(model, slot, start, ids):
    """Appends ids to a sequence of ``start`` tokens; returns the logits of the last one."""
    cache, end = model.cache, start
    history = [*cache_ids[slot][:start], *ids.tolist()]
    for first in range(0, len(ids), 32):
        part = ids[first : first + 32]
        end += len(part)
        cache.reserve(slot, end)
        logits = model.programs.run(Batch.of(part, end - len(part), slot), cache)["logits"].copy()
        cache.commit(slot, end, history)
    cache_ids[slot] = history
    return logits


cache_ids: dict[int, list[int]] = {}


@pytest.fixture(autouse=True)
def _no_history():
    cache_ids.clear()
    cache_ids.update({slot: [] for slot in range(3)})


@pytest.mark.parametrize("length", [169, 150, 129, 128, 127, 66, 64, 1, 0])
def test_what_was_taken_back_is_forgotten(model, check_same, length):
    first, second = model.sequence, model.cache.open()
    run(model, first, 0, IDS)
    reached = model.cache.rewind(first, length)
    assert reached <= length
    # One page more than is seen stays: a draft can be taken back without computing much again.
    assert reached == length or length < 128
    text = np.concatenate([IDS[:length], OTHERS[:9]])
    computed = run(model, first, reached, text[reached:])
    check_same(computed, run(model, second, 0, text))


@pytest.mark.parametrize("length", [170, 140, 128, 70, 5])
def test_a_fork_goes_on_from_where_it_begins(model, check_same, length):
    first, third = model.sequence, model.cache.open()
    run(model, first, 0, IDS)
    second, reached = model.cache.fork(first, length)
    cache_ids[second] = IDS[:reached].tolist()
    assert reached <= length
    text = np.concatenate([IDS[:length], OTHERS[:3]])
    computed = run(model, second, reached, text[reached:])
    check_same(computed, run(model, third, 0, text))
    # And the other one, which shares pages with it, is as it was.
    expected = run(model, first, len(IDS), OTHERS[:2])
    model.cache.rewind(third, 0)
    check_same(expected, run(model, third, 0, np.append(IDS, OTHERS[:2])))


def test_a_prefix_that_is_found_again_is_the_same(model, check_same):
    first = model.sequence
    run(model, first, 0, IDS)
    text = np.concatenate([IDS[:140], OTHERS[:20]])
    second, reached = model.cache.match(text.tolist())
    assert 128 <= reached <= 140
    cache_ids[second] = text[:reached].tolist()
    computed = run(model, second, reached, text[reached:])
    third = model.cache.open()
    check_same(computed, run(model, third, 0, text))


def test_sequences_of_a_batch_know_nothing_of_each_other(model, check_same):
    slots = [model.sequence, model.cache.open(), model.cache.open()]
    texts = [IDS[:70], OTHERS[:3], IDS[40:41]]
    for slot, text in zip(slots[:2], texts[:2], strict=True):
        run(model, slot, 0, text[:-2])
    rows = [Batch.of(texts[0][-2:], 68, slots[0]), Batch.of(texts[1][-2:], 1, slots[1])]
    rows.append(Batch.of(texts[2], 0, slots[2]))
    for slot, text in zip(slots, texts, strict=True):
        model.cache.reserve(slot, len(text))
    together = model.programs.run(Batch.join(rows), model.cache)["logits"].copy()
    for slot, text, logits in zip(slots, texts, together, strict=True):
        model.cache.commit(slot, len(text))
        model.cache.rewind(slot, 0)
        check_same(logits, run(model, slot, 0, text)[0])


def test_a_runtime_that_gives_back_too_little_is_not_used():
    pytest.importorskip("onnxruntime")
    options = LoadOptions(backend="onnxruntime", threads=1)
    with pytest.raises(EdgerunError, match="too little of what convolutions read"):
        prepare(bundle_of("lfm2", weights="int8"), options)
