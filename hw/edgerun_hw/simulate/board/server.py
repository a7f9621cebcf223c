"""Serves a simulated board to another host, as the image of PYNQ.remote serves a real one.

Stock pynq on the other host (``PYNQ_REMOTE_DEVICES``) connects by gRPC and finds files, registers
and memory. pynq's package has the client and the protocol; its server is a program of the board's
image, so for the simulation this is one. As there, whoever reaches the port has the board: there
is no authentication, so listen only where that is wanted.

Run it with the Python of pynq's environment::

    python -m edgerun_hw.simulate.board.server ADDRESS:PORT [LIBRARY]
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from pynq.remote import (
    buffer_pb2,
    buffer_pb2_grpc,
    mmio_pb2,
    mmio_pb2_grpc,
    remote_device_pb2,
    remote_device_pb2_grpc,
)

from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.geometry import Geometry
from edgerun_hw.overlay.port import Buffer, DevicePort
from edgerun_hw.simulate.board.logic import SimulatedBoard

MAX_FILE_BYTES = 1 << 22
MAX_FILES = 64
MAX_WINDOW_BYTES = 1 << 20
MAX_BUFFER_BYTES = 1 << 27
CHUNK_BYTES = 1 << 21
THREADS = 8
# The logic runs by itself in steps of so many cycles, leaving room for register accesses.
RUN_CYCLES = 4096
PAUSE_S = 0.0002
FIRMWARE = "/lib/firmware/"
MANAGER = "/sys/class/fpga_manager/fpga0/"
FILES = {
    "/proc/version": b"Linux version 6.6.0 (edgerun simulation) aarch64\n",
    "/proc/device-tree/chosen/pynq_board": b"edgerun-simulation\0",
    "/proc/device-tree/compatible": b"xlnx,zynqmp\0",
    MANAGER + "state": b"operating\n",
    MANAGER + "flags": b"0\n",
    MANAGER + "firmware": b"",
}


class Board:
    """What the services share: the board, its files, and the thread in which its logic runs."""

    def __init__(self, make_port: Callable[[Geometry], DevicePort]) -> None:
        self.lock = threading.Lock()
        self.files = dict(FILES)
        self.uploads: list[str] = []
        self.simulated = SimulatedBoard(make_port)
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="programmable logic", daemon=True)
        self._thread.start()

    def write_file(self, path: str, data: bytes) -> None:
        """Keeps a file; the FPGA manager's loads what it names."""
        with self.lock:
            if path not in self.files and len(self.files) >= MAX_FILES:
                raise OSError("the board's disk is full")
            if path.startswith(FIRMWARE):
                self.uploads.append(path)
            if path == MANAGER + "firmware":
                self._load(data.decode(errors="replace").strip())
            self.files[path] = data

    def _load(self, name: str) -> None:
        self.files[MANAGER + "state"] = b"write error\n"
        self.simulated.load(self.files[FIRMWARE + name])
        self.files[MANAGER + "state"] = b"operating\n"

    def write_word(self, address: int, value: int) -> None:
        """Writes a register, and has the logic run until it is idle again."""
        with self.lock:
            self.simulated.write(address, value)
        self._wake.set()

    def close(self) -> None:
        """Ends the simulation."""
        self._closed = True
        self._wake.set()
        self._thread.join()
        self.simulated.close()

    def _run(self) -> None:
        while not self._closed:
            with self.lock:
                busy = self._step()
            if busy:
                time.sleep(PAUSE_S)
            else:
                self._wake.wait()
                self._wake.clear()

    def _step(self) -> bool:
        port = self.simulated.port
        if port is None or regs.STATUS_IDLE.of(port.read(regs.STATUS)):
            return False
        # A real engine does not stop for an interrupt, as `wait` does.
        getattr(port, "step", port.wait)(RUN_CYCLES)
        return True


