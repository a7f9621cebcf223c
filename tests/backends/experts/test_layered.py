"""Prompts of several chunks, layer by layer: the same bits, each expert read once, usable after."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgerun
from edgerun.backends.cpu.binder import ROWS, Rounding
from edgerun.backends.cpu.emit.linear import take_rounded
from edgerun.backends.cpu.executable import CpuExecutable
from edgerun.backends.cpu.experts import prefetch
from edgerun.backends.cpu.experts.stream import ExpertStream
from edgerun.engine.engine import DEFAULT_PROMPT_ROWS
from edgerun.errors import BackendError, Cancelled
from edgerun.formats.stack import ExpertStack
from edgerun.llm import experts
from edgerun.llm.llm import LLM
from edgerun.llm.loading import experts_of
from edgerun.llm.options import LoadOptions
from edgerun.machine.disk import NOMINAL_DISK
from edgerun.model.bundle import open_bundle
from edgerun.plan.expert_memory import MARGIN_BYTES
from edgerun.plan.programs import Programs
from edgerun.state import Batch, SequenceStore, same_attention
from tests.support.bundles import tiny_experts

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
CHUNK = 20  # rows, each of which goes to 2 of 16 experts: so most of these, and seldom all
LAYERS, EXPERTS = 4, 16
LENGTHS = (CHUNK, 2 * CHUNK + 1, 3 * CHUNK + CHUNK // 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_experts(
        tmp_path_factory.mktemp("experts"),
        "int4",
        moe_intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_experts=EXPERTS,
        num_experts_per_tok=2,
    )


@contextmanager
def loaded(folder: Path, share: float | None, **options: Any) -> Iterator[LLM]:
    """The model with memory for a share of its experts, or for all."""
    given = {} if share is None else {"expert_memory": f"{100 * share:g}%"}
    with edgerun.load(
        folder, backend="cpu", chunk_rows=CHUNK, context=200, kv_cache="fp32", **given, **options
    ) as llm:
        yield llm


def ids(length: int, seed: int = 0) -> list[int]:
    drawn: list[int] = np.random.default_rng(seed).integers(1, 250, length).tolist()
    return drawn


def executable(llm: LLM) -> CpuExecutable:
    """The program of prompts."""
    program = llm.model.programs._compiled[-1][1]
    inner = program._program  # type: ignore[attr-defined]
    assert isinstance(inner, CpuExecutable)
    return inner


def stream_of(llm: LLM) -> ExpertStream:
    stream = executable(llm)._stream
    assert stream is not None
    return stream


class Text:
    """Tokens of sequences as programs leave them: logits, keys and values."""

    def __init__(self, llm: LLM, *prompts: list[int]) -> None:
        self.llm, self.prompts = llm, prompts
        self.store = SequenceStore(llm.model.states, 200, len(prompts))
        self.slots = [self.store.open() for _ in prompts]
        for slot, prompt in zip(self.slots, prompts, strict=True):
            self.store.reserve(slot, len(prompt))

    @property
    def batch(self) -> Batch:
        """All rows; of each prompt the logits of every seventh are wanted, and of the last."""
        parts = []
        for slot, prompt in zip(self.slots, self.prompts, strict=True):
            part = Batch.of(prompt, 0, slot)
            every = {*range(0, len(prompt), 7), len(prompt) - 1}
            parts.append(replace(part, logit_rows=np.array(sorted(every), np.int32)))
        return Batch.join(parts)

    def run(self, most: int) -> list[np.ndarray[Any, Any]]:
        """Logits, then keys and values of each layer, with at most so many rows a call."""
        batch, logits = self.batch, []
        for start in range(0, batch.rows, most):
            part = batch.part(start, min(batch.rows, start + most))
            logits.append(self.llm.model.programs.run(part, self.store)["logits"].copy())
        cached = [
            array
            for state in self.llm.model.states
            for slot, prompt in zip(self.slots, self.prompts, strict=True)
            for array in self.store.read_block(state.name, slot, 0, len(prompt))
        ]
        return [np.concatenate(logits), *cached]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("share", [0.1, 0.6])
def test_every_bit_is_that_of_chunks_one_after_the_other(
    folder: Path, share: float, threads: int
) -> None:
    """Of prompts alone and together, whose rows share chunks; a tenth is less than a layer."""
    prompts = [ids(length, length) for length in LENGTHS]
    texts = [[prompt] for prompt in prompts] + [prompts]
    with loaded(folder, None) as llm:
        assert not llm.model.programs.is_layered
        expected = [Text(llm, *each).run(CHUNK) for each in texts]
    with loaded(folder, share, threads=threads) as llm:
        assert llm.model.programs.is_layered
        for each, bits in zip(texts, expected, strict=True):
            for most in (CHUNK, 1000):
                for array, expected_bits in zip(Text(llm, *each).run(most), bits, strict=True):
                    np.testing.assert_array_equal(array, expected_bits)


def test_a_program_is_cut_where_the_residual_stream_alone_goes_on(folder: Path) -> None:
    with loaded(folder, 0.6) as llm:
        binder = executable(llm)._binder
        assert len(binder.stages) == LAYERS
        assert [len(stage.taken) for stage in binder.stages] == [0] + [1] * (LAYERS - 1)
        assert {buffer.width for stage in binder.stages for buffer, _ in stage.taken} == {64}


def test_what_was_rounded_before_a_cut_is_kept_and_columns_are_made_anew(folder: Path) -> None:
    """No model that there is needs it: a cut lies where nothing but sums goes on."""
    with loaded(folder, 0.6) as llm:
        binder = executable(llm)._binder
        form = Rounding("quantize_row", 0, 64)
        take_rounded(binder, "x", form, ROWS)
        binder.columns["of some width"] = "x"
        binder.begin_stage()
        buffer_keys = {buffer.key for buffer, _ in binder.stages.pop().taken}
        assert binder.rounded["x", form].keys() <= buffer_keys
        assert not binder.columns


def test_replies_go_on_as_with_all_experts_in_memory(folder: Path) -> None:
    """Through the engine: alone, beside one another, and behind what was computed before."""
    prompts = [ids(length, 7) for length in LENGTHS]
    with loaded(folder, None) as llm:
        expected = [llm.generate(prompt, max_tokens=12, **GREEDY).ids for prompt in prompts]
        scores = [block.copy() for block in llm.logits(prompts[-1])]
    with loaded(folder, 0.6) as llm:
        calls = calls_of(llm)
        for prompt, reply in zip(prompts, expected, strict=True):
            assert llm.generate(prompt, max_tokens=12, **GREEDY).ids == reply
        assert max(calls) > CHUNK, "a prompt is one call"
        assert not stream_of(llm)._pool.repeats, "a reply comes to each layer once"
        together = llm.generate_many([each[1:] for each in prompts], max_tokens=12, **GREEDY)
        blocks = [block.copy() for block in llm.logits(prompts[-1])]
    assert [len(block) for block in blocks] == [CHUNK] * 3 + [CHUNK // 2], (
        "not all logits at a time"
    )
    for block, other in zip(blocks, scores, strict=True):
        np.testing.assert_array_equal(block, other)
    with loaded(folder, None) as llm:
        for prompt, reply in zip(prompts, together, strict=True):
            assert llm.generate(prompt[1:], max_tokens=12, **GREEDY).ids == reply.ids


def test_prompts_together_have_no_more_rows_between_layers_than_a_context(folder: Path) -> None:
    """For so many there is memory, however many prompts come at once."""
    with loaded(folder, 0.6) as llm:
        calls = calls_of(llm)
        llm.generate_many([ids(90, seed) for seed in range(4)], max_tokens=1, **GREEDY)
        assert max(calls) == llm.model.context < 4 * 90


@pytest.mark.parametrize("chosen", [None, 8])
def test_a_prompt_beside_a_reply_is_one_call_unless_another_number_is_chosen(
    folder: Path, chosen: int | None
) -> None:
    options = {} if chosen is None else {"prompt_rows": chosen}
    with loaded(folder, 0.6, **options) as llm:
        reply = iter(llm.stream(ids(3), max_tokens=60, **GREEDY))
        next(reply)
        calls = calls_of(llm)
        llm.generate(ids(LENGTHS[-1], 5), max_tokens=1, **GREEDY)
        assert max(calls) == (chosen or LENGTHS[-1]) + 1
    with loaded(folder, None, **options) as llm:
        assert llm._engine.limits.prompt_rows == (chosen or DEFAULT_PROMPT_ROWS)


def calls_of(llm: LLM) -> list[int]:
    """Rows of each call from now on."""
    calls, run = [], llm.model.programs.run

    def counted(batch: Batch, cache: SequenceStore) -> Any:
        calls.append(batch.rows)
        return run(batch, cache)

    llm.model.programs.run = counted  # type: ignore[method-assign]
    return calls


def reads_by_expert(llm: LLM) -> Counter[tuple[int, int]]:
    """How often each expert is read from now on."""
    counts, stream = Counter[tuple[int, int]](), stream_of(llm)
    bring, ask = stream._bring, stream._slot_readers.ask
    while stream._pool._reading:  # for what ran before, which may not need it any more
        time.sleep(0.001)

    def counted(read: Any, buffer: Any, reader: Any) -> None:
        counts[read.entry] += 1
        bring(read, buffer, reader)

    def counted_if(read: Any, *arguments: Any) -> bool:
        is_taken = ask(read, *arguments)
        counts[read.entry] += is_taken
        return is_taken

    stream._bring = counted  # type: ignore[method-assign]
    stream._slot_readers.ask = counted_if  # type: ignore[method-assign]
    return counts


@pytest.mark.parametrize("wishes", [False, True])
def test_every_expert_is_read_at_most_once_a_prompt(
    folder: Path, wishes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two layers have room, also with the next layer's experts coming early."""
    monkeypatch.setattr(prefetch.Prefetch, "pays", lambda self, ahead: wishes)
    monkeypatch.setattr(prefetch.Prefetch, "looks", lambda self, ahead: wishes)
    early = 0
    for seed in range(4):
        with loaded(folder, 2.2 / LAYERS, threads=2) as llm:
            llm.generate(ids(3, seed), max_tokens=30, **GREEDY)  # which leaves slots in use
            counts, before = reads_by_expert(llm), llm.expert_reads()
            Text(llm, ids(8 * CHUNK + 5, seed)).run(1000)
            after, budget = llm.expert_reads(), llm.model.experts
            assert before is not None
            assert after is not None
            assert budget is not None
            assert counts
            assert max(counts.values()) == 1
            read = after.since(before)
            assert read.read_bytes <= 1.02 * budget.stored_bytes
            early += read.early
            by_chunks = reads_by_expert(llm)
            Text(llm, ids(8 * CHUNK + 5, seed)).run(CHUNK)
            assert by_chunks.total() > 1.5 * LAYERS * EXPERTS, "which is why"
    assert bool(early) == wishes


