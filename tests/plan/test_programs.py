"""Programs: which one takes a batch, what they count, and how they end."""

import pytest

from edgerun.backends.base import FEW_ROWS, Launches, Phase, Shape, buckets
from edgerun.errors import BackendError
from edgerun.plan.programs import Deferred, Programs
from edgerun.state import Batch, SequenceStore
from tests.support import fakes


def batch_of(rows):
    return Batch.of([1] * rows, 0, 0)


def opened_cache():
    cache = SequenceStore(fakes.SPEC, 128)
    cache.reserve(cache.open(), 128)
    return cache


@pytest.mark.parametrize(
    ("chunk_rows", "rows"),
    [(1, [1]), (2, [1, 2]), (FEW_ROWS, [1, FEW_ROWS]), (64, [1, FEW_ROWS, 64])],
)
def test_buckets_take_every_batch_up_to_the_chunk(chunk_rows, rows):
    shapes = buckets(chunk_rows)
    assert [shape.rows for shape in shapes] == rows
    assert [shape.phase for shape in shapes] == list(Phase)[: len(rows)]


@pytest.mark.parametrize(
    ("rows", "phase"),
    [(1, Phase.DECODE), (2, Phase.FEW), (16, Phase.FEW), (17, Phase.PREFILL), (64, Phase.PREFILL)],
)
def test_the_smallest_program_that_takes_a_batch_runs_it(rows, phase):
    compiled = {shape: fakes.FakeExecutable() for shape in reversed(buckets(64))}
    Programs(compiled).run(batch_of(rows), opened_cache())
    ran = {shape.phase: program.rows for shape, program in compiled.items() if program.rows}
    assert ran == {phase: [rows]}


def test_a_program_that_is_wanted_once_is_not_compiled_for_that():
    """The next larger one runs the first batch; if it is not there either, nothing does instead."""
    compiled = []

    def make(name):
        compiled.append(name)
        return fakes.FakeExecutable()

    few, large = Deferred(lambda: make("few")), fakes.FakeExecutable()
    programs = Programs(
        {Shape.of(1): fakes.FakeExecutable(), Shape.of(16): few, Shape.of(64): large}
    )
    cache = opened_cache()
    programs.run(batch_of(1), cache)
    programs.run(batch_of(5), cache)
    assert (compiled, large.rows) == ([], [5])
    programs.run(batch_of(6), cache)
    programs.run(batch_of(7), cache)
    assert (compiled, large.rows) == (["few"], [5])
    few, large = Deferred(lambda: make("small")), Deferred(lambda: make("large"))
    Programs({Shape.of(16): few, Shape.of(64): large}).run(batch_of(5), opened_cache())
    assert compiled == ["few", "small"]


def test_a_program_that_is_expected_is_compiled_when_it_is_wanted():
    compiled = []

    def make():
        compiled.append("few")
        return fakes.FakeExecutable()

    single, large = fakes.FakeExecutable(), fakes.FakeExecutable()
    programs = Programs({Shape.of(1): single, Shape.of(16): Deferred(make), Shape.of(64): large})
    programs.expect(16)
    assert compiled == []
    programs.run(batch_of(5), opened_cache())
    assert (compiled, large.rows) == (["few"], [])


def test_a_batch_that_no_program_takes_is_refused():
    programs = Programs({Shape.of(4): fakes.FakeExecutable()})
    with pytest.raises(BackendError, match="a batch of 5 rows for programs of at most 4"):
        programs.run(batch_of(5), opened_cache())


def test_counters_are_of_the_programs_that_count():
    counting, silent = fakes.FakeExecutable(), fakes.FakeExecutable()
    counting.launches = Launches(instructions=3)
    programs = Programs({Shape.of(1): silent, Shape.of(64): counting})
    assert programs.launches == {"prefill": counting.launches}


def test_closing_closes_every_program_once():
    shared, own = fakes.FakeExecutable(), fakes.FakeExecutable()
    programs = Programs({Shape.of(1): shared, Shape.of(4): shared, Shape.of(64): own})
    programs.close()
    programs.close()
    assert (shared.closed, own.closed) == (1, 1)
