"""A board without a board: physical addresses, memory and loading over a simulated overlay."""

from __future__ import annotations

from collections.abc import Callable

from edgerun_hw.overlay.geometry import Geometry
from edgerun_hw.overlay.port import Buffer, DevicePort
from edgerun_hw.overlay.register_map import WINDOW_BYTES
from edgerun_hw.registers.hwh import CONTROL_ADDRESS
from edgerun_hw.simulate.board.bitstream import read_bitstream
from edgerun_hw.simulate.board.processor import ProcessorRegisters

MakePort = Callable[[Geometry], DevicePort]


class SimulatedBoard:
    """Processor registers, and whatever overlay was loaded last.

    Args:
        make_port: makes the simulation of a geometry.
    """

    def __init__(self, make_port: MakePort) -> None:
        self.port: DevicePort | None = None
        self._make_port = make_port
        self._processor = ProcessorRegisters()

    def load(self, bitstream: bytes) -> None:
        """Makes the simulation that a stand-in bitstream names; the one before is gone.

        Raises:
            StandInError: it is no stand-in.
        """
        geometry = read_bitstream(bitstream)
        self.close()
        self.port = self._make_port(geometry)

    def read(self, address: int) -> int:
        """Reads the word at a physical address.

        Raises:
            OSError: nothing is there.
        """
        offset = address - CONTROL_ADDRESS
        if 0 <= offset < WINDOW_BYTES:
            return self.loaded().read(offset)
        return self._processor.read(address)

    def write(self, address: int, value: int) -> None:
        """Writes the word at a physical address.

        Raises:
            OSError: nothing is there.
        """
        offset = address - CONTROL_ADDRESS
        if 0 <= offset < WINDOW_BYTES:
            self.loaded().write(offset, value)
        else:
            self._processor.write(address, value)

    def allocate(self, nbytes: int) -> Buffer:
        """Allocates memory that the overlay can reach."""
        return self.loaded().allocate(nbytes)

    def loaded(self) -> DevicePort:
        """The simulation.

        Raises:
            OSError: no bitstream is loaded.
        """
        if self.port is None:
            raise OSError("no bitstream is loaded")
        return self.port

    def close(self) -> None:
        """Ends the simulation."""
        if self.port is not None:
            self.port.close()
            self.port = None
