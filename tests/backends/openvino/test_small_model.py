"""The small model, whose activations are rounded to 8 bits, on devices.

A last bit may turn an activation over, so replies of 64 tokens are not all the same. But logits are
as close as that makes them, and another token is likeliest only where two are nearly as likely.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import edgerun
from edgerun.state import Batch
from tests.backends.openvino.conftest import Placed, placed
from tests.backends.openvino.test_places import PLACES
from tests.support.bundles import SMALL_MODEL, error_of

pytest.importorskip("openvino")

NPUW = "prefill=openvino:NPUW-CPU"
SUBJECTS = (
    "cat", "dragon", "princess", "robot", "dog", "bird", "boat", "tree", "king", "fish", "bear",
    "rabbit", "mouse", "girl", "boy", "frog", "horse", "farmer", "witch", "star",
)  # fmt: skip
PROMPT = (
    "Once upon a time there was a {0} who lived near a big forest. One day the {0} wanted to go "
    "outside, but it was raining."
)
TOKENS, CONTEXT = 64, 512
CLOSE = 3e-2  # of the range of logits
NEARLY_AS_LIKELY = 5e-3  # of the range of logits, between the two likeliest
Reply = tuple[list[int], list[int]]


@pytest.fixture(scope="module")
def folder() -> Path:
    return SMALL_MODEL


@pytest.fixture(scope="module")
def replies(folder: Path) -> list[Reply]:
    """Twenty prompts, and what the CPU replies."""
    sampling = {"temperature": 0, "max_tokens": TOKENS, "repetition_penalty": 1.0}
    with edgerun.load(folder, threads=1, kv_cache="fp32") as llm:
        prompts = [llm.tokenizer.encode(PROMPT.format(subject)) for subject in SUBJECTS]
        return [
            (prompt, llm.generate(prompt, ignore_eos=True, **sampling).ids) for prompt in prompts
        ]


def forced(model: Placed, reply: Reply) -> NDArray[np.float32]:
    """Logits for each token of a reply, whatever the model would have said itself."""
    prompt, ids = reply[0], [*reply[0], *reply[1]]
    store = model.store()
    slot, start = store.open(), len(prompt) - 1
    model.run(store, Batch.of(ids[:start], 0, slot, logits="none"))
    rows = [model.run(store, Batch.of([ids[at]], at, slot)) for at in range(start, len(ids) - 1)]
    return np.concatenate(rows)


@pytest.fixture(scope="module")
def expected(folder: Path, replies: list[Reply]) -> list[NDArray[np.float32]]:
    with placed(folder, "prefill=cpu", context=CONTEXT) as cpu:
        return [forced(cpu, reply) for reply in replies]


@pytest.mark.parametrize(
    "place", [PLACES[0], pytest.param(PLACES[1], marks=pytest.mark.slow), PLACES[2], NPUW]
)
def test_tokens_differ_only_where_two_are_nearly_as_likely(
    place: str, folder: Path, replies: list[Reply], expected: list[NDArray[np.float32]]
) -> None:
    """Over 20 prompts; of all tokens of the CPU's replies, 98% are the likeliest there too."""
    same = 0
    with placed(folder, place, context=CONTEXT) as model:
        for reply, right in zip(replies, expected, strict=True):
            likeliest = right.argmax(axis=1)
            assert likeliest.tolist() == reply[1]
            logits = forced(model, reply)
            assert error_of(logits, right) <= CLOSE
            others = logits.argmax(axis=1)
            steps = np.arange(TOKENS)
            gaps = right[steps, likeliest] - right[steps, others]
            assert gaps.max() <= NEARLY_AS_LIKELY * (right.max() - right.min())
            same += int(np.sum(likeliest == others))
        assert model.calls() >= len(replies)
    assert same >= 0.98 * len(replies) * TOKENS


def test_the_npus_partitioner_stays_within_half_precision(folder: Path) -> None:
    """Keys and values of random tokens, and what is likeliest after each that follows."""
    ids = np.random.default_rng(3).integers(5, 4096, CONTEXT).tolist()
    blocks, likeliest = [], []
    for place in ("prefill=cpu", NPUW):
        with placed(folder, place, context=CONTEXT) as model:
            store = model.store()
            slot = store.open()
            model.run(store, Batch.of(ids[:64], 0, slot, logits="none"))
            blocks.append([store.read_block(s.name, slot, 0, 64) for s in store.states])
            steps = [model.run(store, Batch.of([ids[at]], at, slot)) for at in range(64, CONTEXT)]
            likeliest.append(np.concatenate(steps).argmax(axis=1))
    for theirs, ours in zip(*blocks, strict=True):
        for right, part in zip(theirs, ours, strict=True):
            assert np.abs(part - right).max() <= 5e-2 * np.abs(right).max()
    assert np.mean(likeliest[0] == likeliest[1]) >= 0.98
