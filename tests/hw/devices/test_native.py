"""The native host: registers through device files, memory in one piece, and what it refuses."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgerun.errors import InputError
from edgerun.llm.llm import load
from edgerun_hw.board_side import lock
from edgerun_hw.deploy.emulate.sample import base_of
from edgerun_hw.devices import deployed
from edgerun_hw.devices.native.kernel import LinuxKernel, MappedWindow, find_uio
from edgerun_hw.devices.native.memory import ContiguousMemory
from edgerun_hw.devices.native.port import NativePort
from edgerun_hw.devices.registry import find_device
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.errors import OverlayError, WrongOverlayError
from edgerun_hw.overlay.geometry import PRESETS
from edgerun_hw.overlay.packing import LookupMode
from edgerun_hw.overlay.port import DevicePort
from edgerun_hw.simulate.board.dev import CLASS, CLOCK_HZ, EmulatedKernel
from edgerun_hw.simulate.fake import FakeDevice, Faults
from edgerun_hw.simulate.simulator import Simulator
from tests.hw.deploy.harness import Quick, board
from tests.hw.support.problems import random_problem
from tests.support.bundles import SMALL_MODEL

BASE = base_of("kv260")
MEMORY_BYTES = 64 << 20


def fake(preset: str = "decode-300", **faults: object) -> FakeDevice:
    """Logic whose memory is what the caches write back to."""
    return FakeDevice(
        PRESETS[preset],
        faults=Faults(**faults),  # type: ignore[arg-type]
        memory_bytes=2 * MEMORY_BYTES,
        coherent=True,
    )


@pytest.fixture
def kernel(tmp_path: Path) -> EmulatedKernel:
    return EmulatedKernel(tmp_path, fake(), BASE, MEMORY_BYTES)


def port_of(kernel: EmulatedKernel) -> NativePort:
    return NativePort(kernel, BASE, CLOCK_HZ, "udmabuf0")


@pytest.fixture
def this_board(tmp_path: Path, monkeypatch, first) -> Callable[[DevicePort], EmulatedKernel]:
    """Makes this machine a board on which the first application was deployed."""
    root = board(tmp_path / "root", True, first)
    monkeypatch.setattr(deployed, "SYSTEM", lambda: Quick(root))
    monkeypatch.setattr(lock, "PATH", str(tmp_path / "lock"))

    def make(logic: DevicePort) -> EmulatedKernel:
        kernel = EmulatedKernel(root, logic, BASE, MEMORY_BYTES)
        monkeypatch.setattr(deployed, "KERNEL", lambda: kernel)
        return kernel

    return make


# ---- registers


def test_a_window_moves_whole_words_at_their_offsets(tmp_path: Path) -> None:
    file = tmp_path / "mem"
    file.write_bytes(bytes(4096) + np.arange(1024, dtype="<u4").tobytes())
    window = MappedWindow(file, 4096, 4096)
    assert [window.read(offset) for offset in (0, 4, 4092)] == [0, 1, 1023]
    window.write(8, 0xFFFF_FFFE)
    window.close()
    words = np.frombuffer(file.read_bytes(), "<u4")
    assert words[1026] == 0xFFFF_FFFE and words[1025] == 1 and words[1027] == 3


def test_registers_are_mapped_through_dev_mem_or_the_uio_device_that_has_them(
    tmp_path: Path,
) -> None:
    for name, words in (("mem", [1]), ("uio3", [3])):
        (tmp_path / "dev").mkdir(exist_ok=True)
        page = np.array(words, "<u4").tobytes().ljust(4096, b"\0")
        (tmp_path / "dev" / name).write_bytes(bytes(8192) + page if name == "mem" else page)
    kernel = LinuxKernel(tmp_path)
    assert kernel.map_registers(8192, 4096).read(0) == 1
    for number, (address, size) in {2: ("0x1000", "0x1000"), 3: ("0x2000", "0x1000")}.items():
        maps = tmp_path / f"sys/class/uio/uio{number}/maps/map0"
        maps.mkdir(parents=True)
        (maps / "addr").write_text(f"{address}\n")
        (maps / "size").write_text(f"{size}\n")
    assert find_uio(tmp_path, 8192, 8192) is None
    assert kernel.map_registers(8192, 4096).read(0) == 3


def test_registers_that_cannot_be_mapped_are_said_with_the_reason(tmp_path: Path) -> None:
    kernel = LinuxKernel(tmp_path)
    with pytest.raises(InputError, match="at 0x2000 cannot be mapped: there is no /dev/mem"):
        kernel.map_registers(0x2000, 4096)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/mem").write_bytes(bytes(4096))
    with pytest.raises(InputError, match="cannot be mapped through /dev/mem: mmap length"):
        kernel.map_registers(0x2000, 4096)


def test_closed_registers_ask_for_root(tmp_path: Path, monkeypatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InputError, match=r"may not open /dev/mem, or the kernel.*run as root"):
        LinuxKernel(tmp_path).map_registers(BASE, 4096)
    with pytest.raises(InputError, match="there is no u-dma-buf device udmabuf0"):
        ContiguousMemory(LinuxKernel(tmp_path))


def test_wrong_identity_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    kernel = EmulatedKernel(tmp_path, fake(identity=0x1234_5678), BASE, MEMORY_BYTES)
    port = port_of(kernel)
    with pytest.raises(WrongOverlayError, match="the ID register reads 0x12345678"):
        Tlmm(port)
    assert kernel.writes == []


# ---- memory


def test_the_kernel_writes_attributes_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "sync").touch()
    LinuxKernel(tmp_path).write_attribute("sync", "0x1")
    assert (tmp_path / "sync").read_text() == "0x1"


def test_buffers_are_zeroed_pages_that_come_back(kernel: EmulatedKernel) -> None:
    memory = ContiguousMemory(kernel)
    first, second = memory.allocate(5000), memory.allocate(1)
    assert (second.address - first.address, first.address) == (8192, memory.address)
    first.array[:] = 7
    first.free()
    first.free()
    with pytest.raises(ValueError, match="was freed"):
        first.flush()
    again = memory.allocate(8192)
    assert again.address == memory.address and not again.array.any()
    with pytest.raises(MemoryError, match=f"no {MEMORY_BYTES} bytes in one piece left"):
        memory.allocate(MEMORY_BYTES)
    again.free()
    second.free()
    assert memory.allocate(MEMORY_BYTES).address == memory.address
    with pytest.raises(ValueError, match="at least one byte"):
        memory.allocate(0)


def test_nothing_is_seen_before_it_is_flushed_or_invalidated(kernel: EmulatedKernel) -> None:
    buffer = ContiguousMemory(kernel).allocate(5000)
    others = kernel._memory.array  # what the logic sees
    buffer.array[:] = 1
    assert not others.any()
    buffer.flush()
    assert (others[:5000] == 1).all() and not others[5000:].any()
    others[:5000] = 2
    assert (buffer.array == 1).all()
    buffer.invalidate()
    assert (buffer.array == 2).all()
    assert kernel.writes == ["sync_for_device", "sync_for_device", "sync_for_cpu"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("dma_coherent", "1", "sees the processors' caches .*make it without"),
        ("phys_addr", "0x123", "nothing usable of udmabuf0"),
        ("size", "0", "nothing usable of udmabuf0"),
        ("size", str(5 << 30), "nothing usable of udmabuf0"),
        ("size", "nonsense", "nothing usable of udmabuf0"),
        ("size", str(MEMORY_BYTES * 2), "/dev/udmabuf0, cannot be mapped"),
    ],
)
def test_memory_that_cannot_serve_is_refused(
    kernel: EmulatedKernel, name: str, text: str, message: str
) -> None:
    (kernel.root / CLASS / name).write_text(f"{text}\n")
    with pytest.raises(InputError, match=message):
        port_of(kernel)


def test_memory_that_is_not_there_is_named(kernel: EmulatedKernel) -> None:
    with pytest.raises(InputError, match="no u-dma-buf device udmabuf7; there are udmabuf0: load"):
        ContiguousMemory(kernel, "udmabuf7")
    (kernel.root / "dev/udmabuf0").unlink()
    with pytest.raises(InputError, match="/dev/udmabuf0, cannot be opened: No such file"):
        ContiguousMemory(kernel)


def test_memory_beyond_the_overlays_addresses_is_refused(kernel: EmulatedKernel) -> None:
    port = port_of(kernel)
    port.check_addresses(40)
    with pytest.raises(InputError, match="ends beyond the overlay's 26 address bits"):
        port.check_addresses(26)


# ---- commands


def assert_commands_are_right(overlay: Tlmm) -> None:
    modes = list(LookupMode)
    problems = [random_problem(overlay, seed, modes[seed % 2]) for seed in range(8)]
    overlay.wait(overlay.submit_all([command for command, _ in problems]))
    assert all(right() for _, right in problems)


def test_commands_through_device_files_give_the_right_answer(kernel: EmulatedKernel) -> None:
    overlay = Tlmm(port_of(kernel))
    assert_commands_are_right(overlay)
    overlay.close()


@pytest.mark.fpga
def test_the_rtl_below_device_files_gives_the_right_answer(tmp_path: Path) -> None:
    with Simulator(PRESETS["tiny"], memory=None) as simulator:
        overlay = Tlmm(port_of(EmulatedKernel(tmp_path, simulator, BASE, 4 << 20)))
        assert_commands_are_right(overlay)
        assert simulator.violations() == []


# ---- board:...,host=native


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("", deployed.Request()),
        ("app", deployed.Request("app")),
        ("app,host=native", deployed.Request("app", "native")),
        ("host=native,memory=udmabuf1", deployed.Request("", "native", "udmabuf1")),
        ("app,host=pynq", deployed.Request("app", "pynq")),
    ],
)
def test_options_follow_the_name(argument: str, expected: deployed.Request) -> None:
    assert deployed.parse_request(argument) == expected


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("app,native", r"does not take 'native': write board\[:NAME\]"),
        ("host=", "does not take 'host='"),
        ("host=native,host=pynq", "does not take 'host=pynq'"),
        ("host=xrt", "no host is called 'xrt': there are pynq and native"),
        ("memory=udmabuf1", "memory= goes with host=native"),
    ],
)
def test_options_that_mean_nothing_are_refused(argument: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_device(f"board:{argument}").obstacle()


def test_the_native_host_needs_no_pynq(monkeypatch) -> None:
    from edgerun_hw.devices import pynq

    monkeypatch.setattr(pynq, "obstacle", lambda argument: "needs pynq")
    assert find_device("board:host=native").obstacle() == ""
    assert find_device("board").obstacle() == (
        "needs pynq; or choose board:host=native, which needs u-dma-buf"
    )


def test_a_deployed_package_gives_the_cpus_tokens_natively(this_board) -> None:
    kernel = this_board(fake("prefill-1500"))
    with load(SMALL_MODEL, backend="cpu") as llm:
        expected = llm.generate("Once upon a time", max_tokens=3, temperature=0.0).ids
    with load(SMALL_MODEL, backend="fpga", device="board:host=native") as llm:
        ids = llm.generate("Once upon a time", max_tokens=3, temperature=0.0).ids
        (report,) = llm.reports()
        with pytest.raises(OverlayError, match=r"logic is in use \(edgerun run"):
            lock.BoardLock()
    assert ids == expected
    assert not any("not used any more" in note for note in report.notes)
    assert set(kernel.writes) == {"sync_for_device", "sync_for_cpu"}
    lock.BoardLock().release()


def test_a_failure_gives_the_lock_back(this_board) -> None:
    kernel = this_board(fake(identity=1))
    for _ in range(2):
        with pytest.raises(WrongOverlayError, match="ID register"):
            find_device("board:host=native").open()
    (kernel.root / CLASS / "dma_coherent").write_text("1\n")
    with pytest.raises(InputError, match="dma_coherent"):
        find_device("board:host=native").open()
    lock.BoardLock().release()
