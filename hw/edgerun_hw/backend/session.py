"""One overlay, shared by all programs of a model: opened once, reset once, given up for good.

A failure is any of ``DEVICE_ERRORS``: an error flag, no progress, a wrong identity, results that do
not add up, a worker that died. The first one is answered by a soft reset and the work is done
again; after the second nothing is sent to the device any more, one line says so, and the programs
run elsewhere. Work that was cut off, as by Ctrl-C, is no failure: its commands are dropped.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import BackendError
from edgerun.formats import format_named
from edgerun.formats.base import PackedWeight
from edgerun_hw.backend.kv_copy import KvCopy
from edgerun_hw.backend.matrix import DeviceMatrix, integers_of, stack
from edgerun_hw.backend.native.sequence_copy import SequenceCopy
from edgerun_hw.backend.products import Multiplier, Product, WrongResultError, quantise_activations
from edgerun_hw.backend.scratch import Scratch
from edgerun_hw.backend.screen import Screen, make_screen
from edgerun_hw.devices.native.port import NativePort
from edgerun_hw.devices.registry import Device
from edgerun_hw.overlay.command import Capabilities
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.errors import OverlayError
from edgerun_hw.overlay.port import Counters, Overlay

logger = logging.getLogger(__name__)
T = TypeVar("T")

MAX_RESETS = 1
# A device may also fail below its driver: a simulator's control port, a device file.
DEVICE_ERRORS = (OverlayError, BackendError, OSError)
TESTS = (("ternary", 7, 32), ("int8", 11, 16))  # weight format, rows, activations


class Session:
    """The device while a model is loaded.

    Attributes:
        device: what was asked for.
        failure: why it is not used any more, or "".
        resets: how often it was reset after a failure.
        multiplier: runs products; for use inside ``attempt`` only.
        screened: int64 ``[2]``, token rows whose output head was screened, and rows of it that were
            multiplied exactly for them.
        copies: of keys and values on the device, by layer and slot.
        sequence_copies: the same for native programs, of all of a program's layers by slot.
    """

    def __init__(self, device: Device) -> None:
        """Opens the device and multiplies two small matrices; a failure is remembered, not raised.

        Raises:
            InputError: the device's argument is unusable.
            BackendError: what the device needs before it can be opened cannot be made.
        """
        device.prepare()
        self.device = device
        self.failure = ""
        self.resets = 0
        self.copies: dict[tuple[str, int], KvCopy] = {}
        self.sequence_copies: dict[tuple[tuple[str, ...], int], SequenceCopy] = {}
        self._overlay: Overlay | None = None
        self._multiplier: Multiplier | None = None
        self._scratch: Scratch | None = None
        self._matrices: dict[tuple[int, ...], tuple[list[PackedWeight], DeviceMatrix]] = {}
        self._screens: dict[int, tuple[Screen, DeviceMatrix]] = {}
        self.screened: NDArray[np.int64] = np.zeros(2, np.int64)
        self._users = 0
        self._counted: Counters | None = None
        self._commands = self._round_trips = 0
        self._full = self._unscreened = False
        self._cut_off = False  # work has begun and not come to its end
        self._open()

    @property
    def capabilities(self) -> Capabilities | None:
        """What the overlay can do; None if it never said."""
        return self._capabilities

    @property
    def overlay(self) -> Overlay:
        """The device; only where ``attempt`` calls."""
        assert self._overlay is not None
        return self._overlay

    @property
    def multiplier(self) -> Multiplier:
        """Runs products; only where ``attempt`` calls."""
        assert self._multiplier is not None
        return self._multiplier

    @property
    def scratch(self) -> Scratch:
        """Memory for what layers other than ``multiplier``'s send; only where ``attempt`` calls."""
        assert self._scratch is not None
        return self._scratch

    @property
    def native(self) -> tuple[Tlmm, NativePort] | None:
        """Driver and port, where native code can reach registers and memory; None elsewhere."""
        driver = self._overlay
        if isinstance(driver, Tlmm) and isinstance(driver.port, NativePort):
            return driver, driver.port
        return None

    @property
    def commands(self) -> int:
        """Commands submitted so far."""
        return self._commands + (self._multiplier.commands if self._multiplier else 0)

    @property
    def round_trips(self) -> int:
        """How often the host has handed work to the device and waited for the results."""
        return self._round_trips + (self._multiplier.round_trips if self._multiplier else 0)

    def count(self, commands: int) -> None:
        """Counts a round trip that was none of ``multiplier``, and its commands."""
        self._commands += commands
        self._round_trips += 1

    def attempt(self, work: Callable[[], T]) -> T | None:
        """Returns what ``work`` returns; None if the device failed for good, now or before."""
        while self._overlay is not None:
            try:
                if self._cut_off:  # its commands write to buffers that the next work may free
                    self.overlay.reset()
                    self._counted = self.overlay.counters()
                self._cut_off = True
                result = work()
                self._cut_off = False
                return result
            except DEVICE_ERRORS as error:
                self._recover(error)
                self._cut_off = False
        return None

    def matrix(self, weights: Sequence[PackedWeight], by_block: bool) -> DeviceMatrix | None:
        """Weights on the device, as one matrix of all their rows.

        None if the device failed or has no room for them.

        Args:
            weights: with what must be alike in common, see ``stack_key``.
            by_block: their activations have a scale for each block.
        """
        key = by_block, *(id(weight) for weight in weights)
        if key not in self._matrices:
            try:
                matrix = self.attempt(
                    lambda: DeviceMatrix(stack(weights), self.overlay, by_block=by_block)
                )
            except MemoryError:
                self.say_full()
                return None
            if matrix is None:
                return None
            self._matrices[key] = list(weights), matrix
        return self._matrices[key][1]

    def screen(self, weight: PackedWeight) -> tuple[Screen, DeviceMatrix] | None:
        """A screen of a head, and its matrix on the device.

        None if the device failed or has no room for it: the head is then multiplied whole.
        """
        if id(weight) not in self._screens:
            screen = make_screen(weight)
            try:
                matrix = self.attempt(
                    lambda: DeviceMatrix(screen.weight, self.overlay, largest=screen.levels)
                )
            except MemoryError:
                self._say_unscreened()
                return None
            if matrix is None:
                return None
            self._screens[id(weight)] = screen, matrix
        return self._screens[id(weight)]

    def _say_unscreened(self) -> None:
        """Says once that there is no room for the screen of an output head."""
        if self._unscreened:
            return
        self._unscreened = True
        logger.warning(
            "the memory of the FPGA device '%s' has no room for the output head's screen: greedy "
            "tokens take longer; `edgerun fpga doctor --model BUNDLE` says how much a board needs",
            self.device.name,
        )

    def forget_copies(self, sequences: NDArray[np.int32]) -> bool:
        """Gives the memory back that holds keys and values of other sequences.

        Whoever reads them next copies them again. False if there was nothing to give back.
        """
        copies: list[tuple[int, KvCopy | SequenceCopy]] = [
            *((slot, copy) for (_, slot), copy in self.copies.items()),
            *((slot, copy) for (_, slot), copy in self.sequence_copies.items()),
        ]
        others = [copy for slot, copy in copies if copy.capacity and slot not in sequences]
        for copy in others:
            copy.free()
        return bool(others)

    def say_full(self) -> None:
        """Says once that the device has no room for more weights, or for activations."""
        if self._full:
            return
        self._full = True
        placed = sum(matrix.nbytes for _, matrix in self._matrices.values())
        logger.warning(
            "the memory of the FPGA device '%s' is full after %.1f MB of weights; the CPU runs "
            "what does not fit; `edgerun fpga doctor --model BUNDLE` says how much a board needs",
            self.device.name,
            placed / 1e6,
        )

    def spent(self) -> tuple[Counters, Counters]:
        """The device's counters at the last call, or at the start, and now.

        Raises:
            OverlayError: the device failed.
        """
        now = self.overlay.counters()
        before, self._counted = self._counted or now, now
        return before, now

    def acquire(self) -> None:
        """Counts a program that uses the session."""
        self._users += 1

    def release(self) -> None:
        """The last program to release it closes the device."""
        self._users -= 1
        if self._users <= 0:
            self.close()

    def close(self) -> None:
        """Gives the device back; calling it twice is allowed."""
        self._commands, self._round_trips = self.commands, self.round_trips
        overlay, self._overlay = self._overlay, None
        multiplier, self._multiplier = self._multiplier, None
        scratch, self._scratch = self._scratch, None
        placed = [*self._matrices.values(), *self._screens.values()]
        matrices = [matrix for _, matrix in placed]
        self._matrices.clear()
        self._screens.clear()
        copies: list[KvCopy | SequenceCopy] = [
            *self.copies.values(),
            *self.sequence_copies.values(),
        ]
        self.copies, self.sequence_copies = {}, {}
        if overlay is None:
            return
        try:
            overlay.close()
            for matrix in matrices:
                matrix.free()  # programs hold on to them
            for copy in copies:
                copy.free()
            for shared in (multiplier, scratch):
                if shared is not None:
                    shared.free()
        except DEVICE_ERRORS as error:
            logger.debug("closing the device failed: %s", error)

    def _open(self) -> None:
        self._capabilities: Capabilities | None = None
        while self._overlay is None and not self.failure:
            try:
                self._overlay = self.device.open()
                self._capabilities = self._overlay.capabilities
                self._multiplier = Multiplier(self._overlay)
                self._scratch = Scratch(self._overlay)
                self._test()
            except DEVICE_ERRORS as error:
                self._recover(error)

    def _recover(self, error: Exception) -> None:
        """Resets the device, or gives it up when that has been tried."""
        if self.resets >= MAX_RESETS:
            self._give_up(error)
            return
        self.resets += 1
        logger.info("the FPGA device '%s' is reset: %s", self.device.name, error)
        if self._overlay is None:
            return  # it did not open; that is tried again
        try:
            self._overlay.reset()
            self._test()
        except DEVICE_ERRORS as second:
            self._give_up(second)

    def _give_up(self, error: Exception) -> None:
        was_open = self._capabilities is not None
        what = "failed and a reset did not help" if was_open else "cannot be opened"
        logger.warning(
            "the FPGA device '%s' %s, so the CPU takes over: %s", self.device.name, what, error
        )
        self.failure = str(error)
        self.close()

    def _test(self) -> None:
        """Multiplies two small matrices of known result, if the device has room for them.

        Raises:
            OverlayError: the device failed, or is wrong.
        """
        with contextlib.suppress(MemoryError):  # results are looked at later, too
            self._multiply_known()
        self._counted = self.overlay.counters()

    def _multiply_known(self) -> None:
        rng = np.random.default_rng(0)
        for name, rows, k in TESTS:
            if name != "ternary" and not self.overlay.capabilities.multiples:
                continue
            values = rng.standard_normal((rows + 1, k)).astype(np.float32)
            weight = format_named(name).pack(values[1:], k)
            matrix = DeviceMatrix(weight, self.overlay)
            product = Product(matrix, quantise_activations(values[:1], "int8_row", k))
            try:
                self.multiplier.multiply([product])
            finally:
                matrix.free()
            sums = product.x.codes.astype(np.int32) @ integers_of(weight, 0, rows).T.astype(
                np.int32
            )
            expected = sums.astype(np.float32) * product.x.scales * weight.scales[:, 0]
            if not np.array_equal(product.out, expected):
                raise WrongResultError("the device multiplies a small matrix wrongly")


__all__ = ["Session"]
