"""Checks that run inside an environment with pynq; `test_pynq.py` starts them one by one.

    python pynq_checks.py NAME [LIBRARY]

LIBRARY is a compiled simulator of the preset `tiny`; without it the overlay is software.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import warnings
from collections import deque
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "hw")]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # pynq says that this processor is not a board's
    import pynq

from edgerun_hw.board_side.pynq_driver import TlmmIP, find_overlay_ip, load_overlay  # noqa: E402
from edgerun_hw.overlay import register_map as regs  # noqa: E402
from edgerun_hw.overlay.driver import Tlmm  # noqa: E402
from edgerun_hw.overlay.errors import CommandError, WrongOverlayError  # noqa: E402
from edgerun_hw.overlay.geometry import PRESETS  # noqa: E402
from edgerun_hw.simulate.board.bitstream import read_bitstream  # noqa: E402
from edgerun_hw.simulate.board.device import SimulatedDevice, prepare  # noqa: E402
from edgerun_hw.simulate.fake import FakeDevice, Faults  # noqa: E402
from tests.hw.support.problems import random_problem  # noqa: E402

LIBRARY = sys.argv[2] if len(sys.argv) > 2 else ""


def _make_port(geometry):
    if not LIBRARY:
        return FakeDevice(geometry)
    from edgerun_hw.simulate import Simulator

    return Simulator(geometry, memory=None, library=Path(LIBRARY))


def _overlay(folder: str, make_port=_make_port, **options):
    device = SimulatedDevice(make_port)
    bitfile = prepare(PRESETS["tiny"], Path(folder))
    return device, pynq.Overlay(str(bitfile), device=device, **options)


def binds_by_vlnv(folder):
    device, overlay = _overlay(folder)
    assert overlay.is_loaded()
    assert overlay.ip_dict["tlmm"]["type"] == regs.VLNV
    assert overlay.ip_dict["tlmm"]["phys_addr"] == 0xA000_0000
    assert type(overlay.tlmm) is TlmmIP
    assert find_overlay_ip(overlay) is overlay.tlmm
    device.close()


def register_map_has_every_register(folder):
    device, overlay = _overlay(folder)
    registers = overlay.tlmm.register_map
    assert int(registers.ID) == regs.ID_VALUE
    assert registers.GEOMETRY.PORTS == 1
    assert registers.GEOMETRY.QUEUE_DEPTH == 8
    assert registers.LIMITS.MAX_ROW_BEATS == 64
    assert registers.STATUS.IDLE == 1
    registers.CMD_X_HI = 5
    assert overlay.tlmm.read(regs.CMD_X + 4) == 5
    registers.CONTROL.IRQ_ENABLE = 1
    assert overlay.tlmm.read(regs.CONTROL) == 2
    for name, offset in regs.OFFSETS.items():
        assert overlay.ip_dict["tlmm"]["registers"][name]["address_offset"] == offset
    device.close()


def clocks_are_set_from_the_description(folder):
    device, overlay = _overlay(folder)
    assert abs(pynq.Clocks.fclk0_mhz - 249.9975) < 1e-3
    pynq.Clocks.fclk0_mhz = 300
    assert abs(pynq.Clocks.fclk0_mhz - 299.997) < 1e-3
    assert abs(find_overlay_ip(overlay).clock_hz - 299.997e6) < 1e3
    device.close()


def allocate_gives_device_memory(folder):
    device, _ = _overlay(folder, FakeDevice)
    buffer = pynq.allocate((4, 5), "i4", target=device)
    assert device.port.allocated_bytes == 4096
    assert not hasattr(buffer, "pointer")  # nor has a board's: pynq frees another way then
    buffer[:] = np.arange(20).reshape(4, 5)
    buffer.flush()
    at = buffer.device_address - 0x2_4000_0000
    assert device.port.memory[at : at + 80].view("i4").tolist() == list(range(20))
    row = buffer[2:]
    assert row.device_address == buffer.device_address + 40
    buffer[:] = 0
    row.invalidate()
    assert buffer[3, 4] == 19
    del buffer, row
    gc.collect()
    assert device.port.allocated_bytes == 0


def freed_memory_is_given_back_once(folder):
    device, overlay = _overlay(folder, FakeDevice)
    memory = overlay.tlmm.allocate(5000)
    assert (memory.array.size, device.port.allocated_bytes) == (5000, 8192)
    memory.free()
    memory.free()
    assert device.port.allocated_bytes == 0
    try:
        memory.array[0] = 1
    except ValueError as error:
        assert "freed" in str(error)
    else:
        raise AssertionError("no error")


def commands_give_the_right_answer(folder):
    bitfile = prepare(PRESETS["tiny"], Path(folder))
    device = SimulatedDevice(_make_port)
    overlay = load_overlay(str(bitfile), device=device)
    problems = [random_problem(overlay, seed) for seed in range(12)]
    overlay.wait(overlay.submit_all([command for command, _ in problems]))
    assert all(right() for _, right in problems)
    assert overlay.counters().lookups == sum(c.tiles * c.row_beats for c, _ in problems)
    overlay.close()
    device.close()


def a_large_matrix_is_bit_exact(folder):
    bitfile = prepare(PRESETS["tiny"], Path(folder))
    device = SimulatedDevice(_make_port)
    overlay = load_overlay(str(bitfile), device=device)
    for seed in range(4):
        command, right = random_problem(overlay, seed, size=320)
        overlay.wait(overlay.submit(command))
        assert right()
    device.close()


def failed_overlay_is_typed(folder):
    faults = Faults(errors={1: regs.ERROR_READ_RESPONSE})
    _, overlay = _overlay(folder, lambda geometry: FakeDevice(geometry, faults=faults))
    tlmm = Tlmm(overlay.tlmm)
    command, right = random_problem(tlmm)
    try:
        tlmm.wait(tlmm.submit_all([command] * 3))
    except CommandError as error:
        assert error.flags == ("read_response",)
    else:
        raise AssertionError("no error")
    tlmm.reset()
    tlmm.wait(tlmm.submit(command))
    assert right()


def closing_calls_back(folder):
    bitfile, closed = prepare(PRESETS["tiny"], Path(folder)), []
    device = SimulatedDevice(FakeDevice)
    overlay = load_overlay(str(bitfile), device=device, on_close=lambda: closed.append(True))
    assert closed == []
    overlay.close()
    assert closed == [True]
    device.close()


def overlay_without_the_ip_is_refused(folder):
    bitfile = prepare(PRESETS["tiny"], Path(folder))
    description = bitfile.with_suffix(".hwh")
    description.write_text(description.read_text().replace("edgerun:ip:tlmm", "acme:ip:abacus"))
    overlay = pynq.Overlay(str(bitfile), device=SimulatedDevice(FakeDevice))
    try:
        find_overlay_ip(overlay)
    except WrongOverlayError as error:
        assert "has no IP of type edgerun:ip:tlmm:1.0" in str(error)
    else:
        raise AssertionError("no error")


def nothing_answers_before_loading_or_elsewhere(folder):
    device, _ = _overlay(folder, download=False)
    for use in (
        lambda: device.read_registers(0xA000_0000, 4),
        lambda: device.allocate((4,), "u1"),
        lambda: device.read_registers(0xB000_0000, 4),
    ):
        try:
            use()
        except (RuntimeError, OSError):
            continue
        raise AssertionError("no error")


def exact_bus_transactions(folder):
    """What reaches the bus: addresses and bytes, as PYNQ's own tests of drivers check them."""

    class Recorded(pynq.Device):
        def __init__(self):
            super().__init__("recorded")
            self.capabilities = {"REGISTER_RW": True}
            self.reads = deque()
            self.writes = deque()

        def read_registers(self, address, length):
            expected, data = self.reads.popleft()
            assert (expected, len(data)) == (address, length)
            return data

        def write_registers(self, address, data):
            assert self.writes.popleft() == (address, bytes(data))

    device = Recorded()
    description = {
        "phys_addr": 0xA000_0000,
        "addr_range": 4096,
        "device": device,
        "fullpath": "tlmm",
    }
    ip = TlmmIP(description)
    device.reads.append((0xA000_0014, b"\x01\x02\x00\x00"))
    assert ip.read(regs.STATUS) == 0x201
    device.writes.append((0xA000_0058, b"\xef\xbe\xad\xde"))
    ip.write(regs.CMD_X + 4, 0xDEAD_BEEF)
    assert not device.reads and not device.writes


def pynq_understands_the_stand_in(folder):
    from pynq.pl_server.embedded_device import bit2bin, parse_bit_header

    data = prepare(PRESETS["prefill-1500"], Path(folder)).read_bytes()
    header = parse_bit_header(data)
    assert header["part"] == "simulation"
    assert read_bitstream(data) == read_bitstream(bit2bin(data)) == PRESETS["prefill-1500"]


if __name__ == "__main__":
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory() as temporary:
        globals()[sys.argv[1]](temporary)
