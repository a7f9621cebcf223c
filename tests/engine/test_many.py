"""Several prompts at once give what each gives alone, in fewer calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.engine import Engine
from edgerun.engine.many import Request, generate_many
from edgerun.engine.session import Session
from edgerun.errors import BackendError, InputError, PromptError
from edgerun.state import KVCache
from tests.support import fakes

GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
CONTEXT = 80  # more than a page


def engine(executable: fakes.FakeExecutable | None = None, chunk_rows: int = 8) -> Engine:
    program = executable or fakes.FakeExecutable()
    programs = fakes.programs_of(program)
    return Engine(programs, fakes.VOCAB, (fakes.END,), chunk_rows)


def root(sequences: int = 4) -> Session:
    return Session(KVCache(fakes.SPEC, CONTEXT, sequences))


def alone(prompt: Sequence[int], params: SamplingParams = GREEDY) -> list[int]:
    return [step.id for step in engine().generate(root(), prompt, params)]


def together(run: Engine, kept: Session, requests: Sequence[Request]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for number, step in generate_many(run, kept, requests):
        found[number].append(step.id)
    return found


IDS = st.lists(st.integers(0, 255), min_size=1, max_size=12)


@given(
    beginning=st.lists(st.integers(0, 255), max_size=70 - 12),
    endings=st.lists(IDS, min_size=1, max_size=6),
    sequences=st.integers(2, 8),
    chunk_rows=st.integers(1, 40),
)
def test_every_reply_is_the_one_of_its_prompt_alone(
    beginning: list[int], endings: list[list[int]], sequences: int, chunk_rows: int
) -> None:
    prompts = [beginning + ending for ending in endings]
    kept, run = root(sequences), engine(chunk_rows=chunk_rows)
    for _again in range(2):  # the second time the root holds the beginning
        requests = [Request(prompt, GREEDY) for prompt in prompts]
        found = together(run, kept, requests)
        assert found == {number: alone(prompt) for number, prompt in enumerate(prompts)}
        assert all(request.stats.reused_tokens >= len(beginning) for request in requests[:1])
        assert kept.cache.room().slots == sequences - 1


def test_rows_share_calls_and_the_beginning_is_computed_once() -> None:
    executable = fakes.FakeExecutable()
    beginning = list(range(20))
    requests = [Request([*beginning, 100 + n, 7], GREEDY) for n in range(3)]
    together(engine(executable), root(), requests)
    assert executable.rows == [8, 8, 4] + [6] + [3] * 4
    assert [request.stats.decode_steps for request in requests] == [4] * 3


def test_prompts_fill_the_calls_of_replies_under_way() -> None:
    executable = fakes.FakeExecutable()
    requests = [Request([1], GREEDY), Request([2] * 17, GREEDY)]
    together(engine(executable), root(), requests)
    # 17 rows as 7 + 7 + 3 beside one of the reply each; then one of both, and one of the second.
    assert executable.rows == [8, 8, 4, 2, 2, 1, 1]


def test_requests_wait_for_a_sequence_in_order() -> None:
    requests = [Request([n], GREEDY) for n in range(5)]
    order = [number for number, _ in generate_many(engine(), root(3), requests)]
    assert order == [0, 1] * 5 + [2, 3] * 5 + [4] * 5


def test_sampling_is_each_requests_own() -> None:
    params = [
        SamplingParams(temperature=1.5, seed=seed, max_tokens=6, ignore_eos=True) for seed in (1, 2)
    ]
    found = together(engine(), root(), [Request([5], one) for one in params])
    assert found == {number: alone([5], one) for number, one in enumerate(params)}


def test_an_unwanted_reply_ends_and_makes_room() -> None:
    kept = root(2)
    requests = [Request([1], GREEDY), Request([2], GREEDY)]
    seen = []
    for number, _ in generate_many(engine(), kept, requests):
        seen.append(number)
        requests[0].unwanted = len(seen) == 2
    assert seen == [0, 0] + [1] * 5


def test_closing_early_gives_all_sequences_back() -> None:
    kept = root()
    steps = generate_many(engine(), kept, [Request([n], GREEDY) for n in range(6)])
    next(steps)
    steps.close()
    assert kept.cache.room().slots == 3


def test_an_error_of_the_model_gives_all_sequences_back() -> None:
    class Broken(fakes.FakeExecutable):
        def __call__(self, batch, cache):  # type: ignore[no-untyped-def]
            return {"logits": super().__call__(batch, cache)["logits"][:, :5]}

    kept = root()
    with pytest.raises(BackendError, match="shape"):
        together(engine(Broken()), kept, [Request([1], GREEDY), Request([2], GREEDY)])
    assert kept.cache.room().slots == 3


@pytest.mark.parametrize("bad", [[], [fakes.VOCAB], [1] * CONTEXT])
def test_one_unusable_prompt_is_refused_before_anything_runs(bad: list[int]) -> None:
    executable = fakes.FakeExecutable()
    with pytest.raises(PromptError):
        generate_many(engine(executable), root(), [Request([1], GREEDY), Request(bad, GREEDY)])
    assert executable.rows == []


def test_without_a_free_sequence_they_run_one_after_the_other() -> None:
    requests = [Request([n, 7], GREEDY) for n in range(3)]
    steps = generate_many(engine(), root(1), requests)
    numbers = []
    for number, _ in steps:
        numbers.append(number)
        requests[1].unwanted = numbers.count(1) == 2
    assert numbers == [0] * 5 + [1] * 2 + [2] * 5
    found = together(engine(), root(1), [Request([n, 7], GREEDY) for n in range(3)])
    assert found == {n: alone([n, 7]) for n in range(3)}


def test_a_sequence_is_kept_for_it_from_the_beginning() -> None:
    kept = root(2)
    steps = generate_many(
        engine(chunk_rows=2), kept, [Request([*range(9), n], GREEDY) for n in (1, 2)]
    )
    next(steps)
    with pytest.raises(InputError, match="in use"):
        Session(kept.cache)
    assert len(list(steps)) == 9
    Session(kept.cache)


def test_no_requests_are_no_work() -> None:
    executable = fakes.FakeExecutable()
    assert together(engine(executable), root(), []) == {}
    assert executable.rows == []
