"""Calls of the model that fail, are given up, or compute something else than was asked for."""

from __future__ import annotations

from typing import Any

import pytest

from edgerun.errors import BackendError, Cancelled
from edgerun.state import Batch
from tests.engine.test_engine import GREEDY, engine, expected, generate, ids_of
from tests.support import fakes


class Failing(fakes.FakeExecutable):
    """Writes its rows and then fails at one call."""

    def __init__(self, call: int, error: BaseException) -> None:
        super().__init__()
        self.call, self.error = call, error

    def __call__(self, batch: Batch, cache: Any, values: Any = None) -> Any:
        result = super().__call__(batch, cache)
        if len(self.rows) == self.call:
            raise self.error
        return result


@pytest.mark.parametrize("call", range(1, 6))
@pytest.mark.parametrize("error", [KeyboardInterrupt(), BackendError("lost")])
def test_a_failed_or_interrupted_call_leaves_the_engine_usable(
    call: int, error: BaseException
) -> None:
    run, prompt = engine(Failing(call, error)), list(range(9))
    with pytest.raises(type(error)):
        list(generate(run, prompt))
    assert ids_of(generate(run, prompt)) == expected(prompt, 8)
    assert run.room().slots == 2


@pytest.mark.parametrize("count", [1, 2])
def test_a_call_that_is_given_up_because_nobody_waits_is_neither_repeated_nor_an_error(
    count: int,
) -> None:
    class GivenUp(fakes.FakeExecutable):
        def __call__(self, batch: Batch, cache: Any, values: Any = None) -> Any:
            super().__call__(batch, cache)
            for sequence in sequences:
                run.cancel(sequence)
            assert batch.is_cancelled()
            raise Cancelled("nobody wants it")

    executable = GivenUp()
    run = engine(executable)
    sequences = [run.sequence([1, 2, 3 + number], GREEDY) for number in range(count)]
    for sequence in sequences:
        run.add(sequence)
    assert set(run.wait(sequences)) == set(sequences)
    assert len(executable.rows) == 1
    assert [sequence.error for sequence in sequences] == [None] * count


class Wrong(fakes.FakeExecutable):
    def __call__(self, batch: Batch, cache: Any, values: Any = None) -> Any:
        return {"logits": super().__call__(batch, cache)["logits"][:, :-1]}


def test_logits_of_a_wrong_width_are_a_backend_error() -> None:
    with pytest.raises(BackendError, match="shape"):
        list(generate(engine(Wrong()), [1]))
