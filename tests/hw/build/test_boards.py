"""Board descriptions, and the Vivado flow against stand-ins for Vivado's commands."""

import dataclasses
import errno
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from edgerun.errors import InputError, StorageError
from edgerun_hw.build import project
from edgerun_hw.build.boards import board_names, load_board, parse_board, read_toml
from edgerun_hw.build.project import SCRIPTS, geometry_for, settings_tcl, write_project
from edgerun_hw.build.sources import hardware_folder
from edgerun_hw.overlay.geometry import PRESETS, Geometry

STUBS = Path(__file__).with_name("vivado_stubs.tcl")
needs_tclsh = pytest.mark.skipif(shutil.which("tclsh") is None, reason="there is no tclsh")


def build(folder, board, *, slack="0.103", boards=None, fail=""):
    """Runs a project's build.tcl with stand-ins; returns the finished process."""
    environment = {
        **os.environ,
        "STUB_WNS": slack,
        "STUB_BOARDS": " ".join(board.board_parts if boards is None else boards),
        "STUB_FAIL": fail,
    }
    command = ["tclsh", str(STUBS), str(folder / "build.tcl")]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)


def calls(result, name):
    return [line for line in result.stdout.splitlines() if line.startswith(f"CALL {name} ")]


@pytest.fixture(params=board_names())
def board(request):
    return load_board(request.param)


def test_the_three_boards_are_there():
    assert board_names() == ("kv260", "pynq-z2", "ultra96v2")


def test_board_is_a_folder_with_one_file_and_a_geometry_that_fits(board):
    assert [file.name for file in board.folder.iterdir()] == ["board.toml"]
    assert geometry_for(board, PRESETS[board.geometry]).ports <= len(board.weight_ports)


def test_boards_say_their_image_and_who_cannot_run_edgerun(board):
    assert "3.0.1" in board.image
    assert bool(board.remote_only) == (board.name == "pynq-z2")


def test_what_was_never_run_says_so():
    for name in SCRIPTS:
        assert "NOT RUN HERE" in (hardware_folder("boards") / name).read_text()


def test_unknown_board_names_the_nearest():
    with pytest.raises(InputError, match="did you mean 'kv260'"):
        load_board("kv26")


def test_description_with_a_missing_key_is_named(board, tmp_path):
    fields = read_toml(board.folder / "board.toml")
    del fields["part"]
    with pytest.raises(InputError, match="part"):
        parse_board(fields, tmp_path)


def test_description_with_a_wrong_value_is_named(board, tmp_path):
    fields = read_toml(board.folder / "board.toml")
    fields["ports"]["bits"] = 100
    fields["clock"]["pl_mhz"] = fields["clock"]["max_mhz"] + 1
    with pytest.raises(InputError, match=r"ports\.bits, clock cannot be right"):
        parse_board(fields, tmp_path)


def test_broken_toml_is_a_clear_error(tmp_path):
    (tmp_path / "board.toml").write_text("title = ")
    with pytest.raises(InputError, match=r"board\.toml"):
        read_toml(tmp_path / "board.toml")


def test_geometry_with_too_many_ports_is_refused():
    with pytest.raises(InputError, match="4 ports"):
        geometry_for(load_board("pynq-z2"), Geometry(ports=4))


def test_zynq_7000_gets_addresses_of_32_bits():
    assert geometry_for(load_board("pynq-z2"), Geometry(ports=1)).addr_bits == 32
    assert geometry_for(load_board("kv260"), Geometry(ports=1)).addr_bits == 40


def test_parts_without_ultrarams_read_as_far_ahead_as_block_memory_holds():
    read_ahead = {
        name: geometry_for(load_board(name), PRESETS["layer-300"]).read_ahead
        for name in ("kv260", "ultra96v2")
    }
    assert read_ahead == {"kv260": 4096, "ultra96v2": 512}
    assert geometry_for(load_board("ultra96v2"), Geometry(read_ahead=128)).read_ahead == 128


def test_project_does_not_overwrite_what_it_did_not_write(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="empty folder"):
        write_project(load_board("kv260"), Geometry(ports=1), tmp_path)


