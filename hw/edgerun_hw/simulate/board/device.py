"""A ``pynq.Device`` without a board: registers and memory come from a simulation.

Stock pynq runs on top, unchanged: ``Overlay`` with the .hwh, binding by VLNV, ``register_map``,
``allocate``, ``Clocks``. Only what a board's kernel does is replaced here: access to physical
addresses, memory in one piece, and loading.
"""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pynq.buffer
from pynq import Device
from pynq.buffer import PynqBuffer
from pynqmetadata.frontends import Metadata
from pynqmetadata.views.runtime import RuntimeMetadataParser

from edgerun_hw.overlay.geometry import Geometry
from edgerun_hw.overlay.port import Buffer, DevicePort
from edgerun_hw.simulate.board.bitstream import bitstream_name, write_bitstream
from edgerun_hw.simulate.board.logic import MakePort, SimulatedBoard

HARDWARE_DESCRIPTION = Path(__file__).with_name("tlmm.hwh")


# With these pynq frees memory; it has them on boards only. NumPy's memory is not unmapped here.
pynq.buffer.ctypes = ctypes
pynq.buffer.libc = SimpleNamespace(munmap=lambda address, nbytes: 0)


class _BufferObject:
    """In place of ``pyxrt.bo``: memory goes back when the last that refers to it lets go."""

    def __init__(self, memory: Buffer) -> None:
        self.memory = memory

    def __del__(self) -> None:
        self.memory.free()


class SimulatedDevice(Device):  # type: ignore[misc]  # pynq has no types
    """A board whose programmable logic is a simulation.

    Until a bitstream is loaded there is nothing at the overlay's address. What is loaded is a
    stand-in (``prepare``) that names a geometry.

    Args:
        make_port: makes the simulation of a geometry.
        name: tells several devices apart.
    """

    def __init__(self, make_port: MakePort, name: str = "edgerun-simulation") -> None:
        super().__init__(name)
        self.name = name
        # What pynq asks for to choose the clock registers of a Zynq UltraScale+.
        self.arch = "aarch64"
        self.capabilities = {"REGISTER_RW": True}
        self._board = SimulatedBoard(make_port)

    # What pynq asks of a device.

    def read_registers(self, address: int, length: int) -> bytes:
        """Reads ``length`` bytes of registers at a physical address."""
        words = [self._board.read(address + at) for at in range(0, length, 4)]
        return np.array(words, "<u4").tobytes()[:length]

    def write_registers(self, address: int, data: bytes) -> None:
        """Writes registers at a physical address, in whole words."""
        for at, word in enumerate(np.frombuffer(bytes(data), "<u4")):
            self._board.write(address + 4 * at, int(word))

    def allocate(self, shape: Any, dtype: Any, **_: Any) -> PynqBuffer:
        """Allocates memory that the simulation can reach."""
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape)) * dtype.itemsize
        memory = self._board.allocate(nbytes)
        buffer = PynqBuffer(
            shape,
            dtype,
            buffer=memory.array,
            device=self,
            device_address=memory.address,
            bo=_BufferObject(memory),
        )
        # As XRT's memories do (``XrtMemory.allocate``): pynq frees what has this and no pointer.
        buffer.memory = self
        return buffer

    def flush(self, bo: _BufferObject, offset: int, address: int, nbytes: int) -> None:
        """Makes what the processor wrote visible to the overlay."""
        bo.memory.flush()

    def invalidate(self, bo: _BufferObject, offset: int, address: int, nbytes: int) -> None:
        """Makes what the overlay wrote visible to the processor."""
        bo.memory.invalidate()

    def get_bitfile_metadata(self, bitfile_name: str, partial: bool = False) -> Any:
        """Reads the .hwh beside the bitstream with pynq's own parser."""
        return RuntimeMetadataParser(Metadata(str(Path(bitfile_name).with_suffix(".hwh"))))

    def download(self, bitstream: Any, parser: Any = None) -> None:
        """Makes the simulation that the stand-in names; the one before is gone."""
        self._board.load(Path(bitstream.bitfile_name).read_bytes())
        self.post_download(bitstream, parser, self.name)

    # What only a simulation has.

    def preload(self, geometry: Geometry) -> None:
        """Loads a geometry as somebody else would: pynq knows nothing of it."""
        self._board.load(write_bitstream(geometry))

    @property
    def port(self) -> DevicePort:
        """The simulation."""
        return self._board.loaded()

    def run(self, cycles: int) -> None:
        """Lets time pass in the programmable logic."""
        self.port.wait(cycles)

    def close(self) -> None:
        """Ends the simulation."""
        self._board.close()


def prepare(geometry: Geometry, folder: Path) -> Path:
    """Writes a stand-in bitstream for ``geometry`` and its .hwh; returns the bitstream's path.

    The name carries the digest of the contents: PYNQ.remote does not upload a file whose name the
    board has already.
    """
    data = write_bitstream(geometry)
    path = folder / bitstream_name(data)
    path.write_bytes(data)
    shutil.copyfile(HARDWARE_DESCRIPTION, path.with_suffix(".hwh"))
    return path