class FileService(remote_device_pb2_grpc.RemoteDeviceServicer):  # type: ignore[misc]
    """Files of the board."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def existsfile(self, request: Any, context: Any) -> Any:
        """Says whether a file exists."""
        exists = request.file_path in self._board.files
        return remote_device_pb2.ExistsFileResponse(exists=exists)

    def readfile(self, request: Any, context: Any) -> Iterator[Any]:
        """Sends a file."""
        data = self._board.files.get(request.file_path)
        if data is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"there is no {request.file_path}")
        yield remote_device_pb2.ReadFileResponse(data=data)

    def writefile(self, requests: Iterator[Any], context: Any) -> Any:
        """Takes a file in pieces."""
        path, data = "", bytearray()
        for request in requests:
            path = request.file_path
            data += request.data
            if len(data) > MAX_FILE_BYTES:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the file is too large")
        try:
            self._board.write_file(path, bytes(data))
        except (OSError, ValueError, KeyError) as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{path}: {error}")
        return remote_device_pb2.WriteFileResponse()

    def set_bitstream_attrs(self, request: Any, context: Any) -> Any:
        """Takes note of nothing: only whole bitstreams can be loaded."""
        return remote_device_pb2.SetBitstreamAttrsResponse(status=not request.partial)


class RegisterService(mmio_pb2_grpc.MmioServicer):  # type: ignore[misc]
    """Physical addresses of the board."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._windows: list[range] = []

    def get_mmio(self, request: Any, context: Any) -> Any:
        """Opens a window of physical addresses."""
        if not 4 <= request.length <= MAX_WINDOW_BYTES or request.base_addr % 4:
            return mmio_pb2.GetMmioResponse(msg=f"no window has {request.length} bytes")
        window = range(request.base_addr, request.base_addr + request.length)
        if window not in self._windows:
            self._windows.append(window)
        return mmio_pb2.GetMmioResponse(status=True, mmio_id=str(self._windows.index(window)))

    def read(self, request: Any, context: Any) -> Any:
        """Reads 1, 2, 4 or 8 bytes."""
        try:
            addresses = self._addresses(request, max(request.length, 4))
            with self._board.lock:
                words = [self._board.simulated.read(address) for address in addresses]
        except (OSError, ValueError) as error:
            return mmio_pb2.ReadResponse(msg=str(error))
        value = sum(word << 32 * i for i, word in enumerate(words))
        return mmio_pb2.ReadResponse(status=True, data=value & ((1 << 8 * request.length) - 1))

    def write(self, request: Any, context: Any) -> Any:
        """Writes whole words."""
        try:
            addresses = self._addresses(request, len(request.data))
            for address, word in zip(addresses, np.frombuffer(request.data, "<u4"), strict=True):
                self._board.write_word(address, int(word))
        except (OSError, ValueError) as error:
            return mmio_pb2.WriteResponse(msg=str(error))
        return mmio_pb2.WriteResponse(status=True)

    def _addresses(self, request: Any, nbytes: int) -> range:
        is_open = request.mmio_id.isdigit() and int(request.mmio_id) < len(self._windows)
        window = self._windows[int(request.mmio_id)] if is_open else range(0)
        inside = request.offset % 4 == 0 and request.offset + nbytes <= len(window)
        if not inside or nbytes % 4:
            raise ValueError(
                f"{nbytes} bytes at offset {request.offset:#x} are no part of a window"
            )
        start = window.start + request.offset
        return range(start, start + nbytes, 4)