def test_a_long_prompt_is_forecast_to_read_what_a_short_one_does(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a program takes it layer by layer; else once a chunk."""
    options: dict[str, Any] = {"backend": "cpu", "expert_memory": "60%"}
    with edgerun.load(folder, context=5000, **options) as llm:
        expected = llm.forecast()
        monkeypatch.setattr(Programs, "is_layered", False)
        by_chunks = llm.forecast()
    assert expected is not None
    assert by_chunks is not None
    short, long = expected.prompts
    assert (short.compute.rows, long.compute.rows) == (512, 4096)
    assert long.nbytes == pytest.approx(short.nbytes, rel=1e-3)
    assert long.compute.seconds > 7 * short.compute.seconds
    assert by_chunks.prompts[1].nbytes == pytest.approx(4 * long.nbytes, rel=1e-3)
    with loaded(folder, 0.6) as llm:
        few = llm.forecast()
    assert few is not None
    assert len(few.prompts) == 1, "200 tokens are all that there may be"


def test_what_lies_between_layers_is_taken_from_the_memory_of_experts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of 64 numbers for each token that the context has."""
    bundle = open_bundle(folder)
    weights = sum(
        each.nbytes for each in bundle.graph.constants.values() if not isinstance(each, ExpertStack)
    )
    monkeypatch.setattr(experts, "available_memory", lambda: MARGIN_BYTES + weights + 400_000)
    monkeypatch.setattr(experts, "disk_profile", lambda folder, file, progress: NOMINAL_DISK)
    budgets = [
        experts_of(bundle, LoadOptions(), same_attention(1, 1, 2, "fp32"), context)
        for context in (128, 640)
    ]
    assert budgets[0] is not None
    assert budgets[1] is not None
    cached, carried = 2 * 2, 64  # numbers for a token: a key and a value, and a row
    assert budgets[0].nbytes - budgets[1].nbytes == 512 * 4 * (cached + carried)


def acts_at(
    monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], None]
) -> Callable[[], int]:
    """Has something happen in the run of a stage of that number; counts such runs."""
    runs, run = [0], CpuExecutable._run

    def counted(self: CpuExecutable, steps: Any) -> None:
        runs[0] += 1
        run(self, steps)
        if runs[0] == number:
            act()

    monkeypatch.setattr(CpuExecutable, "_run", counted)
    return lambda: runs[0]


