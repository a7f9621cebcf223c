"""What a fault is tried on: a model in slots, what it says without faults, and what must hold."""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import edgerun
from edgerun.backends.cpu.experts.stream import ExpertStream
from edgerun.errors import EdgerunError, InputError
from edgerun.kernels.run.residency import PATIENCE
from edgerun.llm.llm import LLM
from tests.support.expert_faults.disk import Disk, opened

PROMPT = [17, 101, 33, 7, 201]
REPLY = 24  # tokens
DRAINED_S = 10.0
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": REPLY}


class Session:
    """A model of a folder, with faults to come."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk = Disk()

    @cached_property
    def expected(self) -> list[int]:
        """The reply of a model that is in memory as a whole."""
        with edgerun.load(self.folder, backend="cpu") as llm:
            return reply(llm)

    @cached_property
    def least(self) -> int:
        """The least memory that will do, as the refusal says."""
        return least_of(self.folder)

    @contextmanager
    def loaded(
        self, folder: Path | None = None, *, factor: int = 1, directly: bool = True
    ) -> Iterator[LLM]:
        """The model with room for the experts of a token, or ``factor`` times as many."""
        with opened(directly=directly):
            llm = edgerun.load(
                folder or self.folder, backend="cpu", expert_memory=self.least * factor
            )
        with llm:
            yield llm

    @contextmanager
    def copied(self) -> Iterator[Path]:
        """A copy of the model that may be spoiled."""
        with tempfile.TemporaryDirectory() as folder:
            yield Path(shutil.copytree(self.folder, Path(folder) / "bundle"))

    def check_whole(self, llm: LLM) -> None:
        """All is as it was: the same tokens, no slot lost, nothing left to read."""
        assert reply(llm) == self.expected, "other tokens than before"
        self.check_slots(llm)

    def check_slots(self, llm: LLM) -> None:
        """Every slot is free or has an expert, and all readers are there."""
        check_slots(stream_of(llm))


def check_slots(stream: ExpertStream) -> None:
    """Every slot is free or has an expert, once nobody reads any more, and no reader is gone."""
    pool, end = stream._pool, time.monotonic() + DRAINED_S
    while pool._reading and time.monotonic() < end:
        time.sleep(0.001)
    with stream._lock:
        assert not pool._reading, "something is still being read"
        assert len(pool._free) + len(pool.resident) == len(stream.slots), "a slot is lost"
        assert len({*pool._free, *pool.resident.values()}) == len(stream.slots), "shared slot"
    threads = [*stream._threads, *stream._slot_readers._threads]
    assert all(thread.is_alive() for thread in threads), "a reader is gone"


def reply(llm: LLM) -> list[int]:
    """Ids of a reply."""
    return llm.generate(PROMPT, **GREEDY).ids


def fails(llm: LLM, message: str) -> None:
    """A reply ends with an error of ours, in one sentence that says what it should."""
    try:
        ids = reply(llm)
    except EdgerunError as error:
        check_message(str(error), message)
    else:
        raise AssertionError(f"no error, but {ids}")


def check_message(text: str, message: str) -> None:
    """An error is one line, and says what it should."""
    assert re.search(message, text), f"{text!r} does not say {message!r}"
    assert "\n" not in text and "Traceback" not in text, f"{text!r} is no sentence"


def refused(folder: Path, message: str, **options: Any) -> None:
    """A model is not loaded, and a sentence says why."""
    try:
        edgerun.load(folder, backend="cpu", **options).close()
    except EdgerunError as error:
        check_message(str(error), message)
    else:
        raise AssertionError("loaded")


def least_of(folder: Path) -> int:
    """The least memory that the experts of a model can have."""
    try:
        edgerun.load(folder, backend="cpu", expert_memory=1).close()
    except InputError as refusal:
        return int(str(refusal).split("allow ")[1].split()[0])
    raise AssertionError("a byte is enough")


def stream_of(llm: LLM) -> ExpertStream:
    """What reads a model's experts."""
    (backend,) = llm.model.backends
    stream = backend._shared.experts.stream  # type: ignore[attr-defined]
    assert isinstance(stream, ExpertStream)
    return stream


def wait_for_reads(llm: LLM, seconds: float) -> None:
    """Says how long a call waits for a read."""
    stream_of(llm)._words.control[PATIENCE] = int(seconds * 1e9)


def in_thread(function: Any, *args: Any) -> threading.Thread:
    """Something that goes on beside the caller."""
    thread = threading.Thread(target=function, args=args)
    thread.start()
    return thread
