"""The trained mixture of experts in models/experts: as good as its record, whatever holds it."""

from pathlib import Path

import numpy as np
import pytest

from edgerun import load
from edgerun.llm.replies.completion import Completion
from edgerun.llm.scoring import score_texts, split_documents
from edgerun.llm.tracing import load_traced
from edgerun.model.bundle import open_bundle
from edgerun.offload.trace_file import read_trace
from tests.support.peers import needs_complete_onnxruntime

ROOT = Path(__file__).resolve().parents[2]
BUNDLE = ROOT / "models" / "experts" / "bundle"
TRACES = ROOT / "tools" / "bench" / "traces"
MAX_BYTES = 9_000_000
PROMPT = [{"role": "user", "content": "Tell me a story about a cat."}]
TOKENS = 24


def told(backend: str | None = "cpu", **options: object) -> Completion:
    with load(BUNDLE, threads=1, backend=backend, **options) as llm:  # type: ignore[arg-type]
        return llm.chat(PROMPT, temperature=0, max_tokens=TOKENS)


@pytest.fixture(scope="module")
def story() -> Completion:
    return told()


def test_the_bundle_is_whole_ternary_and_small() -> None:
    manifest = open_bundle(BUNDLE, verify=True).manifest
    assert manifest.recipe["natively_ternary"]
    assert sum(entry.size for entry in manifest.files.values()) <= MAX_BYTES


def test_it_tells_of_what_was_asked_for(story: Completion) -> None:
    assert len(story.ids) == TOKENS
    assert "cat" in story.text.split()


@pytest.mark.parametrize("share", ["2%", "25%", "50%", "100%"])
def test_any_room_for_experts_gives_the_same_story(share: str, story: Completion) -> None:
    """The first is two slots for all 128 experts, as many as a layer needs of a token."""
    assert told(expert_memory=share).ids == story.ids


def test_what_is_in_memory_is_more_than_a_token_reads() -> None:
    sizes = []
    for share in (None, "25%"):
        with load(BUNDLE, threads=1, backend="cpu", expert_memory=share) as llm:
            assert llm.model.weight_bytes < llm.model.held_bytes / 2
            sizes.append(llm.model.held_bytes)
    assert sizes[1] < 0.6 * sizes[0] < 0.7 * MAX_BYTES


@pytest.mark.slow
def test_a_device_that_holds_a_few_experts_gives_the_same_story(story: Completion) -> None:
    assert told(None, device="standin:memory=1M,link=2G", share="always").ids == story.ids


@needs_complete_onnxruntime
def test_onnxruntime_tells_the_same_story(story: Completion) -> None:
    assert told(backend="onnxruntime").ids == story.ids


@pytest.mark.parametrize("number", [0, 37])
def test_held_out_stories_take_the_ways_that_are_recorded(shared_data: Path, number: int) -> None:
    expected = read_trace(TRACES / f"{number:02}.trace", open_bundle(BUNDLE).digest)
    with load_traced(BUNDLE, threads=2) as llm:
        text = stories(shared_data)[number]
        trace = llm.trace(llm.generate(text, max_tokens=1).prompt_tokens)
    assert trace.layers == expected.layers
    # Sums of floats depend on the length of vectors, and roundings to int8 on the last bit of them:
    # with AVX2 another expert is taken 13 times of 2,504.
    same = trace.choices["expert"] == expected.choices["expert"]
    assert same.mean() > 0.99
    off = trace.choices["weight"] - expected.choices["weight"].astype(np.float32)
    assert np.sqrt(np.mean(off[same] ** 2)) < 0.01


def test_held_out_stories_cost_as_many_bits_as_recorded(shared_data: Path) -> None:
    with load(BUNDLE, backend="cpu", threads=1) as llm:
        *_, score = score_texts(llm, stories(shared_data)[:24])
    assert score.bits_per_byte == pytest.approx(0.623, abs=0.002)


def stories(shared_data: Path) -> list[str]:
    text = (shared_data / "corpora" / "tinystories" / "valid.txt").read_text(encoding="utf-8")
    return [story.strip() for story in split_documents(text, "<|endoftext|>")]
