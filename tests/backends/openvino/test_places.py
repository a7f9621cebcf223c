"""Prompts here, replies there: what comes out is what the CPU alone computes."""

from __future__ import annotations

import numpy as np
import pytest

import edgerun
from edgerun.state import AttentionState, Batch
from tests.backends.openvino.conftest import placed
from tests.support.bundles import GOLDEN, bundle_of, error_of

pytest.importorskip("openvino")

PLACES = ("prefill=openvino:CPU", "prefill=openvino:CPU,decode=openvino:CPU", "decode=openvino:CPU")
# Exports whose activations nobody rounds: a last bit changes no token there. mistral has windows
# of 8 tokens, less than a chunk; qwen2 has biases, qwen3 norms of heads.
EXACT = (
    ("llama", {"weights": "fp32"}),
    ("llama", {"weights": "int2", "activations": "fp32"}),
    ("mistral", {"weights": "int8", "activations": "fp32"}),
    ("qwen2", {"weights": "int4", "activations": "fp32"}),
    ("qwen3", {"weights": "int4", "activations": "fp32", "head_weights": "int4"}),
)
ROUNDED = (
    ("llama", {"weights": "int4"}),
    ("bitnet-packed", {"weights": "ternary"}),
    ("bitnet-master", {"weights": "ternary"}),
)


def ids_of(name: str, count: int = 40) -> list[int]:
    with np.load(GOLDEN / name / "golden.npz") as data:
        return np.resize(data["ids"].reshape(-1), count).tolist()


def label(value: object) -> str | None:
    return "-".join(value.values()) if isinstance(value, dict) else None


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("name", "options"), EXACT, ids=label)
def test_greedy_tokens_are_those_of_the_cpu(name: str, options: dict[str, str], place: str) -> None:
    folder, prompt = bundle_of(name, **options), ids_of(name)
    found = []
    for each in ("prefill=cpu", place):
        with edgerun.load(folder, place=each, threads=1) as llm:
            found.append(llm.generate(prompt, temperature=0, max_tokens=64, ignore_eos=True).ids)
            reports = llm.reports()
    assert found[1] == found[0]
    assert sum(row["calls"] for row in reports[0].rows) >= 1  # it was the device, too


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("name", "options"), ROUNDED, ids=label)
def test_logits_are_close_where_activations_are_rounded(
    name: str, options: dict[str, str], place: str
) -> None:
    ids, found = ids_of(name, 96), []
    for each in ("prefill=cpu", place):
        with placed(bundle_of(name, **options), each) as model:
            store = model.store()
            slot = store.open()
            assert not model.run(store, Batch.of(ids[:64], 0, slot, logits="none")).size
            steps = [model.run(store, Batch.of([ids[at]], at, slot)) for at in range(64, 96)]
            found.append(np.concatenate(steps))
            calls = model.calls()
    assert error_of(found[1], found[0]) <= 3e-2
    assert calls


@pytest.mark.parametrize("kv_cache", ["fp32", "fp16", "int8"])
def test_prompts_of_lengths_around_those_of_networks(kv_cache: str) -> None:
    """Rows and room for the past are static; what does not fill them is padded and hidden."""
    folder = bundle_of("llama", weights="fp32")
    ids = np.resize(ids_of("llama"), 640).tolist()
    # Of the range of logits: what rows of one call see of each other is not rounded.
    bound = {"fp32": 1e-5, "fp16": 1e-3, "int8": 2e-2}[kv_cache]
    with (
        placed(folder, "prefill=cpu", kv_cache=kv_cache) as cpu,
        placed(folder, PLACES[0], kv_cache=kv_cache) as model,
    ):
        for length in (17, 62, 63, 64, 65, 66, 254, 255, 256, 257, 258, 320, 511, 512, 513, 639):
            logits = []
            for each in (cpu, model):
                store = each.store()
                slot, at = store.open(), 0
                while at < length:
                    rows = min(256, length - at)
                    each.run(store, Batch.of(ids[at : at + rows], at, slot, logits="none"))
                    at += rows
                logits.append(each.run(store, Batch.of([ids[length]], length, slot)))
            assert error_of(logits[1], logits[0]) <= bound, length
        assert model.calls() > 16


def test_calls_that_begin_around_the_room_for_the_past() -> None:
    folder, ids = bundle_of("llama", weights="fp32"), np.resize(ids_of("llama"), 640).tolist()
    with placed(folder, "prefill=cpu") as cpu, placed(folder, PLACES[0]) as model:
        for start in (255, 256, 257, 258):
            logits = []
            for each in (cpu, model):
                store = each.store()
                slot = store.open()
                for begin, end in ((0, 128), (128, start), (start, start + 70)):
                    each.run(store, Batch.of(ids[begin:end], begin, slot, logits="none"))
                logits.append(each.run(store, Batch.of([1], start + 70, slot)))
            assert error_of(logits[1], logits[0]) <= 1e-5, start
        report = model.backends[1].report()
        assert report is not None
        networks = {row["network"] for row in report.rows}
        assert networks == {f"256 rows after up to {past} tokens" for past in (256, 640)}


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
            kept = [
                part
                for state in store.states
                for slot, (cached, new, _) in enumerate(parts)
                for part in store.read_block(state.name, slot, 0, cached + new)
            ]
            results.append((np.concatenate(rows), kept))
        assert error_of(results[0][0], results[1][0]) <= 1e-5
        assert len(results[0][0]) == 22
        for found, expected in zip(results[0][1], results[1][1], strict=True):
            assert error_of(found, expected) <= 1e-5


def test_the_npus_partitioner_stays_within_half_precision(repo_root) -> None:  # type: ignore[no-untyped-def]
    """Of the default model: keys and values, and what is likeliest after them."""
    folder = repo_root / "models" / "default" / "bundle"
    ids = np.random.default_rng(3).integers(5, 4096, 512).tolist()
    kept, likeliest = [], []
    for place in ("prefill=cpu", "prefill=openvino:NPUW-CPU"):
        with placed(folder, place, context=512) as model:
            store = model.store()
            slot = store.open()
            model.run(store, Batch.of(ids[:64], 0, slot, logits="none"))
            kept.append([store.read_block(s.name, slot, 0, 64) for s in store.states])
            steps = [model.run(store, Batch.of([ids[at]], at, slot)) for at in range(64, 512)]
            likeliest.append(np.concatenate(steps).argmax(axis=1))
            assert isinstance(store.states[0], AttentionState)
    for found, expected in zip(kept[1], kept[0], strict=True):
        for part, right in zip(found, expected, strict=True):
            assert np.abs(part - right).max() <= 5e-2 * np.abs(right).max()
    assert np.mean(likeliest[0] == likeliest[1]) >= 0.98
