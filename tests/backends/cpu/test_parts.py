"""Long calls run in several native programs, with the same bits, and can be given up between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import edgerun
from edgerun.backends.cpu import executable as executables
from edgerun.backends.cpu import parts
from edgerun.backends.cpu.executable import CpuExecutable
from edgerun.errors import Cancelled
from edgerun.llm.llm import LLM
from edgerun.model.bundle import open_bundle
from edgerun.plan.workload import workload
from edgerun.state import Batch, SequenceStore
from tests.support.bundles import bundle_of

ROWS, HIDDEN = 24, 64  # of tokens, and of what the models' layers hand on, at most
IDS = [1 + number % 250 for number in range(ROWS)]


@pytest.fixture
def llm() -> Iterator[LLM]:
    with edgerun.load(bundle_of("llama"), backend="cpu", context=64, threads=2) as model:
        yield model


def run(llm: LLM, batch: Batch) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    store = SequenceStore(llm.model.states, 64, 1)
    store.reserve(store.open(), batch.rows)
    logits: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
    logits = llm.model.programs.run(batch, store)["logits"].copy()
    return logits


def of_prompts(llm: LLM) -> CpuExecutable:
    program = llm.model.programs._compiled[-1][1]._program  # type: ignore[attr-defined]
    assert isinstance(program, CpuExecutable)
    return program


def divide(monkeypatch: pytest.MonkeyPatch, products: int) -> None:
    for module in (executables, parts):
        monkeypatch.setattr(module, "MOST_PRODUCTS", products)


def test_parts_compute_the_same(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch.of(IDS, 0, 0)
    whole = run(llm, batch)
    assert of_prompts(llm).launches.runs == 1
    program = of_prompts(llm)
    products = parts.products_of_row(program._binder.graph)
    divide(monkeypatch, ROWS * products)
    assert (run(llm, batch) == whole).all()
    assert program.launches.runs == 2  # as before
    divide(monkeypatch, ROWS * products - 1)
    assert (run(llm, batch) == whole).all()
    assert program.launches.runs > 4


def test_a_call_that_nobody_waits_for_ends_behind_a_part(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = Batch.of(IDS, 0, 0)
    whole = run(llm, batch)
    divide(monkeypatch, 1)
    answers = iter([False, False, False])
    with pytest.raises(Cancelled):
        run(llm, replace(batch, is_cancelled=lambda: next(answers, True)))
    assert of_prompts(llm).launches.runs == 1 + 3
    assert (run(llm, batch) == whole).all()


@pytest.mark.parametrize("model", ["llama", "olmoe"])
def test_products_are_those_of_layers_and_at_most_a_vocabulary_more(model: str) -> None:
    bundle = open_bundle(bundle_of(model))
    work, embedded = workload(bundle.graph), bundle.config.vocab_size * HIDDEN
    exact = work.row_macs + work.logit_macs
    assert exact <= parts.products_of_row(bundle.graph) <= exact + embedded + 0.02 * exact


@given(count=st.integers(1, 50), products=st.integers(1, 1 << 45))
def test_parts_are_all_instructions_in_order(count: int, products: int) -> None:
    instructions = list(range(count))
    cut = list(parts.parts_of(instructions, products))  # type: ignore[arg-type]
    assert [each for part in cut for each in part] == instructions
    assert all(cut)
    assert len(cut) <= count
    assert products > parts.MOST_PRODUCTS or len(cut) == 1
