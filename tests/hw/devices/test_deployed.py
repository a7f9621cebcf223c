"""``--device board`` drives what is deployed, and nothing that may be something else."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from edgerun.env import settings
from edgerun.errors import InputError
from edgerun.llm.llm import load
from edgerun_hw.board_side import devices
from edgerun_hw.board_side.devices import name_for_pynq
from edgerun_hw.deploy.bitstream import parse_bit, to_bin
from edgerun_hw.deploy.broker.application.store import JOURNAL
from edgerun_hw.deploy.broker.board.loader import FIRMWARE, MANAGER, OVERLAYS
from edgerun_hw.deploy.broker.board.settings import rate_file
from edgerun_hw.deploy.broker.board.system import System
from edgerun_hw.deploy.emulate.board import boot, make_root, power_cycle
from edgerun_hw.deploy.emulate.example_bit import example_bit
from edgerun_hw.devices import deployed, pynq
from edgerun_hw.devices.client import WorkerClient
from edgerun_hw.devices.registry import find_device
from edgerun_hw.overlay.errors import OverlayError
from tests.hw.deploy.harness import KV260, Quick, board, deploy, resealed
from tests.support.bundles import SMALL_MODEL

NAME = "edgerun-tlmm"


@pytest.fixture
def this_board(tmp_path: Path, monkeypatch, first) -> Path:
    """This machine is a board on which the first application was deployed."""
    root = board(tmp_path / "root", True, first)
    monkeypatch.setattr(deployed, "SYSTEM", lambda: Quick(root))
    return root


@pytest.fixture
def opened(monkeypatch) -> list[tuple[str, str]]:
    """What was asked to be opened."""
    asked: list[tuple[str, str]] = []

    def open_here(*asking: str) -> Mock:
        asked.append(asking)
        return Mock()

    monkeypatch.setattr(pynq, "open_here", open_here)
    return asked


@pytest.mark.parametrize("name", ["board", f"board:{NAME}"])
def test_the_deployed_application_is_opened_without_loading_it(
    this_board: Path, opened: list[tuple[str, str]], name: str
) -> None:
    device = find_device(name)
    device.prepare()
    device.open()
    place = this_board / FIRMWARE / NAME
    assert opened == [("deployed", str(place / f"{NAME}.bit.bin"))]


def test_pynq_finds_bitstream_and_description_and_no_overlay_to_apply(
    this_board: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "links"
    folder.mkdir()
    place = this_board / FIRMWARE / NAME
    link = name_for_pynq(place / f"{NAME}.bit.bin", folder)
    assert link.suffix == ".bin" and link.read_bytes() == (place / f"{NAME}.bit.bin").read_bytes()
    assert link.with_suffix(".hwh").read_bytes() == (place / f"{NAME}.hwh").read_bytes()
    assert sorted(file.suffix for file in folder.iterdir()) == [".bin", ".hwh"]


def edit(file: Path, change: Callable[[bytes], bytes]) -> None:
    file.write_bytes(change(file.read_bytes()))


def unsettle(root: Path) -> None:
    manifest = root / FIRMWARE / NAME / "manifest.json"
    edit(manifest, lambda data: data.replace(b"edgerun 0", b"edgerun 1"))


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "power was lost": (power_cycle, "is not what runs on this board"),
    "a file was altered": (
        lambda root: edit(root / FIRMWARE / NAME / f"{NAME}.hwh", lambda data: data + b" "),
        f"{NAME}.hwh is not what the manifest says",
    ),
    "the manifest was altered": (unsettle, "is not what runs on this board, or was altered"),
    "another file was added": (
        lambda root: (root / FIRMWARE / NAME / "extra").write_text(""),
        "the files are not",
    ),
    "fpgautil has loaded something": (
        lambda root: (root / OVERLAYS / "full").mkdir(),
        r"overlays of somebody else are applied on this board \(full\).*fpgautil -R",
    ),
    "another clock": (
        lambda root: (root / rate_file("zynqmp", "pl0")).write_text("50000000\n"),
        "clock pl0 runs at 50 MHz and the logic was built for 99.999998 MHz",
    ),
    "logic that does not operate": (
        lambda root: (root / MANAGER / "state").write_text("write error\n"),
        "the FPGA manager's state is 'write error'",
    ),
    "interrupted": (
        lambda root: (root / JOURNAL).write_text(
            json.dumps({"kind": "deploy", "new": {"name": "x", "digest": "0" * 64}})
        ),
        "a deployment was interrupted",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_may_be_something_else_is_refused(
    this_board: Path, opened: list[tuple[str, str]], case: str
) -> None:
    change, message = BROKEN[case]
    deployed.find_deployed()
    change(this_board)
    with pytest.raises(InputError, match=message):
        find_device("board").prepare()
    with pytest.raises(InputError, match=message):
        find_device("board").open()
    assert opened == []


def test_what_was_replaced_while_it_was_opened_is_not_used(
    this_board: Path, monkeypatch, second
) -> None:
    overlay = Mock()

    def open_here(*asking: str) -> Mock:
        assert deploy(this_board, second).is_confirmed
        return overlay

    monkeypatch.setattr(pynq, "open_here", open_here)
    with pytest.raises(InputError, match=f"{NAME} was replaced while it was opened"):
        find_device("board").open()
    overlay.close.assert_called_once_with()


def test_overlay_of_kria_pynq_is_no_reason(this_board: Path) -> None:
    (this_board / OVERLAYS / "pynq").mkdir()
    assert deployed.find_deployed().application == NAME


def test_another_name_is_refused(this_board: Path) -> None:
    with pytest.raises(InputError, match=f"{NAME} is deployed on this board, and not other"):
        find_device("board:other").prepare()


def test_board_on_which_nothing_is_deployed_says_how(tmp_path: Path, monkeypatch) -> None:
    make_root(tmp_path)
    monkeypatch.setattr(deployed, "SYSTEM", lambda: Quick(tmp_path))
    with pytest.raises(InputError, match="nothing is deployed on this machine: run `edgerun fpga"):
        find_device("board").prepare()


def test_package_without_a_description_is_refused(this_board: Path, monkeypatch, second) -> None:
    manifest = json.loads(second["manifest.json"])
    del manifest["files"][f"{NAME}.hwh"]
    files = {name: data for name, data in second.items() if not name.endswith(".hwh")}
    files["manifest.json"] = json.dumps(manifest).encode()
    assert deploy(this_board, files).is_confirmed
    with pytest.raises(InputError, match="has no hardware description: package it again"):
        deployed.find_deployed()


@pytest.mark.parametrize("changes", [{"version": 0x0002_0000}, {"id": 0x1234_5678}])
def test_package_of_another_register_map_is_refused(this_board: Path, second, changes) -> None:
    manifest = json.loads(second["manifest.json"])
    manifest["registers"] |= changes
    registers = [manifest["registers"][name] for name in ("id", "version")]
    bit = example_bit(KV260, 4, identity=registers[0], version=registers[1])
    files = {**second, f"{NAME}.bit.bin": to_bin(parse_bit(bit).data)}
    files["manifest.json"] = json.dumps(manifest).encode()
    changed = resealed(files, {f"{NAME}.bit.bin": files[f"{NAME}.bit.bin"]})
    assert deploy(this_board, changed).is_confirmed
    with pytest.raises(InputError, match="register map .* build, package and deploy it again"):
        deployed.find_deployed()


def test_user_who_may_not_read_is_told_to_be_root(this_board: Path, monkeypatch) -> None:
    class Closed(Quick):
        def read(self, path: str, limit: int) -> bytes:
            if path.endswith(".bit.bin"):
                raise PermissionError(13, "Permission denied", path)
            return super().read(path, limit)

    monkeypatch.setattr(deployed, "SYSTEM", lambda: Closed(this_board))
    with pytest.raises(InputError, match="cannot be read: Permission denied; run as root"):
        deployed.find_deployed()


# ---- pynq:FILE beside what is deployed


@pytest.fixture
def bitstream(tmp_path: Path) -> Callable[[int], Path]:
    def write(seed: int) -> Path:
        file = tmp_path / f"design{seed}.bit"
        file.write_bytes(example_bit(KV260, seed))
        file.with_suffix(".hwh").write_bytes(b"")
        return file

    return write


def test_the_deployed_bitstream_may_be_loaded_again(
    this_board: Path, opened: list[tuple[str, str]], bitstream: Callable[[int], Path]
) -> None:
    find_device(f"pynq:{bitstream(1)}").open()
    ((kind, argument),) = opened
    assert kind == "unless-deployed" and argument.endswith(f"|{bitstream(1)}")


def test_another_bitstream_is_refused_unless_forced(
    this_board: Path, opened: list[tuple[str, str]], bitstream: Callable[[int], Path]
) -> None:
    file = bitstream(9)
    with pytest.raises(InputError, match=f"{NAME} is deployed on this board, and design9.bit is"):
        find_device(f"pynq:{file}").prepare()
    assert opened == []
    find_device(f"pynq:{file},force").open()
    assert opened == [("pynq", str(file))]


def test_any_bitstream_will_do_where_nothing_runs(
    this_board: Path, bitstream: Callable[[int], Path]
) -> None:
    power_cycle(this_board)
    assert deployed.check_bitstream(str(bitstream(9))) == bitstream(9)
    boot(Quick(this_board))
    with pytest.raises(InputError, match="is deployed"):
        deployed.check_bitstream(str(bitstream(9)))


@pytest.mark.parametrize("is_deployed", [False, True])
def test_bitstream_does_not_replace_what_was_deployed_while_it_was_opened(
    tmp_path: Path, monkeypatch, second, bitstream: Callable[[int], Path], is_deployed: bool
) -> None:
    """Another process deploys between the look at the board and the taking of its lock."""
    make_root(tmp_path / "root")
    loaded: list[str] = []

    class Lock:
        def __init__(self) -> None:
            assert not is_deployed or deploy(tmp_path / "root", second).is_confirmed

        def release(self) -> None:
            loaded.append("released")

    monkeypatch.setattr(deployed, "SYSTEM", lambda: Quick(tmp_path / "root"))
    monkeypatch.setattr(devices, "BoardLock", Lock)
    monkeypatch.setattr(devices, "_locked", lambda lock, bitfile, download: loaded.append(bitfile))
    monkeypatch.setattr(pynq, "find_spec", lambda name: True)
    if is_deployed:
        with pytest.raises(OverlayError, match="was deployed on this board while design9.bit was"):
            deployed.open_bitstream(str(bitstream(9)))
    else:
        deployed.open_bitstream(str(bitstream(9)))
    assert loaded == ["released" if is_deployed else str(bitstream(9))]


def test_file_that_is_no_bitstream_is_named(
    this_board: Path, bitstream: Callable[[int], Path]
) -> None:
    file = bitstream(9)
    file.write_bytes(b"nonsense")
    with pytest.raises(InputError, match="design9.bit is no bitstream"):
        deployed.check_bitstream(str(file))


def test_home_folder_of_nobody_is_named() -> None:
    with pytest.raises(InputError, match="'~nobody_here/a.bit' begins with the home folder of"):
        pynq.check_bitfile("~nobody_here/a.bit")


def test_machine_that_is_no_board_is_not_asked(tmp_path: Path, bitstream) -> None:
    assert deployed.SYSTEM is System
    if os.path.exists("/lib/firmware/edgerun"):
        pytest.skip("this is a board")
    assert deployed.check_bitstream(str(bitstream(9))) == bitstream(9)


# ---- from a package to a token


def test_a_deployed_package_gives_the_cpus_tokens(this_board: Path, monkeypatch) -> None:
    """All of the way but pynq: an overlay in software answers in a worker of its own."""
    asked = []

    def open_here(*asking: str) -> WorkerClient:
        asked.append(asking)
        return WorkerClient(Path(sys.executable), "fake:prefill-1500")

    monkeypatch.setattr(pynq, "open_here", open_here)
    changed = replace(settings(), pynq_python=Path(sys.executable))
    monkeypatch.setattr(pynq, "settings", lambda: changed)
    with load(SMALL_MODEL, backend="cpu") as llm:
        expected = llm.generate("Once upon a time", max_tokens=3, temperature=0.0).ids
    with load(SMALL_MODEL, backend="fpga", device="board") as llm:
        ids = llm.generate("Once upon a time", max_tokens=3, temperature=0.0).ids
        (report,) = llm.reports()
    assert ids == expected and len(asked) == 1
    assert not any("not used any more" in note for note in report.notes)
