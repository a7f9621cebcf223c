"""A thread that passes the commands of running programs on to a device."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

from edgerun.kernels.jit.service import native_function
from edgerun.kernels.run import commands as words
from edgerun.offload.sharing.device import Answer, Device, DeviceError
from edgerun.offload.sharing.in_program.control import Control

THREAD = "edgerun-commands"
NO_MORE = -1
# For so long the thread looks for the next layer's command before it sleeps, letting others run.
# To be woken takes whoever gives the command 8 us, and 40 where all cores are busy.
SPINNING_S = 1e-3
CLOSING_S = 1.0


class Listener:
    """Waits for commands natively, and has the device obey them one after the other.

    Attributes:
        failure: what went wrong, or "".
    """

    def __init__(self, control: Control, device: Device, answer: Callable[[], Answer]) -> None:
        """Starts the thread.

        Args:
            control: where commands are.
            device: that obeys them; ``start`` was called.
            answer: waits for its next answer.
        """
        self.failure, self._life = "", control.life
        self._control, self._device, self._answer = control, device, answer
        self._pipe = os.pipe()
        block = control.words
        block[words.EAR], block[words.BELL] = self._pipe
        block[words.X], block[words.OUT] = device.x.ctypes.data, device.out.ctypes.data
        block[words.ASLEEP] = 0
        self._last = int(block[words.GIVEN])
        self._thread = threading.Thread(target=self._work, daemon=True, name=THREAD)
        self._thread.start()

    def wake(self) -> None:
        """Lets the thread see that its life has ended; before the device is stopped."""
        os.write(self._pipe[1], b"\0")

    def close(self) -> None:
        """Waits for the thread a little, whose device has been stopped."""
        self._thread.join(CLOSING_S)
        if not self._thread.is_alive():  # else it may still read what would be another's pipe
            self.forget()

    def forget(self) -> None:
        """Closes the pipe; in a forked child the thread is the parent's."""
        for descriptor in self._pipe:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _work(self) -> None:
        next_command = native_function("next-command", 4, result=True)
        given, last, spinning = (self._control.address, self._life), self._last, SPINNING_S * 1e9
        try:
            while (number := next_command(*given, last, int(spinning))) != NO_MORE:
                if number != last:
                    self._obey(number)
                    last = number
        except Exception as error:  # of whoever waits for an answer
            if not self._is_over():
                self.failure = str(error) or type(error).__name__
                self._control.fail()

    def _obey(self, number: int) -> None:
        block = self._control.words
        slots = block[words.SLOTS : words.SLOTS + int(block[words.COUNT])].tolist()
        self._device.send(number, 0, slots)
        answer = self._answer()
        if answer.number != number:
            raise DeviceError(f"it answered command {answer.number}, not {number}")
        if not self._is_over():
            self._control.answer(number, answer.began_s, answer.ended_s)

    def _is_over(self) -> bool:
        return self._control.life != self._life
