"""Devices behind pynq: what they need, and where the driver then runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from edgerun.env import settings
from edgerun.errors import InputError
from edgerun_hw.board_side import lock
from edgerun_hw.board_side.devices import DEVICES as BOARDS
from edgerun_hw.board_side.devices import name_by_digest
from edgerun_hw.devices import pynq as pynq_devices
from edgerun_hw.devices.client import WorkerClient
from edgerun_hw.devices.registry import DEVICES, find_device
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.errors import OverlayError
from edgerun_hw.overlay.geometry import PRESETS
from edgerun_hw.overlay.port import Overlay
from edgerun_hw.simulate.board.bitstream import (
    StandInError,
    bitstream_name,
    read_bitstream,
    write_bitstream,
)
from edgerun_hw.simulate.fake import FakeDevice


@pytest.fixture
def bitfile(tmp_path: Path) -> Path:
    path = tmp_path / "overlay.bit"
    path.write_bytes(b"bits")
    path.with_suffix(".hwh").write_bytes(b"description")
    return path


def _have(monkeypatch, *, pynq: bool, python: Path | None) -> None:
    changed = replace(settings(), pynq_python=python)
    monkeypatch.setattr(pynq_devices, "settings", lambda: changed)
    monkeypatch.setattr(pynq_devices, "find_spec", lambda name: object() if pynq else None)


def test_without_pynq_the_obstacle_says_what_to_set(monkeypatch, bitfile):
    _have(monkeypatch, pynq=False, python=None)
    assert "EDGERUN_PYNQ_PYTHON" in DEVICES["pynq"].obstacle("")
    with pytest.raises(InputError, match="EDGERUN_PYNQ_PYTHON"):
        find_device(f"pynq:{bitfile}").open()


@pytest.mark.parametrize(("pynq", "python"), [(True, None), (False, Path(sys.executable))])
def test_either_way_to_pynq_will_do(monkeypatch, pynq, python):
    _have(monkeypatch, pynq=pynq, python=python)
    assert DEVICES["pynq"].obstacle("") == ""


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("", "needs a bitstream"),
        ("overlay.txt", "expected .bit or .xsa"),
        ("absent.bit", "absent.bit is missing"),
        ("alone.bit", "alone.hwh is missing"),
    ],
)
def test_unusable_bitstream_is_named(tmp_path, argument, message):
    (tmp_path / "alone.bit").write_bytes(b"")
    with pytest.raises(InputError, match=message):
        pynq_devices.check_bitfile(argument and str(tmp_path / argument))


def test_archive_brings_its_own_description(tmp_path):
    (tmp_path / "overlay.xsa").write_bytes(b"")
    assert pynq_devices.check_bitfile(str(tmp_path / "overlay.xsa")).suffix == ".xsa"


@pytest.mark.parametrize("argument", ["", "host", "host,", ",overlay.bit", "a|b,overlay.bit"])
def test_remote_needs_host_and_bitstream(argument):
    with pytest.raises(InputError, match="needs a host and a bitstream"):
        pynq_devices.split_remote(argument)


def test_where_pynq_imports_the_driver_runs_in_this_process(monkeypatch, bitfile):
    _have(monkeypatch, pynq=True, python=None)
    driver = ModuleType("edgerun_hw.board_side.pynq_driver")
    monkeypatch.setattr(lock, "PATH", str(bitfile.with_name("lock")))
    loaded = []

    def load_overlay(path: str, *, download: bool, on_close: Callable[[], None]) -> Tlmm:
        loaded.append((path, download))
        on_close()
        return Tlmm(FakeDevice())

    driver.load_overlay = load_overlay
    monkeypatch.setitem(sys.modules, "edgerun_hw.board_side.pynq_driver", driver)
    overlay = find_device(f"pynq:{bitfile}").open()
    assert isinstance(overlay, Tlmm)
    assert loaded == [(str(bitfile), True)]


def test_board_that_does_not_load_is_given_free_again(monkeypatch, tmp_path):
    def load_overlay(path: str, **_: object) -> Tlmm:
        with pytest.raises(OverlayError, match="in use"):
            lock.BoardLock()
        raise RuntimeError("no such board")

    driver = ModuleType("edgerun_hw.board_side.pynq_driver")
    driver.load_overlay = load_overlay
    monkeypatch.setitem(sys.modules, "edgerun_hw.board_side.pynq_driver", driver)
    monkeypatch.setattr(lock, "PATH", str(tmp_path / "lock"))
    with pytest.raises(RuntimeError, match="no such board"):
        BOARDS["pynq"]("overlay.bit")
    lock.BoardLock().release()


def test_a_board_at_another_host_is_one_process_s(monkeypatch, bitfile):
    held = []

    def load_overlay(path: str, *, device: str, on_close: Callable[[], None]) -> Tlmm:
        with pytest.raises(OverlayError, match="in use"):
            lock.BoardLock(lock.remote_path(device))
        lock.BoardLock(lock.remote_path("192.0.2.2")).release()
        held.append(on_close)
        return Tlmm(FakeDevice())

    driver = ModuleType("edgerun_hw.board_side.pynq_driver")
    driver.load_overlay = load_overlay
    remote = ModuleType("pynq.pl_server.remote_device")
    remote.RemoteDevice = lambda ip_addr: ip_addr
    for module in (driver, remote, ModuleType("pynq"), ModuleType("pynq.pl_server")):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(lock.tempfile, "gettempdir", lambda: str(bitfile.parent))
    BOARDS["remote"](f"192.0.2.1|{bitfile}")
    held[0]()
    lock.BoardLock(lock.remote_path("192.0.2.1")).release()


@pytest.mark.parametrize("error", [RuntimeError, KeyError, ImportError])
def test_what_pynq_raises_in_this_process_is_the_devices_failure(error, monkeypatch, bitfile):
    def refuse(argument: str) -> Tlmm:
        raise error("no Devices Found")

    _have(monkeypatch, pynq=True, python=None)
    monkeypatch.setattr(pynq_devices, "DEVICES", {"pynq": refuse})
    with pytest.raises(OverlayError, match=f"pynq failed: {error.__name__}: .*no Devices Found"):
        find_device(f"pynq:{bitfile},force").open()


def test_elsewhere_it_runs_in_a_worker(monkeypatch, bitfile):
    _have(monkeypatch, pynq=False, python=Path(sys.executable))
    asked = []
    monkeypatch.setattr(pynq_devices, "WorkerClient", lambda *arguments: asked.append(arguments))
    find_device(f"pynq:{bitfile},force").open()
    find_device(f"pynq-remote:192.0.2.1,{bitfile}").open()
    python = Path(sys.executable)
    assert asked == [(python, f"pynq:{bitfile}"), (python, f"remote:192.0.2.1|{bitfile}")]


def test_client_of_a_worker_is_an_overlay_like_the_driver():
    names = [name for name in vars(Overlay) if not name.startswith("_")]
    assert len(names) >= 8
    for kind in (Tlmm, WorkerClient):
        assert [name for name in names if not hasattr(kind, name)] == []


def test_digest_goes_into_the_name(bitfile, tmp_path):
    folders = [tmp_path / "first", tmp_path / "second"]
    names = []
    for folder, data in zip(folders, (b"bits", b"other bits"), strict=True):
        folder.mkdir()
        bitfile.write_bytes(data)
        named = name_by_digest(bitfile, folder)
        assert named.read_bytes() == data
        assert named.with_suffix(".hwh").read_bytes() == b"description"
        names.append(named.name)
    assert names[0] != names[1]


@pytest.mark.parametrize("preset", PRESETS)
def test_stand_in_names_its_geometry(preset):
    data = write_bitstream(PRESETS[preset])
    assert read_bitstream(data) == PRESETS[preset]
    words = data[data.index(b"{") :]
    swapped = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
    assert read_bitstream(swapped) == PRESETS[preset]
    others = {bitstream_name(write_bitstream(PRESETS[name])) for name in PRESETS}
    assert len(others) == len(PRESETS)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(100),
        bytes(5000),
        b'{"overlay": "abacus"}',
        b"[1, 2]",
        b'{"overlay": "edgerun-tlmm", "ports": 99}',
        b'{"overlay": "edgerun-tlmm", "wings": 2}',
        write_bitstream(PRESETS["tiny"])[:-9],
    ],
)
def test_what_is_no_stand_in_is_refused(data):
    with pytest.raises(StandInError):
        read_bitstream(data)
