"""Timings and counts of a generation while it runs."""

from __future__ import annotations

from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.engine import Engine
from edgerun.state import SequenceStore
from tests.support import fakes


def test_what_was_read_of_a_prompt_is_counted_call_by_call() -> None:
    programs = fakes.programs_of(fakes.FakeExecutable())
    store = SequenceStore(fakes.SPEC, 64, 1)
    run = Engine(programs, store, fakes.VOCAB, (fakes.END,), chunk_rows=4)
    sequence = run.sequence([*range(10)], SamplingParams(temperature=0, max_tokens=8))
    run.add(sequence)
    counts = []
    while not sequence.is_reply:
        run.step()
        counts.append(sequence.stats.read_tokens)
    assert counts == [4, 8, 10]
