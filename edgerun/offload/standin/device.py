"""The stand-in as a device: a process, and the link to it."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from edgerun.backends.cpu.experts.layout import SlotLayout
from edgerun.kernels.host.memory import available_memory
from edgerun.offload.sharing.device import (
    ALL,
    MAX_SLOTS,
    U8,
    Answer,
    Device,
    DeviceError,
    DeviceSizes,
    Product,
)
from edgerun.offload.standin.link import Link, Upload
from edgerun.offload.standin.memory import make_memory, slot_of, transfers_of
from edgerun.offload.standin.process import CHILD, Command, Setup
from edgerun.offload.standin.spec import StandinSpec
from edgerun.values import shown

START_S = 120.0  # kernels may have to be compiled


class StandinDevice(Device):
    """See ``Device``."""

    title = "the stand-in"

    def __init__(
        self,
        spec: StandinSpec,
        slots: int,
        layout: SlotLayout,
        widths: tuple[int, int],
        rows: int,
        attributes: Mapping[str, Any],
    ) -> None:
        """Cuts its memory into slots.

        Args:
            spec: what was asked for.
            slots: for experts.
            layout: of a slot.
            widths: of a row, and of one between the products.
            rows: that go to the device in one command.
            attributes: of the layers.

        Raises:
            DeviceError: this machine has not so much memory.
        """
        self.sizes = DeviceSizes(layout.nbytes, slots, rows, *widths)
        free = available_memory()
        if self.sizes.nbytes > free:
            raise DeviceError(
                f"the stand-in would take {self.sizes.nbytes / 1e9:.1f} GB of this machine's "
                f"memory, of which {free / 1e9:.1f} are free: give it memory={free >> 21}M or less"
            )
        self._spec, self._layout, self._attributes = spec, layout, attributes
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Link | None = None
        self._uploaded_bytes = 0

    @property
    def uploaded_bytes(self) -> int:
        return self._uploaded_bytes + (self._link.nbytes if self._link else 0)

    def start(self) -> None:
        descriptor, self._memory = make_memory(self.sizes.nbytes)
        self.x, self.inner, self.out = transfers_of(self.sizes, self._memory)
        self._sending, self._buffer = threading.Lock(), b""
        command = [sys.executable, "-c", CHILD, str(descriptor), *sys.path]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[descriptor],
                start_new_session=True,  # Ctrl-C is ours to answer
            )
        finally:
            os.close(descriptor)
        self._link = Link(self._spec.link_bytes_s, self._spec.latency_s)
        self._write(Setup(self.sizes, pickle.dumps(self._layout), self._attributes))
        self.answer(START_S)

    def upload(self, slot: int, source: U8, then: Callable[[float], None]) -> None:
        assert self._link is not None
        self._link.start(Upload(source, slot_of(self.sizes, self._memory, slot), then))

    def send(self, number: int, first: int, slots: Sequence[int], product: Product = ALL) -> None:
        self._write(Command(number, first, tuple(slots), product))

    def answer(self, patience_s: float) -> Answer:
        line = self._line(time.monotonic() + patience_s, patience_s)
        try:
            answer = msgspec.json.decode(line, type=Answer)
        except msgspec.MsgspecError as error:
            raise DeviceError(f"it answered {shown(line.decode(errors='replace'))}") from error
        if answer.fault:
            raise DeviceError(answer.fault)
        return answer

    def stop(self) -> None:
        process, self._process = self._process, None
        if self._link is not None:
            self._uploaded_bytes += self._link.nbytes
            self._link.close()
            self._link = None
        if process is not None:
            process.kill()
            process.wait()
            _close_pipes(process)

    def forget(self) -> None:
        process, self._process, self._link = self._process, None, None  # its thread is not here
        if process is not None:
            process.returncode = 0  # nobody here is to wait for it
            _close_pipes(process)

    def _write(self, message: Setup | Command) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return  # an upload ended while the process did
        with self._sending, contextlib.suppress(BrokenPipeError, ValueError):
            # Who waits for the answer sees that the process has ended.
            process.stdin.write(msgspec.json.encode(message) + b"\n")
            process.stdin.flush()

    def _line(self, end: float, patience_s: float) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        output, ready = self._process.stdout.fileno(), select.poll()
        ready.register(output, select.POLLIN)  # however many files are open
        while b"\n" not in self._buffer:
            if not ready.poll(max(0.0, 1e3 * (end - time.monotonic()))):
                raise DeviceError(f"it did not answer within {patience_s:g} s")
            read = os.read(output, 1 << 16)
            if not read:
                raise DeviceError(f"its process ended with code {self._process.wait(10)}")
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def slots_of(spec: StandinSpec, slot_bytes: int) -> int:
    """How many slots a stand-in has room for.

    Raises:
        DeviceError: there is no room for one.
    """
    count = min(spec.memory_bytes // slot_bytes, MAX_SLOTS)
    if count < 1:
        raise DeviceError(
            f"the stand-in has {spec.memory_bytes / 1e6:.3f} MB of memory and an expert takes "
            f"{slot_bytes / 1e6:.3f}: give it memory={-(-slot_bytes // 1024)}K or more"
        )
    return count


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(OSError):
            pipe.close()
