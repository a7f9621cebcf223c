"""What a device that computes experts has to do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import BackendError

F32: TypeAlias = NDArray[np.float32]
U8: TypeAlias = NDArray[np.uint8]
CHECK_EVERY = 64  # commands of a layer; of one of these a result is computed here, too
MAX_SLOTS = 1 << 14  # more experts than any model has
# Products of experts: all three, or of an expert that is cut gate and up projection, or down.
WHOLE, FIRST, SECOND = "experts", "experts_first", "experts_second"


class DeviceError(BackendError):
    """The device failed."""


@dataclass(frozen=True)
class DeviceSizes:
    """What a device has room for.

    Attributes:
        slot_bytes: of a slot, which has everything that belongs to one expert.
        slots: how many.
        rows: that go to the device at a time, and come from it.
        width: elements of a row, both in and out.
        inner: elements of a row between the products of an expert.
    """

    slot_bytes: int
    slots: int
    rows: int
    width: int
    inner: int

    @property
    def nbytes(self) -> int:
        """Bytes of all of it: slots, rows that come in, those between, rows that go out."""
        return self.slots * self.slot_bytes + self.rows * (2 * self.width + self.inner) * 4


@dataclass(frozen=True)
class Product:
    """What is to be computed of an expert.

    Attributes:
        op: ``WHOLE``; or if the expert is cut ``FIRST``, from ``x`` to ``inner``, or
            ``SECOND``, from ``inner`` to ``out``; of that
        panels: so many of the outputs, the first ones, in panels as the processor's kernels take
            them.
    """

    op: str = WHOLE
    panels: int = 0


ALL = Product()


@dataclass(frozen=True)
class Answer:
    """What became of a command.

    Attributes:
        number: of the command.
        ended_s: when the device was done with it, by ``time.monotonic``, and
        began_s: when it began.
        fault: why nothing was computed; empty if all is well.
    """

    number: int
    ended_s: float = 0.0
    began_s: float = 0.0
    fault: str = ""


class Device(ABC):
    """A device with memory of its own: slots for experts, and rows that come in and go out.

    Uploads are made one after the other and commands are obeyed one after the other, in the order
    in which they were given, while the caller does something else. A command that is given when an
    upload has ended sees what was uploaded.

    Attributes:
        title: how messages call it, "the stand-in".
        sizes: what it has room for.
        x: rows that come in, float32 ``[rows, width]``, written by the caller; from ``start`` on.
        inner: rows between the products of experts that are cut, float32 ``[rows, inner]``; the
            first columns are the device's to write, the others the caller's, after it was answered.
        out: rows that go out, which a command writes; from ``start`` on.
    """

    title: str
    sizes: DeviceSizes
    x: F32
    inner: F32
    out: F32

    @property
    @abstractmethod
    def uploaded_bytes(self) -> int:
        """Bytes that were uploaded so far, in all its lives."""

    @abstractmethod
    def start(self) -> None:
        """Begins a life with empty slots.

        Raises:
            DeviceError: it does not.
            OSError: the system refuses what it needs.
        """

    @abstractmethod
    def upload(self, slot: int, source: U8, then: Callable[[float], None]) -> None:
        """Queues an upload.

        Args:
            slot: that is overwritten.
            source: uint8 ``[slot_bytes]``, which stays as it is until the upload has ended.
            then: called with the seconds that it took, by another thread.
        """

    @abstractmethod
    def send(self, number: int, first: int, slots: Sequence[int], product: Product = ALL) -> None:
        """Tells the device to multiply rows; from any thread.

        Rows ``first``, ``first + 1``, ... go through an expert each, and the results into the same
        rows.

        Args:
            number: comes back with the answer.
            first: row to begin with.
            slots: of each row's expert; rows of the same follow one another.
            product: what of it.
        """

    @abstractmethod
    def answer(self, patience_s: float) -> Answer:
        """Waits for the next answer.

        Raises:
            DeviceError: it does not come, or is a fault.
        """

    def check(self) -> None:  # noqa: B027 - of most, only an answer tells
        """Tells whether it has failed meanwhile.

        Raises:
            DeviceError: it has.
        """

    @abstractmethod
    def stop(self) -> None:
        """Ends this life; calling it twice is allowed, and so is ``start`` after it."""

    @abstractmethod
    def forget(self) -> None:
        """In a forked child: this life is the parent's, which goes on with it."""
