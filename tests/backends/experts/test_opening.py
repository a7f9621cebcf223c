"""Files of experts that cannot be opened when they are needed, and can be later."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

import edgerun
from edgerun.backends.cpu.experts import source
from edgerun.backends.cpu.experts.slot_readers import Job
from edgerun.backends.cpu.experts.stored_layer import StoredLayer
from edgerun.errors import BackendError
from edgerun.files.direct import DirectFile
from edgerun.llm.llm import LLM
from tests.backends.experts.test_memory import ids_of, smallest, stream_of
from tests.support.bundles import bundle_of
from tests.support.expert_faults.session import check_slots


@pytest.fixture(scope="module")
def expected() -> list[int]:
    with edgerun.load(bundle_of("olmoe", weights="int4"), backend="cpu") as llm:
        return ids_of(llm)


def loaded() -> LLM:
    folder = bundle_of("olmoe", weights="int4")
    return edgerun.load(folder, backend="cpu", expert_memory=smallest(folder))


def refuse(*_: object, **__: object) -> DirectFile:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_file_that_cannot_be_opened_now_is_read_later(
    expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with loaded() as llm:
        with monkeypatch.context() as patch:
            patch.setattr(source, "DirectFile", refuse)
            for _ in range(2):
                with pytest.raises(BackendError, match="cannot be opened .*: Too many open files"):
                    ids_of(llm)
        assert ids_of(llm) == expected
        assert stream_of(llm)._slot_readers._threads
        check_slots(stream_of(llm))


def test_one_of_several_files_that_cannot_be_opened_now_is_read_later(
    expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is opened in the middle of a run costs that run, and no later one."""
    make_job: Callable[[StoredLayer, int], Job | None] = StoredLayer._make_job

    def of_another_file(layer: StoredLayer, expert: int) -> Job | None:
        if expert:
            layer.source._files._files.clear()
            monkeypatch.setattr(source, "DirectFile", refuse)
        return make_job(layer, expert)

    with loaded() as llm:
        monkeypatch.setattr(StoredLayer, "_make_job", of_another_file)
        with pytest.raises(BackendError, match="cannot be opened .*: Too many open files"):
            ids_of(llm)
        monkeypatch.setattr(StoredLayer, "_make_job", make_job)
        monkeypatch.setattr(source, "DirectFile", DirectFile)
        assert ids_of(llm) == expected
        check_slots(stream_of(llm))
