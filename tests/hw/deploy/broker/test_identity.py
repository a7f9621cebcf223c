"""A board is what its device tree calls it first, and no other board with the same part."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgerun_hw.build import boards as build_boards
from edgerun_hw.build.boards import board_names, load_board
from edgerun_hw.build.project import write_project
from edgerun_hw.build.sources import hardware_folder
from edgerun_hw.check.board import board as diagnosed_board
from edgerun_hw.deploy.broker import PROTOCOL
from edgerun_hw.deploy.broker.board.boards import BOARDS, identify
from edgerun_hw.deploy.broker.board.identity import DEVICE_TREE, board_of
from edgerun_hw.deploy.broker.board.policy import SETTINGS, Policy, read_policy
from edgerun_hw.deploy.broker.errors import RefusalError
from edgerun_hw.deploy.broker_file import PACKAGE, broker_file
from edgerun_hw.deploy.emulate.board import make_root
from edgerun_hw.deploy.emulate.example_bit import example_bit
from edgerun_hw.deploy.emulate.sample import sample_package
from tests.hw.deploy.harness import Quick, ask, deploy, resealed

ZYNQ = "xlnx,zynq-7000"
MPSOC = "xlnx,zynqmp"
MODULE = ("xlnx,zynqmp-smk-k26-rev1", "xlnx,zynqmp-smk-k26-revB", "xlnx,zynqmp-smk-k26", MPSOC)


@pytest.mark.parametrize("board", BOARDS.values(), ids=lambda board: board.name)
def test_every_board_takes_its_own_application_only(tmp_path: Path, board) -> None:
    make_root(tmp_path, board.name, xmutil=board.name == "kv260")
    for other in BOARDS.values():
        files = sample_package(example_bit(other), board=other.name)
        result = deploy(tmp_path, files)
        assert result.is_confirmed == (other == board)
        assert other == board or result.error == {
            "code": "refused",
            "message": f"the application is for {other.title}, this is {board.title}",
        }


def test_boards_agree_with_those_that_are_built_for() -> None:
    assert tuple(BOARDS) == board_names()
    for name, ours in BOARDS.items():
        built = load_board(name)
        assert ours.accepts_part(built.part) and built.part.startswith(ours.device)
        assert all(identify((text,)) == ours for text in built.compatible)
        assert ours.has_window(built.control_address, built.control_bytes)
        assert ours.accepts_clock(built.pl_clock_mhz * 1_000_000)


# What Vivado writes into the header of a bitstream.
@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("kv260", "xck26-sfvc784-2LV-c"),
        ("ultra96v2", "xczu3eg-sbva484-1-i"),
        ("pynq-z2", "7z020clg400"),
    ],
)
def test_part_of_a_header_belongs_to_one_board(name: str, part: str) -> None:
    assert [board.name for board in BOARDS.values() if board.accepts_part(part)] == [name]
    assert not BOARDS[name].accepts_part(BOARDS[name].device + "x")


def test_copied_folder_is_a_new_board_everywhere(tmp_path: Path, monkeypatch) -> None:
    """Build, package, deployment, emulator, doctor and the packed helper know it."""
    boards = tmp_path / "boards"
    shutil.copytree(hardware_folder("boards"), boards)
    shutil.copytree(boards / "kv260", boards / "mine")
    text = (boards / "mine" / "board.toml").read_text()
    for old, new in (("AMD Kria KV260", "My Carrier"), ("xlnx,zynqmp-sk-kv260", "me,carrier")):
        assert old in text
        text = text.replace(old, new)
    (boards / "mine" / "board.toml").write_text(text)
    monkeypatch.setattr(build_boards, "hardware_folder", lambda name: tmp_path / name)
    BOARDS.use(build_boards.board_records)
    try:
        make_root(tmp_path / "root", "mine")
        files = sample_package(example_bit(BOARDS["mine"]), board="mine")
        assert deploy(tmp_path / "root", files).is_confirmed
        result = deploy(tmp_path / "root", sample_package(example_bit(BOARDS["kv260"])))
        assert result.error and "AMD Kria KV260, this is My Carrier" in result.error["message"]
        (tmp_path / "helper").write_bytes(broker_file())
        code = (
            f"import sys; sys.path[:] = [{str(tmp_path / 'helper')!r}, *sys.path]; "
            f"from {PACKAGE}.board.boards import BOARDS; "
            "print(*BOARDS); print(BOARDS['mine'])"
        )
        command = [sys.executable, "-I", "-c", code]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        names, mine = answer.stdout.splitlines()
        assert names == "kv260 mine pynq-z2 ultra96v2" and mine == str(BOARDS["mine"])
        described = build_boards.load_board("mine")
        write_project(described, described.overlay, tmp_path / "project")
        assert " mine" in (tmp_path / "project" / "settings.tcl").read_text().splitlines()[2]
        findings = [finding.observed for finding in diagnosed_board(tmp_path / "root")]
        assert any(f"mine ({described.part})" in finding for finding in findings), findings
    finally:
        BOARDS.use(build_boards.board_records)


# Root compatibles of Linux's arch/arm64/boot/dts/xilinx and arch/arm/boot/dts/xilinx.
@pytest.mark.parametrize(
    ("compatible", "name"),
    [
        (("xlnx,zynqmp-sk-kv260-rev2", "xlnx,zynqmp-sk-kv260-rev1", MPSOC), "kv260"),
        (("xlnx,zynqmp-sk-kv260-revB", "xlnx,zynqmp-sk-kv260", MPSOC), "kv260"),
        (("xlnx,zynqmp-sk-kr260-revB", "xlnx,zynqmp-sk-kr260", MPSOC), None),
        (("xlnx,zynqmp-sk-kd240-rev1", "xlnx,zynqmp-sk-kd240", MPSOC), None),
        (("acme,camera", "xlnx,zynqmp-sk-kv260", MPSOC), None),  # made of one, and not one
        (MODULE, None),
        (("avnet,ultra96-rev1", "avnet,ultra96", "xlnx,zynqmp-zcu100-revC", MPSOC), "ultra96v2"),
        (("xlnx,zynqmp-zcu102-rev1.0", "xlnx,zynqmp-zcu102", MPSOC), None),
        (("tul,pynq-z2", ZYNQ), "pynq-z2"),
        (("digilent,zynq-zybo", ZYNQ), None),
        (("digilent,zynq-zybo-z7", ZYNQ), None),
        (("avnet,zynq-zed", "xlnx,zynq-zed", ZYNQ), None),
        ((ZYNQ,), None),
        ((MPSOC,), None),
        (("unknown",), None),
        ((), None),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) and value else None,
)
def test_carrier_decides_and_not_the_module(compatible: tuple[str, ...], name: str | None) -> None:
    assert identify(compatible) == BOARDS.get(name or "")


def test_owner_can_name_a_board_that_its_tree_does_not() -> None:
    assert identify(MODULE, "kv260") == BOARDS["kv260"]
    assert identify((ZYNQ,), "pynq-z2") == BOARDS["pynq-z2"]
    # Another carrier, or another processor, cannot be overruled.
    assert identify(("xlnx,zynqmp-sk-kr260-revB", *MODULE), "kv260") is None
    assert identify(("digilent,zynq-zybo", ZYNQ), "pynq-z2") is None
    assert identify((ZYNQ,), "kv260") is None
    assert identify(("xlnx,zynqmp-sk-kv260", MPSOC), "ultra96v2") == BOARDS["kv260"]


def test_board_without_a_name_takes_nothing_until_its_owner_names_it(tmp_path: Path, first) -> None:
    make_root(tmp_path)
    (tmp_path / DEVICE_TREE / "compatible").write_bytes("\0".join(MODULE).encode() + b"\0")
    result = deploy(tmp_path, first)
    assert result.error and result.error["code"] == "refused"
    assert f'{{"board": NAME}} in /{SETTINGS}' in result.error["message"]
    assert ask(tmp_path, "hello", protocol=PROTOCOL)["board"] is None
    (tmp_path / SETTINGS).write_text('{"allow_unsigned": true, "board": "kv260"}')
    assert ask(tmp_path, "hello", protocol=PROTOCOL)["board"] == "kv260"
    assert deploy(tmp_path, first).is_confirmed


def test_bitstream_for_other_logic_is_refused_by_the_board_itself(tmp_path: Path) -> None:
    """Manifest and digests are right: only the IDCODE in the bitstream tells."""
    make_root(tmp_path)
    files = sample_package(example_bit(BOARDS["kv260"]))
    other = sample_package(example_bit(BOARDS["ultra96v2"]), board="ultra96v2")
    name = "edgerun-tlmm.bit.bin"
    result = deploy(tmp_path, resealed(files, {name: other[name]}))
    assert result.error == {
        "code": "refused",
        "message": "the bitstream is for a device with IDCODE 0x04a42093, and AMD Kria KV260 has "
        "0x04a49093",
    }
    for broken in (bytes(4096), files[name][:-1], files[name][:41]):
        result = deploy(tmp_path, resealed(files, {name: broken}))
        assert result.error and "the bitstream is unusable" in result.error["message"]
    assert deploy(tmp_path, files).is_confirmed


def test_silicon_has_the_last_word(tmp_path: Path, monkeypatch) -> None:
    """A Zybo Z7-10 whose tree says PYNQ-Z2: its processor is a 7z010."""
    make_root(tmp_path, "pynq-z2", xmutil=False)
    system = Quick(tmp_path)
    assert board_of(system, read_policy(system)).name == "pynq-z2"
    monkeypatch.setattr(Quick, "read_word", lambda self, address: 0x1372_2093)
    with pytest.raises(RefusalError, match="silicon has IDCODE 0x13722093"):
        board_of(system, Policy())


def test_descriptions_of_other_boards_do_not_match(repo_root: Path) -> None:
    names = [json.dumps(board.compatible) for board in BOARDS.values()]
    assert len(set(names)) == len(names)
    assert not {name for board in BOARDS.values() for name in board.compatible} & {
        ZYNQ,
        MPSOC,
        *MODULE,
    }
