"""A model most of whose layers keep a state of fixed size, in all ways in which it is used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import edgerun
from edgerun.backends import Shape
from edgerun.backends.registry import make_backend
from edgerun.cli.benchmark.report import Run, decode_work, prefill_work
from edgerun.cli.screen.report import stats_lines
from edgerun.engine.engine import Engine
from edgerun.engine.stats import Stats
from edgerun.errors import InputError, UnsupportedError
from edgerun.llm import loading
from edgerun.llm.llm import LLM
from edgerun.state import RecurrentState, SequenceStore
from edgerun.state.capacity import fixed_bytes, moved_bytes, sequence_bytes
from edgerun.state.memory import SPARE_BYTES, Memory
from tests.support.bundles import bundle_of

GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
PROMPTS = [[1 + place % 200 for place in range(length)] for length in (70, 41, 9)]


@pytest.fixture(scope="module", params=["qwen3_next", "granitemoehybrid-experts"])
def path(request: pytest.FixtureRequest) -> Path:
    return bundle_of(request.param, weights="fp32")


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    with edgerun.load(path, backend="cpu", max_sessions=3, context=128, chunk_rows=32) as model:
        yield model


@pytest.fixture(scope="module")
def alone(llm: LLM) -> list[list[int]]:
    return [llm.generate(prompt, **GREEDY).ids for prompt in PROMPTS]


def test_replies_are_those_of_the_definitions(path: Path, llm: LLM, alone: list[list[int]]) -> None:
    with edgerun.load(path, backend="reference", context=128) as model:
        assert [model.generate(prompt, **GREEDY).ids for prompt in PROMPTS[:2]] == alone[:2]
    for rows, memory in ((1, None), (128, None), (24, "40%")):  # the last one layer by layer
        options = {"chunk_rows": rows, "expert_memory": memory}
        with edgerun.load(path, backend="cpu", context=128, **options) as model:
            assert model.model.programs.is_layered == bool(memory)
            assert model.generate(PROMPTS[0], **GREEDY).ids == alone[0]
            logits = np.concatenate([block.copy() for block in model.logits(PROMPTS[0])])
            again = np.concatenate([block.copy() for block in llm.logits(PROMPTS[0])])
            np.testing.assert_array_equal(logits, again)


def test_replies_together_and_again_are_those_alone(llm: LLM, alone: list[list[int]]) -> None:
    streams = [llm.stream(prompt, **GREEDY) for prompt in PROMPTS]
    assert [stream.result().ids for stream in streams] == alone
    again = llm.generate(PROMPTS[0], **GREEDY)
    assert again.ids == alone[0]
    assert again.stats.reused_tokens == 64  # a page, behind which there is a copy of the state


def test_a_turn_that_goes_on_otherwise_begins_where_the_prompt_ended(llm: LLM) -> None:
    params, store = llm.params(**GREEDY), SequenceStore(llm.model.states, 128)
    engine = Engine(llm.model.programs, store, llm.model.vocab_size, chunk_rows=32)
    turn = engine.sequence(PROMPTS[1], params)
    turn.is_retained = True
    reply = [token.id for token in engine.tokens(turn)]
    for more, reused in ((reply + [7, 8], len(PROMPTS[1]) + len(reply) - 1), ([250, 251], 41)):
        following = engine.sequence([*PROMPTS[1], *more], params)
        following.previous, following.is_retained = turn, True
        ids = [token.id for token in engine.tokens(following)]
        assert following.stats.reused_tokens == reused
        assert ids == llm.generate([*PROMPTS[1], *more], **GREEDY).ids
        turn = following


@pytest.mark.parametrize("sequences", [1, 2])
def test_replies_where_memory_holds_few_states(
    sequences: int, llm: LLM, alone: list[list[int]]
) -> None:
    need, taken = sequence_bytes(llm.model.states, 128), [0]
    memory = Memory(lambda: sequences * need - taken[0], spare_bytes=0)
    store = SequenceStore(llm.model.states, 128, 3, memory=memory)
    engine = Engine(llm.model.programs, store, llm.model.vocab_size, chunk_rows=32)
    running = [engine.sequence(prompt, llm.params(**GREEDY)) for prompt in PROMPTS]
    for sequence in running:
        engine.add(sequence)
    while not all(sequence.is_ended for sequence in running):
        (arrays,) = store._recurrent
        pages = sum(pool._grown * pool.page_bytes for pool in store._pools)
        copies = sum(map(len, arrays._checkpoints)) * arrays.place_bytes // 2
        taken[0] = pages + arrays._grown * arrays.place_bytes + copies
        store.lock.run(engine.step)
        for sequence in running:
            while sequence.take():
                pass
    assert arrays._grown <= sequences
    assert [each.ids[each.prompt_tokens :] for each in running] == alone


def test_states_are_said_and_counted(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    states, stats = llm.model.states, Stats(prompt_tokens=5, decode_steps=4, decode_s=1.0)
    assert sum(isinstance(state, RecurrentState) for state in states) in (1, 2)
    assert fixed_bytes(states) == moved_bytes(states) > 0
    assert stats_lines(llm, stats)[-1].endswith("MB KV cache and states")
    run = Run(stats, stats, {})
    weights = llm.model.weight_bytes
    assert prefill_work(llm, [run]).read_bytes == weights + moved_bytes(states)
    steps = decode_work(llm, [run]).read_bytes - 4 * (weights + moved_bytes(states))
    assert 0 < steps < 4 * weights
    monkeypatch.setattr(loading, "available_memory", lambda: SPARE_BYTES + fixed_bytes(states))
    with pytest.raises(InputError, match="a sequence of any length takes .* and states, and 0"):
        edgerun.load(llm.model.bundle.path, backend="cpu")
    assert not caplog.records  # of a context that would not help


def test_other_back_ends_leave_it_to_the_processor_or_say_so(llm: LLM) -> None:
    graph = llm.model.bundle.graph
    node = next(node for node in graph.nodes if node.op in ("gated_delta", "state_space"))
    for name in ("openvino", "cuda", "standin"):
        support = make_backend(name).supports(graph, node, Shape.of(1))
        assert not support
        assert support.reason
    with pytest.raises(UnsupportedError, match=r"reads past_key_values\.0\.conv, .*0\.recurrent"):
        edgerun.load(llm.model.bundle.path, backend="onnxruntime")