@pytest.mark.parametrize("about", ["", "[]", '{"name": "a game", "version": 1}'])
def test_project_of_another_tool_is_not_written_into(tmp_path, about):
    (tmp_path / "project.json").write_text(about)
    (tmp_path / "rtl").mkdir()
    (tmp_path / "rtl" / "thesis.sv").write_text("mine")
    with pytest.raises(InputError, match="did not write: name an empty folder"):
        write_project(load_board("kv260"), Geometry(ports=1), tmp_path)
    assert (tmp_path / "rtl" / "thesis.sv").read_text() == "mine"
    assert (tmp_path / "project.json").read_text() == about


def test_what_was_added_to_a_project_stays(tmp_path):
    write_project(load_board("kv260"), Geometry(ports=1), tmp_path)
    (tmp_path / "rtl" / "probe.sv").write_text("mine")
    script = write_project(load_board("kv260"), Geometry(ports=1), tmp_path)
    assert (tmp_path / "rtl" / "probe.sv").read_text() == "mine"
    assert "probe.sv" not in (script.parent / "settings.tcl").read_text()


def test_project_whose_first_file_found_no_room_is_written_again_later(tmp_path, monkeypatch):
    def full(draft, path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), draft)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(StorageError, match="No space left"):
            write_project(load_board("kv260"), Geometry(ports=1), tmp_path)
    assert write_project(load_board("kv260"), Geometry(ports=1), tmp_path).is_file()


def test_project_that_found_no_room_is_written_again_later(tmp_path, monkeypatch):
    def full(source, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), source)

    folder = tmp_path / "build"
    with monkeypatch.context() as patch:
        patch.setattr(project.shutil, "copyfile", full)
        with pytest.raises(StorageError, match=r"build cannot be written: No space left"):
            write_project(load_board("kv260"), Geometry(ports=1), folder)
    assert write_project(load_board("kv260"), Geometry(ports=1), folder).is_file()


def test_project_can_be_written_again_and_keeps_results(tmp_path):
    folder = tmp_path / "build"
    write_project(load_board("kv260"), Geometry(ports=1), folder)
    (folder / "out").mkdir()
    (folder / "out" / "kv260.bit").write_text("bits")
    write_project(load_board("kv260"), Geometry(ports=2), folder)
    assert (folder / "out" / "kv260.bit").read_text() == "bits"
    assert json.loads((folder / "project.json").read_text())["geometry"]["ports"] == 2


@needs_tclsh
def test_flow_builds_every_board(board, tmp_path):
    folder = tmp_path / "a folder with spaces"
    write_project(board, PRESETS[board.geometry], folder)
    result = build(folder, board)
    assert result.returncode == 0, result.stderr + result.stdout
    for suffix in ("bit", "hwh", "xsa"):
        assert (folder / "out" / f"{board.name}.{suffix}").is_file()
    about = json.loads((folder / "out" / "build.json").read_text())
    assert about["part"] == board.part and about["clock_hz"] == 249997500
    assert calls(result, "save_core") == ["CALL save_core edgerun:ip:tlmm:1.0"]
    (mapped, *_) = calls(result, "assign_bd_address")
    assert f"-offset 0x{board.control_address:08X} -range 0x1000" in mapped


@needs_tclsh
@pytest.mark.parametrize("ports", [1, 2, 3, 4])
def test_every_weight_port_reaches_its_own_memory_port(ports, tmp_path):
    board = load_board("kv260")
    write_project(board, Geometry(ports=ports), tmp_path / "build")
    result = build(tmp_path / "build", board)
    assert result.returncode == 0, result.stderr
    nets = calls(result, "connect_bd_intf_net")
    for port in range(ports):
        assert f"CALL connect_bd_intf_net tlmm/m_axi_w{port} weights{port}/S00_AXI" in nets
        target = f"ps/S_AXI_{board.weight_ports[port]}_FPD"
        assert f"CALL connect_bd_intf_net weights{port}/M00_AXI {target}" in nets
    assert len(nets) == 2 * (ports + 2)
    widths = [c for c in calls(result, "set_property") if "PSU__SAXIGP" in c]
    assert len(widths) == ports + 1 and all(" 128 ps" in width for width in widths)