def reply_of(folder: Path) -> tuple[list[int], Sequence[int]]:
    """A long prompt, and what a model whose experts are all in memory says to it."""
    prompt = ids(LENGTHS[-1])
    with loaded(folder, None) as llm:
        return prompt, llm.generate(prompt, max_tokens=12, **GREEDY).ids


def test_who_goes_away_ends_a_prompt_in_the_middle(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, expected = reply_of(folder)
    with loaded(folder, 0.6) as llm:
        stream = llm.stream(prompt, max_tokens=12, **GREEDY)
        runs = acts_at(monkeypatch, 5, lambda: llm._engine.cancel(stream._sequence))
        assert not stream.result().ids
        assert runs() == 5
        assert llm.generate(prompt, max_tokens=12, **GREEDY).ids == expected


def test_one_who_stays_has_the_prompt_computed(folder: Path) -> None:
    with loaded(folder, 0.6) as llm:
        text = Text(llm, ids(LENGTHS[-1]))
        answers = iter([False] * 3)
        batch = replace(text.batch, is_cancelled=lambda: next(answers, True))
        with pytest.raises(Cancelled):
            llm.model.programs.run(batch, text.store)
        batch = replace(text.batch, is_cancelled=lambda: False)
        assert len(llm.model.programs.run(batch, text.store)["logits"]) == len(batch.logit_rows)


def test_ctrl_c_leaves_the_model_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    prompt, expected = reply_of(folder)
    with loaded(folder, 0.6) as llm:
        acts_at(monkeypatch, 7, interrupt)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(prompt, max_tokens=12, **GREEDY)
        assert llm.generate(prompt, max_tokens=12, **GREEDY).ids == expected


def test_a_fault_ends_the_prompt_at_once_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, expected = reply_of(folder)
    with loaded(folder, 0.6) as llm:
        layer = stream_of(llm)._layers[2].source
        read, is_gone = layer.read, [True]

        def fails(expert: int, buffer: Any) -> Any:
            if is_gone[0]:
                raise BackendError("no such sector")
            return read(expert, buffer)

        monkeypatch.setattr(layer, "read", fails)
        monkeypatch.setattr(layer, "direct_read", lambda expert: None)
        runs = acts_at(monkeypatch, 0, lambda: None)
        with pytest.raises(BackendError, match="no such sector"):
            llm.generate(prompt, max_tokens=12, **GREEDY)
        assert runs() == 2 * 4 + 1, "two layers of four chunks, and one chunk of the third"
        is_gone[0] = False
        assert llm.generate(prompt, max_tokens=12, **GREEDY).ids == expected