class MemoryService(buffer_pb2_grpc.RemoteBufferServicer):  # type: ignore[misc]
    """Memory of the board that its logic can reach."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._buffers: dict[str, Buffer] = {}
        self._next = 0

    def allocate(self, request: Any, context: Any) -> Any:
        """Allocates memory."""
        if request.size > MAX_BUFFER_BYTES:
            return buffer_pb2.AllocateResponse(msg=f"no buffer has {request.size} bytes")
        with self._board.lock:
            try:
                buffer = self._board.simulated.allocate(request.size)
            except (MemoryError, OSError, ValueError) as error:
                return buffer_pb2.AllocateResponse(msg=str(error))
            self._next += 1
            self._buffers[str(self._next)] = buffer
            return buffer_pb2.AllocateResponse(buffer_id=str(self._next))

    def write(self, requests: Iterator[Any], context: Any) -> Any:
        """Fills a buffer from its start."""
        at = 0
        for request in requests:
            buffer = self._buffers.get(request.buffer_id)
            if buffer is None or at + len(request.data) > buffer.array.size:
                return buffer_pb2.BufferWriteResponse(msg="no such buffer, or too much for it")
            with self._board.lock:
                buffer.array[at : at + len(request.data)] = np.frombuffer(request.data, np.uint8)
            at += len(request.data)
        return buffer_pb2.BufferWriteResponse()

    def read(self, request: Any, context: Any) -> Iterator[Any]:
        """Sends a buffer's contents."""
        buffer = self._buffers.get(request.buffer_id)
        if buffer is None:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such buffer")
            return
        for at in range(0, buffer.array.size, CHUNK_BYTES):
            data = buffer.array[at : at + CHUNK_BYTES].tobytes()
            yield buffer_pb2.BufferReadResponse(data=data)

    def freebuffer(self, request: Any, context: Any) -> Any:
        """Frees a buffer."""
        buffer = self._buffers.pop(request.buffer_id, None)
        if buffer is None:
            return buffer_pb2.FreeBufferResponse(msg="no such buffer")
        with self._board.lock:
            buffer.free()
        return buffer_pb2.FreeBufferResponse()

    def flush(self, request: Any, context: Any) -> Any:
        """Makes the processor's writes visible to the logic."""
        return self._with(request, buffer_pb2.FlushResponse, lambda buffer: buffer.flush())

    def invalidate(self, request: Any, context: Any) -> Any:
        """Makes the logic's writes visible to the processor."""
        return self._with(
            request, buffer_pb2.InvalidateResponse, lambda buffer: buffer.invalidate()
        )

    def physical_address(self, request: Any, context: Any) -> Any:
        """Says where a buffer is."""
        buffer = self._buffers.get(request.buffer_id)
        if buffer is None:
            return buffer_pb2.AddressResponse(msg="no such buffer")
        return buffer_pb2.AddressResponse(address=buffer.address)

    virtual_address = physical_address

    def cacheable(self, request: Any, context: Any) -> Any:
        """Says that it must be flushed and invalidated."""
        return buffer_pb2.CacheableResponse(cacheable=True)

    def _with(self, request: Any, response: Any, action: Callable[[Buffer], None]) -> Any:
        buffer = self._buffers.get(request.buffer_id)
        if buffer is None:
            return response(msg="no such buffer")
        with self._board.lock:
            action(buffer)
        return response()


def serve(address: str, board: Board) -> grpc.Server:
    """Starts serving at ``host:port``; returns the running server.

    Raises:
        OSError: the port cannot be had.
    """
    server = grpc.server(ThreadPoolExecutor(THREADS))
    remote_device_pb2_grpc.add_RemoteDeviceServicer_to_server(FileService(board), server)
    mmio_pb2_grpc.add_MmioServicer_to_server(RegisterService(board), server)
    buffer_pb2_grpc.add_RemoteBufferServicer_to_server(MemoryService(board), server)
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"cannot listen at {address}: {error}") from error
    if not bound:
        raise OSError(f"cannot listen at {address}")
    server.start()
    return server


def main(arguments: Sequence[str]) -> int:
    """Serves until it is told to end; returns the exit status."""
    if len(arguments) not in (1, 2):
        sys.stderr.write(
            "usage: python -m edgerun_hw.simulate.board.server ADDRESS:PORT [LIBRARY]\n"
        )
        return 2
    address, library = arguments[0], Path(arguments[1]) if len(arguments) > 1 else None

    def make_port(geometry: Geometry) -> DevicePort:
        if library is None:
            from edgerun_hw.simulate.fake import FakeDevice

            return FakeDevice(geometry)
        from edgerun_hw.simulate import Simulator

        return Simulator(geometry, memory=None, library=library)

    server = serve(address, Board(make_port))
    sys.stderr.write(f"serving a simulated board at {address}, to whoever asks\n")
    server.wait_for_termination()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
