"""Where a model is computed may change at any time: replies under way go on."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import edgerun
from edgerun.errors import BackendError, InputError, UnsupportedError
from edgerun.llm import loading
from edgerun.llm.compiling import Compiled
from tests.backends.openvino.test_places import ids_of
from tests.support.bundles import bundle_of

pytest.importorskip("openvino")

PROMPT = ids_of("llama")
LIMITS = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
PLACES = ("decode=openvino:CPU", "prefill=openvino:CPU", "decode=cpu")


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Networks are not kept where the user's are."""
    from edgerun.backends.openvino import executable

    monkeypatch.setattr(executable, "settings", lambda: SimpleNamespace(cache_dir=tmp_path))


@pytest.fixture(scope="module")
def folder():  # type: ignore[no-untyped-def]
    """Activations are not rounded there, so that a last bit changes no token."""
    return bundle_of("llama", weights="int8", activations="fp32")


@pytest.fixture(scope="module")
def expected(folder) -> list[int]:  # type: ignore[no-untyped-def]
    with edgerun.load(folder, threads=1) as llm:
        ids = llm.generate(PROMPT, **LIMITS).ids
    assert len(set(ids)) > 10
    return ids


def test_a_reply_goes_on_elsewhere(folder, expected: list[int]) -> None:  # type: ignore[no-untyped-def]
    with edgerun.load(folder, threads=1) as llm:
        stream = llm.stream(PROMPT, **LIMITS)
        seen = []
        for count, _ in enumerate(stream):
            if count % 9 == 4:
                llm.place(PLACES[count // 9 % len(PLACES)])
                seen.append([backend.name for backend in llm.model.backends])
        assert stream.completion.ids == expected
    assert ["openvino:CPU", "cpu"] in seen or ["cpu", "openvino:CPU"] in seen
    assert seen[-1] != seen[0]


def test_kernels_keep_their_weights(folder) -> None:  # type: ignore[no-untyped-def]
    with edgerun.load(folder, threads=1) as llm:
        (cpu,) = llm.model.backends
        weights = cpu._shared.weights.nbytes
        for place in PLACES:
            llm.place(place)
        assert llm.model.backends == (cpu,)
        assert cpu._shared.weights.nbytes == weights
        llm.generate(PROMPT, max_tokens=1)


def test_a_device_that_was_lost_can_be_tried_again(folder, expected: list[int]) -> None:  # type: ignore[no-untyped-def]
    with edgerun.load(folder, threads=1, place="prefill=openvino:CPU") as llm:
        device = next(each for each in llm.model.backends if each.name != "cpu")
        device._session.failure = "it is gone"
        llm.place("prefill=openvino:CPU")
        assert llm.generate(PROMPT, **LIMITS).ids == expected
        (report,) = llm.reports()
        assert (sum(row["calls"] for row in report.rows), report.notes) == (1, [])


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("decode", InputError),
        ("decode=openvino:AUTO", InputError),
        ("decode=openvino:NPU", UnsupportedError),
    ],
)
def test_a_place_that_cannot_be_changes_nothing(
    place: str,
    kind: type[Exception],
    folder,
    expected: list[int],  # type: ignore[no-untyped-def]
) -> None:
    with edgerun.load(folder, threads=1, place="prefill=openvino:CPU") as llm:
        before = llm.model.programs, llm.model.backends
        with pytest.raises(kind):
            llm.place(place)
        assert (llm.model.programs, llm.model.backends) == before
        assert llm.generate(PROMPT, **LIMITS).ids == expected


def test_a_device_that_does_not_run_the_model_changes_nothing(
    folder,
    expected: list[int],
    monkeypatch: pytest.MonkeyPatch,  # type: ignore[no-untyped-def]
) -> None:
    from edgerun.backends.openvino import check

    with edgerun.load(folder, threads=1) as llm:
        monkeypatch.setattr(check, "ALLOWED", -1.0)
        with pytest.raises(BackendError, match="cannot run this model"):
            llm.place("decode=openvino:CPU")
        assert [backend.name for backend in llm.model.backends] == ["cpu"]
        assert llm.generate(PROMPT, **LIMITS).ids == expected


def test_a_function_of_logits_cannot_change_places_and_nothing_is_compiled_for_it(
    folder,
    monkeypatch: pytest.MonkeyPatch,  # type: ignore[no-untyped-def]
) -> None:
    with edgerun.load(folder, threads=1) as llm:
        compiled: list[object] = []
        monkeypatch.setattr(
            "edgerun.llm.loading.compile_bundle", lambda *given: compiled.append(given)
        )

        def take(block: object) -> None:
            llm.place("decode=openvino:CPU")

        with pytest.raises(InputError, match="a function that the model calls"):
            llm.take_logits(PROMPT, take)
        assert not compiled
        assert llm.generate(PROMPT, max_tokens=1).ids


def test_what_was_compiled_in_vain_is_closed(
    folder,
    expected: list[int],
    monkeypatch: pytest.MonkeyPatch,  # type: ignore[no-untyped-def]
) -> None:
    compile_ = loading.compile_bundle
    compiled: list[Compiled] = []
    closed: list[object] = []

    def noted(*given: Any) -> Compiled:
        compiled.append(compile_(*given))
        for each in (compiled[-1].programs, *compiled[-1].everyone):
            note_closing(each)
        return compiled[-1]

    def note_closing(each: Any) -> None:
        close = type(each).close
        monkeypatch.setattr(type(each), "close", lambda self: closed.append(self) or close(self))

    def refuse(programs: object) -> None:
        raise InputError("not now")

    with edgerun.load(folder, threads=1) as llm:
        with monkeypatch.context() as patch:
            patch.setattr(loading, "compile_bundle", noted)
            patch.setattr(llm._engine, "replace", refuse)
            with pytest.raises(InputError, match="not now"):
                llm.place("prefill=openvino:CPU")
        (device,) = set(compiled[0].everyone).difference(llm.model.everyone)
        assert {compiled[0].programs, device} <= set(closed)
        assert not set(llm.model.everyone) & set(closed)
        assert llm.generate(PROMPT, **LIMITS).ids == expected


def test_other_threads_go_on_meanwhile(folder, expected: list[int]) -> None:  # type: ignore[no-untyped-def]
    with edgerun.load(folder, threads=1) as llm:
        replies: list[list[int]] = []

        def read() -> None:
            replies.append(llm.generate(PROMPT, **LIMITS).ids)

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for place in PLACES * 2:
            llm.place(place)
        for reader in readers:
            reader.join()
    assert replies == [expected] * 3


def test_a_closed_model_has_no_place(folder) -> None:  # type: ignore[no-untyped-def]
    llm = edgerun.load(folder, threads=1)
    llm.close()
    with pytest.raises(InputError, match="this model is closed"):
        llm.place("decode=cpu")