@needs_tclsh
def test_negative_slack_fails_before_a_bitstream_is_written(tmp_path):
    board = load_board("kv260")
    write_project(board, Geometry(), tmp_path / "build")
    result = build(tmp_path / "build", board, slack="-0.002")
    assert result.returncode != 0
    assert "timing is not met: setup slack -0.002 ns" in result.stderr
    assert not list((tmp_path / "build").rglob("*.bit"))


@needs_tclsh
def test_a_build_that_fails_leaves_no_results_of_an_earlier_one_in_their_place(tmp_path):
    board, folder = load_board("kv260"), tmp_path / "build"
    write_project(board, Geometry(), folder)
    assert build(folder, board).returncode == 0
    names = {f"kv260.{suffix}" for suffix in ("bit", "hwh", "xsa")} | {"build.json"}
    assert names <= {file.name for file in (folder / "out").iterdir()}
    assert build(folder, board, slack="-0.002").returncode != 0
    assert not names & {file.name for file in (folder / "out").iterdir()}
    assert names == {file.name for file in (folder / "out" / "before").iterdir()}


@needs_tclsh
def test_timing_is_looked_at_after_the_last_step_as_well(tmp_path):
    board = load_board("kv260")
    write_project(board, Geometry(), tmp_path / "build")
    result = build(tmp_path / "build", board, slack="0.100 -0.004")
    assert result.returncode != 0
    assert "timing is not met: setup slack -0.004 ns" in result.stderr
    assert not list((tmp_path / "build" / "out").glob("*.bit"))


@needs_tclsh
def test_timing_is_not_looked_at_before_it_is_closed(tmp_path):
    """A run that stops at routing leaves the step that repairs it undone."""
    board = load_board("kv260")
    write_project(board, Geometry(), tmp_path / "build")
    script = tmp_path / "build" / "common.tcl"
    text = script.read_text()
    assert text.count("run_to_end impl_1\n") == 1
    script.write_text(
        text.replace("run_to_end impl_1\n", "run_to_end impl_1 -to_step route_design\n")
    )
    stderr = build(tmp_path / "build", board).stderr
    assert "impl_1 ended with 'Not started phys_opt_design (Post-Route)'" in stderr


@needs_tclsh
def test_missing_slack_fails(tmp_path):
    board = load_board("kv260")
    write_project(board, Geometry(), tmp_path / "build")
    result = build(tmp_path / "build", board, slack="")
    assert result.returncode != 0 and "no setup slack" in result.stderr


@needs_tclsh
def test_missing_source_board_files_or_a_failed_run_are_named(tmp_path):
    board = load_board("ultra96v2")
    folder = tmp_path / "build"
    write_project(board, Geometry(ports=1), folder)
    assert "board files" in build(folder, board, boards=()).stderr
    assert "synth_1 ended with" in build(folder, board, fail="synth_1").stderr
    (folder / "rtl" / "tlmm_pkg.sv").unlink()
    assert "tlmm_pkg.sv is missing" in build(folder, board).stderr


@needs_tclsh
def test_an_unknown_command_or_pin_would_be_found(tmp_path):
    """The stand-ins themselves: they must refuse what Vivado would refuse."""
    board = load_board("kv260")
    folder = tmp_path / "build"
    write_project(board, Geometry(ports=1), folder)
    script = folder / "common.tcl"
    text = script.read_text()
    for old, new in [
        ("regenerate_bd_layout", "regenerate_layout"),
        ("reset/ext_reset_in", "reset/ext_reset"),
        ("CONFIG.NUM_SI", "CONFIG.NUM_SLAVES"),
        ("ps/maxihpm0_fpd_aclk", ""),
    ]:
        assert old in text
        script.write_text(text.replace(old, new))
        assert build(folder, board).returncode != 0, old


def test_settings_hold_the_geometry():
    board = load_board("kv260")
    text = settings_tcl(board, Geometry(ports=3, columns=2), ["a.sv"], 2)
    assert (
        "PORTS 3 COLUMNS 2 NB_MAX 512 ROW_SCALE 0 ATTENTION 0 GLUE 0 QUEUE_DEPTH 8 ADDR_BITS 40"
        in text
    )
    changed = dataclasses.replace(board, pl_clock_mhz=111)
    assert re.search(r"pl_mhz +111", settings_tcl(changed, Geometry(), ["a.sv"], 2))
