"""Slots of a device are full before the first token, of the experts that are likeliest needed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import edgerun
from edgerun.errors import InputError
from edgerun.offload.cache import ExpertCache, Step
from edgerun.offload.policies.registry import policies
from edgerun.offload.sharing.filling import RECENT_TOKENS, History, likeliest
from edgerun.offload.standin.link import Link
from edgerun.offload.trace_file import CHOICE, Trace, write_trace
from tests.support.bundles import bundle_of
from tests.support.sharing import logits_of, running, standin

FORM = "olmoe", "int4"  # 2 layers of 8 experts
LAYERS = {"first": 8, "second": 8}
SOME = "memory=40K,link=100M"


def trace_of(popular: list[list[int]], tokens: int = 100, model: str = "any") -> Trace:
    """Tokens that go to these experts of each layer in turns."""
    choices = np.zeros((tokens, len(popular), 1), CHOICE)
    for layer, experts in enumerate(popular):
        choices["expert"][:, layer, 0] = np.resize(experts, tokens)
    choices["weight"] = 1
    return Trace(model, tuple(range(3, 3 + len(popular))), 8, 0, choices)


def test_without_a_trace_layers_get_as_many_experts_each() -> None:
    order = likeliest({"first": 8, "second": 6}, {"first": 4, "second": 1}, History())
    assert order[:5] == [(1, 0), (4, 0), (1, 1), (4, 1), (1, 2)]
    assert len(order) == len(set(order)) == 14
    assert Counter(number for number, _ in order[:12]) == {1: 6, 4: 6}


def test_a_trace_says_which_are_needed_most_often() -> None:
    history = History.of(trace_of([[5, 5, 5, 2], [7]]), LAYERS)
    order = likeliest(LAYERS, {"first": 0, "second": 1}, history)
    assert order[:5] == [(1, 7), (0, 5), (0, 2), (1, 0), (0, 0)]
    steps = history.steps({"first": 9, "second": 1})
    assert len(steps) == 2 * RECENT_TOKENS
    assert {step.layer for step in steps} == {1, 9}


@pytest.mark.parametrize("experts", [{"first": 8}, {"first": 8, "second": 9}])
def test_a_trace_of_other_layers_is_refused(experts: dict[str, int]) -> None:
    with pytest.raises(InputError, match="the trace has 2 layers of 8 experts and the model"):
        History.of(trace_of([[5], [7]]), experts)


class PathOfBytes:
    """What ``os.scandir`` gives of a folder that is named by bytes."""

    def __fspath__(self) -> bytes:
        return b"x"


@pytest.mark.parametrize("trace", [5, b"x", "", Path(), PathOfBytes()])
def test_a_trace_is_named_by_a_path(trace: object) -> None:
    with pytest.raises(InputError, match=r"expert_trace is .*; expected a file's path"):
        edgerun.load("nowhere", expert_trace=trace)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["lfu", "lrfu", "lru", "mrs", "scan_lru", "static"])
def test_what_nobody_used_leaves_first_and_the_unlikeliest_of_it(name: str) -> None:
    cache = ExpertCache(3, policies()[name]())
    assert cache.fill([(0, 1), (0, 2), (0, 1), (0, 3), (0, 4)]) == ((0, 1), (0, 2), (0, 3))
    assert cache.fill([(0, 5)]) == ()
    cache.access(Step(0, (3,), (1.0,)))
    cache.admit(Step(0, (6,), (1.0,)), [])
    access = cache.exchange((0, 6))
    assert access is not None and (access.missing, access.evicted) == (((0, 6),), ((0, 2),))
    access = cache.access(Step(0, (6, 7), (1.0, 1.0)))
    assert access.evicted == ((0, 1),)
    assert cache.resident == {(0, 3), (0, 6), (0, 7)}


def test_a_history_counts_as_use() -> None:
    cache = ExpertCache(2, policies()["lrfu"]())
    cache.fill([(0, 1), (0, 2)], [Step(0, (2,), (1.0,))] * 9)
    assert cache.access(Step(0, (3,), (1.0,))).evicted == ((0, 1),)
    cache.admit(Step(0, (1,), (1.0,)), [])
    access = cache.exchange((0, 1))
    assert access is not None and access.evicted == ((0, 3),)  # not what was needed nine times


@pytest.mark.parametrize(("device", "slots"), [("memory=8M,link=1G", 16), (SOME, 0)])
def test_all_slots_are_full_before_the_first_token(device: str, slots: int) -> None:
    with running(*FORM, standin(device)) as (backend, _, _, _):
        session = backend._session
        assert session.arrived == session.slots.keys() == session.cache.resident
        assert len(session.arrived) == min(session.device.sizes.slots, 16) >= slots
        layers = Counter(number for number, _ in session.arrived)
        assert max(layers.values()) - min(layers.values()) <= 1
        assert session.due_s == 0 and session.resets == 0
        layer = next(iter(backend._layers.values()))
        for (number, expert), slot in session.slots.items():
            if number == layer.number:
                nbytes = session.device.sizes.slot_bytes
                memory = session.device._memory[slot * nbytes : (slot + 1) * nbytes]
                np.testing.assert_array_equal(memory, layer.slots[expert])


def test_a_new_life_is_filled_beside_the_tokens() -> None:
    expected, seen = logits_of(*FORM, None), []

    def strike(backend: object, token: int) -> None:
        session = backend._session  # type: ignore[attr-defined]
        if token == 10:
            session.device._process.kill()
            session.device._process.wait()
            session._recover(OSError("it is gone"))
        if token == 63:
            while session.is_uploading():  # else a busy machine has not had the time
                time.sleep(0.001)
            seen.append((len(session.arrived), session.resets))

    logits = logits_of(*FORM, standin("memory=8M,link=1G"), strike)
    np.testing.assert_array_equal(logits, expected)
    assert seen == [(16, 1)]


def test_a_link_that_stalls_while_slots_are_filled_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    let_go = threading.Event()
    monkeypatch.setattr("edgerun.offload.sharing.session.ANSWER_S", 0.2)
    monkeypatch.setattr("edgerun.offload.standin.link.CLOSING_S", 0.05)
    monkeypatch.setattr(Link, "_pace", lambda self, due: let_go.wait(10))
    monkeypatch.setattr("edgerun.offload.sharing.executable.SharedLayer.test", lambda self: None)
    begin = time.monotonic()
    with running(*FORM, standin("memory=8M")) as (backend, _, _, _):
        assert backend._session.failure == "an upload did not end within 0.2 s"
        let_go.set()
    assert time.monotonic() - begin < 30


def test_a_model_is_loaded_with_the_experts_of_a_trace(tmp_path: Path, announced: None) -> None:
    folder = bundle_of(*FORM[:1], weights=FORM[1])
    path, other = tmp_path / "story.trace", tmp_path / "other.trace"
    with edgerun.load(folder, backend="cpu", threads=1) as llm:
        digest = llm.model.digest
        expected = llm.generate("Once upon", max_tokens=8, seed=0).ids
    write_trace(path, trace_of([[5, 6], [7]], model=digest))
    write_trace(other, trace_of([[5, 6], [7]]))
    asked = {"device": f"standin:{SOME}", "threads": 1, "share": "always"}
    with edgerun.load(folder, expert_trace=path, **asked) as llm:  # type: ignore[arg-type]
        (session,) = (each._session for each in llm.model.backends if each.name == "standin")  # type: ignore[attr-defined]
        assert {(0, 5), (0, 6), (1, 7)} <= session.arrived
        assert llm.generate("Once upon", max_tokens=8, seed=0).ids == expected
    with pytest.raises(InputError, match="is another model's"):
        edgerun.load(folder, expert_trace=other, **asked)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="expert_trace is .* and no device was named that holds"):
        edgerun.load(folder, expert_trace=path)
