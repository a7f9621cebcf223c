"""Reads that fail, end early, bring less, are slow or hang; contents that are no numbers."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from edgerun.backends.cpu.experts import filler, source
from edgerun.files import direct, positioned
from edgerun.llm.llm import LLM
from tests.support.expert_faults import disk
from tests.support.expert_faults.disk import Act
from tests.support.expert_faults.fault import Fault
from tests.support.expert_faults.session import (
    Session,
    fails,
    reply,
    stream_of,
    wait_for_reads,
)

PLACES = (1, 4, 17, 60)  # reads of a reply: the first one, and later ones
WAYS = {"direct": True, "buffered": False}
ERRORS = ("EIO", "ENODEV", "ENXIO", "ESTALE", "ETIMEDOUT", "EREMOTEIO", "ENOMEM", "EBADF")
PATIENCE_S = 0.1


def faults() -> Iterator[Fault]:
    """All of this file."""
    for way, directly in WAYS.items():
        for place in PLACES:
            at = f"{way}, read {place}"
            for name in ERRORS:
                act = disk.failing(getattr(errno, name))
                message = "^the file of weights cannot be read any more, at byte"
                yield Fault(f"{name}, {at}", partial(_failed, directly, place, act, message))
            message = "^the file of weights ends at byte"
            yield Fault(
                f"end of file, {at}", partial(_failed, directly, place, disk.ending(), message)
            )
            for error in (MemoryError, ZeroDivisionError):
                act, message = (
                    disk.raising(error),
                    f"could not be brought into memory: {error.__name__}",
                )
                yield Fault(
                    f"{error.__name__}, {at}", partial(_failed, directly, place, act, message)
                )
            yield Fault(f"hang, {at}", partial(_hung, directly, place))
        for most in (4096, 5000, 12288) if directly else (1, 511, 5000):
            yield Fault(
                f"{most} bytes at most, {way}", partial(_survived, directly, disk.short(most))
            )
        yield Fault(f"ten times slower, {way}", partial(_survived, directly, disk.slow(0.002)))
    for most in (1, 4095):  # which direct reads refuse, so that others are made
        yield Fault(f"{most} bytes at most, direct", partial(_survived, True, disk.short(most)))
    yield Fault("half a kilobyte at most, direct", _no_progress)
    for place in PLACES:
        yield Fault(f"direct reads refused, read {place}", partial(_refused, place))
        yield from _contents(place)
    yield Fault("direct reads refused at once", _never_direct)
    yield Fault("advice refused", _no_advice)


def _failed(directly: bool, place: int, act: Act, message: str, session: Session) -> None:
    """The reply ends with an error; once the disk is well again, all is as before."""
    with session.loaded(directly=directly) as llm:
        for _ in range(2):
            with session.disk.faulty(act, place):
                fails(llm, message)
        session.check_whole(llm)


def _survived(directly: bool, act: Act, session: Session) -> None:
    """The reply is the same."""
    with session.loaded(directly=directly) as llm, session.disk.faulty(act):
        session.check_whole(llm)


def _hung(directly: bool, place: int, session: Session) -> None:
    """Nobody waits for ever, and what comes too late does no harm."""
    goes_on = threading.Event()
    with session.loaded(directly=directly) as llm:
        wait_for_reads(llm, PATIENCE_S)
        with session.disk.faulty(disk.hanging(goes_on), place):
            for _ in range(2):
                fails(llm, "experts .* did not come within 10 s: the disk")
        goes_on.set()
        wait_for_reads(llm, 60)
        session.check_whole(llm)


def _refused(place: int, session: Session) -> None:
    """A file system that takes the flag and refuses the read: others are made."""

    def act(descriptor: int, out: memoryview, offset: int) -> int | None:
        if descriptor in directs:
            raise OSError(errno.EINVAL, "refused")
        return None

    with session.loaded() as llm:
        reply(llm)
        files = _files(llm)
        directs = {file._direct for file in files}
        with session.disk.faulty(act, place):
            session.check_whole(llm)
        assert not any(file.is_direct for file in files)


def _no_progress(session: Session) -> None:
    """A direct read that can never go on is an error; others go on."""
    with session.loaded() as llm:
        reply(llm)
        is_direct = any(file.is_direct for file in _files(llm))
        with session.disk.faulty(disk.short(512)):
            if is_direct:
                fails(llm, "^the file of weights ends at byte")
            else:
                assert reply(llm) == session.expected
        session.check_whole(llm)


def _files(llm: LLM) -> list[direct.DirectFile]:
    return [file for _, file in stream_of(llm)._files._files.values()]


def _never_direct(session: Session) -> None:
    """A system that opens nothing so."""
    before, direct.open_again = (
        direct.open_again,
        lambda descriptor, *, direct: None,
    )
    try:
        with session.loaded() as llm:
            session.check_whole(llm)
            assert not any(file.is_direct for file in _files(llm))
    finally:
        direct.open_again = before


def _no_advice(session: Session) -> None:
    """A file system that takes no advice reads all the same."""

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSYS, "no advice")

    before, positioned.os.posix_fadvise = positioned.os.posix_fadvise, refuse
    try:
        with session.loaded(directly=False) as llm:
            session.check_whole(llm)
    finally:
        positioned.os.posix_fadvise = before


def _contents(place: int) -> Iterator[Fault]:
    for matrix, name in enumerate(("gate", "up", "down")):
        for value in (np.nan, np.inf, -np.inf):
            yield Fault(
                f"scale of {name} is {value}, read {place}", partial(_spoiled, place, matrix, value)
            )
    yield Fault(f"defect while an expert is put in order, read {place}", partial(_defect, place))


def _spoiled(place: int, matrix: int, value: float, session: Session) -> None:
    """Scales that are no numbers end the reply."""
    read, state = source.ExpertSource.read, {"on": False}

    def spoil(self: Any, expert: int, buffer: Any) -> Any:
        content = read(self, expert, buffer)
        if state["on"]:
            content.matrices[matrix].scales[-1, -1] = value
        return content

    with disk.by_readers(), session.loaded() as llm:
        source.ExpertSource.read = spoil  # type: ignore[method-assign]
        try:
            act = disk.once(lambda: state.__setitem__("on", True))
            with session.disk.faulty(act, place):
                fails(llm, "has scales that are infinite or no numbers")
        finally:
            source.ExpertSource.read = read  # type: ignore[method-assign]
        session.check_whole(llm)


def _defect(place: int, session: Session) -> None:
    """What goes wrong behind the read ends the reply, too."""
    fill, state = filler.SlotFiller.fill, {"on": False}

    def fail(*args: Any, **options: Any) -> None:
        if state["on"]:
            raise IndexError("of all things")
        fill(*args, **options)

    with disk.by_readers(), session.loaded() as llm:
        filler.SlotFiller.fill = fail  # type: ignore[method-assign]
        try:
            act = disk.once(lambda: state.__setitem__("on", True))
            with session.disk.faulty(act, place):
                fails(llm, "could not be brought into memory: IndexError")
        finally:
            filler.SlotFiller.fill = fill  # type: ignore[method-assign]
        session.check_whole(llm)
