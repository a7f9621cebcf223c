"""Contexts share memory with weights, which are not there yet when a context is chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import edgerun
from edgerun.errors import InputError
from edgerun.formats.stack import ExpertStack
from edgerun.llm import loading
from edgerun.llm.compiling import resident_bytes
from edgerun.llm.options import LoadOptions
from edgerun.model.bundle import open_bundle
from edgerun.plan.states import states_of
from edgerun.state.capacity import sequence_bytes
from edgerun.state.memory import SPARE_BYTES
from tests.support.bundles import bundle_of

Loads = Callable[..., edgerun.LLM]
NEEDED = 300  # tokens, for which there is room


def own_weights() -> int:
    return resident_bytes(open_bundle(loading.resolve(None)), LoadOptions())


def room_for(tokens: int) -> int:
    bundle = open_bundle(loading.resolve(None))
    return sequence_bytes(states_of(bundle.graph, bundle.config, "fp16"), tokens)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Loads:
    """Loads the model that comes with edgerun into so much memory, of which it takes a part."""

    def loaded(free: int, taken: int, **options: Any) -> edgerun.LLM:
        left = [SPARE_BYTES + free]
        compile_bundle = loading.compile_bundle

        def compiled(*given: Any, **named: Any) -> Any:
            left[0] -= taken
            return compile_bundle(*given, **named)

        monkeypatch.setattr(loading, "available_memory", lambda: left[0])
        monkeypatch.setattr(loading, "compile_bundle", compiled)
        return edgerun.load(threads=1, **options)

    return loaded


def test_a_context_that_nobody_asked_for_leaves_room_for_weights(load: Loads) -> None:
    weights = own_weights()
    with load(weights + room_for(NEEDED), weights) as llm:
        assert NEEDED <= llm.model.context < 512


def test_a_context_that_nobody_asked_for_is_what_loading_left(load: Loads) -> None:
    weights = own_weights()
    with load(weights + 2 * room_for(NEEDED), weights + room_for(NEEDED)) as llm:
        assert NEEDED <= llm.model.context < 512
        assert llm.generate("Once", max_tokens=2).ids


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (NEEDED, r"and 0\.00 GiB are free beside 0\.01 GiB of weights: choose one of at most \d+"),
        (0, r"a sequence of any length takes .* beside 0\.01 GiB of weights: free some, or use a"),
    ],
)
def test_a_context_without_room_beside_weights_is_refused_before_they_are_read(
    tokens: int, message: str, load: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "compile_bundle", lambda *_, **__: pytest.fail("it was compiled"))
    with pytest.raises(InputError, match=message):
        load(own_weights() + room_for(tokens), 0, context=512)


def test_weights_that_are_read_as_they_are_needed_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows of large tables, and experts; those of tables that are small are copied.

    Rows of the matrices of linear layers are padded in memory, to 1 KiB.
    """
    bundle = open_bundle(bundle_of("olmoe", weights="fp32", head_weights="fp32"))
    constants = bundle.graph.constants
    tables = {node.inputs[1] for node in bundle.graph.nodes if node.op == "embedding"}
    tables -= {name for n in bundle.graph.nodes if n.op != "embedding" for name in n.inputs}
    assert tables
    sizes = {
        name: each.nbytes for name, each in constants.items() if not isinstance(each, ExpertStack)
    }
    matrices = {node.inputs[1] for node in bundle.graph.nodes if node.op == "linear"}
    assert matrices
    for name in matrices:
        rows, columns = constants[name].shape
        sizes[name] = rows * -(-4 * columns // 1024) * 1024
    assert resident_bytes(bundle, LoadOptions()) == sum(sizes.values())
    monkeypatch.setattr("edgerun.backends.cpu.staged.LARGE_BYTES", 0)
    for name in tables:
        del sizes[name]
    assert resident_bytes(bundle, LoadOptions()) == sum(sizes.values())
