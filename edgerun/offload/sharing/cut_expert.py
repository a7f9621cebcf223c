"""An expert of which both sides compute some columns, in one call."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from edgerun.offload.floors import Busy
from edgerun.offload.places import F32, I64
from edgerun.offload.sharing.cuts import Cut
from edgerun.offload.sharing.device import FIRST, SECOND, Product
from edgerun.offload.sharing.layer import Layer
from edgerun.offload.sharing.session import Session
from edgerun.state import SequenceStore


@dataclass(frozen=True)
class CutExpert:
    """The rows of such an expert; ``begin``, ``exchange`` and ``finish`` are called in this order.

    Its rows are the first ones of those that go to the device.

    Attributes:
        layer: whose expert it is.
        session: of the device.
        expert: its number.
        cut: where it is cut.
        places: of its rows.
    """

    layer: Layer
    session: Session
    expert: int
    cut: Cut
    places: I64

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.places)

    @property
    def kind(self) -> tuple[Cut, int]:
        """What the programs that it takes depend on: the cut, and about how many rows there are."""
        return self.cut, (self.rows - 1).bit_length()

    def begin(self, x: F32) -> None:
        """Tells the device to compute its columns of the first products.

        Args:
            x: the rows, ``[rows, width]``.
        """
        self.session.device.x[: self.rows] = x
        self._send(0, FIRST, self.cut.panels[0])

    def exchange(self, x: F32, number: int, cache: SequenceStore, expected_s: float) -> Busy:
        """Computes the others, and tells the device to go on when both are there.

        Args:
            x: as for ``begin``.
            number: of the command for the second product.
            cache: see ``Layer.multiply``.
            expected_s: that the layer is to take.

        Returns:
            what both took.

        Raises:
            DeviceError: the device failed.
        """
        begin = time.monotonic()
        own = self._own(x, FIRST, 0, cache)
        busy = Busy(cpu_s=time.monotonic() - begin)
        answer = self.session.answer(expected_s)
        busy.device_s = answer.ended_s - answer.began_s
        self.session.device.inner[: self.rows, self.cut.columns[0] :] = own
        self._send(number, SECOND, self.cut.panels[1])
        return busy

    def finish(self, cache: SequenceStore) -> F32:
        """Computes those columns of the second product that are not the device's."""
        return self._own(self.session.device.inner[: self.rows], SECOND, 1, cache)

    def _own(self, rows: F32, op: str, product: int, cache: SequenceStore) -> F32:
        panels = self.cut.panels[product], self.cut.all_panels[product]
        experts = np.full(self.rows, self.expert)
        return self.layer.multiply(rows, experts, cache, op, panels)

    def _send(self, number: int, op: str, panels: int) -> None:
        slots = [self.session.slots[self.layer.number, self.expert]] * self.rows
        self.session.device.send(number, 0, slots, Product(op, panels))
