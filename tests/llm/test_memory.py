"""What a closed model leaves in memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import edgerun
from edgerun.backends.cpu.weights import WeightStore


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def stores() -> int:
    """Weights in memory, of how many models."""
    # Asked for their class, weak proxies of what is gone would raise.
    return sum(issubclass(type(each), WeightStore) for each in gc.get_objects())


def test_weights_go_when_a_model_is_closed(no_collector: None) -> None:
    """Not when somebody looks for garbage: a program that loads another has no room for both."""
    before = stores()
    for _ in range(2):
        with edgerun.load() as llm:
            llm.generate("Once", max_tokens=2)
            assert stores() == before + 1
        del llm
        assert stores() == before


def test_programs_that_others_replace_keep_no_weights(no_collector: None) -> None:
    before = stores()
    with edgerun.load() as llm:
        for place in ("decode=cpu", "prefill=cpu", "decode=cpu"):
            llm.place(place)
            assert stores() == before + 1
